"""Figure 10: predicted times against those of whole steps, with the root of the mean squared error."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxquard.evaluate.cfp.cells.cell import Cell, PlanRun
from jaxquard.evaluate.cfp.cells.labels import cell_label
from jaxquard.evaluate.cfp.cells.pick import deep_cells, first_cell, models_of
from jaxquard.evaluate.common.numbers import milliseconds
from jaxquard.report.charts.xy_chart import Dot, DotSeries, xy_chart

SUM, SEAMS = "sum of segments, equation (8)", "with what neighbours share"
_COLORS = {SUM: "#e0a93b", SEAMS: "#2f62b5"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Predicted seconds of the plans, and those of their whole steps, in a cell, by one of the two ways to predict."""

    cell: Cell
    way: str
    names: tuple[str, ...]
    predicted_s: tuple[float, ...]
    whole_s: tuple[float, ...]

    @property
    def rmse_s(self) -> float:
        """The root of the mean squared error, in seconds."""
        pairs = zip(self.predicted_s, self.whole_s, strict=True)
        return math.sqrt(sum((one - other) ** 2 for one, other in pairs) / len(self.whole_s))

    @property
    def rmse(self) -> float:
        """The same error as a part of the mean time of whole steps."""
        return self.rmse_s * len(self.whole_s) / sum(self.whole_s)

    @property
    def correlation(self) -> float | None:
        """The correlation of ranks (Spearman): 1 if the order is right; None for fewer than three plans."""
        return _spearman(self.predicted_s, self.whole_s) if len(self.names) > 2 else None


def figure_10(cells: Sequence[Cell]) -> tuple[Predicted, ...]:
    """Returns predictions for one cell of each model and all deep ones, by both ways."""
    found = []
    firsts = [first_cell(cells, model) for model in models_of(cells)]
    for cell in (*filter(None, firsts), *deep_cells(cells)):
        found += [predicted(cell, SUM, lambda run: run.sum_s), predicted(cell, SEAMS, lambda run: run.predicted_s)]
    return tuple(one for one in found if one.names)


def predicted(cell: Cell, way: str, guess: Callable[[PlanRun], float | None]) -> Predicted:
    """Returns the plans of a cell that have both times."""
    pairs = [(run, guess(run), run.time_s) for run in cell.runs]
    known = [(run, one, other) for run, one, other in pairs if one is not None and other is not None]
    return Predicted(
        cell=cell,
        way=way,
        names=tuple(run.name for run, _, _ in known),
        predicted_s=tuple(one for _, one, _ in known),
        whole_s=tuple(other for _, _, other in known),
    )


def draw_figure_10(found: Sequence[Predicted], *, x_name: str) -> list[str]:
    """A chart a cell; the name says what the times of whole steps are."""
    charts = []
    for spec in dict.fromkeys(one.cell.spec for one in found):
        mine = [one for one in found if one.cell.spec == spec]
        series = [DotSeries(name=one.way, color=_COLORS[one.way], dots=_dots(one)) for one in mine]
        charts.append(
            xy_chart(
                cell_label(spec),
                series,
                x_name=x_name,
                y_name="predicted, ms",
                is_diagonal=True,
            )
        )
    return charts


def _dots(found: Predicted) -> tuple[Dot, ...]:
    return tuple(
        Dot(x=whole_s * 1e3, y=guess_s * 1e3, hint=f"{name}: {milliseconds(guess_s)} for {milliseconds(whole_s)}")
        for name, guess_s, whole_s in zip(found.names, found.predicted_s, found.whole_s, strict=True)
    )


def _spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's correlation of ranks; equal values share the mean of theirs."""
    a, b = _ranks(one), _ranks(other)
    mean = (len(a) + 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    bottom = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    return top / bottom if bottom else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]
