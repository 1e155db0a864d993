"""The memory of every process of a mesh on Ray over many steps of a tiny program: none may grow with their number.

`python -m benchmarks.ray_memory --steps 100000` takes about 10 minutes on two idle cores.
"""

import argparse
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import psutil

import jaxquard as jq

NUM_ROWS = 10
MAX_GROWTH_BYTES_PER_STEP = 100.0
"""The aim, of each process, over the second half of the steps: caches and pools are full by then."""
NAMES = {"gcs_server": "control server", "raylet": "raylet", "ray::Worker": "actor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The resident bytes of each process after a number of steps."""

    num_steps: int
    time_s: float
    sizes_bytes: dict[str, int]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_memory", description=__doc__)
    parser.add_argument("--steps", type=int, default=4000, help="how many steps (4000)")
    num_steps = parser.parse_args(arguments).steps
    jax.config.update("jax_platforms", "cpu")
    with jq.RemoteMesh((2,), runtime="ray") as mesh:
        rows = _run(mesh, num_steps)
    half, last = rows[len(rows) // 2], rows[-1]
    for name, size_bytes in last.sizes_bytes.items():
        growth = (size_bytes - half.sizes_bytes[name]) / max(1, last.num_steps - half.num_steps)
        verdict = "met" if growth <= MAX_GROWTH_BYTES_PER_STEP else "missed"
        print(f"{name}: {growth:.0f} bytes a step, at most {MAX_GROWTH_BYTES_PER_STEP:.0f}: {verdict}")


def _run(mesh: jq.RemoteMesh, num_steps: int) -> list[Row]:
    step = mesh.distributed(_train_step, donate_argnums=0)
    weights = {name: np.eye(8, dtype=np.float32) for name in ("first", "second")}
    batch = np.ones((3, 2, 8), np.float32)
    weights, loss = step(weights, batch)
    rows, every, start_s = [], max(1, num_steps // NUM_ROWS), time.perf_counter()
    for number in range(1, num_steps + 1):
        weights, loss = step(weights, batch)
        if number % every == 0:
            float(loss)
            rows.append(Row(num_steps=number, time_s=time.perf_counter() - start_s, sizes_bytes=_sizes_bytes()))
            sizes = "  ".join(f"{name} {size / 1e6:.1f}" for name, size in rows[-1].sizes_bytes.items())
            print(f"{number:7d} steps {rows[-1].time_s:6.0f} s, MB: {sizes}", flush=True)
    return rows


def _train_step(weights: dict[str, jax.Array], batch: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss_fn(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        hidden = jq.pipeline_yield(jnp.tanh(x @ weights["first"]))
        return jnp.mean(jnp.square(hidden @ weights["second"]))

    def microbatch_grads(x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(weights, x)
        return grads, loss

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)
    return jax.tree.map(lambda weight, grad: weight - 0.01 * grad, weights, grads), jnp.mean(losses)


def _sizes_bytes() -> dict[str, int]:
    """Returns the resident bytes of this process, Ray's servers and the actors."""
    here = psutil.Process()
    sizes, num_actors = {"controller": here.memory_info().rss}, 0
    for process in sorted(here.children(recursive=True), key=lambda process: process.pid):
        name = NAMES.get(process.name())
        if name == "actor":
            name, num_actors = f"actor {num_actors}", num_actors + 1
        if name is not None:
            sizes[name] = process.memory_info().rss
    return sizes


if __name__ == "__main__":
    main()
