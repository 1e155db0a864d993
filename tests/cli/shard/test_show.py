"""`jaxquard shard show`: blocks with the user's lines, segments, and no measuring."""

import sys

import jax
import pytest

from jaxquard.cli.shard.find_step import find_step
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli
from tests.cli.shard.user_steps import write_module


def run(*words):
    return run_cli("shard", "show", *words)


@pytest.fixture(autouse=True)
def nothing_is_measured(tmp_path, monkeypatch):
    write_module(tmp_path, monkeypatch)
    monkeypatch.setattr("jaxquard.pricing.MeasuredPricer.price_all", None)
    yield
    sys.modules.pop("steps", None)


def test_a_file(tmp_path):
    """Its folder need not be the one in which the command runs."""
    by_file, by_module = run(f"{tmp_path}/steps.py:make_step", "--json"), run("steps:make_step", "--json")
    assert by_file.exit_code == 0, by_file.stderr
    assert read_json(by_file)["num_equations"] == read_json(by_module)["num_equations"]
    assert run("no.py:make_step").stderr.startswith("error: there is no file 'no.py' here")


def test_a_model():
    result = run("gpt-tiny")
    assert result.exit_code == 0, result.stderr
    first, *lines = result.stdout.splitlines()
    assert "10 blocks in 4 segments of 3 kinds, over devices=8" in first
    assert "segment 2, kind 1, as segment 1" in lines
    # Look-up, 2 layers of 4 blocks, head: each with the three ways of figure 2a.
    assert sum(line.strip().startswith("rows 8, columns ") for line in lines) == 10
    assert any(line.strip().startswith("params.head, language.py:") for line in lines)


def test_of_a_model_there_are_only_shapes():
    """Nothing is made or run before the search begins."""
    step = find_step("gpt-tiny", batch_size=4)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(step.args))
    assert step.args[1]["tokens"].shape[0] == 4


def test_a_function_on_another_mesh():
    result = run("steps:make_step", "--mesh", "2x4", "--batch-size", 8)
    assert result.exit_code == 0, result.stderr
    assert "1 block in 1 segment of 1 kind, over outer=2 x inner=4" in result.stdout
    assert "argument 0, steps.py:7  dot_general float32[8,32] float32[32,64] -> float32[8,64]" in result.stdout
    assert "rows 8, columns 64, contracted 32" in result.stdout


def test_json():
    answer = read_json(run("steps:make_step", "--mesh", "2x4", "--batch-size", 8, "--json"))
    assert answer["axes"] == {"outer": 2, "inner": 4}
    assert answer["segments"] == [{"number": 0, "kind": 0, "blocks": [0]}]
    (block,) = answer["blocks"]
    (contraction,) = block["contractions"]
    assert contraction == {
        "parameters": ["argument 0"],
        "scope": "",
        "line": "steps.py:7",
        "primitive": "dot_general",
        "inputs": ["float32[8,32]", "float32[32,64]"],
        "output": "float32[8,64]",
    }
    assert [choice["name"] for choice in block["choices"]] == ["rows", "columns", "contracted"]
    assert answer["notes"] == []


def test_operations_without_a_rule_are_listed_at_the_end():
    result = run("steps:make_seen")
    assert result.exit_code == 0, result.stderr
    assert "note: operations without a rule, not partitioned: pure_callback" in result.stdout.splitlines()[-1]


def test_more_devices_than_there_are_here():
    result = run("steps:make_step", "--devices", 16)
    assert "over devices=16" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpt-huge",), "no model is called 'gpt-huge'. Use one of: gpt-tiny, "),
        (("steps:make_step", "--mesh", "8x"), "--mesh should be one size or two, such as 8 or 2x4, but is '8x'."),
        (("steps:make_nothing",), "steps:make_nothing should return (train_step, args)"),
    ],
)
def test_refused(words, message):
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
