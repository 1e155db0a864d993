"""Plans that run: the arrays that they run with, and the partitioner's warnings."""

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

from jaxquard.errors import JaxquardError
from jaxquard.planner.search import measure_plans as module
from jaxquard.planner.search.measure_plans import describe_shape, measure_plans
from tests.intraop.steps import mesh_of
from tests.planner.record.sample_plans import traced_plan


def compile_bad_step():
    """Compiles a step that goes from one sharding to another in the way that XLA:CPU knows none for."""
    mesh = mesh_of(x=2, y=4)
    source, target = (NamedSharding(mesh, spec) for spec in (jax.P(None, ("x", "y")), jax.P("x")))
    step = jax.jit(lambda a: 2 * jnp.sin(a), in_shardings=source, out_shardings=target)
    step.lower(jax.ShapeDtypeStruct((64, 64), jnp.float32)).compile()


@pytest.mark.parametrize("failure", ["", "it ran out of something"])
def test_warnings_of_the_partitioner_are_counted_and_do_not_reach_stderr(monkeypatch, capfd, caplog, failure):
    """Actors compile in threads of their own; a plan that fails then has compiled all the same."""

    def run(problem, plan, mesh, end_s):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(compile_bad_step).result()
        if failure:
            raise JaxquardError(failure)
        return [1e-3] * 5

    monkeypatch.setattr(module, "_loop_times", run)
    plan = traced_plan()
    with caplog.at_level(logging.INFO, logger="jaxquard"):
        # Two are said to be caught by actors in other processes.
        mesh = SimpleNamespace(engine=SimpleNamespace(num_rematerialized=2))
        (found,) = measure_plans(None, [plan], make_mesh=lambda plan: contextlib.nullcontext(mesh))
    assert "Involuntary" not in capfd.readouterr().err
    assert (found.num_rematerialized, found.failure) == (3, failure)
    assert f"{describe_shape(plan)}: the partitioner gathers 3 values whole" in caplog.text
    compile_bad_step()
    assert "Involuntary full rematerialization" in capfd.readouterr().err, "it does warn"
