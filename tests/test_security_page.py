"""docs/security.md: every test that it names exists, and every claim in its table has one."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "security.md"


def lines() -> list[list[str]]:
    """The cells of the table of tests."""
    table = PAGE.read_text().split("## A test for each line")[1]
    return [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| ") and not line.startswith(("| who ", "| ---"))
    ]


NAMED = sorted({name for *_, cell in lines() for name in re.findall(r"`([^`]+)`", cell)})


def test_every_line_names_a_test():
    assert len(lines()) >= 20
    for who, attempt, outcome, tests in lines():
        assert all((who, attempt, outcome))
        assert re.findall(r"`([^`]+)`", tests), attempt


@pytest.mark.parametrize("name", NAMED)
def test_it_exists(name):
    path, _, test = name.partition("::")
    assert (TESTS / path).exists()
    if test:
        names = {node.name for node in ast.parse((TESTS / path).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert test in names
    elif (TESTS / path).is_dir():
        assert list((TESTS / path).rglob("test_*.py"))
