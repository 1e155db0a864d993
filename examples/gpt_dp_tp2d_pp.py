"""Trains a small GPT by data parallelism x 2D tensor parallelism x pipeline: 2 actors of 2x2x2 devices, 16 in all.

Each actor has a stage. On its mesh (dp, rows, columns) two replicas share the batch, and each multiplies on a 2x2 mesh.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import jaxquard as jq
from jaxquard import gemm
from jaxquard.models import gpt

jax.config.update("jax_platforms", "cpu")  # leave this and the next line out on a machine with 16 GPUs or TPUs
jax.config.update("jax_num_cpu_devices", 16)

CONFIG = gpt.GptConfig(vocab_size=64, num_layers=4, num_heads=4, model_dim=64, sequence_length=16, dtype=jnp.float32)
NUM_STAGES, NUM_MICROBATCHES, MICROBATCH_SIZE = 2, 4, 4
AXES = ("dp", "rows", "columns")
PROBLEM = gemm.transformer_block(CONFIG.model_dim, num_rows=MICROBATCH_SIZE * CONFIG.sequence_length // 2)
PLAN = gemm.autotune(PROBLEM, "tpu-v4", num_chips=4, mesh_shape=(2, 2)).plan
MESH = AbstractMesh((2, 2, 2), AXES, axis_types=(AxisType.Auto,) * 3)  # the shape of every actor's mesh
PRODUCTS = gemm.products(PLAN, mesh=MESH, axis_names=("rows", "columns"))
optimizer = optax.adam(1e-2)


def init_state(key):
    params = gpt.init(key, CONFIG)
    return {"params": params, "opt": optimizer.init(params)}


def update(state, grads):
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}


def train_step(state, batch):
    def microbatch_grads(microbatch):
        def loss_fn(params):
            stages = {"mark": jq.pipeline_yield, "num_stages": NUM_STAGES}
            return gpt.loss(params, microbatch, CONFIG, products=PRODUCTS, **stages)

        loss, grads = jax.value_and_grad(loss_fn)(state["params"])
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(NUM_STAGES))(batch)
    return update(state, grads), jnp.mean(losses)


@jax.jit
def plain_step(state, batch):
    """The same on one device: gradients are summed over the microbatches."""

    def loss_fn(params):
        return jnp.sum(jax.vmap(lambda microbatch: gpt.loss(params, microbatch, CONFIG))(batch))

    loss, grads = jax.value_and_grad(loss_fn)(state["params"])
    return update(state, grads), loss / NUM_MICROBATCHES


if __name__ == "__main__":
    sizes = {"num_microbatches": NUM_MICROBATCHES, "microbatch_size": MICROBATCH_SIZE}
    batch = gpt.synthetic_batch(jax.random.key(1), CONFIG, **sizes)
    state = plain_state = jax.jit(init_state)(jax.random.key(0))
    shardings = gpt.shardings(state["params"], PRODUCTS)  # Adam's moments lie as their parameters
    specs = optax.tree.map_params(
        optimizer, lambda _, spec: spec, state["opt"], shardings, transform_non_params=lambda _: P()
    )
    with jq.RemoteMesh((NUM_STAGES,), spmd_mesh=(2, 2, 2), spmd_axis_names=AXES) as mesh:
        in_shardings = ({"params": shardings, "opt": specs}, P(None, ("dp", "rows")))
        step = mesh.distributed(train_step, in_shardings=in_shardings)
        for number in range(4):
            (state, loss), (plain_state, expected) = step(state, batch), plain_step(plain_state, batch)
            print(f"step {number}: loss {np.asarray(loss):.5f} on 16 devices, {expected:.5f} on one")
