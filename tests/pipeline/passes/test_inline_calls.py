"""Marks in nested calls are found; where a stage cannot end, they are refused."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxquard as jq
from jaxquard.errors import MarkError
from jaxquard.pipeline.passes.inline_calls import inline_calls
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import count_primitive, plan, trace, with_schedule


def make_step(loss):
    def step(accumulate, weight, batch):
        def microbatch_grads(x):
            value, grads = jax.value_and_grad(loss)(weight, x)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        return weight - 0.1 * grads, losses

    return step


WEIGHT = jnp.array([[0.3, -0.2], [0.5, 0.1]])
BATCH = jnp.array([[[1.0, 2.0]], [[-1.0, 0.5]], [[0.2, 0.3]]])


def check(loss, schedule):
    step = make_step(loss)
    planned = plan(with_schedule(step, schedule), WEIGHT, BATCH, num_actors=schedule.num_actors)
    assert_close(planned.run(WEIGHT, BATCH), run_oracle(step, WEIGHT, BATCH))


def test_calls_are_opened(golden):
    @jax.jit
    def inner(x):
        return jq.pipeline_yield(jnp.sin(x))

    step, _ = trace(jax.jit(lambda x: inner(x) * 2), jnp.ones(2))
    opened = inline_calls(step)
    assert [equation.primitive.name for equation in opened.jaxpr.eqns] == ["sin", "pipeline_yield", "mul"]
    assert count_primitive(step.jaxpr, "jit") == 2


def test_a_mark_in_a_jitted_function_that_is_called_twice():
    @jax.jit
    def block(weight, x):
        return jq.pipeline_yield(jnp.tanh(x @ weight), name="block")

    def loss(weight, x):
        return jnp.sum((block(weight, block(weight.T, x)) @ weight) ** 2)

    check(loss, jq.schedules.ZeroBubbleH1(3))


def test_arrays_that_calls_close_over():
    table = jnp.arange(4.0).reshape(2, 2)
    block = jax.jit(lambda x: jnp.tanh(x @ table))

    def loss(weight, x):
        return jnp.sum(block(jq.pipeline_yield(block(x @ weight))) * table)

    check(loss, jq.schedules.OneFOneB(2))


def mark(x):
    return jq.pipeline_yield(x)


def in_scan(weight, x):
    return lax.scan(lambda h, _: (mark(h @ weight), None), x, length=2)[0]


def in_while(weight, x):
    return lax.while_loop(lambda h: jnp.sum(h) < 0, lambda h: mark(h) + 1.0, lax.stop_gradient(x @ weight))


def in_cond(weight, x):
    return lax.cond(jnp.sum(x) > 0, lambda h: mark(h @ weight), lambda h: h, x)


def in_checkpoint(weight, x):
    return jax.checkpoint(lambda h: jnp.tanh(mark(h @ weight)))(x)


def in_checkpoint_in_jit(weight, x):
    return jax.jit(jax.checkpoint(lambda h: jnp.tanh(mark(h @ weight))))(x)


MARK_LINE = mark.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("fn", "where", "cure"),
    [
        (in_scan, "lax.scan", "Split the scan with jaxquard.pipeline_scan, or write the layers as a Python loop."),
        (in_while, "lax.while_loop", "Write the loop in Python, so that each mark is traced once."),
        (in_cond, "lax.cond", "Put the mark before or after the cond."),
        (
            in_checkpoint,
            "jax.checkpoint",
            "Put the mark outside: checkpoint what is inside each stage, and mark between them.",
        ),
        (
            in_checkpoint_in_jit,
            "jax.checkpoint",
            "Put the mark outside: checkpoint what is inside each stage, and mark between them.",
        ),
    ],
)
def test_hidden_marks(fn, where, cure):
    def loss(weight, x):
        return jnp.sum(fn(weight, x) * weight)

    with pytest.raises(MarkError) as caught:
        check(loss, jq.schedules.OneFOneB(2))
    assert str(caught.value) == (
        f"the mark at test_inline_calls.py:{MARK_LINE} stands inside a {where}, where a stage cannot end. {cure}"
    )


def test_a_mark_in_a_checkpoint_of_a_linear_loss():
    """Nothing needs the forward's mark outside the checkpoint: the message is still that of a hidden one."""

    def step(accumulate, weight, batch):
        block = jax.checkpoint(lambda weight, x: jnp.sum(mark(x @ weight) @ weight))
        return accumulate(lambda x: jax.grad(block)(weight, x))(batch)

    with pytest.raises(MarkError, match=r"test_inline_calls.py:\d+ stands inside a jax.checkpoint"):
        plan(with_schedule(step, jq.schedules.GPipe(2)), WEIGHT, BATCH, num_actors=2)


def test_a_mark_in_a_scan_outside_the_loop():
    def step(accumulate, weight, batch):
        return in_scan(weight, batch[0])

    with pytest.raises(MarkError, match=r"the mark at test_inline_calls.py:\d+ stands inside a lax.scan"):
        plan(with_schedule(step, jq.schedules.GPipe(1)), WEIGHT, BATCH, num_actors=1)


def loop(weight, batch):
    return jq.accumulate_grads(lambda x: jnp.sum(x @ weight), jq.schedules.GPipe(1))(batch)


LOOP_LINE = loop.__code__.co_firstlineno + 1


def test_a_loop_inside_a_scan():
    def step(weight, batch):
        return lax.scan(lambda total, _: (total + loop(weight, batch), None), jnp.zeros(()), length=2)[0]

    with pytest.raises(MarkError) as caught:
        plan(step, WEIGHT, BATCH, num_actors=1, has_state=False)
    assert str(caught.value) == (
        f"accumulate_grads at test_inline_calls.py:{LOOP_LINE} stands inside a lax.scan, where it cannot be "
        "scheduled. Call it in the step itself."
    )


def test_a_loop_inside_a_loop():
    def step(weight, batch):
        return jq.accumulate_grads(lambda x: loop(weight, x[None]), jq.schedules.GPipe(1))(batch)

    with pytest.raises(MarkError) as caught:
        plan(step, WEIGHT, BATCH, num_actors=1, has_state=False)
    outer = step.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        f"accumulate_grads at test_inline_calls.py:{LOOP_LINE} stands inside another one, at "
        f"test_inline_calls.py:{outer}. A loop inside a loop cannot be scheduled: use one loop."
    )
