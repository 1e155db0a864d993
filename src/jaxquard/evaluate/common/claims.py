"""Claims that a paper makes in words, held against our numbers, each with what speaks against it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

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


def claim_table(claims: Sequence[Claim], *, elsewhere: Mapping[str, Sequence[Claim]] = MappingProxyType({})) -> str:
    """The claims as HTML: each with its section, whether it holds here, and the exceptions.

    Args:
        elsewhere: the same claims under other assumptions, each with a column of its own that counts exceptions.
    """
    rows = []
    for number, claim in enumerate(claims):
        others = [_badge(of_assumption[number], counts=True) for of_assumption in elsewhere.values()]
        said = "; ".join(claim.exceptions) or ("no exception" if claim.num_looked_at else "")
        rows.append([claim.text, claim.section, _badge(claim), f"{claim.num_looked_at}", said, *others])
    return html_table(["claim", "section", "here", "looked at", "exceptions", *elsewhere], rows, words=(0, 1, 4))


def _badge(claim: Claim, *, counts: bool = False) -> Badge:
    if claim.holds is None:
        return Badge(text="not run", kind="fair")
    if claim.holds:
        return Badge(text="holds", kind="good")
    return Badge(text=f"{len(claim.exceptions)} not" if counts else "not everywhere", kind="poor")
