"""Table 2: MeshSlice with every layer Y-stationary, and with the dataflows of phase 1, on 256 chips."""

from dataclasses import dataclass

from jaxquard.cluster import Cluster
from jaxquard.evaluate.meshslice.setup.models import MODELS
from jaxquard.evaluate.meshslice.setup.tuner import Tuner
from jaxquard.gemm.problem import Stationary

NUM_CHIPS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowRow:
    """Utilisations of one model, each at its best mesh."""

    model: str
    unoptimised: float
    optimised: float

    @property
    def gain(self) -> float:
        return self.optimised / self.unoptimised - 1


def dataflow_table(tuner: Tuner, cluster: Cluster) -> tuple[DataflowRow, ...]:
    """Returns both rows of Table 2."""
    rows = []
    for model in MODELS:
        problem = model.problem(NUM_CHIPS // 2)
        plain = tuner.tune(problem, cluster, NUM_CHIPS, stationary=Stationary.Y).best
        chosen = tuner.tune(problem, cluster, NUM_CHIPS).best
        rows.append(DataflowRow(model=model.key, unoptimised=plain.utilisation, optimised=chosen.utilisation))
    return tuple(rows)
