"""Tunes the 2D products that blocks may be: the slices of each, by MeshSlice's autotuner for a cluster.

A block whose first contractions are layers Y = X W (`blocks.two_dimensional`) has one more strategy on a mesh of two
axes, or of three whose first shards the rows of X and Y besides: Y stays, X and W move in slices. The mesh and the
layout are given, so the tuner has the slice counts of the three products of each layer to choose, and whether they are
split for overlap. The prices of the search then decide between this strategy and the others, as between any two.
"""

import functools
from collections.abc import Mapping, Sequence
from math import prod

from jaxquard.cluster import Cluster
from jaxquard.errors import GemmError, ShardingError
from jaxquard.gemm.autotune.exact import tune_layer
from jaxquard.gemm.autotune.layouts import LayerLayout
from jaxquard.gemm.layers.resolve_plan import check_layer, resolve_plan
from jaxquard.gemm.problem import FcLayer, GemmProblem, LayerPlan, Stationary
from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.contraction import Contraction
from jaxquard.intraop.blocks.two_dimensional import COLUMNS_2D, ROWS_2D, LayerDims, layer_dims
from jaxquard.intraop.segments.strategies import product_names

# For each block that may be a 2D product, by its number, the plan of each of its first contractions.
ProductPlans = Mapping[int, tuple[LayerPlan, ...]]

# The one in which X, W and Y are all sharded by rows and columns as the block's choices say.
_FORM = LayerLayout(stationary=Stationary.Y, is_transposed=False)


def tune_products(
    blocks: Sequence[Block], *, axes: Mapping[str, int], cluster: Cluster | None, batch_axis: str | None = None
) -> ProductPlans:
    """Tunes the 2D products of a step's blocks.

    Args:
        axes: of the mesh; there are no 2D products unless the last two are of two devices or more.
        cluster: the chips and links for which slices are chosen; None for no 2D products.
        batch_axis: the axis over which rows are sharded; None for the first.
    """
    if cluster is None or len(axes) not in (2, 3) or min(list(axes.values())[-2:]) < 2:
        return {}
    names = product_names(axes, batch_axis=batch_axis)
    sizes = dict(zip(names, axes.values(), strict=True))
    mesh_shape, num_replicas = (sizes[ROWS_2D], sizes[COLUMNS_2D]), sizes.get("rows", 1)
    found = {}
    for block in blocks:
        choices = block.product_choices
        if not choices or any(choice.num_chunks % sizes[choice.name] for choice in choices):
            continue
        if num_replicas > 1 and block.choice("rows").num_chunks % (num_replicas * sizes[ROWS_2D]):
            continue
        plans = []
        for number, seed in enumerate(block.seeds):
            rows, *others = _sizes(seed, layer_dims(seed, block.choices, number=number))
            plans.append(_plan_layer(rows // num_replicas, *others, cluster, mesh_shape))
        if all(plan is not None for plan in plans):
            found[block.number] = tuple(plan for plan in plans if plan is not None)
    return found


def check_products(
    blocks: Sequence[Block],
    products: ProductPlans,
    *,
    axes: Mapping[str, int],
    assignment: Mapping[int, Sequence[str]],
) -> ProductPlans:
    """Returns the products of a plan, checked against the blocks of the step.

    Args:
        axes: of the mesh.
        assignment: the choice of every block on every axis.

    Raises:
        ShardingError: if a block has not as many layers as its plan, or they do not fit its plan.
    """
    for number, plans in products.items():
        block = blocks[number] if number < len(blocks) else None
        seeds = block.seeds if block is not None and block.product_choices else ()
        if block is None or len(seeds) != len(plans):
            raise ShardingError(
                f"the plan has {len(plans)} 2D products for block {number}, and this version of jaxquard finds "
                f"{len(seeds)}. Search again."
            )
        if not all(map(_is_laid_out, plans)):
            raise ShardingError(
                f"the plan has a 2D product for block {number} that keeps another matrix than Y, is transposed, or is "
                "of another algorithm than MeshSlice: the block's values are not laid out for it. Search again."
            )
        axis_of = dict(zip(assignment[number], axes, strict=False))
        num_replicas = axes[axis_of["rows"]] if "rows" in axis_of else 1
        for place, (seed, plan) in enumerate(zip(seeds, plans, strict=True)):
            rows, contracted, columns, _ = _sizes(seed, layer_dims(seed, block.choices, number=place))
            try:
                layer = resolve_plan(plan, rows=(axis_of[ROWS_2D],), columns=(axis_of[COLUMNS_2D],), shape=axes)
                check_layer(
                    layer, x_shape=(rows // num_replicas, contracted), w_shape=(contracted, columns), shape=axes
                )
            except GemmError as error:
                raise ShardingError(
                    f"the plan has a 2D product for block {number} that does not fit: {error}"
                ) from error
    return products


def _is_laid_out(plan: LayerPlan) -> bool:
    """Returns true if a plan wants X, W and Y as the block has them."""
    form = LayerLayout(stationary=plan.stationary, is_transposed=plan.is_transposed)
    return form == _FORM and plan.algorithm in (None, "meshslice")


def _sizes(seed: Contraction, dims: LayerDims) -> tuple[int, int, int, int]:
    """Returns M, K and N of a layer, and the bytes of an element."""
    known = {
        name: size
        for atom, of_input in zip(seed.equation.invars, dims.inputs, strict=True)
        for name, size in zip(of_input, atom.aval.shape, strict=True)
    }
    rows, contracted, columns = (prod(size for name, size in known.items() if name[0] == letter) for letter in "MKN")
    return rows, contracted, columns, seed.equation.invars[0].aval.dtype.itemsize


@functools.lru_cache(maxsize=256)
def _plan_layer(
    num_rows: int, in_features: int, out_features: int, item_bytes: int, cluster: Cluster, mesh_shape: tuple[int, int]
) -> LayerPlan | None:
    """Returns the plan of a layer; None if the mesh does not divide it. Memory is left to the prices of the search."""
    layer = FcLayer(name="layer", in_features=in_features, out_features=out_features)
    problem = GemmProblem(layers=(layer,), num_rows=num_rows, item_bytes=item_bytes)
    return tune_layer(problem, cluster, mesh_shape, form=_FORM)
