"""A Flax model with batch statistics as a pipeline: each stage carries its own from microbatch to microbatch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jaxquard as jq

jax.config.update("jax_platforms", "cpu")  # leave this out on a machine with 2 GPUs


class Block(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, inputs):
        hidden = nn.Conv(self.channels, (3, 3), use_bias=False)(inputs)
        hidden = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(hidden))
        hidden = nn.Conv(self.channels, (3, 3), use_bias=False)(hidden)
        return nn.relu(inputs + nn.BatchNorm(use_running_average=False, momentum=0.9)(hidden))


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, images):
        hidden = Block(8)(nn.Conv(8, (3, 3))(images))
        hidden = jq.pipeline_yield(hidden)  # the first stage ends here
        return nn.Dense(4)(jnp.mean(Block(8)(hidden), axis=(1, 2)))


model, optimizer = ResNet(), optax.adam(1e-2)


def init(key, images):
    variables = model.init(key, images)
    return {"opt": optimizer.init(variables["params"]), **variables}


def loss_fn(params, stats, microbatch):
    variables = {"params": params, "batch_stats": stats}
    logits, updated = model.apply(variables, microbatch["images"], mutable=["batch_stats"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, microbatch["labels"]).mean()
    return loss, updated["batch_stats"]


def train_step(state, batch):
    def microbatch_grads(stats, microbatch):
        (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state["params"], stats, microbatch)
        return stats, (grads, loss)

    loop = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2), reduce="mean", carry=state["batch_stats"])
    stats, (grads, loss) = loop(batch)
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "batch_stats": stats}, loss


def train(step, state, batch):
    losses = []
    for _ in range(3):
        state, loss = step(state, batch)
        losses.append(float(np.asarray(loss)))
    return losses, jax.tree.map(np.asarray, state["batch_stats"])


def main():
    images = jax.random.normal(jax.random.key(1), (4, 8, 8, 8, 3))  # 4 microbatches of 8 images
    batch = {"images": images, "labels": jnp.argmax(jnp.mean(images, axis=(2, 3)), axis=-1)}
    state = jax.jit(init)(jax.random.key(0), images[0])
    losses, stats = train(jq.RemoteMesh((2,)).distributed(train_step), state, batch)
    plain_losses, plain_stats = train(jax.jit(train_step), state, batch)
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, 1e-3, 1e-4), stats, plain_stats)
    print("losses on 2 actors:", *(f"{loss:.3f}" for loss in losses))
    print("losses in one jit: ", *(f"{loss:.3f}" for loss in plain_losses))


if __name__ == "__main__":
    main()
