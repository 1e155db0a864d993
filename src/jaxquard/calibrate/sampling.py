"""The samples of a calibration: which are taken, by kind of device, and how one is timed by the clock of the host.

On an accelerator runs follow each other without waiting, as they do in training, so that starting them is hidden where
it would be hidden. On CPU each run is waited for: virtual devices share a few cores, and collectives of many runs at
once wait for each other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxquard.calibrate.kernel_cases import KernelCase, kernel_cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """The amount of measuring in a calibration.

    Attributes:
        shard_sizes_bytes: of the collectives; larger ones are left out where memory or time does not allow them.
        ms: rows of the products; `ks` their contracted dims, `ns` their columns.
        slices: the slice counts of the products, the whole one first.
        rounds: the number of times that each is measured; the minimum counts.
        sample_s: the seconds for which a thing is repeated in one round.
        longest_s: a run that takes longer ends the series of sizes.
        collective_sizes_bytes: of whole arrays, for every kind of collective over groups of several sizes.
        kernels: the kernels that are timed one by one.
    """

    shard_sizes_bytes: tuple[int, ...]
    ms: tuple[int, ...]
    ks: tuple[int, ...]
    ns: tuple[int, ...]
    slices: tuple[int, ...]
    rounds: int
    sample_s: float
    longest_s: float
    collective_sizes_bytes: tuple[int, ...] = ()
    kernels: tuple[KernelCase, ...] = ()


_KIB = 1024
# 8 KB to 512 MB (section 4.5 of MeshSlice).
_ALL_SIZES = tuple(8 * _KIB * 4**power for power in range(9))

_ON_ACCELERATOR = Effort(
    shard_sizes_bytes=_ALL_SIZES, ms=(2048, 8192, 32768), ks=(3072, 12288), ns=(3072, 12288), slices=(1, 2, 4, 8),
    rounds=5, sample_s=0.1, longest_s=2.0, collective_sizes_bytes=_ALL_SIZES[1::2],
    kernels=kernel_cases("gpu", is_quick=False),
)  # fmt: skip
_ON_ACCELERATOR_QUICKLY = Effort(
    shard_sizes_bytes=_ALL_SIZES[::2], ms=(2048, 8192), ks=(3072, 12288), ns=(3072, 6144), slices=(1, 2, 8),
    rounds=3, sample_s=0.03, longest_s=0.5, collective_sizes_bytes=_ALL_SIZES[2:7:2],
    kernels=kernel_cases("gpu", is_quick=True),
)  # fmt: skip
_ON_CPU = Effort(
    shard_sizes_bytes=_ALL_SIZES, ms=(256, 512), ks=(512, 1024), ns=(256, 1024), slices=(1, 2, 4),
    rounds=5, sample_s=0.05, longest_s=0.5, collective_sizes_bytes=_ALL_SIZES[:5],
    kernels=kernel_cases("cpu", is_quick=False),
)  # fmt: skip
_ON_CPU_QUICKLY = Effort(
    shard_sizes_bytes=_ALL_SIZES[:5], ms=(128, 256), ks=(256, 512), ns=(256,), slices=(1, 2, 4),
    rounds=3, sample_s=0.01, longest_s=0.1, collective_sizes_bytes=_ALL_SIZES[:5:2],
    kernels=kernel_cases("cpu", is_quick=True),
)  # fmt: skip


def choose_effort(platform: str, *, is_quick: bool) -> Effort:
    """Returns the samples to take on a platform, as JAX names it."""
    if platform == "cpu":
        return _ON_CPU_QUICKLY if is_quick else _ON_CPU
    return _ON_ACCELERATOR_QUICKLY if is_quick else _ON_ACCELERATOR


def time_runs_s(run: Callable[..., Any], arguments: tuple[Any, ...], *, sample_s: float, is_async: bool) -> float:
    """Returns the seconds of one run, of so many that they take `sample_s`, and of at least one."""
    first_s = time_runs_of(run, arguments, count=1, is_async=is_async)
    count = min(1000, int(sample_s / max(first_s, 1e-6)))
    return time_runs_of(run, arguments, count=count, is_async=is_async) if count > 1 else first_s


def time_runs_of(run: Callable[..., Any], arguments: tuple[Any, ...], *, count: int, is_async: bool) -> float:
    """Returns the seconds of one run, of `count`."""
    start_s = time.perf_counter()
    result = None
    for _ in range(count):
        result = run(*arguments)
        if not is_async:
            jax.block_until_ready(result)
    jax.block_until_ready(result)
    return (time.perf_counter() - start_s) / count
