"""The program of a small step, and what identical stages share."""

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from jaxquard.errors import ScheduleError
from jaxquard.ir.program.parse import parse_program
from tests.pipeline.mlp_step import MlpStep, adamw
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import plan, tasks, with_schedule


def plan_mlp(step, schedule, num_microbatches=3, **options):
    args = step.arguments(num_microbatches)
    return plan(with_schedule(step, schedule), *args, num_actors=schedule.num_actors, **options)


def test_program_of_two_stages(golden):
    planned = plan_mlp(MlpStep(2), jq.schedules.OneFOneB(2), keep_text=True)
    golden(planned.text("build_program"), "program_without_frees")
    golden(str(planned.program), "program")


def test_program_with_a_tied_weight(golden):
    golden(str(plan_mlp(MlpStep(2, is_tied=True), jq.schedules.ZeroBubbleH1(2), 2).program), "program_tied")


def test_the_text_parses_back():
    program = plan_mlp(MlpStep(4, is_tied=True, optimizer=adamw()), jq.schedules.ZeroBubbleV(4)).program
    assert parse_program(str(program)) == program


@pytest.mark.parametrize("num_stages", [4, 8])
def test_identical_stages_share_their_calls(num_stages):
    program = plan_mlp(MlpStep(num_stages, optimizer=adamw()), jq.schedules.OneFOneB(num_stages)).program
    names = [call.name for call in program.calls]
    assert len([name for name in names if "stage" in name]) == 5, "first F and B, inner F and B, last FB"
    assert len(names) <= 12, "the number does not grow with the stages"


def test_stages_that_differ_in_a_number_do_not_share():
    def model(weights, x):
        for stage, weight in enumerate(weights):
            if stage:
                x = jq.pipeline_yield(x)
            x = jnp.tanh(x @ weight) * (stage + 1.5)
        return jnp.sum(x)

    def step(accumulate, weights, batch):
        return accumulate(lambda x: jax.grad(model)(weights, x), "sum")(batch)

    weights, batch = [jnp.eye(3) * 0.5] * 4, jnp.linspace(-1, 1, 12).reshape(2, 2, 3)
    planned = plan(with_schedule(step, jq.schedules.GPipe(4)), weights, batch, num_actors=4, has_state=False)
    assert len([call for call in planned.program.calls if call.name.endswith("_F")]) == 4
    assert_close(planned.run(weights, batch), run_oracle(step, weights, batch))


def test_actors_without_work():
    """The schedule has two actors, but no operation belongs to the second stage."""

    def step(accumulate, weight, batch):
        def loss(weight, x):
            return jq.pipeline_yield(jnp.sum(x @ weight))

        return accumulate(lambda x: jax.value_and_grad(loss)(weight, x)[::-1])(batch)

    weight, batch = jnp.eye(3), jnp.ones((2, 2, 3))
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), weight, batch, num_actors=2, has_state=False)
    assert_close(planned.run(weight, batch), run_oracle(step, weight, batch))


def test_fewer_microbatches_than_stages():
    step = MlpStep(4, is_tied=True)
    for schedule in (jq.schedules.OneFOneB(4), jq.schedules.ZeroBubbleH2(4), jq.schedules.DualPipeV(4)):
        state, batch = step.arguments(1)
        planned = plan(with_schedule(step, schedule), state, batch, num_actors=schedule.num_actors)
        assert_close(planned.run(state, batch), run_oracle(step, state, batch))


def test_the_loops_of_a_step_have_names_of_their_own():
    step = MlpStep(2)
    state, batch = step.arguments(2)

    def twice(accumulate, state, batch):
        state, _ = step(accumulate, state, batch)
        return step(accumulate, state, batch)

    planned = plan(with_schedule(twice, jq.schedules.GPipe(2)), state, batch, num_actors=2)
    assert tasks(planned.program, 0) == [
        *("start", "0F0", "0F1", "0B0", "0B1", "before.1.0"),
        *("start.1", "0F0", "0F1", "0B0", "0B1", "after.0"),
    ]
    assert {"stage0_F", "stage0_B"} <= {call.name for call in planned.program.calls}
    assert_close(planned.run(state, batch), run_oracle(twice, state, batch))


def test_actors_of_schedule_and_mesh_differ():
    step = MlpStep(4)
    with pytest.raises(ScheduleError) as caught:
        plan(with_schedule(step, jq.schedules.Interleaved(4, 2)), *step.arguments(2), num_actors=4)
    line = MlpStep.__call__.__code__.co_firstlineno + 5
    assert str(caught.value) == (
        f"schedule Interleaved(4, 2) of accumulate_grads at mlp_step.py:{line} is for 2 actors, but the mesh has 4. "
        "Use RemoteMesh((2,), ...), or a schedule for 4 actors."
    )
