"""Figure 14: every slice count on a 32x8 mesh, by the cost model and by the simulation with memory contention."""

from dataclasses import dataclass

from jaxquard.cluster import Cluster
from jaxquard.evaluate.meshslice.setup.models import MODELS, PaperModel
from jaxquard.evaluate.meshslice.setup.tuner import Tuner
from jaxquard.gemm.autotune.slices import divisors
from jaxquard.gemm.cost.play import play_plan

MESH_SHAPE = (32, 8)
_BLOCK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePoint:
    """The same slice count in all products; utilisations."""

    model: str
    num_slices: int
    estimated: float
    simulated: float


def compare_slice_counts(tuner: Tuner, cluster: Cluster) -> tuple[SlicePoint, ...]:
    """Returns the utilisation with every slice count that divides, estimated and simulated, in rising order."""
    points = []
    for model in MODELS:
        problem = model.problem(MESH_SHAPE[0] * MESH_SHAPE[1] // 2)
        for count in possible_counts(model):
            row = tuner.tune(problem, cluster, 256, mesh_shape=MESH_SHAPE, num_slices=count).best
            assert all(layer.slices == (count,) * 3 for layer in row.plan.layers), row.plan
            _, simulated = play_plan(problem, row.plan, cluster)
            points.append(SlicePoint(model=model.key, num_slices=count, estimated=row.utilisation, simulated=simulated))
    return tuple(points)


def possible_counts(model: PaperModel) -> tuple[int, ...]:
    """All products of a block are sliced along the hidden dim, in blocks of 8 of the smaller shard."""
    return divisors(model.hidden // max(MESH_SHAPE) // _BLOCK)
