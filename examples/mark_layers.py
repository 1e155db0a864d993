"""A model that one did not write as a pipeline: its layers are marked from outside, by their paths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jaxquard as jq

jax.config.update("jax_platforms", "cpu")  # leave this out on a machine with 2 GPUs


class Block(nn.Module):
    @nn.compact
    def __call__(self, hidden, _=None):
        normed = nn.LayerNorm()(hidden)
        return hidden + nn.Dense(32)(nn.gelu(nn.Dense(128)(normed))), None


class Model(nn.Module):
    """Four layers that are recomputed in the backward, one by one or as a scan; there is no mark here."""

    is_scanned: bool

    @nn.compact
    def __call__(self, hidden):
        if self.is_scanned:
            layers = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
            hidden, _ = layers(name="blocks")(hidden, None)
        else:
            for number in range(4):
                hidden, _ = nn.remat(Block)(name=f"block_{number}")(hidden)
        return nn.Dense(8, name="head")(hidden)


def train(model, where, batch):
    """Returns the losses of a few steps in one jit (`where=""`), or on 2 actors."""
    optimizer = optax.adam(1e-2)

    def loss_fn(params, microbatch):
        return jnp.mean((model.apply(params, microbatch["inputs"]) - microbatch["targets"]) ** 2)

    marked = jq.mark_layers(loss_fn, where, num_stages=2) if where else loss_fn
    schedule = jq.schedules.OneFOneB(2)

    def train_step(params, opt, batch):
        def microbatch_grads(microbatch):
            loss, grads = jax.value_and_grad(marked)(params, microbatch)
            return grads, loss

        grads, losses = jq.accumulate_grads(microbatch_grads, schedule)(batch)
        updates, opt = optimizer.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, jnp.mean(losses)

    step = jq.RemoteMesh((2,)).distributed(train_step) if where else jax.jit(train_step)
    params = jax.jit(model.init)(jax.random.key(0), batch["inputs"][0])
    opt, losses = optimizer.init(params), []
    for _ in range(3):
        params, opt, loss = step(params, opt, batch)
        losses.append(float(np.asarray(loss)))
    return losses


def main():
    inputs = jax.random.normal(jax.random.key(1), (4, 8, 32))
    batch = {"inputs": inputs, "targets": jnp.sin(inputs[..., :8])}
    for is_scanned, where in ((False, "block_*"), (True, "blocks[*]")):
        model = Model(is_scanned=is_scanned)
        pipelined, plain = train(model, where, batch), train(model, "", batch)
        np.testing.assert_allclose(pipelined, plain, rtol=1e-4)
        print(f"losses on 2 actors, marked at {where}:", *(f"{loss:.4f}" for loss in pipelined))
        print("losses in one jit:", *(f"{loss:.4f}" for loss in plain))


if __name__ == "__main__":
    main()
