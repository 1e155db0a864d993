"""Figure 9: the configurations of minimum volume, in its order, with what they really take."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.evaluate.cfp.cells.cell import Cell, PlanRun, Role
from jaxquard.evaluate.cfp.cells.labels import COMMUNICATION_COLOR, COMPUTE_COLOR, model_label, size_label
from jaxquard.evaluate.cfp.cells.pick import NUM_BY_VOLUME, first_cell, models_of
from jaxquard.report.charts.stacked_chart import stacked_chart

# Volumes that differ by less than this part of the smaller one are alike.
ALIKE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ByVolume:
    """The strategies of a layer in the order of their symbolic volume, each with compute and communication.

    Attributes:
        fastest: the place of the fastest of all strategies that ran in that order, from 1.
        fastest_volume: its volume relative to the minimum.
    """

    cell: Cell
    runs: tuple[PlanRun, ...]
    fastest: int
    fastest_volume: float


def figure_9(cells: Sequence[Cell]) -> tuple[ByVolume, ...]:
    """Returns the plans in the order of volume, for one cell of each model."""
    found = []
    for model in models_of(cells):
        cell = first_cell(cells, model)
        ran = [] if cell is None else [run for run in cell.runs if run.role is Role.STRATEGY and run.time_s is not None]
        if cell is not None and ran:
            ordered = sorted(ran, key=lambda run: run.volume_bytes)
            best = min(ordered, key=lambda run: run.time_s or 0.0)
            shown = tuple(run for run in ordered if run.communication_s is not None)[:NUM_BY_VOLUME]
            found.append(
                ByVolume(
                    cell=cell,
                    runs=shown,
                    fastest=ordered.index(best) + 1,
                    fastest_volume=best.volume_bytes / ordered[0].volume_bytes if ordered[0].volume_bytes else 1.0,
                )
            )
    return tuple(found)


def alike_apart(found: ByVolume) -> float | None:
    """The most by which the communication of two neighbours of like volume differs, as a ratio."""
    ratios = []
    for one, other in zip(found.runs, found.runs[1:], strict=False):
        times_s = sorted((one.communication_s or 0.0, other.communication_s or 0.0))
        if other.volume_bytes <= (1 + ALIKE) * one.volume_bytes and times_s[0] > 0:
            ratios.append(times_s[1] / times_s[0])
    return max(ratios, default=None)


def draw_figure_9(found: Sequence[ByVolume]) -> list[str]:
    """A chart a model; the line is the chosen plan."""
    charts = []
    for one in found:
        if not one.runs:
            continue
        stacks = [
            (str(place + 1), ((run.compute_s or 0.0) * 1e3, (run.communication_s or 0.0) * 1e3))
            for place, run in enumerate(one.runs)
        ]
        chosen = one.cell.best
        line = 0.0 if chosen is None or chosen.time_s is None else chosen.time_s * 1e3
        charts.append(
            stacked_chart(
                f"{model_label(one.cell.spec.model)}, {size_label(one.cell.spec)}",
                stacks,
                [("computation", COMPUTE_COLOR), ("communication", COMMUNICATION_COLOR)],
                value_name="ms; the line is the chosen plan",
                show=lambda value: f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}",
                most=1.12 * max(line, *(sum(parts) for _, parts in stacks)),
                rule=line,
            )
        )
    return charts
