"""A transformer block whose four FC layers are multiplied by a function that is passed in.

Section 3.2.1: the batch is sharded over the mesh's rows, heads and features over its columns. The columns of `qkv` are
ordered head by head, so that the split into q, k and v stays on a chip.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.gemm import GemmPlan, LayerPlan, Stationary

BATCH, LENGTH, HEADS, HEAD_SIZE = 8, 4, 8, 8
WIDTH = HEADS * HEAD_SIZE
SHAPES = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "ff1": (WIDTH, 4 * WIDTH), "ff2": (4 * WIDTH, WIDTH)}
# Section 5 (and data/tpu_v4.md): the layers with the larger output keep Y put, the others X.
STATIONARY = {"qkv": Stationary.Y, "out": Stationary.X, "ff1": Stationary.Y, "ff2": Stationary.X}

Params = dict[str, jax.Array]
Multiply = Callable[[str, jax.Array, jax.Array], jax.Array]


def make_plan(algorithm: str, mesh_shape: tuple[int, int], slices: int) -> GemmPlan:
    return GemmPlan(
        algorithm=algorithm,
        mesh_shape=mesh_shape,
        layers=tuple(
            LayerPlan(name=name, stationary=kept, slices=(slices, slices, slices), block=2)
            for name, kept in STATIONARY.items()
        ),
    )


def init_params(seed: int = 0) -> Params:
    draw = np.random.default_rng(seed)
    params = {name: jnp.asarray(draw.normal(size=shape) / 8, jnp.float32) for name, shape in SHAPES.items()}
    return params | {name: jnp.ones(WIDTH) for name in ("scale1", "scale2")}


def apply_block(params: Params, x: jax.Array, multiply: Multiply) -> jax.Array:
    qkv = multiply("qkv", _norm(x, params["scale1"]), params["qkv"])
    q, k, v = jnp.moveaxis(qkv.reshape(*x.shape[:2], HEADS, 3, HEAD_SIZE), 3, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(HEAD_SIZE)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    x = x + multiply("out", mixed.reshape(x.shape), params["out"])
    hidden = jax.nn.gelu(multiply("ff1", _norm(x, params["scale2"]), params["ff1"]))
    return x + multiply("ff2", hidden, params["ff2"])


def block_loss(params: Params, x: jax.Array, target: jax.Array, multiply: Multiply) -> jax.Array:
    return jnp.mean((apply_block(params, x, multiply) - target) ** 2)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(x * x, axis=-1, keepdims=True) - mean * mean
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale
