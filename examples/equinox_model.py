"""An Equinox model as a pipeline: its code gets a mark, its step the split that `jax.jit` needs too."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxquard as jq

jax.config.update("jax_platforms", "cpu")  # leave this out on a machine with 2 GPUs


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, dim, *, key):
        attention_key, mlp_key = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(dim)
        self.attention = eqx.nn.MultiheadAttention(4, dim, key=attention_key)
        self.mlp = eqx.nn.MLP(dim, dim, 4 * dim, depth=1, activation=jax.nn.gelu, key=mlp_key)

    def __call__(self, hidden):  # (sequence, dim)
        normed = jax.vmap(self.norm)(hidden)
        hidden = hidden + self.attention(normed, normed, normed)
        return hidden + jax.vmap(self.mlp)(hidden)


class Model(eqx.Module):
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, *, key):
        keys = jax.random.split(key, 3)
        self.blocks = [Block(32, key=keys[0]), Block(32, key=keys[1])]
        self.head = eqx.nn.Linear(32, 8, key=keys[2])

    def __call__(self, inputs):  # (batch, sequence, dim)
        hidden = jax.vmap(self.blocks[0])(inputs)
        hidden = jq.pipeline_yield(hidden)  # the first stage ends here
        return jax.vmap(jax.vmap(self.head))(jax.vmap(self.blocks[1])(hidden))


PARAMS, static = eqx.partition(Model(key=jax.random.key(0)), eqx.is_array)
optimizer = optax.adam(1e-2)


def loss_fn(params, microbatch):
    predicted = eqx.combine(params, static)(microbatch["inputs"])
    return jnp.mean((predicted - microbatch["targets"]) ** 2)


def train_step(params, opt, batch):
    def microbatch_grads(microbatch):
        loss, grads = jax.value_and_grad(loss_fn)(params, microbatch)
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)
    updates, opt = optimizer.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, jnp.mean(losses)


def main():
    inputs = jax.random.normal(jax.random.key(1), (4, 8, 16, 32))
    batch = {"inputs": inputs, "targets": jnp.sin(inputs[..., :8])}
    on_actors = jq.RemoteMesh((2,)).distributed(train_step)
    for name, step in {"on 2 actors": on_actors, "in one jit": jax.jit(train_step)}.items():
        params, opt = PARAMS, optimizer.init(PARAMS)
        for _ in range(5):
            params, opt, loss = step(params, opt, batch)
        print(f"loss after 5 steps {name}: {np.asarray(loss):.5f}")


if __name__ == "__main__":
    main()
