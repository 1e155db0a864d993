"""The first call of a distributed step and of `mesh.init`, as ratios to a jitted step and a jitted init.

A first call traces, plans and compiles; the models are so small that running takes next to nothing. Each measurement
is a process of its own, the two sides in turns, after a small compilation that loads the compiler. Beside the seconds
on the clock stand processor seconds, which other programs on a busy machine hardly change, and the number of programs
that XLA compiled.

    python -m benchmarks.first_call [--models gpt flax ...] [--rounds 1]
"""

import argparse
import functools
import importlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

AT_MOST = 1.3
NUM_MICROBATCHES = 8
KINDS = ("step", "init")
SIDES = ("jit", "jaxquard")
EXAMPLES = {"flax": "flax_nnx", "equinox": "equinox_model", "batch_norm": "flax_batch_norm"}
ZOO = ("gpt", "llama", "bert", "moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A training step with its state and a batch.

    Attributes:
        init: `key -> state`.
    """

    num_actors: int
    init: Callable[[Any], Any]
    step: Callable[[Any, Any], Any]
    batch: Any


def zoo_problem(name: str) -> Problem:
    """A small model of the zoo with 8 layers, on 4 actors."""
    import jax
    import optax

    import jaxquard as jq

    module = jq.models.zoo.MODELS[name]
    config = replace(module.SIZES[f"{name}-tiny"], num_layers=8)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))
    loss = functools.partial(module.loss, config=config, mark=jq.pipeline_yield, num_stages=4)

    def init(key: Any) -> Any:
        params = module.init(key, config)
        return params, optimizer.init(params)

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        loop = jq.accumulate_grads(
            lambda microbatch: jax.grad(loss)(params, microbatch), jq.schedules.OneFOneB(4), "mean"
        )
        updates, opt = optimizer.update(loop(batch), opt, params)
        return optax.apply_updates(params, updates), opt

    batch = module.synthetic_batch(jax.random.key(0), config, num_microbatches=NUM_MICROBATCHES, microbatch_size=2)
    return Problem(num_actors=4, init=init, step=step, batch=batch)


def example_problem(name: str) -> Problem:
    """The model of an example, on 2 actors."""
    import jax
    import jax.numpy as jnp

    sys.path.insert(0, "examples")
    example: Any = importlib.import_module(EXAMPLES[name])
    if name == "batch_norm":
        images = jnp.ones((4, 8, 8, 8, 3))
        batch = {"images": images, "labels": jnp.zeros((4, 8), jnp.int32)}
        return Problem(
            num_actors=2, init=lambda key: example.init(key, images[0]), step=example.train_step, batch=batch
        )

    def init(key: Any) -> Any:
        params = _flax_params(example, key) if name == "flax" else _equinox_params(example, key)
        return params, example.optimizer.init(params)

    batch = {"inputs": jnp.ones((4, 8, 16, 32)), "targets": jnp.ones((4, 8, 16, 8))}
    return Problem(
        num_actors=2,
        init=init,
        step=lambda state, batch: example.train_step(*state, batch)[:2],
        batch=jax.tree.map(jnp.asarray, batch),
    )


def _flax_params(example: Any, key: Any) -> Any:
    from flax import nnx

    return nnx.split(example.Model(rngs=nnx.Rngs(key)))[1]


def _equinox_params(example: Any, key: Any) -> Any:
    import equinox

    return equinox.filter(example.Model(key=key), equinox.is_array)


def run(model: str, kind: str, side: str) -> None:
    """Times one first call in this process, and prints it as JSON."""
    import jax
    import jax.numpy as jnp

    import jaxquard as jq

    problem = example_problem(model) if model in EXAMPLES else zoo_problem(model)
    key = jax.random.key(0)
    jax.jit(lambda x: jnp.tanh(x @ x).sum())(jnp.ones((8, 8))).block_until_ready()
    zeros = jax.tree.map(lambda type_: jnp.zeros(type_.shape, type_.dtype), jax.eval_shape(problem.init, key))
    compiled: list[float] = []
    mesh = jq.RemoteMesh((problem.num_actors,)) if side == "jaxquard" else None
    step = mesh.distributed(problem.step) if mesh else jax.jit(problem.step)
    if kind == "init" and mesh:
        jax.block_until_ready(step(zeros, problem.batch))

    def call() -> Any:
        if kind == "step":
            return step(zeros, problem.batch)
        return step(mesh.init(problem.init, key), problem.batch) if mesh else jax.jit(problem.init)(key)

    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(seconds) if event.endswith("backend_compile_duration") else None
    )
    clock_s, processor_s = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    found = {"clock_s": time.perf_counter() - clock_s, "processor_s": time.process_time() - processor_s}
    print(json.dumps({**found, "num_programs": len(compiled)}))


def measure(model: str, kind: str, side: str) -> dict[str, float]:
    """Runs one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.first_call", "--run", model, kind, side]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=(*ZOO, *EXAMPLES), default=(*ZOO, *EXAMPLES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--run", nargs=3, metavar=("MODEL", "KIND", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(*options.run)
        return
    table = Table(title="first calls")
    for heading in ("what", "model", "jit", "jaxquard", "ratio", "by processor", "programs"):
        table.add_column(heading)
    for kind in KINDS:
        ratios = [_add_row(table, model, kind, options.rounds) for model in options.models]
        means = [math.exp(statistics.fmean(map(math.log, column))) for column in zip(*ratios, strict=True)]
        verdict = "met" if means[0] <= AT_MOST else "missed"
        table.add_row(kind, "geometric mean", "", "", f"{means[0]:.2f}, {verdict} ({AT_MOST})", f"{means[1]:.2f}", "")
    Console().print(table)


def _add_row(table: Table, model: str, kind: str, num_rounds: int) -> tuple[float, float]:
    rounds = [{side: measure(model, kind, side) for side in SIDES} for _ in range(num_rounds)]

    def median(side: str, what: str) -> float:
        return statistics.median(found[side][what] for found in rounds)

    ratios = [median("jaxquard", what) / median("jit", what) for what in ("clock_s", "processor_s")]
    times = [f"{median(side, 'clock_s'):.1f} s" for side in SIDES]
    programs = " : ".join(f"{median(side, 'num_programs'):.0f}" for side in SIDES)
    table.add_row(kind, model, *times, *(f"{ratio:.2f}" for ratio in ratios), programs)
    return ratios[0], ratios[1]


if __name__ == "__main__":
    main()
