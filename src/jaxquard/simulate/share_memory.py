"""How running jobs share the bandwidth of a memory: what one does not ask for, the others get."""

from collections.abc import Sequence


def share_memory(demands_bytes_per_s: Sequence[float], bandwidth_bytes_per_s: float) -> list[float]:
    """The speed of each job, 1 being full speed, under processor sharing (max-min fairness).

    All get equal shares; a job that asks for less than its share leaves the rest to the others.
    """
    speeds = [1.0] * len(demands_bytes_per_s)
    left = bandwidth_bytes_per_s
    waiting = sorted(range(len(speeds)), key=lambda index: demands_bytes_per_s[index])
    for position, index in enumerate(waiting):
        share = left / (len(waiting) - position)
        granted = min(demands_bytes_per_s[index], share)
        if granted < demands_bytes_per_s[index]:
            speeds[index] = granted / demands_bytes_per_s[index]
        left -= granted
    return speeds
