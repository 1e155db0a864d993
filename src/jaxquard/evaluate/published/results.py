"""Results of a file of published figures: every row with the published figure, ours and the error; a summary of them.

The error of a step and of memory is relative, |ours / published - 1|. That of a bubble is the difference of two shares.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxquard.evaluate.published.rows import DataKind

_NUM_WORST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """One published figure beside ours.

    Attributes:
        group: the framework of a step, the schedule of a bubble, the quantity of memory.
        signed: the error with its sign; above 0 where ours is larger.
        parts: what ours consists of, by name, in seconds.
    """

    name: str
    group: str
    model: str
    published: float
    ours: float
    signed: float
    strategy: str = ""
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """The error without its sign."""
        return abs(self.signed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A row that the model cannot price, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResults:
    """All rows of a file."""

    kind: DataKind
    file: str
    rows: tuple[PublishedResult, ...]
    skipped: tuple[SkippedRow, ...]

    @property
    def errors(self) -> list[float]:
        """Of all rows."""
        return [row.error for row in self.rows]

    @property
    def groups(self) -> dict[str, list[PublishedResult]]:
        """Rows by framework, schedule or quantity, in the order of the file."""
        found: dict[str, list[PublishedResult]] = {}
        for row in self.rows:
            found.setdefault(row.group, []).append(row)
        return found


def summarise_errors(results: PublishedResults) -> dict[str, Any]:
    """Returns the summary that `--json` prints."""
    worst = sorted(results.rows, key=lambda row: row.error, reverse=True)[:_NUM_WORST]
    return {
        "rows": len(results.rows) + len(results.skipped),
        "skipped": [{"id": row.name, "reason": row.reason} for row in results.skipped],
        "median_error": _rounded(statistics.median(results.errors)) if results.rows else None,
        "mean_error": _rounded(statistics.fmean(results.errors)) if results.rows else None,
        "worst": [
            {
                "id": row.name,
                "system": row.group,
                "model": row.model,
                "published": _rounded(row.published),
                "predicted": _rounded(row.ours),
                "error": _rounded(row.error),
            }
            for row in worst
        ],
        "by_system": {group: _group_summary(rows) for group, rows in results.groups.items()},
    }


def _group_summary(rows: Sequence[PublishedResult]) -> dict[str, Any]:
    errors = [row.error for row in rows]
    return {
        "rows": len(rows),
        "median_error": _rounded(statistics.median(errors)),
        "mean_error": _rounded(statistics.fmean(errors)),
        "worst_error": _rounded(max(errors)),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
