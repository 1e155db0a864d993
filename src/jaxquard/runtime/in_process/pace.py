"""Chooses how a program's actors are fed: apart, each by its own thread, or together, by one thread for all.

Apart, actors compute at the same time, but each message wakes a thread, and the threads of one process take
turns in Python. For tiny tasks that is most of the time: 64 tasks and 48 messages took 4.6 ms apart and 2.6
together (bare calls and transfers: 1.7) on two cores with other work. So the fastest time of each call is recorded,
and the actors are fed together once that is expected to be faster:

    time that computing side by side can save at most  <  messages and starts  x  cost of waking a thread

Only tasks that run in the thread that calls them, on one CPU device, can be judged like this; a program with
Python callbacks stays apart, since a callback may sleep, or wait for another actor's.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from jaxquard.ir.program import Program, Run, Send

# Between what the figures above give on a quiet machine (10 us) and on a busy one (50 us).
WAKE_COST_S = 40e-6


class Pace:
    """The times of a program's calls on each actor.

    Attributes:
        fastest_s: `fastest_s[actor][call]`, the fastest time of the call there; actors write it without a lock.
    """

    def __init__(self, program: Program, *, can_be_together: bool) -> None:
        num_calls = len(program.calls)
        self.fastest_s = [[float("inf")] * num_calls for _ in program.actors]
        self._counts = [[0] * num_calls for _ in program.actors]
        self._num_cores = os.cpu_count() or 1
        self._num_wakes = len(program.actors)
        for counts, actor in zip(self._counts, program.actors, strict=True):
            for instruction in actor.instructions:
                if isinstance(instruction, Run):
                    counts[instruction.call] += 1
                self._num_wakes += isinstance(instruction, Send)
        self._can_be_together = can_be_together and not any(_has_callback(call.code) for call in program.calls)

    def is_together(self) -> bool:
        """Returns True if the next step is expected to be faster with one thread for all actors."""
        if not self._can_be_together:
            return False
        times_s = [_total_s(counts, fastest_s) for counts, fastest_s in zip(self._counts, self.fastest_s, strict=True)]
        total_s = sum(times_s)
        if total_s == float("inf"):
            return False
        side_by_side_s = max(max(times_s), total_s / self._num_cores)
        return total_s - side_by_side_s < self._num_wakes * WAKE_COST_S


def _total_s(counts: Sequence[int], fastest_s: Sequence[float]) -> float:
    return sum(count * time_s for count, time_s in zip(counts, fastest_s, strict=True) if count)


def _has_callback(code: Any) -> bool:
    """Returns True if a jaxpr, or one inside it, calls back into Python."""
    jaxpr = getattr(code, "jaxpr", code)
    return any(
        "callback" in equation.primitive.name
        or any(_has_callback(inner) for inner in _inner_jaxprs(equation.params.values()))
        for equation in jaxpr.eqns
    )


def _inner_jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inner_jaxprs(value)
