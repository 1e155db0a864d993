"""The seconds of a scheduled program's operations on the chips and links of a cluster.

compute      the slower of the matrix products and of one pass over memory (`Times`). Of a TPU, the cycles that its
compiler estimates, where it does.
collective   over the levels that its group of devices spans; of several groups, the slowest
"""

import functools
from collections.abc import Hashable, Sequence

from jaxquard.cluster import (
    Cluster,
    GroupCollective,
    KernelKind,
    LevelSpan,
    levels_of,
    spans_of_devices,
    times_of,
)
from jaxquard.errors import HloError
from jaxquard.hlo import CollectiveWork, KernelClass, ScheduledOperation
from jaxquard.pricing.target.chips import GpuChip, TpuChip, find_chip

_KINDS = {
    "all-gather": GroupCollective.ALL_GATHER,
    "all-reduce": GroupCollective.ALL_REDUCE,
    "reduce-scatter": GroupCollective.REDUCE_SCATTER,
    "all-to-all": GroupCollective.ALL_TO_ALL,
    "ragged-all-to-all": GroupCollective.ALL_TO_ALL,
    "collective-permute": GroupCollective.PERMUTE,
    "collective-broadcast": GroupCollective.ALL_GATHER,
    "send": GroupCollective.PERMUTE,
    "recv": GroupCollective.PERMUTE,
}
# Scalars of a TPU's control core.
_SCALAR_S = 5e-8


class ClusterCosts:
    """Prices operations on a cluster.

    Args:
        chips: the number of the cluster's chip for each device of the program, in order; by default the same.
    """

    def __init__(self, cluster: Cluster, *, chips: Sequence[int] | None = None) -> None:
        self._cluster = cluster
        self._times = times_of(cluster)
        self._levels = levels_of(cluster)
        self._chip = find_chip(cluster.name)
        self._chips = chips
        self._clock_hz = _clock_hz(cluster, self._chip)
        self._has_one_port = not any(level.is_torus for level in self._levels)

    def compute_s(self, operation: ScheduledOperation) -> float:
        """Returns the seconds of an operation of the chip."""
        if operation.cycles is not None and self._clock_hz:
            return operation.cycles / self._clock_hz
        size_bytes = operation.read_bytes + operation.written_bytes
        if isinstance(self._chip, TpuChip) and not size_bytes and operation.arithmetic <= 1:
            return _SCALAR_S
        is_attention = operation.kernel is KernelClass.ATTENTION
        if is_attention and self._times.chip.kernel(KernelKind.ATTENTION, operation.dtype):
            flops = sum(product.flops for product in operation.products)
            return self._times.memory_pass(
                size_bytes, kind=KernelKind.ATTENTION, dtype=operation.dtype, arithmetic=flops
            )
        if operation.products:
            return max(self._products_s(operation), self._pass_s(operation, size_bytes))
        return self._pass_s(operation, size_bytes)

    def memory_s(self, size_bytes: float) -> float:
        """Returns the seconds in which the memory moves so many bytes."""
        return size_bytes / self._cluster.memory.bandwidth_bytes_per_s

    def collective_s(self, work: CollectiveWork) -> float:
        """Returns the seconds of a collective over the slowest of its groups."""
        if work.opcode not in _KINDS:
            raise HloError(f"expected one of the collectives {', '.join(_KINDS)}, but found {work.opcode}.")
        return self._group_time_s(_KINDS[work.opcode], work.groups, work.size_bytes)

    def links(self, work: CollectiveWork) -> frozenset[Hashable]:
        """Returns the links that a collective needs: a chip's one port, or of a torus those along its dims.

        A permute goes one way along a dim, so that one that goes the other way can run beside it.
        """
        if self._has_one_port:
            return frozenset({"port"})
        groups = [group for group in work.groups if len(set(group)) > 1]
        ways: tuple[bool, ...] = (True, False)
        if _KINDS.get(work.opcode) is GroupCollective.PERMUTE and groups:
            num_forward = sum(self._number(target) > self._number(source) for source, target in groups)
            ways = (2 * num_forward > len(groups),)
        return frozenset((span.dim, way) for group in groups[:1] for span in self._spans(group) for way in ways)

    def _number(self, device: int) -> int:
        return device if self._chips is None else self._chips[device]

    def _products_s(self, operation: ScheduledOperation) -> float:
        """Returns the seconds of all products of a kernel, begun once."""
        times_s = [
            self._times.product(
                m=product.m,
                k=product.k,
                n=product.n,
                batch=product.batch,
                dtype=product.dtype,
                output_item_bytes=product.output_item_bytes,
            )
            for product in operation.products
        ]
        begin_s = self._cluster.compute.launch_s * (len(times_s) - 1)
        return max(sum(times_s) - begin_s, max(times_s))

    def _pass_s(self, operation: ScheduledOperation, size_bytes: int) -> float:
        """Returns the seconds of a kernel that is no product, or of what a product does beside."""
        kernel = KernelClass.ELEMENTWISE if operation.products else operation.kernel or KernelClass.ELEMENTWISE
        return self._times.memory_pass(
            size_bytes, kind=KernelKind(kernel.value), dtype=operation.dtype, arithmetic=operation.arithmetic
        )

    @functools.lru_cache(maxsize=65536)  # noqa: B019
    def _group_time_s(self, kind: GroupCollective, groups: tuple[tuple[int, ...], ...], size_bytes: int) -> float:
        spans = {self._spans(group) for group in groups}
        return max((self._times.collective(kind, found, size_bytes) for found in spans), default=0.0)

    @functools.lru_cache(maxsize=65536)  # noqa: B019
    def _spans(self, group: tuple[int, ...]) -> tuple[LevelSpan, ...]:
        return spans_of_devices(self._levels, map(self._number, group))


def _clock_hz(cluster: Cluster, chip: GpuChip | TpuChip | None) -> float:
    """Returns the clock that the compiler's cycles count, with all cores of a device at work; 0 if it counts none."""
    if not isinstance(chip, TpuChip):
        return 0.0
    return cluster.compute.peak_flops_per_s / chip.flops_per_cycle
