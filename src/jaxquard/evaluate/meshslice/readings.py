"""Other readings of the paper's text, and what they give for headlines that come out otherwise.

Two groups need a reason. All readings use the simulation set with SendRecv both ways, but for those that say so.

- What MeshSlice loses from 16 to 256 chips. Section 3.2.1 keeps the largest matrix in place. Megatron on 16 chips has a
  batch of 8 x 2,048 = 16,384 rows, fewer than the 20,480 of its weights, so there W is the largest and stays; on more
  chips it is Y or X. A model that keeps Y or X everywhere is slower on 16 chips, and so loses less. The paper also has
  one slice count for a layer's three products, where we have one for each.
- What MeshSlice gains over Wang. MeshSlice never sends with SendRecv, Wang does: the gain follows from how fast that
  is, how many shards an iteration takes, and along which direction the ring runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jaxquard.cluster import Axis, Cluster
from jaxquard.evaluate.meshslice.setup.constant_sets import FITTED, SIMULATION, constant_set
from jaxquard.evaluate.meshslice.setup.models import MODELS, PaperModel
from jaxquard.evaluate.meshslice.setup.tuner import Tuner
from jaxquard.gemm.algorithms.products.layer_products import sized_products
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct
from jaxquard.gemm.algorithms.registry import mesh_shapes
from jaxquard.gemm.autotune.slices import slice_counts
from jaxquard.gemm.cost.cost import price_product, steps_time_s
from jaxquard.gemm.cost.products import plan_products
from jaxquard.gemm.cost.steps import wang_steps
from jaxquard.gemm.problem import AlgorithmOptions, Stationary

Mesh = tuple[int, int]
# A layer's products and the seconds of all three on a mesh.
LayerTime = Callable[[Sequence[SizedProduct], Mesh], float]
SMALL, LARGE = 16, 256
_BLOCK = 8
# QKV, OUT, FF1, FF2: what is largest where the batch is large.
_LARGE_BATCH = (Stationary.Y, Stationary.X, Stationary.Y, Stationary.X)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to read the text, and what it gives.

    Attributes:
        headline: "loss" or "over_wang": the headlines of both models.
        percents: by model.
    """

    headline: str
    text: str
    percents: dict[str, float]


def readings(tuner: Tuner) -> tuple[Reading, ...]:
    """All of them, ours first in each group."""
    return (*_losses(tuner), *_gains_over_wang(tuner))


