"""All figures, tables and headlines, in one go."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxquard.evaluate.meshslice.figures.communication import Breakdown, communication_breakdown
from jaxquard.evaluate.meshslice.figures.dataflow_table import DataflowRow, dataflow_table
from jaxquard.evaluate.meshslice.figures.layer_communication import LayerCommunication, layer_communication
from jaxquard.evaluate.meshslice.figures.mesh_shapes import MeshPoint, compare_mesh_shapes
from jaxquard.evaluate.meshslice.figures.product_shapes import ProductPoint, product_shapes
from jaxquard.evaluate.meshslice.figures.real_mesh import RealMeshRow, real_mesh
from jaxquard.evaluate.meshslice.figures.scaling import BEYOND_CHIPS, ScalingPoint, strong_scaling, weak_scaling
from jaxquard.evaluate.meshslice.figures.slice_counts import SlicePoint, compare_slice_counts
from jaxquard.evaluate.meshslice.figures.three_dimensions import Traffic, three_dimensions
from jaxquard.evaluate.meshslice.figures.what_runs import RunningPoint, what_runs
from jaxquard.evaluate.meshslice.headlines import BandedHeadline, headlines
from jaxquard.evaluate.meshslice.paper import Paper, load_paper
from jaxquard.evaluate.meshslice.readings import Reading, readings
from jaxquard.evaluate.meshslice.setup.constant_sets import (
    MAIN,
    SIMULATION,
    ConstantSet,
    constant_set,
    sendrecv_sets,
)
from jaxquard.evaluate.meshslice.setup.tuner import Tuner

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRecvFigures:
    """The figures that depend on SendRecv, under one assumption about it."""

    sendrecv: str
    weak_scaling: tuple[ScalingPoint, ...]
    communication: tuple[Breakdown, ...]
    product_shapes: tuple[ProductPoint, ...]
    strong_scaling: tuple[ScalingPoint, ...]
    beyond: tuple[ScalingPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The results of `reproduce_meshslice`, in the order of the paper.

    Attributes:
        other_sendrecvs: with SendRecv one way, and with one launch for a chain; all else is both ways, a launch each.
    """

    paper: Paper
    headlines: tuple[BandedHeadline, ...]
    weak_scaling: tuple[ScalingPoint, ...]
    communication: tuple[Breakdown, ...]
    product_shapes: tuple[ProductPoint, ...]
    strong_scaling: tuple[ScalingPoint, ...]
    dataflow_table: tuple[DataflowRow, ...]
    mesh_shapes: tuple[MeshPoint, ...]
    slice_counts: tuple[SlicePoint, ...]
    real_mesh: tuple[RealMeshRow, ...]
    layer_communication: tuple[LayerCommunication, ...]
    three_dimensions: tuple[Traffic, ...]
    beyond: tuple[ScalingPoint, ...]
    what_runs: tuple[RunningPoint, ...]
    readings: tuple[Reading, ...]
    other_sendrecvs: tuple[SendRecvFigures, ...]


def reproduce_meshslice(*, on_progress: OnProgress = lambda done, total, name: None) -> Reproduction:
    """Computes everything; `on_progress` gets the number of parts that are done, of all, and the next one's name."""
    tuner, paper = Tuner(), load_paper()
    simulated = constant_set(SIMULATION, is_bidirectional=True).cluster
    real = constant_set(MAIN, is_bidirectional=False).cluster
    progress = _Progress(on_progress)
    progress.next("Figure 9")
    weak = weak_scaling(tuner, simulated)
    progress.next("Figure 11")
    shapes = product_shapes(simulated)
    progress.next("Figure 12")
    strong = strong_scaling(tuner, simulated)
    progress.next("Table 2")
    dataflows = dataflow_table(tuner, simulated)
    progress.next("Figure 13")
    meshes = compare_mesh_shapes(tuner, simulated)
    progress.next("Figure 14")
    slices = compare_slice_counts(tuner, simulated)
    progress.next("Table 3")
    on_real_mesh = real_mesh(tuner, real)
    progress.next("Figure 15")
    layers = layer_communication(tuner, real)
    progress.next("1,024 and 4,096 chips")
    beyond = weak_scaling(tuner, simulated, chips=BEYOND_CHIPS)
    progress.next("prices of what runs")
    running = what_runs()
    progress.next("other readings")
    other_readings = readings(tuner)
    others = []
    for one in sendrecv_sets(SIMULATION)[1:]:
        progress.next(f"claims: {one.sendrecv}")
        others.append(_sendrecv_figures(tuner, one))
    claims = headlines(tuner, paper, on_progress=lambda done, total, name: progress.next(f"bands: {name}"))
    return Reproduction(
        paper=paper,
        headlines=claims,
        weak_scaling=weak,
        communication=communication_breakdown(weak),
        product_shapes=shapes,
        strong_scaling=strong,
        dataflow_table=dataflows,
        mesh_shapes=meshes,
        slice_counts=slices,
        real_mesh=on_real_mesh,
        layer_communication=layers,
        three_dimensions=three_dimensions(),
        beyond=beyond,
        what_runs=running,
        readings=other_readings,
        other_sendrecvs=tuple(others),
    )


def _sendrecv_figures(tuner: Tuner, one: ConstantSet) -> SendRecvFigures:
    weak = weak_scaling(tuner, one.cluster)
    return SendRecvFigures(
        sendrecv=one.sendrecv,
        weak_scaling=weak,
        communication=communication_breakdown(weak),
        product_shapes=product_shapes(one.cluster),
        strong_scaling=strong_scaling(tuner, one.cluster),
        beyond=weak_scaling(tuner, one.cluster, chips=BEYOND_CHIPS),
    )


class _Progress:
    """Counts the parts: nine of the paper, what runs, other readings, three of claims, twelve sets of constants."""

    total = 27

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._begun = 0

    def next(self, name: str) -> None:
        self._on_progress(self._begun, self.total, name)
        self._begun += 1
