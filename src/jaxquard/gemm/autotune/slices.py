"""The slice counts, rings and packets that a product can have, and the best of them."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from jaxquard.cluster import Axis, Cluster, Topology
from jaxquard.gemm.algorithms.registry import find_algorithm
from jaxquard.gemm.cost.algorithms import product_steps
from jaxquard.gemm.cost.cost import GemmCost, price_steps
from jaxquard.gemm.cost.divisors import divisors
from jaxquard.gemm.cost.packets import packet_counts
from jaxquard.gemm.cost.products import SizedProduct


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSlices:
    """A slice count, or number of loop iterations, with all else that is chosen for a product and what it then costs.

    Attributes:
        ring: along which direction Wang's ring runs.
        num_packets: of SUMMA's broadcasts.
    """

    num_slices: int
    cost: GemmCost
    ring: Axis | None = None
    num_packets: int = 1


def slice_counts(product: SizedProduct, *, mesh_shape: tuple[int, int], block: int) -> tuple[int, ...]:
    """Every slice count that divides (section 3.1.2): slices take whole blocks from each chip; 1 always does."""
    rows, columns = mesh_shape
    shard = math.gcd(product.sliced_dim // rows, product.sliced_dim // columns)
    if shard % block:
        return (1,)
    return divisors(shard // block)


def price_slices(
    cluster: Cluster, product: SizedProduct, *, algorithm: str, mesh_shape: tuple[int, int], counts: Iterable[int]
) -> tuple[PricedSlices, ...]:
    """Each count with its cost, the fastest first; of equals the smaller count.

    Each comes with either ring of Wang's, and with the packets of SUMMA that may be best.
    """
    options, priced = find_algorithm(algorithm), []
    rings = tuple(Axis) if "ring" in options.options else (None,)
    has_packets = "num_packets" in options.options
    packets = packet_counts(cluster, product, mesh_shape) if has_packets else (1,)
    for count, ring, num_packets in itertools.product(counts, rings, packets):
        steps = product_steps(
            cluster,
            product,
            algorithm=algorithm,
            mesh_shape=mesh_shape,
            num_slices=count,
            ring=ring,
            both_ways=goes_both_ways(cluster, algorithm),
            num_packets=num_packets,
        )
        num_slices = steps.num_iterations if options.has_slices else 1
        priced.append(PricedSlices(num_slices=num_slices, cost=price_steps(steps), ring=ring, num_packets=num_packets))
    return tuple(sorted(priced, key=lambda choice: (choice.cost.time_s, choice.num_slices)))


def goes_both_ways(cluster: Cluster, algorithm: str) -> bool:
    """Whether the shards of a ring should be halved: where links carry both ways at once."""
    return "both_ways" in find_algorithm(algorithm).options and cluster.network.is_bidirectional


def needs_parts(cluster: Cluster, algorithm: str) -> bool:
    """Whether products should be in parts, for their transfers to hide, as the price assumes.

    A TPU's compiler hides one transfer behind one product. A GPU's streams overlap what does not depend on each other,
    and there a product that is cut costs more. That is told by the network: TPUs form a torus.
    """
    return "in_parts" in find_algorithm(algorithm).options and cluster.network.topology is Topology.TORUS
