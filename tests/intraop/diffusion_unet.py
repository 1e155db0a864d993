"""A diffusion U-Net of two levels in plain JAX, as diffusers' `UNet2DModel` has it.

    stem; per level two residual blocks; half the resolution; the same at the lower level, with attention after each
    a residual block, attention and a residual block in the middle
    per level three residual blocks that join what the way down has left; twice the resolution; a norm and the head

Residual blocks have group norms and add the embedding of the time; channels double on the way down.
"""

import jax
import jax.numpy as jnp
import numpy as np

_DIMS = ("NHWC", "HWIO", "NHWC")
_GROUPS = 8


def diffusion_unet_step(*, batch=8, size=16, channels=32, layers=2):
    """A training step that predicts noise, and its arguments.

    Args:
        layers: residual blocks of a level on the way down; one more on the way up.
    """
    make = _Maker()
    wide, embedded = 2 * channels, 4 * channels
    params = {
        "time": [make.linear(channels, embedded), make.linear(embedded, embedded)],
        "stem": make.kernel(3, channels),
        "down": [make.residual(channels, channels, embedded) for _ in range(layers)],
        "smaller": make.kernel(channels, channels),
        "low_down": [_attended(make, channels if not n else wide, wide, embedded) for n in range(layers)],
        "middle": [_attended(make, wide, wide, embedded), {"residual": make.residual(wide, wide, embedded)}],
        "low_up": [
            _attended(make, wide + (channels if n == layers else wide), wide, embedded) for n in range(layers + 1)
        ],
        "larger": make.kernel(wide, wide),
        "up": [make.residual((channels if n else wide) + channels, channels, embedded) for n in range(layers + 1)],
        "norm": make.norm(channels),
        "head": make.kernel(channels, 3),
    }
    image = make.normal(batch, size, size, 3)
    data = {"image": image, "noise": make.normal(*image.shape), "time": np.arange(batch, dtype=np.float32)}
    return _train_step, (params, data)


class _Maker:
    def __init__(self):
        self.random = np.random.default_rng(0)

    def normal(self, *shape, scale=1.0):
        return np.asarray(scale * self.random.normal(size=shape), np.float32)

    def kernel(self, inner, outer, width=3):
        return self.normal(width, width, inner, outer, scale=1 / (width * inner**0.5))

    def linear(self, inner, outer):
        return {"kernel": self.normal(inner, outer, scale=inner**-0.5), "bias": self.normal(outer, scale=0.1)}

    def norm(self, channels):
        return {"scale": 1 + self.normal(channels, scale=0.1), "bias": self.normal(channels, scale=0.1)}

    def residual(self, inner, outer, embedded):
        params = {
            "first_norm": self.norm(inner),
            "first": self.kernel(inner, outer),
            "time": self.linear(embedded, outer),
            "second_norm": self.norm(outer),
            "second": self.kernel(outer, outer),
        }
        return params if inner == outer else params | {"skip": self.kernel(inner, outer, 1)}


def _attended(make, inner, outer, embedded):
    attention = {name: make.linear(outer, outer) for name in ("query", "key", "value", "out")}
    return {"residual": make.residual(inner, outer, embedded), "attention": {"norm": make.norm(outer), **attention}}


def _train_step(params, batch):
    loss, grads = jax.value_and_grad(_loss)(params, batch)
    return jax.tree.map(lambda param, grad: param - 0.01 * grad, params, grads), loss


def _loss(params, batch):
    frequencies = jnp.exp(-jnp.arange(params["time"][0]["kernel"].shape[0] // 2) / 4.0)
    angles = batch["time"][:, None] * frequencies
    time = _linear(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1), params["time"][0])
    time = jax.nn.silu(_linear(jax.nn.silu(time), params["time"][1]))
    x = _convolve(batch["image"] + batch["noise"], params["stem"])
    skips = [x]
    for residual in params["down"]:
        x = _residual(x, time, residual)
        skips.append(x)
    x = _convolve(x, params["smaller"], stride=2)
    skips.append(x)
    for layer in params["low_down"]:
        x = _attend(_residual(x, time, layer["residual"]), layer["attention"])
        skips.append(x)
    first, last = params["middle"]
    x = _attend(_residual(x, time, first["residual"]), first["attention"])
    x = _residual(x, time, last["residual"])
    for layer in params["low_up"]:
        x = jnp.concatenate([x, skips.pop()], axis=-1)
        x = _attend(_residual(x, time, layer["residual"]), layer["attention"])
    x = _convolve(jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2), params["larger"])
    for residual in params["up"]:
        x = _residual(jnp.concatenate([x, skips.pop()], axis=-1), time, residual)
    assert not skips
    predicted = _convolve(jax.nn.silu(_normalise(x, params["norm"])), params["head"])
    return jnp.mean((predicted - batch["noise"]) ** 2)


def _convolve(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=_DIMS)


def _linear(x, params):
    return x @ params["kernel"] + params["bias"]


def _residual(x, time, params):
    inner = _convolve(jax.nn.silu(_normalise(x, params["first_norm"])), params["first"])
    inner = inner + _linear(time, params["time"])[:, None, None, :]
    inner = _convolve(jax.nn.silu(_normalise(inner, params["second_norm"])), params["second"])
    return inner + (_convolve(x, params["skip"]) if "skip" in params else x)


def _normalise(x, params):
    batch, height, width, channels = x.shape
    grouped = x.reshape(batch, height * width, _GROUPS, channels // _GROUPS)
    mean = jnp.mean(grouped, axis=(1, 3), keepdims=True)
    variance = jnp.mean((grouped - mean) ** 2, axis=(1, 3), keepdims=True)
    normal = ((grouped - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    return normal * params["scale"] + params["bias"]


def _attend(x, params):
    batch, height, width, channels = x.shape
    tokens = _normalise(x, params["norm"]).reshape(batch, height * width, channels)
    query, key, value = (_linear(tokens, params[name]) for name in ("query", "key", "value"))
    weights = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", query, key) / channels**0.5)
    mixed = _linear(jnp.einsum("bqk,bkc->bqc", weights, value), params["out"])
    return x + mixed.reshape(x.shape)
