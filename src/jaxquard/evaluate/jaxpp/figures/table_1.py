"""Table 1: training steps of JaxPP, FSDP, an SPMD pipeline and NeMo. Figure 10 draws the same numbers."""

from dataclasses import dataclass

from jaxquard.evaluate.jaxpp.paper import JaxppPaper, TableRow
from jaxquard.evaluate.jaxpp.setup.assumptions import Assumptions
from jaxquard.evaluate.jaxpp.setup.simulate_step import (
    SPMD,
    SimulatedStep,
    StepSetup,
    StepSimulator,
    transformer_of,
)

# The circular repeat of GPT-3 (section 5.1.3).
GPT3_REPEAT = 6
_GPT3 = "GPT3-175B"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """A row of Table 1 beside ours.

    Attributes:
        band_s: the shortest and the longest step over all assumptions.
    """

    paper: TableRow
    ours: SimulatedStep
    band_s: tuple[float, float]

    @property
    def error(self) -> float:
        """Our step time over the paper's, less 1."""
        return self.ours.step_time_s / self.paper.step_time_s - 1


def setup_of_row(row: TableRow, assumptions: Assumptions) -> StepSetup:
    """Returns the step of a row under some assumptions."""
    is_jaxpp = row.system == "JaxPP"
    tensor = assumptions.tensor if is_jaxpp and row.model == _GPT3 else row.tensor
    data = row.num_gpus // (tensor * row.pipeline)
    return StepSetup(
        system=row.system,
        model=row.model,
        num_gpus=row.num_gpus,
        tensor=tensor,
        pipeline=row.pipeline,
        num_chunks=_num_chunks(row, assumptions),
        shard_group=row.fsdp if row.fsdp > 1 else 0,
        microbatch=row.global_batch // (data * row.num_microbatches),
        global_batch=row.global_batch,
        task_s=assumptions.task_s if is_jaxpp else 0.0,
        has_synchronous_sends=row.system == SPMD,
    )


def _num_chunks(row: TableRow, assumptions: Assumptions) -> int:
    if row.pipeline == 1 or row.system == SPMD:
        return 1
    if row.system == "JaxPP" and row.model == _GPT3:
        return GPT3_REPEAT
    layers = transformer_of(row.model).num_layers // row.pipeline
    # The nearest number of layers a stage that divides an actor's.
    sizes = [size for size in range(1, layers + 1) if layers % size == 0]
    return layers // min(sizes, key=lambda size: abs(size - assumptions.layers_per_stage))


def redo_table(
    simulator: StepSimulator, paper: JaxppPaper, assumptions: tuple[Assumptions, ...]
) -> tuple[TableStep, ...]:
    """Simulates every row; ours are of the first assumptions."""
    found = []
    for row in paper.table_1:
        steps = [simulator.step(setup_of_row(row, one)) for one in assumptions]
        times_s = [step.step_time_s for step in steps]
        found.append(TableStep(paper=row, ours=steps[0], band_s=(min(times_s), max(times_s))))
    return tuple(found)
