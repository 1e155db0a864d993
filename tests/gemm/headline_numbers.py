"""The utilisations of MeshSlice's Figure 9 by the autotuner alone, without what `evaluate` does with them."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxquard.cluster import Cluster
from jaxquard.gemm.algorithms.registry import ALGORITHMS, mesh_shapes
from jaxquard.gemm.autotune.models import gpt3, megatron_nlg
from jaxquard.gemm.autotune.table import TuningRow
from jaxquard.gemm.problem import GemmProblem
from tests.gemm.tune_by_paper import SIMULATION, tune_by_paper

_MODELS: dict[str, Callable[..., GemmProblem]] = {"gpt3": gpt3, "megatron_nlg": megatron_nlg}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One point of Figure 9."""

    model: str
    algorithm: str
    num_chips: int
    row: TuningRow

    @property
    def utilisation(self) -> float:
        return self.row.utilisation


def headline_numbers(
    cluster: str | Cluster = SIMULATION,
    *,
    chips: Sequence[int] = (16, 32, 64, 128, 256),
    algorithms: Sequence[str] = tuple(ALGORITHMS),
) -> tuple[Headline, ...]:
    """One block of each model, batch half the chips (section 5.1.1), whatever memory it needs.

    Cannon is left out where the chips make no square.
    """
    found = []
    for (model, problem), num_chips in itertools.product(_MODELS.items(), chips):
        question = problem(batch=num_chips // 2, num_blocks=1)
        tuned = tune_by_paper(question, cluster, num_chips, memory_limit_bytes=math.inf)
        for algorithm in algorithms:
            if mesh_shapes(algorithm, num_chips):
                tuning = tune_by_paper(
                    question, cluster, num_chips, algorithm, memory_limit_bytes=math.inf, unroll_as=tuned
                )
                found.append(Headline(model=model, algorithm=algorithm, num_chips=num_chips, row=tuning.best))
    return tuple(found)
