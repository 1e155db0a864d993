"""The end of a process with an engine: no thread is left, nothing hangs, Ctrl-C gets through."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROLOGUE = """
import time
import jax
import numpy as np
jax.config.update("jax_platforms", "cpu")
from jaxquard.runtime.in_process.engine import InProcessEngine
from jaxquard.runtime.transfer import place
from tests.runtime.build_program import ProgramBuilder, array_type, make_meshes

def make_run(time_s, num_steps=1):
    def wait(x):
        print("running", flush=True)
        time.sleep(time_s)
        return x

    builder = ProgramBuilder(2)
    type_ = array_type(4)
    call = builder.call(lambda x: jax.pure_callback(wait, x, x), type_, name="wait")
    first, second = builder.actors
    (out,) = first.run("0F0", call, first.input(type_, 0))
    first.send(1, out)
    first.free(out)
    (received,) = second.receive(0, type_)
    (out,) = second.run("1F0", call, received)
    second.free(received)
    second.output(out, 0)
    engine = InProcessEngine(make_meshes(2, NUM_DEVICES))
    loaded = engine.load(builder.build())
    inputs = [[place(np.ones(4, np.float32), loaded.input_shardings[0][0])], []]
    return engine, [engine.execute(loaded, inputs) for _ in range(num_steps)]
"""


def start(script, num_devices=1):
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    return subprocess.Popen(
        [sys.executable, "-c", f"NUM_DEVICES = {num_devices}\n{PROLOGUE}\n{script}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )


def finish(process):
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, [line for line in err.splitlines() if "spmd_partitioner" not in line]


def test_a_process_ends_without_close():
    status, out, err = finish(start("engine, runs = make_run(0.0); runs[-1].wait(); print('end')", num_devices=2))
    assert (status, out.splitlines()[-1], err) == (0, "end", [])


def test_a_process_ends_while_steps_are_under_way():
    start_s = time.perf_counter()
    status, out, err = finish(start("engine, runs = make_run(0.5, num_steps=4)"))
    assert (status, err) == (0, [])
    assert out.splitlines().count("running") < 10
    assert time.perf_counter() - start_s < 120


@pytest.mark.slow
def test_control_c_reaches_a_waiting_main_thread():
    process = start(
        "engine, runs = make_run(5.0)\n"
        "try:\n"
        "    print('waiting', flush=True)\n"
        "    np.asarray(runs[0].results()[0])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', runs[0].is_done(), flush=True)\n"
    )
    # Both have begun: the actor, and the main thread with what it is interrupted in.
    assert {process.stdout.readline() for _ in range(2)} == {"running\n", "waiting\n"}
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)
    assert (status, err) == (0, [])
    assert "interrupted False" in out.splitlines()
