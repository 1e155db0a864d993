"""Outcomes of pricing: failures, the best times so far, and where the time went."""

import contextlib
import threading
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from jaxquard.errors import HloError
from jaxquard.pricing.end_of_time import OutOfTimeError, StalledError
from jaxquard.pricing.price import Failure, FailureReason

_NO_MEMORY = ("resource_exhausted", "out of memory", "unable to allocate", "memoryerror")


def failure_of(name: str, reason: FailureReason, error: Exception) -> Failure:
    """The failure that an error means; `reason` holds unless the error says more."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, OutOfTimeError):
        reason = FailureReason.NO_TIME
    elif isinstance(error, StalledError):
        reason = FailureReason.TOO_SLOW
    elif any(words in said.lower() for words in _NO_MEMORY):
        reason = FailureReason.OUT_OF_MEMORY
    elif isinstance(error, HloError):
        message = f"its compiled text cannot be read: {error}"
        return Failure(name=name, reason=FailureReason.NO_RUN, message=message)
    lines = str(error).strip().splitlines()
    return Failure(name=name, reason=reason, message=lines[0] if lines else type(error).__name__)


def over_limit(name: str, *, needed_bytes: int, available_bytes: int) -> Failure:
    """The failure of a program that is not even tried."""
    message = f"it needs {needed_bytes / 1e9:.3g} GB on each device, which has {available_bytes / 1e9:.3g} GB"
    return Failure(name=name, reason=FailureReason.OUT_OF_MEMORY, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Seconds over all calls of a pricer; the first three do not overlap, and add up to nearly all that a caller waits.

    Attributes:
        lowering_s: making StableHLO of programs.
        compiling_s: waiting for compilers.
        running_s: running programs, with their inputs, warm-ups and profiled runs.
        compile_work_s: what the compilers took, added up: in processes, the processor's time; else by the clock. More
            than `compiling_s` where some work at a time, or while programs run. A compiler that works alone may use
            several cores and take less than its part of this.

    Example:
        >>> spent = jq.pricing.TimeBreakdown(lowering_s=0.5, compiling_s=6.0, running_s=3.5, compile_work_s=11.0)
        >>> f"{spent.compile_work_s / spent.compiling_s:.1f} compilers at a time"
        '1.8 compilers at a time'
    """

    lowering_s: float = 0.0
    compiling_s: float = 0.0
    running_s: float = 0.0
    compile_work_s: float = 0.0


class Meter:
    """Adds up seconds by part; compilers may report from threads."""

    def __init__(self) -> None:
        self._sums_s: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def during(self, part: Literal["lowering_s", "compiling_s", "running_s"]) -> Iterator[None]:
        """Adds the time of a `with` block, however it ends."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._add(part, time.perf_counter() - start_s)

    def add_compile_work(self, time_s: float) -> None:
        """Counts what one compiler took for one program."""
        self._add("compile_work_s", time_s)

    @property
    def time_breakdown(self) -> TimeBreakdown:
        """The sums so far."""
        with self._lock:
            return TimeBreakdown(**self._sums_s)

    def _add(self, part: str, time_s: float) -> None:
        with self._lock:
            self._sums_s[part] = self._sums_s.get(part, 0.0) + time_s


class BestTimes:
    """The minimum time so far in each group."""

    def __init__(self) -> None:
        self._minimum_s: dict[Hashable, float] = {}

    def note(self, group: Hashable, time_s: float) -> None:
        self._minimum_s[group] = min(time_s, self._minimum_s.get(group, time_s))

    def __getitem__(self, group: Hashable) -> float:
        return self._minimum_s.get(group, float("inf"))
