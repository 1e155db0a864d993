"""Docs match the code: all that they name exists, and nothing is left out."""

import re
from pathlib import Path

import pytest

from benchmarks.run import benchmark_names
from docs.draw_figures import FIGURES, STATIC
from docs.draw_imports import find_imports, import_order
from jaxquard.pipeline.plan_step import PASSES
from jaxquard.schedules import SCHEDULES
from tests.golden import check_golden

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "jaxquard"
PAGES = sorted(DOCS.glob("*.md"))


def test_every_pass_has_its_section_in_order():
    sections = re.findall(r"^## (\w+)$", (DOCS / "passes.md").read_text(), re.MULTILINE)
    assert sections == ["trace", *PASSES]


def test_every_schedule_has_a_picture():
    page = (DOCS / "schedules.md").read_text()
    for schedule in SCHEDULES.values():
        assert f"draw(schedules.{schedule.__name__}(" in page


def test_every_page_is_in_the_index():
    index = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or f"\n{page.stem}\n" in index


def test_every_subpackage_is_in_the_table_and_in_the_figure_of_the_design():
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    table = (DOCS / "design.md").read_text().split("## The subpackages")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == folders
    inner = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.glob("*/*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+/\w+)` \|", table, re.MULTILINE)) == inner
    drawn = set(re.findall(r">(\w+)</text>", (STATIC / "layers.svg").read_text()))
    assert folders | {"errors", "_jax_compat"} <= drawn


@pytest.mark.parametrize("container", ["jaxquard", "jaxquard.intraop", "jaxquard.gemm"])
def test_every_arc_of_the_import_graph_points_down(container):
    order, found = import_order(container), find_imports(container)
    assert len(found) > 10
    assert [pair for pair in found if order.index(pair[0]) >= order.index(pair[1])] == []


def cited_decisions(text: str) -> set[int]:
    """The numbers in "design decision 9", "design decisions 7 and 10" and "design decisions 2 to 4"."""
    found = set()
    for numbers in re.findall(r"design decisions? (\d+(?:(?:, | and | to )\d+)*)", text, re.IGNORECASE):
        found |= {int(number) for number in re.findall(r"\d+", numbers)}
    return found


def test_every_design_decision_that_is_cited_is_numbered_in_the_design():
    numbered = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", (DOCS / "design.md").read_text(), re.MULTILINE)]
    assert numbered == list(range(1, len(numbered) + 1))
    files = [path for folder in (SOURCE, ROOT / "tests", DOCS) for path in folder.rglob("*") if path.is_file()]
    texts = {path: path.read_text() for path in files if path.suffix in {".py", ".md", ".toml"}}
    cited = {path: cited_decisions(text) for path, text in texts.items()}
    assert sum(bool(numbers) for path, numbers in cited.items() if path.is_relative_to(SOURCE)) >= 10
    assert {path: numbers - set(numbered) for path, numbers in cited.items() if numbers - set(numbered)} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_and_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (DOCS / target).exists(), target


@pytest.mark.parametrize("name", FIGURES)
def test_generated_figures_are_up_to_date(name, request):
    check_golden(FIGURES[name](), STATIC / name, update=request.config.getoption("--update-golden"))


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.svg")), ids=lambda path: path.stem)
def test_figures_are_used_and_readable_in_light_and_dark(path):
    """Text and ground come from one file, so that a dark page never has dark text on a dark ground."""
    assert any(f"_static/{path.name}" in page.read_text() for page in [*PAGES, ROOT / "README.md"])
    text = path.read_text()
    assert 'class="ground"' in text or '<rect width="100%" height="100%" fill="#ffffff"/>' in text


def test_files_that_contributing_names_exist():
    names = re.findall(r"`(\w+\.py)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert "commute_sums.py" in names
    assert [name for name in names if not any(SOURCE.rglob(name))] == []


def test_benchmarks_that_are_named_exist():
    texts = [(ROOT / name).read_text() for name in ("Makefile", "CONTRIBUTING.md", "docs/benchmarks.md")]
    named = {name for text in texts for name in re.findall(r'BENCH="(\w+)"', text)}
    assert named
    assert named <= set(benchmark_names())
