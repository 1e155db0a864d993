"""docs/papers.md lists everything that the papers number, and every name on it exists."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
# Dotted names in code marks, but for files (`jaxquard.json`).
NAME = re.compile(r"`((?:jaxquard|benchmarks)\.(?!json`)\w[\w.]*)`")

# What each paper numbers, read off the papers. Equations without a number go by their section.
SECTIONS = {
    "JaxPP": "1 2 2.1 2.2 2.2.1 2.2.2 3 3.1 3.2 3.3 3.4 4 4.1 4.1.1 4.2 4.3 4.4 "
    "5 5.1 5.1.1 5.1.2 5.1.3 5.2 5.2.1 5.2.2 5.3 6 7",
    "CFP": "1 2 2.1 2.2 2.3 2.4 3 3.1 3.2 3.3 4 4.1 4.2 4.3 4.4 5 5.1 5.2 5.3 5.4 5.5 5.6 5.7 6 7 8",
    "MeshSlice": "1 2 2.1 2.2 2.3 2.3.1 2.3.2 2.3.3 2.3.4 3 3.1 3.1.1 3.1.2 3.2 3.2.1 3.2.2 4 4.1 4.2 4.3 4.4 4.5 "
    "5 5.1 5.1.1 5.1.2 5.1.3 5.1.4 5.2 5.3 5.3.1 5.3.2 6 7 8",
}
NUM_FIGURES = {"JaxPP": 11, "CFP": 14, "MeshSlice": 15}
NUM_TABLES = {"JaxPP": 1, "CFP": 1, "MeshSlice": 3}
NUM_ALGORITHMS = {"JaxPP": 0, "CFP": 1, "MeshSlice": 2}
EQUATIONS = {
    "JaxPP": ["of 3.4"],
    "CFP": [f"({number})" for number in range(1, 10)],
    "MeshSlice": ["of 2.3.1", "of 3.2.2"],
}


def resolve(name: str) -> Any:
    """Imports the longest part of a dotted name that is a module, and looks the rest up in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not (module + ".").startswith(error.name + "."):
                raise
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(f"no module begins {name}")


def rows(paper: str) -> list[list[str]]:
    """The cells of the table below a paper's heading."""
    section = re.split(r"^## ", (DOCS / "papers.md").read_text(), flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith(f"{paper}\n"))
    table = [line for line in text.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def label(cell: str) -> str:
    """`3.4` of "3.4 Weight sharing", `Figure 7`, `Equation (2)`, `Equation of 3.4`."""
    found = re.match(r"\d[\d.]*|(?:Figure|Table|Algorithm) \d+|Equation (?:\(\d+\)|of \d[\d.]*)", cell)
    assert found, f"no label: {cell}"
    return found[0]


def expected(paper: str) -> set[str]:
    return {
        *SECTIONS[paper].split(),
        *(f"Figure {number}" for number in range(1, NUM_FIGURES[paper] + 1)),
        *(f"Table {number}" for number in range(1, NUM_TABLES[paper] + 1)),
        *(f"Algorithm {number}" for number in range(1, NUM_ALGORITHMS[paper] + 1)),
        *(f"Equation {number}" for number in EQUATIONS[paper]),
    }


@pytest.mark.parametrize("paper", SECTIONS)
def test_everything_that_a_paper_numbers_has_a_row(paper):
    assert {label(first) for first, *_ in rows(paper)} == expected(paper)


@pytest.mark.parametrize("paper", SECTIONS)
def test_a_row_names_code_or_says_that_there_is_none(paper):
    for first, code, _ in rows(paper):
        assert code == "–" or NAME.sub("", code).strip(", ") == "", first
        assert code == "–" or NAME.search(code), first


@pytest.mark.parametrize("paper", SECTIONS)
def test_sections_stand_in_the_order_of_the_paper(paper):
    numbers = [label(first) for first, *_ in rows(paper) if first[0].isdigit()]
    assert numbers == SECTIONS[paper].split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_in_the_docs_exists(page):
    for name in sorted(set(NAME.findall(page.read_text()))):
        resolve(name)


def test_a_wrong_name_is_found():
    for name in (
        "jaxquard.pipeline.passes.commute_sums.commute",
        "jaxquard.pipelines.commute_sums",
        "jaxquard.errors.Nothing",
    ):
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            resolve(name)


def test_the_searches_of_a_newcomer_end_within_three_files():
    """README or index, this page, then the file that a row names first."""
    for page in (ROOT / "README.md", DOCS / "index.md", DOCS / "design.md"):
        assert "papers.md" in page.read_text()
    questions = rows("Where do I find ...")
    assert len(questions) >= 7
    for question, file, _ in questions:
        (name,) = NAME.findall(file)
        assert Path(resolve(name).__file__).is_file(), question
