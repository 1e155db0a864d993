"""The cells that were measured: they can be read, drawn, and stand in the docs as they are."""

import re
from pathlib import Path

import pytest

from benchmarks.shard_search import _parser, _specs, summary
from jaxquard.evaluate.cfp import cfp_page
from jaxquard.evaluate.cfp.cells.results_file import read_results

ROOT = Path(__file__).parents[2]
RESULTS = read_results(ROOT / "benchmarks" / "results" / "shard_search.json")
DOCS = "".join((ROOT / "docs" / name).read_text() for name in ("benchmarks.md", "benchmarks_history.md"))
BASELINES = ("data parallel", "zero 1", "zero 3", "megatron", "megatron, sequence parallel", "volume")


def test_the_page_is_drawn():
    page = cfp_page(RESULTS)
    assert "figure-11" in page
    assert "nan" not in page


@pytest.mark.parametrize("cell", RESULTS.cells, ids=lambda cell: cell.spec.name)
def test_the_docs_show_what_was_measured(cell):
    """A row of a table has the time of our plan and the ratios of the baselines; a new measurement needs a new row."""
    best = cell.best
    assert best is not None
    assert best.measured_s is not None
    runs = [cell.run(name) for name in BASELINES]
    ratios = [run.measured_s / best.measured_s for run in runs if run is not None and run.measured_s is not None]
    assert len(ratios) == len(BASELINES)
    shown = [f" {best.measured_s * 1e3:.1f} ms", *(f"{ratio:.2f}" for ratio in ratios)]
    rows = [line for line in DOCS.splitlines() if line.startswith("|")]
    assert any(all(number in row for number in shown) for row in rows), shown
    assert summary(cell).startswith(cell.spec.name)


def test_every_command_of_the_docs_names_cells():
    commands = re.findall(r"python -m benchmarks\.shard_search\s+(--[^`]+)`", DOCS)
    commands = [re.sub(r" --out \S+", "", command) for command in commands if command != "--help"]
    assert len(commands) == 3
    assert all(_specs(_parser().parse_args(command.split())) for command in commands)
