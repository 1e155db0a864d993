"""Steps with layers in a `lax.scan`, as users write them, each with something that opening it could trip over."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.intraop.steps import inputs, sgd, weights

LAYERS, DIM, BATCH = 4, 16, 16
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _layer(x: jax.Array, params: Any) -> jax.Array:
    return x + jnp.tanh(x @ params["up"] + params["bias"]) @ params["down"]


def _stacked(layers: int = LAYERS, *more: int) -> Any:
    return weights(up=(layers, *more, DIM, 2 * DIM), down=(layers, *more, 2 * DIM, DIM), bias=(layers, *more, 2 * DIM))


def _batch() -> Any:
    return inputs(BATCH, DIM), inputs(BATCH, DIM, seed=3)


def _loss_of(run: Callable[[Any, jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    def loss(params, batch):
        x, targets = batch
        return jnp.mean(jnp.square(run(params, x) - targets))

    return loss


def plain(layers: int = LAYERS, *, checkpoint: Any = None, **options: Any) -> Made:
    """A scan and nothing else; with options of `lax.scan`, and of `jax.checkpoint`."""
    layer = _layer if checkpoint is None else jax.checkpoint(_layer, **checkpoint)

    def run(params, x):
        return lax.scan(lambda x, params: (layer(x, params), None), x, params, **options)[0]

    return sgd(_loss_of(run)), (_stacked(layers), _batch())


def checkpointed_whole() -> Made:
    """The whole scan is computed again, and each layer in it."""

    @jax.checkpoint
    def run(params, x):
        return lax.scan(lambda x, params: (jax.checkpoint(_layer)(x, params), None), x, params)[0]

    return sgd(_loss_of(run)), (_stacked(), _batch())


def cast() -> Made:
    """The whole stack is cast before the scan."""

    def run(params, x):
        low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        x, _ = lax.scan(lambda x, params: (_layer(x, params), None), x.astype(jnp.bfloat16), low)
        return x.astype(jnp.float32)

    return sgd(_loss_of(run)), (_stacked(), _batch())


def adam_with_clipping() -> Made:
    """Gradients are clipped by their global norm; the state has means, and is skipped where it is not finite."""
    loss = _loss_of(lambda params, x: lax.scan(lambda x, params: (_layer(x, params), None), x, params)[0])

    def step(state, batch):
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        length = jnp.sqrt(sum(jnp.sum(jnp.square(grad)) for grad in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda grad: grad * jnp.minimum(1.0, 0.1 / length), grads)
        m = jax.tree.map(lambda m, grad: 0.9 * m + 0.1 * grad, state["m"], grads)
        v = jax.tree.map(lambda v, grad: 0.99 * v + 0.01 * grad**2, state["v"], grads)
        params = jax.tree.map(lambda p, m, v: p - 0.1 * m / (jnp.sqrt(v) + 1e-2), state["params"], m, v)
        params = jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(value), new, old), params, state["params"])
        return {"params": params, "m": m, "v": v, "steps": state["steps"] + 1}, {"loss": value, "length": length}

    params = _stacked()
    zeros = jax.tree.map(np.zeros_like, params)
    return step, ({"params": params, "m": zeros, "v": zeros, "steps": np.int32(0)}, _batch())


def stacks_up() -> Made:
    """Every layer adds to the loss, and has its output among the results."""

    def loss(params, batch):
        x, targets = batch

        def body(x, params):
            x = _layer(x, params)
            return x, (jnp.mean(x**2), x[0])

        x, (squares, firsts) = lax.scan(body, x, params)
        return jnp.mean((x - targets) ** 2) + 0.01 * jnp.sum(squares), (squares, firsts)

    def step(params, batch):
        (value, stacks), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), value, stacks

    return step, (_stacked(), _batch())


def keys_and_numbers() -> Made:
    """Beside the weights the scan goes over keys, over numbers of layers and over data for each layer."""

    def loss(params, batch, key_data):
        (x, targets), scales = batch
        keys = jax.random.split(jax.random.wrap_key_data(key_data), LAYERS)

        def body(carry, of_layer):
            x, count = carry
            params, key, number, scale = of_layer
            kept = jax.random.bernoulli(jax.random.fold_in(key, count), 0.9, x.shape)
            x = jnp.where(kept, _layer(x, params) * scale, 0) / (1 + number.astype(jnp.float32))
            return (x, count + 2), None

        (x, _), _ = lax.scan(body, (x, jnp.int32(1)), (params, keys, jnp.arange(LAYERS), scales))
        return jnp.mean((x - targets) ** 2)

    def step(params, batch, key_data):
        value, grads = jax.value_and_grad(loss)(params, batch, key_data)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), value

    return step, (_stacked(), (_batch(), np.float32([1.0, 0.9, 0.8, 0.7])), np.array([0, 5], np.uint32))


def encoder_and_decoder() -> Made:
    """Two scans of different lengths; the second takes what the first makes as a constant."""

    def run(params, x):
        memory, _ = lax.scan(lambda x, params: (_layer(x, params), None), x, params["encoder"])
        body = lambda x, params: (_layer(x + 0.1 * jnp.tanh(memory), params), None)  # noqa: E731
        return lax.scan(body, x, params["decoder"])[0]

    return sgd(_loss_of(run)), ({"encoder": _stacked(3), "decoder": _stacked(2)}, _batch())


def pairs(*, is_reshaped: bool = False) -> Made:
    """Each iteration has two layers, from a stack of pairs."""

    def run(params, x):
        def body(x, two):
            for place in range(2):
                x = _layer(x, jax.tree.map(lambda leaf, place=place: leaf[place], two))
            return x, None

        if is_reshaped:
            params = jax.tree.map(lambda leaf: leaf.reshape(LAYERS // 2, 2, *leaf.shape[1:]), params)
        return lax.scan(body, x, params)[0]

    return sgd(_loss_of(run)), (_stacked() if is_reshaped else _stacked(LAYERS // 2, 2), _batch())


def parts_of_a_stack() -> Made:
    """Two scans share a stack: the first layer, and the others."""

    def run(params, x):
        for place in (slice(0, 1), slice(1, None)):
            some = jax.tree.map(lambda leaf, place=place: leaf[place], params)
            x, _ = lax.scan(lambda x, params: (_layer(x, params), None), jnp.cos(x), some)
        return x

    return sgd(_loss_of(run)), (_stacked(), _batch())


def scan_in_scan() -> Made:
    """Groups of layers."""

    def run(params, x):
        group = lambda x, params: lax.scan(lambda x, params: (_layer(x, params), None), x, params)  # noqa: E731
        return lax.scan(group, x, params)[0]

    return sgd(_loss_of(run)), (_stacked(2, 3), _batch())


def time_in_layers() -> Made:
    """Each layer has a scan over time, without products."""

    def run(params, x):
        def body(x, params):
            decayed = lax.scan(lambda total, now: (0.5 * total + now, total), jnp.zeros(DIM), x)[1]
            return _layer(x + 0.1 * decayed, params), None

        return lax.scan(body, x, params)[0]

    return sgd(_loss_of(run)), (_stacked(), _batch())


def mapped_update() -> Made:
    """The optimizer goes over the layers by itself, to save memory."""
    loss = _loss_of(lambda params, x: lax.scan(lambda x, params: (_layer(x, params), None), x, params)[0])

    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)

        def update(pair):
            param, grad = pair
            return jax.tree.map(lambda p, g: p - 0.1 * g / (1e-3 + jnp.linalg.norm(g)), param, grad)

        return lax.map(update, (params, grads)), value

    return step, (_stacked(), _batch())


def cond_update() -> Made:
    """A cond chooses between new state and old."""
    loss = _loss_of(lambda params, x: lax.scan(lambda x, params: (_layer(x, params), None), x, params)[0])

    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        updated = jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads)
        return lax.cond(jnp.isfinite(value), lambda: updated, lambda: params), value

    return step, (_stacked(), _batch())


def whole_uses() -> Made:
    """Beside the scan, the stack is used whole: sorted, indexed, multiplied across layers."""

    def loss(params, batch):
        x, targets = batch
        y, _ = lax.scan(lambda x, params: (_layer(x, params), None), x, params)
        mixed = jnp.einsum("lij,l->ij", params["up"], jnp.linspace(0.0, 0.1, LAYERS))
        flat = jnp.sort(params["bias"].reshape(-1))
        extra = jnp.sum((x @ mixed) ** 2) * 1e-3 + jnp.sum(flat[:5]) + params["bias"][1, 2]
        return jnp.mean((y - targets) ** 2) + extra

    return sgd(loss), (_stacked(), _batch())


def frozen_layers() -> Made:
    """A stack that the step closes over, and one that it trains."""
    frozen = _stacked(2)

    def run(params, x):
        x, _ = lax.scan(lambda x, params: (_layer(x, params), None), x, jax.tree.map(jnp.asarray, frozen))
        return lax.scan(lambda x, params: (_layer(x, params), None), x, params)[0]

    return sgd(_loss_of(run)), (_stacked(3), _batch())


def evaluation() -> Made:
    """Nothing is trained, so nothing says which argument is state."""
    loss = _loss_of(lambda params, x: lax.scan(lambda x, params: (_layer(x, params), None), x, params)[0])
    return loss, (_stacked(), _batch())


def microbatches(*, is_scanned: bool = False) -> Made:
    """Gradients of microbatches are added up in a scan; the layers stand inside."""

    def run(params, x):
        if is_scanned:
            return lax.scan(lambda x, params: (_layer(x, params), None), x, params)[0]
        for number in range(2):
            x = _layer(x, jax.tree.map(lambda leaf, number=number: leaf[number], params))
        return x

    loss = _loss_of(run)

    def step(params, batch):
        def add(total, microbatch):
            value, grads = jax.value_and_grad(loss)(params, microbatch)
            return jax.tree.map(jnp.add, total, grads), value

        grads, values = lax.scan(add, jax.tree.map(jnp.zeros_like, params), batch)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), values.mean()

    return step, (_stacked(2), (inputs(4, BATCH, DIM), inputs(4, BATCH, DIM, seed=3)))


def recurrent() -> Made:
    """A scan over time, with the same weights every time."""

    def run(params, x):
        first = jnp.tanh(x @ params["first"])
        steps = jnp.stack([first, 0.5 * first, first**2])
        return lax.scan(lambda h, x: (jnp.tanh(x + h @ params["again"]), None), jnp.zeros((BATCH, DIM)), steps)[0]

    return sgd(_loss_of(run)), (weights(first=(DIM, DIM), again=(DIM, DIM)), _batch())


OPENED: dict[str, Callable[[], Made]] = {
    "plain": plain,
    "one layer": partial(plain, 1),
    "unrolled by two": partial(plain, unroll=2),
    "backwards": partial(plain, reverse=True),
    "checkpoint": partial(plain, checkpoint={}),
    "checkpoint with a policy": partial(
        plain, checkpoint={"policy": jax.checkpoint_policies.dots_saveable, "prevent_cse": False}
    ),
    "checkpoint of the scan": checkpointed_whole,
    "cast": cast,
    "adam with clipping": adam_with_clipping,
    "stacks up": stacks_up,
    "keys and numbers": keys_and_numbers,
    "encoder and decoder": encoder_and_decoder,
    "pairs": pairs,
    "pairs by reshape": partial(pairs, is_reshaped=True),
    "parts of a stack": parts_of_a_stack,
    "scan in scan": scan_in_scan,
    "time in layers": time_in_layers,
    "mapped update": mapped_update,
    "cond update": cond_update,
    "whole uses": whole_uses,
    "frozen layers": frozen_layers,
    "evaluation": evaluation,
}
