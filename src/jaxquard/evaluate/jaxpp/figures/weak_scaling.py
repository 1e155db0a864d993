"""Figure 9: weak scaling of GPT-3 175B from 64 to 1,024 GPUs, JaxPP and FSDP."""

from dataclasses import dataclass, replace

from jaxquard.evaluate.jaxpp.figures.table_1 import setup_of_row
from jaxquard.evaluate.jaxpp.paper import JaxppPaper, TableRow
from jaxquard.evaluate.jaxpp.setup.assumptions import Assumptions
from jaxquard.evaluate.jaxpp.setup.simulate_step import SimulatedStep, StepSimulator

GPU_COUNTS = (64, 128, 256, 512, 1024)
SYSTEMS = ("JaxPP", "JAX FSDP")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakScalingPoint:
    """A point of Figure 9; `paper_tflops` where Table 1 has it."""

    system: str
    num_gpus: int
    ours: SimulatedStep
    paper_tflops: float | None


def scale_weakly(simulator: StepSimulator, paper: JaxppPaper, assumptions: Assumptions) -> tuple[WeakScalingPoint, ...]:
    """Simulates both systems with 2 sequences a GPU."""
    return tuple(_point(simulator, paper, assumptions, system, gpus) for system in SYSTEMS for gpus in GPU_COUNTS)


def _point(
    simulator: StepSimulator, paper: JaxppPaper, assumptions: Assumptions, system: str, num_gpus: int
) -> WeakScalingPoint:
    known = [row for row in paper.table_1 if (row.system, row.model) == (system, "GPT3-175B")]
    row = next((row for row in known if row.num_gpus == num_gpus), None)
    found = row or _smaller(known[0], num_gpus)
    ours = simulator.step(setup_of_row(found, assumptions))
    return WeakScalingPoint(
        system=system, num_gpus=num_gpus, ours=ours, paper_tflops=None if row is None else row.tflops
    )


def _smaller(row: TableRow, num_gpus: int) -> TableRow:
    """The step of a row on fewer GPUs, with as many sequences on each."""
    share = row.num_gpus // num_gpus
    return replace(
        row,
        num_gpus=num_gpus,
        global_batch=row.global_batch // share,
        data=max(1, row.data // share),
        fsdp=min(row.fsdp, num_gpus),
    )


def efficiency(points: tuple[WeakScalingPoint, ...], system: str, *, first: int, last: int = 1024) -> float:
    """Returns the throughput of a GPU at the last size over that at the first."""
    found = {point.num_gpus: point.ours.tflops for point in points if point.system == system}
    return found[last] / found[first]
