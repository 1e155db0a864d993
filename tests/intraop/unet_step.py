"""A U-Net of two levels in plain JAX, whose segments hardly recur."""

import jax
import jax.numpy as jnp

_DIMS = ("NHWC", "HWIO", "NHWC")


def unet_step(*, batch=8, size=16, channels=16):
    """A training step of the U-Net, and its arguments."""
    keys = iter(jax.random.split(jax.random.key(0), 64))

    def kernel(inner, outer, width=3):
        return jax.random.normal(next(keys), (width, width, inner, outer)) / (width * inner**0.5)

    def residual(inner, outer):
        return {"first": kernel(inner, outer), "second": kernel(outer, outer), "skip": kernel(inner, outer, 1)}

    params = {
        "stem": kernel(4, channels),
        "down": [residual(channels, channels), residual(channels, 2 * channels)],
        "middle": {
            **residual(2 * channels, 2 * channels),
            "qkv": kernel(2 * channels, 6 * channels, 1),
            "out": kernel(2 * channels, 2 * channels, 1),
        },
        "up": [residual(4 * channels, 2 * channels), residual(3 * channels, channels)],
        "head": kernel(channels, 4),
    }
    image = jax.random.normal(next(keys), (batch, size, size, 4))
    return _train_step, (params, {"image": image, "target": jnp.tanh(image)})


def _train_step(params, batch):
    loss, grads = jax.value_and_grad(_loss)(params, batch)
    return jax.tree.map(lambda param, grad: param - 0.01 * grad, params, grads), loss


def _loss(params, batch):
    x = _convolve(batch["image"], params["stem"])
    skips = []
    for level in params["down"]:
        x = _residual(x, level)
        skips.append(x)
        x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    x = _attend(_residual(x, params["middle"]), params["middle"])
    for level, skip in zip(params["up"], reversed(skips), strict=True):
        x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
        x = _residual(jnp.concatenate([x, skip], axis=-1), level)
    return jnp.mean((_convolve(x, params["head"]) - batch["target"]) ** 2)


def _convolve(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=_DIMS)


def _residual(x, params):
    inner = _convolve(jax.nn.silu(_normalise(x)), params["first"])
    inner = _convolve(jax.nn.silu(_normalise(inner)), params["second"])
    return inner + _convolve(x, params["skip"])


def _normalise(x):
    mean = jnp.mean(x, axis=(1, 2), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.mean((x - mean) ** 2, axis=(1, 2), keepdims=True) + 1e-5)


def _attend(x, params):
    batch, height, width, channels = x.shape
    query, key, value = jnp.split(_convolve(x, params["qkv"]).reshape(batch, height * width, -1), 3, axis=-1)
    weights = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", query, key) / channels**0.5)
    mixed = jnp.einsum("bqk,bkc->bqc", weights, value).reshape(x.shape)
    return x + _convolve(mixed, params["out"])
