"""Phases become tasks of the schedule's order; what runs back to back is one task."""

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from tests.pipeline.mlp_step import MlpStep, adamw
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import is_loop_task, plan, tasks, with_schedule


def loop_tasks(schedule, num_microbatches=3):
    step = MlpStep(schedule.num_stages)
    planned = plan(with_schedule(step, schedule), *step.arguments(num_microbatches), num_actors=schedule.num_actors)
    return [
        [task for task in tasks(planned.program, actor) if is_loop_task(task)] for actor in range(schedule.num_actors)
    ]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (
            jq.schedules.GPipe(2),
            [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1F1", "1F2", "1B0", "1B1", "1B2"]],
        ),
        (jq.schedules.OneFOneB(2), [["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"], ["1FB0", "1FB1", "1FB2"]]),
        (jq.schedules.OneFOneB(1), [["0FB0", "0FB1", "0FB2"]]),
        (jq.schedules.Custom(["0F0,1F0,1B0,0B0"]), [["0F0", "1FB0", "0B0"]]),
        (jq.schedules.Custom(["0F0,0I0,0W0", "1F0,1I0,1W0"]), [["0F0", "0W0"], ["1FIW0"]]),
        (jq.schedules.Custom(["0F0,0F1,0B1,0B0", "1F0,1F1,1I1,1I0,1W1,1W0"]), None),
    ],
    ids=repr,
)
def test_what_runs_back_to_back_is_fused(schedule, expected):
    num_microbatches = getattr(schedule, "num_microbatches", 3)
    found = loop_tasks(schedule, num_microbatches)
    expected = expected or [["0F0", "0F1", "0B1", "0B0"], ["1F0", "1FI1", "1I0", "1W1", "1W0"]]
    assert found == expected


def test_fused_phases_of_two_actors_do_not_wait_for_each_other():
    """Stage 1's backward does not use its forward: only the order of tasks says that they cannot be one."""

    def step(accumulate, weight, batch):
        def loss(weight, x):
            first = jnp.tanh(x @ weight)
            second = jq.pipeline_yield(first) @ weight
            return jnp.sum(jq.pipeline_yield(second) @ weight * first)

        return accumulate(lambda x: jax.grad(loss)(weight, x))(batch)

    schedule = jq.schedules.Custom(["0F0,1F0,1I0,0I0,0W0,1W0", "2F0,2I0,2W0"])
    weight, batch = jnp.eye(3) * 0.3, jnp.ones((1, 2, 3))
    planned = plan(with_schedule(step, schedule), weight, batch, num_actors=2, has_state=False)
    assert_close(planned.run(weight, batch), run_oracle(step, weight, batch))


def test_named_stages_name_their_tasks():
    def model(weights, x):
        x = jq.pipeline_yield(jnp.sin(x @ weights[0]), name="embed")
        return jnp.sum(jq.pipeline_yield(jnp.tanh(x @ weights[1])) @ weights[2])

    def step(weights, batch):
        return jq.accumulate_grads(lambda x: jax.grad(model)(weights, x), jq.schedules.GPipe(3), "sum")(batch)

    planned = plan(step, [jnp.eye(2)] * 3, jnp.ones((2, 2, 2)), num_actors=3, has_state=False)
    names = {call.name for call in planned.program.calls}
    assert {"embed_F", "stage1_F", "stage2_B", "stage1_B", "embed_B"} <= names


@pytest.mark.parametrize(
    "schedule",
    [
        jq.schedules.OneFOneB(1),
        jq.schedules.OneFOneB(2),
        # Both stages on one actor, where the weight that they share has one sum.
        jq.schedules.Custom(["0F0,1F0,1B0,0B0"]),
        jq.schedules.Custom(["0F0,1F0,1I0,0I0,0W0,1W0"]),
    ],
    ids=repr,
)
def test_the_tasks_of_one_microbatch_begin_their_sums(schedule):
    """No task makes zeros first, and what a result adds up to has the same numbers."""
    step = MlpStep(schedule.num_stages, is_tied=True, optimizer=adamw())
    for num_microbatches in (1, 2) if schedule.num_actors == schedule.num_stages else (1,):
        args = step.arguments(num_microbatches)
        planned = plan(with_schedule(step, schedule), *args, num_actors=schedule.num_actors)
        assert_close(planned.run(*args), run_oracle(step, *args))
        names = [call.name for call in planned.program.calls]
        assert any(name.startswith("start") for name in names) == (num_microbatches > 1)


def test_all_reductions_of_one_microbatch():
    """Terms that no equation of the task makes, a batch leaf and a constant, are results too."""

    def step(accumulate, weight, batch):
        def outputs(x):
            hidden = jq.pipeline_yield(jnp.tanh(x @ weight))
            return hidden.sum(), hidden.max(), hidden, x, x, weight

        return accumulate(outputs, ("mean", "max", "stack", "last", "sum", "sum"))(batch)

    weight, batch = jnp.eye(3) * 0.3, -jnp.ones((1, 2, 3))
    planned = plan(with_schedule(step, jq.schedules.GPipe(2)), weight, batch, num_actors=2, has_state=False)
    assert_close(planned.run(weight, batch), run_oracle(step, weight, batch))
    assert not any(call.name.startswith("start") for call in planned.program.calls)
