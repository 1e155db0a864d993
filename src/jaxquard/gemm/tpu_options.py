"""What to ask of the TPU's compiler, so that collectives run beside products (design decision 10)."""

from collections.abc import Mapping
from types import MappingProxyType

TPU_COMPILER_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "xla_enable_async_all_gather": "true",
        "xla_tpu_enable_async_collective_fusion": "true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
        "xla_tpu_overlap_compute_collective_tc": "true",
    }
)
"""With these, all-gathers become asynchronous on every generation; only v5e has them by default.

`jax.jit(step, compiler_options=dict(TPU_COMPILER_OPTIONS))`; other platforms refuse them.
"""
