"""The extras of pyproject.toml bring what the examples import and what the library's hints promise."""

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from jaxquard._install_hint import Extra, install_hint

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
HINT = re.compile(r"(?:jaxquard|\.)\[([a-z,-]+)\]")


def distribution(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower()


def distributions(extra: str) -> set[str]:
    """The packages that an extra of jaxquard installs, extras of extras included."""
    found = set(map(distribution, PROJECT["dependencies"]))
    for requirement in EXTRAS[extra]:
        if inner := re.fullmatch(r"jaxquard\[([\w,-]+)\]", requirement):
            found |= set().union(*map(distributions, inner[1].split(",")))
        else:
            found.add(distribution(requirement))
    return found


def third_party_imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    siblings = {path.stem for path in EXAMPLES}
    return {name.split(".")[0] for name in names} - {"jaxquard"} - siblings - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_extra_covers_what_an_example_imports(path):
    assert third_party_imports(path) <= distributions("examples")


@pytest.mark.parametrize(("use", "extra"), [('runtime="ray"', "ray"), ("jq.Checkpoints(", "checkpoint")])
def test_and_what_it_uses_through_jaxquard(use, extra):
    assert any(use in path.read_text() for path in EXAMPLES)
    assert distributions(extra) <= distributions("examples")


def test_the_examples_extra_brings_nothing_more():
    used = set().union(*map(third_party_imports, EXAMPLES)) | distributions("ray")
    assert distributions("examples") == used | set(map(distribution, PROJECT["dependencies"]))


@pytest.mark.parametrize("extra", get_args(Extra))
def test_a_hint_names_an_extra_that_exists(extra):
    assert extra in EXTRAS
    assert install_hint(extra) == f"Run: pip install 'jaxquard[{extra}]', or '.[{extra}]' in a checkout."


def test_all_hints_of_the_library_come_from_one_place():
    hints = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "_install_hint.py" and HINT.search(path.read_text())
    }
    assert not hints


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_pages_name_extras_that_exist(page):
    named = {extra for names in HINT.findall((ROOT / page).read_text()) for extra in names.split(",")}
    assert named <= set(EXTRAS)


def test_the_readme_lists_every_extra_for_users():
    assert set(HINT.findall((ROOT / "README.md").read_text())) == set(EXTRAS) - {"dev", "docs"}
