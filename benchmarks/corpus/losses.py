"""The losses of the corpus that are traced: six models of the zoo with few layers, and six that are not in the zoo.

Each builder returns a loss and the types of its parameters and of a batch; nothing is computed. The frozen code builds
the same losses, so they use `jaxquard.models` only by the names of sizes, and plain JAX otherwise.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# A loss, and the types of the parameters and the batch.
TracedLoss = tuple[Callable[..., Any], Any, Any]
_COMPUTE = jnp.bfloat16


def zoo_model(size: str, rows: int, **changes: Any) -> TracedLoss:
    """A model of the zoo.

    Args:
        size: its name in the zoo.
        rows: of the batch.
        **changes: to its config, such as fewer layers.
    """
    from jaxquard.models import zoo

    model = zoo.find_model(size)
    config = dataclasses.replace(model.config, **changes)
    params = jax.eval_shape(lambda: model.module.init(jax.random.key(0), config))
    microbatches = jax.eval_shape(
        lambda: model.module.synthetic_batch(jax.random.key(0), config, num_microbatches=1, microbatch_size=rows)
    )
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), microbatches)
    return lambda params, batch: model.module.loss(params, batch, config), params, batch


def mixer(rows: int, *, num_layers: int = 6, patches: int = 196, width: int = 1024) -> TracedLoss:
    """MLP-Mixer (Tolstikhin et al. 2021): products over patches, then over features."""

    def loss(params: Any, batch: Any) -> Any:
        hidden = batch["patches"].astype(_COMPUTE) @ _cast(params["embed"])
        for layer in params["layers"]:
            mixed = jnp.swapaxes(_norm(layer["norm1"], hidden), 1, 2)
            hidden = hidden + jnp.swapaxes(_mlp(layer["patches"], mixed), 1, 2)
            hidden = hidden + _mlp(layer["features"], _norm(layer["norm2"], hidden))
        pooled = jnp.mean(_norm(params["norm"], hidden), axis=1)
        return _cross_entropy(pooled @ _cast(params["head"]), batch["labels"])

    layers = [
        {
            "norm1": _weight(width),
            "patches": _mlp_types(patches, width // 2),
            "norm2": _weight(width),
            "features": _mlp_types(width, 4 * width),
        }
        for _ in range(num_layers)
    ]
    params = {"embed": _weight(768, width), "layers": layers, "norm": _weight(width), "head": _weight(width, 1000)}
    return loss, params, {"patches": _weight(rows, patches, 768), "labels": _integers(rows)}


def conv_net(rows: int, *, image: int = 64, width: int = 64, has_batch_norm: bool = False) -> TracedLoss:
    """A residual net of 3 x 3 convolutions in three stages.

    Args:
        has_batch_norm: norms are of the whole batch (Ioffe and Szegedy 2015), so that there is one microbatch; else of
            groups of channels (Wu and He 2018).
    """

    def convolve(kernel: Any, images: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            images, _cast(kernel), (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def norm(scale: Any, images: Any) -> Any:
        groups = images.reshape(*images.shape[:3], 8, -1).astype(jnp.float32)
        dims = (0, 1, 2) if has_batch_norm else (1, 2, 4)
        centered = groups - jnp.mean(groups, axis=dims, keepdims=True)
        normed = centered * jax.lax.rsqrt(jnp.mean(centered**2, axis=dims, keepdims=True) + 1e-5)
        return (normed.reshape(images.shape) * scale).astype(images.dtype)

    def loss(params: Any, batch: Any) -> Any:
        hidden = convolve(params["stem"], batch["images"].astype(_COMPUTE))
        for stage in params["stages"]:
            hidden = convolve(stage["down"], hidden, stride=2)
            for block in stage["blocks"]:
                inner = jax.nn.relu(norm(block["norm1"], convolve(block["conv1"], hidden)))
                hidden = jax.nn.relu(hidden + norm(block["norm2"], convolve(block["conv2"], inner)))
        return _cross_entropy(jnp.mean(hidden, axis=(1, 2)) @ _cast(params["head"]), batch["labels"])

    stages, before = [], width
    for out in (2 * width, 4 * width, 8 * width):
        kernels = {name: _weight(3, 3, out, out) for name in ("conv1", "conv2")}
        block = {**kernels, "norm1": _weight(out), "norm2": _weight(out)}
        stages.append({"down": _weight(3, 3, before, out), "blocks": [block] * 2})
        before = out
    params = {"stem": _weight(3, 3, 3, width), "stages": stages, "head": _weight(before, 1000)}
    return loss, params, {"images": _weight(rows, image, image, 3), "labels": _integers(rows)}


def recurrent(
    rows: int, *, num_layers: int = 3, tokens: int = 256, width: int = 2048, vocab: int = 16384
) -> TracedLoss:
    """A language model of GRUs (Cho et al. 2014), each a scan over time behind the products of its inputs."""

    def run(layer: Any, inputs: Any) -> Any:
        gates = jnp.swapaxes(inputs @ _cast(layer["inputs"]), 0, 1)

        def step(state: Any, gate: Any) -> Any:
            own = state @ _cast(layer["state"])
            reset = jax.nn.sigmoid(gate[:, :width] + own[:, :width])
            update = jax.nn.sigmoid(gate[:, width : 2 * width] + own[:, width : 2 * width])
            new = jnp.tanh(gate[:, 2 * width :] + reset * own[:, 2 * width :])
            state = update * state + (1 - update) * new
            return state, state

        start = jnp.zeros((inputs.shape[0], width), inputs.dtype)
        return jnp.swapaxes(jax.lax.scan(step, start, gates)[1], 0, 1)

    def loss(params: Any, batch: Any) -> Any:
        hidden = _cast(params["embedding"])[batch["tokens"]]
        for layer in params["layers"]:
            hidden = hidden + run(layer, hidden)
        return _cross_entropy(hidden @ _cast(params["head"]), batch["targets"])

    layers = [{"inputs": _weight(width, 3 * width), "state": _weight(width, 3 * width)} for _ in range(num_layers)]
    params = {"embedding": _weight(vocab, width), "layers": layers, "head": _weight(width, vocab)}
    return loss, params, {"tokens": _integers(rows, tokens), "targets": _integers(rows, tokens)}


def vision_transformer(rows: int, *, num_layers: int = 6, patches: int = 256, width: int = 1280) -> TracedLoss:
    """A vision transformer (Dosovitskiy et al. 2020) that averages its patches."""

    def loss(params: Any, batch: Any) -> Any:
        hidden = batch["patches"].astype(_COMPUTE) @ _cast(params["embed"]) + _cast(params["positions"])
        for layer in params["layers"]:
            hidden = _encoder_layer(layer, hidden)
        pooled = jnp.mean(_norm(params["norm"], hidden), axis=1)
        return _cross_entropy(pooled @ _cast(params["head"]), batch["labels"])

    params = {
        "embed": _weight(588, width),
        "positions": _weight(patches, width),
        "layers": [_layer_types(width, num_heads=16) for _ in range(num_layers)],
        "norm": _weight(width),
        "head": _weight(width, 1000),
    }
    return loss, params, {"patches": _weight(rows, patches, 588), "labels": _integers(rows)}


def encoder_decoder(
    rows: int, *, num_layers: int = 3, tokens: int = 512, width: int = 2048, vocab: int = 32768
) -> TracedLoss:
    """A transformer with encoder and decoder, whose embedding is also the head (Vaswani et al. 2017)."""

    def loss(params: Any, batch: Any) -> Any:
        table = _cast(params["embedding"])
        source = table[batch["source"]]
        for layer in params["encoder"]:
            source = _encoder_layer(layer, source)
        hidden = table[batch["target"]]
        for layer in params["decoder"]:
            hidden = hidden + _attention(layer["own"], _norm(layer["norm1"], hidden), is_causal=True)
            hidden = hidden + _attention(layer["cross"], _norm(layer["norm2"], hidden), source)
            hidden = hidden + _mlp(layer["mlp"], _norm(layer["norm3"], hidden))
        logits = jnp.einsum("btd,vd->btv", _norm(params["norm"], hidden), table)
        return _cross_entropy(logits, batch["next"])

    def decoder_types() -> Any:
        norms = {f"norm{number}": _weight(width) for number in (1, 2, 3)}
        attentions = {name: _attention_types(width, num_heads=16) for name in ("own", "cross")}
        return {**norms, **attentions, "mlp": _mlp_types(width, 4 * width)}

    params = {
        "embedding": _weight(vocab, width),
        "encoder": [_layer_types(width, num_heads=16) for _ in range(num_layers)],
        "decoder": [decoder_types() for _ in range(num_layers)],
        "norm": _weight(width),
    }
    return loss, params, {name: _integers(rows, tokens) for name in ("source", "target", "next")}


def scanned_gpt(
    rows: int, *, num_layers: int = 8, tokens: int = 1024, width: int = 2048, vocab: int = 50304
) -> TracedLoss:
    """A GPT whose layers are one scan over stacked parameters, with a tied embedding."""

    def loss(params: Any, batch: Any) -> Any:
        table = _cast(params["embedding"])

        def run(hidden: Any, layer: Any) -> Any:
            return _encoder_layer(layer, hidden, is_causal=True), None

        hidden, _ = jax.lax.scan(run, table[batch["tokens"]] + _cast(params["positions"]), params["layers"])
        return _cross_entropy(jnp.einsum("btd,vd->btv", _norm(params["norm"], hidden), table), batch["targets"])

    layer = _layer_types(width, num_heads=16)
    params = {
        "embedding": _weight(vocab, width),
        "positions": _weight(tokens, width),
        "layers": jax.tree.map(lambda leaf: _weight(num_layers, *leaf.shape), layer),
        "norm": _weight(width),
    }
    return loss, params, {"tokens": _integers(rows, tokens), "targets": _integers(rows, tokens)}


def residual_mlp(rows: int, *, num_layers: int = 2, width: int = 64) -> TracedLoss:
    """Two small layers, for tests; not in the corpus."""

    def loss(params: Any, batch: Any) -> Any:
        hidden = batch["x"]
        for layer in params["layers"]:
            hidden = hidden + jnp.tanh(hidden @ layer["up"]) @ layer["down"]
        return jnp.mean((hidden - batch["y"]) ** 2)

    layers = [_mlp_types(width, 4 * width) for _ in range(num_layers)]
    return loss, {"layers": layers}, {"x": _weight(rows, width), "y": _weight(rows, width)}


def _weight(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _integers(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _cast(weight: Any) -> Any:
    return weight.astype(_COMPUTE)


def _norm(scale: Any, hidden: Any) -> Any:
    wide = hidden.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-5) * scale).astype(hidden.dtype)


def _mlp(params: Any, hidden: Any) -> Any:
    return jax.nn.gelu(hidden @ _cast(params["up"])) @ _cast(params["down"])


def _mlp_types(width: int, inner: int) -> Any:
    return {"up": _weight(width, inner), "down": _weight(inner, width)}


def _attention(params: Any, hidden: Any, source: Any = None, *, is_causal: bool = False) -> Any:
    source = hidden if source is None else source
    query = jnp.einsum("btd,dhk->bthk", hidden, _cast(params["query"]))
    key, value = (jnp.einsum("bsd,dhk->bshk", source, _cast(params[name])) for name in ("key", "value"))
    scores = jnp.einsum("bthk,bshk->bhts", query, key).astype(jnp.float32) * query.shape[-1] ** -0.5
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    weights = jax.nn.softmax(scores).astype(hidden.dtype)
    return jnp.einsum("bthk,hkd->btd", jnp.einsum("bhts,bshk->bthk", weights, value), _cast(params["out"]))


def _attention_types(width: int, *, num_heads: int) -> Any:
    inputs = {name: _weight(width, num_heads, width // num_heads) for name in ("query", "key", "value")}
    return {**inputs, "out": _weight(num_heads, width // num_heads, width)}


def _encoder_layer(params: Any, hidden: Any, *, is_causal: bool = False) -> Any:
    hidden = hidden + _attention(params["attention"], _norm(params["norm1"], hidden), is_causal=is_causal)
    return hidden + _mlp(params["mlp"], _norm(params["norm2"], hidden))


def _layer_types(width: int, *, num_heads: int) -> Any:
    norms = {"norm1": _weight(width), "norm2": _weight(width)}
    return {**norms, "attention": _attention_types(width, num_heads=num_heads), "mlp": _mlp_types(width, 4 * width)}


def _cross_entropy(logits: Any, labels: Any) -> Any:
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)
