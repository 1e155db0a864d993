"""Evaluations, predictions and batches of other rows of a run, as plain JAX does them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.errors import PlanError
from jaxquard.planner.step.other_batches import choose_size
from tests.planner.small_losses import mlp_args

PARAMS, MORE_ROWS = mlp_args(rows=24)
BATCH = {name: leaf[:16] for name, leaf in MORE_ROWS.items()}
OPTIMIZER = optax.adam(0.05)
ONE_ACTOR = {"stages": 1, "data": 2, "microbatches": 2}
PIPELINE = {"stages": 2, "schedule": "1f1b", "microbatches": 4, "recompute": "none"}
# Two actors of two devices each.
BOTH = {"stages": 2, "data": 2, "microbatches": 2, "storage": "zero 3", "recompute": "none"}


def loss_and_rows(params, batch):
    predicted = logits(params, batch["x"])
    errors = jnp.mean((predicted - batch["y"]) ** 2, axis=1)
    return jnp.mean(errors), {"rows": errors, "count": jnp.ones((), jnp.int32) * errors.shape[0]}


def logits(params, x):
    for layer in params["layers"]:
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    return x @ params["out"]


def rows_of(batch, rows):
    return jax.tree.map(lambda leaf: leaf[:rows], batch)


def planned(loss=loss_and_rows, args=(PARAMS, BATCH), fix=ONE_ACTOR, devices=2, **options):
    return jq.parallelize(loss, OPTIMIZER, args, devices=devices, fix=fix, num_measured=0, has_aux=True, **options)


def first_state(run):
    return run.init(lambda: jax.tree.map(jnp.asarray, PARAMS))


def assert_close(found, wanted):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


@jax.jit
def plain_step(params, opt_state, batch):
    (loss, aux), grads = jax.value_and_grad(loss_and_rows, has_aux=True)(params, batch)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "aux": aux}


@pytest.mark.parametrize(
    ("fix", "devices"), [(ONE_ACTOR, 2), (PIPELINE, 2), (BOTH, 4)], ids=["data", "pipeline", "both"]
)
def test_steps_and_evaluations_of_batches_of_other_rows(fix, devices):
    """Rows that the devices divide, and rows that they do not; the state goes from one to the next."""
    with planned(fix=fix, devices=devices) as run:
        state, params = first_state(run), jax.tree.map(jnp.asarray, PARAMS)
        opt_state = OPTIMIZER.init(params)
        for rows in (16, 24, 5, 16):
            batch = rows_of(MORE_ROWS, rows)
            loss, aux = jax.jit(loss_and_rows)(params, batch)
            assert_close(run.evaluate(state, batch), {"loss": loss, "aux": aux})
            state, metrics = run.step(state, batch)
            params, opt_state, wanted = plain_step(params, opt_state, batch)
            assert_close(metrics, wanted)
        assert_close(state["params"], params)
        assert int(state["step"]) == 4


def test_an_evaluation_runs_forwards_alone_and_leaves_the_state():
    with planned(fix=PIPELINE) as run:
        state, _ = run.step(first_state(run), BATCH)
        before = jax.device_get(state)
        run.evaluate(state, BATCH)
        assert_close(state, before)
        # Other parameters of the same types.
        doubled = run.mesh.init(lambda: jax.tree.map(lambda leaf: 2 * leaf, PARAMS))
        loss, _ = loss_and_rows(jax.tree.map(lambda leaf: 2 * leaf, PARAMS), BATCH)
        assert_close(run.evaluate({**state, "params": doubled}, BATCH)["loss"], loss)
        run.step(state, BATCH)


@pytest.mark.parametrize(
    ("fix", "devices"), [(ONE_ACTOR, 2), (PIPELINE, 2), (BOTH, 4)], ids=["data", "pipeline", "both"]
)
def test_predictions(fix, devices):
    def outputs(params, x):
        hidden = jnp.tanh(x @ params["layers"][0]["up"])
        return {"logits": logits(params, x), "first": hidden, "transposed": x.T}

    def same(params, x):
        return x

    with planned(fix=fix, devices=devices) as run:
        predict, state = run.predict(outputs), first_state(run)
        assert_close(run.predict(same)(state, BATCH["x"]), BATCH["x"])
        for rows in (16, 5):
            x = BATCH["x"][:rows]
            assert_close(predict(state, x), jax.jit(outputs)(PARAMS, x))
        state, _ = run.step(state, BATCH)
        assert_close(predict(state, BATCH["x"]), outputs(jax.device_get(state["params"]), BATCH["x"]))


def noisy_loss(params, batch, key):
    kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)
    return loss_and_rows(params, {**batch, "x": batch["x"] * kept})


def test_a_loss_that_takes_a_key():
    """Each microbatch has a key of its own, also in batches of other rows: 3 microbatches of 8 rows, 1 of 5."""
    key = jax.random.key(3)
    with planned(noisy_loss, rng=key) as run:
        state, params = first_state(run), PARAMS
        for rows, sizes in ((24, (8, 8, 8)), (5, (5,))):
            starts = np.cumsum([0, *sizes])
            parts = [
                jax.tree.map(lambda leaf, at=at: leaf[at : at + 8], rows_of(MORE_ROWS, rows)) for at in starts[:-1]
            ]
            losses = [noisy_loss(params, part, jax.random.fold_in(key, n))[0] for n, part in enumerate(parts)]
            batch = rows_of(MORE_ROWS, rows)
            assert_close(run.evaluate(state, batch, rng=key)["loss"], np.mean(losses))
            state, metrics = run.step(state, batch, rng=key)
            assert_close(metrics["loss"], np.mean(losses))
            params = jax.device_get(state["params"])
        with pytest.raises(PlanError, match="takes a random key"):
            run.evaluate(state, BATCH)


def stacked_loss(params, batch):
    return jnp.mean((stacked_logits(params, batch["x"]) - batch["y"]) ** 2), None


def stacked_logits(params, x):
    def layer(x, weights):
        return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

    return jax.lax.scan(layer, x, params["layers"])[0] @ params["out"]


def projections(params, x):
    return jnp.einsum("bi,lij->bj", x, params["layers"]["up"])


def test_predictions_of_stacked_layers():
    """A scan takes each layer where it is; a stack that is read whole is joined where its layers are, not here."""
    params = {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *PARAMS["layers"]), "out": PARAMS["out"]}
    x = BATCH["x"]
    with planned(stacked_loss, (params, BATCH), fix=PIPELINE) as run:
        state = run.init(lambda: params)
        assert_close(run.predict(stacked_logits)(state, x), stacked_logits(params, x))
        with pytest.raises(
            PlanError, match=r"reads \['params'\]\['layers'\]\['up'\] whole, but its layers are on actors 0"
        ):
            run.predict(projections)(state, x)
    with planned(stacked_loss, (params, BATCH)) as run:
        state, _ = run.step(run.init(lambda: params), BATCH)
        assert_close(run.predict(projections)(state, x), projections(jax.device_get(state["params"]), x))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda params, x: jnp.sum(x @ params["out"]), r"output of the function has shape \(\), and no one dim"),
        (
            lambda params, x: (x @ params["layers"][3]["up"]) @ params["layers"][0]["down"],
            r"reads \['params'\]\['layers'\]\[0\]\['down'\] of actor 0 behind stage 1, .* in the order of the loss",
        ),
        (
            lambda params, x: (x @ params["layers"][0]["up"], x @ params["layers"][3]["up"]),
            r"outputs on several actors, and uses nothing of one on the next\. Split it",
        ),
        (
            lambda params, x: x @ (params["layers"][0]["up"] + params["layers"][3]["up"]),
            r"add at .* reads .*\[0\]\['up'\] and .*\[3\]\['up'\], which are on different actors",
        ),
    ],
    ids=["no rows", "backwards", "apart", "two actors"],
)
def test_functions_that_a_pipeline_cannot_run(function, message):
    with planned(fix=PIPELINE) as run:
        with pytest.raises(PlanError, match=message) as caught:
            run.predict(function)(first_state(run), BATCH["x"])
        assert "\n" not in str(caught.value)


def test_other_states_and_batches_are_refused():
    with planned() as run:
        state = first_state(run)
        with pytest.raises(PlanError, match=r"batch\['x'\] was float32\[4, 16\], and is float32\[4, 3\].* rows alone"):
            run.evaluate(state, {"x": BATCH["x"][:4, :3], "y": BATCH["y"][:4]})
        with pytest.raises(PlanError, match=r"batch\['y'\] is missing"):
            run.evaluate(state, {"x": BATCH["x"]})
        with pytest.raises(PlanError, match=r"state\['opt_state'\].* is missing.*run\.init or run\.step"):
            run.evaluate({"params": PARAMS}, BATCH)
        with pytest.raises(PlanError, match=r"must name parts of the state: opt_state, params, step"):
            run.predict(logits, reads=("weights",))


def test_a_loss_with_other_operations_on_other_rows():
    """Under a pipeline, nothing says where they belong; on one actor they have no choice."""

    def loss(params, batch):
        value, aux = loss_and_rows(params, batch)
        return (2 * value if batch["x"].shape[0] == 5 else value), aux

    five = rows_of(BATCH, 5)
    message = r"other operations on a batch of 5 rows than on one of 16.* whose rows they divide"
    with planned(loss, fix=BOTH, devices=4) as run, pytest.raises(PlanError, match=message):
        run.evaluate(first_state(run), five)
    with planned(loss) as run:
        assert_close(run.evaluate(first_state(run), five)["loss"], loss(PARAMS, five)[0])


def test_rows_of_microbatches():
    assert choose_size(24, largest=8, multiple_of=2) == 8
    assert choose_size(12, largest=8, multiple_of=2) == 6
    assert choose_size(20, largest=8, multiple_of=4) == 4
    assert choose_size(5, largest=8, multiple_of=2) == 5
    # 31 microbatches of 2 rows would keep the devices busy with little but their starts.
    assert choose_size(62, largest=32, multiple_of=2) == 31
    assert choose_size(7, largest=4, multiple_of=2) == 1
    message = (
        r"a batch of 37 rows has no equal .* of 32 rows.* are 1\. Pass 32 rows and the other 5 as batches of their"
    )
    with pytest.raises(PlanError, match=message):
        choose_size(37, largest=32, multiple_of=2)
