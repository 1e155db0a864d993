"""A Flax NNX MLP whose two layers are 2D tensor parallel: only the product in `__call__` changes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard import gemm

jax.config.update("jax_platforms", "cpu")  # leave this and the next line out on a machine with 8 GPUs or TPUs
jax.config.update("jax_num_cpu_devices", 8)

ROWS, DIM, HIDDEN = 64, 128, 512
PROBLEM = gemm.GemmProblem(
    layers=(
        gemm.FcLayer(name="up", in_features=DIM, out_features=HIDDEN),
        gemm.FcLayer(name="down", in_features=HIDDEN, out_features=DIM),
    ),
    num_rows=ROWS,
)
PLAN = gemm.autotune(PROBLEM, "tpu-v4", num_chips=8, mesh_shape=(4, 2)).plan
MESH = Mesh(np.array(jax.devices()).reshape(PLAN.mesh_shape), ("rows", "columns"))


class Linear(nnx.Module):
    """`x @ kernel` by the plan of the layer with this name, or plainly."""

    def __init__(self, name, in_features, out_features, *, rngs, is_planned):
        kernel = jax.random.normal(rngs.params(), (in_features, out_features)) / np.sqrt(in_features)
        self.kernel = nnx.Param(kernel)
        self.name, self.is_planned = name, is_planned

    def __call__(self, x):
        if not self.is_planned:
            return x @ self.kernel[...]
        return gemm.matmul(x, self.kernel[...], mesh=MESH, plan=PLAN, layer=self.name)


class MLP(nnx.Module):
    def __init__(self, *, rngs, is_planned):
        self.up = Linear("up", DIM, HIDDEN, rngs=rngs, is_planned=is_planned)
        self.down = Linear("down", HIDDEN, DIM, rngs=rngs, is_planned=is_planned)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


def train(*, is_planned):
    model = MLP(rngs=nnx.Rngs(0), is_planned=is_planned)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - jnp.sin(x)) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    x = jax.random.normal(jax.random.key(1), (ROWS, DIM))
    if is_planned:
        x = jax.device_put(x, NamedSharding(MESH, PartitionSpec("rows", "columns")))
    return [float(step(model, optimizer, x)) for _ in range(5)]


if __name__ == "__main__":
    rows, columns = PLAN.mesh_shape
    print(f"losses on a {rows}x{columns} mesh:", *(f"{loss:.4f}" for loss in train(is_planned=True)))
    print("losses on one device:", *(f"{loss:.4f}" for loss in train(is_planned=False)))
