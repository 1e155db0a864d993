"""The paper's numbers, as its text gives them: `paper.toml`."""

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperHeadline:
    """A number that the paper claims.

    Attributes:
        unit: "x" for a ratio that should be large, "x below" for one that should be small, "error", "programs", "min".
        why: what our number is, and what parts it from the paper's.
    """

    key: str
    title: str
    value: float
    unit: str
    section: str
    why: str


def load_paper() -> tuple[PaperHeadline, ...]:
    """Reads the file in the package."""
    text = (resources.files("jaxquard.evaluate.cfp") / "paper.toml").read_text()
    return tuple(PaperHeadline(**headline) for headline in tomllib.loads(text)["headlines"])
