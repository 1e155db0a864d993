"""Verdicts on a paper's headline numbers: each paper words its own, and all are graded alike."""

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxquard.report.html_page import Badge


class Grade(enum.Enum):
    """The colour of a verdict on the page."""

    GOOD = "good"
    FAIR = "fair"
    POOR = "poor"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict as a headline's table shows it, and as a count of headlines says it: `3 lie within the band`."""

    text: str
    counted: str
    grade: Grade

    @property
    def badge(self) -> Badge:
        return Badge(text=self.text, kind=self.grade.value)


def count_verdicts(found: Iterable[Verdict], verdicts: Sequence[Verdict]) -> str:
    """`5 of 17 headlines reproduce, 4 lie within the band, 8 do not reproduce`."""
    counts = Counter(found)
    first, *others = verdicts
    words = [f"{counts[first]} of {counts.total()} headlines {first.counted}"]
    return ", ".join(words + [f"{counts[verdict]} {verdict.counted}" for verdict in others])
