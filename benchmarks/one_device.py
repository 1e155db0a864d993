"""A GPT of about 1B parameters on one accelerator: four actors that share it, relative to one jit.

The baseline is what one writes by hand: one `jax.jit` of a `lax.scan` over the microbatches that sums the gradients,
with the same rematerialization, optimizer and donation. Both train the same model on the same data; their losses are
compared first. On a CPU a small GPT stands in.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import optax

import jaxquard as jq
from benchmarks.measure import measure, print_ratios
from jaxquard.models import gpt

NUM_STAGES = 4
TARGET = 1.02


def make_optimizer() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))


def init_state(key, config):
    params = gpt.init(key, config)
    return {"params": params, "opt": make_optimizer().init(params)}


def apply_gradients(state, grads):
    updates, opt = make_optimizer().update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}


def pipelined_step(state, batch, *, config, schedule, remat):
    def microbatch_grads(microbatch):
        loss = functools.partial(
            gpt.loss, config=config, mark=jq.pipeline_yield, num_stages=schedule.num_stages, remat=remat
        )
        value, grads = jax.value_and_grad(loss)(state["params"], microbatch)
        return grads, value

    grads, losses = jq.accumulate_grads(microbatch_grads, schedule)(batch)
    return apply_gradients(state, grads), losses


def scanned_step(state, batch, *, config, remat):
    def add(total, microbatch):
        loss = functools.partial(gpt.loss, config=config, remat=remat)
        value, grads = jax.value_and_grad(loss)(state["params"], microbatch)
        return jax.tree.map(jnp.add, total, grads), value

    zeros = jax.tree.map(jnp.zeros_like, state["params"])
    grads, losses = jax.lax.scan(add, zeros, batch)
    return apply_gradients(state, grads), losses


class Trainer:
    """A step and the state that it carries along."""

    def __init__(self, step, state, batch):
        self.step, self.state, self.batch = step, state, batch

    def __call__(self):
        self.state, losses = self.step(self.state, self.batch)
        jax.block_until_ready((self.state, losses))
        return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--microbatch-size", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--no-remat", action="store_true")
    arguments, _ = parser.parse_known_args()
    on_cpu = jax.default_backend() == "cpu"
    config = gpt.SIZES["gpt-1b"]
    if on_cpu:
        config = gpt.GptConfig(vocab_size=512, num_layers=8, num_heads=4, model_dim=128, sequence_length=128)
    batch = gpt.synthetic_batch(
        jax.random.key(1),
        config,
        num_microbatches=arguments.microbatches,
        microbatch_size=2 if on_cpu else arguments.microbatch_size,
    )
    name = arguments.schedule
    schedule = jq.schedules.make_schedule(
        name,
        num_stages=NUM_STAGES * (2 if name in ("interleaved", "zero-bubble-v", "dual-pipe-v") else 1),
        num_actors=NUM_STAGES if name == "interleaved" else None,
    )
    remat = not arguments.no_remat
    mesh = jq.RemoteMesh((NUM_STAGES,), share_devices=True)
    ours = mesh.distributed(
        functools.partial(pipelined_step, config=config, schedule=schedule, remat=remat), donate_argnums=(0,)
    )
    baseline = jax.jit(functools.partial(scanned_step, config=config, remat=remat), donate_argnums=(0,))
    key = jax.random.key(0)
    trainers = {
        "one jit of a scan": Trainer(baseline, jax.jit(init_state, static_argnums=1)(key, config), batch),
        "jaxquard, 4 actors": Trainer(ours, mesh.init(functools.partial(init_state, config=config), key), batch),
    }
    losses = {name: jax.device_get(trainer()) for name, trainer in trainers.items()}
    for name, values in losses.items():
        print(f"{name}: losses {[round(float(value), 4) for value in values]}", flush=True)
    billions = gpt.num_parameters(config) / 1e9
    found = measure(trainers, num_rounds=arguments.rounds, num_warmups=2)
    print_ratios(
        found,
        title=f"{billions:.3f}B parameters, {schedule!r}, {arguments.microbatches} microbatches",
        base="one jit of a scan",
        at_most={"jaxquard, 4 actors": TARGET},
    )
    ours.measure = True
    trainers["jaxquard, 4 actors"]()
    timeline = ours.timeline()
    print(f"measured step {timeline.time_s * 1e3:.1f} ms, {len(timeline.spans)} spans")


if __name__ == "__main__":
    main()
