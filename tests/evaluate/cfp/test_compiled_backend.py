"""Cells that are priced for a cluster: with the CPU's compiler, which is always here, and with one that pretends."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from jaxquard.cluster import load_cluster
from jaxquard.evaluate.cfp.cells.cell import CellSpec, PlanRun, Role
from jaxquard.evaluate.cfp.run import compiled_backend as module
from jaxquard.evaluate.cfp.run.backend import CellBackend
from jaxquard.evaluate.cfp.run.compiled_backend import CompiledBackend, CompiledRuns
from jaxquard.evaluate.cfp.run.run_cell import run_cell
from jaxquard.pricing import CompilePricer, Failure, FailureReason, PriceCache
from tests.hlo.compiled_texts import read_text
from tests.intraop.fake_pricer import FakePricer
from tests.pricing.programs import array, make, product

LINE = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
TINY = CellSpec(
    model="gpt",
    num_layers=1,
    model_dim=32,
    batch_size=8,
    sequence_length=8,
    vocab_size=128,
    num_strategies=2,
    num_finalists=1,
    is_thin=True,
    dropout_rate=0.0,
    optimizer="sgd",
)


def quiet(*_):
    pass


def run_of(name):
    return PlanRun(name=name, role=Role.STRATEGY, choices=(("rows",),), storage="as used", volume_bytes=1.0)


def test_whole_steps_by_the_compiler_of_the_cpu(tmp_path):
    """Equal programs are one step; a sum over devices communicates; what does not lower says so by its name."""
    summed = make(lambda x: x.sum(), array(64, 64), ins=(P("x"),), outs=(P(),), name="sum")
    programs = {
        "product": product(64),
        "again": product(64, "under another name"),
        "sum": summed,
        "nonsense": replace(product(16), in_specs=(P("y"), P())),
    }
    parts = []
    with CompilePricer("cpu-8", LINE, cache=PriceCache(tmp_path), num_compilers=1) as pricer:
        whole = CompiledRuns(pricer)
        whole.compile(programs, on_part=lambda *part: parts.append(part))
        runs = whole.run([run_of(name) for name in programs], chosen=None, limit_bytes=None, on_part=quiet)
        assert pricer.compile_s > 0
    alone, again, reduced, refused = runs
    assert [part[1:3] for part in parts] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert alone.priced_s == alone.whole_s == alone.time_s == again.priced_s > 0
    assert (alone.communication_s, alone.compiled_bytes, alone.measured_s, alone.error) == (0.0, 0, None, 0.0)
    assert reduced.communication_s > 0
    # 2 * 7/8 of a float32.
    assert reduced.compiled_bytes == pytest.approx(2 * 7 / 8 * 4)
    assert reduced.compute_s + reduced.communication_s == pytest.approx(reduced.priced_s)
    assert alone.peak_bytes > 0
    assert refused.failure.startswith("nonsense: ")
    assert refused.priced_s is refused.peak_bytes is None


class PretendedCompiler(FakePricer):
    """Prices by names, and schedules that take 2 ms, half of it communication; Megatron's does not compile."""

    compile_s = 7.0
    capacity_bytes = 10**6

    def __init__(self, cluster, mesh, *, cache, num_compilers, compiler_options):
        super().__init__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def walk_all(self, programs):
        for program in programs:
            if program.name == "megatron":
                yield Failure(name=program.name, reason=FailureReason.NO_COMPILATION, message="no")
            else:
                walked = SimpleNamespace(time_s=2e-3, communication_s=1e-3)
                yield walked, SimpleNamespace(peak_bytes=100, text=read_text("cpu", "layer"))


def test_a_cell_is_priced_for_its_cluster(monkeypatch):
    monkeypatch.setattr(module, "CompilePricer", PretendedCompiler)
    backend: CellBackend = CompiledBackend(load_cluster("cpu-8"), cache=None)
    cell = run_cell(TINY, backend=backend)
    assert cell.cluster == "cpu-8"
    assert cell.machine.startswith("8 chips of cpu-8, compiled by jax ")
    assert cell.limit_bytes == 10**6
    assert cell.seconds.compiled == 7.0
    assert cell.seconds.lowered is cell.seconds.profiled is None
    assert cell.run("megatron").failure == "megatron: does not compile (no)"
    for run in cell.runs:
        assert run.measured_s is run.coarse_s is run.minimum_s is None
        if run.failure is None:
            assert (run.priced_s, run.compute_s, run.communication_s) == (2e-3, 1e-3, 1e-3)
            assert cell.fits(run)
    assert sum(run.role is Role.STRATEGY for run in cell.runs) == 2


def test_a_limit_of_the_cell_counts_below_that_of_the_chips(monkeypatch):
    monkeypatch.setattr(module, "CompilePricer", PretendedCompiler)
    limited = replace(TINY, memory_limit_bytes=10, num_strategies=0)
    cell = run_cell(limited, backend=CompiledBackend(load_cluster("cpu-8"), cache=None))
    assert (cell.limit_bytes, cell.chosen) == (10, None)
    assert "memory_limit_bytes=10" in cell.failure


def test_the_machine_names_chips_compiler_and_figures(monkeypatch):
    def find_target(cluster, mesh_shape):
        return SimpleNamespace(num_devices=mesh_shape[0], compiler_version="jax 1, plugin 2")

    monkeypatch.setattr(module, "find_target", find_target)
    cluster = load_cluster("v100-nvlink-4")
    said = CompiledBackend(cluster, cache=None).machine(replace(TINY, mesh=(4,)))
    assert said.startswith(
        "4 chips of v100-nvlink-4, compiled for compute capability 7.5 by jax 1, plugin 2; seconds by its figures ("
    )
    faster = replace(cluster, compute=replace(cluster.compute, launch_s=1e-6))
    assert CompiledBackend(faster, cache=None).machine(replace(TINY, mesh=(4,))) != said


@pytest.mark.slow
def test_a_small_cell_for_real(tmp_path):
    backend = CompiledBackend(load_cluster("cpu-8"), cache=PriceCache(tmp_path))
    cell = run_cell(TINY, backend=backend)
    assert cell.failure is None
    assert all(run.failure is None and run.priced_s > 0 and run.peak_bytes > 0 for run in cell.runs)
    assert {"data parallel", "megatron", "zero 1", "volume"} <= {run.name for run in cell.runs}
    # The program of few segments is priced whole, so that its prediction is its price.
    assert cell.best.predicted_s == pytest.approx(cell.best.priced_s)
    again = run_cell(TINY, backend=backend)
    assert [run.priced_s for run in again.runs] == [run.priced_s for run in cell.runs]
    assert again.num_known > 0
    assert again.seconds.compiled == 0
