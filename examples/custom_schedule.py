"""A custom schedule: rows of tasks, checked before anything is compiled, then run and measured."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxquard as jq
from jaxquard.errors import ScheduleError
from jaxquard.schedules import Custom, play_rows

jax.config.update("jax_platforms", "cpu")  # leave this out on a machine with 2 GPUs

# A line for each actor. `0F3`: stage 0, forward, microbatch 3. `B` is a whole backward; `I` and `W` are its
# halves, the gradients of the stage's inputs and of its weights. Actor 1 puts its weight gradients off, so
# that actor 0 gets what it waits for earlier.
ROWS = [
    "0F0, 0F1, 0F2, 0B0, 0F3, 0B1, 0B2, 0B3",
    "1F0, 1I0, 1F1, 1I1, 1W0, 1F2, 1I2, 1W1, 1F3, 1I3, 1W2, 1W3",
]
SCHEDULE = Custom(ROWS)


def loss_fn(params, x):
    hidden = jq.pipeline_yield(jnp.tanh(x @ params[0]))
    return jnp.mean((hidden @ params[1]) ** 2)


def train_step(params, batch):
    def microbatch_grads(x):
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, SCHEDULE)(batch)
    return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), losses


def main():
    played = play_rows(SCHEDULE.rows(4))
    print(f"ideal: bubble {played.bubble:.1%}, at most {max(played.peak_activations)} activations kept")

    key = jax.random.key(0)
    params = [jax.random.normal(key, (256, 256)) / 16 for key in jax.random.split(key)]
    batch = jax.random.normal(key, (4, 64, 256))  # 4 microbatches, as the rows say
    step = jq.RemoteMesh((2,)).distributed(train_step, donate_argnums=(0,), measure=True)
    for _ in range(3):
        params, losses = step(params, batch)
    print("losses of the microbatches:", np.round(np.asarray(losses), 4))

    tasks = [span for span in step.timeline().spans if span.track.value == "compute"]
    for actor in range(2):
        print(f"actor {actor} ran", *(span.name for span in tasks if span.actor == actor))

    try:  # what cannot run is refused at once, with the tasks named
        Custom(["0F0, 0B0, 0F1, 0B1", "1F1, 1B1, 1F0, 1B0"])
    except ScheduleError as error:
        print("refused:", error)


if __name__ == "__main__":
    main()
