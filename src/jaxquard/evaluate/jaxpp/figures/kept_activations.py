"""Section 2.2.1: activations that GPipe and 1F1B keep, by the number of microbatches."""

from dataclasses import dataclass

from jaxquard.schedules import GPipe, OneFOneB, Schedule
from jaxquard.simulate import StageCost, play_pipeline

_STAGES = 16
_COUNTS = (16, 32, 48, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptActivations:
    """Microbatches whose activations the fullest actor keeps."""

    num_microbatches: int
    gpipe: int
    one_f_one_b: int


def count_kept_activations() -> tuple[KeptActivations, ...]:
    """Plays both schedules on 16 stages of equal times."""
    return tuple(
        KeptActivations(
            num_microbatches=count, gpipe=_kept(GPipe(_STAGES), count), one_f_one_b=_kept(OneFOneB(_STAGES), count)
        )
        for count in _COUNTS
    )


def _kept(schedule: Schedule, num_microbatches: int) -> int:
    cost = StageCost(forward_s=1.0, input_gradient_s=1.0, weight_gradient_s=1.0, activation_bytes=1)
    return max(play_pipeline(schedule, [cost] * _STAGES, num_microbatches=num_microbatches).peaks_bytes)
