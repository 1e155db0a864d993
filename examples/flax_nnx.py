"""A Flax NNX model as a pipeline: its code gets a mark, its step the split that `jax.jit` needs too."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxquard as jq

jax.config.update("jax_platforms", "cpu")  # leave this out on a machine with 2 GPUs


class Block(nnx.Module):
    def __init__(self, dim, *, rngs):
        self.norm = nnx.LayerNorm(dim, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, dim, decode=False, rngs=rngs)
        self.up = nnx.Linear(dim, 4 * dim, rngs=rngs)
        self.down = nnx.Linear(4 * dim, dim, rngs=rngs)

    def __call__(self, hidden):
        hidden = hidden + self.attention(self.norm(hidden))
        return hidden + self.down(nnx.gelu(self.up(hidden)))


class Model(nnx.Module):
    def __init__(self, *, rngs):
        self.first, self.second = Block(32, rngs=rngs), Block(32, rngs=rngs)
        self.head = nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, inputs):
        hidden = jq.pipeline_yield(self.first(inputs))  # the first stage ends here
        return self.head(self.second(hidden))


graph, PARAMS = nnx.split(Model(rngs=nnx.Rngs(0)))
optimizer = optax.adam(1e-2)


def loss_fn(params, microbatch):
    predicted = nnx.merge(graph, params)(microbatch["inputs"])
    return jnp.mean((predicted - microbatch["targets"]) ** 2)


def train_step(params, opt, batch):
    def microbatch_grads(microbatch):
        loss, grads = jax.value_and_grad(loss_fn)(params, microbatch)
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)
    updates, opt = optimizer.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, jnp.mean(losses)


def train(step, batch):
    params, opt, losses = PARAMS, optimizer.init(PARAMS), []
    for _ in range(5):
        params, opt, loss = step(params, opt, batch)
        losses.append(float(np.asarray(loss)))
    return losses


def main():
    inputs = jax.random.normal(jax.random.key(1), (4, 8, 16, 32))
    batch = {"inputs": inputs, "targets": jnp.sin(inputs[..., :8])}
    pipelined = train(jq.RemoteMesh((2,)).distributed(train_step), batch)
    plain = train(jax.jit(train_step), batch)
    np.testing.assert_allclose(pipelined, plain, rtol=1e-4)
    print("losses on 2 actors:", *(f"{loss:.4f}" for loss in pipelined))
    print("losses in one jit: ", *(f"{loss:.4f}" for loss in plain))


if __name__ == "__main__":
    main()
