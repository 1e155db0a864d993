"""Decides whether a program that has ended is started again, and after which delay.

Restarts are counted since the last progress, so that a month of rare failures never reaches the limit, and a program
that cannot go on reaches it. The delay doubles with each of them. A program that fails early and alike three times is
not started a fourth time.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.errors import PREEMPTED_EXIT_CODE

SAME_FAILURES = 3
"""So many equal failures in a row end a run."""
EARLY_S = 60.0
"""A failure within this time of the start is an early one."""
_LONGEST_LINE = 300
_ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Failed|Exit|Warning)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """Limits on the restarts of a program.

    Attributes:
        max_restarts: the number of restarts without progress between them.
        stable_after_s: an attempt that ran so long has made progress, unless a path shows progress.
        first_delay_s: the delay before the first restart; it doubles with each further one.
        max_delay_s: the longest delay.
    """

    max_restarts: int = 10
    stable_after_s: float = 600.0
    first_delay_s: float = 1.0
    max_delay_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnding:
    """The ending of one attempt to run a program.

    Attributes:
        returncode: its exit code; -n if signal n killed it.
        time_s: the time that it ran.
        made_progress: whether it did more than the attempts before.
        error_line: the line on its stderr that names the error, or the last one.
        silent_s: the time without output after which it was ended as hanging; 0 if it was not.
    """

    returncode: int
    time_s: float
    made_progress: bool = False
    error_line: str = ""
    silent_s: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.returncode == 0

    @property
    def is_preempted(self) -> bool:
        return self.returncode == PREEMPTED_EXIT_CODE

    @property
    def cause(self) -> str:
        """The reason in words: `exit code 1 (ValueError: no data)`, `SIGKILL`."""
        if self.silent_s:
            return f"no output for {self.silent_s:g} s"
        line = f" ({self.error_line})" if self.error_line else ""
        if self.returncode == -signal.SIGKILL:
            return "SIGKILL (by hand, or by the kernel when memory runs out)"
        return f"exit code {self.returncode}{line}" if self.returncode >= 0 else f"{_name(-self.returncode)}{line}"

    @property
    def _signature(self) -> tuple[int, str]:
        """The same for failures of the same kind: numbers in messages, such as process ids, do not count."""
        return self.returncode, re.sub(r"\d+", "0", self.error_line)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDecision:
    """The delay before a restart, or None to give up, and the reason in words."""

    delay_s: float | None
    reason: str


def decide_restart(endings: Sequence[AttemptEnding], limits: RestartLimits) -> RestartDecision:
    """Decides on a restart after the last of all endings so far, none of which was a success."""
    last, number = endings[-1], _failures_since_progress(endings)
    if _fails_alike(endings[-number:]):
        reason = f"it failed {SAME_FAILURES} times in the same way, each time at once: {last.cause}"
        return RestartDecision(delay_s=None, reason=reason)
    if number > limits.max_restarts:
        times = "restart" if limits.max_restarts == 1 else "restarts"
        reason = f"{last.cause}, after {limits.max_restarts} {times} without progress"
        return RestartDecision(delay_s=None, reason=reason)
    # Bounded, as 2.0**1024 is no float.
    delay_s = min(limits.max_delay_s, limits.first_delay_s * 2.0 ** min(number - 1, 64))
    return RestartDecision(
        delay_s=delay_s, reason=f"restart {number} of {limits.max_restarts} in {delay_s:.3g} s: {last.cause}"
    )


def _failures_since_progress(endings: Sequence[AttemptEnding]) -> int:
    """Counts the last endings, up to and with the last one that made progress."""
    number = 0
    for ending in reversed(endings):
        number += 1
        if ending.made_progress:
            break
    return number


def _fails_alike(endings: Sequence[AttemptEnding]) -> bool:
    """Says whether the last endings are early, equal and the program's own: a signal comes from outside."""
    last = endings[-SAME_FAILURES:]
    return (
        len(last) == SAME_FAILURES
        and all(each.time_s < EARLY_S and each.returncode > 0 and not each.silent_s for each in last)
        and len({each._signature for each in last}) == 1
    )


def find_error_line(lines: Sequence[str]) -> str:
    """Finds the line of stderr that names an error, as a traceback ends; without one, the last that is not empty."""
    for line in reversed(lines):
        if _ERROR_LINE.match(line):
            return _shortened(line)
    return next((_shortened(line) for line in reversed(lines) if line.strip()), "")


def _shortened(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
