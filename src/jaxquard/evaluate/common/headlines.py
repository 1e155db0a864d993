"""A paper's headline numbers beside ours: their table on a page, their units, and the count of their verdicts."""

import abc
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxquard.evaluate.common.numbers import ratio
from jaxquard.evaluate.common.paper import PaperHeadline
from jaxquard.evaluate.common.verdicts import Verdict
from jaxquard.report.html_page import Badge, html_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline(abc.ABC):
    """One number, in the paper's unit; the evaluation of each paper has its own verdicts.

    Attributes:
        ours: None where the runs that it needs are missing.
    """

    paper: PaperHeadline
    ours: float | None

    @property
    @abc.abstractmethod
    def verdict(self) -> Verdict:
        """The verdict on our number."""


def headline_table(
    headlines: Sequence[Headline],
    *,
    why: str,
    columns: Mapping[str, Sequence[str]] | None = None,
    words: Collection[str] = (),
) -> str:
    """The headlines as HTML: paper, ours, verdict and why.

    Args:
        why: the heading of the last column.
        columns: further ones before the verdict, each with a text for every headline.
        words: the names of those further ones that are words, not numbers.
    """
    columns = columns or {}
    header = ["headline", "section", "paper", "ours", *columns, "verdict", why]
    rows: list[list[str | Badge]] = [
        [
            headline.paper.title,
            headline.paper.section,
            in_unit(headline.paper.value, headline.paper.unit),
            in_unit(headline.ours, headline.paper.unit),
            *(column[place] for column in columns.values()),
            headline.verdict.badge,
            headline.paper.why,
        ]
        for place, headline in enumerate(headlines)
    ]
    return html_table(header, rows, words=(0, 1, *map(header.index, words), len(header) - 1))


def verdict_counts(headlines: Sequence[Headline], verdicts: Sequence[Verdict]) -> str:
    """`5 of 17 headlines reproduce, 4 lie within the band, 8 do not reproduce`."""
    counts = Counter(headline.verdict for headline in headlines)
    first, *others = verdicts
    words = [f"{counts[first]} of {counts.total()} headlines {first.counted}"]
    return ", ".join(words + [f"{counts[verdict]} {verdict.counted}" for verdict in others])


def in_unit(value: float | None, unit: str) -> str:
    """A headline's number: `13.8 %`, `2.40x`, `9.22 s`, `12 min`, or `-` for none."""
    if value is None:
        return "-"
    shown = {
        "%": f"{value:.1f} %",
        "error": f"{value:.3g}",
        "programs": f"{value:.0f}",
        "s": f"{value:.2f} s",
        "min": f"{value:.0f} min" if value >= 1 else f"{60 * value:.0f} s",
    }
    return shown.get(unit, ratio(value))


def span_in_unit(ends: tuple[float, float], unit: str) -> str:
    """A band: `10.8 to 42.0 %`, or one number where its ends are written alike."""
    low, high = (in_unit(end, unit) for end in ends)
    return high if low == high else f"{low.removesuffix(' %').removesuffix(' s')} to {high}"
