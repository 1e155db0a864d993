"""`accumulate_grads` as plain JAX runs it: the same numbers, and what it refuses."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import LoopError
from tests.pipeline import oracle
from tests.pipeline.mlp_step import MlpStep
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import with_schedule

ONE = jq.schedules.GPipe(1)


def here(offset: int) -> str:
    """The caller's line, `offset` lines further, as messages write it."""
    return f"test_loop.py:{sys._getframe(1).f_lineno + offset}"


def test_the_same_step_under_plain_jit():
    step = MlpStep(3, is_tied=True, has_dropout=True)
    state, batch = step.arguments(4)
    scheduled = with_schedule(step, jq.schedules.OneFOneB(3))
    expected = run_oracle(step, state, batch)
    assert_close(jax.jit(scheduled)(state, batch), expected)
    assert_close(scheduled(state, batch), expected)


def outputs_of_every_kind(x):
    return (
        {"a": x, "b": jnp.sum(x)},
        jnp.max(x),
        jnp.sum(x > 0),
        jnp.any(x > 1),
        x.astype(jnp.bfloat16),
        jax.random.fold_in(jax.random.key(0), jnp.sum(x > 0)),
    )


@pytest.mark.parametrize(
    "reduce",
    [
        None,
        ("mean", "max", "sum", "max", "sum", "stack"),
        ("last", "last", "mean", "last", "mean", "last"),
        ("stack", "sum", "max", "stack", "max", "stack"),
    ],
    ids=str,
)
def test_reductions(reduce):
    batch = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)
    found = jq.accumulate_grads(outputs_of_every_kind, ONE, reduce)(batch)
    expected = oracle.accumulate(outputs_of_every_kind, reduce)(batch)
    assert_close(found, expected)


def test_maximum_of_negative_infinity_and_integers():
    batch = jnp.array([[-jnp.inf, -3.0], [-jnp.inf, -5.0]])
    found = jq.accumulate_grads(lambda x: (x, x.astype(jnp.int8)), ONE, "max")(batch[:, 1:])
    np.testing.assert_array_equal(found[0], [-3.0])
    np.testing.assert_array_equal(found[1], np.array([-3], np.int8))
    np.testing.assert_array_equal(jq.accumulate_grads(lambda x: x, ONE, "max")(batch), [-np.inf, -3.0])


def test_sums_in_a_wider_dtype():
    batch = jnp.full((300, 1), 1.0, jnp.bfloat16)
    narrow = jq.accumulate_grads(lambda x: x, ONE)(batch)
    wide = jq.accumulate_grads(lambda x: (x, jnp.sum(x)), ONE, sum_dtype=jnp.float32)(batch)
    assert narrow.dtype == jnp.bfloat16
    assert narrow[0] == 256, "bfloat16 cannot count further"
    assert wide[0].dtype == jnp.float32
    assert wide[0][0] == 300
    assert wide[1].dtype == jnp.bfloat16, "stacked, not summed"


def test_a_prefix_of_the_outputs():
    fn = lambda x: {"grads": {"a": x, "b": x}, "loss": jnp.sum(x)}  # noqa: E731
    found = jq.accumulate_grads(fn, ONE, {"grads": "sum", "loss": "stack"})(jnp.ones((3, 2)))
    assert found["grads"]["b"].tolist() == [3.0, 3.0]
    assert found["loss"].tolist() == [2.0, 2.0, 2.0]
    assert jq.accumulate_grads(fn, ONE, "last")(jnp.ones((3, 2)))["loss"] == 2.0


def test_derivatives_and_batching_of_the_loop():
    def total(scale, batch):
        return jq.accumulate_grads(lambda m: jnp.sum(m["x"] * scale) + m["count"], ONE)(batch)

    batch = {"x": jnp.ones((3, 2)), "count": jnp.zeros(3, jnp.int32)}
    assert jax.grad(total)(2.0, batch) == 6.0
    assert jax.vmap(total, in_axes=(0, None))(jnp.arange(3.0), batch).tolist() == [0.0, 6.0, 12.0]


def test_no_schedule():
    line = here(+2)
    with pytest.raises(LoopError) as caught:
        jq.accumulate_grads(jnp.sum, 4)
    assert str(caught.value) == (
        f"accumulate_grads at {line} wants a schedule such as jaxquard.schedules.OneFOneB(2) as its second "
        "argument; found 4."
    )


def test_leaves_that_disagree():
    batch = {"x": jnp.ones((4, 2)), "y": [jnp.ones((3, 2)), jnp.ones(4)]}
    line = here(+2)
    with pytest.raises(LoopError) as caught:
        jq.accumulate_grads(lambda m: jnp.sum(m["x"]), ONE)(batch)
    assert str(caught.value) == (
        f"accumulate_grads at {line}: the batch leaves disagree on the number of microbatches, their first dim: "
        "['x'] has 4, ['y'][0] has 3. Give every leaf the same."
    )


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({}, r"got a batch without arrays: nothing to loop over"),
        ({"x": jnp.ones(())}, r"batch leaf \['x'\] is a scalar; every leaf needs the microbatches as its first dim"),
        (jnp.ones((0, 2)), r"got 0 microbatches; it needs at least one"),
    ],
    ids=["nothing", "scalar", "empty"],
)
def test_batches_that_cannot_be_looped_over(batch, message):
    with pytest.raises(LoopError, match=message) as caught:
        jq.accumulate_grads(lambda m: jnp.zeros(()), ONE)(batch)
    assert "accumulate_grads at test_loop.py:" in str(caught.value)


def test_unknown_word():
    line = here(+2)
    with pytest.raises(LoopError) as caught:
        jq.accumulate_grads(lambda x: (x, x), ONE, ("sum", "average"))(jnp.ones((2, 2)))
    assert str(caught.value) == (
        f"accumulate_grads at {line}: reduce='average' is not one of 'sum', 'mean', 'max', 'stack', 'last'."
    )


def test_words_that_do_not_fit():
    with pytest.raises(LoopError, match=r"does not fit the outputs of the function: .* Give one word for each output"):
        jq.accumulate_grads(lambda x: (x, x), ONE, ("sum", "sum", "sum"))(jnp.ones((2, 2)))


def test_keys_cannot_be_summed():
    with pytest.raises(LoopError, match=r"at test_loop.py:\d+: PRNG keys can be stacked, but not reduced by 'sum'"):
        jq.accumulate_grads(lambda key: key, ONE)(jax.random.split(jax.random.key(0), 2))
