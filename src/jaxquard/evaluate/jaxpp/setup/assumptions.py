"""Readings of what the paper leaves open: the band of our numbers is over all of them."""

import itertools
from dataclasses import dataclass

# JaxPP interprets its tasks at 264 to 310 us each (16-wide MLP on CPUs, where compute is nothing).
TASK_S = 300e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """One reading of the paper.

    Attributes:
        tensor: of JaxPP on GPT-3: 8 in Table 1, 4 in section 5.1.3, with twice the replicas and half the microbatch.
        layers_per_stage: where the circular repeat is not given (Llama2, NeMo); GPT-3's is 6, stages of two layers.
        task_s: that JaxPP's dispatch adds to each task; nothing if it all hides behind the task before.
    """

    tensor: int = 8
    layers_per_stage: int = 2
    task_s: float = TASK_S

    @property
    def label(self) -> str:
        layers = f"{self.layers_per_stage} layer{'' if self.layers_per_stage == 1 else 's'} a stage"
        return f"tensor {self.tensor}, {layers}, {self.task_s * 1e3:g} ms a task"


NOMINAL = Assumptions()


def all_assumptions() -> tuple[Assumptions, ...]:
    """Returns every combination, the one that our numbers are of first."""
    found = [
        Assumptions(tensor=tensor, layers_per_stage=layers, task_s=task_s)
        for tensor, layers, task_s in itertools.product((8, 4), (2, 1, 5), (TASK_S, 0.0))
    ]
    assert found[0] == NOMINAL, found[0]
    return tuple(found)
