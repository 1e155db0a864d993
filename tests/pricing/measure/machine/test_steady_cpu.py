"""Virtual devices that compute on one thread each, asked for before JAX starts."""

import os
import platform
import subprocess
import sys

import jax
import pytest

from jaxquard import _jax_compat
from jaxquard.pricing.measure.machine import steady_cpu
from jaxquard.pricing.measure.machine.environment import _flags, environment_key
from jaxquard.pricing.measure.machine.steady_cpu import compute_on_one_thread


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
        "import os, jax; from jaxquard.pricing.measure.machine.steady_cpu import compute_on_one_thread as ask; ask(); "
        f"assert {steady_cpu._FLAG!r} in os.environ['XLA_FLAGS']; print(jax.jit(lambda x: x + 1)(1))"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr


# In a thread, buffers of 48 MiB, taken, touched and given back: the pages that are new in the second round, and the MiB
# that are kept then.
TAKE_MEMORY = """
import resource, sys, threading
import numpy as np
from jaxquard.pricing.measure.machine.steady_cpu import is_memory_kept, keep_memory, retained_heap_bytes
if sys.argv[1] == "keep":
    keep_memory()

def take():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            np.ones(6 * 2**20)
    print(is_memory_kept(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, retained_heap_bytes() // 2**20)

thread = threading.Thread(target=take)
thread.start()
thread.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_memory_that_is_kept_has_no_new_pages():
    def run(how):
        done = subprocess.run([sys.executable, "-c", TAKE_MEMORY, how], capture_output=True, text=True, check=True)
        is_kept, num_faults, kept_mib = done.stdout.split()
        return is_kept, int(num_faults), int(kept_mib)

    is_kept, num_faults, kept_mib = run("keep")
    assert is_kept == "True"
    assert num_faults < 100
    assert 48 <= kept_mib < 200
    is_kept, _, kept_mib = run("as it is")
    assert (is_kept, kept_mib) == ("False", 0)


def test_prices_of_memory_that_is_kept_are_others(monkeypatch):
    mesh = jax.make_mesh((1,), ("x",))
    keys = []
    for is_kept in (False, True):
        monkeypatch.setattr(steady_cpu, "_is_memory_kept", is_kept)
        keys.append(environment_key(mesh))
    assert keys[0] != keys[1]
