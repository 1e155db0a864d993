"""Figures 9 and 12: FLOP utilisation of the FC layers by every algorithm, as chips are added.

Weak scaling: a batch of half the chips (5.1.1). Strong scaling: a batch of 32 whatever the chips, without FSDP, which
needs a sequence for each chip (5.1.3). Each algorithm has its own best mesh; SUMMA, Wang and the 1D baselines are
unrolled to MeshSlice's tuned slice counts (4.2), and the 1D ones use Wang's overlap on a ring of two links (4.3).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxquard.cluster import Cluster
from jaxquard.evaluate.meshslice.setup.models import MODELS, PaperModel
from jaxquard.evaluate.meshslice.setup.tuner import Tuner
from jaxquard.gemm.algorithms.registry import ALGORITHMS, mesh_shapes
from jaxquard.gemm.autotune.table import TuningRow

PAPER_CHIPS = (16, 32, 64, 128, 256)
BEYOND_CHIPS = (1024, 4096)
STRONG_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """One bar. Times are of one block's FC layers, forward and backward; all communication counts, hidden or not."""

    model: str
    algorithm: str
    num_chips: int
    mesh_shape: tuple[int, int]
    utilisation: float
    time_s: float
    compute_s: float
    launch_s: float
    transfer_s: float
    sync_s: float


def weak_scaling(
    tuner: Tuner, cluster: Cluster, *, chips: Sequence[int] = PAPER_CHIPS, algorithms: Sequence[str] = tuple(ALGORITHMS)
) -> tuple[ScalingPoint, ...]:
    """Figure 9, and beyond it; Cannon only where the chips make a square."""
    return tuple(
        scaling_point(tuner, cluster, model, algorithm, num_chips, batch=num_chips // 2)
        for model, num_chips, algorithm in _bars(chips, algorithms)
    )


def strong_scaling(tuner: Tuner, cluster: Cluster) -> tuple[ScalingPoint, ...]:
    """Returns the points of Figure 12."""
    algorithms = [algorithm for algorithm in ALGORITHMS if algorithm != "fsdp"]
    return tuple(
        scaling_point(tuner, cluster, model, algorithm, num_chips, batch=STRONG_BATCH)
        for model, num_chips, algorithm in _bars(PAPER_CHIPS, algorithms)
    )


def scaling_point(
    tuner: Tuner, cluster: Cluster, model: PaperModel, algorithm: str, num_chips: int, *, batch: int
) -> ScalingPoint:
    """One bar of either figure."""
    best: TuningRow = tuner.tune(model.problem(batch), cluster, num_chips, algorithm).best
    return ScalingPoint(
        model=model.key,
        algorithm=algorithm,
        num_chips=num_chips,
        mesh_shape=best.mesh_shape,
        utilisation=best.utilisation,
        time_s=best.cost.time_s,
        compute_s=best.cost.compute_s,
        launch_s=best.cost.launch_s,
        transfer_s=best.cost.transfer_s,
        sync_s=best.cost.sync_s,
    )


def _bars(chips: Sequence[int], algorithms: Sequence[str]) -> Iterable[tuple[PaperModel, int, str]]:
    for model in MODELS:
        for num_chips in chips:
            for algorithm in algorithms:
                if mesh_shapes(algorithm, num_chips):
                    yield model, num_chips, algorithm
