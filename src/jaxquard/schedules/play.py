"""Plays rows with given task times: when each task runs, how long actors wait, what they keep.

The actors run their rows in order; a task starts when its actor is free and the values it needs
have arrived. A value costs `transfer_s` to reach another actor and nothing to stay; transfers do
not hinder compute or each other. So a task's start follows from those before it, and one pass
over a run order times all tasks.

Two bubbles are reported. One is of a step alone, from the first start to the last end. The other is
of steps that follow each other without a barrier, as the zero-bubble papers count: there an actor
begins its next step as soon as it is done with this one, so a step costs the longest time from
an actor's own first start to its own last end (`period_s`). The two differ where the actors'
times form a parallelogram.
"""

from dataclasses import dataclass

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Phase, Task
from jaxquard.ir.timeline import Span, Timeline, Track
from jaxquard.schedules.dependences import Value, count_stages, made_by, needs_of
from jaxquard.schedules.run_order import run_order
from jaxquard.schedules.schedule import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """Durations of the phases of a stage; a whole backward takes both gradients' times.

    Example:
        >>> times = jq.schedules.TaskTimes(forward_s=2.0, transfer_s=0.5)
        >>> rows = jq.schedules.OneFOneB(2).rows(num_microbatches=4)
        >>> jq.schedules.play_rows(rows, times).makespan_s
        22.0
    """

    forward_s: float = 1.0
    input_gradient_s: float = 1.0
    weight_gradient_s: float = 1.0
    transfer_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ScheduleError(f"TaskTimes needs {name} to be 0 or more, but it is {value}. Give a time.")

    def time_s(self, phase: Phase) -> float:
        """Returns the seconds that a task of the phase runs."""
        return {
            Phase.FORWARD: self.forward_s,
            Phase.BACKWARD: self.input_gradient_s + self.weight_gradient_s,
            Phase.INPUT_GRADIENT: self.input_gradient_s,
            Phase.WEIGHT_GRADIENT: self.weight_gradient_s,
        }[phase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Playback:
    """The timeline of a simulated schedule, with its bubble and activations.

    Attributes:
        timeline: a span for each task, and one for each transfer that takes time.
        makespan_s: from the first start to the last end.
        bubble: the share of the actors' time in which they compute nothing, in a step alone.
        period_s: time of a step when steps follow each other without a barrier.
        period_bubble: the share of the busiest actor's `period_s` in which it computes nothing.
        peak_activations: for each actor, how many activations of a stage it keeps at most: F
            done, B or W not done. Without any backward none is kept.

    Example:
        >>> playback = jq.schedules.play_rows(jq.schedules.OneFOneB(4).rows(num_microbatches=8))
        >>> playback.makespan_s, round(playback.bubble, 3), playback.peak_activations
        (33.0, 0.273, (4, 3, 2, 1))
    """

    timeline: Timeline
    makespan_s: float
    bubble: float
    period_s: float
    period_bubble: float
    peak_activations: tuple[int, ...]


def play_rows(rows: Rows, times: TaskTimes | None = None) -> Playback:
    """Simulates rows of tasks; by default every phase takes 1 s and transfers take no time.

    Raises:
        ScheduleError: if the rows lock; use `check_rows` for rows of unknown origin.

    Example:
        >>> rows = jq.schedules.ZeroBubbleH1(4).rows(num_microbatches=8)
        >>> round(jq.schedules.play_rows(rows).bubble, 3)
        0.111
    """
    spans = _time_tasks(rows, times or TaskTimes())
    compute: list[list[Span]] = [[] for _ in rows]
    for span in spans:
        if span.track is Track.COMPUTE:
            compute[span.actor].append(span)
    busy_s = [sum(span.time_s for span in row) for row in compute]
    periods_s = [max(s.end_s for s in row) - min(s.start_s for s in row) if row else 0.0 for row in compute]
    timeline = Timeline(num_actors=len(rows), spans=spans)
    makespan_s, period_s = timeline.time_s, max(periods_s, default=0.0)
    return Playback(
        timeline=timeline,
        makespan_s=makespan_s,
        bubble=1 - sum(busy_s) / (makespan_s * len(rows)) if makespan_s else 0.0,
        period_s=period_s,
        period_bubble=1 - max(busy_s) / period_s if period_s else 0.0,
        peak_activations=_peak_activations(rows),
    )


def _time_tasks(rows: Rows, times: TaskTimes) -> tuple[Span, ...]:
    num_stages = count_stages(rows)
    time_s = {phase: times.time_s(phase) for phase in Phase}
    free_s = [0.0] * len(rows)
    made: dict[Value, tuple[int, Task, float]] = {}
    spans = []
    for actor, task in run_order(rows):
        start_s = free_s[actor]
        for value in needs_of(task, num_stages=num_stages):
            source, producer, end_s = made[value]
            if source != actor and times.transfer_s:
                spans.append(_transfer(source, producer, actor, end_s, end_s + times.transfer_s))
                end_s += times.transfer_s
            start_s = max(start_s, end_s)
        free_s[actor] = start_s + time_s[task.phase]
        made[made_by(task)] = actor, task, free_s[actor]
        spans.append(Span(actor=actor, track=Track.COMPUTE, name=str(task), start_s=start_s, end_s=free_s[actor]))
    return tuple(sorted(spans, key=lambda span: (span.start_s, span.actor, span.end_s)))


def _transfer(source: int, task: Task, target: int, start_s: float, end_s: float) -> Span:
    name = f"{task} to actor {target}"
    return Span(actor=source, track=Track.TRANSFER, name=name, start_s=start_s, end_s=end_s)


def _peak_activations(rows: Rows) -> tuple[int, ...]:
    if all(task.phase is Phase.FORWARD for row in rows for task in row):
        return (0,) * len(rows)
    change = {Phase.FORWARD: 1, Phase.BACKWARD: -1, Phase.INPUT_GRADIENT: 0, Phase.WEIGHT_GRADIENT: -1}
    peaks = []
    for row in rows:
        kept = peak = 0
        for task in row:
            kept += change[task.phase]
            peak = max(peak, kept)
        peaks.append(peak)
    return tuple(peaks)
