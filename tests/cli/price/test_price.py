"""`jaxquard price`: its table, JSON and timeline, the strategies that it knows, and what it refuses."""

import json
import sys

import pytest

from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli
from tests.cli.shard.user_steps import write_module


def run(*words):
    return run_cli("price", *words)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    write_module(tmp_path, monkeypatch)
    yield tmp_path
    # Imported by the command itself.
    sys.modules.pop("steps", None)


def test_table_timeline_and_json(folder):
    result = run("steps:make_step", "--cluster", "cpu-8", "--cache", "prices", "--out", "t.pftrace.json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("steps:make_step with data on cpu-8 (mesh 8, cpu): ")
    assert "all-reduce" in result.stdout
    assert "compiling for 8 x cpu" in result.stderr
    events = json.loads((folder / "t.pftrace.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"compute", "transfer"}
    # What is compiled is kept, so this is quick.
    content = read_json(run("steps:make_step", "--cluster", "cpu-8", "--cache", "prices", "--json"))
    assert (content["cluster"], content["mesh"], content["fits"]) == ("cpu-8", {"devices": 8}, True)
    assert content["time_s"] == pytest.approx(content["compute_s"] + content["communication_s"])
    assert [row["opcode"] for row in content["collectives"]] == ["all-reduce"] * len(content["collectives"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "fsdp", "tensor", "sequence", "volume"])
def test_strategies(strategy):
    words = ("--cluster", "cpu-8", "--mesh", "2x4", "--strategy", strategy, "--json", "--no-cache")
    content = read_json(run("gpt:tiny", *words))
    assert (content["model"], content["strategy"]) == ("gpt-tiny", strategy)
    assert content["communication_s"] > 0


@pytest.mark.slow
def test_a_step_that_does_not_fit_says_by_how_much(folder):
    from jaxquard.cluster import cluster_text, load_cluster

    text = cluster_text(load_cluster("cpu-8")).replace("size_bytes = 4000000000", "size_bytes = 1000000")
    (folder / "small.toml").write_text(text)
    result = run("gpt-tiny", "--cluster", "small.toml", "--no-cache")
    assert result.exit_code == 1
    assert "too much. State and batch take" in result.stderr
    assert " ms a step" in result.stdout


@pytest.mark.slow
def test_a_saved_plan(folder):
    words = ("--cluster", "cpu-8", "--cache", "prices")
    found = run_cli("shard", "search", "steps:make_step", "--pricer", "compile", *words, "--out", "plan.json")
    assert found.exit_code == 0, found.stderr
    assert "compiled on 8 x cpu" in found.stdout
    content = read_json(run("steps:make_step", *words, "--strategy", "plan.json", "--json"))
    assert content["strategy"] == "plan.json"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["gpt-tiny", "--cluster", "h900-8"], 2, "h900"),
        (
            ["gpt-tiny", "--cluster", "cpu-8", "--strategy", "magic"],
            2,
            "no strategy is called 'magic'. Use one of: data",
        ),
        (["gpt:9000b", "--cluster", "cpu-8"], 2, "there is no module 'gpt'"),
        (["gpt-tiny", "--cluster", "cpu-8", "--mesh", "16"], 2, "--mesh 16 has 16 devices, but cpu-8 has 8 chips"),
        (["gpt-tiny", "--cluster", "v5e-5x7x9x2"], 2, "v5e-5x7x9x2 has 4 sizes"),
    ],
)
def test_refusals(words, code, message):
    result = run(*words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


@pytest.mark.parametrize("words", [[], ["--cluster", "h100-8", "--cpu"], ["--cluster", "h100-8", "--devices", "4"]])
def test_a_search_by_a_compiler_needs_a_cluster_and_no_devices(words):
    result = run_cli("shard", "search", "gpt-tiny", "--pricer", "compile", *words)
    assert result.exit_code == 2
    assert "--pricer compile prices for the chips of --cluster and runs nothing here" in result.stderr


def test_an_unknown_pricer():
    result = run_cli("shard", "search", "gpt-tiny", "--pricer", "guess")
    assert result.exit_code == 2
    assert "no pricer is called 'guess'. Use one of: measure, compile" in result.stderr


def test_an_interrupt_says_what_is_kept(monkeypatch):
    def interrupted(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxquard.cli.price.price_on_target.price_on_target", interrupted)
    result = run("steps:make_step", "--cluster", "cpu-8", "--no-cache")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "interrupted. Nothing is kept: the step is compiled as one program.\n"
