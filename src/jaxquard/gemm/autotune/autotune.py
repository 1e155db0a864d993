"""The autotuner (MeshSlice, section 3.2): which matrix stays put, which mesh, how many slices.

Phase 1 (`autotune_dataflows.py`) chooses the dataflow of each layer. Phase 2, here, prices every factorisation of the
chip count, and on each mesh every slice count of every product. Given the mesh the products do not depend on each
other, so the best of each makes the best of all. Two things go beyond the paper: each of a layer's three products has
a slice count of its own, and what does not fit in memory is left out.

SUMMA, Wang and the 1D algorithms are unrolled to the slice counts that MeshSlice is tuned to (section 4.2), each at
its own best mesh. A plan says all that its price assumes: rings, packets, both ways round a ring, products in parts.
"""

import math
from dataclasses import dataclass, replace

from jaxquard.cluster import Cluster, load_cluster
from jaxquard.errors import GemmError, InfeasibleGemmError
from jaxquard.gemm.algorithms.layer_products import SizedProducts
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.autotune.check_tuning import check_chips, check_problem, check_tuning_options
from jaxquard.gemm.autotune.dataflows import choose_dataflows
from jaxquard.gemm.autotune.meshes import usable_meshes
from jaxquard.gemm.autotune.slices import PricedOptions, needs_split, price_slices, slice_counts, uses_both_ways
from jaxquard.gemm.autotune.table import Tuning, TuningRow
from jaxquard.gemm.cost.cost import repeat_cost, sum_costs
from jaxquard.gemm.cost.products import kept_bytes, plan_products, problem_flops
from jaxquard.gemm.problem import GemmPlan, GemmProblem, LayerPlan, Stationary

UNROLLED = ("wang", "summa", "1d_tp", "fsdp")
"""The algorithms whose iterations are as many as MeshSlice has slices, or fewer."""


