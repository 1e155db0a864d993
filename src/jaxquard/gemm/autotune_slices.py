"""The slice counts that a product can have, and the best of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jaxquard.cluster import Cluster

from .cost import GemmCost, price_steps
from .cost_algorithms import product_steps
from .cost_product import SizedProduct
from .registry import find_algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSlices:
    """A slice count, or number of loop iterations, with what the product then costs."""

    num_slices: int
    cost: GemmCost


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
    """Each count with its cost, the fastest first; of equals the smaller count."""
    priced = []
    for count in counts:
        steps = product_steps(cluster, product, algorithm=algorithm, mesh_shape=mesh_shape, num_slices=count)
        num_slices = steps.num_iterations if find_algorithm(algorithm).has_slices else 1
        priced.append(PricedSlices(num_slices=num_slices, cost=price_steps(steps)))
    return tuple(sorted(priced, key=lambda choice: (choice.cost.time_s, choice.num_slices)))


def divisors(number: int) -> tuple[int, ...]:
    """In rising order."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))
