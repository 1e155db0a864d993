"""The checks between passes find each mistake that a pass could make."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import jaxquard as jq
from jaxquard.pipeline.check_step import check_placement, check_step, check_tasks
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.passes.assign_stages import assign_stages
from jaxquard.pipeline.passes.commute_sums import commute_sums
from jaxquard.pipeline.passes.inline_calls import inline_calls
from jaxquard.pipeline.tasks.form_tasks import form_tasks
from jaxquard.pipeline.tasks.place_equations import place_equations
from tests.pipeline.planning import trace


@pytest.fixture(scope="module")
def staged():
    def train_step(weight, batch):
        loss = lambda w, x: jnp.sum((jq.pipeline_yield(x @ w) @ w) ** 2)  # noqa: E731
        grads, losses = jq.accumulate_grads(lambda x: jax.value_and_grad(loss)(weight, x)[::-1], jq.schedules.GPipe(2))(
            batch
        )
        return weight - grads, losses

    step, _ = trace(train_step, jnp.zeros((4, 4)), jnp.zeros((3, 2, 4)))
    return commute_sums(assign_stages(inline_calls(step)))


def with_loop(step, **changes):
    """The step with other parameters of its loop."""
    equations = [
        equation.replace(params={**equation.params, "loop": replace(equation.params["loop"], **changes)})
        if equation.primitive is loop_p
        else equation
        for equation in step.jaxpr.eqns
    ]
    return replace(step, jaxpr=step.jaxpr.replace(eqns=equations))


def loop_of(step):
    return next(equation.params["loop"] for equation in step.jaxpr.eqns if equation.primitive is loop_p)


BROKEN_LOOPS = {
    "constants": (
        lambda loop: {"num_constants": 0},
        r"input \d of a loop is float32\[4,4\], of its body float32",
    ),
    "microbatches": (lambda loop: {"num_microbatches": 4}, r"input \d of a loop is"),
    "reductions": (lambda loop: {"reductions": loop.reductions[:-1]}, "each result of a loop has a reduction"),
    "targets": (lambda loop: {"targets": (0,) * len(loop.targets)}, "each result of a loop has a term"),
    "fewer targets": (lambda loop: {"targets": loop.targets[:-1]}, "each output of a body has the result"),
    "places": (lambda loop: {"places": loop.places[:-1]}, "each equation of a staged body has a place"),
    "result places": (lambda loop: {"result_places": ()}, "each output of a staged body has a place"),
}


def test_what_the_passes_make_is_consistent(staged):
    check_step(staged)
    placement = place_equations(staged, result_of_input=[0, None])
    check_placement(placement, step=staged, num_actors=2)
    check_tasks(form_tasks(staged, placement=placement, num_actors=2), num_actors=2)


@pytest.mark.parametrize("name", BROKEN_LOOPS)
def test_broken_loops(staged, name):
    changes, message = BROKEN_LOOPS[name]
    with pytest.raises(AssertionError, match=message):
        check_step(with_loop(staged, **changes(loop_of(staged))))


def test_broken_steps(staged):
    with pytest.raises(AssertionError, match="the inputs are the arguments and constants"):
        check_step(replace(staged, arg_parts=staged.arg_parts[:-1]))
    with pytest.raises(AssertionError, match="the outputs are the results"):
        check_step(replace(staged, result_parts=((2, 2), ())))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_actors": ((0,),)}, "each input has its actors"),
        ({"result_actors": ((0,), ())}, "each output is on some actor"),
        ({"result_actors": ((0,), (2,))}, "the actors exist"),
    ],
)
def test_broken_placements(staged, changes, message):
    placement = place_equations(staged, result_of_input=[0, None])
    with pytest.raises(AssertionError, match=message):
        check_placement(replace(placement, **changes), step=staged, num_actors=2)


def test_rounds_without_their_actors(staged):
    placement = place_equations(staged, result_of_input=[0, None])
    with pytest.raises(AssertionError, match="an equation has a round on each of its actors"):
        check_placement(replace(placement, rounds=({},) * len(placement.rounds)), step=staged, num_actors=2)


def test_broken_tasks(staged):
    placement = place_equations(staged, result_of_input=[0, None])
    rows = form_tasks(staged, placement=placement, num_actors=2)
    with pytest.raises(AssertionError, match="each actor has its tasks"):
        check_tasks(rows[:1], num_actors=2)
    task = next(task for task in rows[0] if task.code.inputs)
    broken = replace(task, code=replace(task.code, inputs=()))
    with pytest.raises(AssertionError, match=f"{task.code.name} has a value for each input"):
        check_tasks(((broken,), rows[1]), num_actors=2)
