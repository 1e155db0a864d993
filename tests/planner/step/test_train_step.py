"""A training step from a loss and an optimizer: its numbers, and the losses and batches that it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxquard.errors import PlanError
from jaxquard.planner.step.microbatch_counts import find_counts
from jaxquard.planner.step.optimizer import apply_updates
from jaxquard.planner.step.train_step import (
    TrainStep,
    count_rows,
    split_rows,
)
from tests.pipeline.oracle import assert_close


def mean_loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


def sum_loss(params, batch):
    return jnp.sum((batch["x"] @ params["w"] - batch["y"]) ** 2)


def arguments(num_rows=12):
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"w": jax.random.normal(keys[0], (4, 2))}
    return params, {"x": jax.random.normal(keys[1], (num_rows, 4)), "y": jax.random.normal(keys[2], (num_rows, 2))}


@pytest.mark.parametrize(("loss", "reduction"), [(mean_loss, "mean"), (sum_loss, "sum")])
@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_microbatches_come_to_the_whole_batch(loss, reduction, num_microbatches):
    params, batch = arguments()
    optimizer = optax.adamw(0.1)
    step = TrainStep(loss=loss, optimizer=optimizer, num_microbatches=num_microbatches, loss_reduction=reduction)
    state, metrics = jax.jit(step)(step.init(params), batch)
    value, grads = jax.value_and_grad(loss)(params, batch)
    updates, opt_state = optimizer.update(grads, optimizer.init(params), params)
    expected = {"params": optax.apply_updates(params, updates), "opt_state": opt_state, "step": jnp.int32(1)}
    assert_close(state, expected, relative=1e-4)
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)


@pytest.mark.parametrize("loss_reduction", [None, "per_microbatch"])
def test_what_comes_with_the_loss_is_that_of_the_batch_unless_it_is_defined_by_microbatches(loss_reduction):
    def loss(params, batch):
        return mean_loss(params, batch), {
            "error": jnp.max(batch["y"]),
            "rows": len(batch["y"]),
            "is_last": batch["y"] > 9,
        }

    params, batch = arguments()
    step = TrainStep(
        loss=loss, optimizer=optax.sgd(0.1), num_microbatches=4, has_aux=True, loss_reduction=loss_reduction
    )
    _, metrics = jax.jit(step)(step.init(params), batch)
    of_parts = batch["y"].reshape(4, 3, 2).max((1, 2))
    expected = of_parts.mean() if loss_reduction else of_parts.max()
    np.testing.assert_allclose(metrics["aux"]["error"], expected, rtol=1e-6)
    assert int(metrics["aux"]["rows"]) == 12
    assert metrics["aux"]["is_last"].shape == (12, 2)


@pytest.mark.parametrize("num_microbatches", [1, 3])
def test_rows_that_come_with_the_loss_are_those_of_the_batch(num_microbatches):
    """The number of microbatches is the plan's choice, so it shows in no shape."""

    def loss(params, batch):
        errors = batch["x"] @ params["w"] - batch["y"]
        aux = {"errors": errors, "columns": errors.T, "signs": errors > 0, "largest": jnp.argmax(errors, 1)}
        return jnp.mean(errors**2), aux

    params, batch = arguments()
    step = TrainStep(loss=loss, optimizer=optax.sgd(0.1), num_microbatches=num_microbatches, has_aux=True)
    _, metrics = jax.jit(step)(step.init(params), batch)
    assert_close(metrics["aux"], jax.jit(loss)(params, batch)[1], relative=1e-5)


@pytest.mark.parametrize(("sum_dtype", "expected"), [(None, 1.5), (jnp.float32, 1.5), (jnp.bfloat16, 1.0)])
def test_short_gradients_are_summed_in_float32(sum_dtype, expected):
    """1 + 256 x 2^-9 is 1.5; in bfloat16 each of the small ones is lost."""
    params = {"w": jnp.zeros((1,), jnp.bfloat16)}
    batch = jnp.asarray([1.0, *[2.0**-9] * 256], jnp.bfloat16)
    step = TrainStep(
        loss=lambda params, batch: jnp.sum(params["w"] * batch),
        optimizer=optax.sgd(-1.0, momentum=0.5),
        num_microbatches=257,
        loss_reduction="sum",
        sum_dtype=sum_dtype,
    )
    first = step.init(params)
    state, metrics = jax.jit(step)(first, batch)
    assert float(state["params"]["w"][0]) == expected
    # The state keeps its types, so the next step takes it.
    assert jax.tree.map(jax.typeof, state) == jax.tree.map(jax.typeof, first)
    assert metrics["loss"].dtype == (sum_dtype or jnp.float32)


@pytest.mark.parametrize("sum_dtype", ["int32", "wide", object()])
def test_sums_have_a_floating_dtype(sum_dtype):
    with pytest.raises(PlanError, match=r"sum_dtype=.* is no dtype of floating numbers"):
        TrainStep(loss=mean_loss, optimizer=optax.sgd(0.1), sum_dtype=sum_dtype)