def _losses(tuner: Tuner) -> list[Reading]:
    cluster, fitted = (constant_set(name, is_bidirectional=True).cluster for name in (SIMULATION, FITTED))

    def by_rule(model: PaperModel, num_chips: int) -> list[Sequence[SizedProduct]]:
        problem = model.problem(num_chips // 2)
        return list(plan_products(problem, tuner.tune(problem, cluster, num_chips).plan.layers))

    def as_in_a_large_batch(model: PaperModel, num_chips: int) -> list[Sequence[SizedProduct]]:
        problem = model.problem(num_chips // 2)
        return [
            sized_products(layer, num_rows=problem.num_rows, stationary=kept)
            for layer, kept in zip(problem.layers, _LARGE_BATCH, strict=True)
        ]

    def loss(
        text: str, products: Callable[[PaperModel, int], list[Sequence[SizedProduct]]], time: LayerTime
    ) -> Reading:
        percents = {}
        for model in MODELS:
            small_s, large_s = (_best_s(products(model, chips), chips, time) for chips in (SMALL, LARGE))
            # The chips have the same share of the batch, so the times would be equal if nothing were lost.
            percents[model.key] = 100 * (1 - small_s / large_s)
        return Reading(headline="loss", text=text, percents=percents)

    each, shared = _count_each(cluster), _count_shared(cluster)
    return [
        loss("ours: the largest matrix stays, a slice count for each product", by_rule, each),
        loss("one slice count for each layer, as the paper tunes", by_rule, shared),
        loss("Y or X stays on 16 chips too, where W is the largest for Megatron", as_in_a_large_batch, each),
        loss("both", as_in_a_large_batch, shared),
        loss("both, with the fitted constants", as_in_a_large_batch, _count_shared(fitted)),
    ]


def _gains_over_wang(tuner: Tuner) -> list[Reading]:
    ours, one_way = (constant_set(SIMULATION, is_bidirectional=both).cluster for both in (True, False))
    one_launch, one_launch_one_way = (
        replace(cluster, network=replace(cluster.network, launches_each_permute=False)) for cluster in (ours, one_way)
    )
    gathers = ours.all_gather
    as_gathers = replace(
        one_way,
        permute=replace(
            one_way.permute,
            row_bandwidth_bytes_per_s=gathers.row_bandwidth_bytes_per_s,
            column_bandwidth_bytes_per_s=gathers.column_bandwidth_bytes_per_s,
        ),
    )

    def gain(text: str, cluster: Cluster, *, is_unrolled: bool = True, rings: Sequence[Axis] = tuple(Axis)) -> Reading:
        percents = {}
        for model in MODELS:
            problem = model.problem(LARGE // 2)
            tuned = tuner.tune(problem, ours, LARGE).best
            counts = [count for layer in tuned.plan.layers for count in layer.slices]
            products = [product for layer in plan_products(problem, tuned.plan.layers) for product in layer]

            def time_s(layer: Sequence[SizedProduct], mesh: Mesh, counts: Sequence[int] = counts) -> float:
                return sum(
                    _wang_s(cluster, product, mesh, count if is_unrolled else LARGE, rings)
                    for product, count in zip(layer, counts, strict=True)
                )

            percents[model.key] = 100 * (_best_s([products], LARGE, time_s) / tuned.time_s - 1)
        return Reading(headline="over_wang", text=text, percents=percents)

    return [
        gain("ours: SendRecv both ways, each launched, unrolled, the faster ring", ours),
        gain("SendRecv one way", one_way),
        gain("SendRecv at the bandwidth of AllGather", as_gathers),
        gain("one launch for all shards of an iteration, not one for each", one_launch),
        gain("the same, SendRecv one way", one_launch_one_way),
        gain("not unrolled: an iteration takes one shard", ours, is_unrolled=False),
        gain("the ring along the columns only, as in the authors' code", ours, rings=(Axis.COLUMNS,)),
    ]


def _best_s(layers: Sequence[Sequence[SizedProduct]], num_chips: int, time: LayerTime) -> float:
    """All layers on the mesh that is best for them."""
    meshes = [
        mesh
        for mesh in mesh_shapes("meshslice", num_chips)
        if all(product.is_divided_by(mesh) for layer in layers for product in layer)
    ]
    return min(sum(time(layer, mesh) for layer in layers) for mesh in meshes)


def _count_each(cluster: Cluster) -> LayerTime:
    """Every product at its own best slice count."""

    def time_s(layer: Sequence[SizedProduct], mesh: Mesh) -> float:
        return sum(
            min(_meshslice_s(cluster, product, mesh, count) for count in _counts(product, mesh)) for product in layer
        )

    return time_s


def _count_shared(cluster: Cluster) -> LayerTime:
    """The three products of a layer at the slice count that is best for all."""

    def time_s(layer: Sequence[SizedProduct], mesh: Mesh) -> float:
        common = set.intersection(*(set(_counts(product, mesh)) for product in layer))
        return min(sum(_meshslice_s(cluster, product, mesh, count) for product in layer) for count in common)

    return time_s


def _counts(product: SizedProduct, mesh: Mesh) -> tuple[int, ...]:
    return slice_counts(product, mesh_shape=mesh, block=_BLOCK)


def _meshslice_s(cluster: Cluster, product: SizedProduct, mesh: Mesh, count: int) -> float:
    options = AlgorithmOptions(slices=count)
    return price_product(cluster, product, algorithm="meshslice", mesh_shape=mesh, options=options).time_s


def _wang_s(cluster: Cluster, product: SizedProduct, mesh: Mesh, count: int, rings: Sequence[Axis]) -> float:
    is_bidirectional = cluster.network.is_bidirectional
    options = [AlgorithmOptions(slices=count, ring=ring, bidirectional=is_bidirectional) for ring in rings]
    return min(steps_time_s(wang_steps(cluster, product, mesh, option)) for option in options)
