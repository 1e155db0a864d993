"""Timelines: the spans of tasks and transfers, measured or simulated."""

import enum
from dataclasses import dataclass


class Track(enum.Enum):
    """The two rows that an actor has in a timeline."""

    COMPUTE = "compute"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that ran on one actor; times count from the start of the step."""

    actor: int
    track: Track
    name: str
    start_s: float
    end_s: float
    size_bytes: int = 0

    @property
    def time_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All spans of a step, in order of their start."""

    num_actors: int
    spans: tuple[Span, ...]

    @property
    def time_s(self) -> float:
        """From the first start to the last end."""
        if not self.spans:
            return 0.0
        return max(span.end_s for span in self.spans) - min(span.start_s for span in self.spans)

    def busy_s(self, actor: int) -> float:
        """Seconds that an actor spent computing."""
        return sum(span.time_s for span in self.spans if span.actor == actor and span.track is Track.COMPUTE)

    @property
    def bubble(self) -> float:
        """The share of all actors' time in which they computed nothing."""
        if not self.spans or self.time_s == 0:
            return 0.0
        return 1 - sum(self.busy_s(actor) for actor in range(self.num_actors)) / (self.time_s * self.num_actors)
