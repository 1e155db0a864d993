"""`jaxquard shard search`: its table, files and cache, how it is interrupted, and what it refuses."""

import importlib
import json
import re
import sys
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

import jaxquard as jq
from tests.cli.run_cli import read_json, without_progress
from tests.cli.run_cli import run as run_cli
from tests.cli.shard.user_steps import write_module
from tests.pricing.mock_gpu.test_mock_gpu_pricer import FakeDevices


def run(*words):
    return run_cli("shard", "search", *words)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    write_module(tmp_path, monkeypatch)
    yield tmp_path
    # Imported by the command itself.
    sys.modules.pop("steps", None)


def test_table_plan_plot_and_cache(folder):
    result = run("steps:make_step", "--cache", "prices", "--out", "plan.json", "--plot", "plot.svg")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("sharding over devices=8: ")
    assert "steps.py:7" in result.stdout
    assert "data parallel" in result.stdout
    assert without_progress(result.stderr).splitlines() == ["wrote plan.json", "wrote plot.svg"]
    plot = ElementTree.fromstring((folder / "plot.svg").read_text())
    assert plot.attrib["aria-label"] == "steps:make_step: time against memory"

    # From the cache alone: nothing is measured, so even the numbers are equal.
    files = sorted(path.name for path in (folder / "prices").iterdir())
    again = run("steps:make_step", "--cache", "prices", "--json")
    assert read_json(again) == json.loads((folder / "plan.json").read_text())
    assert sorted(path.name for path in (folder / "prices").iterdir()) == files

    steps = importlib.import_module("steps")
    keys = jax.random.split(jax.random.key(0), 3)
    weight = jax.random.normal(keys[0], (32, 64))
    batch = {"x": jax.random.normal(keys[1], (16, 32)), "y": jax.random.normal(keys[2], (16, 64))}
    expected, loss = jax.jit(steps.train_step)(weight, batch)
    plan = jq.load_sharding("plan.json")
    found, planned_loss = plan.apply(steps.train_step)(plan.shard(weight), batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(planned_loss, loss, rtol=1e-5)


def test_nothing_fits():
    result = run("steps:make_step", "--no-cache", "--memory-limit", "1kB")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: --memory-limit 1000 (")
    assert "cannot hold the arguments of the step" in result.stderr
    assert "(state in argument 0: 1024, data in argument 1: 768). Raise the limit, use more devices" in result.stderr


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("--cache", "prices"), "What was measured is kept in prices, and the same command goes on from there."),
        (("--no-cache",), "Nothing is kept (--no-cache)."),
    ],
)
def test_an_interrupt_ends_it_with_a_sentence(monkeypatch, words, kept):
    asked = {}

    def interrupted(step, args, **options):
        asked.update(options, args=args)
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxquard.cli.shard.run_search.search_sharding", interrupted)
    mesh = ("--mesh", "2x4", "--every-combination", "--memory-limit", "1.5 GiB", "--batch-size", 24)
    result = run("steps:make_step", *words, *mesh)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == f"interrupted. {kept}"
    assert dict(asked["mesh"].shape) == {"outer": 2, "inner": 4}
    assert asked["every_combination"] is True
    assert asked["memory_limit_bytes"] == 3 * 2**29
    assert asked["args"][1]["x"].shape == (24, 32)


@pytest.mark.parametrize(
    ("words", "budget"), [((), "default"), (("--time-budget", 60), 60), (("--time-budget", 0), None)]
)
def test_a_budget_of_time(monkeypatch, words, budget):
    asked = {}

    def interrupted(*args, **options):
        asked.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxquard.cli.shard.run_search.search_sharding", interrupted)
    assert run("steps:make_step", "--no-cache", *words).exit_code == 130
    assert asked["time_budget_s"] == budget


