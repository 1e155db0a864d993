"""Runs the cells one after the other; what is finished is kept after each, and not run again.

Cells that are measured here and cells that are priced for a cluster have files of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from jaxquard.cluster import Cluster
from jaxquard.errors import JaxquardError
from jaxquard.evaluate.cfp.cells.cell import Cell, CellSpec
from jaxquard.evaluate.cfp.cells.cluster_grid import cluster_cells, quick_cluster_cells
from jaxquard.evaluate.cfp.cells.grid import MODELS, QUICK_MODELS, full_cells, quick_cells
from jaxquard.evaluate.cfp.cells.results_file import Results, read_results, results_text
from jaxquard.evaluate.cfp.run.backend import CellBackend, OnPart
from jaxquard.evaluate.cfp.run.compiled_backend import CompiledBackend
from jaxquard.evaluate.cfp.run.depths import DEPTHS, QUICK_DEPTHS, depth_specs, measure_depth
from jaxquard.evaluate.cfp.run.measured_backend import MeasuredBackend
from jaxquard.evaluate.cfp.run.run_cell import run_cell
from jaxquard.pricing import PriceCache

# How many cells are done, of how many, and the next one's name.
OnCell = Callable[[int, int, str], None]


def reproduce_cfp(
    *,
    models: Sequence[str] | None = None,
    is_quick: bool = False,
    path: Path | None = None,
    cache: PriceCache | None = None,
    cluster: Cluster | None = None,
    num_compilers: int | None = None,
    on_cell: OnCell = lambda *_: None,
    on_part: OnPart = lambda *_: None,
    on_done: Callable[[Cell], None] = lambda cell: None,
) -> Results:
    """Runs everything, or what is left of it, and returns what was asked for.

    Args:
        models: only those; by default all, or a few if quick.
        is_quick: tiny models and few strategies.
        path: where results are kept after every cell; what is in it already of this machine stays, and of others what
            is not asked for.
        cache: where prices of parts are kept; for a cluster, compiled programs too.
        cluster: prices the paper's own sizes for it by its compiler and runs nothing; None to measure small ones here.
        num_compilers: for a cluster, how many programs are compiled at a time; None for as many as there are cores.
        on_cell, on_part: called with how far the cells are, and how far the work of the present one.
        on_done: called with each cell that was run now.

    Raises:
        JaxquardError: if the file holds something else, or there is no compiler for the cluster.
    """
    models = models or (QUICK_MODELS if is_quick else MODELS)
    backend: CellBackend
    if cluster is None:
        specs = quick_cells(models) if is_quick else full_cells(models)
        backend = MeasuredBackend(cache=cache)
    else:
        specs = (quick_cluster_cells if is_quick else cluster_cells)(cluster, models)
        backend = CompiledBackend(cluster, cache=cache, num_compilers=num_compilers)
    depths = depth_specs(models, QUICK_DEPTHS if is_quick else DEPTHS)
    total = len(specs) + 1
    results = run_cells(
        specs,
        path=path,
        backend=backend,
        on_cell=lambda done, _, name: on_cell(done, total, name or "analysis by depth"),
        on_part=on_part,
        on_done=on_done,
    )
    results = run_depths(results, depths, backend=backend, on_part=on_part)
    keep_results(results, path)
    on_cell(total, total, "")
    wanted = {(spec.model, spec.num_layers) for spec in depths}
    return Results(
        cells=tuple(cell for cell in results.cells if cell.spec in specs),
        depths=tuple(depth for depth in results.depths if (depth.model, depth.num_layers) in wanted),
    )


def run_cells(
    specs: Sequence[CellSpec],
    *,
    path: Path | None,
    backend: CellBackend,
    on_cell: OnCell = lambda *_: None,
    on_part: OnPart = lambda *_: None,
    on_done: Callable[[Cell], None] = lambda cell: None,
) -> Results:
    """Runs what the file does not have yet of the backend's machine; `on_done` is called with each cell that ran now.

    Raises:
        JaxquardError: if the file holds something else.
    """
    results = read_results(path) if path is not None and path.exists() else Results()
    _check_alike(results, backend, path)
    finished = {cell.spec: cell for cell in results.cells}
    for done, spec in enumerate(specs):
        on_cell(done, len(specs), spec.name)
        known = finished.get(spec)
        if known is None or known.machine != backend.machine(spec):
            finished[spec] = run_cell(spec, backend=backend, on_part=on_part)
            results = replace(results, cells=tuple(finished.values()))
            keep_results(results, path)
            on_done(finished[spec])
    on_cell(len(specs), len(specs), "")
    return results


def run_depths(
    results: Results, specs: Sequence[CellSpec], *, backend: CellBackend, on_part: OnPart = lambda *_: None
) -> Results:
    """Adds analysis and search of the depths that are not there yet."""
    depths = {(depth.model, depth.num_layers): depth for depth in results.depths}
    for done, spec in enumerate(specs):
        on_part("analysis by depth", done, len(specs), spec.name)
        known, machine = depths.get((spec.model, spec.num_layers)), backend.depth_machine(spec)
        if known is None or known.machine != machine:
            depths[spec.model, spec.num_layers] = measure_depth(spec, machine=machine)
    return replace(results, depths=tuple(depths.values()))


def _check_alike(results: Results, backend: CellBackend, path: Path | None) -> None:
    """Refuses a file with measured cells if these are priced, or the other way round, or for another cluster."""
    others = {cell.cluster for cell in results.cells} - {backend.cluster_name}
    if others:
        (found, *_), ours = sorted(map(_source, others)), _source(backend.cluster_name)
        raise JaxquardError(f"{path} has cells {found}, but these are {ours}. Give another file.")


def _source(cluster: str | None) -> str:
    return "measured on a machine" if cluster is None else f"priced for {cluster}"


def keep_results(results: Results, path: Path | None) -> None:
    """Writes the file whole or not at all."""
    if path is not None:
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(results_text(results))
        temporary.replace(path)
