"""A Flax NNX transformer on a mesh of data parallel x 2D: its layers and norms take the `products` of a plan."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from jaxquard import gemm

jax.config.update("jax_platforms", "cpu")  # leave this and the next line out on a machine with 8 GPUs or TPUs
jax.config.update("jax_num_cpu_devices", 8)

BATCH, LENGTH, HEADS, HEAD_DIM = 8, 16, 4, 16
DIM = HEADS * HEAD_DIM
MESH = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("dp", "rows", "columns"))
PLAN = gemm.autotune(
    gemm.transformer_block(DIM, num_rows=BATCH * LENGTH // 2), "tpu-v4", num_chips=4, mesh_shape=(2, 2)
).plan
PRODUCTS = gemm.products(PLAN, mesh=MESH, axis_names=("rows", "columns"))


class Dense(nnx.Module):
    """`nnx.LinearGeneral` without a bias; the layer of this name in the plan, if there are products."""

    def __init__(self, name, in_features, features, *, rngs, products):
        draw = jax.random.normal(rngs.params(), (in_features, *features))
        self.kernel = nnx.Param(draw / np.sqrt(in_features))
        self.name, self.products = name, products

    def __call__(self, x):
        if self.products is None:
            return jnp.tensordot(x, self.kernel[...], 1)
        return self.products.matmul(x, self.kernel[...], layer=self.name)


class Norm(nnx.Module):
    """`nnx.LayerNorm` before the layer of this name."""

    def __init__(self, name, *, products):
        self.scale, self.bias = nnx.Param(jnp.ones(DIM)), nnx.Param(jnp.zeros(DIM))
        self.name, self.products = name, products

    def __call__(self, x):
        if self.products is None:
            return jax.nn.standardize(x, epsilon=1e-5) * self.scale[...] + self.bias[...]
        return self.products.layer_norm(x, self.scale[...], self.bias[...], layer=self.name)


class Block(nnx.Module):
    def __init__(self, *, rngs, products=None):
        how = {"rngs": rngs, "products": products}
        self.norm_1, self.norm_2 = Norm("qkv", products=products), Norm("ff1", products=products)
        self.qkv = Dense("qkv", DIM, (HEADS, 3, HEAD_DIM), **how)  # head by head: splitting it moves nothing
        self.out, self.ff1 = Dense("out", DIM, (DIM,), **how), Dense("ff1", DIM, (4 * DIM,), **how)
        self.ff2 = Dense("ff2", 4 * DIM, (DIM,), **how)

    def __call__(self, x):
        query, key, value = jnp.moveaxis(self.qkv(self.norm_1(x)), 3, 0)
        attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.reshape(x.shape))
        return x + self.ff2(jax.nn.gelu(self.ff1(self.norm_2(x))))


@nnx.jit
def step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - jnp.sin(x)) ** 2))(model)
    optimizer.update(model, grads)
    return loss


if __name__ == "__main__":
    x = jax.random.normal(jax.random.key(1), (BATCH, LENGTH, DIM))
    for where, products in {"a 2x2x2 mesh": PRODUCTS, "one device": None}.items():
        model = Block(rngs=nnx.Rngs(0), products=products)
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        print(f"losses on {where}:", *(f"{step(model, optimizer, x):.4f}" for _ in range(5)))
