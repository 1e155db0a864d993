"""The costs of stages from a measured timeline: the median of each phase of each stage."""

import statistics
from collections import defaultdict

from jaxquard.errors import ScheduleError
from jaxquard.ir.task import Phase
from jaxquard.ir.timeline import Timeline, Track
from jaxquard.report.timelines.loop_tasks import split_fused, tasks_of
from jaxquard.simulate.stage_cost import StageCost


def measured_costs(timeline: Timeline, num_stages: int) -> tuple[StageCost, ...]:
    """Returns the median seconds of each stage's phases; a whole backward counts half for each gradient.

    Raises:
        ScheduleError: if the timeline has no task of a stage.
    """
    found: defaultdict[tuple[int, Phase], list[float]] = defaultdict(list)
    for span in split_fused(timeline).spans:
        for task in tasks_of(span):
            found[task.stage, task.phase].append(span.time_s)
    missing = [stage for stage in range(num_stages) if (stage, Phase.FORWARD) not in found]
    if missing:
        raise ScheduleError(
            f"the trace has no task of stage {missing[0]}, but the schedule has {num_stages} stages. Give the trace of "
            "a step with as many stages."
        )
    return tuple(_stage_cost(found, stage) for stage in range(num_stages))


def _stage_cost(found: dict[tuple[int, Phase], list[float]], stage: int) -> StageCost:
    def median_s(phase: Phase) -> float:
        return statistics.median(found.get((stage, phase), [0.0]))

    backward_s = median_s(Phase.BACKWARD)
    return StageCost(
        forward_s=median_s(Phase.FORWARD),
        input_gradient_s=median_s(Phase.INPUT_GRADIENT) or backward_s / 2,
        weight_gradient_s=median_s(Phase.WEIGHT_GRADIENT) or backward_s / 2,
    )


def measured_transfer_s(timeline: Timeline) -> float:
    """Returns the median seconds of a transfer; 0 if there is none."""
    return statistics.median([span.time_s for span in timeline.spans if span.track is Track.TRANSFER] or [0.0])
