"""Trains a small GPT under the plan that jaxquard finds for the devices at hand: no marks, no specs, no schedule.

python examples/parallelize.py                    8 virtual CPU devices, in this process
python examples/parallelize.py --runtime ray      the actors are processes
python examples/parallelize.py --plan plan.json   takes the plan of an earlier run, or keeps the one that is found
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import jaxquard as jq
from jaxquard.models import gpt

CONFIG = gpt.GptConfig(
    vocab_size=64, num_layers=4, num_heads=4, model_dim=64, sequence_length=32, dtype=jnp.float32, tied_embeddings=True
)
NUM_ROWS = 32


def main():
    options = read_options()
    jax.config.update("jax_platforms", "cpu")  # Leave both lines out on a machine with accelerators.
    jax.config.update("jax_num_cpu_devices", options.devices)
    saved = jq.load_plan(options.plan) if options.plan and options.plan.exists() else None
    search = {} if saved else {"num_measured": options.measured, "time_budget_s": 120}

    # start of the program
    def loss(params, batch):
        return gpt.loss(params, batch, CONFIG)

    def init(key):
        return gpt.init(key, CONFIG)

    optimizer = optax.adam(3e-3)
    batch = first_batch()
    with jq.parallelize(
        loss,
        optimizer,
        (jax.eval_shape(init, jax.random.key(0)), batch),
        devices=options.devices,
        runtime=options.runtime,
        plan=saved,
        **search,
    ) as run:
        print(run.plan)
        state = run.init(init, jax.random.key(0))  # each actor builds its own part
        for number in range(options.steps):
            state, metrics = run.step(state, batch)
            print(f"step {number}: loss {float(metrics['loss']):.3f}")
    # end of the program

    if options.plan and not saved:
        run.plan.save(options.plan)


def first_batch():
    microbatches = gpt.synthetic_batch(jax.random.key(1), CONFIG, num_microbatches=1, microbatch_size=NUM_ROWS)
    return jax.tree.map(lambda leaf: leaf[0], microbatches)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--runtime", choices=("in_process", "ray"), default="in_process")
    parser.add_argument("--plan", type=Path, help="a file to take the plan from, or to keep it in")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--measured", type=int, default=4, help="plans that run before one is chosen")
    return parser.parse_args()


if __name__ == "__main__":
    main()
