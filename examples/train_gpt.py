"""Trains a small GPT as a pipeline of 4 stages, each on 2 devices that share the batch.

Everything is plain JAX and optax but three things: the marks, `accumulate_grads` and the mesh.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jaxquard as jq
from jaxquard.models import gpt

jax.config.update("jax_platforms", "cpu")  # 8 virtual CPU devices; leave this out on a machine with 8 GPUs

CONFIG = gpt.GptConfig(
    vocab_size=64, num_layers=4, num_heads=4, model_dim=64, sequence_length=32, dtype=jnp.float32, tied_embeddings=True
)
SCHEDULE = jq.schedules.OneFOneB(4)
optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 3e-3, warmup_steps=5, decay_steps=50)),
)


def init_state(key):
    params = gpt.init(key, CONFIG)
    return {"params": params, "opt": optimizer.init(params)}


def loss_fn(params, microbatch):
    # The model calls the mark three times: 4 stages, one layer each. The embedding is tied to the head, so the
    # first and the last stage share a weight; nothing has to be said about that.
    return gpt.loss(params, microbatch, CONFIG, mark=jq.pipeline_yield, num_stages=4)


def train_step(state, batch):
    def microbatch_grads(microbatch):
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], microbatch)
        return grads, loss

    # Gradients are summed over the microbatches, losses stacked.
    grads, losses = jq.accumulate_grads(microbatch_grads, SCHEDULE)(batch)
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, jnp.mean(losses)


def main():
    batch = gpt.synthetic_batch(jax.random.key(1), CONFIG, num_microbatches=8, microbatch_size=4)

    mesh = jq.RemoteMesh((4,), spmd_mesh=(2,), spmd_axis_names=("data",))
    state = mesh.init(init_state, jax.random.key(0))  # each actor builds its own part
    step = mesh.distributed(
        train_step,
        in_shardings=(None, P(None, "data")),  # dim 0 is the microbatch, dim 1 the batch
        donate_argnums=(0,),
    )
    for number in range(10):
        state, loss = step(state, batch)  # returns at once; `loss` is a handle until it is read
        print(f"step {number}: loss {np.asarray(loss):.4f}")

    embedding = state["params"]["embedding"]["tokens"]
    print(f"{embedding} is now {np.asarray(embedding).std():.4f} wide")


if __name__ == "__main__":
    main()