def autotune(
    problem: GemmProblem,
    cluster: str | Cluster = "tpu-v4",
    num_chips: int = 256,
    algorithm: str = "meshslice",
    memory_limit_bytes: float | None = None,
    keep: int = 10,
    *,
    block: int = 8,
    recompute: bool = False,
    stationary: Stationary | str | None = None,
    mesh_shape: tuple[int, int] | None = None,
    num_slices: int | None = None,
    unroll_as: Tuning | None = None,
) -> Tuning:
    """Finds the fastest way to multiply the layers of a problem on a cluster.

    Args:
        cluster: a preset's name, the path of a TOML file, or a cluster.
        memory_limit_bytes: of one chip; that of the cluster's memory unless said.
        keep: how many meshes the table holds.
        block: how many neighbouring columns or rows a slice takes at a time.
        recompute: activations inside a block are computed again in the backward pass instead of kept.
        stationary: "y", "x" or "w": what every layer keeps put, instead of its largest matrix.
        mesh_shape: the only mesh to look at.
        num_slices: the only slice count to look at, where it divides.
        unroll_as: MeshSlice's tuning for the same problem, to whose slices the others are unrolled; left out, it is
            made anew each time.

    Raises:
        GemmError: an argument is none that can be, the algorithm is unknown or would ignore it, no mesh divides the
            layers, or none fits in memory.

    Example:
        >>> problem = jq.gemm.transformer_block(1024, num_rows=4096)
        >>> tuning = jq.gemm.autotune(problem, cluster="tpu-v4", num_chips=16)
        >>> tuning.best.plan.mesh_shape
        (4, 4)
    """
    target = load_cluster(cluster)
    find_algorithm(algorithm)
    check_problem(problem)
    mesh_shape = check_chips(target, num_chips, mesh_shape)
    kept = check_tuning_options(
        algorithm,
        memory_limit_bytes=memory_limit_bytes,
        keep=keep,
        block=block,
        recompute=recompute,
        stationary=stationary,
        num_slices=num_slices,
        unroll_as=unroll_as,
    )
    layers = choose_dataflows(problem, algorithm=algorithm, stationary=kept)
    products = plan_products(problem, layers)
    unrolled = None
    if algorithm in UNROLLED:
        tuned = unroll_as or autotune(
            problem,
            target,
            num_chips,
            memory_limit_bytes=math.inf,
            block=block,
            stationary=kept,
            num_slices=num_slices,
        )
        if (tuned.problem, tuned.num_chips, tuned.plan.algorithm) != (problem, num_chips, "meshslice"):
            raise GemmError(
                f"unroll_as must be what MeshSlice was tuned to for the same problem on {num_chips} chips, but is for "
                f"{tuned.plan.algorithm} on {tuned.num_chips}, or for another problem. Leave it out."
            )
        unrolled = tuple(layer.slices for layer in tuned.plan.layers)
    search = _Search(
        problem=problem,
        cluster=target,
        algorithm=algorithm,
        layers=layers,
        products=products,
        block=block,
        unrolled=unrolled,
        num_slices=num_slices,
        kept_bytes=kept_bytes(problem, num_chips=num_chips, recompute=recompute),
    )
    limit = target.memory.size_bytes if memory_limit_bytes is None else memory_limit_bytes
    rows, least = [], math.inf
    for mesh in usable_meshes(problem, layers, algorithm, num_chips, mesh_shape):
        choices = [search.choices(position, mesh) for position in range(3 * len(layers))]
        smallest = (min(choice.cost.buffer_bytes for choice in product) for product in choices)
        least = min(least, search.kept_bytes + max(smallest))
        fitting = [[c for c in product if search.kept_bytes + c.cost.buffer_bytes <= limit] for product in choices]
        if all(fitting):
            rows.append(search.row(mesh, [product[0] for product in fitting]))
    if not rows:
        raise InfeasibleGemmError(_too_large_text(search, least=least, limit=limit, num_chips=num_chips))
    rows.sort(key=lambda row: row.time_s)
    return Tuning(
        problem=problem, cluster=target.name, num_chips=num_chips, table=tuple(rows[:keep]), num_meshes=len(rows)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Phase 2 on one mesh after another.

    Attributes:
        unrolled: for each layer the iterations of its products, where they are not searched.
    """

    problem: GemmProblem
    cluster: Cluster
    algorithm: str
    layers: tuple[LayerPlan, ...]
    products: tuple[SizedProducts, ...]
    block: int
    unrolled: tuple[tuple[int, int, int], ...] | None
    num_slices: int | None
    kept_bytes: float

    def choices(self, position: int, mesh: tuple[int, int]) -> tuple[PricedOptions, ...]:
        """The slice counts of a product, three to a layer; the fastest first."""
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

    def row(self, mesh: tuple[int, int], chosen: list[PricedOptions]) -> TuningRow:
        """The row of a mesh, given the choice for each product."""
        plans = []
        for position, layer in enumerate(self.layers):
            first, second, third = chosen[3 * position : 3 * position + 3]
            slices = (first.num_slices, second.num_slices, third.num_slices)
            plans.append(
                replace(
                    layer,
                    slices=slices,
                    block=self.block,
                    split_for_overlap=max(slices) > 1 and needs_split(self.cluster, self.algorithm),
                    rings=(first.options.ring, second.options.ring, third.options.ring),
                    bidirectional=uses_both_ways(self.cluster, self.algorithm),
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


def _too_large_text(search: _Search, *, least: float, limit: float, num_chips: int) -> str:
    return (
        f"nothing fits in {limit / 1e9:.2f} GB of each of {num_chips} chips of {search.cluster.name}: the least is "
        f"{least / 1e9:.2f} GB ({search.kept_bytes / 1e9:.2f} GB of weights, gradients and activations, "
        f"{(least - search.kept_bytes) / 1e9:.2f} GB of buffers). Use more chips, recompute=True, fewer rows, "
        "or a larger memory_limit_bytes."
    )
