"""The event engine: jobs with dependencies on resources that do one job at a time, and memory that is shared.

A job starts when all jobs that it comes after have ended and its resource is free; of several that are ready the one
listed first goes. Running jobs of a chip share its memory's bandwidth, so that a job slows down when others begin and
speeds up when they end. Without a bandwidth every job takes its own time.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxquard.ir.timeline import Span, Timeline, Track


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A piece of work that keeps one resource of one chip busy.

    Attributes:
        resource: of the chip; it does one job at a time, in the order in which they are listed among those ready.
        time_s: the seconds that it takes with all the memory bandwidth that it asks for.
        memory_bytes: the bytes that it reads and writes, evenly over its time.
        after: the positions of the jobs that must have ended.
        size_bytes: the bytes that it sends, for the timeline.

    Example:
        >>> jq.simulate.Job(name="multiply", resource="compute", time_s=1.0, after=(0,)).chip
        0
    """

    name: str
    resource: str
    time_s: float
    after: tuple[int, ...] = ()
    chip: int = 0
    track: Track = Track.COMPUTE
    memory_bytes: float = 0.0
    size_bytes: int = 0


def share_memory(demands_bytes_per_s: Sequence[float], bandwidth_bytes_per_s: float) -> list[float]:
    """Returns the speed of each job, 1 being full speed, under processor sharing (max-min fairness).

    All get equal shares; a job that asks for less than its share leaves the rest to the others.

    Example:
        >>> jq.simulate.share_memory([1.0, 4.0], bandwidth_bytes_per_s=3.0)
        [1.0, 0.5]
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


# Ends that are so near, relative to the time, are one moment: sums of the same times in another order.
_SAME_MOMENT = 1e-13


def play_jobs(jobs: Sequence[Job], *, memory_bandwidth_bytes_per_s: float = math.inf) -> Timeline:
    """Plays all jobs into a timeline; the spans are in order of their start.

    Example:
        >>> move = jq.simulate.Job(name="gather", resource="link", time_s=2.0)
        >>> product = jq.simulate.Job(name="multiply", resource="compute", time_s=1.0, after=(0,))
        >>> [(span.name, span.start_s) for span in jq.simulate.play_jobs([move, product]).spans]
        [('gather', 0.0), ('multiply', 2.0)]
    """
    play = _Play(jobs=jobs, bandwidth=memory_bandwidth_bytes_per_s)
    play.run()
    spans = [
        Span(
            actor=job.chip,
            track=job.track,
            name=job.name,
            start_s=play.starts_s[position],
            end_s=play.ends_s[position],
            size_bytes=job.size_bytes,
        )
        for position, job in enumerate(jobs)
    ]
    spans.sort(key=lambda span: (span.start_s, span.actor))
    return Timeline(num_actors=1 + max((job.chip for job in jobs), default=0), spans=tuple(spans))


@dataclass(slots=True)
class _Chip:
    """The running jobs of a chip: the seconds left of each, and its speed.

    Attributes:
        version: counts the changes, so that ends foreseen before one are known to be stale.
    """

    running: dict[int, float] = field(default_factory=dict)
    speeds: dict[int, float] = field(default_factory=dict)
    seen_s: float = 0.0
    version: int = 0


@dataclass(slots=True, kw_only=True)
class _Play:
    jobs: Sequence[Job]
    bandwidth: float
    starts_s: dict[int, float] = field(default_factory=dict)
    ends_s: dict[int, float] = field(default_factory=dict)
    chips: dict[int, _Chip] = field(default_factory=lambda: defaultdict(_Chip))
    ready: dict[tuple[int, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    busy: set[tuple[int, str]] = field(default_factory=set)
    events: list[tuple[float, int, int, int]] = field(default_factory=list)

    def run(self) -> None:
        """Plays until all jobs have ended."""
        waits = [len(set(job.after)) for job in self.jobs]
        followers: dict[int, list[int]] = defaultdict(list)
        for position, job in enumerate(self.jobs):
            assert all(0 <= before < len(self.jobs) for before in job.after), job
            for before in set(job.after):
                followers[before].append(position)
        self.start([position for position, count in enumerate(waits) if count == 0], 0.0)
        while self.events:
            now_s, ended = self.next_ends()
            free = []
            for position in ended:
                self.end(position, now_s)
                for follower in followers[position]:
                    waits[follower] -= 1
                    if waits[follower] == 0:
                        free.append(follower)
            self.start(free, now_s, ended=ended)
        assert len(self.ends_s) == len(self.jobs), "jobs wait for each other in a circle"

    def next_ends(self) -> tuple[float, list[int]]:
        """Returns the next moment at which jobs end, and all that end then, so that the order of chips is no matter."""
        now_s, ended = self.events[0][0], []
        while self.events and self.events[0][0] <= now_s * (1 + _SAME_MOMENT):
            _, position, chip, version = heapq.heappop(self.events)
            if version == self.chips[chip].version and position in self.chips[chip].running:
                ended.append(position)
        return now_s, ended

    def start(self, positions: list[int], now_s: float, *, ended: Sequence[int] = ()) -> None:
        """Queues jobs that are ready, and starts what can be on the resources that they or ended jobs concern."""
        for position in positions:
            heapq.heappush(self.ready[self._place(position)], position)
        changed = {self.jobs[position].chip for position in ended}
        for place in {self._place(position) for position in (*positions, *ended)}:
            if place not in self.busy and self.ready[place]:
                position = heapq.heappop(self.ready[place])
                self.busy.add(place)
                self.advance(place[0], now_s)
                self.chips[place[0]].running[position] = self.jobs[position].time_s
                self.starts_s[position] = now_s
                changed.add(place[0])
        for chip in changed:
            self.foresee(chip, now_s)

    def end(self, position: int, now_s: float) -> None:
        """Takes a job off its resource."""
        job = self.jobs[position]
        self.advance(job.chip, now_s)
        del self.chips[job.chip].running[position]
        self.busy.remove(self._place(position))
        self.ends_s[position] = now_s

    def advance(self, chip: int, now_s: float) -> None:
        """Takes the time that has passed off what is left of a chip's jobs."""
        state = self.chips[chip]
        passed_s = now_s - state.seen_s
        for position in state.running:
            state.running[position] -= passed_s * state.speeds.get(position, 1.0)
        state.seen_s = now_s

    def foresee(self, chip: int, now_s: float) -> None:
        """Shares the memory among a chip's jobs and foresees when each ends."""
        state = self.chips[chip]
        state.version += 1
        positions = list(state.running)
        demands = [self._demand_bytes_per_s(position) for position in positions]
        speeds = share_memory(demands, self.bandwidth)
        state.speeds = dict(zip(positions, speeds, strict=True))
        for position, speed in zip(positions, speeds, strict=True):
            left_s = max(0.0, state.running[position])
            heapq.heappush(self.events, (now_s + left_s / speed, position, chip, state.version))

    def _place(self, position: int) -> tuple[int, str]:
        return self.jobs[position].chip, self.jobs[position].resource

    def _demand_bytes_per_s(self, position: int) -> float:
        job = self.jobs[position]
        return job.memory_bytes / job.time_s if job.time_s else 0.0
