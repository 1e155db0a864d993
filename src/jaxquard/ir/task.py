"""One phase of one stage on one microbatch, written as PyTorch's schedule files write it.

`0F3` is stage 0, forward, microbatch 3. `B` is a whole backward, `I` its input-gradient
part and `W` its weight-gradient part.
"""

import enum
import re
from dataclasses import dataclass

from jaxquard.errors import ScheduleError

_TASK = re.compile(r"(\d+)([FBIW])(\d+)")


class Phase(enum.Enum):
    """The part of its stage that a task computes."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"

    def __repr__(self) -> str:
        return f"Phase.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One phase of one stage on one microbatch."""

    stage: int
    phase: Phase
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.phase.value}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Task":
        """Reads `0F3`.

        Raises:
            ScheduleError: if the text is not a task.
        """
        match = _TASK.fullmatch(text.strip())
        if match is None:
            raise ScheduleError(
                f"{text!r} is not a task. Write stage, phase and microbatch, like 0F3; the phase "
                "is F (forward), B (backward), I (input gradient) or W (weight gradient)."
            )
        stage, phase, microbatch = match.groups()
        return cls(stage=int(stage), phase=Phase(phase), microbatch=int(microbatch))
