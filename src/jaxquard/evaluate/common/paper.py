"""The numbers that a paper's text gives: `paper.toml` in the folder of its evaluation."""

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperHeadline:
    """A number that the paper claims.

    Attributes:
        unit: "%", "x" for a ratio that should be large, "x below" for one that should be small, "error", "programs",
            "s" or "min".
        why: what our number is, and what may part it from the paper's.
        why_priced: the same of a number that is priced for a cluster; empty where `why` says it as well.
    """

    key: str
    title: str
    value: float
    unit: str
    section: str
    why: str
    why_priced: str = ""


def read_paper(package: str) -> dict[str, Any]:
    """Returns the tables of a package's `paper.toml`."""
    return tomllib.loads((resources.files(package) / "paper.toml").read_text())


def paper_headlines(content: dict[str, Any]) -> tuple[PaperHeadline, ...]:
    """Returns the headlines of a file, in its order."""
    return tuple(PaperHeadline(**headline) for headline in content["headlines"])
