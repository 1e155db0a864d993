"""The price of a product: the time of its steps in closed form (MeshSlice, section 3.2.2), and the parts of it.

With l and s the longest of an iteration's loads and stores, c its product, and n iterations:

    pipeline   l + (n - 1) max(l, c + w, s) + c + s      MeshSlice, SUMMA; Collective with n = 1
    ring       (n - 1) max(l, c, s) + c                  Wang, Cannon, 1D: the first shards are in place

before and after which stand the transfers that nothing hides; w are those of an iteration. Where products and transfers
share a chip's memory, no iteration is shorter than its bytes over the bandwidth, as in the simulation (`play.py`).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxquard.cluster import Cluster
from jaxquard.gemm.algorithms.products.sized_product import MeshShape, SizedProduct
from jaxquard.gemm.cost.ring_transfers import RingTransfer
from jaxquard.gemm.cost.steps import Steps, product_steps
from jaxquard.gemm.problem import AlgorithmOptions


def steps_time_s(steps: Steps, *, memory_bandwidth_bytes_per_s: float = math.inf) -> float:
    """Returns the seconds from the first transfer to the last.

    Args:
        memory_bandwidth_bytes_per_s: that of a chip, which products and transfers share; left out, none is short of it.
    """
    bandwidth = memory_bandwidth_bytes_per_s
    product_s = max(steps.compute_s, steps.memory_bytes / bandwidth)
    moved_bytes = steps.memory_bytes + sum(transfer.memory_bytes for transfer in steps.loads + steps.stores)
    busy_s = max(steps.compute_s + steps.wait_s, steps.memory_bytes / bandwidth)
    slowest_s = max(_longest_s(steps.loads, bandwidth), busy_s, _longest_s(steps.stores, bandwidth))
    slowest_s = max(slowest_s, moved_bytes / bandwidth)
    loop_s = (steps.num_iterations - 1) * slowest_s + product_s
    if not steps.is_ring:
        loop_s += _longest_s(steps.first_loads, bandwidth) + _longest_s(steps.last_stores, bandwidth)
    return sum(_longest_s(phase, bandwidth) for phase in steps.before + steps.after) + loop_s


def _longest_s(transfers: tuple[RingTransfer, ...], bandwidth: float) -> float:
    """Returns the seconds of transfers that run at once."""
    longest_s, moved_bytes = 0.0, 0.0
    for transfer in transfers:
        longest_s = max(longest_s, transfer.time_s)
        moved_bytes += transfer.memory_bytes
    return max(longest_s, moved_bytes / bandwidth)


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
        """The seconds in which no product runs."""
        return self.time_s - self.compute_s


def price_product(
    cluster: Cluster,
    product: SizedProduct,
    *,
    algorithm: str,
    mesh_shape: MeshShape,
    options: AlgorithmOptions,
    memory_contention: bool = False,
) -> GemmCost:
    """Returns the cost of a product by an algorithm on a mesh; products and transfers may share a chip's memory."""
    steps = product_steps(cluster, product, algorithm=algorithm, mesh_shape=mesh_shape, options=options)
    bandwidth = cluster.memory.bandwidth_bytes_per_s if memory_contention else math.inf
    return price_steps(steps, memory_bandwidth_bytes_per_s=bandwidth)


def price_steps(steps: Steps, *, memory_bandwidth_bytes_per_s: float = math.inf) -> GemmCost:
    """Returns the cost of steps."""
    launch_s = transfer_s = sync_s = 0.0
    for count, transfers in _counted_transfers(steps):
        for transfer in transfers:
            time = transfer.time
            launch_s += count * time.launch_s
            transfer_s += count * time.transfer_s
            sync_s += count * time.sync_s
    return GemmCost(
        time_s=steps_time_s(steps, memory_bandwidth_bytes_per_s=memory_bandwidth_bytes_per_s),
        compute_s=steps.num_iterations * steps.compute_s,
        launch_s=launch_s,
        transfer_s=transfer_s,
        sync_s=sync_s,
        buffer_bytes=steps.buffer_bytes,
    )


def sum_costs(costs: Iterable[GemmCost]) -> GemmCost:
    """Returns the cost of products one after another; buffers are used again."""
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
    """Returns the cost of the same products so many times over."""
    return GemmCost(
        time_s=cost.time_s * count,
        compute_s=cost.compute_s * count,
        launch_s=cost.launch_s * count,
        transfer_s=cost.transfer_s * count,
        sync_s=cost.sync_s * count,
        buffer_bytes=cost.buffer_bytes,
    )


def _counted_transfers(steps: Steps) -> Iterator[tuple[int, tuple[RingTransfer, ...]]]:
    """Yields all transfers, those together that are made equally often."""
    for phase in steps.before + steps.after:
        yield 1, phase
    yield 1, steps.first_loads + steps.last_stores
    yield steps.num_iterations - 1, steps.loads + steps.stores + steps.waits
