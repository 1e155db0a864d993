"""`jaxquard gemm overlap`: what it prints and refuses; the compiler is replaced by one that answers at once."""

import pytest

from jaxquard.gemm import TPU_COMPILER_OPTIONS, AlgorithmOptions
from jaxquard.gemm.overlap.count_hidden import Overlap
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli


def run(*words):
    return run_cli("gemm", "overlap", *words)


@pytest.fixture
def asked(monkeypatch):
    """Records the calls of the library."""
    asked = {}

    def report(mesh, *, algorithms, on_progress, **how):
        asked.update(how, mesh=mesh, algorithms=algorithms)
        return {name: {flow: Overlap(hideable=6, hidden=5) for flow in ("os", "ls", "rs")} for name in algorithms}

    monkeypatch.setattr("jaxquard.gemm.overlap.compile.topology_mesh", lambda topology, shape: (topology, shape))
    monkeypatch.setattr("jaxquard.gemm.overlap.report.overlap_report", report)
    return asked


def test_json(asked):
    result = run("--topology", "v5e:4x8", "--mesh", "8x4", "--slices", 4, "--json")
    assert result.exit_code == 0, result.output
    one = {flow: {"hideable": 6, "hidden": 5} for flow in ("os", "ls", "rs")}
    assert read_json(result) == {"meshslice": one, "wang": one, "collective": one}
    assert asked == {
        "mesh": ("v5e:4x8", (8, 4)),
        "algorithms": ["meshslice", "wang", "collective"],
        "sizes": None,
        "options": AlgorithmOptions(slices=4, split_for_overlap=True),
        "compiler_options": TPU_COMPILER_OPTIONS,
    }


def test_table(asked):
    result = run(
        "--topology", "v4:4x4x2", "--algorithms", "cannon", "--sizes", "64x32x16", "--plain", "--default-options"
    )
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[1:3] == [["algorithm", "os", "ls", "rs"], ["cannon", *["5", "of", "6"] * 3]]
    assert result.stdout.splitlines()[-1] == "compiled with no options"
    assert (asked["mesh"], asked["sizes"], asked["options"]) == (
        ("v4:4x4x2", None),
        (64, 32, 16),
        AlgorithmOptions(slices=4),
    )
    assert asked["compiler_options"] == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mesh", "8"), "--mesh should be 2 whole numbers above 0, such as 8x4, but is '8'."),
        (("--sizes", "8x0x4"), "--sizes should be 3 whole numbers above 0, such as 16384x6144x6144, but is '8x0x4'."),
    ],
)
def test_bad_options(words, message, asked):
    result = run(*words)
    assert (result.exit_code, result.stderr.strip()) == (2, f"error: {message}")
    assert not asked


def test_a_wrong_name_is_said_before_a_missing_compiler(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("--algorithms", "meshslice,foo")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: no GeMM algorithm is called 'foo'. Use one of: meshslice, ")
    assert run().stderr.startswith("error: compiling for a TPU needs libtpu")


def test_a_machine_without_a_compiler_is_answered_in_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    result = run()
    assert result.exit_code != 0
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: compiling for a TPU needs libtpu, which exists for x86-64 only, but this machine is aarch64. "
        "Use an x86-64 machine; it needs no TPU."
    ]
