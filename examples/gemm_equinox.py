"""An Equinox MLP whose two layers are 2D tensor parallel: a layer of its own calls `gemm.matmul`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxquard import gemm

jax.config.update("jax_platforms", "cpu")  # leave this and the next line out on a machine with 8 GPUs or TPUs
jax.config.update("jax_num_cpu_devices", 8)

ROWS, DIM, HIDDEN = 64, 128, 512
MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("rows", "columns"))


class Linear(eqx.Module):
    """`x @ weight` in slices: the largest of its matrices stays where it is."""

    weight: jax.Array
    stationary: str = eqx.field(static=True)

    def __init__(self, in_features, out_features, *, stationary, key):
        self.weight = jax.random.normal(key, (in_features, out_features)) / np.sqrt(in_features)
        self.stationary = stationary

    def __call__(self, x):  # (rows, features)
        if self.stationary == "plain":
            return x @ self.weight
        return gemm.matmul(x, self.weight, mesh=MESH, stationary=self.stationary, slices=2)


class MLP(eqx.Module):
    up: Linear
    down: Linear

    def __init__(self, *, stationary, key):
        up_key, down_key = jax.random.split(key)
        self.up = Linear(DIM, HIDDEN, stationary=stationary[0], key=up_key)
        self.down = Linear(HIDDEN, DIM, stationary=stationary[1], key=down_key)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


optimizer = optax.adam(1e-2)


@eqx.filter_jit
def step(model, opt, x):
    loss, grads = eqx.filter_value_and_grad(lambda model: jnp.mean((model(x) - jnp.sin(x)) ** 2))(model)
    updates, opt = optimizer.update(grads, opt)
    return eqx.apply_updates(model, updates), opt, loss


def main():
    x = jax.random.normal(jax.random.key(1), (ROWS, DIM))
    for name, stationary in {"on a 4x2 mesh": ("y", "x"), "on one device": ("plain", "plain")}.items():
        model = MLP(stationary=stationary, key=jax.random.key(0))
        opt = optimizer.init(eqx.filter(model, eqx.is_array))
        for _ in range(5):
            model, opt, loss = step(model, opt, x)
        print(f"loss after 5 steps {name}: {loss:.5f}")


if __name__ == "__main__":
    main()