def test_a_model_and_its_batch(monkeypatch):
    asked = {}

    def interrupted(step, args, **options):
        asked.update(options, args=args)
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxquard.cli.shard.run_search.search_sharding", interrupted)
    assert run("gpt-tiny", "--batch-size", 4, "--devices", 4).exit_code == 130
    state, batch = asked["args"]
    assert {leaf.shape[0] for leaf in jax.tree.leaves(batch)} == {4}
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state))
    assert dict(asked["mesh"].shape) == {"devices": 4}
    assert asked["every_combination"] is False
    assert asked["cache"].folder.name == "prices"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpt-huge",), "no model is called 'gpt-huge'. Use one of: gpt-tiny, "),
        (("steps:",), "'steps:' should be module:function, such as train:make_step."),
        (("nowhere:make_step",), "there is no module 'nowhere' here ("),
        (("steps.inner:make_step",), "there is no module 'steps.inner' here ("),
        (("steps:make_it",), "the module steps has no function 'make_it'. Write one that returns (train_step, args)."),
        (("steps:number",), "the module steps has no function 'number'."),
        (("steps:loss",), "steps:loss is called as loss(), but missing a required argument: 'weight'."),
        (("steps:make_fixed", "--batch-size", 4), "steps:make_fixed is called as make_fixed(batch_size=4), but got an"),
        (("steps:make_nothing",), "steps:make_nothing should return (train_step, args): a function, and a tuple of"),
        (("steps:make_three",), "steps:make_three should return (train_step, args): a function, and a tuple of arrays "
         "or shapes to call it on. It returned a tuple of 3: function, tuple, int."),
        (("steps:make_number",), "steps:make_number should return (train_step, args)"),
        (("gpt-tiny", "--mesh", "2by4"), "--mesh should be one size or two, such as 8 or 2x4, but is '2by4'."),
        (("gpt-tiny", "--mesh", "2x2x2"), "--mesh should be one size or two"),
        (("gpt-tiny", "--mesh", "0"), "--mesh should be one size or two"),
        (("gpt-tiny", "--mesh", "2x4", "--devices", 4), "--mesh 2x4 has 8 devices, but --devices is 4."),
        (("gpt-tiny", "--mesh", "64x65"), "--mesh 64x65 has 4160 devices. Give a mesh of at most 4096."),
        (("gpt-tiny", "--memory-limit", "lots"), "--memory-limit should be a size above 0, such as 2GiB, 500MB or"),
        (("gpt-tiny", "--memory-limit", "0"), "--memory-limit should be a size above 0"),
        (("gpt-tiny", "--memory-limit", "9" * 400), "--memory-limit should be a size above 0"),
        (("gpt-tiny", "--memory-limit", "2 GiBs"), "--memory-limit should be a size above 0"),
        (("gpt-tiny", "--cache", "steps.py"), "--cache steps.py is a file. Give a folder"),
        (("gpt-tiny", "--cache", "a", "--no-cache"), "--cache a and --no-cache contradict each other."),
        (("gpt-tiny", "--out", "no/folder/plan.json"), "cannot write no/folder/plan.json"),
        (("gpt-tiny", "--plot", "no/folder/plot.svg"), "cannot write no/folder/plot.svg"),
        (("gpt-tiny", "--devices", 0), "--devices should be a whole number from 1 to 4096, but is 0."),
    ],
)  # fmt: skip
def test_refused(words, message):
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("name", "kind", "message", "where"),
    [
        ("broken:make_step", "ModuleNotFoundError", "No module named 'no_such_module_at_all'", "broken.py:1"),
        ("steps:make_failing", "RuntimeError", "the user's own", "steps.py:48"),
        ("steps:make_mismatch", "TypeError", "dot_general requires contracting dimensions", "steps.py:7"),
    ],
)
def test_errors_of_the_users_code(name, kind, message, where):
    result = run(name, "--no-cache")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {kind}: {message}")
    assert result.stderr.endswith(f" ({where}). Add --traceback to see where it comes from.\n")
    assert len(result.stderr.splitlines()) == 1
    shown = run(name, "--no-cache", "--traceback")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("Traceback (most recent call last):")
    assert f"\n{kind}: {message}" in shown.stderr
    assert shown.stderr.splitlines()[-1] == result.stderr.strip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mesh", "4x4"), "--mesh 4x4 has 16 devices, but JAX has 8 of the platform cpu."),
        (("--devices", 9), "--devices is 9, but JAX has 8 of the platform cpu. Give --devices 8."),
    ],
)
def test_more_devices_than_there_are(words, message):
    result = run("steps:make_step", *words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {message}")


def test_a_step_that_cannot_be_sharded():
    result = run("steps:make_odd", "--no-cache")
    assert (result.exit_code, result.stdout) == (1, "")
    words = r"error: the contraction at argument 0, steps\.py:\d+ has no dim that 8 devices can share"
    assert re.match(words, result.stderr)


def test_one_device_has_nothing_to_shard(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda *_: jax.local_devices()[:1])
    result = run("gpt-tiny", "--no-cache")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "JAX has one device, of the platform cpu, and on one there is nothing to shard. Use --cpu" in result.stderr


@pytest.mark.slow
def test_one_gpu_in_place_of_a_cluster(monkeypatch):
    """With a stand-in for the process that has the GPU."""
    monkeypatch.setattr("jaxquard.pricing.mock_gpu.mock_gpu_pricer.MockProcess", lambda **_: FakeDevices())
    words = ("steps:make_step", "--cluster", "h200-8", "--pricer", "mock-gpu", "--no-cache")
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("sharding over devices=8: ")
    assert "mock-gpu on 8 x NVIDIA H200" in result.stdout
    assert read_json(run(*words, "--mesh", "2x4", "--json"))["axes"] == {"outer": 2, "inner": 4}


def test_no_gpu_to_stand_in_for_a_cluster():
    result = run("steps:make_step", "--cluster", "h200-8", "--pricer", "mock-gpu", "--no-cache")
    assert result.exit_code != 0
    assert "one GPU stands in for many, but JAX finds none that it can use" in result.stderr
    result = run("steps:make_step", "--pricer", "mock-gpu")
    assert (result.exit_code, "no --cluster is given. Give, say, --cluster h200-8" in result.stderr) == (2, True)
