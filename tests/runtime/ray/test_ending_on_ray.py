"""A program that ends, is interrupted or is killed leaves no process behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.machine_pace import machine_pace
from tests.runtime.ray.processes import name_of, wait_until

pytest.importorskip("ray")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[3]
PROLOGUE = """
import functools, sys, threading, time, warnings
import jax
jax.config.update("jax_platforms", "cpu")
import numpy as np
import jaxquard as jq
from tests.runtime.ray import spinning_step
from tests.runtime.ray.processes import activity, wait_for_activity

def say(*words):
    print(*words, flush=True)

def say_when(actor, text):
    threading.Thread(target=lambda: (wait_for_activity(mesh, actor, text), say("now")), daemon=True).start()

mesh = jq.RemoteMesh((2,), runtime="ray", heartbeat_timeout_s=30)
step = mesh.distributed(spinning_step.train_step, donate_argnums=0)
state = mesh.init(spinning_step.init, jax.random.key(0))
"""
IN_A_STEP = """
state, loss = step(state, spinning_step.batch(), 0)
say(float(loss) > 0)
say_when(0, "0F")
state, loss = step(state, spinning_step.batch(), 10_000_000)
float(loss)
"""
# Its step has no loop, of which a warning says that it runs on one actor.
IN_A_COMPILATION = """
warnings.simplefilter("ignore", jq.errors.StepWarning)
say(True)
say_when(0, "compiling before.0")
long_step = mesh.distributed(functools.partial(spinning_step.compiles_long, num_rounds=300))
np.asarray(long_step(np.ones((4, 4), np.float32)))
"""


def start(text):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROLOGUE + text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        start_new_session=True,
    )


def descendants(program):
    return psutil.Process(program.pid).children(recursive=True)


def num_named(program, text):
    return sum(text in name_of(process) for process in descendants(program))


def directory_of(processes):
    """The folder of Ray's files, from the command line of the raylet."""
    (raylet,) = (process for process in processes if name_of(process) == "raylet")
    (option,) = (word for word in raylet.cmdline() if word.startswith("--temp_dir="))
    return Path(option.removeprefix("--temp_dir=")).parent


def check_all_gone(processes, limit_s=60):
    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    assert not alive


def finish(program, limit_s=120):
    try:
        out, err = program.communicate(timeout=limit_s)
    finally:
        program.kill()
    return program.returncode, out, err


@pytest.mark.parametrize(
    ("where", "how"),
    [
        (IN_A_STEP, signal.SIGKILL),
        pytest.param(IN_A_STEP, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(IN_A_COMPILATION, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(IN_A_COMPILATION, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(IN_A_STEP, signal.SIGTERM, marks=pytest.mark.slow),
    ],
    ids=["step-kill", "step-interrupt", "compile-interrupt", "compile-kill", "step-terminate"],
)
def test_nothing_is_left(where, how):
    program, directory = start(where), Path("/nonexistent")
    try:
        assert program.stdout.readline() == "True\n", program.stderr.read()
        assert program.stdout.readline() == "now\n"
        # They have their names only once they run.
        wait_until(lambda: num_named(program, "Worker") == num_named(program, "Agent") == 2)
        processes = descendants(program)
        directory = directory_of(processes)
        os.kill(program.pid, how)
        start_s = time.monotonic()
        status, _, err = finish(program)
        check_all_gone(processes, limit_s=30 * machine_pace())
        assert not directory.exists()
        assert time.monotonic() - start_s < 40 * machine_pace()
    finally:
        program.kill()
        shutil.rmtree(directory, ignore_errors=True)
    # Python ends itself with the signal that it handled last, so a shell sees 130 after Ctrl-C.
    assert status == -how
    if how == signal.SIGINT:
        assert err.rstrip().splitlines()[-1] == "KeyboardInterrupt", err


@pytest.mark.slow
def test_the_program_goes_on_after_an_interrupt_and_ends_without_closing():
    program = start(
        """
state, loss = step(state, spinning_step.batch(), 0)
say(float(loss) > 0)
_, loss = step(state, spinning_step.batch(), 100_000)
try:
    say_when(0, "0F")
    float(loss)
except KeyboardInterrupt:
    say("interrupted")
say(float(loss) > 0)
state = mesh.init(spinning_step.init, jax.random.key(0))
state, loss = step(state, spinning_step.batch(), 0)
say(float(loss) > 0)
"""
    )
    assert program.stdout.readline() == "True\n", program.stderr.read()
    assert program.stdout.readline() == "now\n"
    processes = descendants(program)
    program.send_signal(signal.SIGINT)
    status, out, err = finish(program)
    assert (status, out, err) == (0, "interrupted\nTrue\nTrue\n", "")
    check_all_gone(processes)
