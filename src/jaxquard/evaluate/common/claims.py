"""Claims that a paper makes in words, held against our numbers, each with what speaks against it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxquard.report.html_page import Badge, html_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of the paper, shortened.

    Attributes:
        num_looked_at: cells, points or pairs that could have spoken against it.
        exceptions: those that do.
    """

    section: str
    text: str
    num_looked_at: int
    exceptions: tuple[str, ...]

    @property
    def holds(self) -> bool | None:
        """None if there was nothing to look at."""
        return None if self.num_looked_at == 0 else not self.exceptions


def make_claim(section: str, text: str, num_looked_at: int, exceptions: Iterable[str]) -> Claim:
    """Returns a claim with the exceptions that were found."""
    return Claim(section=section, text=text, num_looked_at=num_looked_at, exceptions=tuple(exceptions))


def claim_table(claims: Sequence[Claim]) -> str:
    """The claims as HTML: each with its section, whether it holds here, and the exceptions."""
    rows = []
    for claim in claims:
        badge = {
            True: Badge(text="holds", kind="good"),
            False: Badge(text="not everywhere", kind="poor"),
            None: Badge(text="not run", kind="fair"),
        }[claim.holds]
        said = "; ".join(claim.exceptions) or ("no exception" if claim.num_looked_at else "")
        rows.append([claim.text, claim.section, badge, f"{claim.num_looked_at}", said])
    return html_table(["claim", "section", "here", "looked at", "exceptions"], rows, words=(0, 1, 4))
