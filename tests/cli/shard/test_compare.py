"""`jaxquard shard compare`: plans run whole, what is marked, and what is refused."""

import json
import re
import sys

import pytest

from jaxquard.pricing import Failure, FailureReason, Price, Provenance
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli
from tests.cli.shard.user_steps import write_module

NAMES = ("this one", "data parallel", "zero 1", "zero 3", "megatron", "megatron, sequence parallel", "volume")


def run(*words):
    return run_cli("shard", *words, columns=140)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    with pytest.MonkeyPatch.context() as patch:
        write_module(folder, patch)
        result = run("search", "steps:make_step", "--no-cache", "--out", folder / "plan.json")
        sys.modules.pop("steps", None)
    assert result.exit_code == 0, result.stderr
    return folder / "plan.json"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    write_module(tmp_path, monkeypatch)
    yield tmp_path
    sys.modules.pop("steps", None)


def test_a_saved_plan_beside_the_baselines(plan):
    result = run("compare", "steps:make_step", "--plan", plan, "--memory-limit", "100B")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("steps:make_step over devices=8 (8 x cpu), training loops, in short blocks\n")
    for name in NAMES:
        assert re.search(
            rf"│ {name} +│ +[\d.]+ ms │ +[\d.]+ ms │ +[+-]\d+ % │ +[\d.]+ │.* MiB │ does not fit", result.stdout
        )
    assert re.search(r"│ this one .* │ +1\.00 │", result.stdout)


def test_json(plan, monkeypatch):
    monkeypatch.setattr("jaxquard.pricing.MeasuredPricer.price_loops", lambda _, programs, **__: prices(len(programs)))
    found = read_json(run("compare", "steps:make_step", "--plan", plan, "--json", "--memory-limit", "3kB"))
    assert [one["name"] for one in found] == list(NAMES)
    assert found[0]["predicted_s"] == json.loads(plan.read_text())["time_s"]
    assert [one["measured_s"] for one in found] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert [one["fits"] for one in found] == [True] * 3 + [False] * 4
    assert all(one["failure"] is None and one["spread"] == 0.5 for one in found)


def test_a_busy_machine_is_named(plan, monkeypatch):
    monkeypatch.setattr("jaxquard.pricing.MeasuredPricer.price_loops", lambda _, programs, **__: prices(len(programs)))
    result = run("compare", "steps:make_step", "--plan", plan)
    assert "the runs of one plan spread by 50 %: the machine was busy. Repeat when nothing else runs." in result.stdout
    assert result.stdout.index("│ this one") < result.stdout.index("│ data parallel") < result.stdout.index("│ zero 1")


def prices(count):
    source = Provenance(
        pricer="measured", jax_version="", platform="cpu", device_kind="cpu", num_devices=8, date="", num_runs=10
    )
    return [
        Price(time_s=float(number), peak_bytes=1000 * number, spread=0.5, provenance=source)
        for number in range(1, count + 1)
    ]


@pytest.mark.slow
def test_without_a_plan_it_searches(monkeypatch):
    monkeypatch.setattr("jaxquard.cli.shard.run_whole.run_whole", interrupted)
    result = run("compare", "steps:make_step", "--cache", "prices")
    assert result.exit_code == 130
    assert "kept in prices" in result.stderr


def test_an_interrupted_comparison_of_a_plan_keeps_nothing(plan, monkeypatch):
    monkeypatch.setattr("jaxquard.cli.shard.run_whole.run_whole", interrupted)
    result = run("compare", "steps:make_step", "--plan", plan)
    assert (result.exit_code, result.stderr) == (130, "interrupted. Whole steps are always run; nothing is kept.\n")


def test_plans_that_fail_are_marked(plan, monkeypatch):
    def fail(pricer, programs, **_):
        return [
            Failure(name=program.name, reason=FailureReason.OUT_OF_MEMORY, message="no room") for program in programs
        ]

    monkeypatch.setattr("jaxquard.pricing.MeasuredPricer.price_loops", fail)
    result = run("compare", "steps:make_step", "--plan", plan)
    assert result.exit_code == 0, result.stderr
    assert re.search(r"│ this one +│ +[\d.]+ ms │ +- │ +- │ +- │ +- │ +- │ out of memory", result.stdout)
    assert "failed: zero 3: out of memory (no room)" in result.stdout


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mesh", "2x4"), "PLAN is for a mesh of 8, but --mesh is 2x4. Leave --mesh out."),
        (("--batch-size", 24), "the plan was made for another step: argument 1['x'] was float32[16,32] and is "),
        (("--devices", 4), "PLAN is for 8 devices, but --devices is 4. Leave --devices out."),
        (("--no-cache",), "--plan runs a saved plan and searches nothing. Leave out --no-cache."),
        (("--plan", "steps.py"), "steps.py cannot be read as a plan: "),
        (("--plan", "nowhere.json"), "nowhere.json cannot be read as a plan: "),
    ],
)
def test_refused(plan, words, message):
    given = words if "--plan" in words else ("--plan", plan, *words)
    result = run("compare", "steps:make_step", *given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message.replace('PLAN', str(plan))}")
