"""Averages, statistics and counters beside the parameters, and metrics on request: as plain loops make them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.errors import PlanError
from tests.planner.small_losses import mlp_args

PARAMS, BATCH = mlp_args(num_layers=2)
NUM_MICROBATCHES = 4
FIXES = {
    "data": {"stages": 1, "data": 2, "microbatches": NUM_MICROBATCHES, "storage": "zero 1"},
    "pipeline": {"stages": 2, "microbatches": NUM_MICROBATCHES},
}


def normalised_loss(params, batch):
    """Normalises the hidden values of each layer over the rows of its microbatch, and returns what it used."""
    x, stats = batch["x"], []
    for layer in params["layers"]:
        hidden = x @ layer["up"]
        mean, variance = jnp.mean(hidden, axis=0), jnp.var(hidden, axis=0)
        stats.append({"mean": mean, "variance": variance})
        x = x + jnp.tanh((hidden - mean) / jnp.sqrt(variance + 1e-3)) @ layer["down"]
    tokens = jnp.sum(batch["x"] > 0, dtype=jnp.int32)
    return jnp.mean((x @ params["out"] - batch["y"]) ** 2), {"stats": stats, "tokens": tokens}


def first_extra(params):
    def stats():
        return {"mean": jnp.zeros(32), "variance": jnp.ones(32)}

    return {
        "average": params,
        "tokens": jnp.zeros((), jnp.int32),
        "stats": [stats() for _ in params["layers"]],
        "largest": jnp.zeros(()),
    }


def update_extra(extra, info):
    stats, _ = jax.lax.scan(lambda stats, new: (fold(stats, new), None), extra["stats"], info.microbatch_aux["stats"])
    return {
        "average": fold(extra["average"], info.params),
        "tokens": extra["tokens"] + info.aux["tokens"],
        "stats": stats,
        "largest": jnp.maximum(extra["largest"], jnp.max(jnp.abs(info.grads["out"])) * (info.step + 1) + info.loss),
    }


def fold(old, new):
    return jax.tree.map(lambda one, other: 0.9 * one + 0.1 * other, old, new)


def train_plainly(optimizer, num_steps):
    """A plain loop over microbatches, which folds their statistics as they come."""
    params = jax.tree.map(jnp.asarray, PARAMS)
    state, extra = optimizer.init(params), first_extra(params)
    grad = jax.jit(jax.value_and_grad(normalised_loss, has_aux=True))
    norms = []
    for step in range(num_steps):
        total, loss = jax.tree.map(jnp.zeros_like, params), 0.0
        for rows in np.split(np.arange(16), NUM_MICROBATCHES):
            (value, aux), grads = grad(params, jax.tree.map(lambda leaf, rows=rows: leaf[rows], BATCH))
            total = jax.tree.map(lambda one, other: one + other / NUM_MICROBATCHES, total, grads)
            loss += value / NUM_MICROBATCHES
            extra["stats"] = fold(extra["stats"], aux["stats"])
            extra["tokens"] += aux["tokens"]
        norms.append(optax.tree.norm(total))
        updates, state = optimizer.update(total, state, params)
        params = optax.apply_updates(params, updates)
        extra["average"] = fold(extra["average"], params)
        extra["largest"] = jnp.maximum(extra["largest"], jnp.max(jnp.abs(total["out"])) * (step + 1) + loss)
    return params, extra, norms


@pytest.mark.parametrize("fix", FIXES.values(), ids=FIXES)
def test_extra_state_and_metrics(fix):
    schedule = optax.linear_schedule(0.1, 0.01, 5)
    types = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, (PARAMS, BATCH)))
    options = {
        "has_aux": True,
        "loss_reduction": "per_microbatch",
        "metrics": ("grad_norm", "learning_rate"),
        "extra_state": first_extra,
        "update_extra": update_extra,
    }
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=schedule)
    with jq.parallelize(normalised_loss, optimizer, types, devices=2, fix=fix, num_measured=0, **options) as run:
        state = run.init(lambda: jax.tree.map(jnp.asarray, PARAMS))
        norms = []
        for step in range(3):
            state, metrics = run.step(state, BATCH)
            norms.append(float(metrics["grad_norm"]))
            assert float(metrics["learning_rate"]) == pytest.approx(float(schedule(step)))
        average = run.evaluate({**state, "params": state["extra"]["average"]}, BATCH)["loss"]
        predict = run.predict(
            lambda params, extra, x: x @ params["out"] + extra["stats"][0]["mean"][:8], reads=("params", "extra")
        )
        predicted = np.asarray(predict(state, BATCH["x"]))
        found = jax.device_get(state)
    params, extra, wanted_norms = train_plainly(optax.adam(schedule), 3)
    assert_close(norms, wanted_norms)
    assert_close((found["params"], found["extra"]), (params, extra))
    parts = [
        jax.tree.map(lambda leaf, rows=rows: leaf[rows], BATCH) for rows in np.split(np.arange(16), NUM_MICROBATCHES)
    ]
    losses = [normalised_loss(extra["average"], part)[0] for part in parts]
    assert_close(average, np.mean(losses))
    assert_close(predicted, BATCH["x"] @ params["out"] + extra["stats"][0]["mean"][:8])


def assert_close(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=1e-5)


RATED = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)


def mean_loss(params, batch):
    return jnp.mean((batch["x"] @ params["out"] - batch["y"]) ** 2)


def test_a_constant_first_state_and_a_schedule_of_the_users():
    def count_rows(extra, info):
        assert info.aux is info.microbatch_aux is None
        return {"rows": extra["rows"] + 16}

    options = {
        "extra_state": {"rows": 0},
        "update_extra": count_rows,
        "metrics": {"learning_rate": lambda step: 0.5**step},
    }
    params = {"out": PARAMS["out"]}
    fix = {"stages": 1, "microbatches": 1}
    with jq.parallelize(
        mean_loss, optax.sgd(0.1), (params, BATCH), devices=1, fix=fix, num_measured=0, **options
    ) as run:
        state = run.init(lambda: params)
        for step in range(2):
            state, metrics = run.step(state, BATCH)
            assert float(metrics["learning_rate"]) == 0.5**step
        assert int(state["extra"]["rows"]) == 32
        assert run.evaluate(state, BATCH).keys() == {"loss"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ("grad_norm", "lr")}, r"metrics='lr' is not known\. Use one of: 'grad_norm', 'learning_rate'"),
        ({"metrics": {"grad_norm": abs}}, r"Only 'learning_rate' takes a function.*'grad_norm': None"),
        (
            {"metrics": "learning_rate"},
            r"state has no learning rate\. Make it with optax\.inject_hyperparams.*schedule",
        ),
        (
            {"metrics": "learning_rate", "optimizer": optax.chain(RATED, RATED)},
            r"state has 2 learning rates\. .* give the rate as a function",
        ),
        ({"extra_state": {"count": 0}}, r"extra_state and update_extra go together.*update_extra=None"),
        ({"update_extra": lambda extra, info: extra}, r"go together.*Found extra_state=None"),
        (
            {"extra_state": {"count": 0}, "update_extra": lambda extra, info: {"count": info.loss}},
            r"update_extra returns another state than it gets: extra\['count'\] was int32\[\], and is float32\[\]",
        ),
        (
            {"extra_state": {"count": 0}, "update_extra": lambda extra, info: {}},
            r"another state than it gets: extra\['count'\] is missing\. Return the same types",
        ),
    ],
)
def test_what_is_refused(options, message):
    optimizer, given = options.get("optimizer", optax.sgd(0.1)), dict(options)
    given.pop("optimizer", None)
    with pytest.raises(PlanError, match=message) as caught:
        jq.parallelize(mean_loss, optimizer, ({"out": PARAMS["out"]}, BATCH), devices=1, **given)
    assert "\n" not in str(caught.value)


def masked_loss(params, batch):
    errors = jnp.mean((batch["x"] @ params["out"] - batch["y"]) ** 2, axis=1)
    is_kept = batch["x"][:, 0] > 0
    loss = jnp.sum(errors * is_kept) / jnp.sum(is_kept)
    return loss, {"loss": loss}


def test_parts_of_a_loss_have_no_aux_of_their_own():
    """A mean over the kept rows of a batch is split by their number; what comes with a part is a share of the whole."""
    given = {"has_aux": True, "extra_state": jnp.zeros(()), "devices": 2, "num_measured": 0, "fix": FIXES["data"]}
    args = {"out": PARAMS["out"]}, BATCH
    with pytest.raises(PlanError, match=r"info\.microbatch_aux: the loss is split by totals.*\"per_microbatch\""):
        jq.parallelize(
            masked_loss, optax.sgd(0.1), args, update_extra=lambda _, info: info.microbatch_aux["loss"][0], **given
        )
    add = {"update_extra": lambda extra, info: extra + info.aux["loss"]}
    with jq.parallelize(masked_loss, optax.sgd(0.1), args, **add, **given) as run:
        state, _ = run.step(run.init(lambda: args[0]), BATCH)
        assert_close(state["extra"], masked_loss(*args)[0])
