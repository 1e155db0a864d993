"""From a plan, or from the words of a user, to the three products of a layer; and whether a layer's sizes fit."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypedDict

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.check_product import check_option, check_options, check_product, check_size
from jaxquard.gemm.algorithms.choices import find_choice, find_count, find_flag
from jaxquard.gemm.algorithms.multiply import find_ring
from jaxquard.gemm.algorithms.product import Axes
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.algorithms.shardings import axes_of, num_chips
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.layers.layer_products import LayerProducts, Slices, layer_products
from jaxquard.gemm.problem import GemmPlan, LayerPlan, Stationary


class Choices(TypedDict, total=False):
    """What can be said of a layer besides its plan; see `matmul`."""

    layer: str | None
    algorithm: str | None
    stationary: Stationary | str | None
    is_transposed: bool | None
    slices: int | tuple[int, int, int] | None
    block: int | None
    in_parts: bool | None
    ring: Literal["rows", "columns"] | None
    both_ways: bool | None
    num_packets: int | None


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
    in_parts: bool | None = None,
    ring: Literal["rows", "columns"] | None = None,
    both_ways: bool | None = None,
    num_packets: int | None = None,
) -> LayerProducts:
    """The products of a layer on the given axes of a mesh of the given shape.

    Raises:
        GemmError: if plan and words contradict each other, or the plan is for another mesh or has no such layer.
    """
    words: dict[str, Any] = {
        "stationary": stationary,
        "is_transposed": is_transposed,
        "slices": slices,
        "block": block,
        "in_parts": in_parts,
        "ring": ring,
        "both_ways": both_ways,
        "num_packets": num_packets,
    }
    if isinstance(plan, Tuning):
        plan = plan.plan
    if not isinstance(plan, GemmPlan | LayerPlan | None):
        raise GemmError(f"plan must be what `autotune` returns, a GemmPlan or a LayerPlan; found {plan!r}.")
    if layer is not None and (plan is None or (isinstance(plan, LayerPlan) and plan.name != layer)):
        found = "no plan is given" if plan is None else f"the plan is that of layer {plan.name!r}"
        raise GemmError(f"layer={layer!r} names a layer of a plan, but {found}. Leave it out, or give its plan.")
    if isinstance(plan, GemmPlan):
        plan, algorithm = _layer_of(plan, layer, (num_chips(rows, shape), num_chips(columns, shape)), algorithm)
    chosen = find_algorithm("meshslice" if algorithm is None else algorithm)
    if block is not None:
        check_option(chosen, "block")
    if plan is not None:
        given = [name for name, value in words.items() if value is not None]
        if given:
            raise GemmError(f"the plan says {', '.join(given)} already. Leave {'them' if given[1:] else 'it'} out.")
        words = {field.name: getattr(plan, field.name) for field in fields(plan)}
    else:
        packets = 1 if num_packets is None else num_packets
        words |= {"rings": (ring, ring, ring), "num_packets": (packets, packets, packets)}
    first_ring, second_ring, third_ring = (find_ring(word, rows=rows, columns=columns) for word in words["rings"])
    seen_rows, seen_columns = chosen.view(rows, columns)
    products = layer_products(
        algorithm=chosen.name,
        stationary=find_choice(Stationary, _or(words["stationary"], Stationary.Y), "stationary"),
        rows=seen_rows,
        columns=seen_columns,
        is_transposed=find_flag(words["is_transposed"], "is_transposed"),
        slices=_find_slices(words["slices"]),
        block=_or(words["block"], 8),
        in_parts=find_flag(words["in_parts"], "in_parts"),
        rings=(first_ring, second_ring, third_ring),
        both_ways=find_flag(words["both_ways"], "both_ways"),
        num_packets=words["num_packets"],
    )
    for product in (products.forward, products.backward_data, products.backward_weight):
        check_options(chosen, product)
    return products


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


def _or(word: Any, default: Any) -> Any:
    return default if word is None else word


def _find_slices(slices: Any) -> Slices:
    """Those of the three products, from one number for all or one for each."""
    if slices is None:
        return None, None, None
    if not isinstance(slices, tuple | list):
        count = find_count(slices, "slices")
        return count, count, count
    if len(slices) != 3:
        raise GemmError(
            "slices must be one number, or three: for the product forward, backward of x and backward of w, but is "
            f"{slices!r}."
        )
    forward, data, weight = (find_count(count, "each of slices", found=f" in {slices!r}") for count in slices)
    return forward, data, weight


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
