"""The package's exports, its API page and its wheel agree, and nothing is public by accident."""

import ast
import importlib
import inspect
import io
import pickle
import pydoc
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import jaxquard

ROOT = Path(__file__).parent.parent
DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)\w+:: (jaxquard[\w.]*)\.(\w+)$", re.MULTILINE)
PACKAGES = [
    "jaxquard",
    *(f"jaxquard.{name}" for name in ("schedules", "gemm", "cluster", "pricing", "simulate")),
]
LAZY = [*PACKAGES, "jaxquard.calibrate", "jaxquard.models"]


def seen_by_type_checkers(package: str) -> dict[str, str]:
    """The module that each re-export (`from x import y as y`) of `__init__.py` comes from."""
    source = ROOT.joinpath("src", *package.split("."), "__init__.py").read_text()
    return {
        alias.name: node.module or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def documented(package: str) -> list[str]:
    page = (ROOT / "docs" / "api.md").read_text()
    return [name for owner, name in DIRECTIVE.findall(page) if owner == package]


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_the_api_page_lists_what_is_exported(package):
    names = documented(package)
    assert sorted(names) == sorted(set(names)), "listed twice"
    assert set(names) == set(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_see_what_is_loaded(package):
    module = importlib.import_module(package)
    seen = seen_by_type_checkers(package)
    assert sorted([*seen, *(["__version__"] if package == "jaxquard" else [])]) == sorted(module.__all__)
    for name, home in seen.items():
        loaded = getattr(module, name)
        if home == package:
            assert loaded is importlib.import_module(f"{package}.{name}")
        else:
            assert loaded is getattr(importlib.import_module(home), name)


class TestNames:
    def test_dir_shows_the_public_names_alone(self):
        shown = {name for name in dir(jaxquard) if not name.startswith("__")}
        assert shown == set(jaxquard.__all__) - {"__version__"}

    def test_inner_packages_are_no_attributes(self):
        assert (
            run_python("import jaxquard; print(hasattr(jaxquard, 'ir'), hasattr(jaxquard, 'hlo'))") == "False False\n"
        )

    def test_an_unknown_name(self):
        with pytest.raises(AttributeError, match="module 'jaxquard' has no attribute 'pipeline_yeild'"):
            _ = jaxquard.pipeline_yeild
        with pytest.raises(ImportError, match="cannot import name 'parallelise' from 'jaxquard'"):
            exec("from jaxquard import parallelise")

    @pytest.mark.parametrize("package", PACKAGES)
    def test_a_star_import(self, package):
        names = {}
        exec(f"from {package} import *", names)
        assert set(names) - {"__builtins__"} == set(importlib.import_module(package).__all__)

    def test_help_shows_functions_and_classes(self):
        text = io.StringIO()
        pydoc.Helper(output=text).help(jaxquard)
        assert "search_sharding(" in text.getvalue()
        assert "class RemoteMesh(" in text.getvalue()

    @pytest.mark.parametrize("package", PACKAGES)
    def test_functions_and_classes_can_be_pickled(self, package):
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and getattr(value, "__module__", "").startswith("jaxquard"):
                assert pickle.loads(pickle.dumps(value)) is value


class TestDocstrings:
    @pytest.mark.parametrize("package", PACKAGES)
    def test_open_with_a_verb_or_a_noun(self, package):
        module = importlib.import_module(package)
        documented = {name: getattr(module, name) for name in module.__all__ if name != "__version__"}
        for owner, value in [*documented.items()]:
            if inspect.isclass(value):
                members = {name: member for name, member in vars(value).items() if not name.startswith("_")}
                documented |= {f"{owner}.{name}": member for name, member in members.items()}
        ours = (name for name, value in documented.items() if callable(value) or isinstance(value, property))
        opening = {name: (inspect.getdoc(documented[name]) or "").split(" ")[0] for name in ours}
        assert not {
            name for name, word in opening.items() if word in {"How", "Of", "What", "Where", "Whether", "Which"}
        }


class TestDistribution:
    def test_the_wheel_has_the_version_and_the_mark_of_types(self, tmp_path):
        wheel = pytest.importorskip("hatchling.builders.wheel", reason="builds a wheel")
        (path,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            assert "jaxquard/py.typed" in names
            metadata = wheel.read(f"jaxquard-{jaxquard.__version__}.dist-info/METADATA").decode()
        assert f"\nVersion: {jaxquard.__version__}\n" in metadata
