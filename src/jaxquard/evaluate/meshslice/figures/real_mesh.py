"""Table 3: the real 4x4 mesh of section 5.3, where collectives do not overlap products.

Without overlap all moves and products stand one after another. The authors' numbers agree with a batch of as many
sequences as chips, 16, and 8 slices. Copying slices is charged at the memory's full bandwidth. What the table's last
column estimates, overlap as in the simulations, is the closed form. Wang's overlap fails for the most part on the real
mesh (5.3.1), so that its true value lies between both of ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from jaxquard.cluster import Cluster
from jaxquard.evaluate.meshslice.setup.models import MODELS, PaperModel
from jaxquard.evaluate.meshslice.setup.tuner import Tuner
from jaxquard.gemm.autotune.table import TuningRow
from jaxquard.gemm.cost.products import problem_flops

MESH_SHAPE = (4, 4)
NUM_CHIPS = 16
BATCH = 16
NUM_SLICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RealMeshRow:
    """Utilisations of one model.

    Attributes:
        overhead: MeshSlice's extra time over Collective's, neither overlapped.
        slicing: of it, that of copying slices.
    """

    model: str
    collective: float
    wang: float
    wang_overlapped: float
    meshslice: float
    meshslice_overlapped: float
    overhead: float
    slicing: float

    @property
    def overlap_gain(self) -> float:
        """Overlapped MeshSlice over Collective."""
        return self.meshslice_overlapped / self.collective - 1


def real_mesh(tuner: Tuner, cluster: Cluster) -> tuple[RealMeshRow, ...]:
    """Returns both rows of Table 3."""
    return tuple(_row(tuner, cluster, model) for model in MODELS)


def mean_overhead(rows: Sequence[RealMeshRow]) -> float:
    """Returns the mean overhead of both models."""
    return mean(row.overhead for row in rows)


def mean_slicing(rows: Sequence[RealMeshRow]) -> float:
    """Returns the mean cost of slicing of both models."""
    return mean(row.slicing for row in rows)


def _row(tuner: Tuner, cluster: Cluster, model: PaperModel) -> RealMeshRow:
    copying = replace(cluster, compute=replace(cluster.compute, slice_copy_exposed=1.0))
    collective = _tune(tuner, cluster, model, "meshslice", 1)
    wang = _tune(tuner, cluster, model, "wang", NUM_SLICES)
    without_copies = _tune(tuner, cluster, model, "meshslice", NUM_SLICES)
    meshslice = _tune(tuner, copying, model, "meshslice", NUM_SLICES)
    ideal_s = problem_flops(model.problem(BATCH)) / (NUM_CHIPS * cluster.compute.peak_flops_per_s)
    return RealMeshRow(
        model=model.key,
        collective=ideal_s / _serial_s(collective),
        wang=ideal_s / _serial_s(wang),
        wang_overlapped=ideal_s / wang.time_s,
        meshslice=ideal_s / _serial_s(meshslice),
        meshslice_overlapped=ideal_s / meshslice.time_s,
        overhead=_serial_s(meshslice) / _serial_s(collective) - 1,
        slicing=(_serial_s(meshslice) - _serial_s(without_copies)) / _serial_s(collective),
    )


def _tune(tuner: Tuner, cluster: Cluster, model: PaperModel, algorithm: str, num_slices: int) -> TuningRow:
    problem = model.problem(BATCH)
    return tuner.tune(problem, cluster, NUM_CHIPS, algorithm, mesh_shape=MESH_SHAPE, num_slices=num_slices).best


def _serial_s(row: TuningRow) -> float:
    return row.cost.compute_s + row.cost.communication_s
