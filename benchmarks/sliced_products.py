"""The cost of slicing a product on one accelerator, and the error of the cost model on shapes that were not fitted.

Products in bf16 of [m, k] and [k, n], split into S slices along k and summed in fp32, timed as `jaxquard cluster
calibrate` times them. The constants of `cluster/times/product.py` are fitted on one half of the shapes and tested on
the other. Target: at most 10 % off on shapes that were not fitted. Give a file name to keep the times:
`python -m benchmarks.sliced_products FILE.csv`.
"""

import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from jaxquard.calibrate.measure_products import measure_products
from jaxquard.calibrate.sampling import Effort, choose_effort
from jaxquard.cluster import ProductSample, fit_products, load_cluster, product_errors, products_csv

# More shapes than a calibration takes, so that half of them are enough.
SIZES = {"ms": (2048, 8192, 32768), "ks": (3072, 6144, 12288), "ns": (3072, 6144, 12288)}
TARGET_ERROR = 0.10


def main(path: str | None = None) -> None:
    device = jax.devices()[0]
    effort = choose_effort(device.platform, is_quick=False)
    effort = effort if device.platform == "cpu" else replace(effort, **SIZES)
    samples = measure(device, effort)
    if path is not None:
        Path(path).write_text(products_csv(samples))
    _judge(samples)


def measure(device: jax.Device, effort: Effort) -> list[ProductSample]:
    """The samples of an effort, shape by shape, each printed when it is there."""
    samples: list[ProductSample] = []
    for m, k, n in itertools.product(effort.ms, effort.ks, effort.ns):
        found = measure_products(device, replace(effort, ms=(m,), ks=(k,), ns=(n,)))
        print(describe(found), flush=True)
        samples += found
    return samples


def describe(samples: Sequence[ProductSample]) -> str:
    whole = samples[0]
    parts = [f"S={sample.num_slices} {sample.time_s / whole.time_s:.2f}" for sample in samples[1:]]
    flops = 2 * whole.m * whole.k * whole.n / whole.time_s
    return f"({whole.m}, {whole.k}, {whole.n}): {flops / 1e12:.3g} TFLOP/s whole; {', '.join(parts)}"


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
        fit = fit_products(seen, start=cluster)
        errors = product_errors(rest, replace(cluster, compute=fit.compute))
        verdict = "kept" if max(errors) <= TARGET_ERROR else "missed"
        table.add_row(
            f"{len(chosen)} shapes",
            f"{len(shapes) - len(chosen)} shapes",
            f"{statistics.median(errors):.1%}",
            f"{max(errors):.1%}",
            f"at most {TARGET_ERROR:.0%}: {verdict}",
        )
    Console().print(table)
    fit = fit_products(samples, start=cluster)
    print(f"all: {fit.compute}, median error {fit.median_error:.1%}, worst {fit.worst_error:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
