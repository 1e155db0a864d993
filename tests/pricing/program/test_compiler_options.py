"""Options of the compiler."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxquard.pricing.program import compiler_options as module
from jaxquard.pricing.program.compiler_options import compiler_options
from jaxquard.pricing.program.lower_program import lower_program
from tests.pricing.programs import array, line_mesh, make, product

IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

BRANCHES = {
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    "while": lambda x: lax.while_loop(lambda x: x[0] > 0, lambda x: x - 1, x),
    "scan": lambda x: lax.scan(lambda x, _: (x + 1, None), x, None, length=2)[0],
    "in a call": jax.jit(lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)),
}


@pytest.mark.parametrize("kind", BRANCHES)
def test_what_branches_runs_in_one_order(kind):
    program = make(BRANCHES[kind], array(8))
    assert compiler_options(program.jaxpr, mesh=line_mesh()) == IN_ORDER


def test_other_programs_and_those_for_one_device_are_compiled_as_ever():
    one = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    assert compiler_options(product(8).jaxpr, mesh=line_mesh()) is None
    assert compiler_options(make(BRANCHES["cond"], array(8)).jaxpr, mesh=one) is None


def test_an_option_that_xla_does_not_have_is_left_out(monkeypatch):
    program = make(BRANCHES["cond"], array(8))
    monkeypatch.setattr(module, "_IN_ORDER", {"xla_no_such_option": "1"})
    module._is_known.cache_clear()
    try:
        assert compiler_options(program.jaxpr, mesh=line_mesh()) is None
    finally:
        module._is_known.cache_clear()


def test_a_lowered_program_is_compiled_with_them(tmp_path):
    lowered = lower_program(make(BRANCHES["cond"], array(8)), mesh=line_mesh())
    lowered.compile(compiler_options={"xla_dump_to": str(tmp_path)})
    (found,) = tmp_path.glob("*.debug_options")
    assert "xla_cpu_scheduler_type: CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED" in found.read_text()
