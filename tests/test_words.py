"""The words of the code and of its docs: one name for one thing, and the field's name where it has one."""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "jaxquard"


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def test_a_class_name_means_one_thing():
    classes = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in parse(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert classes["RemoteMesh"] == 1
    assert [name for name, count in classes.items() if count > 1] == []


# One thing in several modules: the functions that every model and every paper has, a command and what it calls, a pass
# and the tool that it applies, a norm on one device and on a mesh, the reader of a
# plan's file, be it of products or of a step.
SHARED_FUNCTIONS = {
    *("flops_per_token", "init", "loss", "num_parameters", "shardings", "synthetic_batch"),
    *("check_claims", "headlines", "read_results", "results_text"),
    *("calibrate", "main", "show"),
    *("inline_calls", "open_checkpoints"),
    *("layer_norm", "rms_norm"),
    "load_plan",
}


def test_a_function_name_means_one_thing():
    functions = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in parse(path).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    )
    assert {name for name, count in functions.items() if count > 1} == SHARED_FUNCTIONS


# Words that the field has others for; the glossary (docs/glossary.md) has those. An underscore ends a word, so that
# parts of identifiers count. Honest uses are excepted by what stands beside them: "at least", "a power cut".
PRIVATE_WORDS = re.compile(
    r"(?<![a-z])(?:"
    r"(?<!power )cuts?(?![ _]off)|cutting|borders?(?![-:])|banks?|travellers?|contenders?|rivals?|pacers?|crews?|"
    r"berths?|homeless|misfits?|rooms|search room|(?:a|each|every|this) room(?! for)|"
    r"tells?|told|telling|(?<!detect_)race[ds]?(?! condition| detected)|racing|"
    r"set[ _]aside|sets aside|signs?[ _]of[ _]life|hand[-_ ]?overs?|handed over|hands over|takes? over the|in hand:|"
    r"(?<!at[ _\n])least(?! squares)(?! common)|one's own|of now|of then|last[ _]words|is paid for|not better in both|"
    r"even_times|later_work|own_equations|unseen_products|price_s_per_byte|silence_limit_s"
    r")(?![a-z])|\b(?:in_parts|both_ways)\b",
    re.IGNORECASE,
)
# Names that files and calls of earlier versions have, where they are still read, and where that is tested or announced.
FORMER_NAMES = {
    "CHANGELOG.md": {"silence_limit_s", "in_parts", "both_ways"},
    "src/jaxquard/evaluate/cfp/cells/cell.py": {"least"},
    "src/jaxquard/gemm/layers/plan_file.py": {"in_parts", "both_ways"},
    "src/jaxquard/gemm/problem.py": {"in_parts", "both_ways"},
    "src/jaxquard/intraop/plan/plan_record.py": {"rivals"},
    "src/jaxquard/runtime/remote_mesh.py": {"silence_limit_s"},
    "tests/gemm/layers/test_plan_file.py": {"in_parts"},
    "tests/intraop/plan/test_sharding_plan.py": {"rivals", "set aside"},
    "tests/runtime/test_remote_mesh.py": {"silence_limit_s"},
}


def written_texts() -> dict[str, str]:
    """Everything that a person wrote in words, by its path; not goldens, saved plans and other data."""
    folders = ("src", "tests", "docs", "benchmarks", "examples")
    found = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".toml"}
    ]
    found += [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in found if path != Path(__file__)}


def test_code_and_docs_use_the_words_of_the_field():
    texts = written_texts()
    assert {"README.md", "CONTRIBUTING.md", "pyproject.toml", "tests/test_docs.py", "docs/design.md"} <= set(texts)
    found = {
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}": match[0]
        for name, text in texts.items()
        for match in PRIVATE_WORDS.finditer(text)
        if match[0].lower() not in FORMER_NAMES.get(name, ())
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "is_cut_over",
        "the cuts of x",
        "Rivals",
        "def hand_over(",
        "a border",
        "the least time",
        "each room",
        "a told one",
    ],
)
def test_private_words_are_found(text):
    assert PRIVATE_WORDS.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "at least 3",
        "at\nleast 3",
        "least squares",
        "is cut off",
        "a power cut",
        "border: 1px",
        "arrivals",
        "a race condition",
        "RACE DETECTED",
        "detect_races",
    ],
)
def test_honest_words_are_not(text):
    assert PRIVATE_WORDS.search(text) is None


def docstrings(path: Path) -> dict[int, str]:
    """The docstrings of a file: of the module, of its classes and of all functions, by line."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(parse(path)) if isinstance(node, kinds)]
    return {node.body[0].lineno: text for node in nodes if (text := ast.get_docstring(node)) is not None}


def test_docstrings_open_with_a_verb_or_a_noun():
    folders = ("src", "tests", "benchmarks", "examples", "docs")
    found = {
        f"{path.relative_to(ROOT)}:{line}": text.splitlines()[0]
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for line, text in docstrings(path).items()
    }
    assert len(found) > 2000
    assert {place: text for place, text in found.items() if re.match(r"(What|Whether|How|Which)\b", text)} == {}


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*/**/__init__.py")), ids=lambda path: path.parent.name)
def test_a_subpackage_says_what_goes_in_and_what_comes_out(path):
    text = ast.get_docstring(parse(path)) or ""
    assert re.search(r"\bIn: ", text)
    assert re.search(r"\b[Oo]ut: ", text)
    assert len([line for line in text.splitlines() if line]) <= 8
