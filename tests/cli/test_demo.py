"""`jaxquard demo`: a tiny one that really trains, and what it prints, writes and refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import jaxquard
from jaxquard.cli.demo import run_demo as demo_module
from jaxquard.cli.demo.training import Outcome
from jaxquard.schedules import OneFOneB, TaskTimes, play_rows
from tests.cli.run_cli import read_json, without_progress
from tests.cli.run_cli import run as run_cli


def run(*words, columns=100):
    return run_cli("demo", *words, columns=columns)


@pytest.fixture
def fake_training(monkeypatch):
    """Makes training a matter of microseconds, with the losses that a test wants."""

    def use(on_actors, in_one_jit):
        times = TaskTimes(forward_s=0.001, input_gradient_s=0.001, weight_gradient_s=0.001)
        timeline = play_rows(OneFOneB(2).rows(2), times).timeline
        actors = Outcome(losses=on_actors, times_s=(1.0,) * len(on_actors), timeline=timeline)
        jit = Outcome(losses=in_one_jit, times_s=(1.0,) * len(in_one_jit))
        monkeypatch.setattr(demo_module, "train_on_actors", lambda *args, **kwargs: actors)
        monkeypatch.setattr(demo_module, "train_in_one_jit", lambda *args, **kwargs: jit)

    return use


def test_a_tiny_demo(tmp_path):
    trace = tmp_path / "tiny.pftrace.json"
    options = ["--actors", 2, "--devices-per-actor", 2, "--microbatches", 3, "--steps", 1, "--out", trace, "--cpu"]
    result = run(*options)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "Training a GPT of 2 layers (0.5 M parameters) on 2 actors of 2 virtual CPU devices"
    assert "The schedule: OneFOneB(2)  2 stages, 3 microbatches" in lines
    losses = re.findall(r"^ +0 +(\d\.\d{6}) +(\d\.\d{6}) +(\d\.\de[+-]\d\d)$", result.stdout, re.MULTILINE)
    assert len(losses) == 1
    assert float(losses[0][2]) < 1e-5
    assert abs(float(losses[0][0]) - float(losses[0][1])) < 1e-5
    assert "✓ equal, but for rounding" in result.stdout
    assert re.search(r"bubble of the loop \d+\.\d % measured, 25\.0 % ideal", result.stdout)
    assert f"wrote {trace}" in result.stderr
    assert "https://ui.perfetto.dev" in lines[-1]
    check_trace(json.loads(trace.read_text())["traceEvents"])


@pytest.mark.slow
@pytest.mark.ray
def test_a_tiny_demo_on_ray(tmp_path):
    """The same, with other losses of the last digit; its Ray is gone afterwards."""
    trace = tmp_path / "tiny.pftrace.json"
    options = ["--actors", 2, "--devices-per-actor", 2, "--microbatches", 3, "--steps", 1, "--out", trace]
    result = run(*options, "--runtime", "ray")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    devices = "2 virtual CPU devices, each a process on Ray"
    assert lines[0] == f"Training a GPT of 2 layers (0.5 M parameters) on 2 actors of {devices}"
    assert "✓ equal, but for rounding" in result.stdout
    assert re.search(r"bubble of the loop \d+\.\d % measured, 25\.0 % ideal", result.stdout)
    assert without_progress(result.stderr) == f"wrote {trace}\n"
    check_trace(json.loads(trace.read_text())["traceEvents"])
    assert not any(child.name() in RAY_SERVERS for child in psutil.Process().children(recursive=True))


RAY_SERVERS = ("gcs_server", "raylet")


@pytest.mark.ray
def test_where_no_ray_is(tmp_path):
    result = run("--runtime", "ray", "--address", "127.0.0.1:9", "--out", tmp_path / "x.json")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: No Ray cluster could be reached at 127.0.0.1:9: connection refused.")
    assert len(result.stderr.splitlines()) == 1


def check_trace(events):
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(set(named.values())) == ["compute", "transfer"]
    assert len(named) == 4
    ran = {(event["pid"], event["name"]) for event in events if event["ph"] == "X"}
    assert {(0, "0F0"), (0, "0B2"), (1, "1FB1"), (0, "0F2 to 1"), (1, "1FB2 to 0")} <= ran


def test_losses_that_differ_are_an_error(fake_training, tmp_path):
    fake_training((5.0, 4.0), (5.0, 4.1))
    result = run("--actors", 2, "--steps", 2, "--out", tmp_path / "x.json")
    assert result.exit_code == 1
    assert "✗ not equal: at step 1 the losses differ by 2.4e-02, more than rounding would (2e-05)" in result.stdout


def test_losses_that_are_not_numbers_are_an_error(fake_training, tmp_path):
    fake_training((float("nan"),), (5.0,))
    assert run("--actors", 2, "--steps", 1, "--out", tmp_path / "x.json").exit_code == 1


def test_json(fake_training, tmp_path):
    fake_training((5.0, 4.0), (5.0, 4.0))
    words = ("--actors", 2, "--steps", 2, "--out", tmp_path / "x.json", "--json")
    answer = read_json(run(*words))
    assert (answer["schedule"], answer["num_actors"], answer["runtime"]) == ("1f1b", 2, "in_process")
    assert answer["losses"] == {"on_actors": [5.0, 4.0], "in_one_jit": [5.0, 4.0]}
    assert answer["is_equal"] is True
    fake_training((float("nan"),), (5.0,))
    result = run(*words)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["losses"]["on_actors"] == [None]


@pytest.mark.parametrize("runtime", ["in-process", "in_process"])
def test_runtimes_with_dashes_and_underscores(fake_training, tmp_path, runtime):
    fake_training((5.0,), (5.0,))
    assert run("--runtime", runtime, "--actors", 2, "--out", tmp_path / "x.json").exit_code == 0


def test_without_comparison(fake_training, tmp_path):
    fake_training((5.0, 4.0), ())
    result = run("--actors", 2, "--no-compare", "--out", tmp_path / "x.json")
    assert result.exit_code == 0
    assert "in one jit" not in result.stdout
    assert (tmp_path / "x.json").exists()


@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_is_wider_than_the_terminal(fake_training, tmp_path, columns):
    fake_training((5.0, 4.0), (5.0, 4.0))
    result = run("--schedule", "zero-bubble-v", "--out", tmp_path / "x.json", columns=columns)
    drawn = [line for line in result.stdout.splitlines() if line.startswith(("actor", "ms", "F forward"))]
    assert max(map(len, drawn)) <= columns


REFUSED = {
    "--schedule pipedream": "no schedule is called 'pipedream'. Use one of: gpipe, 1f1b,",
    "--actors 0": "--actors should be a whole number from 1 to 4096, but is 0.",
    "--devices-per-actor -1": "--devices-per-actor should be a whole number from 1 to 4096, but is -1.",
    "--steps 0": "--steps should be a whole number, 1 or more, but is 0.",
    "--microbatches x": "--microbatches should be a whole number from 1 to 100000, but is x.",
    "--actors 99999999999999999999": "--actors should be a whole number from 1 to 4096, but is 99999999999999999999.",
    "--actors 4000 --devices-per-actor 2": "--actors times --devices-per-actor must be at most 4096.",
    "--layers 3": "1f1b on 4 actors has 4 stages, and each needs a layer, but --layers is 3. Give --layers 4",
    "--schedule interleaved --layers 7": "interleaved on 4 actors has 8 stages, and each needs a layer",
    "--out /no/folder/x.json": "cannot write /no/folder/x.json (No such file or directory).",
    "--no-such-option": "No such option: --no-such-option",
    "--runtime threads": "--runtime threads is not known. Use one of: in-process, ray.",
    "--address auto": "--address auto has a meaning with --runtime ray alone. Leave it out.",
    "--platform gpu": "--platform gpu has a meaning with --runtime ray alone. Leave it out.",
    "--runtime ray --platform npu": "--platform npu is not known. Use one of: cpu, gpu, tpu.",
    "--runtime ray --cpu --platform gpu": "--cpu and --platform gpu contradict each other. Leave one out.",
}


@pytest.mark.parametrize("words", REFUSED)
def test_mistakes_are_answered_in_one_line(words):
    result = run(*words.split(), columns=40)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {REFUSED[words]}")
    assert result.stderr.endswith(".\n")
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_without_optax(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("--actors", 2)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: the demo needs optax, which is not installed. Run: pip install 'jaxquard[demo]', or '.[demo]' in a "
        "checkout.\n"
    )


def test_without_ray(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("--runtime", "ray")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: --runtime ray needs Ray, which is not installed. Run: pip install 'jaxquard[ray]', or '.[ray]' in a "
        "checkout.\n"
    )


@pytest.mark.parametrize(
    ("runtime", "delay_s"),
    [
        ("in-process", 1),
        pytest.param("ray", 1, marks=pytest.mark.ray, id="while Ray starts"),
        pytest.param("ray", 15, marks=[pytest.mark.ray, pytest.mark.slow], id="while steps run on Ray"),
    ],
)
def test_ctrl_c_leaves_with_one_line(tmp_path, runtime, delay_s):
    """Sent once the schedule is drawn, which is when the work begins; no process is left behind."""
    environment = {**os.environ, "PYTHONPATH": str(Path(jaxquard.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
    command = [
        sys.executable,
        "-m",
        "jaxquard",
        "demo",
        "--cpu",
        "--runtime",
        runtime,
        "--actors",
        "2",
        "--steps",
        "100000",
        "--out",
        str(tmp_path / "x.json"),
    ]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert any("bubble" in line for line in iter(process.stdout.readline, "")), process.stderr.read()
        time.sleep(delay_s)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=180)
    finally:
        process.kill()
    assert psutil.wait_procs(started, timeout=120)[1] == []
    assert process.returncode == 130
    assert without_progress(errors) == "interrupted. No timeline was written.\n"
    assert not (tmp_path / "x.json").exists()
