"""The memory of one actor over time, in bytes of one chip, and by the part of what it holds.

At a time t it counts all that is there in the moment that begins with t: what comes at t counts, what goes at t does
not. So a buffer that a task frees at its end and one that the next takes at the same time do not add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

WEIGHTS, GRADIENTS, ACTIVATIONS, WORKING, TRANSFERS = "weights", "gradients", "activations", "working", "transfers"
PARTS = (WEIGHTS, GRADIENTS, ACTIVATIONS, WORKING, TRANSFERS)

# When so many bytes come, and when they go: arrays of one length.
Lives: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActorMemory:
    """The bytes that an actor holds, from each of some times to the next.

    Attributes:
        times_s: when something changes, from 0 on.
        size_bytes: all parts together, from each time on.
        changes: the numbers of changes of each part, the order of all by time, in that order the bytes that come or go,
            and for each time the last change of it.

    Example:
        >>> costs = [
        ...     jq.simulate.StageCost(
        ...         forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0, weight_bytes=100, activation_bytes=10
        ...     )
        ... ] * 2
        >>> memory = jq.simulate.play_pipeline(jq.schedules.OneFOneB(2), costs, num_microbatches=4).memory[0]
        >>> memory.peak_bytes, memory.peak_parts()["activations"], memory.at(0.5)
        (120, 20, 110)
    """

    times_s: np.ndarray
    size_bytes: np.ndarray
    changes: tuple[list[int], np.ndarray, np.ndarray, np.ndarray] = field(repr=False)

    @property
    def parts(self) -> Mapping[str, np.ndarray]:
        """The bytes of each part (weights, gradients, activations, working, transfers) from each time on.

        Added up when it is asked for: a search asks for the peaks of many actors, and for the parts of few.
        """
        counts, order, sizes, lasts = self.changes
        of_part = np.repeat(np.arange(len(PARTS)), counts)[order]
        return {part: np.cumsum(np.where(of_part == place, sizes, 0))[lasts] for place, part in enumerate(PARTS)}

    @property
    def peak_bytes(self) -> int:
        return int(self.size_bytes.max())

    @property
    def peak_s(self) -> float:
        """When the peak is first reached."""
        return float(self.times_s[self.size_bytes.argmax()])

    def peak_parts(self) -> dict[str, int]:
        """The bytes of each part when the peak is first reached."""
        place = self.size_bytes.argmax()
        return {part: int(sizes[place]) for part, sizes in self.parts.items()}

    def at(self, time_s: float) -> int:
        """Returns the bytes at a time; before 0, those of the beginning."""
        place = max(int(np.searchsorted(self.times_s, time_s, side="right")) - 1, 0)
        return int(self.size_bytes[place])


def add_up(lives: Mapping[str, Sequence[Lives]], *, always: Mapping[str, int]) -> ActorMemory:
    """Adds up the bytes of all values.

    Args:
        lives: for each part, when values of it come and go; at infinity what never goes.
        always: for each part, bytes that are there all the time.
    """
    when_s, amounts, counts = [], [], []
    for part in PARTS:
        moments, changes = [np.zeros(1)], [np.asarray([always.get(part, 0)], dtype=np.int64)]
        for starts_s, ends_s, sizes in lives.get(part, ()):
            # What takes no room changes nothing; what never goes has no end.
            comes, goes = sizes > 0, (sizes > 0) & np.isfinite(ends_s)
            moments += [starts_s[comes], ends_s[goes]]
            changes += [sizes[comes], -sizes[goes]]
        when_s += moments
        amounts += changes
        counts.append(sum(map(len, moments)))
    moments_s, sizes_bytes = np.concatenate(when_s), np.concatenate(amounts)
    order = np.argsort(moments_s, kind="stable")
    times_s = moments_s[order]
    lasts = np.flatnonzero(np.append(times_s[1:] != times_s[:-1], True))
    sizes = sizes_bytes[order]
    changes = counts, order, sizes, lasts
    return ActorMemory(times_s=times_s[lasts], size_bytes=np.cumsum(sizes)[lasts], changes=changes)
