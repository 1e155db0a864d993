"""The sharding that the search finds, compared with the baselines and with every other strategy, measured whole.

Four models on 8 virtual CPU devices: small and large batches, wide layers, a memory limit. Every cell is one search;
then the chosen plan, the baselines and all strategies of a layer (the same in all layers) run whole: once coarsely,
then the best ten, the plan and the baselines in alternation. Ratios come from paired, interleaved runs.
"""

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxquard.evaluate.cfp.cells.cell import Cell, CellSpec

NUM_DEVICES = 8


def main(arguments: Sequence[str] = ()) -> None:
    """Runs the grid, or the cells that the options name."""
    options = _parser().parse_args(arguments)
    import jax

    from jaxquard.pricing.measure.machine.steady_cpu import make_cpu_steady

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    make_cpu_steady()
    from jaxquard.evaluate.cfp.cells.targets import targets
    from jaxquard.evaluate.cfp.reproduce import run_cells
    from jaxquard.evaluate.cfp.run.measured_backend import MeasuredBackend
    from jaxquard.pricing import PriceCache

    specs = _specs(options)
    with tempfile.TemporaryDirectory() as folder:
        backend = MeasuredBackend(cache=PriceCache(options.cache or folder))
        results = run_cells(
            specs, path=options.out, backend=backend, on_done=lambda cell: print(summary(cell), flush=True)
        )
    wanted = [cell for cell in results.cells if cell.spec in specs]
    for target in targets(wanted):
        print(f"{'kept' if target.is_met else 'MISSED'}: {target.text}: {target.found}")
        for exception in target.exceptions:
            print(f"    {exception}")


def summary(cell: "Cell") -> str:
    """One line: times relative to the chosen plan, so that more than 1 is slower than ours."""
    from jaxquard.evaluate.cfp.cells.cell import Role
    from jaxquard.evaluate.cfp.cells.targets import behind_best

    seconds = cell.seconds
    took = (
        f"{cell.num_programs} of {cell.equation_7} programs, {cell.num_known} known; "
        f"priced {seconds.priced:.0f} s, finalists {seconds.predicted:.0f} s, whole steps compiled "
        f"{seconds.whole_compiled:.0f} s and run {seconds.whole_run:.0f} s"
    )
    best = cell.best
    if best is None or best.measured_s is None:
        return f"{cell.spec.name}: {cell.failure or 'the chosen plan did not run'}; {took}"
    parts = [f"{cell.spec.name}: {best.name} {best.measured_s * 1e3:.1f} ms"]
    if best.predicted_s is not None:
        parts.append(f"predicted {best.predicted_s / best.measured_s:.2f}")
    for run in cell.runs:
        if run.role is Role.BASELINE and run.measured_s is not None:
            mark = "" if cell.fits(run) else " (too large)"
            parts.append(f"{run.name} {run.measured_s / best.measured_s:.2f}{mark}")
    parts.append(f"behind the best of {sum(run.time_s is not None for run in cell.runs)} {behind_best(cell) or 0:.1%}")
    return "; ".join([*parts, took])


def _specs(options: argparse.Namespace) -> "list[CellSpec]":
    from jaxquard.evaluate.cfp.cells.cell import CellSpec
    from jaxquard.evaluate.cfp.cells.grid import MODELS, SIZES, grid

    count = 0 if options.no_all_strategies else options.num_strategies
    limits = {"memory_limit_share": options.memory_limit_share}
    if options.memory_limit_mib is not None:
        limits["memory_limit_bytes"] = options.memory_limit_mib * 2**20
    named = (options.batch_sizes, options.num_layers, options.model_dim, options.mesh, *limits.values())
    if all(option is None for option in named):
        return [replace(spec, num_strategies=count) for spec in grid(options.models or MODELS)]
    sizes = itertools.product(options.model_dim or [SIZES[0][0]], options.batch_sizes or [SIZES[0][1]])
    return [
        CellSpec(
            model=model,
            num_layers=options.num_layers or 2,
            model_dim=model_dim,
            batch_size=batch_size,
            mesh=tuple(options.mesh or [NUM_DEVICES]),
            num_strategies=count,
            **limits,
        )
        for model, (model_dim, batch_size) in itertools.product(options.models or MODELS, list(sizes))
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shard_search", description=__doc__)
    parser.add_argument("--models", nargs="*")
    parser.add_argument(
        "--batch-sizes", nargs="*", type=int, help="with this or one of the next five: just these cells"
    )
    parser.add_argument("--num-layers", type=int)
    parser.add_argument("--model-dim", nargs="*", type=int)
    parser.add_argument("--mesh", nargs="*", type=int, help="sizes of its axes, the outer one first: 2 4")
    parser.add_argument("--memory-limit-share", type=float, help="of what data parallelism takes")
    parser.add_argument("--memory-limit-mib", type=int, help="on each device")
    parser.add_argument("--no-all-strategies", action="store_true", help="run only the plan and the baselines whole")
    parser.add_argument("--num-strategies", type=int, help="run so many strategies of a layer, not all")
    parser.add_argument("--out", type=Path, help="JSON, written after every cell; what it has is not run again")
    parser.add_argument("--cache", type=Path, help="folder for prices of parts; a temporary one by default")
    return parser


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
