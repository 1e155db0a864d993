"""A carry goes from microbatch to microbatch on the stages that update it, with the numbers of a plain loop."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxquard as jq
from jaxquard.errors import CarryError, LoopError, ScheduleError, StepWarning
from jaxquard.ir.task import Task
from tests.pipeline import generate, generate_carries
from tests.pipeline.generate_carries import CarryRecipe
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import plan, runs, sends, sizes_counting_as, tasks, trace, with_schedule

FEW = settings(max_examples=settings.default.max_examples // 8)


def check(recipe, schedule, num_microbatches, *, donates=True, is_large=False):
    step = generate_carries.make_step(recipe)
    state, batch = generate_carries.make_arguments(recipe, num_microbatches)
    scheduled = with_schedule(step, schedule)
    with sizes_counting_as(is_large):
        planned = plan(scheduled, state, batch, num_actors=schedule.num_actors, donates=donates)
    assert_close(planned.run(state, batch), run_oracle(step, state, batch))
    return planned


@FEW
@given(st.data())
def test_any_carry_under_any_schedule(data):
    num_microbatches = data.draw(st.integers(1, 4))
    kinds = tuple(kind for kind in generate.KINDS if kind is not jq.schedules.Custom)
    schedule = data.draw(generate.schedules(num_microbatches).filter(lambda found: isinstance(found, kinds)))
    recipe = data.draw(generate_carries.carry_recipes(schedule.num_stages))
    check(recipe, schedule, num_microbatches, donates=data.draw(st.booleans()))


@FEW
@given(st.data())
def test_any_order_that_can_carry(data):
    """A custom order, and sizes that are carried by one stage alone: the numbers are right, or it is refused."""
    num_microbatches = data.draw(st.integers(1, 4))
    num_actors = data.draw(st.integers(1, 3))
    schedule = generate.custom_schedule(
        num_actors + data.draw(st.integers(0, 1)), num_actors, num_microbatches, data.draw(st.integers(0, 1 << 30))
    )
    recipe = data.draw(generate_carries.carry_recipes(schedule.num_stages))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StepWarning)
        try:
            check(recipe, schedule, num_microbatches, is_large=data.draw(st.booleans()))
        except CarryError as error:
            assert "goes against the schedule Custom(" in str(error)  # noqa: PT017


def test_every_stage_carries_its_own():
    recipe = CarryRecipe(3, (("mean", 0, ()), ("mean", 2, ()), ("key", 0, (0, 1, 2))))
    program = check(recipe, jq.schedules.OneFOneB(3), 4).program
    in_loop = [type_ for _, _, type_, before in sends(program) if before[:1].isdigit()]
    assert set(in_loop) == {"float32[4,3]"}, "activations and their gradients, but no carried value"
    assert len(in_loop) == 4 * 4


def test_a_value_that_one_task_reads_is_donated():
    program = check(CarryRecipe(2, (("mean", 0, ()), ("total", 1, ()))), jq.schedules.OneFOneB(2), 3).program

    def donated(actor, letters):
        calls = {program.calls[run.call] for _, run in runs(program, actor) if run.task[1:].startswith(letters)}
        return [str(call.inputs[position]) for call in calls for position in call.donated]

    assert donated(0, "F") == [], "the backward reads the mean again"
    assert sorted(donated(1, "FB")) == ["float32[3,3]", "float32[3]", "float32[]"], "gradients, losses, the total"


def test_state_that_is_donated_is_not_copied():
    recipe = CarryRecipe(2, (("mean", 1, ()),))
    program = check(recipe, jq.schedules.OneFOneB(2), 3).program
    (start,) = (run for _, run in runs(program, 1) if run.task == "start")
    assert program.calls[start.call].donated
    kept = check(recipe, jq.schedules.OneFOneB(2), 3, donates=False).program
    assert not any(kept.calls[run.call].donated for _, run in runs(kept, 1) if run.task == "start")


def test_a_stage_gets_what_another_one_carries():
    recipe = CarryRecipe(2, (("last", 0, (1,)),))
    program = check(recipe, jq.schedules.OneFOneB(2), 3).program
    sent = [before for source, _, type_, before in sends(program) if (source, type_) == (0, "float32[3]")]
    assert sent == ["start", "0F0", "0F1"]
    assert tasks(program, 1)[:3] == ["start", "1FB0", "1FB1"]


def held_types(program, *types):
    """For each actor, how many of its inputs are of each type."""
    held = [[str(actor.types[item.slot]) for item in actor.inputs] for actor in program.actors]
    return [tuple(found.count(name) for name in types) for found in held]


@pytest.mark.parametrize("schedule", [jq.schedules.OneFOneB(2), jq.schedules.ZeroBubbleH1(2)], ids=["1F1B", "ZB-H1"])
@pytest.mark.parametrize("kind", ["delayed", "costly"])
def test_a_scale_of_gradients_is_made_in_the_backward(kind, schedule):
    """The history is written where gradients are, so a scale in the forward would make the schedule impossible."""
    recipe = CarryRecipe(2, ((kind, 0, ()), (kind, 1, ())), is_reported=True)
    program = check(recipe, schedule, 4).program
    assert {type_ for _, _, type_, before in sends(program) if before[:1].isdigit()} == {"float32[4,3]"}
    assert held_types(program, "float32[3]", "float32[3,3]") == [(1, 1), (1, 1)]


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_history_of_a_weight_is_made_where_the_weight_is(is_reported):
    recipe = CarryRecipe(3, (("amax", 1, ()), ("amax", 0, ())), is_reported=is_reported)
    program = check(recipe, jq.schedules.OneFOneB(3), 4).program
    assert held_types(program, "float32[3]", "float32[3,3]") == [(1, 1), (1, 1), (0, 1)]


def test_a_value_that_nothing_reads_is_made_where_its_operands_are():
    """The first two histories are of weights; the third one is a copy of one that the backward makes."""

    def step(accumulate, state, batch):
        def loss_fn(params, x):
            return jnp.mean((jq.pipeline_yield(jnp.tanh(x @ params[0])) @ params[1]) ** 2)

        def microbatch_grads(carry, x):
            grads = jax.grad(loss_fn)(state["params"], x)
            histories = [
                history.at[0].add(jnp.max(jnp.abs(weight * history[1])))
                for history, weight in zip(carry["weights"], state["params"], strict=True)
            ]
            return {"weights": histories, "grads": jnp.sum(grads[1], 0), "before": carry["grads"]}, grads

        carry, grads = accumulate(microbatch_grads, carry=state["carry"])(batch)
        return {"params": [p - g for p, g in zip(state["params"], grads, strict=True)], "carry": carry}

    weights = [jnp.linspace(-1, 1, 6).reshape(2, 3), jnp.linspace(-2, 1, 12).reshape(3, 4)]
    carry = {"weights": [jnp.ones(5), jnp.ones(6)], "grads": jnp.ones(4), "before": jnp.zeros(4)}
    state, batch = {"params": weights, "carry": carry}, jnp.linspace(-1, 1, 18).reshape(3, 3, 2)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), state, batch, num_actors=2)
    assert_close(planned.run(state, batch), run_oracle(step, state, batch))
    types = ("float32[2,3]", "float32[5]", "float32[3,4]", "float32[6]", "float32[4]")
    assert held_types(planned.program, *types) == [(1, 1, 0, 0, 0), (0, 0, 1, 1, 2)]


def test_text(golden):
    def iteration(carry, x):
        hidden = (x @ carry["same"]) * carry["count"]
        mean = 0.9 * carry["mean"] + jnp.sum(hidden, 0)
        hidden = jq.pipeline_yield(hidden) * carry["count"]
        return {**carry, "count": carry["count"] + 1, "mean": mean}, jnp.sum(hidden)

    def step(carry, batch):
        return jq.accumulate_grads(iteration, jq.schedules.GPipe(2), carry=carry)(batch)

    carry = {"count": jnp.zeros(()), "mean": jnp.zeros(2), "same": jnp.ones((2, 2))}
    planned = plan(step, carry, jnp.zeros((2, 3, 2)), num_actors=2, keep_text=True)
    golden("\n".join(planned.text(name) for name in ("place_carries", "form_tasks")))


def test_stacked_layers_are_carried_in_parts():
    def step(accumulate, state, batch):
        def loss_fn(params, carry, x):
            def layer(hidden, weight_and_mean):
                weight, mean = weight_and_mean
                hidden = jnp.tanh(hidden @ weight) - mean
                return hidden, 0.9 * mean + 0.1 * jnp.mean(hidden, 0)

            hidden, means = jq.pipeline_scan(layer, x, (params, carry), num_stages=2)
            return jnp.mean(hidden**2), jax.lax.stop_gradient(means)

        def microbatch_grads(carry, x):
            (loss, carry), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"], carry, x)
            return carry, (grads, loss)

        means, (grads, losses) = accumulate(microbatch_grads, carry=state["means"])(batch)
        return {"params": state["params"] - grads, "means": means}, losses

    rng = np.random.default_rng(0)
    state = {"params": jnp.asarray(rng.normal(size=(3, 4, 4))), "means": jnp.asarray(rng.normal(size=(3, 4)))}
    batch = jnp.asarray(rng.normal(size=(3, 2, 4)))
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), state, batch, num_actors=2)
    assert_close(planned.run(state, batch), run_oracle(step, state, batch))
    assert planned.planned.arg_parts[:2] == ((2, 1), (2, 1))
    held = [sorted(str(actor.types[item.slot]) for item in actor.inputs) for actor in planned.program.actors]
    assert "float32[2,4]" in held[0]
    assert "float32[1,4]" in held[1]


def test_plain_jit_derivatives_and_batching():
    loop = jq.accumulate_grads(lambda c, x: (c * x, c + x), jq.schedules.GPipe(1), carry=jnp.float32(2))
    last, total = jax.jit(loop)(jnp.arange(1.0, 4.0))
    assert (float(last), float(total)) == (12.0, 2 + 2 + 4 + 6)
    assert jax.grad(lambda batch: loop(batch)[0])(jnp.array([3.0, 5.0])).tolist() == [10.0, 6.0]
    assert jax.vmap(lambda batch: loop(batch)[0])(jnp.ones((2, 3))).tolist() == [2.0, 2.0]


def test_an_empty_carry_and_numbers():
    assert jq.accumulate_grads(lambda c, x: (c, x), jq.schedules.GPipe(1), carry={})(jnp.ones(3)) == ({}, 3.0)
    last, _ = jq.accumulate_grads(lambda c, x: (c + 1, x), jq.schedules.GPipe(1), carry=0)(jnp.ones(3))
    assert last == 3
    last, _ = jq.accumulate_grads(lambda c, x: (1, x + c), jq.schedules.GPipe(1), carry=jnp.zeros(()))(jnp.ones(3))
    assert (last, last.dtype) == (1.0, jnp.float32)


def expect(error, fn, carry, schedule=jq.schedules.GPipe(1)):  # noqa: B008
    with pytest.raises(error) as caught:
        trace(jq.accumulate_grads(fn, schedule, carry=carry), jnp.zeros((3, 2)))
    return str(caught.value).split(": ", 1)[1]


def test_a_carry_of_another_type():
    assert expect(LoopError, lambda c, x: ({"a": c["a"][:1]}, x), {"a": jnp.zeros(2)}) == (
        "carry['a'] comes in as float32[2] and is returned as float32[1]. Return the type that came in, or give a "
        "first carry of the other."
    )
    assert "is returned as bfloat16[]" in expect(LoopError, lambda c, x: (c.astype(jnp.bfloat16), x), 1.0)


def test_a_carry_of_another_structure():
    found = expect(LoopError, lambda c, x: ((c, c), x), jnp.zeros(2))
    assert found.startswith("the function returns a carry of another structure than it gets: PyTreeDef((*, *)), not ")


def test_a_function_that_returns_no_pair():
    with pytest.raises(LoopError, match=r"returns a pair \(carry, outputs\); found a tuple of 3"):
        jq.accumulate_grads(lambda c, x: (c, x, x), jq.schedules.GPipe(1), carry=1.0)(jnp.zeros(3))
    with pytest.raises(LoopError, match=r"carry\['f'\] is .*, not an array\. Carry arrays, and close over the rest"):
        jq.accumulate_grads(lambda c, x: (c, x), jq.schedules.GPipe(1), carry={"f": "text"})(jnp.zeros(3))


def custom(*rows):
    return jq.schedules.Custom([[Task.parse(word) for word in row.split()] for row in rows])


def plan_two_stages(update, schedule, num_microbatches=3):
    """Plans a step of two stages; `update(carry, first, second, grads)` makes the next carry, a number."""

    def loss_fn(params, carry, x):
        first = jnp.tanh(x @ params[0]) * (1 + carry["scale"])
        second = jq.pipeline_yield(first) @ params[1]
        return jnp.mean(second**2), (first, second)

    def microbatch_grads(params, carry, x):
        (_, (first, second)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, carry, x)
        return {"scale": update(carry["scale"], first, second, grads)}, grads

    def step(state, batch):
        loop = jq.accumulate_grads(
            lambda carry, x: microbatch_grads(state[0], carry, x), schedule, carry={"scale": state[1]}
        )
        carry, grads = loop(batch)
        return ([param - grad for param, grad in zip(state[0], grads, strict=True)], carry["scale"])

    state = ([jnp.full((2, 2), 0.5), jnp.full((2, 2), 0.5)], jnp.full((), 0.5))
    batch = jnp.linspace(-1, 1, num_microbatches * 6).reshape(num_microbatches, 3, 2)
    planned = plan(step, state, batch, num_actors=schedule.num_actors)
    assert_close(planned.run(state, batch), jax.jit(step)(state, batch))
    return planned


def test_a_backward_updates_what_the_forward_reads():
    with pytest.raises(CarryError) as caught:
        plan_two_stages(lambda scale, first, second, grads: jnp.max(grads[0]), jq.schedules.OneFOneB(2))
    assert str(caught.value).split(": ", 1)[1] == (
        "carry['scale'] goes against the schedule OneFOneB(2): 0F1 reads what 0B0 updates, but runs before it. A "
        "pipeline runs forwards of later microbatches before backwards of earlier ones. Update it in the forward, read "
        "it in the backward alone, or reduce it over the microbatches and update it after the loop."
    )
    assert isinstance(caught.value, ScheduleError)
    plan_two_stages(lambda scale, first, second, grads: jnp.max(grads[0]), jq.schedules.OneFOneB(2), 1)


def test_a_later_stage_updates_what_an_earlier_one_reads():
    update = lambda scale, first, second, grads: jnp.max(second)  # noqa: E731
    with pytest.warns(StepWarning, match=r"carry\['scale'\] is read by 0F and updated by 1F: each microbatch waits"):
        plan_two_stages(update, jq.schedules.GPipe(2))
    one_actor = custom("0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1")
    with pytest.raises(
        CarryError, match=r"0F1 reads what 1F0 updates, but runs before it. Update it in stage 0, which"
    ):
        plan_two_stages(update, one_actor, 2)


def test_microbatches_out_of_order():
    backwards = custom("0F1 0F0 0B0 0B1", "1F1 1F0 1B0 1B1")
    with pytest.raises(
        CarryError, match=r"0F1 reads what 0F0 .* Run the forwards of stage 0 in the order of their mic"
    ):
        plan_two_stages(lambda scale, first, second, grads: scale + jnp.max(first), backwards, 2)
