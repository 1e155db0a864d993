"""Finds how to shard a plain training step over 8 virtual devices, by measuring, and trains with it.

    python examples/shard_mlp.py

The step has no annotations. The search times its parts under every sharding (a few seconds; the second time at once, as
the prices are kept in ~/.cache/jaxquard), prints what it chose, and the sharded step then takes the plain one's place.
"""

import jax
import jax.numpy as jnp
import optax

import jaxquard as jq

optimizer = optax.adam(1e-3)


def loss_fn(params, batch):
    hidden = jax.nn.relu(batch["x"] @ params["up"])
    return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


def train_step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
    updates, opt = optimizer.update(grads, state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, loss


def init_state(key):
    up, down = jax.random.split(key)
    params = {"up": jax.random.normal(up, (128, 1024)) / 11, "down": jax.random.normal(down, (1024, 128)) / 32}
    return {"params": params, "opt": optimizer.init(params)}


def train(step, state, batch, num_steps=5):
    losses = []
    for _ in range(num_steps):
        state, loss = step(state, batch)
        losses.append(float(loss))
    return state, losses


def main():
    jax.config.update("jax_platforms", "cpu")  # leave these out on a machine with 8 GPUs
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((8,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.random.normal(jax.random.key(1), (64, 128))
    state, batch = init_state(jax.random.key(0)), {"x": x, "y": jnp.sin(x)}
    expected = train(jax.jit(train_step), state, batch)[1]

    found = jq.search_sharding(train_step, (state, batch), mesh=mesh)
    print(found)

    state, losses = train(found.apply(train_step), found.shard(state), batch)
    for name, weight in state["params"].items():
        print(f"{name}: {weight.shape} sharded as {weight.sharding.spec}")
    print("losses, sharded:   ", *(f"{loss:.5f}" for loss in losses))
    print("losses, in one jit:", *(f"{loss:.5f}" for loss in expected))


if __name__ == "__main__":
    main()
