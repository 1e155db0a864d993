"""Verdicts on a paper's headline numbers: each paper words its own, and all are graded alike."""

import enum
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
