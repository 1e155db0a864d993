"""The result of playing a pipeline: its times, its bubbles, its memory, and a timeline to draw.

Times are kept as arrays; spans are made when a timeline is asked for, since a long schedule has a hundred thousand.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.simulate.actor_memory import ActorMemory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlayedTransfers:
    """All transfers that take time.

    Attributes:
        tasks: the position of the task that made the value; -1 for what no task made.
    """

    tasks: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    starts_s: np.ndarray
    ends_s: np.ndarray
    sizes_bytes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelinePlayback:
    """A played pipeline. The loop lasts from the first start of a task to the last end of one.

    Attributes:
        bounds: where the tasks of each actor begin in the arrays, and at last where they end.
        starts_s: of all tasks, one actor after the other, each in its order.
        ends_s: the same of their ends.
        step_time_s: from 0 to the end of all, before and after the loop included.
        outside: spans of what actors do before and after the loop.
        find_transfers: returns all transfers that take time.
        find_memory: returns the memory of each actor; made when it is asked for.

    Example:
        >>> cost = jq.simulate.StageCost(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0, update_s=0.5)
        >>> playback = jq.simulate.play_pipeline(jq.schedules.GPipe(2), [cost] * 2, num_microbatches=2)
        >>> playback.step_time_s, playback.loop_time_s, playback.busy_s, playback.actor_bubbles
        (9.5, 9.0, (6.0, 6.0), (0.33333333333333337, 0.33333333333333337))
        >>> [span.name for span in playback.timeline.spans if span.actor == 1]
        ['1F0', '1F1', '1B0', '1B1', 'update']
    """

    bounds: tuple[int, ...]
    starts_s: np.ndarray
    ends_s: np.ndarray
    task_name: Callable[[int], str]
    outside: tuple[Span, ...]
    step_time_s: float
    find_transfers: Callable[[], PlayedTransfers] = field(repr=False)
    find_memory: Callable[[], tuple[ActorMemory, ...]] = field(repr=False)

    @property
    def num_actors(self) -> int:
        return len(self.bounds) - 1

    @property
    def transfers(self) -> PlayedTransfers:
        """All transfers that take time."""
        return self.find_transfers()

    @property
    def memory(self) -> tuple[ActorMemory, ...]:
        """The memory of each actor, over time."""
        return self.find_memory()

    @property
    def loop_time_s(self) -> float:
        """From the first start of a task to the last end of one."""
        return float(self.ends_s.max() - self.starts_s.min()) if len(self.starts_s) else 0.0

    @property
    def busy_s(self) -> tuple[float, ...]:
        """For each actor, the seconds in which it runs tasks."""
        times_s = self.ends_s - self.starts_s
        return tuple(float(times_s[start:end].sum()) for start, end in self._slices)

    @property
    def bubble(self) -> float:
        """The share of the loop in which actors run no task."""
        time_s = self.loop_time_s * self.num_actors
        return 1 - sum(self.busy_s) / time_s if time_s else 0.0

    @property
    def actor_bubbles(self) -> tuple[float, ...]:
        """For each actor, the share of the loop in which it runs no task."""
        time_s = self.loop_time_s
        return tuple(1 - busy_s / time_s if time_s else 0.0 for busy_s in self.busy_s)

    @property
    def peaks_bytes(self) -> tuple[int, ...]:
        """For each actor, the peak of its memory."""
        return tuple(memory.peak_bytes for memory in self.memory)

    @property
    def timeline(self) -> Timeline:
        """A span for each task, each transfer that takes time, and what is outside the loop; made anew each time."""
        spans = [*self.outside, *self._task_spans(), *self._transfer_spans()]
        spans.sort(key=lambda span: (span.start_s, span.actor, span.end_s))
        return Timeline(num_actors=self.num_actors, spans=tuple(spans))

    @property
    def _slices(self) -> list[tuple[int, int]]:
        return list(zip(self.bounds, self.bounds[1:], strict=False))

    def _task_spans(self) -> list[Span]:
        starts_s, ends_s = self.starts_s.tolist(), self.ends_s.tolist()
        return [
            Span(
                actor=actor,
                track=Track.COMPUTE,
                name=self.task_name(position),
                start_s=starts_s[position],
                end_s=ends_s[position],
            )
            for actor, (start, end) in enumerate(self._slices)
            for position in range(start, end)
        ]

    def _transfer_spans(self) -> list[Span]:
        moved = self.transfers
        columns = (moved.sources, moved.tasks, moved.targets, moved.starts_s, moved.ends_s, moved.sizes_bytes)
        return [
            Span(
                actor=source,
                track=Track.TRANSFER,
                name=f"{self.task_name(task) if task >= 0 else 'input'} to actor {target}",
                start_s=start_s,
                end_s=end_s,
                size_bytes=size_bytes,
            )
            for source, task, target, start_s, end_s, size_bytes in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
