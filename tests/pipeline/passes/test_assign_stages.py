"""Operations go where the data is; schedules and marks must agree on the stages."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxquard as jq
from jaxquard.errors import ScheduleError
from jaxquard.models import gpt
from tests.pipeline.mlp_step import MlpStep
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import (
    count_in_microbatch,
    count_primitive,
    is_loop_task,
    plan,
    sends,
    tasks,
    with_schedule,
)


def plan_mlp(step, schedule, num_microbatches=4):
    return plan(with_schedule(step, schedule), *step.arguments(num_microbatches), num_actors=schedule.num_actors)


def step_of(loss):
    def step(accumulate, weights, batch):
        def microbatch_grads(x):
            value, grads = jax.value_and_grad(loss)(weights, x)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), losses

    return step


def square_weights(count):
    return [jnp.full((4, 4), 0.1 * (number + 1)) for number in range(count)]


BATCH = jnp.linspace(-1, 1, 4 * 2 * 4).reshape(4, 2, 4)


def test_values_for_a_far_stage_go_straight_there():
    """`first` is made by stage 0 and used by stages 1 and 3 alone; stage 2 never sees it."""

    def loss(weights, x):
        first = jnp.tanh(x @ weights[0])
        hidden = jq.pipeline_yield(first)
        for weight in weights[1:3]:
            hidden = jq.pipeline_yield(jnp.tanh(hidden @ weight))
        return jnp.sum(jnp.square((hidden + first) @ weights[3]))

    step = step_of(loss)
    weights = square_weights(4)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(4)), weights, BATCH, num_actors=4)
    in_loop = [(source, target) for source, target, _, before in sends(planned.program) if is_loop_task(before)]
    forward = {(0, 1), (1, 2), (2, 3), (0, 3)}
    backward = {(3, 2), (2, 1), (1, 0), (3, 0)}
    assert {pair: in_loop.count(pair) for pair in in_loop} == dict.fromkeys(forward | backward, len(BATCH))
    assert_close(planned.run(weights, BATCH), run_oracle(step, weights, BATCH))


def test_what_every_task_can_make_is_not_sent():
    """Slices of the batch, keys and dropout masks: nothing but one hidden value crosses a boundary."""
    planned = plan_mlp(MlpStep(4, has_dropout=True), jq.schedules.OneFOneB(4))
    crossings = [(source, target, type_) for source, target, type_, _ in sends(planned.program)]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)]
    assert sorted(crossings) == sorted((*pair, "float32[2,4]") for pair in pairs * 4)
    assert count_in_microbatch(planned.program, "random_bits") <= 2 * 4, "masks are made anew at most once per phase"


def test_a_stage_ends_at_the_first_mark_that_needs_it():
    """`late` stands before the first mark in the text, but only the second stage needs it."""

    def loss(weights, x):
        late = jnp.tanh(x @ weights[1])
        hidden = jq.pipeline_yield(jnp.tanh(x @ weights[0]), name="first")
        hidden = jq.pipeline_yield(hidden + late, name="second")
        return jnp.sum(hidden @ weights[2])

    schedule = jq.schedules.GPipe(3)
    planned = plan(with_schedule(step_of(loss), schedule), square_weights(3), BATCH, num_actors=3)
    products = {
        call.name: count_primitive(call.code, "dot_general")
        for call in planned.program.calls
        if call.name.startswith(("first", "second", "stage"))
    }
    assert products["first_F"] == products["second_F"] == products["stage2_F"] == 1


@pytest.mark.parametrize("schedule", [jq.schedules.OneFOneB(4), jq.schedules.ZeroBubbleH1(4)], ids=repr)
@pytest.mark.parametrize("is_rematted", [False, True])
def test_nothing_costly_runs_twice(schedule, is_rematted):
    planned = plan_mlp(MlpStep(4, is_rematted=is_rematted), schedule)
    forward, weight_gradients, input_gradients = 4, 4, 3
    recomputed = 4 if is_rematted else 0
    total = forward + recomputed + weight_gradients + input_gradients
    assert count_in_microbatch(planned.program, "dot_general") == total


@pytest.mark.parametrize("is_rematted", [False, True])
def test_backward_is_split_into_input_and_weight_gradients(is_rematted):
    schedule = jq.schedules.ZeroBubbleH1(3)
    planned = plan_mlp(MlpStep(3, num_layers=6, is_rematted=is_rematted), schedule)
    products = {call.name: count_primitive(call.code, "dot_general") for call in planned.program.calls}
    recomputed = 2 if is_rematted else 0
    assert products["stage1_I"] == recomputed + 2
    assert products["stage1_W"] == 2
    assert tasks(planned.program, 1) == ["start", *map(str, schedule.rows(4)[1]), "after.0"]


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "policy",
    [
        jax.checkpoint_policies.everything_saveable,
        jax.checkpoint_policies.dots_saveable,
        jax.checkpoint_policies.save_only_these_names("kept"),
        jax.checkpoint_policies.save_any_names_but_these("kept"),
    ],
)
@pytest.mark.parametrize("schedule", [jq.schedules.OneFOneB(2), jq.schedules.ZeroBubbleH1(2)], ids=repr)
def test_checkpoint_policies(policy, schedule):
    @jax.checkpoint
    def inner(weight, x):
        return jnp.sin(x @ weight)

    def block(weight, x):
        return inner(weight, checkpoint_name(jnp.tanh(x @ weight), "kept"))

    def loss(weights, x):
        hidden = jq.pipeline_yield(jax.checkpoint(block, policy=policy)(weights[0], x))
        return jnp.sum(jax.checkpoint(block, policy=policy)(weights[1], hidden))

    step, weights = step_of(loss), square_weights(2)
    planned = plan(with_schedule(step, schedule), weights, BATCH, num_actors=2)
    assert_close(planned.run(weights, BATCH), run_oracle(step, weights, BATCH))


def marked_loss(num_marks):
    def loss(weights, x):
        for weight in weights[:num_marks]:
            x = jnp.tanh(x @ weight)
            x = jq.pipeline_yield(x)
        return jnp.sum(x @ weights[-1])

    return loss, loss.__code__.co_firstlineno + 3


@pytest.mark.parametrize(
    ("num_marks", "schedule", "message"),
    [
        (
            2,
            jq.schedules.OneFOneB(4),
            "schedule OneFOneB(4) has 4 stages, but the function at {loop} makes 3 (2 marks, the last at {mark}). "
            "Add a `pipeline_yield`, or use a schedule of 3 stages.",
        ),
        (
            3,
            jq.schedules.Interleaved(2, 1),
            "schedule Interleaved(2, 1) has 2 stages, but the function at {loop} makes 4 (3 marks, the last at "
            "{mark}). Take a `pipeline_yield` away, or use a schedule of 4 stages.",
        ),
        (
            1,
            jq.schedules.GPipe(3),
            "schedule GPipe(3) has 3 stages, but the function at {loop} makes 2 (1 mark, at {mark}). "
            "Add a `pipeline_yield`, or use a schedule of 2 stages.",
        ),
        (
            0,
            jq.schedules.GPipe(2),
            "schedule GPipe(2) has 2 stages, but the function at {loop} makes 1 (no mark). "
            "Add a `pipeline_yield`, or use a schedule of 1 stages.",
        ),
    ],
    ids=["too few", "too many", "one", "none"],
)
def test_stages_of_schedule_and_marks_differ(num_marks, schedule, message):
    loss, mark_line = marked_loss(num_marks)
    step = step_of(loss)
    with pytest.raises(ScheduleError) as caught:
        plan(with_schedule(step, schedule), square_weights(4), BATCH, num_actors=schedule.num_actors)
    loop = f"test_assign_stages.py:{step.__code__.co_firstlineno + 5}"
    assert str(caught.value) == message.format(loop=loop, mark=f"test_assign_stages.py:{mark_line}")


def test_tasks_make_as_many_stages_as_there_are_calls():
    @jq.task
    def first(weight, x):
        return jnp.tanh(x @ weight)

    @jq.task
    def second(weight, hidden):
        return jnp.tanh(hidden @ weight)

    def loss(weights, x):
        return jnp.sum(second(weights[1], first(weights[0], x)) ** 2)

    step, weights = step_of(loss), square_weights(2)
    planned = plan(with_schedule(step, jq.schedules.GPipe(2)), weights, BATCH, num_actors=2)
    assert {"first_F", "second_F", "second_B", "first_B"} <= {call.name for call in planned.program.calls}
    assert_close(planned.run(weights, BATCH), run_oracle(step, weights, BATCH))
    with pytest.raises(ScheduleError, match=r"GPipe\(3\) has 3 stages, but the function at .* makes 2"):
        plan(with_schedule(step, jq.schedules.GPipe(3)), weights, BATCH, num_actors=3)


def test_parallel_branches():
    """The second stage does not depend on the first; the last needs both."""

    def loss(weights, x):
        left = jq.pipeline_yield(jnp.tanh(x @ weights[0]))
        right = jq.pipeline_yield(jnp.sin(x @ weights[1]))
        return jnp.sum(left * right @ weights[2])

    step, weights = step_of(loss), square_weights(3)
    for schedule in (jq.schedules.OneFOneB(3), jq.schedules.ZeroBubbleH2(3)):
        planned = plan(with_schedule(step, schedule), weights, BATCH, num_actors=3)
        assert_close(planned.run(weights, BATCH), run_oracle(step, weights, BATCH))


def test_weight_gradients_of_two_stages_may_run_in_any_order():
    """One actor runs the W of stage 0 before that of stage 1, whose weights and skipped value it shares."""
    schedule = jq.schedules.Custom(["0F0,1F0,1I0,0I0,0W0,1W0", "2F0,2I0,2W0"])

    def loss(weights, x):
        first = jnp.tanh(x @ weights[0] @ weights[1].T)
        second = jnp.tanh(jq.pipeline_yield(first) @ weights[0] @ weights[1])
        return jnp.sum(jq.pipeline_yield(second) @ weights[0] * first)

    step, weights = step_of(loss), square_weights(2)
    planned = plan(with_schedule(step, schedule), weights, BATCH[:1], num_actors=2)
    assert_close(planned.run(weights, BATCH[:1]), run_oracle(step, weights, BATCH[:1]))


def test_gradients_clipped_in_every_microbatch():
    """The norm ties all weight gradients together, in whatever order the schedule has them."""
    schedule = jq.schedules.Custom(["0F0,0I0,0W0,0F1,0I1,0W1", "1F0,1I0,1F1,1I1,1W1,1W0"])

    def step(accumulate, weights, batch):
        def microbatch_grads(x):
            def loss(weights):
                return jnp.sum(jq.pipeline_yield(jnp.tanh(x @ weights[0])) @ weights[1])

            grads = jax.grad(loss)(weights)
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(grad)) for grad in grads))
            return jax.tree.map(lambda grad: grad / norm, grads)

        return accumulate(microbatch_grads, "sum")(batch)

    weights = square_weights(2)
    planned = plan(with_schedule(step, schedule), weights, BATCH[:2], num_actors=2, has_state=False)
    assert_close(planned.run(weights, BATCH[:2]), run_oracle(step, weights, BATCH[:2]))


@pytest.mark.parametrize("schedule", [jq.schedules.OneFOneB(2), jq.schedules.ZeroBubbleH1(2)], ids=repr)
def test_only_the_hidden_state_of_a_transformer_crosses(schedule):
    """With dropout, checkpoints, casts and tied embeddings."""
    config = gpt.GptConfig(
        vocab_size=16,
        num_layers=2,
        num_heads=2,
        model_dim=8,
        sequence_length=4,
        tied_embeddings=True,
        dropout_rate=0.1,
    )

    def step(params, batch):
        def microbatch_grads(microbatch):
            key = jax.random.fold_in(jax.random.key(0), microbatch["number"])
            loss = lambda params: gpt.loss(  # noqa: E731
                params, microbatch, config, mark=jq.pipeline_yield, num_stages=2, remat=True, key=key
            )
            value, grads = jax.value_and_grad(loss)(params)
            return grads, value

        grads, losses = jq.accumulate_grads(microbatch_grads, schedule)(batch)
        return jax.tree.map(jnp.subtract, params, grads), losses

    params = jax.eval_shape(lambda key: gpt.init(key, config), jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((3, 2, 4), jnp.int32)
    batch = {"tokens": tokens, "targets": tokens, "number": jax.ShapeDtypeStruct((3,), jnp.int32)}
    program = plan(step, params, batch, num_actors=2).program
    hidden, table, partial_sum = "bfloat16[2,4,8]", "bfloat16[16,8]", "float32[16,8]"
    crossing = [(source, target, type_) for source, target, type_, _ in sends(program)]
    expected = [(0, 1, hidden), (1, 0, hidden)] * 3 + [(0, 1, table), (1, 0, partial_sum)]
    assert sorted(crossing) == sorted(expected)
