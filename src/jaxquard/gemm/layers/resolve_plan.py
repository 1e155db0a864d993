"""Resolves a plan, or the words of a user, to a layer on a mesh; and checks a layer's sizes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

import jax
from jax.typing import DTypeLike

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.check_product import check_option, check_options, check_product, check_size
from jaxquard.gemm.algorithms.choices import (
    find_choice,
    find_count,
    find_flag,
    find_precision,
    find_result_dtype,
    find_ring,
)
from jaxquard.gemm.algorithms.products.layer_products import Products, layer_products
from jaxquard.gemm.algorithms.products.product import Axes, Product
from jaxquard.gemm.algorithms.products.shardings import mesh_shape_of, num_chips
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct
from jaxquard.gemm.algorithms.registry import Algorithm, find_algorithm
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.layers.sharded_layer import Options, ShardedLayer
from jaxquard.gemm.problem import AlgorithmOptions, Dataflow, GemmPlan, Kernel, LayerPlan, Stationary


class Choices(TypedDict, total=False):
    """The arguments of a layer besides its plan; see `matmul`."""

    layer: str | None
    algorithm: str | None
    stationary: Stationary | str | None
    is_transposed: bool | None
    slices: int | tuple[int, int, int] | None
    block: int | None
    split_for_overlap: bool | None
    ring: Literal["rows", "columns"] | None
    bidirectional: bool | None
    num_packets: int | None
    kernel: Kernel | Literal["xla", "pallas"] | None
    precision: jax.lax.PrecisionLike
    preferred_element_type: DTypeLike | None


_OF_ANY_PLAN = ("layer", "algorithm", "kernel", "precision", "preferred_element_type")
"""The arguments that say nothing which a plan says."""


def resolve_plan(
    plan: GemmPlan | LayerPlan | Tuning | None,
    *,
    rows: Axes,
    columns: Axes,
    shape: Mapping[str, int],
    **choices: Unpack[Choices],
) -> ShardedLayer:
    """Returns a layer on the given axes of a mesh of the given shape.

    Raises:
        GemmError: if plan and words contradict each other, or the plan is for another mesh or has no such layer.
    """
    unknown = [name for name in choices if name not in Choices.__annotations__]
    if unknown:
        raise GemmError(
            f"a layer takes no {unknown[0]!r}; besides mesh and plan it takes {', '.join(Choices.__annotations__)}."
        )
    layer, algorithm = choices.get("layer"), choices.get("algorithm")
    if isinstance(plan, Tuning):
        plan = plan.plan
    if not isinstance(plan, GemmPlan | LayerPlan | None):
        raise GemmError(f"plan must be what `autotune` returns, a GemmPlan or a LayerPlan; found {plan!r}.")
    if layer is not None and (plan is None or (isinstance(plan, LayerPlan) and plan.name != layer)):
        found = "no plan is given" if plan is None else f"the plan is that of layer {plan.name!r}"
        raise GemmError(f"layer={layer!r} names a layer of a plan, but {found}. Leave it out, or give its plan.")
    if isinstance(plan, GemmPlan):
        plan, algorithm = _layer_of(plan, layer, (num_chips(rows, shape), num_chips(columns, shape)), algorithm)
    elif isinstance(plan, LayerPlan) and algorithm is None:
        algorithm = plan.algorithm
    chosen = find_algorithm("meshslice" if algorithm is None else algorithm)
    if choices.get("block") is not None:
        check_option(chosen, "block")
    if plan is None:
        return _by_choices(chosen, rows, columns, choices)
    return _by_plan(chosen, rows, columns, plan, choices)


def _with_arithmetic(product: Product, choices: Choices) -> Product:
    """Returns a product in the precision and with the result that the words ask for."""
    layout = replace(
        product.layout,
        precision=find_precision(choices.get("precision")),
        result_dtype=find_result_dtype(choices.get("preferred_element_type")),
    )
    return replace(product, layout=layout)


def check_layer(
    layer: ShardedLayer, *, x_shape: tuple[int, ...], w_shape: tuple[int, ...], shape: Mapping[str, int]
) -> None:
    """Checks that a layer's sizes fit its three products.

    Args:
        x_shape: of the whole x, with leading dims whose first is the one that is sharded.
        shape: of the mesh.

    Raises:
        GemmError: with the nearest sizes that fit.
    """
    num_batches, num_shards = num_chips(layer.batch_axes, shape), layer.first_dim_shards(shape)
    over = f" in each of {num_batches} shards over {' and '.join(layer.batch_axes)}" if layer.batch_axes else ""
    why = f"{num_shards} rows or columns of chips share it{over}"
    check_size("the first dim of x", x_shape[0], num_batches * num_shards, why=why)
    sizes = math.prod(x_shape[:-1]) // num_batches, x_shape[-1], w_shape[-1]
    rows = f"the rows of x{over} (see `batch_axes`)" if over else "the rows of x"
    names = rows, "the last dim of x", "the last dim of w"
    for role, product, options in layer:
        m, k, n = role.arrange(*sizes)
        check_product(
            find_algorithm(layer.algorithm),
            SizedProduct(product=product, m=m, k=k, n=n),
            options,
            mesh_shape=mesh_shape_of(product, shape),
            names=dict(zip("MKN", role.arrange(*names), strict=True)),
        )


def _by_choices(algorithm: Algorithm, rows: Axes, columns: Axes, choices: Choices) -> ShardedLayer:
    """Returns the layer that the words alone describe."""
    block, num_packets = choices.get("block"), choices.get("num_packets")
    forward, data, weight = (
        AlgorithmOptions(
            slices=slices,
            block=8 if block is None else block,
            split_for_overlap=find_flag(choices.get("split_for_overlap"), "split_for_overlap"),
            ring=find_ring(choices.get("ring")),
            bidirectional=find_flag(choices.get("bidirectional"), "bidirectional"),
            num_packets=1 if num_packets is None else num_packets,
        )
        for slices in _find_slices(choices.get("slices"))
    )
    stationary = choices.get("stationary")
    return _layer(
        algorithm,
        rows,
        columns,
        stationary=find_choice(Stationary, Stationary.Y if stationary is None else stationary, "stationary"),
        is_transposed=find_flag(choices.get("is_transposed"), "is_transposed"),
        options=(forward, data, weight),
        choices=choices,
    )


def _by_plan(algorithm: Algorithm, rows: Axes, columns: Axes, plan: LayerPlan, choices: Choices) -> ShardedLayer:
    """Returns the layer that a plan describes; a plan takes no words besides."""
    given = [name for name, value in choices.items() if value is not None and name not in _OF_ANY_PLAN]
    if given:
        raise GemmError(f"the plan says {', '.join(given)} already. Leave {'them' if given[1:] else 'it'} out.")
    _find_slices(plan.slices)
    for ring in plan.rings:
        find_ring(ring)
    for name in ("split_for_overlap", "bidirectional"):
        find_flag(getattr(plan, name), name)
    return _layer(
        algorithm,
        rows,
        columns,
        stationary=find_choice(Stationary, plan.stationary, "stationary"),
        is_transposed=find_flag(plan.is_transposed, "is_transposed"),
        options=plan.options,
        choices=choices,
    )


def _layer(
    algorithm: Algorithm,
    rows: Axes,
    columns: Axes,
    *,
    stationary: Stationary,
    is_transposed: bool,
    options: Options,
    choices: Choices,
) -> ShardedLayer:
    """Returns the layer of Table 1; where a product exchanges rows and columns, its ring stays where the user said."""
    for option in options:
        check_options(algorithm, option)
    seen_rows, seen_columns = algorithm.view(rows, columns)
    products = layer_products(stationary, rows=seen_rows, columns=seen_columns, is_transposed=is_transposed)
    first, second, third = (_with_arithmetic(product, choices) for product in products)
    kernel = choices.get("kernel")
    if kernel is not None and find_choice(Kernel, kernel, "kernel") is not Kernel.XLA:
        check_option(algorithm, "kernel")
        options = _with_kernel(options, products)
    forward, data, weight = (
        option if product.rows == seen_rows else option.exchanged()
        for product, option in zip(products, options, strict=True)
    )
    return ShardedLayer(algorithm=algorithm.name, products=(first, second, third), options=(forward, data, weight))


def _with_kernel(options: Options, products: Products) -> Options:
    """Returns options in which OS products, one of each layer, run in the Pallas kernel, which splits nothing."""
    forward, data, weight = (
        replace(option, kernel=Kernel.PALLAS, split_for_overlap=False) if product.dataflow is Dataflow.OS else option
        for product, option in zip(products, options, strict=True)
    )
    return forward, data, weight


def _find_slices(slices: Any) -> tuple[int | None, int | None, int | None]:
    """Returns those of the three products, from one number for all or one for each."""
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
    names = [layer.name for layer in plan.layers]
    if name not in names and not (name is None and len(names) == 1):
        raise GemmError(f"the plan has the layers {', '.join(names)}, but found layer={name!r}. Name one of them.")
    found = plan.layer(name or names[0])
    planned = plan.algorithm_of(found)
    if algorithm not in (None, planned):
        raise GemmError(f"the plan's algorithm is {planned}, but {algorithm} was asked for. Leave it out.")
    return found, planned
