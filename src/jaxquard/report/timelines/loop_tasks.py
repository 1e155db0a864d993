"""The tasks of the loop in a measured timeline, without what stands before and after it.

A runtime runs phases that follow each other on one microbatch as one task, `3FB0`. `split_fused` takes such
a span apart, so that a measured timeline can be drawn beside its schedule: how the time divides among the
phases was not measured, so a forward gets one share, and so does each half of a backward.
"""

import re
from dataclasses import replace

from jaxquard.ir.task import Phase, Task
from jaxquard.ir.timeline import Span, Timeline, Track

_TASKS = re.compile(r"(\d+)([FBIW]+)(\d+)")


def tasks_of(span: Span) -> tuple[Task, ...]:
    """The tasks that a span of compute stands for: several if they are fused, none outside the loop."""
    match = _TASKS.fullmatch(span.name)
    if match is None or span.track is not Track.COMPUTE:
        return ()
    stage, phases, microbatch = match.groups()
    return tuple(Task(stage=int(stage), phase=Phase(phase), microbatch=int(microbatch)) for phase in phases)


def loop_part(timeline: Timeline) -> Timeline:
    """Only the tasks of the loop; times count from the first of them."""
    spans = [span for span in timeline.spans if tasks_of(span)]
    first_s = min((span.start_s for span in spans), default=0.0)
    moved = (replace(span, start_s=span.start_s - first_s, end_s=span.end_s - first_s) for span in spans)
    return Timeline(num_actors=timeline.num_actors, spans=tuple(moved))


def split_fused(timeline: Timeline) -> Timeline:
    """Every fused span as one span for each of its tasks."""
    spans = [part for span in timeline.spans for part in _split(span)]
    return Timeline(num_actors=timeline.num_actors, spans=tuple(spans))


def _split(span: Span) -> list[Span]:
    tasks = tasks_of(span)
    if len(tasks) < 2:
        return [span]
    shares = [2 if task.phase is Phase.BACKWARD else 1 for task in tasks]
    ends = [span.start_s + span.time_s * sum(shares[: count + 1]) / sum(shares) for count in range(len(tasks))]
    starts = [span.start_s, *ends[:-1]]
    return [
        replace(span, name=str(task), start_s=start_s, end_s=end_s)
        for task, start_s, end_s in zip(tasks, starts, ends, strict=True)
    ]
