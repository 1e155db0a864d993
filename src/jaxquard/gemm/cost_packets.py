"""The packets into which SUMMA cuts its broadcasts and reductions: those that may be best (MeshSlice, section 2.3.3).

A part that takes x seconds over a link streams over a ring of P chips as D packets in (P + D - 2) (sync + x / D), which
is least at D = sqrt((P - 2) x / sync). A product has one D for both of its matrices, which divides the parts of both,
so the best is a divisor about or between what is least for each. Over a switch the transfers of both add up, so there
what is least lies between that of the smaller one and that of their sum.
"""

import bisect
import math

from jaxquard.cluster import Cluster
from jaxquard.cluster.collective_time import ring_bandwidth_bytes_per_s, ring_size, ring_sync_s

from .cost_product import SizedProduct
from .divisors import divisors


def packet_counts(cluster: Cluster, product: SizedProduct, mesh_shape: tuple[int, int]) -> tuple[int, ...]:
    """Every count that may be the best one, in rising order; all of them divide the parts of both matrices."""
    num_parts, num_chips = math.lcm(*mesh_shape), math.prod(mesh_shape)
    parts, streams_s, sync_s = [], [], []
    for moving in product.moving:
        ring = ring_size(moving.axis, mesh_shape)
        parts.append(moving.num_elements // num_chips * ring // num_parts)
        bandwidth = ring_bandwidth_bytes_per_s(cluster, moving.collective, axis=moving.axis, mesh_shape=mesh_shape)
        if ring > 1:
            streams_s.append((ring - 2) * parts[-1] * product.item_bytes / bandwidth)
            sync_s.append(ring_sync_s(cluster, moving.collective, axis=moving.axis, mesh_shape=mesh_shape))
    if not streams_s:
        return (1,)
    found = divisors(max(1, math.gcd(*parts)))
    lowest = min(_ideal(stream_s, sync) for stream_s, sync in zip(streams_s, sync_s, strict=True))
    highest = max(_ideal(sum(streams_s), sync) for sync in sync_s)
    first = max(0, bisect.bisect_right(found, lowest) - 1)
    last = min(len(found) - 1, bisect.bisect_left(found, highest))
    return found[first : last + 1]


def _ideal(stream_s: float, sync_s: float) -> float:
    """The count with the least time, were all counts possible."""
    return math.sqrt(stream_s / sync_s) if sync_s else math.inf if stream_s else 1.0
