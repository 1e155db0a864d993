"""The time of a kernel on one chip, from its arithmetic and its traffic with memory.

    launch + max(arithmetic, traffic) + exposed * min(arithmetic, traffic)

The arithmetic of a product is slower where it is thin, as in `product_time`. The constants are those that calibration
measured for the kind of kernel and its type (`Cluster.kernels`). Where it has measured none, a product takes
`product_time_s`, and anything else the time to pass over memory once.
"""

from dataclasses import dataclass

from jaxquard.cluster.cluster import Cluster, check_number
from jaxquard.cluster.product_time import arithmetic_time_s, sum_slowdown
from jaxquard.cluster.speeds import KernelKind, KernelSpeed

_F32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductShape:
    """The dims of a product of [batch, m, k] and [batch, k, n].

    Example:
        >>> jq.cluster.ProductShape(m=4096, k=4096, n=512).flops
        17179869184.0
    """

    batch: float = 1
    m: float
    k: float
    n: float

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.k * self.n


def find_kernel(cluster: Cluster, kind: KernelKind, dtype: str) -> KernelSpeed | None:
    """Returns the measured speed of a kind of kernel: of this type, or of another; None if none was measured.

    Example:
        >>> cpu = jq.cluster.load_cluster("cpu")
        >>> jq.cluster.find_kernel(cpu, jq.cluster.KernelKind("softmax"), "f32") is None
        True
    """
    found = [speed for speed in cluster.kernels if speed.kind is kind]
    return next((speed for speed in found if speed.dtype == dtype), found[0] if found else None)


def kernel_time_s(
    cluster: Cluster,
    kind: KernelKind,
    *,
    dtype: str,
    size_bytes: float,
    flops: float = 0.0,
    product: ProductShape | None = None,
    output_item_bytes: int = 2,
) -> float:
    """Returns the time of a kernel.

    Args:
        dtype: of its inputs, as HLO writes it: `bf16`, `f32`.
        size_bytes: that it reads and writes.
        flops: its arithmetic; of a product it follows from its dims.
        product: the dims of a product.
        output_item_bytes: of a product's result.

    Raises:
        ClusterError: if a size is no number of 0 or more.

    Example:
        >>> h200 = jq.cluster.load_cluster("h200")  # its kernels are measured
        >>> shape = jq.cluster.ProductShape(m=8192, k=12288, n=6144)
        >>> kind = jq.cluster.KernelKind("product")
        >>> f"{jq.cluster.kernel_time_s(h200, kind, dtype='bf16', size_bytes=4e8, product=shape):.1e}"
        '1.5e-03'
    """
    check_number(size_bytes, "size_bytes", is_positive=False)
    check_number(flops, "flops", is_positive=False)
    speed = find_kernel(cluster, kind, dtype)
    if speed is None and product is None and kind is not KernelKind.ELEMENTWISE:
        speed = find_kernel(cluster, KernelKind.ELEMENTWISE, dtype)
    if speed is not None:
        return _measured_time_s(speed, size_bytes=size_bytes, flops=flops, product=product)
    if product is not None:
        return _product_time_s(cluster, product, output_item_bytes)
    return cluster.compute.launch_s + size_bytes / cluster.memory.bandwidth_bytes_per_s


def _measured_time_s(speed: KernelSpeed, *, size_bytes: float, flops: float, product: ProductShape | None) -> float:
    work = flops if product is None else product.flops * thinness(speed, product)
    arithmetic_s = work / speed.flops_per_s if speed.flops_per_s else 0.0
    traffic_s = size_bytes / speed.bandwidth_bytes_per_s if speed.bandwidth_bytes_per_s else 0.0
    shorter, longer = sorted((arithmetic_s, traffic_s))
    return speed.launch_s + longer + speed.exposed * shorter


def thinness(speed: KernelSpeed, product: ProductShape) -> float:
    """Returns the factor by which the arithmetic of a product takes longer because its dims are small."""
    slowdown = 1 + speed.half_speed_contracted / product.k
    return slowdown * (1 + speed.half_speed_output / product.m) * (1 + speed.half_speed_output / product.n)


def _product_time_s(cluster: Cluster, product: ProductShape, output_item_bytes: int) -> float:
    """Returns the time of products that one kernel computes: one launch for all of them."""
    compute = cluster.compute
    arithmetic_s = arithmetic_time_s(compute, m=product.m, k=product.k, n=product.n)
    if output_item_bytes == _F32_BYTES:
        arithmetic_s *= sum_slowdown(compute, m=product.m, n=product.n)
    output_s = compute.output_exposed * output_item_bytes * product.m * product.n
    output_s /= cluster.memory.bandwidth_bytes_per_s
    return product.batch * (arithmetic_s + output_s) + compute.launch_s
