"""Figure 13: every mesh of 256 chips, by the cost model and by the simulation in which memory is contended for."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.cluster import Cluster
from jaxquard.evaluate.meshslice.setup.models import GPT3, MODELS, PaperModel
from jaxquard.evaluate.meshslice.setup.tuner import Tuner
from jaxquard.gemm.cost.play import play_plan

NUM_CHIPS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPoint:
    """One mesh with its best slices; utilisations."""

    model: str
    mesh_shape: tuple[int, int]
    estimated: float
    simulated: float


def compare_mesh_shapes(
    tuner: Tuner, cluster: Cluster, *, models: Sequence[PaperModel] = MODELS
) -> tuple[MeshPoint, ...]:
    """Returns the utilisation on every mesh, estimated and simulated, the tallest mesh first."""
    points = []
    for model in models:
        problem = model.problem(NUM_CHIPS // 2)
        table = tuner.tune(problem, cluster, NUM_CHIPS).table
        for row in sorted(table, key=lambda row: -row.mesh_shape[0]):
            _, simulated = play_plan(problem, row.plan, cluster)
            points.append(
                MeshPoint(model=model.key, mesh_shape=row.mesh_shape, estimated=row.utilisation, simulated=simulated)
            )
    return tuple(points)


def gain_over_mirror(points: Sequence[MeshPoint]) -> float:
    """GPT-3's best simulated mesh over the same mesh the wrong way round: over 8x32 where 32x8 is best."""
    meshes = {point.mesh_shape: point.simulated for point in points if point.model == GPT3.key}
    best = max(meshes, key=lambda mesh: meshes[mesh])
    return meshes[best] / meshes[best[1], best[0]]
