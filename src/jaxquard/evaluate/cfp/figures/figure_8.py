"""Figure 8: what is sent, how long that takes, and the bandwidth that follows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxquard.evaluate.cfp.cells.cell import Cell
from jaxquard.evaluate.cfp.cells.labels import PLAN_COLORS, PLAN_LABELS, model_label
from jaxquard.evaluate.cfp.cells.pick import compared_run, first_cell, models_of
from jaxquard.evaluate.cfp.figures.figure_7 import PLANS
from jaxquard.evaluate.common.numbers import digits
from jaxquard.report.charts.bar_chart import Bar, Series, bar_chart


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationRow:
    """Bytes that each device sends in a compiled step, and the communication that computation does not hide."""

    model: str
    plan: str
    sent_bytes: float
    communication_s: float

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """None where nothing is left to see."""
        return self.sent_bytes / self.communication_s if self.communication_s > 0 else None


def figure_8(cells: Sequence[Cell]) -> tuple[CommunicationRow, ...]:
    """Returns the bytes and times of plans, for one cell of each model."""
    found = []
    for model in models_of(cells):
        cell = first_cell(cells, model)
        for plan in PLANS if cell is not None else ():
            run = None if cell is None else compared_run(cell, plan)
            if run is not None and run.compiled_bytes is not None and run.communication_s is not None:
                sent = CommunicationRow(
                    model=model, plan=plan, sent_bytes=run.compiled_bytes, communication_s=run.communication_s
                )
                found.append(sent)
    return tuple(found)


def draw_figure_8(sent: Sequence[CommunicationRow]) -> list[str]:
    """Bytes, time and bandwidth."""
    return [
        _draw("Communication that is not hidden", sent, "ms", lambda one: one.communication_s * 1e3),
        _draw("Sent by each device, compiled", sent, "MiB", lambda one: one.sent_bytes / 2**20),
        _draw("Achieved bandwidth of a device", sent, "GB/s", _gigabytes_per_s),
    ]


def _gigabytes_per_s(one: CommunicationRow) -> float | None:
    return None if one.bandwidth_bytes_per_s is None else one.bandwidth_bytes_per_s / 1e9


def _draw(
    title: str, sent: Sequence[CommunicationRow], unit: str, value_of: Callable[[CommunicationRow], float | None]
) -> str:
    models = list(dict.fromkeys(one.model for one in sent))
    known = {(one.model, one.plan): value_of(one) for one in sent}
    series = []
    for plan in PLANS:
        values = [known.get((model, plan)) for model in models]
        bars = tuple(
            None if value is None else Bar(value=value, hint=f"{PLAN_LABELS[plan]}, {model_label(model)}")
            for model, value in zip(models, values, strict=True)
        )
        series.append(Series(name=PLAN_LABELS[plan], color=PLAN_COLORS[plan], bars=bars))
    return bar_chart(
        title,
        [model_label(model) for model in models],
        series,
        value_name=unit,
        show=digits,
        show_tick=lambda value: f"{value:g}",
    )
