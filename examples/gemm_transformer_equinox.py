"""An Equinox transformer on a mesh of data parallel x 2D: its block takes `dense` functions and a norm."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxquard import gemm

jax.config.update("jax_platforms", "cpu")  # leave this and the next line out on a machine with 8 GPUs or TPUs
jax.config.update("jax_num_cpu_devices", 8)

BATCH, LENGTH, HEADS, HEAD_DIM = 8, 16, 4, 16
DIM = HEADS * HEAD_DIM
MESH = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("dp", "rows", "columns"))
ON_MESH = {"mesh": MESH, "axis_names": ("rows", "columns")}
SHAPES = {"qkv": (DIM, (HEADS, 3, HEAD_DIM)), "out": (DIM, DIM), "ff1": (DIM, 4 * DIM), "ff2": (4 * DIM, DIM)}
STATIONARY = {"qkv": "y", "out": "x", "ff1": "y", "ff2": "x"}  # the largest matrix of each layer stays where it is


def plain_dense(params, x):
    return jnp.tensordot(x, params["w"], 1) + params["b"]


def plain_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * scale


class Block(eqx.Module):
    params: dict
    scales: dict
    dense: dict = eqx.field(static=True)  # of each layer, the function from its parameters and x to y
    norm: object = eqx.field(static=True)

    def __call__(self, x):  # (batch, length, features)
        apply = {name: lambda x, name=name: self.dense[name](self.params[name], x) for name in SHAPES}
        query, key, value = jnp.moveaxis(apply["qkv"](self.norm(x, self.scales["qkv"])), 3, 0)
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + apply["out"](attended.reshape(x.shape))
        return x + apply["ff2"](jax.nn.gelu(apply["ff1"](self.norm(x, self.scales["ff1"]))))


optimizer = optax.adam(1e-2)


@eqx.filter_jit
def step(model, opt, x):
    loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean((model(x) - jnp.sin(x)) ** 2))(model)
    updates, opt = optimizer.update(grads, opt)
    return eqx.apply_updates(model, updates), opt, loss


def main():
    layers = {
        name: gemm.dense(features, stationary=STATIONARY[name], slices=2, use_bias=True, **ON_MESH)
        for name, (_, features) in SHAPES.items()
    }
    keys = dict(zip(SHAPES, jax.random.split(jax.random.key(0), len(SHAPES)), strict=True))
    params = {name: layer.init(keys[name], SHAPES[name][0]) for name, layer in layers.items()}
    scales = dict.fromkeys(("qkv", "ff1"), jnp.ones(DIM))
    meshed = Block(
        params, scales, {name: layer.apply for name, layer in layers.items()}, partial(gemm.rms_norm, **ON_MESH)
    )
    plain = Block(jax.device_get(params), scales, dict.fromkeys(SHAPES, plain_dense), plain_norm)
    x = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, DIM))
    for where, model in {"on a 2x2x2 mesh": meshed, "on one device": plain}.items():
        opt = optimizer.init(eqx.filter(model, eqx.is_array))
        for _ in range(5):
            model, opt, loss = step(model, opt, x)
        print(f"loss after 5 steps {where}: {loss:.5f}")


if __name__ == "__main__":
    main()
