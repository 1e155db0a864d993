"""Runs that were stopped go on, and finished cells are not run again."""

from dataclasses import replace

import pytest

from jaxquard.cluster import load_cluster
from jaxquard.errors import JaxquardError
from jaxquard.evaluate.cfp import read_results, reproduce_cfp
from jaxquard.evaluate.cfp import reproduce as module
from jaxquard.evaluate.cfp.cells.cluster_grid import quick_cluster_cells
from jaxquard.evaluate.cfp.cells.grid import MODELS, full_cells, grid, quick_cells
from jaxquard.evaluate.cfp.run.compiled_backend import CompiledBackend
from jaxquard.evaluate.cfp.run.measured_backend import MeasuredBackend
from tests.evaluate.cfp.made_cells import made_cell, made_results

HERE = MeasuredBackend(cache=None)


@pytest.fixture
def fake_runs(monkeypatch):
    """Cells are made up; the list has those that were run."""
    ran = []

    def run_cell(spec, *, backend, on_part):
        on_part("pricing", 1, 2, "a program")
        ran.append(spec)
        return replace(made_cell(spec.model), spec=spec, machine=backend.machine(spec), cluster=backend.cluster_name)

    def measure_depth(spec, *, machine):
        return replace(made_results().depths[0], model=spec.model, machine=machine)

    for backend in (MeasuredBackend, CompiledBackend):
        monkeypatch.setattr(backend, "machine", lambda self, spec: "this machine")
        monkeypatch.setattr(backend, "depth_machine", lambda self, spec: "this machine")
    monkeypatch.setattr(module, "run_cell", run_cell)
    monkeypatch.setattr(module, "measure_depth", measure_depth)
    return ran


def test_every_cell_is_kept_and_none_is_run_twice(fake_runs, tmp_path):
    path = tmp_path / "cells.json"
    specs = quick_cells()[:2]
    first = module.run_cells(specs[:1], path=path, backend=HERE)
    assert read_results(path) == first
    reported = []
    both = module.run_cells(specs, path=path, backend=HERE, on_cell=lambda *said: reported.append(said))
    assert fake_runs == specs
    assert [cell.spec for cell in both.cells] == specs
    assert reported == [(0, 2, specs[0].name), (1, 2, specs[1].name), (2, 2, "")]
    assert list(tmp_path.iterdir()) == [path]


def test_a_cell_of_another_machine_is_run_again(fake_runs, tmp_path, monkeypatch):
    path = tmp_path / "cells.json"
    specs = quick_cells()[:2]
    module.run_cells(specs, path=path, backend=HERE)
    monkeypatch.setattr(MeasuredBackend, "machine", lambda self, spec: "another")
    found = module.run_cells(specs[:1], path=path, backend=HERE)
    assert fake_runs == [*specs, specs[0]]
    assert [cell.machine for cell in found.cells] == ["another", "this machine"]


def test_what_was_finished_before_an_error_is_kept(fake_runs, tmp_path, monkeypatch):
    path = tmp_path / "cells.json"
    made = module.run_cell

    def fails_at_second(spec, **options):
        if fake_runs:
            raise KeyboardInterrupt
        return made(spec, **options)

    monkeypatch.setattr(module, "run_cell", fails_at_second)
    with pytest.raises(KeyboardInterrupt):
        module.run_cells(quick_cells(), path=path, backend=HERE)
    assert [cell.spec for cell in read_results(path).cells] == quick_cells()[:1]


def test_the_file_keeps_what_was_not_asked_for(fake_runs, tmp_path):
    path = tmp_path / "cells.json"
    reproduce_cfp(models=("gpt",), is_quick=True, path=path)
    found = reproduce_cfp(models=("llama",), is_quick=True, path=path)
    assert {cell.spec.model for cell in found.cells} == {"llama"}
    assert {cell.spec.model for cell in read_results(path).cells} == {"gpt", "llama"}
    assert {depth.model for depth in found.depths} == {"llama"}


def test_without_a_file_nothing_is_kept(fake_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reported = []
    reproduce_cfp(models=("bert",), is_quick=True, on_cell=lambda *said: reported.append(said))
    assert not list(tmp_path.iterdir())
    assert reported[-2:] == [(1, 2, "analysis by depth"), (2, 2, "")]


def test_the_list_of_cells():
    cells = full_cells()
    assert len(set(cells)) == len(cells)
    assert {cell.model for cell in cells} == set(MODELS)
    for model in MODELS:
        mine = [cell for cell in grid() if cell.model == model]
        assert sum(cell.has_limit for cell in mine) == 1
        assert len({(cell.model_dim, cell.batch_size) for cell in mine}) == 4
        assert len({cell.batch_size for cell in mine if cell.model_dim == 256}) == 3
    assert {cell.mesh for cell in cells} == {(8,), (2, 4), (4, 2)}
    assert all(cell.is_thin for cell in quick_cells())


def test_cells_for_a_cluster(fake_runs, tmp_path):
    path, cluster = tmp_path / "cells.json", load_cluster("cpu-8")
    found = reproduce_cfp(models=("gpt",), is_quick=True, path=path, cluster=cluster)
    assert {cell.cluster for cell in found.cells} == {"cpu-8"} == {found.cluster}
    assert fake_runs == quick_cluster_cells(cluster, ("gpt",))
    reproduce_cfp(models=("gpt",), is_quick=True, path=path, cluster=cluster)
    assert len(fake_runs) == 1, "it goes on where it was"
    assert read_results(path) == found


def test_measured_and_priced_cells_are_kept_apart(fake_runs, tmp_path):
    path = tmp_path / "cells.json"
    reproduce_cfp(models=("gpt",), is_quick=True, path=path)
    before = path.read_text()
    said = r"cells\.json has cells measured on a machine, but these are priced for cpu-8\. Give another file\."
    with pytest.raises(JaxquardError, match=said):
        reproduce_cfp(models=("gpt",), is_quick=True, path=path, cluster=load_cluster("cpu-8"))
    assert path.read_text() == before
