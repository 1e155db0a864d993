"""Any stage graph, under any schedule, gives the numbers of a plain Python loop.

The programs are planned by the passes and run by the tests' own interpreter. `pytest -n 2
--hypothesis-profile=long tests/pipeline/test_generated_programs.py` looks further.
"""

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.passes.inline_calls import inline_calls
from tests.pipeline import generate, generate_scans
from tests.pipeline.oracle import accumulate, assert_close, run_oracle
from tests.pipeline.planning import (
    count_in_microbatch,
    count_primitive,
    plan,
    scheduled,
    sizes_counting_as,
    trace,
    with_schedule,
)

# bfloat16 has 8 bits of precision, and XLA may keep more of them in one program than in another.
CAST_TOLERANCE = 5e-2

# Each example compiles for a second: `make test` has two or three of each kind, `make test-slow` dozens.
examples = max(16, settings.default.max_examples - 4)
MANY = settings(max_examples=examples // 5)
SOME = settings(max_examples=examples // 6)
FEW = settings(max_examples=3 * examples // 20)


def check_step(step, schedule, state, batch, *, donates=True, is_large=False, relative=1e-5):
    scheduled_step = with_schedule(step, schedule)
    with sizes_counting_as(is_large):
        planned = plan(scheduled_step, state, batch, num_actors=schedule.num_actors, donates=donates)
    assert_close(planned.run(state, batch), run_oracle(step, state, batch), relative=relative)
    return planned


def check(recipe, schedule, num_microbatches, **options):
    step = generate.make_step(recipe)
    state, batch = generate.make_arguments(recipe, num_microbatches)
    relative = CAST_TOLERANCE if recipe.has_casts else 1e-5
    planned = check_step(step, schedule, state, batch, relative=relative, **options)
    check_nothing_runs_twice(planned.program, with_schedule(step, schedule), state, batch)


def check_nothing_runs_twice(program, step, state, batch):
    """The tasks of a microbatch multiply no more often than the body of the loop does."""
    traced = inline_calls(trace(step, state, batch)[0])
    (loop,) = (equation for equation in traced.jaxpr.eqns if equation.primitive is loop_p)
    for name in ("dot_general", "scan", "cond"):
        assert count_in_microbatch(program, name) <= count_primitive(loop.params["body"], name), name


@MANY
@given(st.data())
def test_stage_graphs(data):
    num_microbatches = data.draw(generate.microbatch_counts)
    schedule = data.draw(generate.schedules(num_microbatches))
    recipe = data.draw(generate.recipes(schedule.num_stages))
    check(recipe, schedule, num_microbatches, donates=data.draw(st.booleans()), is_large=data.draw(st.booleans()))


@SOME
@given(st.data())
def test_weights_shared_by_many_stages(data):
    num_microbatches = data.draw(generate.microbatch_counts)
    schedule = data.draw(generate.schedules(num_microbatches, st.integers(1, 4)))
    recipe = data.draw(generate.recipes(schedule.num_stages, generate.shared_stages))
    check(recipe, schedule, num_microbatches, is_large=data.draw(st.booleans()))


@FEW
@given(st.data())
def test_scans(data):
    num_microbatches = data.draw(st.integers(1, 4))
    schedule = data.draw(generate.schedules(num_microbatches))
    recipe = data.draw(generate_scans.scan_recipes(schedule.num_stages))
    state, batch = generate_scans.make_scan_arguments(recipe, num_microbatches)
    step = generate_scans.make_scan_step(recipe)
    check_step(step, schedule, state, batch, is_large=data.draw(st.booleans()))


def evaluate(recipe, accumulate, state, batch):
    """A forward-only loop."""

    def microbatch_loss(microbatch):
        model = generate.Model(recipe, lambda group, name, shape: state[group][name])
        value, metrics = model.loss(microbatch)
        return value, *metrics

    return accumulate(microbatch_loss, ("mean", *generate.metric_words(recipe, state, batch)))(batch)


@FEW
@given(st.data())
def test_forward_only_loops(data):
    num_microbatches = data.draw(generate.microbatch_counts)
    schedule = data.draw(generate.schedules(num_microbatches))
    recipe = data.draw(generate.recipes(schedule.num_stages))
    state, batch = generate.make_arguments(recipe, num_microbatches)

    def step(accumulate, state, batch):
        return evaluate(recipe, accumulate, state, batch)

    planned = plan(with_schedule(step, schedule), state, batch, num_actors=schedule.num_actors, has_state=False)
    assert_close(planned.run(state, batch), run_oracle(step, state, batch))


@FEW
@given(st.data())
def test_two_loops_in_a_step(data):
    """A training loop, the update, and a loop over the same batch with the new parameters."""
    num_microbatches = data.draw(st.integers(1, 4))
    schedule = data.draw(generate.schedules(num_microbatches))
    recipe = data.draw(generate.recipes(schedule.num_stages))
    train = generate.make_step(recipe)

    def step(accumulate, state, batch):
        new_state, *outputs = train(accumulate, state, batch)
        return new_state, *outputs, evaluate(recipe, accumulate, new_state, batch)

    state, batch = generate.make_arguments(recipe, num_microbatches)
    check_step(step, schedule, state, batch, is_large=data.draw(st.booleans()))


@FEW
@given(st.data())
def test_loops_under_different_schedules(data):
    """Two gradients, each with its own schedule and batch, added up after the loops."""
    num_microbatches = data.draw(st.integers(1, 3))
    first = data.draw(generate.schedules(num_microbatches))
    second = data.draw(generate.schedules(num_microbatches, st.just(first.num_actors)))
    recipes = [data.draw(generate.recipes(schedule.num_stages)) for schedule in (first, second)]
    states, batches = zip(*(generate.make_arguments(recipe, num_microbatches) for recipe in recipes), strict=True)
    params = states[0]["params"] | states[1]["params"]
    frozen = states[0]["frozen"] | states[1]["frozen"]

    def step(loops, params, batches):
        def grads_of(recipe, microbatch):
            def loss(params):
                groups = {"params": params, "frozen": frozen}
                return generate.Model(recipe, lambda group, name, shape: groups[group][name]).loss(microbatch)[0]

            value, grads = jax.value_and_grad(loss)(params)
            return grads, value

        found = [
            loop(lambda microbatch, recipe=recipe: grads_of(recipe, microbatch))(batch)
            for loop, recipe, batch in zip(loops, recipes, batches, strict=True)
        ]
        (first_grads, first_losses), (second_grads, second_losses) = found
        grads = jax.tree.map(jnp.add, first_grads, second_grads)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), first_losses, second_losses

    loops = [scheduled(first), scheduled(second)]
    planned = plan(lambda *args: step(loops, *args), params, batches, num_actors=first.num_actors)
    assert_close(planned.run(params, batches), step([accumulate, accumulate], params, batches))
