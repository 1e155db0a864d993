"""Figures 7 and 8: circular repeats, microbatch sizes and numbers of microbatches, GPT-3 175B on 64 GPUs."""

from dataclasses import dataclass

from jaxquard.evaluate.jaxpp.figures.table_1 import GPT3_REPEAT
from jaxquard.evaluate.jaxpp.setup.assumptions import Assumptions
from jaxquard.evaluate.jaxpp.setup.simulate_step import SimulatedStep, StepSetup, StepSimulator

REPEATS = (1, 2, 3, 4, 6, 12)
MICROBATCHES = (1, 2, 4)
COUNTS = (8, 16, 32, 64, 128)
# The global batch of Figure 7.
_BATCH = 128
_PIPELINE, _GPUS = 8, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeoffPoint:
    """A point of Figure 7 or 8.

    Attributes:
        microbatch: sequences of one.
        num_microbatches: of a replica.
    """

    repeat: int
    microbatch: int
    num_microbatches: int
    ours: SimulatedStep


def _point(
    simulator: StepSimulator, assumptions: Assumptions, *, repeat: int, microbatch: int, count: int
) -> TradeoffPoint:
    data = _GPUS // (_PIPELINE * assumptions.tensor)
    setup = StepSetup(
        system="JaxPP",
        model="GPT3-175B",
        num_gpus=_GPUS,
        tensor=assumptions.tensor,
        pipeline=_PIPELINE,
        num_chunks=repeat,
        microbatch=microbatch,
        global_batch=count * microbatch * data,
        task_s=assumptions.task_s,
    )
    return TradeoffPoint(repeat=repeat, microbatch=microbatch, num_microbatches=count, ours=simulator.step(setup))


def circular_repeats(simulator: StepSimulator, assumptions: Assumptions) -> tuple[TradeoffPoint, ...]:
    """Figure 7: a global batch of 128 sequences, in microbatches of each size, with each circular repeat."""
    data = _GPUS // (_PIPELINE * assumptions.tensor)
    return tuple(
        _point(simulator, assumptions, repeat=repeat, microbatch=size, count=_BATCH // (size * data))
        for size in MICROBATCHES
        for repeat in REPEATS
    )


def microbatch_counts(simulator: StepSimulator, assumptions: Assumptions) -> tuple[TradeoffPoint, ...]:
    """Figure 8: a circular repeat of 6, with ever more microbatches of each size."""
    return tuple(
        _point(simulator, assumptions, repeat=GPT3_REPEAT, microbatch=size, count=count)
        for size in MICROBATCHES
        for count in COUNTS
    )
