"""The page of published figures: each beside ours, and by which parts ours came about; the same as JSON."""

import dataclasses
import json
from collections.abc import Sequence

from jaxquard.evaluate.published.results import PublishedResult, PublishedResults, summarise_errors
from jaxquard.evaluate.published.rows import DataKind
from jaxquard.report.charts.xy_chart import Dot, DotSeries, xy_chart
from jaxquard.report.html_page import Badge, html_charts, html_page, html_paragraph, html_section, html_table

_SCHEMA, _VERSION = "jaxquard-published", 1
_TITLE = "Published training runs, priced by jaxquard"
_COLORS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")
# Of the errors that are wanted: steps 8 % in the median and 25 % at worst, bubbles 2 points, memory 8 %.
_LIMITS = {DataKind.STEPS: (0.08, 0.25), DataKind.BUBBLES: (0.0005, 0.02), DataKind.MEMORY: (0.02, 0.08)}
_HEADINGS = {
    DataKind.STEPS: "Seconds of a training step",
    DataKind.BUBBLES: "Bubbles of pipelines",
    DataKind.MEMORY: "Memory of a device",
}
_EXPLANATIONS = {
    DataKind.STEPS: "Ours: each product priced by its own shape, attention by its generation, collectives by the "
    "levels of the cluster, and by what the framework hides of them. Constants belong to a chip or to a "
    "framework, none to a row. What a row leaves unsaid (recomputation, microbatch, chunks) is the fastest that fits "
    "the memory.",
    DataKind.BUBBLES: "Ours: the player of schedules, with the published times of a stage's tasks and of a transfer. "
    "The error is the difference of the two rates; where samples a second are published, it is relative.",
    DataKind.MEMORY: "Ours: the formulas of arXiv 2205.05198, generalised to other widths.",
}


def published_page(results: Sequence[PublishedResults]) -> str:
    """Returns one HTML page that needs nothing else."""
    intro = " ".join(
        f"{one.file}: {len(one.rows)} rows, median error {_percent(summarise_errors(one)['median_error'])}."
        for one in results
        if one.rows
    )
    return html_page(_TITLE, html_paragraph(intro), [_section(one) for one in results])


def published_text(results: Sequence[PublishedResults]) -> str:
    """Returns all figures as JSON."""
    files = {
        one.file: {
            "kind": one.kind.value,
            "summary": summarise_errors(one),
            "rows": [{**dataclasses.asdict(row), "error": row.error} for row in one.rows],
        }
        for one in results
    }
    return json.dumps({"schema": _SCHEMA, "version": _VERSION, "files": files}, indent=1, allow_nan=False) + "\n"


def _section(results: PublishedResults) -> str:
    parts = [html_paragraph(_EXPLANATIONS[results.kind])]
    if results.rows:
        if results.kind is DataKind.STEPS:
            parts.append(html_charts(_chart(results)))
        parts += [_group_table(results), _row_table(results)]
    if results.skipped:
        parts.append(html_paragraph("Skipped:"))
        parts.append(html_table(("row", "reason"), [(row.name, row.reason) for row in results.skipped], words=(0, 1)))
    return html_section(f"{results.kind.value}-{results.file}", _HEADINGS[results.kind], *parts)


def _chart(results: PublishedResults) -> str:
    series = [
        DotSeries(
            name=group,
            color=_COLORS[index % len(_COLORS)],
            dots=tuple(Dot(x=row.published, y=row.ours, hint=f"{row.name} {row.model}") for row in rows),
        )
        for index, (group, rows) in enumerate(results.groups.items())
    ]
    return xy_chart("A step, in seconds", series, x_name="published", y_name="ours", is_diagonal=True)


def _group_table(results: PublishedResults) -> str:
    rows = [
        (group, str(one["rows"]), _percent(one["median_error"]), _percent(one["worst_error"]))
        for group, one in summarise_errors(results)["by_system"].items()
    ]
    return html_table(("", "rows", "median error", "worst"), rows)


def _row_table(results: PublishedResults) -> str:
    header = ["row", "model", "strategy", "published", "ours", "error"]
    names = list(results.rows[0].parts)
    rows: list[list[str | Badge]] = [
        [
            row.name if row.group in row.name else f"{row.name}, {row.group}",
            row.model,
            row.strategy,
            f"{row.published:.4g}",
            f"{row.ours:.4g}",
            _badge(row, results.kind),
            *(_percent(row.parts[name] / row.ours) for name in names),
        ]
        for row in results.rows
    ]
    return html_table([*header, *names], rows, words=(0, 1, 2))


def _badge(row: PublishedResult, kind: DataKind) -> Badge:
    good, fair = _LIMITS[kind]
    grade = "good" if row.error <= good else "fair" if row.error <= fair else "poor"
    return Badge(text=f"{100 * row.signed:+.1f} %", kind=grade)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
