"""`jaxquard checkpoint verify|show|list`: what is on disk, and if it is whole."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxquard as jq
from tests.cli.run_cli import environment, read_json, without_progress
from tests.cli.run_cli import run as run_cli
from tests.runtime.checkpoint.damage import flip_bit

STATE = {"w": {"a": np.ones((300, 40))}, "key": jax.random.key(0), "n": 3}


def run(*words):
    return run_cli("checkpoint", *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two whole checkpoints, and one with a flipped bit."""
    folder = tmp_path_factory.mktemp("runs")
    for number in range(3):
        jq.save(folder / f"step-{number}", STATE).wait()
    flip_bit(folder / "step-1", np.random.default_rng(0))
    return folder


def test_verify(folder):
    result = run("verify", folder / "step-0")
    assert result.exit_code == 0, result.stderr
    assert f"{folder / 'step-0'} is whole: 3 leaves in 3 pieces, 96 kB, digest " in result.stdout
    (answer,) = read_json(run("verify", folder / "step-2", "--json"))
    assert answer["is_whole"] is True
    assert answer["size_bytes"] == 96_016
    assert answer["digest"] == jq.verify(folder / "step-2").digest


def test_verify_finds_damage_and_goes_on(folder):
    result = run("verify", folder / "step-1", folder / "missing", folder / "step-2")
    assert result.exit_code == 1
    assert "step-2 is whole" in result.stdout
    first, second = without_progress(result.stderr).splitlines()
    assert first.startswith(f"error: {folder / 'step-1'} ")
    assert "['w']['a']" in first
    assert second == f"error: there is no checkpoint at {folder / 'missing'}: the path does not exist."


def test_show(folder):
    result = run("show", folder / "step-1")
    assert result.exit_code == 0, result.stderr
    assert "['w']['a']  float64[300,40]  controller       1  96 kB" in result.stdout
    answer = read_json(run("show", folder / "step-1", "--json"))
    assert [leaf["path"] for leaf in answer["leaves"]] == ["['key']", "['n']", "['w']['a']"]
    assert answer["leaves"][0]["dtype"] == "key<fry>"


def test_list(folder, tmp_path):
    result = run("list", folder)
    assert result.exit_code == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["step-0", "step-1", "step-2"]
    assert [answer["num_leaves"] for answer in read_json(run("list", folder, "--json"))] == [3, 3, 3]
    assert run("list", tmp_path).stdout == f"{tmp_path} has no checkpoints\n"
    result = run("list", tmp_path / "missing")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path / 'missing'} is no folder.")


@pytest.mark.slow
def test_no_devices_are_started(folder):
    """A platform that does not exist ends whatever starts JAX's devices; a key's type needs those of the CPU."""
    plain = {"w": np.ones(3)}
    jq.save(folder.parent / "plain", plain).wait()
    done = subprocess.run(
        [sys.executable, "-m", "jaxquard", "checkpoint", "verify", os.fspath(folder.parent / "plain")],
        env=environment(JAX_PLATFORMS="none"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert " is whole: 1 leaf in 1 piece, 24 B, digest " in done.stdout
