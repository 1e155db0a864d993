"""The packets into which SUMMA cuts its broadcasts and reductions: those that may be best (MeshSlice, section 2.3.3).

A part that takes x seconds over a link streams over a ring of P chips as D packets in (P + D - 2) (s + x / D), which is
least at D = sqrt((P - 2) x / s); s is what a stage takes besides: its synchronisation and, if it has one, its launch. A
product has one D for both of its matrices, which divides the parts of both, so the best is a divisor about or between
what is least for each. Over a switch the transfers of both add up, so there what is least lies between that of the
smaller one and that of their sum.
"""

import bisect
import math

from jaxquard.cluster import Cluster
from jaxquard.cluster.collective_time import ring_bandwidth_bytes_per_s, ring_size, ring_sync_s
from jaxquard.gemm.cost.divisors import divisors
from jaxquard.gemm.cost.moves import broadcast_kind
from jaxquard.gemm.cost.products import SizedProduct


def packet_counts(cluster: Cluster, product: SizedProduct, mesh_shape: tuple[int, int]) -> tuple[int, ...]:
    """Every count that may be the best one, in rising order; all of them divide the parts of both matrices."""
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
    """The count with the least time, were all counts possible."""
    return math.sqrt(stream_s / stage_s) if stage_s else math.inf if stream_s else 1.0
