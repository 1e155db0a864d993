"""The options that a product can have: slice counts, rings and packets; and the fastest of them."""

import bisect
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from jaxquard.cluster import Axis, Cluster
from jaxquard.cluster.times.ring import ring_bandwidth_bytes_per_s, ring_size, ring_sync_s
from jaxquard.gemm.algorithms.products.sized_product import MeshShape, SizedProduct
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.cost.cost import GemmCost, price_steps
from jaxquard.gemm.cost.ring_transfers import broadcast_kind
from jaxquard.gemm.cost.steps import product_steps
from jaxquard.gemm.problem import AlgorithmOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOptions:
    """The options of a product, and its cost with them.

    Attributes:
        num_slices: the slices, or the iterations of the loop; 1 for an algorithm that has no choice.
    """

    num_slices: int
    options: AlgorithmOptions
    cost: GemmCost


def slice_counts(product: SizedProduct, *, mesh_shape: MeshShape, block: int) -> tuple[int, ...]:
    """Returns every slice count that divides (section 3.1.2), 1 included: slices take whole blocks from each chip."""
    rows, columns = mesh_shape
    shard = math.gcd(product.sliced_size // rows, product.sliced_size // columns)
    if shard % block:
        return (1,)
    return divisors(shard // block)


def iteration_counts(algorithm: str, product: SizedProduct, *, mesh_shape: MeshShape, block: int) -> tuple[int, ...]:
    """Returns every count of slices or iterations that an algorithm can have, rising."""
    chosen = find_algorithm(algorithm)
    if algorithm == "meshslice":
        return slice_counts(product, mesh_shape=mesh_shape, block=block)
    if not chosen.has_slices:
        return (1,)
    if chosen.has_ring_iterations:
        return divisors(max(mesh_shape))
    return divisors(math.lcm(*mesh_shape))


def price_slices(
    cluster: Cluster,
    product: SizedProduct,
    *,
    algorithm: str,
    mesh_shape: MeshShape,
    counts: Iterable[int],
    split_for_overlap: bool = False,
    memory_contention: bool = False,
) -> tuple[PricedOptions, ...]:
    """Returns each count with its cost, the fastest first; of equals the smaller count.

    Each comes with either ring of Wang's, and with the packets of SUMMA that may be best.
    """
    chosen, priced = find_algorithm(algorithm), []
    bandwidth = cluster.memory.bandwidth_bytes_per_s if memory_contention else math.inf
    rings = tuple(Axis) if "ring" in chosen.options else (None,)
    packets = packet_counts(cluster, product, mesh_shape) if "num_packets" in chosen.options else (1,)
    for count, ring, num_packets in itertools.product(counts, rings, packets):
        options = AlgorithmOptions(
            slices=count,
            split_for_overlap=split_for_overlap,
            ring=ring,
            bidirectional=uses_bidirectional_rings(cluster, algorithm),
            num_packets=num_packets,
        )
        steps = product_steps(cluster, product, algorithm=algorithm, mesh_shape=mesh_shape, options=options)
        num_slices = steps.num_iterations if chosen.has_slices else 1
        cost = price_steps(steps, memory_bandwidth_bytes_per_s=bandwidth)
        priced.append(PricedOptions(num_slices=num_slices, options=options, cost=cost))
    return tuple(sorted(priced, key=lambda choice: (choice.cost.time_s, choice.num_slices)))


def uses_bidirectional_rings(cluster: Cluster, algorithm: str) -> bool:
    """Returns whether the shards of a ring should be halved: where links carry both ways at once."""
    return "bidirectional" in find_algorithm(algorithm).options and cluster.network.is_bidirectional


def needs_split(cluster: Cluster, algorithm: str) -> bool:
    """Returns whether products should be split, for their transfers to hide, as the paper's price assumes.

    A TPU's compiler hides one transfer behind one product. A GPU's streams overlap what does not depend on each other,
    and there a product that is split costs more.
    """
    return "split_for_overlap" in find_algorithm(algorithm).options and cluster.network.hides_one_collective


def packet_counts(cluster: Cluster, product: SizedProduct, mesh_shape: MeshShape) -> tuple[int, ...]:
    """Returns every number of SUMMA's packets that may be the best one, rising; all divide the parts of both matrices.

    A part that takes x seconds over a link streams over a ring of P chips as D packets in (P + D - 2) (s + x / D). That
    is minimal at D = sqrt((P - 2) x / s); s is the rest of a stage: its synchronisation and, if it has one, its launch
    (section 2.3.3). A product has one D for both of its matrices, which divides the parts of both, so the best is a
    divisor about or between the minima of each. Over a switch the transfers of both add up, so there the minimum lies
    between that of the smaller one and that of their sum.
    """
    num_parts, num_chips = math.lcm(*mesh_shape), math.prod(mesh_shape)
    parts, streams_s, stages_s = [], [], []
    for moving in product.moving:
        ring = ring_size(moving.axis, mesh_shape)
        parts.append(moving.num_elements // num_chips * ring // num_parts)
        if ring > 1:
            kind = broadcast_kind(cluster, moving)
            bandwidth = ring_bandwidth_bytes_per_s(cluster, kind, axis=moving.axis, mesh_shape=mesh_shape)
            streams_s.append((ring - 2) * parts[-1] * product.item_bytes / bandwidth)
            is_launched = not cluster.network.has_broadcast and cluster.network.launches_each_permute
            launch_s = cluster.links(kind).launch_s if is_launched else 0.0
            stages_s.append(ring_sync_s(cluster, kind, axis=moving.axis, mesh_shape=mesh_shape) + launch_s)
    if not streams_s:
        return (1,)
    found = divisors(max(1, math.gcd(*parts)))
    lowest = min(_ideal(stream_s, stage_s) for stream_s, stage_s in zip(streams_s, stages_s, strict=True))
    highest = max(_ideal(sum(streams_s), stage_s) for stage_s in stages_s)
    first = max(0, bisect.bisect_right(found, lowest) - 1)
    last = min(len(found) - 1, bisect.bisect_left(found, highest))
    return found[first : last + 1]


def _ideal(stream_s: float, stage_s: float) -> float:
    """Returns the fastest count, were all counts possible."""
    return math.sqrt(stream_s / stage_s) if stage_s else math.inf if stream_s else 1.0


def divisors(number: int) -> tuple[int, ...]:
    """Returns the divisors of a number, rising."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))
