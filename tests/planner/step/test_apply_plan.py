"""Plans applied to steps: the numbers of one jit, whatever the stages, shardings and schedule."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxquard.cluster import load_cluster
from jaxquard.errors import PlanError
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.segments.tune_products import tune_products
from jaxquard.ir.step import Step
from jaxquard.pipeline.step_text import write_step
from jaxquard.planner.step.apply_plan import apply_plan
from jaxquard.planner.step.one_microbatch import trace_microbatch
from jaxquard.planner.step.train_step import TrainStep
from jaxquard.runtime.remote_mesh import RemoteMesh
from tests.pipeline.oracle import assert_close
from tests.planner.step.plans import first_choices, make_plan, run_applied


def mlp_loss(params, batch):
    hidden = batch["x"]
    for layer in params["layers"]:
        hidden = hidden + jnp.tanh(hidden @ layer["up"]) @ layer["down"]
    return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)


def mlp_arguments(num_layers=3, width=8):
    keys = iter(jax.random.split(jax.random.key(0), 2 * num_layers + 3))
    layers = [
        {
            "up": 0.3 * jax.random.normal(next(keys), (width, 2 * width)),
            "down": 0.3 * jax.random.normal(next(keys), (2 * width, width)),
        }
        for _ in range(num_layers)
    ]
    params = {"layers": layers, "out": jax.random.normal(next(keys), (width, 4))}
    batch = {"x": jax.random.normal(next(keys), (8, width)), "y": jax.random.normal(next(keys), (8, 4))}
    return params, batch


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("axes", "stops", "schedule", "num_actors", "storage"),
    [
        ({"data": 1}, (4,), "none", 1, "as used"),
        ({"data": 2}, (1, 2, 3, 4), "interleaved", 2, "as used"),
        ({"data": 2}, (2, 4), "1f1b", None, "zero 2"),
        ({"data": 2, "model": 2}, (1, 4), "zero-bubble-h1", None, "zero 3"),
    ],
)
def test_a_step_under_a_plan_has_the_numbers_of_one_jit(axes, stops, schedule, num_actors, storage):
    params, batch = mlp_arguments()
    step = TrainStep(loss=mlp_loss, optimizer=optax.adam(1e-2), num_microbatches=2)
    state = step.init(params)
    one = trace_microbatch(step, (state, batch))
    analysis = analyse_step(one.traced, axes=axes)
    plan = make_plan(one, analysis, stops=stops, schedule=schedule, num_actors=num_actors, storage=storage)
    applied = apply_plan(step, (state, batch), plan)
    expected = jax.tree.map(np.asarray, jax.jit(step)(state, batch))
    assert applied.donate_argnums == (0,)
    assert_close(run_applied(applied, (state, batch)), expected)


def test_the_text_of_a_step_under_a_plan(golden):
    def loss(params, batch):
        hidden = jnp.tanh(batch["x"] @ params["up"])
        return jnp.mean((jnp.tanh(hidden @ params["mix"]) @ params["down"] - batch["y"]) ** 2)

    shapes = {"up": (4, 8), "mix": (8, 8), "down": (8, 2)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    batch = {"x": jax.ShapeDtypeStruct((8, 4), jnp.float32), "y": jax.ShapeDtypeStruct((8, 2), jnp.float32)}
    step = TrainStep(loss=loss, optimizer=optax.sgd(0.1), num_microbatches=2)
    args = jax.eval_shape(step.init, params), batch
    one = trace_microbatch(step, args)
    analysis = analyse_step(one.traced, axes={"data": 2}, lengths=[1, 2])
    plan = make_plan(one, analysis, stops=[1, 2])
    applied = apply_plan(step, args, plan)
    leaves = jax.tree.leaves(args)
    traced = Step(
        jaxpr=applied.jaxpr,
        constants=(),
        arg_parts=((),) * len(leaves),
        result_parts=((),) * len(applied.jaxpr.outvars),
    )
    golden(re.sub(r"@\S+", "", write_step(traced)))


def test_products_on_two_axes_run_in_a_pipeline():
    params, batch = mlp_arguments(width=16)
    step = TrainStep(loss=mlp_loss, optimizer=optax.sgd(0.1), num_microbatches=2)
    args = step.init(params), batch
    one = trace_microbatch(step, args)
    axes = {"data": 2, "model": 2}
    tune = partial(tune_products, axes=axes, cluster=load_cluster("v5e"))
    analysis = analyse_step(one.traced, axes=axes, plan_products=tune)
    assert analysis.products
    assignment = first_choices(analysis) | dict.fromkeys(analysis.products, ("2d rows", "2d columns"))
    plan = make_plan(one, analysis, stops=[1, len(analysis.segments)], assignment=assignment)
    plan = replace(plan, products={str(number): plans for number, plans in analysis.products.items()})
    applied = apply_plan(step, args, plan)
    expected = jax.tree.map(np.asarray, jax.jit(step)(*args))
    assert_close(run_applied(applied, args), expected)


def test_state_that_is_made_on_the_actors_trains_under_a_plan():
    def scanned_loss(params, batch):
        layer = lambda hidden, weights: (hidden + jnp.tanh(hidden @ weights["up"]) @ weights["down"], None)  # noqa: E731
        hidden, _ = jax.lax.scan(layer, batch["x"], params["layers"])
        return jnp.mean((hidden @ params["out"] - batch["y"]) ** 2)

    params, batch = mlp_arguments(num_layers=4)
    params = {**params, "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])}
    step = TrainStep(loss=scanned_loss, optimizer=optax.adam(1e-2), num_microbatches=2)
    args = step.init(params), batch
    one = trace_microbatch(step, args)
    analysis = analyse_step(one.traced, axes={"data": 2})
    plan = make_plan(one, analysis, stops=[2, len(analysis.segments)], storage="zero 1")
    applied = apply_plan(step, args, plan)
    expected = args[0]
    for _ in range(3):
        expected, metrics = jax.jit(step)(expected, batch)
    with RemoteMesh((2,), (2,), ("data",)) as mesh:
        run = mesh.distributed(applied.fn, in_shardings=applied.in_shardings, donate_argnums=applied.donate_argnums)
        state = mesh.init(lambda: step.init(params))
        for _ in range(3):
            state, found = run(state, batch)
        # Each actor has its own layers of the stack, and of the moments, alone.
        moments = state["opt_state"][0].mu["layers"]["up"]
        assert [part.actors for part in moments.placement] == [(0,), (0,), (1,), (1,)]
        fetched = jax.tree.map(lambda leaf: np.asarray(leaf.fetch()), (state, found))
    assert_close(fetched, jax.tree.map(np.asarray, (expected, metrics)), relative=3e-5)


def test_a_storage_or_schedule_that_is_not_known_is_refused():
    params, batch = mlp_arguments()
    step = TrainStep(loss=mlp_loss, optimizer=optax.sgd(0.1), num_microbatches=2)
    args = step.init(params), batch
    one = trace_microbatch(step, args)
    plan = make_plan(one, analyse_step(one.traced, axes={"data": 2}), stops=[2, 4])
    with pytest.raises(PlanError, match=r"stores state 'zero 4', which is not one of as used, zero 1, zero 2, zero 3"):
        apply_plan(step, args, replace(plan, storage="zero 4"))
    with pytest.raises(PlanError, match="the plan has 2 stages and no schedule"):
        apply_plan(step, args, replace(plan, schedule="none"))
