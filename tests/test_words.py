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
def python_texts() -> dict[str, str]:
    """All Python code of the repository, by its path."""
    folders = ("src", "tests", "benchmarks", "examples", "docs")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def public_names(keyword: str) -> Counter[str]:
    """Counts the public names that modules of the library define: of classes by `class`, of functions by `def`."""
    definition = re.compile(rf"^{keyword} ([^\W_]\w*)", re.MULTILINE)  # To parse all modules takes seconds.
    texts = (text for name, text in python_texts().items() if name.startswith("src/"))
    return Counter(name for text in texts for name in definition.findall(text))


def test_a_class_name_means_one_thing():
    classes = public_names("class")
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
    functions = public_names("def")
    assert {name for name, count in functions.items() if count > 1} == SHARED_FUNCTIONS


# Words that the field has others for; the glossary (docs/glossary.md) has those. An underscore ends a word, so that
# parts of identifiers count. Honest uses are excepted by what stands beside them: "at least", "a power cut". They are
# looked for in lower case, and first of all their first letters, which takes a quarter of the time.
PRIVATE_WORDS = re.compile(
    r"(?=[abcehilmnoprstu])(?:(?<![a-z])(?:"
    r"(?<!power )cuts?(?![ _]off)|cutting|borders?(?![-:])|banks?|travellers?|contenders?|rivals?|pacers?|crews?|"
    r"berths?|homeless|misfits?|rooms|search room|(?:a|each|every|this) room(?! for)|"
    r"tells?|told|telling|(?<!detect_)race[ds]?(?! condition| detected)|racing|"
    r"set[ _]aside|sets aside|signs?[ _]of[ _]life|hand[-_ ]?overs?|handed over|hands over|takes? over the|in hand:|"
    r"(?<!at[ _\n])least(?! squares)(?! common)|one's own|of now|of then|last[ _]words|is paid for|not better in both|"
    r"even_times|later_work|own_equations|unseen_products|price_s_per_byte|silence_limit_s"
    r")(?![a-z])|\b(?:in_parts|both_ways)\b)"
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
        for match in PRIVATE_WORDS.finditer(text.lower())
        if match[0] not in FORMER_NAMES.get(name, ())
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
    assert PRIVATE_WORDS.search(text.lower())


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
    assert PRIVATE_WORDS.search(text.lower()) is None


def docstrings(text: str) -> dict[int, str]:
    """The docstrings of a file: of the module, of its classes and of all functions, by line."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return {node.body[0].lineno: text for node in nodes if (text := ast.get_docstring(node)) is not None}


QUESTION = r"(?:What|Whether|How|Which)\b"


def questions(text: str) -> dict[int, str]:
    """The first lines of docstrings that open like questions, by line; only files with such a text are parsed."""
    if re.search(rf"[\"']\s*{QUESTION}", text) is None:
        return {}
    return {line: found.splitlines()[0] for line, found in docstrings(text).items() if re.match(QUESTION, found)}


def test_docstrings_open_with_a_verb_or_a_noun():
    assert len(python_texts()) > 1000
    found = {name: questions(text) for name, text in python_texts().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("docstring", ['"""What it is."""', "'How.'", '"""\n    Whether.\n    """', 'r"""Which."""'])
def test_docstrings_that_open_like_questions_are_found(docstring):
    assert list(questions(f"class One:\n  def two():\n    {docstring}\n")) == [3]


@pytest.mark.parametrize("docstring", ['"""Whatever it is."""', '"""Says how."""', '"""A.\n\n    How?\n    """'])
def test_other_docstrings_are_not(docstring):
    assert questions(f"class One:\n  def two():\n    {docstring}\n") == {}


@pytest.mark.parametrize("path", sorted(SOURCE.glob("*/**/__init__.py")), ids=lambda path: path.parent.name)
def test_a_subpackage_says_what_goes_in_and_what_comes_out(path):
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert re.search(r"\bIn: ", text)
    assert re.search(r"\b[Oo]ut: ", text)
    assert len([line for line in text.splitlines() if line]) <= 8
