"""Trains a small pipeline that survives crashes and preemption, under the supervisor:

    jaxquard run --progress checkpoints examples/train_and_resume.py

Kill it (`kill -9`) at any moment: it is started again, and continues from the last checkpoint with the same losses. On
SIGTERM it saves once more and ends with exit code 75; the same command then goes on.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxquard as jq

jax.config.update("jax_platforms", "cpu")

optimizer = optax.adamw(3e-3)


def init_state(key):
    params = [0.3 * jax.random.normal(key, (32, 32)) for key in jax.random.split(key)]
    return {"params": params, "opt": optimizer.init(params)}


def loss_fn(params, microbatch):
    hidden = jq.pipeline_yield(jnp.tanh(microbatch @ params[0]))
    return jnp.mean((jnp.tanh(hidden @ params[1]) - jnp.sin(3 * microbatch)) ** 2)


def train_step(state, batch):
    def microbatch_grads(microbatch):
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], microbatch)
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, jnp.mean(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step, to have time for a kill")
    args = parser.parse_args()

    mesh = jq.RemoteMesh((2,))
    step = mesh.distributed(train_step, donate_argnums=(0,))
    with jq.Checkpoints(args.folder, keep=3, every=5) as checkpoints:
        start, state = checkpoints.restore(like=mesh.init(init_state, jax.random.key(0)))
        for number in range(start, args.steps):
            batch = jax.random.normal(jax.random.key(number), (4, 16, 32))  # found by the number of the step
            state, loss = step(state, batch)
            print(f"step {number}: loss {np.asarray(loss):.9f}", flush=True)
            checkpoints.after_step(number + 1, state)  # saves every fifth, and ends the program after SIGTERM
            time.sleep(args.pause)


if __name__ == "__main__":
    main()
