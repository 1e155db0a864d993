"""Readings of losses, and the numbers of those that are split."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.errors import PlanError, UnsplitLossError
from jaxquard.planner.step.microbatch_counts import find_counts
from jaxquard.planner.step.train_step import TrainStep, divide_by_weight
from tests.planner.step.losses import CASES, ROWS, Case, hidden, make_batch, make_params

PLANS = (
    {"microbatches": 4, "stages": 1, "actors": 1},
    {"microbatches": 2, "stages": 2, "actors": 2},
    {"microbatches": 4, "recompute": "full"},
    {"microbatches": 8, "data": 2, "stages": 1},
)


# Plain gradient descent that keeps the gradients: differences of parameters have the rounding of these.
OPTIMIZER = optax.chain(optax.trace(decay=0.0), optax.scale(-1.0))
# Losses whose products are one segment of a plan, so that they have one stage.
ONE_STAGE = {"attention_over_padding", "convolutions", "recurrent"}


def plain(case: Case):
    """The loss as one number, and what comes with it: what plain JAX differentiates."""

    def loss(params, batch):
        found, aux = case.loss(params, batch) if case.has_aux else (case.loss(params, batch), None)
        if case.reduction == "weighted":
            found = found[0] / found[1]
        return found, aux

    return loss


@functools.cache
def expected(name: str):
    """Loss, aux and gradients of the whole batch in plain JAX."""
    return jax.jit(jax.value_and_grad(plain(CASES[name]), has_aux=True))(make_params(), make_batch())


def step_of(case: Case, **options) -> TrainStep:
    return TrainStep(
        loss=case.loss, optimizer=OPTIMIZER, has_aux=case.has_aux, loss_reduction=case.reduction, **options
    )


def types():
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (make_params(), make_batch()))


def assert_same(name: str, state, metrics) -> None:
    (loss, aux), grads = expected(name)
    found = jax.tree.map(np.asarray, state["opt_state"][0].trace)
    size = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(grads))
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * size), found, grads)
    if aux is None:
        return
    assert jax.tree.structure(metrics["aux"]) == jax.tree.structure(aux)
    for one, other in zip(jax.tree.leaves(metrics["aux"]), jax.tree.leaves(aux), strict=True):
        assert jnp.shape(one) == jnp.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", CASES)
def test_what_is_read_of_a_loss(name):
    case = CASES[name]
    found = find_counts(step_of(case), *types())
    assert found.verdict == case.verdict
    assert len(found.counts) > 1 if case.verdict == "proved" else found.counts == (1,)
    if case.verdict == "refuted":
        assert "on random values" in found.note


def test_most_means_are_proved():
    assert sum(case.is_mean and case.verdict == "proved" for case in CASES.values()) >= 25
    assert len(CASES) >= 40
    assert not any(case.verdict == "proved" and not case.is_mean for case in CASES.values())


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.verdict == "proved"])
def test_a_loss_that_is_proved_has_its_numbers(name):
    step = step_of(CASES[name], num_microbatches=4)
    state, metrics = jax.jit(step)(step.init(make_params()), make_batch())
    assert_same(name, state, metrics)


@pytest.mark.slow
@pytest.mark.parametrize("fix", PLANS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_loss_under_a_plan_has_the_numbers_of_plain_jax(name, fix):
    case = CASES[name]
    left_out = {"microbatches"} if case.verdict != "proved" else set()
    if name in ONE_STAGE:
        left_out |= {"stages", "actors"}
    fix = {key: value for key, value in fix.items() if key not in left_out}
    if name == "a_callback":
        pytest.skip("a callback of the whole batch is run by one device of an actor")
    if name == "gradient_penalty" and "recompute" in fix:
        pytest.skip("blocks of gradients of gradients are others with recomputation, and its plan is refused")
    options = {"has_aux": case.has_aux, "loss_reduction": case.reduction, "num_measured": 0}
    with jq.parallelize(case.loss, OPTIMIZER, types(), devices=2, fix=fix, **options) as run:
        state, metrics = run.step(run.init(make_params), make_batch())
        assert run.plan.num_microbatches == fix.get("microbatches", 1)
        assert_same(name, state, metrics)


def test_masks_of_the_first_batch_say_nothing():
    """A mask of ones makes every loss a mean; the next batch has another."""
    case, batch = CASES["masked_language_model"], make_batch()
    first = {**batch, "mask": jnp.ones_like(batch["mask"])}
    with jq.parallelize(
        case.loss, OPTIMIZER, (make_params(), first), devices=1, fix={"microbatches": 4}, num_measured=0
    ) as run:
        state, metrics = run.step(run.init(make_params), batch)
        assert_same("masked_language_model", state, metrics)


def test_a_weight_of_zero_gives_zero_and_no_nan():
    case = CASES["weighted_pair"]
    batch = make_batch(first_masked=ROWS)
    step = step_of(case, num_microbatches=4)
    state, metrics = jax.jit(step)(step.init(make_params()), batch)
    assert float(metrics["loss"]) == 0
    jax.tree.map(np.testing.assert_array_equal, state["params"], make_params())


def class_balance(params, batch):
    counts = jax.nn.one_hot(batch["label"], 5).sum(0) + np.arange(1.0, 6.0, dtype=np.float32)
    return jnp.sum(hidden(params, batch["x"]) @ params["head"] / counts)


def counted_in_a_scan(params, batch):
    (_, count), _ = jax.lax.scan(lambda c, m: ((c[0] + m, c[1] + 2 * m), None), (0.0, 0.0), batch["weight"])
    return jnp.sum(hidden(params, batch["x"])) / count


def counted_in_whole_numbers(params, batch):
    count = (batch["weight"] > 0.2).astype(jnp.int32).sum() * (2 * ROWS // len(batch["x"]))
    return jnp.sum(hidden(params, batch["x"])) / jnp.maximum(count, 1)


def token_types(params, batch):
    return jnp.mean((params["table"][jnp.zeros_like(batch["tokens"])] + params["table"][batch["tokens"]]) ** 2)


@pytest.mark.parametrize("loss", [class_balance, counted_in_a_scan, counted_in_whole_numbers, token_types])
def test_totals_of_many_kinds(loss):
    value, grads = jax.jit(jax.value_and_grad(loss))(make_params(), make_batch())
    step = TrainStep(loss=loss, optimizer=OPTIMIZER)
    count = find_counts(step, *types()).counts[-2:][0]
    assert count > 1
    step = step.with_microbatches(count)
    state, metrics = jax.jit(step)(step.init(make_params()), make_batch())
    np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    pairs = zip(jax.tree.leaves(state["opt_state"][0].trace), jax.tree.leaves(grads), strict=True)
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_zeros_that_come_with_the_loss_have_all_rows():
    def loss(params, batch):
        return jnp.mean(hidden(params, batch["x"])), {"zeros": jnp.zeros(len(batch["x"]))}

    step = TrainStep(loss=loss, optimizer=OPTIMIZER, has_aux=True, num_microbatches=4)
    _, metrics = jax.jit(step)(step.init(make_params()), make_batch())
    assert metrics["aux"]["zeros"].shape == (ROWS,)


def test_a_weighted_loss_returns_two_numbers():
    for found in (jnp.ones(()), (jnp.ones(3), jnp.ones(()))):
        with pytest.raises(PlanError, match=r"wants \(sum, weight\)"):
            divide_by_weight(found, lambda: None)


def test_an_unproved_loss_has_one_microbatch_and_says_why():
    clip = CASES["clip"].loss
    larger = make_batch(2 * ROWS)
    with jq.parallelize(clip, OPTIMIZER, types(), devices=2, num_measured=0) as run:
        state = run.init(make_params)
        found = run.evaluate(state, larger)["loss"]
        np.testing.assert_allclose(found, jax.jit(clip)(make_params(), larger), rtol=1e-5)
        state, metrics = run.step(state, make_batch())
        assert_same("clip", state, metrics)
    (note,) = (note for note in run.plan.notes if note.startswith("one microbatch"))
    assert "multiplies rows of the batch with other rows of it (losses.py:" in note
    assert "activations of all 16 rows" in note
    with pytest.raises(PlanError, match=r"microbatches=4 cannot be met.*clip multiplies rows.*per_microbatch"):
        jq.parallelize(clip, OPTIMIZER, types(), devices=2, num_measured=0, fix={"microbatches": 4})
    step = step_of(CASES["clip"], num_microbatches=4)
    with pytest.raises(UnsplitLossError, match="clip cannot be split into 4 microbatches: it multiplies rows") as error:
        jax.eval_shape(step, jax.eval_shape(step.init, types()[0]), types()[1])
    assert error.value.num_microbatches == 4


def test_a_loss_of_microbatches_is_their_mean():
    """Batch statistics of each microbatch, as most training loops have them; written in the plan."""
    loss, batch = CASES["batch_norm"].loss, make_batch()
    parts = [jax.tree.map(lambda leaf, at=at: leaf[at : at + 4], batch) for at in range(0, ROWS, 4)]

    @jax.jit
    @jax.value_and_grad
    def by_hand(params):
        return sum(loss(params, part) for part in parts) / len(parts)

    value, grads = by_hand(make_params())
    fixed = {"devices": 2, "num_measured": 0}
    with jq.parallelize(
        loss, OPTIMIZER, types(), fix={"microbatches": 4}, loss_reduction="per_microbatch", **fixed
    ) as run:
        state, metrics = run.step(run.init(make_params), batch)
        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
        found = jax.tree.map(np.asarray, state["opt_state"][0].trace)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), found, grads)
    assert run.plan.loss_reduction == "per_microbatch"
    assert "the mean of the losses of microbatches, each on its own" in str(run.plan)
    with pytest.raises(PlanError, match="is for a loss that is the mean of the losses of microbatches"):
        jq.parallelize(loss, OPTIMIZER, types(), plan=run.plan, devices=2)


def test_what_a_loss_is_said_to_be_is_checked():
    step = TrainStep(loss=CASES["sum_of_squares"].loss, optimizer=optax.sgd(1.0), loss_reduction="mean")
    found = find_counts(step, *types())
    assert found.counts == (1,)
    assert 'is a sum over the rows: say loss_reduction="sum"' in found.note


def test_a_loss_that_looks_at_its_rows_is_proved_for_each_number():
    """Proved for the fewest and the most microbatches, and not for some between: the search goes on without these."""

    def loss(params, batch):
        found = jnp.mean((batch["x"] @ params["up"]) ** 2)
        return jnp.sqrt(found) if len(batch["x"]) == 4 else found

    assert find_counts(TrainStep(loss=loss, optimizer=optax.sgd(1.0)), *types()).counts == (1, 2, 4, 8, 16)
    with pytest.raises(PlanError, match="microbatches=4 cannot be met"):
        jq.parallelize(loss, OPTIMIZER, types(), devices=1, num_measured=0, fix={"microbatches": 4})
    with jq.parallelize(loss, OPTIMIZER, types(), devices=1, num_measured=0, fix={"microbatches": 8}) as run:
        assert run.plan.num_microbatches == 8
