"""The program that `benchmarks/faults.py` disturbs: trains a small GPT on actors that are processes.

It restarts lost actors itself, and dies of everything else; then `jaxquard run` starts it again. Each line on stdout is
an event: the loss of a step, with every bit, or what happens now.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import jaxquard as jq
from jaxquard.models import gpt

CONFIG = gpt.GptConfig(
    vocab_size=32, num_layers=2, num_heads=2, model_dim=16, sequence_length=8, dtype=jnp.float32, tied_embeddings=True
)
SAVE_EVERY = 2
optimizer = optax.adamw(1e-3)


def init_state(key: Any) -> Any:
    params = gpt.init(key, CONFIG)
    return {"params": params, "opt": optimizer.init(params)}


def train_step(state: Any, batch: Any) -> Any:
    def microbatch_grads(microbatch: Any) -> Any:
        loss, grads = jax.value_and_grad(gpt.loss)(
            state["params"], microbatch, CONFIG, mark=jq.pipeline_yield, num_stages=2
        )
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, jnp.mean(losses)


def batch_of(number: int) -> Any:
    return gpt.synthetic_batch(jax.random.key(number), CONFIG, num_microbatches=2, microbatch_size=2)


def say(*words: object) -> None:
    print(*words, flush=True)


def is_last(number: int, folder: Path) -> bool:
    """Says whether training ends after so many steps: those that the file `num_steps` has, once it is there."""
    path = folder / "num_steps"
    return path.exists() and number >= int(path.read_text())


def train(mesh: jq.RemoteMesh, step: Any, checkpoints: jq.Checkpoints, folder: Path, *, pause_s: float) -> None:
    """Goes from the last whole checkpoint to the end."""
    number, state = checkpoints.restore(like=mesh.init(init_state, jax.random.key(0)))
    say("from", number)
    while not is_last(number, folder):
        state, loss = step(state, batch_of(number))
        say("step", number, float(loss).hex())
        time.sleep(pause_s)
        number += 1
        if number % SAVE_EVERY == 0:
            say("saving", number)
        checkpoints.after_step(number, state)
    checkpoints.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    parser.add_argument("--runtime", default="ray")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", str(args.folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    options = {"heartbeat_timeout_s": 3.0} if args.runtime == "ray" else {}
    with (
        jq.Checkpoints(args.folder / "checkpoints", keep=3, every=SAVE_EVERY) as checkpoints,
        jq.RemoteMesh((2,), runtime=args.runtime, **options) as mesh,
    ):
        step = mesh.distributed(train_step, donate_argnums=(0,))
        while True:
            try:
                mesh.restart()
                train(mesh, step, checkpoints, args.folder, pause_s=args.pause)
                return
            except jq.errors.ActorFailed as error:
                if not error.is_lost:
                    raise
                say("restarting", error)


if __name__ == "__main__":
    main()
