"""The time of a compiled function, by the clock of the host.

On an accelerator runs follow each other without waiting, as they do in training, so that starting them is hidden where
it would be hidden. On CPU each run is waited for: virtual devices share a few cores, and collectives of many runs at
once wait for each other.
"""

import time
from collections.abc import Callable
from typing import Any

import jax


def time_runs_s(run: Callable[..., Any], arguments: tuple[Any, ...], *, sample_s: float, is_async: bool) -> float:
    """Seconds of one run, of so many that they take `sample_s`, and of at least one."""
    first_s = time_runs_of(run, arguments, count=1, is_async=is_async)
    count = min(1000, int(sample_s / max(first_s, 1e-6)))
    return time_runs_of(run, arguments, count=count, is_async=is_async) if count > 1 else first_s


def time_runs_of(run: Callable[..., Any], arguments: tuple[Any, ...], *, count: int, is_async: bool) -> float:
    """Seconds of one run, of `count`."""
    start_s = time.perf_counter()
    result = None
    for _ in range(count):
        result = run(*arguments)
        if not is_async:
            jax.block_until_ready(result)
    jax.block_until_ready(result)
    return (time.perf_counter() - start_s) / count
