"""Warnings of XLA's partitioner are caught and counted; everything else on stderr gets through."""

import logging
import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import pytest

from jaxquard.pricing import MeasuredPricer, Price, ShardedProgram
from jaxquard.pricing.compile.partitioner_warnings import catch_warnings, count_rematerialized
from tests.intraop.steps import mesh_of

WARNING = (
    b"W1118 11:38:42.955172 %7d spmd_partitioner.cc:656] [SPMD] Involuntary full rematerialization. The compiler\n"
)


def warn(thread=None):
    os.write(2, WARNING % (thread or threading.get_native_id()))


def bad_program(name="bad"):
    """A value that goes from one sharding to another in the way that XLA:CPU knows none for."""
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return ShardedProgram(
        name=name,
        jaxpr=jax.make_jaxpr(lambda a: 2 * jnp.sin(a))(shape),
        in_specs=(jax.P(None, ("x", "y")),),
        out_specs=(jax.P("x"),),
    )


def test_they_are_counted_and_do_not_reach_stderr(capfd):
    found = []
    with catch_warnings(found.append):
        warn()
        os.write(2, b"before")
        warn()
        os.write(2, b"behind\n")
    assert found == [2]
    assert capfd.readouterr().err == "beforebehind\n"
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_without_any_nothing_is_reported(capfd):
    with catch_warnings(lambda count: pytest.fail("there were none")):
        os.write(2, b"W1118 a warning of another kind\nan end without a line")
    assert capfd.readouterr().err == "W1118 a warning of another kind\nan end without a line"


def test_output_of_other_threads_is_not_lost(capfd):
    written, found, is_done = [], [], threading.Event()

    def write():
        while not is_done.wait(1e-4):
            written.append(f"line {len(written)}")
            os.write(2, f"{written[-1]}\n".encode())

    other = threading.Thread(target=write)
    other.start()
    for _ in range(4):
        with catch_warnings(found.append):
            warn()
    is_done.set()
    other.join()
    assert found == [1] * 4
    assert sorted(capfd.readouterr().err.splitlines()) == sorted(written)


def test_threads_have_their_own(capfd):
    found, both = {}, threading.Barrier(2, timeout=60)

    def compile_one(count):
        with catch_warnings(lambda caught: found.__setitem__(count, caught)):
            both.wait()
            for _ in range(count):
                warn()
            both.wait()

    threads = [threading.Thread(target=compile_one, args=(count,)) for count in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1: 1, 3: 3}
    assert capfd.readouterr().err == ""


def test_a_crash_is_still_heard():
    code = (
        "import os\n"
        "from jaxquard.pricing.compile.partitioner_warnings import catch_warnings\n"
        "with catch_warnings(print):\n"
        "    os.write(2, b'F1118 it ends here\\n')\n"
        "    os.abort()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode != 0
    assert b"F1118 it ends here" in done.stderr


def test_a_log_is_counted():
    assert count_rematerialized(WARNING % 7 + b"W1118 another\n" + WARNING % 8) == 2


@pytest.mark.parametrize("num_compilers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_price_has_their_number(num_compilers, capfd, caplog, monkeypatch):
    """In this process, and in others."""
    monkeypatch.setattr("jaxquard.pricing.measure.measured_pricer._FEWEST_FOR_COMPILERS", 1)
    with (
        caplog.at_level(logging.INFO, logger="jaxquard"),
        MeasuredPricer(mesh_of(x=2, y=4), num_runs=1, max_runs=1, cache=None, num_compilers=num_compilers) as pricer,
    ):
        (price,) = pricer.price_all([bad_program()])
    assert isinstance(price, Price)
    assert price.num_rematerialized == 1
    assert "Involuntary" not in capfd.readouterr().err
    assert "bad: the partitioner gathers 1 values whole" in caplog.text
