"""Steps that the user writes, with `accumulate_grads(fn, AUTO)` and marks of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import PlanError, ScheduleError
from jaxquard.ir.jaxpr_tools import size_bytes
from jaxquard.planner.step.apply_plan import apply_plan
from jaxquard.planner.step.one_microbatch import trace_microbatch
from jaxquard.planner.step.stage_boundaries import analyse_microbatch, check_stage_count, find_stage_boundaries
from jaxquard.schedules import AUTO, OneFOneB
from tests.pipeline.oracle import assert_close
from tests.planner.step.plans import make_plan, run_applied

WIDTH = 8


def arguments(num_layers=4):
    keys = jax.random.split(jax.random.key(1), num_layers + 1)
    params = [0.3 * jax.random.normal(key, (WIDTH, WIDTH)) for key in keys[:-1]]
    return params, jax.random.normal(keys[-1], (2, 4, WIDTH))


def make_step(loss, schedule=AUTO):
    def train_step(params, batch):
        half = jax.tree.map(lambda param: param * 0.5, params)
        fn = lambda rows: jax.value_and_grad(loss)(half, rows)[::-1]  # noqa: E731
        grads, losses = jq.accumulate_grads(fn, schedule)(batch)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), {"losses": losses}

    return train_step


def marked_loss(params, rows):
    hidden = rows
    for number, weight in enumerate(params):
        hidden = hidden + jnp.tanh(hidden @ weight)
        if number in (0, 2):
            hidden = jq.pipeline_yield(2 * hidden, name=f"part {number}") / 2
    return jnp.mean(hidden**2)


def plain_loss(params, rows):
    hidden = rows
    for weight in params:
        hidden = hidden + jnp.tanh(hidden @ weight)
    return jnp.mean(hidden**2)


def scanned_loss(params, rows):
    layer = lambda hidden, weight: (hidden + jnp.tanh(hidden @ weight), None)  # noqa: E731
    hidden, _ = jq.pipeline_scan(layer, rows, params, num_stages=2)
    return jnp.mean(hidden**2)


def checkpointed_loss(params, rows):
    return jax.checkpoint(plain_loss)(params, rows)


def plan_step(step, args, stops, *, axes=None, **options):
    one = trace_microbatch(step, args)
    analysis = analyse_microbatch(one, axes=axes or {"data": 2})
    return make_plan(one, analysis, stops=stops(one, analysis), **options)


def every_boundary(one, analysis):
    legal = [found.segment for found in find_stage_boundaries(one, analysis) if found.can_begin]
    return [*legal, len(analysis.segments)]


def test_a_step_written_by_hand_has_the_numbers_of_one_jit():
    step, args = make_step(plain_loss), arguments()
    plan = plan_step(step, args, lambda one, analysis: [2, len(analysis.segments)])
    assert_close(run_applied(apply_plan(step, args, plan), args), jax.tree.map(np.asarray, jax.jit(step)(*args)))


def test_stages_begin_at_the_marks_of_the_code():
    step, args = make_step(marked_loss), arguments()
    one = trace_microbatch(step, args)
    assert one.num_marks == 2
    assert every_boundary(one, analyse_microbatch(one, axes={"data": 2})) == [1, 3, 4]
    plan = plan_step(step, args, every_boundary)
    applied = apply_plan(step, args, plan)
    assert applied.num_actors == 3
    # The value that the mark has crosses, twice what the block before it made.
    assert_close(run_applied(applied, args), jax.tree.map(np.asarray, jax.jit(step)(*args)))
    body = next(equation for equation in applied.jaxpr.eqns if equation.primitive.name == "accumulate_grads")
    marks = [equation for equation in body.params["body"].jaxpr.eqns if equation.primitive.name == "pipeline_yield"]
    made = {var: equation for equation in body.params["body"].jaxpr.eqns for var in equation.outvars}
    first = made[marks[0].invars[0]]
    while first.primitive.name in ("sharding_constraint", "copy"):
        first = made[first.invars[0]]
    assert (len(marks), first.primitive.name) == (4, "mul")


def test_other_boundaries_than_marks_are_used_only_if_asked_for():
    step, args = make_step(marked_loss), arguments()
    one = trace_microbatch(step, args)
    analysis = analyse_microbatch(one, axes={"data": 2})
    strict = find_stage_boundaries(one, analysis)
    free = find_stage_boundaries(one, analysis, ignores_marks=True)
    assert sum(found.can_begin for found in strict) == 2 < sum(found.can_begin for found in free)
    assert {found.reason for found in strict if not found.can_begin} == {"stages begin at the marks of the code alone"}


def test_one_activation_crosses_between_layers_and_one_gradient_back():
    step, args = make_step(plain_loss), arguments()
    one = trace_microbatch(step, args)
    found = find_stage_boundaries(one, analyse_microbatch(one, axes={"data": 1}))
    row_bytes = size_bytes(args[1][0])
    assert [(place.can_begin, place.forward_bytes, place.backward_bytes) for place in found] == [
        (True, row_bytes, row_bytes)
    ] * 3


def test_a_scan_in_two_parts_is_planned_layer_by_layer():
    step, (params, batch) = make_step(scanned_loss), arguments()
    args = jnp.stack(params), batch
    plan = plan_step(step, args, every_boundary, axes={"data": 1})
    applied = apply_plan(step, args, plan)
    assert applied.num_actors == 2
    assert_close(run_applied(applied, args), jax.tree.map(np.asarray, jax.jit(step)(*args)))


def test_a_checkpoint_around_all_layers_is_one_stage():
    step, args = make_step(checkpointed_loss), arguments()
    one = trace_microbatch(step, args)
    found = find_stage_boundaries(one, analyse_microbatch(one, axes={"data": 1}))
    assert not any(boundary.can_begin for boundary in found)
    with pytest.raises(
        PlanError,
        match=r"one stage at most, but 2 were asked for: the product at parameter 3, .*\.py:\d+ needs both sides",
    ):
        check_stage_count(found, 2)


def test_a_loss_of_one_product_is_one_stage():
    step, args = make_step(plain_loss), arguments(1)
    one = trace_microbatch(step, args)
    found = find_stage_boundaries(one, analyse_microbatch(one, axes={"data": 1}))
    with pytest.raises(PlanError, match="one stage at most, but 4 were asked for: its products are one segment"):
        check_stage_count(found, 4)


def test_a_plan_for_another_step_is_refused_with_the_difference():
    step, args = make_step(plain_loss), arguments()
    plan = plan_step(step, args, every_boundary)
    with pytest.raises(PlanError, match=r"made for another step: argument 0\[3\] was float32\[8,8\] and is not there"):
        apply_plan(step, arguments(3), plan)
    with pytest.raises(PlanError, match=r"it had \d+ operations and has \d+; the first that differs is sin at test_"):
        apply_plan(make_step(lambda params, rows: plain_loss(params, jnp.sin(rows))), args, plan)
    with pytest.raises(PlanError, match=r"the plan has 2 microbatches, but accumulate_grads at .* gets 3"):
        apply_plan(step, (args[0], jnp.ones((3, 4, WIDTH))), plan)


def test_a_step_without_a_loop_for_a_plan_is_refused():
    params, batch = arguments()

    def no_loop(params, batch):
        return params, batch

    with pytest.raises(PlanError, match=r"no_loop has no loop over microbatches.*accumulate_grads\(fn, jaxquard"):
        trace_microbatch(no_loop, (params, batch))
    with pytest.raises(PlanError, match=r"has the schedule OneFOneB\(1\). Leave it to the plan"):
        trace_microbatch(make_step(plain_loss, OneFOneB(1)), (params, batch))

    def two_loops(params, batch):
        step = make_step(plain_loss)
        return step(step(params, batch)[0], batch)

    with pytest.raises(PlanError, match="two_loops has 2 loops over microbatches"):
        trace_microbatch(two_loops, (params, batch))

    def with_carry(count, batch):
        return jq.accumulate_grads(lambda count, rows: (count + 1, rows), AUTO, carry=count)(batch)

    with pytest.raises(PlanError, match=r"has a carry \(carry\), and a plan cannot place it. Mark the stages"):
        trace_microbatch(with_carry, (0, batch))


def test_a_step_that_waits_for_a_plan_runs_under_jit_alone():
    step, args = make_step(marked_loss), arguments()
    scheduled = jax.jit(make_step(marked_loss, OneFOneB(3)))(*args)
    assert_close(jax.jit(step)(*args), scheduled)
    with (
        jq.RemoteMesh((1,)) as mesh,
        pytest.raises(ScheduleError, match=r"is AUTO, and no plan was applied.*jaxquard.plan\(step, args"),
    ):
        mesh.distributed(step)(*args)
    with pytest.raises(ScheduleError, match="it has no order for 4 microbatches until a plan decides"):
        AUTO.rows(4)