def test_an_optimizer_that_takes_the_loss_gets_it():
    params, batch = arguments()
    optimizer = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, rtol=0.9))
    step = TrainStep(loss=mean_loss, optimizer=optimizer, num_microbatches=3)
    state, expected, opt_state = step.init(params), params, optimizer.init(params)
    for _ in range(3):
        state, _ = jax.jit(step)(state, batch)
        value, grads = jax.value_and_grad(mean_loss)(expected, batch)
        updates, opt_state = optimizer.update(grads, opt_state, expected, value=value)
        expected = optax.apply_updates(expected, updates)
    assert float(opt_state[1].scale) < 1
    assert_close(state["params"], expected, relative=1e-4)


def test_an_optimizer_that_needs_more_than_the_loss_is_refused():
    params, batch = arguments()
    step = TrainStep(loss=mean_loss, optimizer=optax.lbfgs())
    with pytest.raises(PlanError, match=r"the optimizer needs 'grad' and 'value_fn'.*linesearch=None") as caught:
        jax.eval_shape(step, jax.eval_shape(step.init, params), batch)
    assert "\n" not in str(caught.value)
    step = TrainStep(loss=mean_loss, optimizer=optax.lbfgs(0.1, linesearch=None))
    jax.eval_shape(step, jax.eval_shape(step.init, params), batch)


def test_a_type_error_inside_of_an_optimizer_is_its_own():
    def update(grads, state, params):
        raise TypeError("grads are of no use")

    params, batch = arguments()
    step = TrainStep(loss=mean_loss, optimizer=optax.GradientTransformation(lambda params: (), update))
    with pytest.raises(TypeError, match="grads are of no use"):
        jax.eval_shape(step, jax.eval_shape(step.init, params), batch)


def test_updates_keep_dtypes_and_leave_out_what_has_none():
    params = {"half": jnp.ones(2, jnp.bfloat16), "frozen": jnp.ones(2)}
    found = apply_updates(params, {"half": jnp.full(2, 0.5), "frozen": None})
    assert found["half"].dtype == jnp.bfloat16
    assert found["frozen"] is params["frozen"]


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda params, batch: batch["x"] @ params["w"], r"an array of shape \(12, 2\).*a mean or a sum"),
        (lambda params, batch: (mean_loss(params, batch), 1.0), r"returns a tuple.*has_aux=True"),
        (lambda params, batch: jnp.int32(1), r"returns a int32.*a floating number"),
    ],
)
def test_a_loss_that_is_no_number_is_refused(loss, message):
    params, batch = arguments()
    step = TrainStep(loss=loss, optimizer=optax.sgd(0.1))
    with pytest.raises(PlanError, match=message):
        jax.eval_shape(step, step.init(params), batch)


def test_a_reduction_that_is_not_known_is_refused():
    with pytest.raises(
        PlanError, match=r"loss_reduction='max' is not known.*\"mean\", \"sum\", \"weighted\", \"per_microbatch\""
    ):
        TrainStep(loss=mean_loss, optimizer=optax.sgd(0.1), loss_reduction="max")


def test_rows_that_cannot_be_split_are_refused_with_the_counts_that_can_be():
    with pytest.raises(PlanError, match=r"12 rows cannot be split into 5 equal.*Use 1, 2, 3, 4, 6 or 12 microbatches"):
        split_rows(arguments()[1], 5)
    with pytest.raises(PlanError, match=r"1 rows cannot be split into 0 equal microbatches. Use 1 microbatches"):
        split_rows(jnp.ones((1, 2)), 0)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({}, "no rows"),
        (jnp.ones((0, 2)), "no rows"),
        ({"x": jnp.ones((4, 2)), "rate": 0.1}, r"a scalar, \['rate'\]"),
        ({"x": jnp.ones((4, 2)), "y": jnp.ones(3)}, r"\['x'\] has 4, \['y'\] has 3"),
        ({"x": jnp.ones((4, 2)), "key": jax.random.key(0)}, r"a scalar, \['key'\].*pass rng=key to parallelize"),
        ({"x": jnp.ones((4, 2)), "key": jax.random.PRNGKey(0)}, r"\['key'\] has 2.*pass rng=key to parallelize"),
    ],
)
def test_a_batch_without_rows_is_refused(batch, message):
    with pytest.raises(PlanError, match=message):
        count_rows(batch)


def test_microbatches_that_a_loss_cannot_take():
    """Rows that belong together in pairs, and a loss that is written for one number of rows."""

    def pairs(params, batch):
        x = (batch["x"] @ params["w"]).reshape(-1, 2, 2)
        return jnp.mean((x[:, 0] - x[:, 1]) ** 2)

    def all_rows(params, batch):
        return jnp.mean((batch["x"] @ params["w"]).reshape(12, 2))

    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments())
    counts = {
        loss: find_counts(TrainStep(loss=loss, optimizer=optax.sgd(0.1)), *types).counts
        for loss in (mean_loss, pairs, all_rows)
    }
    assert counts == {mean_loss: (1, 2, 3, 4, 6, 12), pairs: (1, 2, 3, 6), all_rows: (1,)}
