"""Jobs: what the simulator plays."""

from dataclasses import dataclass

from jaxquard.ir.timeline import Track


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something that keeps one resource of one chip busy.

    Attributes:
        resource: of the chip; it does one job at a time, in the order in which they are listed among those ready.
        time_s: how long it takes if it gets all the memory bandwidth that it asks for.
        memory_bytes: what it reads and writes, evenly over its time.
        after: the positions of the jobs that must have ended.
        size_bytes: what it sends, for the timeline.
    """

    name: str
    resource: str
    time_s: float
    after: tuple[int, ...] = ()
    chip: int = 0
    track: Track = Track.COMPUTE
    memory_bytes: float = 0.0
    size_bytes: int = 0
