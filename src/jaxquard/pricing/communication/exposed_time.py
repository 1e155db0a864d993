"""Exposed communication: the time that is not hidden behind computation, from intervals alone."""

from collections.abc import Iterable

Interval = tuple[float, float]


def exposed_time(communication: Iterable[Interval], compute: Iterable[Interval]) -> float:
    """Returns how long at least one interval of communication is under way, and none of computation.

    Intervals are (start, end), in any order and any unit; they may overlap, nest and repeat.
    """
    edges: list[tuple[float, int, int]] = []
    for start, end in communication:
        edges += [(start, 1, 0), (end, -1, 0)]
    for start, end in compute:
        edges += [(start, 0, 1), (end, 0, -1)]
    total, before = 0.0, 0.0
    num_communicating = num_computing = 0
    for time, communicates, computes in sorted(edges):
        if num_communicating > 0 and num_computing == 0:
            total += time - before
        num_communicating += communicates
        num_computing += computes
        before = time
    return total
