"""Runs the cells one after the other; what is finished on this machine is kept after each, and not run again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from jaxquard.evaluate.cfp.cells.cell import Cell, CellSpec
from jaxquard.evaluate.cfp.cells.cell_step import cell_axes
from jaxquard.evaluate.cfp.cells.grid import MODELS, QUICK_MODELS, full_cells, quick_cells
from jaxquard.evaluate.cfp.cells.results_file import Results, read_results, results_text
from jaxquard.evaluate.cfp.run.depths import DEPTHS, QUICK_DEPTHS, depth_specs, measure_depth
from jaxquard.evaluate.cfp.run.run_cell import OnPart, describe_machine, run_cell
from jaxquard.intraop.plan.sharding_plan import make_device_mesh
from jaxquard.pricing import PriceCache

# How many cells are done, of how many, and the next one's name.
OnCell = Callable[[int, int, str], None]


def reproduce_cfp(
    *,
    models: Sequence[str] | None = None,
    is_quick: bool = False,
    path: Path | None = None,
    cache: PriceCache | None = None,
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
        cache: where prices of parts are kept.
        on_cell, on_part: called with how far the cells are, and how far the work of the present one.
        on_done: called with each cell that was run now.

    Raises:
        JaxquardError: if the file holds something else.
    """
    models = models or (QUICK_MODELS if is_quick else MODELS)
    specs = quick_cells(models) if is_quick else full_cells(models)
    depths = depth_specs(models, QUICK_DEPTHS if is_quick else DEPTHS)
    total = len(specs) + 1
    results = run_cells(
        specs,
        path=path,
        cache=cache,
        on_cell=lambda done, _, name: on_cell(done, total, name or "analysis by depth"),
        on_part=on_part,
        on_done=on_done,
    )
    results = run_depths(results, depths, on_part=on_part)
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
    cache: PriceCache | None,
    on_cell: OnCell = lambda *_: None,
    on_part: OnPart = lambda *_: None,
    on_done: Callable[[Cell], None] = lambda cell: None,
) -> Results:
    """Runs what the file does not have yet of this machine; `on_done` is called with each cell that was run now.

    Raises:
        JaxquardError: if the file holds something else.
    """
    results = read_results(path) if path is not None and path.exists() else Results()
    finished = {cell.spec: cell for cell in results.cells}
    for done, spec in enumerate(specs):
        on_cell(done, len(specs), spec.name)
        known = finished.get(spec)
        if known is None or known.machine != _machine(spec):
            finished[spec] = run_cell(spec, cache=cache, on_part=on_part)
            results = replace(results, cells=tuple(finished.values()))
            keep_results(results, path)
            on_done(finished[spec])
    on_cell(len(specs), len(specs), "")
    return results


def run_depths(results: Results, specs: Sequence[CellSpec], *, on_part: OnPart = lambda *_: None) -> Results:
    """Adds analysis and search of the depths that are not there yet."""
    depths = {(depth.model, depth.num_layers): depth for depth in results.depths}
    for done, spec in enumerate(specs):
        on_part("analysis by depth", done, len(specs), spec.name)
        known = depths.get((spec.model, spec.num_layers))
        if known is None or known.machine != _machine(spec):
            depths[spec.model, spec.num_layers] = measure_depth(spec)
    return replace(results, depths=tuple(depths.values()))


def _machine(spec: CellSpec) -> str:
    return describe_machine(make_device_mesh(cell_axes(spec)))


def keep_results(results: Results, path: Path | None) -> None:
    """Writes the file whole or not at all."""
    if path is not None:
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(results_text(results))
        temporary.replace(path)
