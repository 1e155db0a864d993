"""Puts the clocks of all processes on the controller's, for timelines.

Processes on one kernel share its monotonic clock. Another host's is compared as NTP does it: the process is asked for
its time, and that was in the middle between question and answer. The quickest of several rounds counts, and its round
trip bounds the error. Clocks drift, so this is done for every timeline.
"""

import time
from collections.abc import Iterable

from jaxquard.runtime.ray.crew import Crew, Member
from jaxquard.runtime.ray.this_host import own_boot

_NUM_ROUNDS = 8


def compare_clocks(crew: Crew, members: Iterable[Member]) -> dict[Member, float]:
    """For each process, what to add to its clock to get this process's."""
    here = own_boot()
    return {
        member: 0.0 if member.hello is not None and member.hello.boot == here else _find_offset(crew, member)
        for member in members
    }


def _find_offset(crew: Crew, member: Member) -> float:
    best_s, offset_s = float("inf"), 0.0
    for _ in range(_NUM_ROUNDS):
        asked_s = time.perf_counter()
        (sign,) = crew.gather([member.handle.sign()])
        answered_s = time.perf_counter()
        if answered_s - asked_s < best_s:
            best_s, offset_s = answered_s - asked_s, (asked_s + answered_s) / 2 - sign.time_s
    return offset_s
