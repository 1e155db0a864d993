"""Phase 2 of the autotuner: the mesh and the slice counts (MeshSlice, section 3.2.2).

Every factorisation of the chip count that divides the layers is priced, and on each mesh every slice count of every
product. Given the mesh the products do not depend on each other, so the best of each makes the best of all.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxquard.cluster import Cluster
from jaxquard.errors import InfeasibleGemmError
from jaxquard.gemm.algorithms.products.layer_products import SizedProducts
from jaxquard.gemm.algorithms.products.sized_product import MeshShape
from jaxquard.gemm.algorithms.registry import mesh_shapes
from jaxquard.gemm.autotune.slices import (
    PricedOptions,
    price_slices,
    slice_counts,
    uses_bidirectional_rings,
)
from jaxquard.gemm.autotune.table import TuningRow
from jaxquard.gemm.cost.cost import repeat_cost, sum_costs
from jaxquard.gemm.cost.products import problem_flops
from jaxquard.gemm.problem import TABLE_1, FcLayer, GemmPlan, GemmProblem, LayerPlan, ProductRole

# The fields that are M, K and N of a layer's forward product.
_FIELDS = {"M": "num_rows", "K": "in_features", "N": "out_features"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSearch:
    """Phase 2: the fastest options of every product on one mesh after another.

    Attributes:
        unrolled: for each layer the iterations of its products, where they are not searched.
        is_split: plans say that products are split for overlap.
    """

    problem: GemmProblem
    cluster: Cluster
    algorithm: str
    layers: tuple[LayerPlan, ...]
    products: tuple[SizedProducts, ...]
    block: int
    unrolled: tuple[tuple[int, int, int], ...] | None
    is_split: bool
    num_slices: int | None
    kept_bytes: float

    def rows(self, meshes: Sequence[MeshShape], *, limit_bytes: float) -> list[TuningRow]:
        """Returns the row of each mesh on which all products fit in memory, the fastest first.

        Raises:
            InfeasibleGemmError: there is none; it says how much memory is needed.
        """
        rows, minimum_bytes = [], math.inf
        for mesh in meshes:
            choices = [self.choices(position, mesh) for position in range(3 * len(self.layers))]
            smallest = (min(choice.cost.buffer_bytes for choice in product) for product in choices)
            minimum_bytes = min(minimum_bytes, self.kept_bytes + max(smallest))
            fitting = [
                [choice for choice in product if self.kept_bytes + choice.cost.buffer_bytes <= limit_bytes]
                for product in choices
            ]
            if all(fitting):
                rows.append(self.row(mesh, [product[0] for product in fitting]))
        if not rows:
            raise InfeasibleGemmError(self._too_large_text(minimum_bytes, limit_bytes, math.prod(meshes[0])))
        return sorted(rows, key=lambda row: row.time_s)

    def choices(self, position: int, mesh: MeshShape) -> tuple[PricedOptions, ...]:
        """Returns the options of a product, three to a layer; the fastest first."""
        layer, part = divmod(position, 3)
        product = self.products[layer][part]
        counts: tuple[int, ...] = (1,)
        if self.unrolled is not None:
            counts = (self.unrolled[layer][part],)
        elif self.algorithm == "meshslice":
            counts = slice_counts(product, mesh_shape=mesh, block=self.block)
            if self.num_slices is not None:
                counts = (max(count for count in counts if count <= self.num_slices),)
        return price_slices(self.cluster, product, algorithm=self.algorithm, mesh_shape=mesh, counts=counts)

    def row(self, mesh: MeshShape, chosen: list[PricedOptions]) -> TuningRow:
        """Returns the row of a mesh, given the choice for each product."""
        plans = []
        for position, layer in enumerate(self.layers):
            first, second, third = chosen[3 * position : 3 * position + 3]
            slices = (first.num_slices, second.num_slices, third.num_slices)
            plans.append(
                replace(
                    layer,
                    slices=slices,
                    block=self.block,
                    split_for_overlap=max(slices) > 1 and self.is_split,
                    rings=(first.options.ring, second.options.ring, third.options.ring),
                    bidirectional=uses_bidirectional_rings(self.cluster, self.algorithm),
                    num_packets=(first.options.num_packets, second.options.num_packets, third.options.num_packets),
                )
            )
        cost = repeat_cost(sum_costs(choice.cost for choice in chosen), self.problem.num_blocks)
        peak = self.cluster.compute.peak_flops_per_s * mesh[0] * mesh[1]
        return TuningRow(
            plan=GemmPlan(algorithm=self.algorithm, mesh_shape=mesh, layers=tuple(plans)),
            cost=cost,
            utilisation=problem_flops(self.problem) / (cost.time_s * peak),
            memory_bytes=self.kept_bytes + cost.buffer_bytes,
        )

    def _too_large_text(self, minimum_bytes: float, limit_bytes: float, num_chips: int) -> str:
        return (
            f"nothing fits in {limit_bytes / 1e9:.2f} GB of each of {num_chips} chips of {self.cluster.name}: the "
            f"minimum is {minimum_bytes / 1e9:.2f} GB ({self.kept_bytes / 1e9:.2f} GB of weights, gradients and "
            f"activations, {(minimum_bytes - self.kept_bytes) / 1e9:.2f} GB of buffers). Use more chips, "
            "recompute=True, fewer rows, or a larger memory_limit_bytes."
        )


def usable_meshes(
    problem: GemmProblem,
    plans: Sequence[LayerPlan],
    algorithm: str,
    num_chips: int,
    mesh_shape: MeshShape | None,
    *,
    most_chips: int,
) -> list[MeshShape]:
    """Returns the meshes that divide every layer, given its stationary matrix.

    Args:
        most_chips: the chips of the cluster; an error advises no more.

    Raises:
        InfeasibleGemmError: there is none; it says why, with the nearest numbers of chips and sizes that fit.
    """
    shapes = [shape for shape in mesh_shapes(algorithm, num_chips) if mesh_shape in (None, shape)]
    if not shapes:
        asked = f"the mesh {mesh_shape[0]}x{mesh_shape[1]}" if mesh_shape else f"{num_chips} chips"
        needs = {"cannon": "a square mesh", "1d_tp": "a mesh of one row", "fsdp": "a mesh of one column"}
        advice = "another" if mesh_shape else _nearest_text(problem, plans, algorithm, num_chips, most_chips)
        raise InfeasibleGemmError(f"{algorithm} needs {needs[algorithm]}, which {asked} cannot give. Use {advice}.")
    usable, reasons = [], []
    for shape in shapes:
        why = _why_not(problem, plans, shape)
        if why is None:
            usable.append(shape)
        else:
            reasons.append(f"{shape[0]}x{shape[1]}: {why}")
    if not usable:
        advice = "another mesh_shape" if mesh_shape else _nearest_text(problem, plans, algorithm, num_chips, most_chips)
        raise InfeasibleGemmError(
            f"num_chips is {num_chips}, but no mesh of {num_chips} chips divides the layers for {algorithm} "
            f"({'; '.join(reasons[:4])}). Use {advice}, or pad the layers."
        )
    return usable


def _why_not(problem: GemmProblem, plans: Sequence[LayerPlan], shape: MeshShape) -> str | None:
    """Says which size of the layers a mesh does not divide; None if it divides all."""
    texts = (
        text
        for layer, plan in zip(problem.layers, plans, strict=True)
        for text in indivisible(layer, plan, num_rows=problem.num_rows, mesh_shape=shape)
    )
    return next(texts, None)


def _nearest_text(
    problem: GemmProblem, plans: Sequence[LayerPlan], algorithm: str, num_chips: int, most_chips: int
) -> str:
    """Returns the nearest numbers of chips, one below and one above, of which a mesh divides every layer, in words."""

    def fits(count: int) -> bool:
        return any(_why_not(problem, plans, shape) is None for shape in mesh_shapes(algorithm, count))

    below = next(filter(fits, range(num_chips - 1, 0, -1)), None)
    above = next(filter(fits, range(num_chips + 1, min(most_chips, 2 * num_chips) + 1)), None)
    return f"num_chips {' or '.join(str(count) for count in (below, above) if count is not None)}"


def indivisible(layer: FcLayer, plan: LayerPlan, *, num_rows: int, mesh_shape: MeshShape) -> Iterator[str]:
    """Yields the sizes of a layer that a mesh does not divide, in words.

    The stationary matrix is sharded over the rows and columns of chips, the third size over both in turn.
    """
    rows, columns = reversed(mesh_shape) if plan.is_transposed else mesh_shape
    sizes = {"num_rows": num_rows, "in_features": layer.in_features, "out_features": layer.out_features}
    dataflow = TABLE_1[plan.stationary][ProductRole.FORWARD]
    dims = (*dataflow.stationary_dims, dataflow.sliced_dim)
    for dim, chips in zip(dims, (rows, columns, math.lcm(rows, columns)), strict=True):
        name = _FIELDS[dim]
        size, below = sizes[name], sizes[name] // chips * chips
        if size % chips:
            whose = "num_rows" if name == "num_rows" else f"{name} of layer {layer.name}"
            nearest = f"{below} or {below + chips}" if below else f"{chips}"
            yield f"{whose} is {size}, no multiple of {chips}, the nearest that fit: {nearest}"
