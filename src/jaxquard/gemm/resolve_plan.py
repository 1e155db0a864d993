"""From a plan, or from the words of a user, to the three products of a layer; and whether a layer's sizes fit."""

import math
from collections.abc import Mapping
from typing import Literal, TypedDict

from jaxquard.errors import GemmError
from jaxquard.gemm.autotune_table import Tuning
from jaxquard.gemm.check_product import check_product, check_size
from jaxquard.gemm.choices import find_choice
from jaxquard.gemm.layer_products import LayerProducts, Slices, layer_products
from jaxquard.gemm.multiply import find_ring
from jaxquard.gemm.problem import GemmPlan, LayerPlan, Stationary
from jaxquard.gemm.product import Axes
from jaxquard.gemm.registry import find_algorithm
from jaxquard.gemm.shardings import axes_of, num_chips


class Choices(TypedDict, total=False):
    """What can be said of a layer besides its plan; see `matmul`."""

    layer: str | None
    algorithm: str | None
    stationary: Stationary | str | None
    is_transposed: bool | None
    slices: int | tuple[int, int, int] | None
    block: int | None
    is_halved: bool
    ring: Literal["rows", "columns"] | None
    num_packets: int


def resolve_plan(
    plan: GemmPlan | LayerPlan | Tuning | None,
    *,
    rows: Axes,
    columns: Axes,
    shape: Mapping[str, int],
    layer: str | None = None,
    algorithm: str | None = None,
    stationary: Stationary | str | None = None,
    is_transposed: bool | None = None,
    slices: int | tuple[int, int, int] | None = None,
    block: int | None = None,
    is_halved: bool = False,
    ring: Literal["rows", "columns"] | None = None,
    num_packets: int = 1,
) -> LayerProducts:
    """The products of a layer on the given axes of a mesh of the given shape.

    Raises:
        GemmError: if plan and words contradict each other, or the plan is for another mesh or has no such layer.
    """
    words = {"stationary": stationary, "is_transposed": is_transposed, "slices": slices, "block": block}
    if isinstance(plan, Tuning):
        plan = plan.plan
    if not isinstance(plan, GemmPlan | LayerPlan | None):
        raise GemmError(f"plan must be what `autotune` returns, a GemmPlan or a LayerPlan; found {plan!r}.")
    if isinstance(plan, GemmPlan):
        plan, algorithm = _layer_of(plan, layer, (num_chips(rows, shape), num_chips(columns, shape)), algorithm)
    chosen = find_algorithm(algorithm or "meshslice")
    if plan is None:
        counts: Slices = (slices, slices, slices) if slices is None or isinstance(slices, int) else slices
        kept = find_choice(Stationary, stationary or Stationary.Y, "stationary")
        is_flipped, width = bool(is_transposed), 8 if block is None else block
    else:
        given = [name for name, value in words.items() if value is not None]
        if given:
            raise GemmError(f"the plan says {', '.join(given)} already. Leave {'them' if given[1:] else 'it'} out.")
        counts, kept, is_flipped, width = plan.slices, plan.stationary, plan.is_transposed, plan.block
    seen_rows, seen_columns = chosen.view(rows, columns)
    return layer_products(
        algorithm=chosen.name,
        stationary=kept,
        rows=seen_rows,
        columns=seen_columns,
        is_transposed=is_flipped,
        slices=counts,
        block=width,
        is_halved=is_halved,
        ring=find_ring(ring, rows=rows, columns=columns),
        num_packets=num_packets,
    )


def check_layer(
    products: LayerProducts, *, x_shape: tuple[int, ...], w_shape: tuple[int, ...], shape: Mapping[str, int]
) -> None:
    """Checks that a layer's sizes fit its three products.

    Args:
        x_shape: of the whole x, with leading dims whose first is the one that is cut.
        shape: of the mesh.

    Raises:
        GemmError: with the nearest sizes that fit.
    """
    m, k, n = (
        (math.prod(x_shape[:-1]), "the rows of x"),
        (x_shape[-1], "the last dim of x"),
        (w_shape[-1], "the last dim of w"),
    )
    algorithm = find_algorithm(products.algorithm)
    for product, (rows_of, summed, columns_of) in (
        (products.forward, (m, k, n)),
        (products.backward_data, (m, n, k)),
        (products.backward_weight, (k, m, n)),
    ):
        dims = {"M": rows_of, "K": summed, "N": columns_of}
        check_product(
            algorithm,
            product,
            sizes={dim: size for dim, (size, _) in dims.items()},
            num_rows=num_chips(product.rows, shape),
            num_columns=num_chips(product.columns, shape),
            names={dim: name for dim, (_, name) in dims.items()},
        )
    for spec in (products.x_spec(2), products.y_spec(2)):
        chips = num_chips(axes_of(spec[0]), shape)
        check_size("the first dim of x", x_shape[0], chips, why=f"{chips} rows or columns of chips share it")


def _layer_of(
    plan: GemmPlan, name: str | None, mesh_shape: tuple[int, int], algorithm: str | None
) -> tuple[LayerPlan, str]:
    if plan.mesh_shape != mesh_shape:
        planned, found = ("x".join(map(str, sizes)) for sizes in (plan.mesh_shape, mesh_shape))
        raise GemmError(f"the plan is for a {planned} mesh, but the mesh is {found}. Make a mesh as planned.")
    if algorithm not in (None, plan.algorithm):
        raise GemmError(f"the plan's algorithm is {plan.algorithm}, but {algorithm} was asked for. Leave it out.")
    names = [layer.name for layer in plan.layers]
    if name not in names and not (name is None and len(names) == 1):
        raise GemmError(f"the plan has the layers {', '.join(names)}, but found layer={name!r}. Name one of them.")
    return plan.layer(name or names[0]), plan.algorithm
