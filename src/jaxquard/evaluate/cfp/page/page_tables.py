"""The tables of the page: our own targets, predictions, times by part."""

from collections.abc import Sequence

from jaxquard.evaluate.cfp.cells.cell import Cell, Depth
from jaxquard.evaluate.cfp.cells.labels import cell_label, model_label, size_label
from jaxquard.evaluate.cfp.cells.targets import Target
from jaxquard.evaluate.cfp.figures.figure_9 import ByVolume
from jaxquard.evaluate.cfp.figures.figure_10 import Predicted
from jaxquard.evaluate.common.numbers import digits
from jaxquard.report.html_page import Badge, html_table


def target_table(found: Sequence[Target]) -> str:
    """Our own targets."""
    rows = [
        [
            target.text,
            target.found,
            Badge(text="kept", kind="good") if target.is_met else Badge(text="missed", kind="poor"),
            "; ".join(target.exceptions),
        ]
        for target in found
    ]
    return html_table(["target", "found", "", "cells that miss it"], rows, words=(0, 1, 3))


def volume_table(found: Sequence[ByVolume]) -> str:
    """Returns the place of the fastest configuration by volume."""
    rows = [
        [
            f"{model_label(one.cell.spec.model)}, {size_label(one.cell.spec)}",
            f"{one.fastest}.",
            f"{one.fastest_volume:.2f}x",
        ]
        for one in found
    ]
    return html_table(["cell", "place of the fastest by volume", "its volume, times the minimum"], rows)


def prediction_table(found: Sequence[Predicted]) -> str:
    """Errors of both ways to predict."""
    rows = []
    for one in found:
        rows.append(
            [
                cell_label(one.cell.spec),
                one.way,
                str(len(one.names)),
                f"{one.rmse:.3f}",
                f"{one.rmse_s * 1e3:.2f} ms",
                "-" if one.correlation is None else f"{one.correlation:.2f}",
            ]
        )
    header = ["cell", "predicted by", "plans", "RMSE / mean", "RMSE", "correlation of ranks"]
    return html_table(header, rows, words=(0, 1))


def seconds_table(cells: Sequence[Cell]) -> str:
    """Returns the seconds of each part of every cell."""
    rows = []
    for cell in cells:
        seconds = cell.seconds
        parts = [
            seconds.traced,
            seconds.analysed,
            seconds.compiled,
            seconds.profiled,
            seconds.priced,
            seconds.composed,
            seconds.predicted,
            seconds.searched,
        ]
        rows.append(
            [
                cell_label(cell.spec),
                f"{cell.num_programs} of {cell.equation_7}",
                str(cell.num_known),
                *("-" if part is None else f"{digits(part)} s" for part in parts),
            ]
        )
    header = ["cell", "programs, of equation (7)", "known before", "traced", "analysed", "compilers, added up"]
    return html_table([*header, "running", "both, as done", "search", "finalists", "all"], rows)


def depth_table(depths: Sequence[Depth]) -> str:
    """Figure 13 in numbers."""
    rows = [
        [
            model_label(depth.model),
            str(depth.num_layers),
            str(depth.num_segments),
            str(depth.num_programs),
            f"{digits(depth.traced_s)} s",
            f"{digits(depth.analysed_s)} s",
            f"{digits(depth.composed_s)} s",
        ]
        for depth in depths
    ]
    return html_table(["model", "layers", "segments", "programs", "tracing", "analysis", "search"], rows)
