"""Losses of the literature, small: what each is over the rows of its batch, and what can be read of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

ROWS, FEATURES, WIDTH, CLASSES, LENGTH = 16, 6, 8, 5, 7
KEY = jax.random.key(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loss.

    Attributes:
        verdict: "proved", "refuted" or "unknown".
        is_mean: over its rows, or a mean over weights, or a sum: what can be split by right.
        reduction: what the caller says of it.
    """

    loss: Callable[..., Any]
    verdict: str = "proved"
    is_mean: bool = True
    has_aux: bool = False
    reduction: str | None = None


CASES: dict[str, Case] = {}


def case(verdict: str = "proved", **options: Any) -> Callable[[Any], Any]:
    def add(loss: Any) -> Any:
        options.setdefault("is_mean", verdict == "proved")
        CASES[loss.__name__] = Case(loss=loss, verdict=verdict, **options)
        return loss

    return add


def make_params() -> Any:
    keys = iter(jax.random.split(jax.random.key(1), 16))

    def weight(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) / np.sqrt(shape[0])

    return {
        "up": weight(FEATURES, WIDTH),
        "mix": weight(WIDTH, WIDTH),
        "head": weight(WIDTH, CLASSES),
        "table": weight(CLASSES, WIDTH),
        "bias": 0.1 * jnp.ones((CLASSES,)),
    }


def make_batch(rows: int = ROWS, *, first_masked: int = 5) -> Any:
    """A batch; its first rows have an empty mask, so that microbatches differ in their weight."""
    keys = iter(jax.random.split(jax.random.key(2), 16))
    mask = (jax.random.uniform(next(keys), (rows, LENGTH)) < 0.6).astype(jnp.float32)
    return {
        "x": jax.random.normal(next(keys), (rows, FEATURES)),
        "z": jax.random.normal(next(keys), (rows, FEATURES)),
        "noise": jax.random.normal(next(keys), (rows, WIDTH)),
        "label": jax.random.randint(next(keys), (rows,), 0, CLASSES),
        "tokens": jax.random.randint(next(keys), (rows, LENGTH), 0, CLASSES),
        "mask": mask.at[:first_masked].set(0),
        "weight": jax.random.uniform(next(keys), (rows,)),
        "keys": jax.random.split(next(keys), rows),
        "image": jax.random.normal(next(keys), (rows, 6, 6, 2)),
    }


def hidden(params: Any, x: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ params["up"]) @ params["mix"])


def logits(params: Any, x: Any) -> Any:
    return hidden(params, x) @ params["head"] + params["bias"]


def token_logits(params: Any, tokens: Any) -> Any:
    """A language model that looks back: running means of embeddings, and a tied head."""
    embedded = params["table"][tokens]
    steps = jnp.arange(1, tokens.shape[1] + 1)[:, None]
    return jnp.tanh((jnp.cumsum(embedded, 1) / steps) @ params["mix"]) @ params["table"].T


