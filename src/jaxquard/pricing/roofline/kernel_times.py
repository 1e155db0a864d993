"""The seconds of kernels on a cluster's chip: matrix products, and passes over memory.

A cluster whose kernels were measured, or one of CPUs, has its times from `ClusterCosts`, as compiled programs have. Any
other has them from the table of chips (`kernels.chip`), or from what its own file says.
"""

import functools
from typing import Any

import jax.numpy as jnp

from jaxquard.cluster.cluster import Cluster
from jaxquard.errors import ClusterError
from jaxquard.hlo.schedule import OperationKind, ScheduledOperation
from jaxquard.hlo.work.kernels import KernelClass
from jaxquard.hlo.work.matrix_products import MatrixProduct
from jaxquard.pricing.model.kernels.chip import chip_of
from jaxquard.pricing.model.kernels.kernel_time import matmul_time_s, pass_time_s
from jaxquard.pricing.target.chips import find_chip
from jaxquard.pricing.target.cluster_costs import ClusterCosts

_CHIP_DTYPES = {"float32": "fp32", "float64": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_HLO_DTYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "complex64": "c64"}


class KernelTimes:
    """Times of kernels on one chip of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._costs = ClusterCosts(cluster) if _is_measured(cluster) else None
        self._chip = chip_of(cluster)
        self.product_s = functools.lru_cache(maxsize=65536)(self._product_s)
        self.pass_s = functools.lru_cache(maxsize=65536)(self._pass_s)

    @property
    def is_accelerator(self) -> bool:
        """False for CPUs."""
        try:
            return find_chip(self._cluster.name) is not None
        except ClusterError:
            return True

    @property
    def bytes_per_flop(self) -> float:
        """The bytes that the fastest links move while a large product does one FLOP."""
        level = self._cluster.levels[0] if self._cluster.levels else None
        links = self._cluster.all_gather
        bandwidth = links.column_bandwidth_bytes_per_s if level is None else level.bandwidth_bytes_per_s
        return bandwidth / self._cluster.compute.effective_flops_per_s

    def _product_s(self, batch: float, m: float, k: float, n: float, dtype: Any, output_item_bytes: int) -> float:
        """Returns the seconds of `batch` products of [m, k] and [k, n]."""
        name = jnp.dtype(dtype).name
        if self._costs is None:
            narrow = "fp8" if name.startswith("float8") else "bf16"
            return matmul_time_s(self._chip, m, n, k, _CHIP_DTYPES.get(name, narrow), batch)
        item_bytes = jnp.dtype(dtype).itemsize
        product = MatrixProduct(batch=batch, m=m, k=k, n=n, dtype=_hlo_dtype(name), output_item_bytes=output_item_bytes)
        return self._costs.compute_s(
            _operation(
                KernelClass.PRODUCT,
                read_bytes=item_bytes * batch * (m * k + k * n),
                written_bytes=output_item_bytes * batch * m * n,
                arithmetic=0.0,
                dtype=product.dtype,
                products=(product,),
            )
        )

    def _pass_s(self, size_bytes: float, arithmetic: float, dtype: Any) -> float:
        """Returns the seconds of a kernel that reads and writes so many bytes.

        Args:
            arithmetic: operations on elements, which take time on CPUs.
        """
        if self._costs is None:
            return pass_time_s(self._chip, size_bytes)
        return self._costs.compute_s(
            _operation(
                KernelClass.ELEMENTWISE,
                read_bytes=size_bytes,
                written_bytes=0,
                arithmetic=arithmetic,
                dtype=_hlo_dtype(str(dtype)),
            )
        )


def _is_measured(cluster: Cluster) -> bool:
    """Returns true for a cluster whose kernels were measured, or of CPUs."""
    try:
        return find_chip(cluster.name) is None or bool(cluster.kernels)
    except ClusterError:
        return False


def _hlo_dtype(name: str) -> str:
    return _HLO_DTYPES.get(name, "f8e4m3fn" if name.startswith("float8") else "s32")


def _operation(
    kernel: KernelClass,
    *,
    read_bytes: float,
    written_bytes: float,
    arithmetic: float,
    dtype: str,
    products: tuple[MatrixProduct, ...] = (),
) -> ScheduledOperation:
    return ScheduledOperation(
        name="kernel",
        computation="jaxpr",
        kind=OperationKind.COMPUTE,
        opcode="fusion",
        read_bytes=round(read_bytes),
        written_bytes=round(written_bytes),
        products=products,
        arithmetic=round(arithmetic),
        kernel=kernel,
        dtype=dtype,
    )
