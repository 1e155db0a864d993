"""Layers that are stacked for `lax.scan`: `pipeline_scan` splits the scan, each actor keeps only its own layers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxquard as jq

jax.config.update("jax_platforms", "cpu")  # leave this out on a machine with 4 GPUs

NUM_LAYERS, DIM = 8, 64
optimizer = optax.adamw(2e-3)


def init_state(key):
    layers_key, head_key = jax.random.split(key)
    params = {
        "layers": {  # every leaf has the layers as its first dim
            "kernel": jax.random.normal(layers_key, (NUM_LAYERS, DIM, DIM)) * DIM**-0.5,
            "bias": jnp.zeros((NUM_LAYERS, DIM)),
        },
        "head": jax.random.normal(head_key, (DIM, 1)) * DIM**-0.5,
    }
    return {"params": params, "opt": optimizer.init(params)}


def loss_fn(params, microbatch):
    def layer(hidden, layer_params):
        return hidden + jnp.tanh(hidden @ layer_params["kernel"] + layer_params["bias"]), None

    # As lax.scan(layer, inputs, params["layers"]), with a mark after every second layer.
    hidden, _ = jq.pipeline_scan(layer, microbatch["inputs"], params["layers"], num_stages=4)
    return jnp.mean((hidden @ params["head"] - microbatch["targets"]) ** 2)


def train_step(state, batch):
    def microbatch_grads(microbatch):
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], microbatch)
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.ZeroBubbleH1(4))(batch)
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, jnp.mean(losses)


def main():
    inputs = jax.random.normal(jax.random.key(1), (8, 16, DIM))
    batch = {"inputs": inputs, "targets": jnp.sin(inputs[..., :1])}

    mesh = jq.RemoteMesh((4,))
    state = mesh.init(init_state, jax.random.key(0))
    step = mesh.distributed(train_step, donate_argnums=(0,))
    for number in range(5):
        state, loss = step(state, batch)
        print(f"step {number}: loss {np.asarray(loss):.4f}")

    kernel = state["params"]["layers"]["kernel"]
    for part in kernel.placement:
        print(f"actor {part.actors[0]} holds layers {part.start} to {part.stop - 1} of {kernel.shape}")


if __name__ == "__main__":
    main()
