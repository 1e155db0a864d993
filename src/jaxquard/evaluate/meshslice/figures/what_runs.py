"""Beyond the paper: 256 chips of TPU v4 at the prices of what runs, by the exact autotuner.

The paper's model hides every transfer, and has no cost for thin slices, sums and copies. Here each algorithm is priced
as the TPU's compiler schedules it (design decision 10). What remains open is the launch of a permute: the authors'
constant is 100 us an operation, which may hold for each permute of a chain or once for the chain; and whether a permute
uses a link one way or both.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxquard.cluster import Cluster, load_cluster
from jaxquard.evaluate.meshslice.setup.models import MODELS, PaperModel
from jaxquard.gemm.autotune.autotune import autotune
from jaxquard.gemm.autotune.table import TuningRow

NUM_CHIPS = 256
ALGORITHMS = ("meshslice", "collective", "wang")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPoint:
    """One algorithm at its best plan under one assumption about permutes."""

    model: str
    algorithm: str
    launches_each_permute: bool
    is_bidirectional: bool
    mesh_shape: tuple[int, int]
    time_s: float
    utilisation: float


def what_runs(*, models: Sequence[PaperModel] = MODELS) -> tuple[RunningPoint, ...]:
    """Returns the time of one block for each model, algorithm and assumption."""
    rows: dict[tuple[str, str, bool, bool], TuningRow] = {}
    points = []
    for model, each, both, algorithm in itertools.product(models, (True, False), (True, False), ALGORITHMS):
        # Collective has no permutes, and MeshSlice's go one way at a time.
        question = (model.key, algorithm, each or algorithm == "collective", both or algorithm != "wang")
        if question not in rows:
            cluster = _assume(launches_each_permute=question[2], is_bidirectional=question[3])
            problem = model.problem(NUM_CHIPS // 2)
            rows[question] = autotune(problem, cluster, NUM_CHIPS, algorithm, memory_limit_bytes=math.inf).best
        best = rows[question]
        points.append(
            RunningPoint(
                model=model.key,
                algorithm=algorithm,
                launches_each_permute=each,
                is_bidirectional=both,
                mesh_shape=best.mesh_shape,
                time_s=best.time_s,
                utilisation=best.utilisation,
            )
        )
    return tuple(points)


def _assume(*, launches_each_permute: bool, is_bidirectional: bool) -> Cluster:
    cluster = load_cluster("tpu-v4")
    network = replace(cluster.network, launches_each_permute=launches_each_permute, is_bidirectional=is_bidirectional)
    return replace(cluster, network=network)


def fastest(points: Sequence[RunningPoint]) -> dict[tuple[str, bool, bool], str]:
    """Returns the fastest algorithm for each model and assumption."""
    found: dict[tuple[str, bool, bool], RunningPoint] = {}
    for point in points:
        key = (point.model, point.launches_each_permute, point.is_bidirectional)
        if key not in found or point.time_s < found[key].time_s:
            found[key] = point
    return {key: point.algorithm for key, point in found.items()}
