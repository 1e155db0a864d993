"""What slicing a product costs on one accelerator, and how well the cost model says so for shapes that it has not seen.

Products in bf16 of [m, k] and [k, n], cut into S slices along k and summed in fp32. The constants of
`cluster/product_time.py` are fitted on one half of the shapes and held against the other. Target: at most 10 % off on
shapes that were not fitted. Give a file name to keep the times: `python -m benchmarks.sliced_products FILE.csv`.
"""

import csv
import itertools
import statistics
import sys
import time

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from jaxquard.cluster.fit_products import ProductSample, fit_products
from jaxquard.cluster.load_cluster import load_cluster
from jaxquard.cluster.product_time import sliced_product_time_s

MS, KS, NS, SLICES = (2048, 8192, 32768), (3072, 6144, 12288), (3072, 6144, 12288), (1, 2, 4, 8)
SMALL = ((256, 512), (512, 1024), (256, 512), (1, 2, 4))
NUM_ROUNDS = 5
TARGET_ERROR = 0.10


def main(path: str | None = None) -> None:
    is_small = jax.default_backend() == "cpu"
    ms, ks, ns, slices = SMALL if is_small else (MS, KS, NS, SLICES)
    samples = []
    for m, k, n in itertools.product(ms, ks, ns):
        samples += _measure_shape(m, k, n, slices)
        print(_describe(samples[-len(slices) :]), flush=True)
    if path is not None:
        _write(samples, path)
    _judge(samples)


def _measure_shape(m: int, k: int, n: int, slices: tuple[int, ...]) -> list[ProductSample]:
    keys = jax.random.split(jax.random.key(0))
    runs = {}
    for count in slices:
        lhs = jax.random.normal(keys[0], (count, m, k // count), jnp.bfloat16)
        rhs = jax.random.normal(keys[1], (count, k // count, n), jnp.bfloat16)
        runs[count] = (jax.jit(_product).lower(lhs, rhs).compile(), lhs, rhs)
    times_s: dict[int, list[float]] = {count: [] for count in slices}
    for _ in range(NUM_ROUNDS):
        for count, (product, lhs, rhs) in runs.items():
            times_s[count].append(_time(product, lhs, rhs))
    return [ProductSample(m=m, k=k, n=n, num_slices=count, time_s=min(times)) for count, times in times_s.items()]


def _product(lhs, rhs):
    total = jnp.dot(lhs[0], rhs[0], preferred_element_type=jnp.float32)
    for number in range(1, lhs.shape[0]):
        total = total + jnp.dot(lhs[number], rhs[number], preferred_element_type=jnp.float32)
    return total.astype(lhs.dtype)


def _time(product, lhs, rhs) -> float:
    """Seconds of one run, of so many that they take a tenth of a second."""
    product(lhs, rhs).block_until_ready()
    start_s = time.perf_counter()
    product(lhs, rhs).block_until_ready()
    count = max(3, int(0.1 / max(time.perf_counter() - start_s, 1e-5)))
    start_s = time.perf_counter()
    for _ in range(count):
        result = product(lhs, rhs)
    result.block_until_ready()
    return (time.perf_counter() - start_s) / count


def _describe(samples: list[ProductSample]) -> str:
    whole = samples[0]
    parts = [f"S={sample.num_slices} {sample.time_s / whole.time_s:.2f}" for sample in samples[1:]]
    flops = 2 * whole.m * whole.k * whole.n / whole.time_s
    return f"({whole.m}, {whole.k}, {whole.n}): {flops / 1e12:.0f} TFLOP/s whole; {', '.join(parts)}"


def _judge(samples: list[ProductSample]) -> None:
    """Fits on every other shape and looks at the rest; then the other way round."""
    cluster = load_cluster("h200")
    shapes = list(dict.fromkeys((sample.m, sample.k, sample.n) for sample in samples))
    table = Table(title="The cost model on shapes that it was not fitted on", title_justify="left")
    for heading in ("fitted on", "judged on", "median error", "worst error", "target"):
        table.add_column(heading, justify="right")
    for first in (0, 1):
        chosen = set(shapes[first::2])
        seen = [sample for sample in samples if (sample.m, sample.k, sample.n) in chosen]
        rest = [sample for sample in samples if (sample.m, sample.k, sample.n) not in chosen]
        fit = fit_products(seen, start=cluster.compute, memory=cluster.memory)
        errors = [
            abs(
                sliced_product_time_s(fit.compute, cluster.memory, m=s.m, k=s.k, n=s.n, num_slices=s.num_slices)
                / s.time_s
                - 1
            )
            for s in rest
        ]
        verdict = "kept" if max(errors) <= TARGET_ERROR else "missed"
        table.add_row(
            f"{len(chosen)} shapes",
            f"{len(shapes) - len(chosen)} shapes",
            f"{statistics.median(errors):.1%}",
            f"{max(errors):.1%}",
            f"at most {TARGET_ERROR:.0%}: {verdict}",
        )
    Console().print(table)
    fit = fit_products(samples, start=cluster.compute, memory=cluster.memory)
    print(f"all: {fit.compute}, median error {fit.median_error:.1%}, worst {fit.worst_error:.1%}")


def _write(samples: list[ProductSample], path: str) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["m", "k", "n", "num_slices", "time_s"])
        writer.writerows([s.m, s.k, s.n, s.num_slices, f"{s.time_s:.6g}"] for s in samples)


if __name__ == "__main__":
    main(*sys.argv[1:2])
