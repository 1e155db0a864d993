"""The seconds of a scheduled program's operations on the chips and links of a cluster.

    compute      the slower of the matrix products (`product_time`) and of one pass over memory, and the time to begin;
                 with the constants that calibration has measured for such kernels, where there are some
                 (`kernel_time`). Of a TPU, the cycles that its compiler estimates, where it does.
    collective   `group_time` over the levels that its group of devices spans; of several groups, the slowest

An operation that is no product begins in a third of the time of a product: it has one kernel, and no library around it.
A pass over memory reaches the bandwidth that a cast of the cluster's file does (`cast_exposed`).
"""

import functools
from collections.abc import Hashable, Sequence

from jaxquard.cluster import (
    Cluster,
    GroupCollective,
    KernelKind,
    KernelSpeed,
    LevelSpan,
    ProductShape,
    find_kernel,
    group_time_s,
    kernel_time_s,
    levels_of,
    spans_of_devices,
)
from jaxquard.cluster.product_time import arithmetic_time_s, sum_slowdown
from jaxquard.errors import HloError
from jaxquard.hlo import CollectiveWork, KernelClass, MatrixProduct, ScheduledOperation
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
# Relative to 16 bits on a GPU's matrix units; fp32 is the chip's own.
_GPU_SLOWDOWNS = {"f8": 0.5, "s8": 0.5, "u8": 0.5, "f4": 0.25, "s4": 0.5, "f64": 15.0, "c64": 8.0, "c128": 60.0}
_CPU_SLOWDOWNS = {"f64": 2.0, "c64": 4.0, "c128": 8.0}
_FP32_ITEM_BYTES = 4
_PASS_BEGIN = 1 / 3
# Scalars of a TPU's control core.
_SCALAR_S = 5e-8


class ClusterCosts:
    """Prices operations on a cluster.

    Args:
        chips: the number of the cluster's chip for each device of the program, in order; by default the same.
    """

    def __init__(self, cluster: Cluster, *, chips: Sequence[int] | None = None) -> None:
        self._cluster = cluster
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
        if operation.products:
            return max(self._products_s(operation, size_bytes), self._pass_s(operation, size_bytes))
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

    def _products_s(self, operation: ScheduledOperation, size_bytes: int) -> float:
        """Returns the seconds of all products of a kernel, begun once."""
        kind = KernelKind.ATTENTION if operation.kernel is KernelClass.ATTENTION else KernelKind.PRODUCT
        times_s, begin_s = [], []
        for product in operation.products:
            speed = find_kernel(self._cluster, kind, product.dtype) or find_kernel(
                self._cluster, KernelKind.PRODUCT, product.dtype
            )
            begin_s.append(self._cluster.compute.launch_s if speed is None else speed.launch_s)
            times_s.append(
                self._unmeasured_product_s(product)
                if speed is None
                else self._measured_product_s(speed, product, size_bytes / len(operation.products)) - speed.launch_s
            )
        return max(begin_s) + sum(times_s)

    def _measured_product_s(self, speed: KernelSpeed, product: MatrixProduct, size_bytes: float) -> float:
        shape = ProductShape(batch=product.batch, m=product.m, k=product.k, n=product.n)
        time_s = kernel_time_s(self._cluster, speed.kind, dtype=speed.dtype, size_bytes=size_bytes, product=shape)
        slower = self._slowdown(product.dtype) / self._slowdown(speed.dtype)
        return speed.launch_s + (time_s - speed.launch_s) * slower

    def _unmeasured_product_s(self, product: MatrixProduct) -> float:
        """Returns the seconds of a product, without the time to begin it; see `product_time`."""
        compute = self._cluster.compute
        rows = product.batch * product.m
        time_s = arithmetic_time_s(compute, m=rows, k=product.k, n=product.n) * self._slowdown(product.dtype)
        if product.output_item_bytes == _FP32_ITEM_BYTES:
            time_s *= sum_slowdown(compute, m=rows, n=product.n)
        return time_s + compute.output_exposed * self.memory_s(product.output_item_bytes * rows * product.n)

    def _slowdown(self, dtype: str) -> float:
        """Returns the time of a product in a type, relative to the types that the cluster's figures are for."""
        if isinstance(self._chip, GpuChip):
            is_wide = dtype in ("f32", "s32", "u32")
            return self._chip.fp32_slowdown if is_wide else _of_type(_GPU_SLOWDOWNS, dtype)
        return _of_type(_CPU_SLOWDOWNS, dtype) if self._chip is None else 1.0

    def _pass_s(self, operation: ScheduledOperation, size_bytes: int) -> float:
        """Returns the seconds of a kernel that is no product, or of what a product does beside."""
        kernel = KernelClass.ELEMENTWISE if operation.products else operation.kernel or KernelClass.ELEMENTWISE
        kind, dtype = KernelKind(kernel.value), operation.dtype
        if find_kernel(self._cluster, kind, dtype) or find_kernel(self._cluster, KernelKind.ELEMENTWISE, dtype):
            time_s = kernel_time_s(self._cluster, kind, dtype=dtype, size_bytes=size_bytes, flops=operation.arithmetic)
            return time_s
        compute = self._cluster.compute
        # Accelerators hide other arithmetic behind their memory; a CPU's core does not.
        arithmetic_s = operation.arithmetic / compute.effective_flops_per_s if self._chip is None else 0.0
        traffic_s = self.memory_s(size_bytes) * max(1.0, compute.cast_exposed)
        return compute.launch_s * _PASS_BEGIN + max(traffic_s, arithmetic_s)

    @functools.lru_cache(maxsize=65536)  # noqa: B019
    def _group_time_s(self, kind: GroupCollective, groups: tuple[tuple[int, ...], ...], size_bytes: int) -> float:
        spans = {self._spans(group) for group in groups}
        return max((group_time_s(kind, found, size_bytes) for found in spans), default=0.0)

    @functools.lru_cache(maxsize=65536)  # noqa: B019
    def _spans(self, group: tuple[int, ...]) -> tuple[LevelSpan, ...]:
        return spans_of_devices(self._levels, map(self._number, group))


def _clock_hz(cluster: Cluster, chip: GpuChip | TpuChip | None) -> float:
    """Returns the clock that the compiler's cycles count, with all cores of a device at work; 0 if it counts none."""
    if not isinstance(chip, TpuChip):
        return 0.0
    return cluster.compute.peak_flops_per_s / chip.flops_per_cycle


def _of_type(slowdowns: dict[str, float], dtype: str) -> float:
    return next((slowdowns[name] for name in slowdowns if dtype.startswith(name)), 1.0)
