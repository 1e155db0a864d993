"""Equations that are the same for every microbatch run once per step."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxquard as jq
from jaxquard.ir.jaxpr_tools import make_jaxpr
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.plan_step import Request, plan_step
from jaxquard.pipeline.specs.infer_specs import spec_of
from tests.pipeline.mlp_step import MlpStep
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import count_primitive, is_loop_task, plan, runs, trace, with_schedule


def count_casts(program, *, to, in_loop):
    """Conversions of kernels to a dtype, over all tasks inside or outside the loop."""

    def in_call(call):
        return sum(
            equation.primitive.name == "convert_element_type"
            and equation.params["new_dtype"] == to
            and equation.invars[0].aval.shape == (4, 4)
            and equation.invars[0].aval.dtype == jnp.float32
            for equation in call.code.jaxpr.eqns
        )

    return sum(in_call(program.calls[run.call]) for _, run in runs(program) if is_loop_task(run.task) is in_loop)


def forward_only(schedule, num_microbatches=4):
    step = MlpStep(3, dtype=jnp.bfloat16)
    state, batch = step.arguments(num_microbatches)
    loss = lambda accumulate, state, batch: accumulate(lambda m: step.loss(state["params"], m), "mean")(batch)  # noqa: E731
    return plan(with_schedule(loss, schedule), state, batch, num_actors=3, has_state=False)


def test_casts_run_once_per_step():
    planned = forward_only(jq.schedules.GPipe(3))
    assert count_casts(planned.program, to=jnp.bfloat16, in_loop=True) == 0
    assert count_casts(planned.program, to=jnp.bfloat16, in_loop=False) == 3


@pytest.mark.parametrize("is_rematted", [False, True])
def test_casts_of_weights_that_are_trained(is_rematted):
    """In the loop only gradients are cast: one to bfloat16 and back, for each of 3 kernels and 4 microbatches."""
    step = MlpStep(3, dtype=jnp.bfloat16, is_rematted=is_rematted)
    state, batch = step.arguments(4)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(3)), state, batch, num_actors=3)
    assert count_casts(planned.program, to=jnp.bfloat16, in_loop=False) == 3
    assert count_casts(planned.program, to=jnp.bfloat16, in_loop=True) == 3 * 4


def test_a_norm_of_weights_leaves_the_loop_and_a_transpose_stays():
    def step(accumulate, weight, batch):
        def loss(x):
            scale = jnp.sqrt(jnp.sum(jnp.square(weight)))
            return jnp.sum(x @ weight.T) / scale

        return accumulate(loss, "sum")(batch)

    weight, batch = jnp.arange(6.0).reshape(3, 2), jnp.ones((3, 4, 2))
    planned = plan(with_schedule(step, jq.schedules.GPipe(1)), weight, batch, num_actors=1, has_state=False)
    names = {run.task: planned.program.calls[run.call] for _, run in runs(planned.program)}
    assert count_primitive(names["before.0"].code, "sqrt") == 1
    assert count_primitive(names["before.0"].code, "transpose") == 0
    assert count_primitive(names["0F0"].code, "sqrt") == 0
    assert_close(planned.run(weight, batch), run_oracle(step, weight, batch))


def test_what_would_grow_stays_in_the_loop():
    """A mask of the size of the activations is made in every task, not kept through the loop."""

    def step(accumulate, vector, batch):
        return accumulate(lambda x: jnp.sum(x * jnp.outer(vector, jnp.exp(vector))), "sum")(batch)

    vector, batch = jnp.linspace(0, 1, 64), jnp.ones((2, 64, 64))
    planned = plan(with_schedule(step, jq.schedules.GPipe(1)), vector, batch, num_actors=1, has_state=False)
    (before,) = (planned.program.calls[run.call] for _, run in runs(planned.program) if run.task == "before.0")
    assert [type_.shape for type_ in before.outputs] == [(64,)]
    assert_close(planned.run(vector, batch), run_oracle(step, vector, batch))


def test_results_that_do_not_change_are_computed_once():
    """The gradient of a penalty on the weights, and an unused parameter's."""

    def step(accumulate, weights, batch):
        def grads(x):
            def loss(weights):
                return jnp.sum(x @ weights["used"]) + jnp.sum(jnp.square(weights["used"]))

            return jax.grad(loss)(weights), jnp.sum(weights["used"] ** 2), weights["unused"], 3

        return accumulate(grads, ("sum", "stack", "last", "mean"))(batch)

    weights, batch = {"used": jnp.arange(6.0).reshape(2, 3), "unused": jnp.ones(2)}, jnp.ones((3, 4, 2))
    planned = plan(with_schedule(step, jq.schedules.GPipe(1)), weights, batch, num_actors=1, has_state=False)
    found = planned.run(weights, batch)
    assert_close(found, run_oracle(step, weights, batch))


