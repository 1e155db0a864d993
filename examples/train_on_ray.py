"""Trains the GPT of train_gpt.py on actors that are processes, and goes on when one of them is lost.

Kill an actor (`kill -9` a process called ray::Worker), or this program and start it again: training goes on from the
last checkpoint, with the losses of a run that nothing has disturbed. SIGTERM (preemption) saves the step at which it
comes, and ends the program with exit code 75.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from train_gpt import CONFIG, init_state, train_step

import jaxquard as jq
from jaxquard.models import gpt

SAVE_EVERY = 5


def batch_of(number):
    """Every step has a batch of its own, the same whenever it is asked for."""
    return gpt.synthetic_batch(jax.random.key(number), CONFIG, num_microbatches=8, microbatch_size=4)


def train(mesh, step, checkpoints, num_steps):
    """Goes from the last whole checkpoint to the end."""
    # Nothing of the initial state is computed before a step takes it.
    start, state = checkpoints.restore(like=mesh.init(init_state, jax.random.key(0)))
    for number in range(start, num_steps):
        state, loss = step(state, batch_of(number))
        print(f"step {number}: loss {np.asarray(loss):.6f}", flush=True)
        checkpoints.after_step(number + 1, state)  # saves now and then, written while the next steps run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", help='a Ray cluster: "auto", "head:6379"; without it, Ray is started here')
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="on a disk that all hosts share")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    with (
        jq.RemoteMesh((4,), (2,), ("data",), runtime="ray", address=args.address) as mesh,
        jq.Checkpoints(args.folder, keep=3, every=SAVE_EVERY) as checkpoints,
    ):
        step = mesh.distributed(train_step, in_shardings=(None, P(None, "data")), donate_argnums=(0,))
        while True:
            try:
                mesh.restart()  # starts and compiles again what was lost, if anything
                train(mesh, step, checkpoints, args.steps)
                return
            except jq.errors.ActorFailed as error:
                if not error.is_lost:  # a task that fails would fail again
                    raise
                print(f"lost actor {error.actor}: {error}", flush=True)


if __name__ == "__main__":
    main()
