"""Virtual devices that compute on one thread each, asked for before JAX starts."""

import os
import subprocess
import sys

import jax
import pytest

from jaxquard import _jax_compat
from jaxquard.pricing import steady_cpu
from jaxquard.pricing.environment import _flags
from jaxquard.pricing.steady_cpu import compute_on_one_thread


@pytest.fixture
def not_started(monkeypatch):
    monkeypatch.setattr(_jax_compat, "has_started", lambda: False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    return monkeypatch


def test_the_flag_joins_those_of_the_user(not_started):
    not_started.setenv("XLA_FLAGS", "--xla_dump_to=there")
    compute_on_one_thread()
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=there --xla_cpu_multi_thread_eigen=false"


def test_what_the_user_says_stands(not_started):
    not_started.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=true")
    compute_on_one_thread()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=true"


def test_once_jax_has_started_nothing_is_said(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    jax.devices()
    assert _jax_compat.has_started()
    compute_on_one_thread()
    assert "XLA_FLAGS" not in os.environ


def test_flags_of_the_cpu_decide_prices_on_it_alone(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_cpu_multi_thread_eigen=false --xla_dump_to=a")
    assert _flags("XLA_FLAGS", "cpu") == ["--xla_cpu_multi_thread_eigen=false", "--xla_gpu_autotune_level=0"]
    assert _flags("XLA_FLAGS", "gpu") == ["--xla_gpu_autotune_level=0"]


def test_xla_knows_the_flag():
    # XLA ends the process for a flag that it does not know.
    code = (
        "import os, jax; from jaxquard.pricing.steady_cpu import compute_on_one_thread as ask; ask(); "
        f"assert {steady_cpu._FLAG!r} in os.environ['XLA_FLAGS']; print(jax.jit(lambda x: x + 1)(1))"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr
