"""The claims that CFP makes in words, held against our cells (sections 5.2 to 5.6)."""

from collections.abc import Iterator, Sequence

from jaxquard.evaluate.cfp.cells.cell import Cell, Depth
from jaxquard.evaluate.cfp.cells.labels import OURS, PLAN_LABELS, model_label
from jaxquard.evaluate.cfp.cells.pick import compared_run
from jaxquard.evaluate.cfp.cells.results_file import Results
from jaxquard.evaluate.cfp.cells.targets import faster_baselines
from jaxquard.evaluate.cfp.figures.figure_8 import figure_8
from jaxquard.evaluate.cfp.figures.figure_11 import memory_cells
from jaxquard.evaluate.cfp.figures.figure_12 import priced_cells
from jaxquard.evaluate.common.claims import Claim, make_claim
from jaxquard.evaluate.common.numbers import milliseconds

# Compile times of equal programs wander by less.
_STABLE = 1.5


def check_claims(results: Results) -> tuple[Claim, ...]:
    """All that can be read off our cells."""
    cells = results.cells
    ran = [cell for cell in cells if cell.best is not None]
    limited = memory_cells(cells)
    return (
        make_claim(
            "5.2",
            "The chosen plan is no slower than data parallelism, Megatron or the minimum volume (beyond chance).",
            len(ran),
            (f"{cell.spec.name}: {run.name} is faster" for cell in ran for run in faster_baselines(cell)),
        ),
        make_claim("5.3", "The chosen plan has the shortest communication of all.", *_shortest_communication(cells)),
        make_claim("5.4", "It fits wherever the plan of minimum volume does, and also elsewhere.", *_fits(limited)),
        make_claim("5.4", "Under a limit it is faster than ZeRO-1.", *_beats_zero(limited)),
        make_claim("5.5", "Compiling takes about as long whatever the batch.", *_stable_compiling(cells)),
        make_claim(
            "5.5",
            "Pricing takes less time than its compilers and runs, added up.",
            *_below_sum(priced_cells(cells)),
        ),
        make_claim("5.5", "The programs to price do not grow with depth.", *_same_programs(results.depths)),
        make_claim("5.6", "Analysis grows with depth, and no faster.", *_linear(results.depths)),
    )


def _shortest_communication(cells: Sequence[Cell]) -> tuple[int, list[str]]:
    sent = figure_8(cells)
    ours = {one.model: one.communication_s for one in sent if one.plan == OURS}
    others = [one for one in sent if one.plan != OURS and one.model in ours]
    return len(others), [
        f"{model_label(one.model)}: {PLAN_LABELS[one.plan]} has {milliseconds(one.communication_s)} against "
        f"{milliseconds(ours[one.model])}"
        for one in others
        if one.communication_s < ours[one.model]
    ]


def _fits(cells: Sequence[Cell]) -> tuple[int, list[str]]:
    """Cells in which ours does not fit, though the other does; and all of them if ours never fits alone."""
    found, smaller = [], 0
    for cell in cells:
        ours, volume = compared_run(cell, OURS), cell.run("volume")
        ours_fits = ours is not None and cell.fits(ours)
        volume_fits = volume is not None and cell.fits(volume)
        smaller += ours_fits and not volume_fits
        if volume_fits and not ours_fits:
            found.append(cell.spec.name)
    if cells and not smaller and not found:
        found.append("the plan of minimum volume fits wherever ours does")
    return len(cells), found


def _beats_zero(cells: Sequence[Cell]) -> tuple[int, list[str]]:
    found, looked_at = [], 0
    for cell in cells:
        ours, zero = cell.best, cell.run("zero 1")
        if ours is None or zero is None or ours.whole_s is None or zero.whole_s is None or not cell.fits(zero):
            continue
        looked_at += 1
        if (ours.choices, ours.storage) == (zero.choices, zero.storage):
            found.append(f"{cell.spec.name}: ours is ZeRO-1")
        elif zero.whole_s < ours.whole_s:
            found.append(f"{cell.spec.name}: {zero.whole_s / ours.whole_s:.2f} of ours")
    return looked_at, found


def _stable_compiling(cells: Sequence[Cell]) -> tuple[int, list[str]]:
    series: dict[tuple[str, int], list[Cell]] = {}
    for cell in priced_cells(cells):
        series.setdefault((cell.spec.model, cell.spec.model_dim), []).append(cell)
    found, looked_at = [], 0
    for (model, model_dim), mine in series.items():
        times_s = [cell.seconds.compiled or 0.0 for cell in mine]
        looked_at += len(mine) > 1
        if len(mine) > 1 and max(times_s) > _STABLE * min(times_s):
            found.append(f"{model_label(model)}, {model_dim} wide: {min(times_s):.0f} to {max(times_s):.0f} s")
    return looked_at, found


def _below_sum(cells: Sequence[Cell]) -> tuple[int, list[str]]:
    def one_by_one(cell: Cell) -> float:
        return (cell.seconds.compiled or 0.0) + (cell.seconds.profiled or 0.0)

    # Where nothing runs, compilers report seconds of the processor, which a clock does not compare with.
    cells = [cell for cell in cells if cell.seconds.profiled is not None]
    return len(cells), [
        f"{cell.spec.name}: {cell.seconds.priced:.0f} s against {one_by_one(cell):.0f} s"
        for cell in cells
        if cell.seconds.priced >= one_by_one(cell)
    ]


def _by_model(depths: Sequence[Depth]) -> Iterator[tuple[str, list[Depth]]]:
    for model in dict.fromkeys(depth.model for depth in depths):
        mine = [depth for depth in depths if depth.model == model]
        yield model, sorted(mine, key=lambda depth: depth.num_layers)


def _same_programs(depths: Sequence[Depth]) -> tuple[int, list[str]]:
    found = []
    for model, mine in _by_model(depths):
        counts = {depth.num_programs for depth in mine}
        if len(counts) > 1:
            found.append(f"{model_label(model)}: {min(counts)} to {max(counts)}")
    return len(depths), found


def _linear(depths: Sequence[Depth]) -> tuple[int, list[str]]:
    """The deepest against the one before it: time a layer may grow by half."""
    found = []
    for model, mine in _by_model(depths):
        if len(mine) > 1:
            before, last = (depth.analysed_s / depth.num_layers for depth in mine[-2:])
            if last > _STABLE * before:
                found.append(f"{model_label(model)}: {before * 1e3:.1f} ms a layer, then {last * 1e3:.1f} ms")
    return len(depths), found
