"""The constants of a chip's products from measured times: speed, price of an fp32 sum, launch.

The model of `times/product.py` is linear in them; the rest (tiles, casts, cores) is taken from where the fit
starts. Four constants are few enough for the samples of a dozen shapes.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from jaxquard.cluster.cluster import Cluster, Compute
from jaxquard.cluster.fit.fit_robustly import fit_robustly
from jaxquard.cluster.times.chip_speeds import chip_speeds
from jaxquard.cluster.times.product import (
    SIXTEEN_BITS,
    arithmetic_s,
    cast_s,
    num_begun,
    sliced_product_s,
    sum_bytes,
    wave_slowdown,
)
from jaxquard.errors import ClusterError

_COLUMNS = ("m", "k", "n", "num_slices", "time_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductSample:
    """A measured product of [m, k] and [k, n] in bf16, sliced along k, with partial products summed in fp32.

    Example:
        >>> jq.cluster.ProductSample(m=4096, k=4096, n=4096, num_slices=1, time_s=2e-4).num_slices
        1
    """

    m: int
    k: int
    n: int
    num_slices: int
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductFit:
    """The fitted compute model of a chip.

    Attributes:
        compute: with the fitted constants, the others as they were given.
        median_error: median relative error of the fit on its samples.
        worst_error: the largest relative error.

    Example:
        >>> compute = jq.cluster.load_cluster("h200").compute
        >>> fit = jq.cluster.ProductFit(compute=compute, num_samples=18, median_error=0.01, worst_error=0.04)
        >>> f"at most {fit.worst_error:.0%} off in {fit.num_samples} products"
        'at most 4% off in 18 products'
    """

    compute: Compute
    num_samples: int
    median_error: float
    worst_error: float


def fit_products(samples: Sequence[ProductSample], *, start: Cluster) -> ProductFit:
    """Fits effective FLOP/s, the exposed share of outputs, the slowdown of fp32 sums, and the launch.

    Args:
        start: gives what is not fitted (peak, tiles, casts, slice copies, cores, the memory's bandwidth).

    Raises:
        ClusterError: there are fewer samples than constants, none is sliced or none is whole, or the times do not
            grow with the arithmetic.

    Example:
        >>> cluster = jq.cluster.load_cluster("h200")
        >>> times = jq.cluster.times_of(cluster)
        >>> samples = [
        ...     jq.cluster.ProductSample(
        ...         m=m, k=k, n=4096, num_slices=slices, time_s=times.product(m=m, k=k, n=4096, num_slices=slices)
        ...     )
        ...     for m in (4096, 8192, 16384)
        ...     for k in (4096, 8192)
        ...     for slices in (1, 2, 4)
        ... ]
        >>> fit = jq.cluster.fit_products(samples, start=cluster)
        >>> round(fit.compute.effective_flops_per_s / cluster.compute.effective_flops_per_s, 2)
        1.0
    """
    num_sliced = sum(sample.num_slices > 1 for sample in samples)
    if len(samples) < 5 or num_sliced in (0, len(samples)):
        raise ClusterError(
            "products have 4 constants, so at least 5 samples are needed, some sliced and some whole; "
            f"found {len(samples)}, {num_sliced} sliced. Measure more shapes."
        )
    times_s = np.array([sample.time_s for sample in samples], dtype=np.float64)
    casts_s = np.array([_cast_s(start, sample) for sample in samples], dtype=np.float64)
    constants, _ = fit_robustly(_columns(samples, start), times_s, known_s=casts_s)
    slowness, sum_slowness, exposed, launch_s = map(float, constants)
    if slowness <= 0:
        largest = max(2 * sample.m * sample.k * sample.n for sample in samples)
        raise ClusterError(
            "the times of the products do not grow with their arithmetic, so they give no FLOP/s: what was measured "
            f"is launches and memory. Measure larger products (the largest had {largest:.2g} FLOPs)."
        )
    speed = start.compute.effective_flops_per_s / slowness
    compute = replace(
        start.compute,
        peak_flops_per_s=max(start.compute.peak_flops_per_s, speed),
        effective_flops_per_s=speed,
        accumulate_slowdown=sum_slowness / slowness,
        output_exposed=exposed,
        launch_s=launch_s,
    )
    errors = product_errors(samples, replace(start, compute=compute))
    return ProductFit(
        compute=compute,
        num_samples=len(samples),
        median_error=float(np.median(errors)),
        worst_error=max(errors),
    )


def product_errors(samples: Sequence[ProductSample], cluster: Cluster) -> tuple[float, ...]:
    """The relative error of a cluster's products for each sample.

    Example:
        >>> cluster = jq.cluster.load_cluster("h200")
        >>> sample = jq.cluster.ProductSample(m=8192, k=12288, n=6144, num_slices=1, time_s=1.9e-3)
        >>> (error,) = jq.cluster.product_errors([sample], cluster)
        >>> abs(error) < 0.2
        True
    """
    chip = chip_speeds(cluster)
    return tuple(abs(sliced_product_s(chip, s.m, s.k, s.n, s.num_slices, 2) / s.time_s - 1) for s in samples)


def products_csv(samples: Sequence[ProductSample]) -> str:
    """Samples as a CSV text, to keep beside the cluster that was fitted to them.

    Example:
        >>> sample = jq.cluster.ProductSample(m=4096, k=4096, n=4096, num_slices=1, time_s=2e-4)
        >>> jq.cluster.products_csv([sample]).splitlines()
        ['m,k,n,num_slices,time_s', '4096,4096,4096,1,0.0002']
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([s.m, s.k, s.n, s.num_slices, f"{s.time_s:.6g}"] for s in samples)
    return file.getvalue()


def parse_products_csv(text: str, *, source: str = "the CSV text") -> tuple[ProductSample, ...]:
    """The samples of a CSV text; `source` names the text in errors.

    Example:
        >>> sample = jq.cluster.ProductSample(m=4096, k=4096, n=4096, num_slices=1, time_s=2e-4)
        >>> jq.cluster.parse_products_csv(jq.cluster.products_csv([sample])) == (sample,)
        True
    """
    reader = csv.DictReader(io.StringIO(text))
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        raise ClusterError(f"{source} should begin with {','.join(_COLUMNS)}, found {reader.fieldnames}.")
    try:
        return tuple(_parse_row(row) for row in reader)
    except (TypeError, ValueError) as error:
        raise ClusterError(f"line {reader.line_num} of {source} is no product: {error}.") from None


def _parse_row(row: dict[Any, Any]) -> ProductSample:
    if len(row) != len(_COLUMNS):
        raise ValueError(f"it has more than {len(_COLUMNS)} values")
    counts, time_s = {name: int(row[name]) for name in _COLUMNS[:-1]}, float(row["time_s"])
    if min(counts.values()) < 1 or not 0 < time_s < math.inf:
        raise ValueError("sizes, slices and times are above 0")
    return ProductSample(**counts, time_s=time_s)


def _columns(samples: Sequence[ProductSample], start: Cluster) -> Float64[np.ndarray, "samples constants"]:
    """Returns the coefficient of each constant, for each sample."""
    rows, chip = [], chip_speeds(start)
    for s in samples:
        is_sliced = s.num_slices > 1
        products_s = s.num_slices * arithmetic_s(chip, s.m, s.k / s.num_slices, s.n, 1, SIXTEEN_BITS)
        products_s *= wave_slowdown(start.compute, m=s.m, n=s.n) if is_sliced else 1.0
        output_bytes = sum_bytes(m=s.m, n=s.n, num_slices=s.num_slices) if is_sliced else 2.0 * s.m * s.n
        output_s = output_bytes / start.memory.bandwidth_bytes_per_s
        rows.append((products_s, products_s * is_sliced, output_s, num_begun(s.num_slices)))
    return np.array(rows, dtype=np.float64)


def _cast_s(start: Cluster, sample: ProductSample) -> float:
    return cast_s(chip_speeds(start), m=sample.m, n=sample.n, item_bytes=2) if sample.num_slices > 1 else 0.0
