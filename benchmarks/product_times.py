"""The error of the model of products on shapes that nothing was fitted to, on one accelerator.

40 shapes of 128 to 16,384 a side, in bf16 and in 8 bits, drawn once. Each is timed as a program has it: several copies
with arrays of their own in one compiled program, for as long as the clock needs to settle, so that small products show
what they take beside others and large ones what remains under the power limit. Targets on an H200: a median error of
at most 5 %, at worst 15 %. `python -m benchmarks.product_times [FILE.csv]` keeps the times.
"""

import csv
import functools
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from jaxquard.cluster import find_preset, load_cluster, times_of

SIDES = (128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 11008, 12288,
         14336, 16384)  # fmt: skip
NUM_SHAPES = 40
_MOST_FLOPS = 4.4e12
MOST_COPIES, SAMPLE_S = 24, 0.2
_COPIES_S, _COPIES_BYTES = 4e-4, 6e9
TARGET_MEDIAN, TARGET_WORST = 0.05, 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A product of [m, k] and [k, n] of one type, whose output is in bf16."""

    m: int
    k: int
    n: int
    dtype: str


def held_out_shapes() -> tuple[Shape, ...]:
    """Returns the shapes, drawn with a seed that was chosen before anything was measured."""
    draw, found = random.Random(20261119), []
    while len(found) < NUM_SHAPES:
        m, k, n = (draw.choice(SIDES) for _ in range(3))
        if 2 * m * k * n < _MOST_FLOPS:
            dtype = "bfloat16" if len(found) % 5 < 3 else "float8_e4m3fn"
            found.append(Shape(m=m, k=k, n=n, dtype=dtype))
    return tuple(found)


def measure_s(shape: Shape, *, sample_s: float = SAMPLE_S, most_copies: int = MOST_COPIES) -> float:
    """Returns the seconds of one product among copies of it. Programs compile one by one: tuning needs a quiet GPU."""
    item = jnp.dtype(shape.dtype).itemsize
    size_bytes = item * (shape.m * shape.k + shape.k * shape.n) + 2 * shape.m * shape.n
    guess_s = max(2 * shape.m * shape.k * shape.n / 7e14, size_bytes / 4e12) + 4e-6
    count = max(1, min(most_copies, int(_COPIES_S / guess_s) + 1, int(_COPIES_BYTES / size_bytes) + 1))
    keys = jax.random.split(jax.random.key(0, impl="unsafe_rbg"), 2 * count)
    lefts = [random_matrix(key, (shape.m, shape.k), shape.dtype) for key in keys[:count]]
    rights = [random_matrix(key, (shape.k, shape.n), shape.dtype) for key in keys[count:]]

    def multiply(lefts: list[jax.Array], rights: list[jax.Array]) -> list[jax.Array]:
        pairs = zip(lefts, rights, strict=True)
        return [jnp.matmul(left, right, preferred_element_type=jnp.bfloat16) for left, right in pairs]

    run = jax.jit(multiply).lower(lefts, rights).compile()
    one_s = _time_s(run, lefts, rights, count=2)
    _time_s(run, lefts, rights, count=max(1, int(sample_s / one_s)))
    return _time_s(run, lefts, rights, count=max(3, int(sample_s / one_s))) / count


@functools.partial(jax.jit, static_argnums=(1, 2))
def random_matrix(key: jax.Array, shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Returns normal values, which decide how fast a GPU multiplies."""
    return jax.random.normal(key, shape, jnp.bfloat16).astype(dtype)


def _time_s(run: jax.stages.Compiled, *arguments: list[jax.Array], count: int) -> float:
    jax.block_until_ready(run(*arguments))
    start_s = time.perf_counter()
    for _ in range(count):
        result = run(*arguments)
    jax.block_until_ready(result)
    return (time.perf_counter() - start_s) / count


def measure_all(shapes: tuple[Shape, ...]) -> Iterator[tuple[Shape, float]]:
    """Measures shapes one after the other; one that the device cannot run is left out, and named."""
    for shape in shapes:
        try:
            yield shape, measure_s(shape)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            print(f"{shape} does not run: {str(error).splitlines()[0]}", flush=True)


def main(path: str | None = None) -> None:
    device = jax.devices()[0]
    times = times_of(load_cluster(find_preset(device.device_kind) or "cpu"))
    errors, rows = [], []
    for shape, time_s in measure_all(held_out_shapes()):
        predicted_s = times.product(m=shape.m, k=shape.k, n=shape.n, dtype=shape.dtype)
        errors.append(abs(predicted_s / time_s - 1))
        rows.append((shape.dtype, shape.m, shape.k, shape.n, f"{time_s:.5g}", f"{predicted_s:.5g}"))
        print(*rows[-1], f"{predicted_s / time_s - 1:+.1%}", flush=True)
        if path is not None:
            with Path(path).open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([("dtype", "m", "k", "n", "time_s", "model_s"), *rows])
    _judge(errors, device.device_kind)


def _judge(errors: list[float], device: str) -> None:
    table = Table(title=f"The model of products on {len(errors)} shapes that were not fitted, {device}")
    for heading in ("error", "found", "target"):
        table.add_column(heading)
    for name, error, target in (
        ("median", statistics.median(errors), TARGET_MEDIAN),
        ("worst", max(errors), TARGET_WORST),
    ):
        verdict = "met" if error <= target else "missed"
        table.add_row(name, f"{error:.1%}", f"at most {target:.0%}: {verdict}")
    Console().print(table)


if __name__ == "__main__":
    main(*sys.argv[1:2])