MESH = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))


def plan_constrained(constrain, *, size, rests, is_of_plan):
    """Plans two stages, the first with a constrained row; returns how often each task constrains, and the program."""

    def step(weights, batch):
        def loss(weights, x):
            x = jq.pipeline_yield(jnp.sin((weights["first"] @ x) * constrain(weights["scale"])))
            return jnp.sum(jnp.sin(x * weights["last"]))

        grads = jq.accumulate_grads(lambda x: jax.grad(loss)(weights, x), jq.schedules.GPipe(2))(batch)
        return jax.tree.map(jnp.subtract, weights, grads)

    weights = {"first": jnp.ones((2, 2)), "last": jnp.ones(()), "scale": jnp.ones(size)}
    traced, _ = trace(step, weights, jnp.ones((3, 2, size)))
    request = Request(
        num_actors=2,
        donated_args=(0, 1, 2),
        result_of_arg=(0, 1, 2, None),
        arg_specs=((), (), spec_of(rests), ()),
        mesh=MESH,
    )
    program = plan_step(of_plan(traced) if is_of_plan else traced, request=request).program
    return count_constraints(program), program


def count_constraints(program):
    """The constraints of each kind of task but those behind the loop; a gradient is held as its value is."""
    counts = {
        run.task[:2] if is_loop_task(run.task) else run.task: count_primitive(
            program.calls[run.call].code, "sharding_constraint"
        )
        for _, run in runs(program)
    }
    return {task: count for task, count in counts.items() if count and not task.startswith("after")}


def of_plan(step):
    """The step with its loop as plans write it."""
    equations = [
        equation.replace(params={**equation.params, "loop": replace(equation.params["loop"], has_gathered=True)})
        if equation.primitive is loop_p
        else equation
        for equation in step.jaxpr.eqns
    ]
    return replace(step, jaxpr=make_jaxpr(step.jaxpr.invars, equations, step.jaxpr.outvars))


def held(spec):
    """A row that is held to a sharding."""
    return lambda scale: jax.lax.with_sharding_constraint(scale[None], NamedSharding(MESH, spec))


@pytest.mark.parametrize(
    ("size", "rests", "is_used"), [(8, P(), P()), (8, P("data"), P(None, "data"))], ids=["whole", "sharded"]
)
def test_a_small_constraint_of_a_plan_stays_where_it_moves_no_data(size, rests, is_used):
    """As of a bias: every task that needs it broadcasts it, forward and backward, and nothing is kept between them."""
    found, program = plan_constrained(held(is_used), size=size, rests=rests, is_of_plan=True)
    assert found == {"0F": 1, "0B": 2}
    assert not any(type_.shape == (1, size) for call in program.calls for type_ in call.outputs)


@pytest.mark.parametrize(
    ("constrain", "size", "rests", "is_of_plan"),
    [
        (held(P()), 8, P("data"), True),
        (held(P(None, "data")), 8, P(), True),
        (held(P(None, P.UNCONSTRAINED)), 8, P(), True),
        (held(P()), 64 * 1024, P(), True),
        (held(P(None, "data")), 8, P("data"), False),
        (lambda scale: held(P())(scale.reshape(2, 4).T.reshape(8)), 8, P("data"), True),
        (
            lambda scale: jnp.tile(jax.lax.with_sharding_constraint(scale[:1], NamedSharding(MESH, P())), 8),
            8,
            P("data"),
            True,
        ),
    ],
    ids=["gathered", "sharded", "unconstrained", "large", "gathered before the loop", "reshaped", "of a slice"],
)
def test_other_constraints_leave_the_loop(constrain, size, rests, is_of_plan):
    """Each may move data: it does so once."""
    found, _ = plan_constrained(constrain, size=size, rests=rests, is_of_plan=is_of_plan)
    assert found == {"before.0": 1, "0B": 1}


def test_a_constraint_of_a_microbatch_is_done_once():
    """It may move data: only the first task that needs it does so, and others get what it made."""

    def step(weight, batch):
        def loss(weight, x):
            row = held(P())(x[0])
            x = jq.pipeline_yield(jnp.sin((weight @ x) * row))
            return jnp.sum(jnp.sin(weight @ x) * row)

        return weight - jq.accumulate_grads(lambda x: jax.grad(loss)(weight, x), jq.schedules.GPipe(2))(batch)

    traced, _ = trace(step, jnp.ones((2, 2)), jnp.ones((3, 2, 8)))
    request = Request(num_actors=2, donated_args=(0,), result_of_arg=(0, None), arg_specs=((), ()), mesh=MESH)
    assert count_constraints(plan_step(of_plan(traced), request=request).program) == {"0F": 1}
