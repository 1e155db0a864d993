"""What the package exports and what the API page lists are the same."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)\w+:: (jaxquard[\w.]*)\.(\w+)$", re.MULTILINE)


def exported(module: str) -> set[str]:
    """Names that `__init__.py` re-exports, as `from x import y as y`."""
    source = ROOT.joinpath("src", *module.split("."), "__init__.py").read_text()
    return {
        alias.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def documented(module: str) -> list[str]:
    page = (ROOT / "docs" / "api.md").read_text()
    return [name for owner, name in DIRECTIVE.findall(page) if owner == module]


@pytest.mark.parametrize(
    "module", ["jaxquard", "jaxquard.schedules", "jaxquard.gemm", "jaxquard.cluster", "jaxquard.pricing"]
)
def test_the_api_page_lists_what_is_exported(module):
    names = documented(module)
    assert sorted(names) == sorted(set(names)), "listed twice"
    assert set(names) == exported(module)
