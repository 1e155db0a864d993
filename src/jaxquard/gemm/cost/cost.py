"""The price of a product: its time in closed form, and what it consists of.

The time of an algorithm's steps in closed form (MeshSlice, section 3.2.2).

With l and s the longest of an iteration's loads and stores, c its product, and n iterations:

    pipeline   l + (n - 1) max(l, c, s) + c + s      MeshSlice, SUMMA; Collective with n = 1
    ring       (n - 1) max(l, c, s) + c              Wang, Cannon, 1D: the first shards are in place

before and after which stand the moves that nothing hides.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Unpack

from jaxquard.cluster import Cluster
from jaxquard.gemm.cost.algorithms import How, product_steps
from jaxquard.gemm.cost.moves import Move
from jaxquard.gemm.cost.products import SizedProduct
from jaxquard.gemm.cost.steps import Steps


def steps_time_s(steps: Steps) -> float:
    """From the first move to the last."""
    slowest_s = max(_longest_s(steps.loads), steps.compute_s, _longest_s(steps.stores))
    loop_s = (steps.num_iterations - 1) * slowest_s + steps.compute_s
    if not steps.is_ring:
        loop_s += _longest_s(steps.first_loads) + _longest_s(steps.last_stores)
    return sum(_longest_s(phase) for phase in steps.before + steps.after) + loop_s


def _longest_s(moves: tuple[Move, ...]) -> float:
    return max((move.time_s for move in moves), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCost:
    """The predicted time of products that run one after another on every chip.

    Attributes:
        compute_s: time of the products alone.
        launch_s: launch time of all transfers, overlapped or not; so are `transfer_s` and `sync_s` (Figure 10).
        buffer_bytes: the maximum that a product needs besides its shards.

    Example:
        >>> problem = jq.gemm.transformer_block(1024, num_rows=4096)
        >>> tuning = jq.gemm.autotune(problem, cluster="tpu-v4", num_chips=16)
        >>> cost = tuning.best.cost
        >>> cost.time_s >= cost.compute_s > 0
        True
    """

    time_s: float
    compute_s: float
    launch_s: float
    transfer_s: float
    sync_s: float
    buffer_bytes: float

    @property
    def communication_s(self) -> float:
        """Time of all transfers, overlapped or not."""
        return self.launch_s + self.transfer_s + self.sync_s

    @property
    def exposed_s(self) -> float:
        """The time in which no product runs."""
        return self.time_s - self.compute_s


def price_product(
    cluster: Cluster,
    product: SizedProduct,
    *,
    algorithm: str,
    mesh_shape: tuple[int, int],
    num_slices: int = 1,
    **how: Unpack[How],
) -> GemmCost:
    """What a product costs by an algorithm on a mesh."""
    return price_steps(
        product_steps(cluster, product, algorithm=algorithm, mesh_shape=mesh_shape, num_slices=num_slices, **how)
    )


def price_steps(steps: Steps) -> GemmCost:
    """What steps cost."""
    return GemmCost(
        time_s=steps_time_s(steps),
        compute_s=steps.num_iterations * steps.compute_s,
        launch_s=sum(count * move.time.launch_s for count, move in _counted_moves(steps)),
        transfer_s=sum(count * move.time.transfer_s for count, move in _counted_moves(steps)),
        sync_s=sum(count * move.time.sync_s for count, move in _counted_moves(steps)),
        buffer_bytes=steps.buffer_bytes,
    )


def sum_costs(costs: Iterable[GemmCost]) -> GemmCost:
    """Of products one after another; buffers are used again."""
    listed = tuple(costs)
    return GemmCost(
        time_s=sum(cost.time_s for cost in listed),
        compute_s=sum(cost.compute_s for cost in listed),
        launch_s=sum(cost.launch_s for cost in listed),
        transfer_s=sum(cost.transfer_s for cost in listed),
        sync_s=sum(cost.sync_s for cost in listed),
        buffer_bytes=max((cost.buffer_bytes for cost in listed), default=0.0),
    )


def repeat_cost(cost: GemmCost, count: int) -> GemmCost:
    """Of the same products so many times over."""
    return GemmCost(
        time_s=cost.time_s * count,
        compute_s=cost.compute_s * count,
        launch_s=cost.launch_s * count,
        transfer_s=cost.transfer_s * count,
        sync_s=cost.sync_s * count,
        buffer_bytes=cost.buffer_bytes,
    )


def _counted_moves(steps: Steps) -> Iterator[tuple[int, Move]]:
    """Each move with how often it is made."""
    for phase in steps.before + steps.after + (steps.first_loads, steps.last_stores):
        yield from ((1, move) for move in phase)
    yield from ((steps.num_iterations - 1, move) for move in steps.loads + steps.stores)
