"""Figure 1: the volume of four configurations of two LLAMA layers, beside their communication and their time."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.evaluate.cfp.cells.cell import Cell, PlanRun
from jaxquard.evaluate.cfp.cells.labels import COMMUNICATION_COLOR, COMPARED, OURS, PLAN_LABELS
from jaxquard.evaluate.cfp.cells.pick import compared_run, first_cell
from jaxquard.evaluate.common.numbers import digits, mebibytes, milliseconds
from jaxquard.report.charts.bar_chart import Bar, Series, bar_chart

_COUNT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One configuration; communication is not known where the profiler does not show it."""

    name: str
    volume_bytes: float
    communication_s: float | None
    time_s: float


def llama_cell(cells: Sequence[Cell]) -> Cell | None:
    """The one that is drawn."""
    return first_cell(cells, "llama")


def figure_1(cells: Sequence[Cell]) -> tuple[Configuration, ...]:
    """Data parallelism, Megatron, the minimum volume and the chosen plan; other strategies where some are the same."""
    cell = llama_cell(cells)
    if cell is None:
        return ()
    found: dict[tuple[object, ...], Configuration] = {}
    for name in (*COMPARED, OURS):
        _add(found, PLAN_LABELS[name], compared_run(cell, name))
    for run in sorted(cell.runs, key=lambda run: run.volume_bytes):
        if len(found) < _COUNT and run.communication_s is not None:
            _add(found, PLAN_LABELS.get(run.name, run.name), run)
    return tuple(sorted(found.values(), key=lambda one: one.volume_bytes))


def _add(found: dict[tuple[object, ...], Configuration], name: str, run: PlanRun | None) -> None:
    if run is not None and run.time_s is not None and (run.choices, run.storage) not in found:
        found[run.choices, run.storage] = Configuration(
            name=name, volume_bytes=run.volume_bytes, communication_s=run.communication_s, time_s=run.time_s
        )


def draw_figure_1(configurations: Sequence[Configuration]) -> str:
    """Each number relative to the minimum of its kind, so that their orders can be compared."""
    columns = (
        ("volume, symbolic", "#e0a93b", [one.volume_bytes for one in configurations], mebibytes),
        ("communication time", COMMUNICATION_COLOR, [one.communication_s for one in configurations], milliseconds),
        ("step time", "#2f62b5", [one.time_s for one in configurations], milliseconds),
    )
    series = []
    for name, color, values, show in columns:
        smallest = min((value for value in values if value), default=1.0)
        bars = tuple(
            None if value is None else Bar(value=value / smallest, hint=f"{one.name}, {name} ({show(value)})")
            for one, value in zip(configurations, values, strict=True)
        )
        series.append(Series(name=name, color=color, bars=bars))
    return bar_chart(
        "LLAMA, each number relative to the minimum of its kind",
        [one.name for one in configurations],
        series,
        value_name="times the minimum",
        show=digits,
        show_tick=lambda value: f"{value:g}",
        width=1100,
    )
