"""The times of a chip's kernels and of collectives between chips: what every price is made of.

product        of matrices, by shape and kind of number (`product.py`), whole or sliced
attention      fused, by its FLOPs, its sequence and the width of its heads
memory_pass    a kernel that reads and writes bytes and computes little: measured, or a pass over memory
collective     over the levels that a group of devices spans (`collective.py`)
"""

import functools
from collections.abc import Sequence

from jaxquard.cluster.cluster import Cluster, check_cluster, check_number
from jaxquard.cluster.levels import LevelSpan
from jaxquard.cluster.speeds import GroupCollective, KernelKind
from jaxquard.cluster.times.chip_speeds import ITEM_BYTES, ChipSpeeds, Flash, chip_speeds, number_format
from jaxquard.cluster.times.collective import group_time_s
from jaxquard.cluster.times.product import PASS_BEGIN, sliced_product_s, whole_product_s


class Times:
    """The times of one chip and its links.

    Args:
        chip: instead of the cluster's own, such as one under another power limit.

    Example:
        >>> cluster = jq.cluster.load_cluster("h100")
        >>> slow = jq.cluster.Times(cluster, jq.cluster.chip_speeds(cluster).at_speed(0.5))
        >>> sizes = {"m": 8192, "k": 8192, "n": 8192}
        >>> round(slow.product(**sizes) / jq.cluster.times_of(cluster).product(**sizes), 1)
        2.0
    """

    def __init__(self, cluster: Cluster, chip: ChipSpeeds | None = None) -> None:
        self.cluster = cluster
        self.chip = chip or chip_speeds(cluster)

    def product(
        self,
        *,
        m: float,
        k: float,
        n: float,
        batch: float = 1,
        dtype: str = "bf16",
        output_item_bytes: float | None = None,
        num_slices: int = 1,
    ) -> float:
        """Returns the seconds of `batch` products of [m, k] and [k, n], whose output is written once.

        Args:
            dtype: of the inputs, by any name that JAX or HLO has for it; one that is none of numbers counts as 16 bits.
            output_item_bytes: of the output; by default as wide as the inputs, and at least 16 bits.
            num_slices: along k, multiplied one after another and summed in fp32.

        Raises:
            ClusterError: if a size is not a positive number.

        Example:
            >>> times = jq.cluster.times_of(jq.cluster.load_cluster("h200"))
            >>> whole, sliced = (times.product(m=8192, k=12288, n=6144, num_slices=slices) for slices in (1, 8))
            >>> f"{whole * 1e3:.2f} ms, {sliced / whole:.2f}"
            '1.75 ms, 1.40'
        """
        item_bytes = ITEM_BYTES.get(number_format(dtype), 2.0)
        out_bytes = max(2.0, item_bytes) if output_item_bytes is None else output_item_bytes
        if num_slices != 1:
            return sliced_product_s(self.chip, m, k, n, num_slices, out_bytes)
        return whole_product_s(self.chip, m, k, n, batch, dtype, out_bytes)

    def attention(self, flash: Flash, *, flops: float, seq: float, head_dim: float, is_backward: bool) -> float:
        """Returns the seconds of fused attention.

        Args:
            flash: its generation (`find_flash`).
            flops: forward, with the causal half of the pairs.
            is_backward: 5 products instead of 2.

        Example:
            >>> times = jq.cluster.times_of(jq.cluster.load_cluster("h100"))
            >>> flash = times.find_flash("flash3")
            >>> f"{times.attention(flash, flops=1e12, seq=8192, head_dim=128, is_backward=False) * 1e3:.2f} ms"
            '1.76 ms'
        """
        speed = flash.backward_flops_per_s if is_backward else flash.forward_flops_per_s
        # Heads narrower than 128 leave more of the time to the exponentials: 2307.08691 and 2407.08608 show 0.8 for 64.
        narrow = min(1.0, 0.8 + 0.2 * (head_dim - 64) / 64) if head_dim >= 64 else 0.8 * head_dim / 64
        work = flops * (2.5 if is_backward else 1.0)
        begin_s = (2 if is_backward else 1) * self._pass_begin_s
        return work / (speed * narrow) * (1 + flash.half_seq / seq) + begin_s

    def find_flash(self, name: str) -> Flash:
        """Returns the fused attention of a generation, or the newest older one that the chip has."""
        order = ("flash3", "flash2", "flash1")
        for candidate in order[order.index(name) :]:
            if candidate in self.chip.flash:
                return self.chip.flash[candidate]
        return next(iter(self.chip.flash.values()))

    def is_unfused(self, attention: str) -> bool:
        """Returns true if attention runs as products and a softmax, by the framework's word or for want of kernels."""
        return attention == "unfused" or not self.chip.flash

    def memory_pass(
        self,
        size_bytes: float,
        *,
        kind: KernelKind = KernelKind.ELEMENTWISE,
        dtype: str = "",
        arithmetic: float = 0.0,
        num_kernels: float = 1,
    ) -> float:
        """Returns the seconds of kernels that read and write so many bytes and compute little.

        Args:
            kind: which a chip's measured kernels may have a speed for, of this dtype or of another.
            arithmetic: operations on elements, which take time on CPUs.
            num_kernels: that share the bytes.

        Raises:
            ClusterError: if a size is no number of 0 or more.

        Example:
            >>> times = jq.cluster.times_of(jq.cluster.load_cluster("a100"))
            >>> f"{times.memory_pass(1e9) * 1e3:.2f} ms"
            '0.57 ms'
        """
        for name, number in (("size_bytes", size_bytes), ("arithmetic", arithmetic), ("num_kernels", num_kernels)):
            check_number(number, name, is_positive=False)
        chip = self.chip
        measured = chip.kernel(kind, dtype) or chip.kernel(KernelKind.ELEMENTWISE, dtype)
        if measured is not None:
            arithmetic_s = arithmetic / measured.flops_per_s if measured.flops_per_s else 0.0
            traffic_s = size_bytes / measured.bandwidth_bytes_per_s if measured.bandwidth_bytes_per_s else 0.0
            shorter, longer = sorted((arithmetic_s, traffic_s))
            return num_kernels * measured.launch_s + longer + measured.exposed * shorter
        arithmetic_s = 0.0 if chip.hides_arithmetic else arithmetic / chip.compute.effective_flops_per_s
        traffic_s = size_bytes / (chip.bandwidth_bytes_per_s * chip.memory_share)
        return num_kernels * self._pass_begin_s + max(traffic_s, arithmetic_s)

    @property
    def _pass_begin_s(self) -> float:
        return self.chip.compute.launch_s * PASS_BEGIN

    def collective(self, kind: GroupCollective, spans: Sequence[LevelSpan], size_bytes: float) -> float:
        """Returns the seconds of a collective over a group of devices (`group_time_s`)."""
        return group_time_s(kind, spans, size_bytes)


def times_of(cluster: Cluster) -> Times:
    """Returns the times of a cluster's chip and links.

    Example:
        >>> times = jq.cluster.times_of(jq.cluster.load_cluster("h100"))
        >>> times.product(m=512, k=4096, n=512) < times.product(m=4096, k=4096, n=4096)
        True
    """
    check_cluster(cluster)
    return _cached_times(cluster)


@functools.cache
def _cached_times(cluster: Cluster) -> Times:
    return Times(cluster)
