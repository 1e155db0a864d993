"""Predictions: the time that a plan says, beside the median of a training loop that is then run, for models of no zoo.

An MLP-Mixer, a scanned decoder with grouped-query attention, the same decoder as a Python loop, and a two-tower
recommender, each on 8 virtual CPU devices. The loop is the user's: `plan.apply`, `plan.shard`, a batch of NumPy arrays
every step.

    python -m benchmarks.predictions [--models mixer decoder ...] [--steps 40] [--cache FOLDER]
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType

import jaxquard as jq

WARM_UP = 10


def init(rng, *shape):
    return (rng.standard_normal(shape) / np.sqrt(shape[-2] if len(shape) > 1 else 1)).astype(np.float32)


def sgd(loss):
    def train_step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda param, grad: param - 1e-3 * grad, params, grads), value

    return train_step


def normed(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def mixer(*, depth=4, patches=64, width=256, batch=32):
    """An MLP-Mixer: products over patches and over channels in turn."""
    rng = np.random.default_rng(0)
    blocks = [
        {
            "patches": (init(rng, patches, 2 * patches), init(rng, 2 * patches, patches)),
            "channels": (init(rng, width, 4 * width), init(rng, 4 * width, width)),
        }
        for _ in range(depth)
    ]

    def loss(blocks, batch):
        x = batch["x"]
        for block in blocks:
            first, second = block["patches"]
            mixed = jax.nn.gelu(jnp.einsum("bpc,pq->bqc", normed(x), first))
            x = x + jnp.einsum("bqc,qp->bpc", mixed, second)
            first, second = block["channels"]
            x = x + jax.nn.gelu(normed(x) @ first) @ second
        return jnp.mean((x.mean(1) - batch["y"]) ** 2)

    data = {"x": init(rng, batch, patches, width), "y": init(rng, batch, width)}
    return sgd(loss), blocks, data


def decoder_layer(x, layer, *, heads=8, groups=2):
    batch, seq, width = x.shape
    size = width // heads
    h = normed(x)
    query = (h @ layer["query"]).reshape(batch, seq, groups, heads // groups, size)
    key = (h @ layer["key"]).reshape(batch, seq, groups, size)
    value = (h @ layer["value"]).reshape(batch, seq, groups, size)
    scores = jnp.einsum("bsghd,btgd->bghst", query, key) / np.sqrt(size)
    mask = jnp.tril(jnp.ones((seq, seq), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    found = jnp.einsum("bghst,btgd->bsghd", weights, value).reshape(batch, seq, width)
    x = x + found @ layer["out"]
    h = normed(x)
    return x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]


def decoder(*, depth=6, width=256, seq=64, vocab=1024, batch=16, is_scanned=True):
    """A decoder with grouped-query attention and gated layers, scanned or as a Python loop."""
    rng = np.random.default_rng(0)

    def layer():
        return {
            "query": init(rng, width, width),
            "key": init(rng, width, width // 4),
            "value": init(rng, width, width // 4),
            "out": init(rng, width, width),
            "gate": init(rng, width, 4 * width),
            "up": init(rng, width, 4 * width),
            "down": init(rng, 4 * width, width),
        }

    layers = [layer() for _ in range(depth)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *layers) if is_scanned else layers
    params = {"embed": init(rng, vocab, width), "layers": stacked}

    def loss(params, batch):
        x = params["embed"][batch["tokens"]]
        if is_scanned:
            x, _ = lax.scan(lambda x, layer: (decoder_layer(x, layer), None), x, params["layers"])
        else:
            for layer in params["layers"]:
                x = decoder_layer(x, layer)
        logits = normed(x) @ params["embed"].T
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["next"][..., None], -1)
        return -jnp.mean(picked)

    tokens = rng.integers(0, vocab, (batch, seq + 1)).astype(np.int32)
    return sgd(loss), params, {"tokens": tokens[:, :-1], "next": tokens[:, 1:]}


def towers(*, users=4096, items=4096, width=256, batch=256):
    """A two-tower recommender: two tables, two MLPs, and a softmax over the batch."""
    rng = np.random.default_rng(0)

    def tower(count):
        return {
            "table": init(rng, count, width),
            "first": init(rng, width, 4 * width),
            "second": init(rng, 4 * width, width),
        }

    def encode(tower, ids):
        x = tower["table"][ids]
        return normed(jax.nn.relu(x @ tower["first"]) @ tower["second"])

    def loss(params, batch):
        scores = encode(params["user"], batch["user"]) @ encode(params["item"], batch["item"]).T
        return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(scores / 16)))

    data = {
        "user": rng.integers(0, users, batch).astype(np.int32),
        "item": rng.integers(0, items, batch).astype(np.int32),
    }
    return sgd(loss), {"user": tower(users), "item": tower(items)}, data


MODELS = {
    "mixer": mixer,
    "decoder": decoder,
    "decoder-loop": lambda: decoder(depth=8, is_scanned=False),
    "towers": towers,
}


def loop_times(step, state, batch, count):
    """Seconds of steps of a user's loop."""
    times = []
    for _ in range(count):
        start_s = time.perf_counter()
        state, loss = step(state, batch)
        jax.block_until_ready((state, loss))
        times.append(time.perf_counter() - start_s)
    return times


def by_hand(train_step, mesh, state, batch):
    """Data parallelism as a user writes it with `jax.jit`."""
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    rows = jax.sharding.NamedSharding(mesh, jax.P("devices"))
    jitted = jax.jit(train_step, donate_argnums=0, in_shardings=(whole, rows), out_shardings=(whole, None))
    return lambda state, batch: jitted(state, jax.device_put(batch, rows)), jax.device_put(state, whole)


def run(name, mesh, num_steps, cache):
    train_step, params, batch = MODELS[name]()
    start_s = time.perf_counter()
    plan = jq.search_sharding(train_step, (params, batch), mesh=mesh, cache=cache and jq.pricing.PriceCache(cache))
    searched_s = time.perf_counter() - start_s
    step, state = plan.apply(train_step), plan.shard(params)
    hand, hand_state = by_hand(train_step, mesh, params, batch)
    ours, theirs = [], []
    for _ in range(2):  # In blocks: programs that run in turns evict each other's caches.
        ours.append(loop_times(step, state, batch, WARM_UP + num_steps // 2)[WARM_UP:])
        state = plan.shard(params)
        theirs += loop_times(hand, hand_state, batch, WARM_UP + num_steps // 2)[WARM_UP:]
        hand_state = jax.device_put(params, jax.sharding.NamedSharding(mesh, jax.P()))
    median_s = statistics.median(time_s for block in ours for time_s in block)
    return {
        "model": name,
        "segments": len(plan.segments),
        "search_s": round(searched_s, 1),
        "predicted_ms": round(plan.time_s * 1e3, 3),
        "loop_ms": round(median_s * 1e3, 3),
        "predicted_over_loop": round(plan.time_s / median_s, 3),
        "blocks_ms": [round(statistics.median(block) * 1e3, 3) for block in ours],
        "data_parallel_by_hand_to_ours": round(statistics.median(theirs) / median_s, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--cache", type=Path, help="a folder that keeps prices; without it nothing is kept")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((8,), ("devices",), axis_types=(AxisType.Auto,))
    for name in options.models:
        print(json.dumps(run(name, mesh, options.steps, options.cache)), flush=True)


if __name__ == "__main__":
    main()