def token_losses(params: Any, batch: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(token_logits(params, batch["tokens"]), batch["tokens"])


# Classification and regression.


@case()
def cross_entropy_by_positions(params, batch):
    log_probs = jax.nn.log_softmax(logits(params, batch["x"]))
    return -jnp.mean(log_probs[jnp.arange(len(log_probs)), batch["label"]])


@case(has_aux=True)
def cross_entropy_with_metrics(params, batch):
    found = logits(params, batch["x"])
    loss = optax.softmax_cross_entropy_with_integer_labels(found, batch["label"]).mean()
    correct = found.argmax(-1) == batch["label"]
    return loss, {
        "accuracy": correct.mean(),
        "correct": correct.sum(),
        "logits": found,
        "largest": found.max(),
        "rows": len(found),
        "rate": jnp.float32(0.5),
    }


@case()
def label_smoothing(params, batch):
    labels = optax.smooth_labels(jax.nn.one_hot(batch["label"], CLASSES), 0.1)
    return optax.softmax_cross_entropy(logits(params, batch["x"]), labels).mean()


@case()
def focal(params, batch):
    labels = jax.nn.one_hot(batch["label"], CLASSES)
    return optax.sigmoid_focal_loss(logits(params, batch["x"]), labels, alpha=0.25).mean()


@case()
def huber(params, batch):
    return optax.huber_loss(logits(params, batch["x"])[:, 0], batch["weight"]).mean()


@case()
def quantiles(params, batch):
    error = batch["weight"] - logits(params, batch["x"])[:, 1]
    return jnp.mean(jnp.maximum(0.9 * error, -0.1 * error))


@case()
def ranking_within_rows(params, batch):
    ordered = jnp.sort(logits(params, batch["x"]), axis=-1)
    return jnp.mean(jax.nn.relu(1 - jnp.diff(ordered, axis=-1)))


@case()
def convolutions(params, batch):
    kernel = jnp.reshape(params["mix"][:4, :], (2, 2, 2, 4))
    found = lax.conv_general_dilated(batch["image"], kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    pooled = lax.reduce_window(jax.nn.relu(found), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.mean(pooled.mean((1, 2)) ** 2)


@case(reduction="sum")
def sum_of_squares(params, batch):
    return jnp.sum((logits(params, batch["x"]) - batch["weight"][:, None]) ** 2)


@case()
def mean_and_penalty(params, batch):
    penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return jnp.mean(logits(params, batch["x"]) ** 2) + 1e-2 * penalty


@case("refuted")
def sum_and_penalty(params, batch):
    return jnp.sum(logits(params, batch["x"]) ** 2) + jnp.sum(params["up"] ** 2)


# Language models.


@case()
def causal_language_model(params, batch):
    found = token_logits(params, batch["tokens"])[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(found, batch["tokens"][:, 1:]).mean()


@case()
def masked_language_model(params, batch):
    losses = token_losses(params, batch) * batch["mask"]
    return losses.sum() / jnp.maximum(batch["mask"].sum(), 1)


@case(has_aux=True)
def packed_language_model(params, batch):
    is_token = batch["tokens"] != 0
    losses = jnp.where(is_token, token_losses(params, batch), 0)
    count = is_token.sum()
    return losses.sum() / count, {"tokens": count}


@case()
def mean_where(params, batch):
    return jnp.mean(token_losses(params, batch), where=batch["mask"] > 0)


@case()
def masked_with_z_loss(params, batch):
    found = token_logits(params, batch["tokens"])
    z = jax.nn.logsumexp(found, -1) ** 2
    total = batch["mask"].sum()
    return (token_losses(params, batch) * batch["mask"]).sum() / total + 1e-3 * (z * batch["mask"]).sum() / total


@case()
def masked_and_penalty(params, batch):
    return masked_language_model(params, batch) + 1e-2 * jnp.sum(params["mix"] ** 2)


@case(reduction="weighted")
def weighted_pair(params, batch):
    return (token_losses(params, batch) * batch["mask"]).sum(), batch["mask"].sum()


@case(reduction="weighted", has_aux=True)
def weighted_pair_with_aux(params, batch):
    losses = token_losses(params, batch)
    return ((losses * batch["mask"]).sum(), batch["mask"].sum()), {"plain": losses.mean()}


@case()
def mean_of_each_sequence(params, batch):
    weights = batch["mask"].at[:, 0].set(1)
    return jnp.mean((token_losses(params, batch) * weights).sum(1) / weights.sum(1))


@case("refuted")
def mask_of_the_model_itself(params, batch):
    losses = token_losses(params, batch)
    kept = jax.nn.sigmoid(losses)
    return (losses * kept).sum() / kept.sum()


# Pairs within the batch.


def _normal(x: Any) -> Any:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


@case("refuted")
def clip(params, batch):
    scores = _normal(hidden(params, batch["x"])) @ _normal(hidden(params, batch["z"])).T * 5
    labels = jnp.arange(len(scores))
    losses = [optax.softmax_cross_entropy_with_integer_labels(found, labels).mean() for found in (scores, scores.T)]
    return sum(losses) / 2


@case("refuted")
def sim_clr(params, batch):
    both = _normal(jnp.concatenate([hidden(params, batch["x"]), hidden(params, batch["z"])]))
    count = len(batch["x"])
    scores = both @ both.T * 5 - 1e9 * jnp.eye(2 * count)
    labels = jnp.concatenate([jnp.arange(count) + count, jnp.arange(count)])
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


@case()
def triplet(params, batch):
    anchor, positive = hidden(params, batch["x"]), hidden(params, batch["z"])
    negative = jnp.tanh(batch["noise"] @ params["mix"])
    distances = [jnp.sum((anchor - other) ** 2, -1) for other in (positive, negative)]
    return jnp.mean(jax.nn.relu(distances[0] - distances[1] + 1))


@case("refuted")
def hardest_triplet(params, batch):
    found = hidden(params, batch["x"])
    distances = jnp.sum((found[:, None] - found[None]) ** 2, -1)
    return jnp.mean(distances.max(1))


@case("refuted")
def vicreg(params, batch):
    found = hidden(params, batch["x"])
    spread = jnp.mean(jax.nn.relu(1 - jnp.sqrt(found.var(0) + 1e-4)))
    centred = found - found.mean(0)
    covariance = centred.T @ centred / (len(found) - 1)
    off = jnp.sum(covariance**2) - jnp.sum(jnp.diag(covariance) ** 2)
    return jnp.mean((found - hidden(params, batch["z"])) ** 2) + spread + off / WIDTH


@case("refuted")
def barlow_twins(params, batch):
    one, other = hidden(params, batch["x"]), hidden(params, batch["z"])
    one, other = ((found - found.mean(0)) / found.std(0) for found in (one, other))
    return jnp.sum((one.T @ other / len(one) - jnp.eye(WIDTH)) ** 2)


@case("refuted")
def cox_survival(params, batch):
    risk = logits(params, batch["x"])[jnp.argsort(-batch["weight"])][:, 0]
    return -jnp.mean(risk - jax.lax.cumlogsumexp(risk))


# Sequences.


@case()
def ctc(params, batch):
    found = token_logits(params, batch["tokens"])
    labels = batch["tokens"][:, :2]
    return optax.ctc_loss(found, 1 - batch["mask"].at[:, 0].set(1), labels, jnp.zeros(labels.shape)).mean()


@case()
def recurrent(params, batch):
    def cell(state, x):
        state = jnp.tanh(x + state @ params["mix"])
        return state, state

    embedded = params["table"][batch["tokens"]]
    _, states = lax.scan(cell, jnp.zeros((len(embedded), WIDTH)), embedded.transpose(1, 0, 2))
    return jnp.mean(states**2)


@case()
def attention_over_padding(params, batch):
    embedded = params["table"][batch["tokens"]]
    scores = jnp.einsum("bqd,bkd->bqk", embedded @ params["mix"], embedded)
    scores = jnp.where(batch["mask"][:, None, :] > 0, scores, -1e9)
    return jnp.mean((jax.nn.softmax(scores) @ embedded) ** 2)


@case()
def checkpointed_layers(params, batch):
    layer = jax.checkpoint(lambda x: jnp.tanh(x @ params["mix"]))
    return jnp.mean(layer(layer(batch["noise"])) ** 2)


@case()
def stacked_layers(params, batch):
    found, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["noise"], jnp.stack([params["mix"]] * 3))
    return jnp.mean(found**2)


# Generative models.


@case()
def vae_with_noise_in_the_batch(params, batch):
    mean = hidden(params, batch["x"])
    found = jnp.tanh((mean + 0.1 * batch["noise"]) @ params["mix"])
    return jnp.mean((found - batch["noise"]) ** 2) + jnp.mean(jnp.sum(mean**2, -1))


@case()
def diffusion_with_keys_of_rows(params, batch):
    def one(x, key):
        at, noise = jax.random.uniform(key), jax.random.normal(jax.random.fold_in(key, 1), x.shape)
        return jnp.mean((hidden(params, jnp.sqrt(at) * x + jnp.sqrt(1 - at) * noise)[:FEATURES] - noise) ** 2)

    return jnp.mean(jax.vmap(one)(batch["x"], batch["keys"]))


@case("refuted")
def noise_of_a_closed_over_key(params, batch):
    return jnp.mean(logits(params, batch["x"]) * jax.random.normal(KEY, (len(batch["x"]), CLASSES)))


@case()
def gradient_penalty(params, batch):
    slopes = jax.vmap(jax.grad(lambda x: logits(params, x).sum()))(batch["x"])
    return logits(params, batch["x"]).mean() + jnp.mean((jnp.linalg.norm(slopes, axis=-1) - 1) ** 2)


# Mixtures of experts.


def _gates(params: Any, batch: Any) -> Any:
    return jax.nn.softmax(logits(params, batch["x"]))


@case()
def experts(params, batch):
    gates = _gates(params, batch)
    outputs = jnp.einsum("bd,edf->bef", batch["noise"], jnp.stack([params["mix"]] * CLASSES))
    return jnp.mean(jnp.einsum("be,bef->bf", gates, outputs) ** 2)


@case()
def experts_with_router_z_loss(params, batch):
    return experts(params, batch) + 1e-3 * jnp.mean(jax.nn.logsumexp(logits(params, batch["x"]), -1) ** 2)


@case("refuted")
def experts_with_balance(params, batch):
    gates = _gates(params, batch)
    share = jnp.mean(jax.nn.one_hot(gates.argmax(-1), CLASSES), 0)
    return experts(params, batch) + CLASSES * jnp.sum(share * gates.mean(0))


@case("refuted")
def experts_with_capacity(params, batch):
    chosen = jax.nn.one_hot(_gates(params, batch).argmax(-1), CLASSES)
    place = jnp.cumsum(chosen, 0) * chosen
    taken = (place <= 2) & (place > 0)
    return jnp.mean((taken * logits(params, batch["x"])) ** 2)


# Distillation and reinforcement.


@case()
def distillation(params, batch):
    teacher = lax.stop_gradient(jax.nn.softmax(logits(params, batch["z"])))
    return jnp.mean(jnp.sum(teacher * (jnp.log(teacher) - jax.nn.log_softmax(logits(params, batch["x"]))), -1))


@case()
def ppo(params, batch):
    log_probs = jax.nn.log_softmax(logits(params, batch["x"]))
    found = jnp.take_along_axis(log_probs, batch["label"][:, None], 1)[:, 0]
    ratio = jnp.exp(found + 1.5)
    advantage = batch["weight"] - 0.5
    return -jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage))


@case("refuted")
def ppo_with_normalised_advantages(params, batch):
    advantage = batch["weight"]
    advantage = (advantage - advantage.mean()) / advantage.std()
    return -jnp.mean(jax.nn.log_softmax(logits(params, batch["x"]))[:, 0] * advantage)


@case()
def dpo(params, batch):
    margins = [jax.nn.log_softmax(logits(params, batch[name]))[:, 0] for name in ("x", "z")]
    return -jnp.mean(jax.nn.log_sigmoid(0.1 * (margins[0] - margins[1])))


@case()
def temporal_difference(params, batch):
    target = lax.stop_gradient(batch["weight"] + 0.9 * logits(params, batch["z"]).max(-1))
    return jnp.mean((logits(params, batch["x"])[:, 0] - target) ** 2)


# Normalisations.


@case()
def layer_norm(params, batch):
    found = hidden(params, batch["x"])
    found = (found - found.mean(-1, keepdims=True)) / jnp.sqrt(found.var(-1, keepdims=True) + 1e-5)
    return jnp.mean((found @ params["head"]) ** 2)


@case("refuted")
def batch_norm(params, batch):
    found = batch["x"] @ params["up"]
    found = (found - found.mean(0)) / jnp.sqrt(found.var(0) + 1e-5)
    return jnp.mean(jnp.tanh(found @ params["mix"]) ** 2)


@case()
def norm_of_neighbours(params, batch):
    """Runs of two rows, which microbatches of an even number of rows keep whole."""
    found = hidden(params, batch["x"]).reshape(-1, 2, WIDTH)
    return jnp.mean(jnp.tanh(found - found.mean(1, keepdims=True)) ** 2)


@case("refuted")
def norm_of_eighths(params, batch):
    found = hidden(params, batch["x"]).reshape(8, -1, WIDTH)
    return jnp.mean(jnp.tanh(found - found.mean(1, keepdims=True)) ** 2)


# Functions of all rows.


@case("refuted")
def root_of_a_mean(params, batch):
    return jnp.sqrt(jnp.mean(logits(params, batch["x"]) ** 2))


@case("refuted")
def worst_row(params, batch):
    return jnp.max(jnp.sum(logits(params, batch["x"]) ** 2, -1))


@case("refuted")
def variance_over_rows(params, batch):
    return jnp.var(logits(params, batch["x"])[:, 0])


@case("refuted")
def softmax_weights(params, batch):
    losses = jnp.sum(logits(params, batch["x"]) ** 2, -1)
    return jnp.sum(jax.nn.softmax(losses) * losses)


@case("refuted")
def dice(params, batch):
    found, label = jax.nn.sigmoid(logits(params, batch["x"]))[:, 0], batch["weight"]
    return 1 - 2 * jnp.sum(found * label) / (jnp.sum(found) + jnp.sum(label))


@case("refuted")
def products_of_means(params, batch):
    found = logits(params, batch["x"])
    return jnp.mean(found) * lax.stop_gradient(jnp.mean(found**2))


@case("refuted")
def weights_by_position(params, batch):
    found = logits(params, batch["x"])
    return jnp.mean(found * jnp.arange(len(found))[:, None])


@case()
def rows_backwards(params, batch):
    found = logits(params, batch["x"][::-1])
    return jnp.mean((found - batch["weight"][::-1, None]) ** 2)


@case("refuted")
def rows_against_rows_backwards(params, batch):
    found = logits(params, batch["x"])
    return jnp.mean(found * found[::-1])


@case()
def sum_in_a_scan_over_rows(params, batch):
    found = logits(params, batch["x"])
    total, _ = lax.scan(lambda total, row: (total + jnp.sum(row**2), None), 0.0, found)
    return total / len(found)


@case()
def steps_of_a_vmapped_while(params, batch):
    def halvings(x):
        return lax.while_loop(lambda at: at[0] > 0.1, lambda at: (at[0] / 2, at[1] + 1), (jnp.abs(x[0]), 0.0))[1]

    return jnp.mean(jax.vmap(halvings)(batch["x"]) * logits(params, batch["x"])[:, 0])


@jax.custom_vjp
def _mixes_backward(x: Any) -> Any:
    return x


def _forward(x: Any) -> Any:
    return x, None


def _backward(_: Any, gradient: Any) -> Any:
    return (gradient - gradient.mean(0) * jnp.abs(gradient).max(),)


_mixes_backward.defvjp(_forward, _backward)


@case("refuted")
def a_backward_that_mixes_rows(params, batch):
    return jnp.mean(_mixes_backward(hidden(params, batch["x"])) ** 2)


@case("unknown")
def a_callback(params, batch):
    found = logits(params, batch["x"])
    factor = jax.pure_callback(lambda x: np.float32(1), jax.ShapeDtypeStruct((), jnp.float32), lax.stop_gradient(found))
    return jnp.mean(found**2) * factor
