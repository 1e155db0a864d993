"""A schedule as a pattern: phases of stages in order, with the microbatches left out.

In every schedule that jaxquard makes, each phase of a stage takes the microbatches in order
0, 1, 2, ... So a schedule only has to say the order of its phases, and the numbers follow. It
also means that gradients are added up in the same order whichever schedule runs, so that
changing the schedule does not change the result in its last bits.

To add a schedule, write its pattern in this folder and name it in `registry.py`.
"""

import abc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxquard.ir.task import Phase, Task
from jaxquard.schedules.schedule import Rows, Schedule, require_count

StagePhase = tuple[int, Phase]


@dataclass(frozen=True, slots=True, repr=False)
class PatternSchedule(Schedule, abc.ABC):
    """A schedule that is defined by the order of each actor's steps.

    Example:
        >>> from jaxquard.ir.task import Phase
        >>> class ForwardsFirst(jq.schedules.PatternSchedule):
        ...     name = "forwards-first"
        ...
        ...     def pattern(self, actor, num_microbatches):
        ...         phases = [Phase.FORWARD] * num_microbatches + [Phase.BACKWARD] * num_microbatches
        ...         return [(actor, phase) for phase in phases]
        >>> print(*ForwardsFirst(2).rows(num_microbatches=2)[0])
        0F0 0F1 0B0 0B1
    """

    @abc.abstractmethod
    def pattern(self, actor: int, num_microbatches: int) -> Iterable[StagePhase]:
        """The order of one actor's steps, for a number of microbatches that `round_up` gives."""

    def round_up(self, num_microbatches: int) -> int:
        """Returns the smallest number of microbatches, not below the one given, that `pattern` is defined for."""
        return num_microbatches

    def rows(self, num_microbatches: int) -> Rows:
        """The order of the tasks: a row for each actor.

        Args:
            num_microbatches: any number from 1 up, also fewer than there are stages. A pattern
                that is defined only for some numbers is made for the next of them, and the
                microbatches too many are taken out: the order of the others stays valid.
        """
        require_count(self, num_microbatches=num_microbatches)
        defined_for = self.round_up(num_microbatches)
        return tuple(
            tuple(
                task
                for task in number_microbatches(self.pattern(actor, defined_for))
                if task.microbatch < num_microbatches
            )
            for actor in range(self.num_actors)
        )


def number_microbatches(steps: Iterable[StagePhase]) -> Iterator[Task]:
    """Gives each step the next microbatch of its stage and phase; `B` counts as `I` and as `W`."""
    next_microbatch = Counter[StagePhase]()
    for stage, phase in steps:
        whole = phase is Phase.BACKWARD
        counted = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT) if whole else (phase,)
        yield Task(stage=stage, phase=phase, microbatch=next_microbatch[stage, counted[0]])
        for part in counted:
            next_microbatch[stage, part] += 1


def one_forward_one_backward(stage: int, num_microbatches: int, *, warm_up: int) -> list[StagePhase]:
    """`warm_up` forwards, then a backward and a forward in turn, then the backwards that are left."""
    warm_up = min(warm_up, num_microbatches)
    forward, backward = (stage, Phase.FORWARD), (stage, Phase.BACKWARD)
    turns = [backward, forward] * (num_microbatches - warm_up)
    return [forward] * warm_up + turns + [backward] * warm_up


def delayed_weight_gradients(stage: int, num_microbatches: int, *, warm_up: int, delay: int) -> list[StagePhase]:
    """As `one_forward_one_backward`, but a `W` runs `delay` microbatches after its `I`."""
    steps = [(stage, Phase.FORWARD)] * min(warm_up, num_microbatches)
    for microbatch in range(num_microbatches):
        steps.append((stage, Phase.INPUT_GRADIENT))
        if microbatch >= delay:
            steps.append((stage, Phase.WEIGHT_GRADIENT))
        if warm_up + microbatch < num_microbatches:
            steps.append((stage, Phase.FORWARD))
    return steps + [(stage, Phase.WEIGHT_GRADIENT)] * min(delay, num_microbatches)
