"""The speed of each kind of kernel from measured times (`Times`).

Launch, arithmetic and traffic are linear in their constants once it is known which of the two takes longer; that is
found by turns. The other constants (what is exposed, the dims of half speed) are tried over a small grid.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool

from jaxquard.cluster.fit.fit_robustly import fit_robustly
from jaxquard.cluster.speeds import KernelKind, KernelSpeed
from jaxquard.errors import ClusterError

_TURNS = 4
_EXPOSED = (0.0, 0.5, 1.0)
_HALF_CONTRACTED = (0.0, 32.0, 64.0, 128.0, 256.0)
_HALF_OUTPUT = (0.0, 16.0, 64.0, 128.0)
# Fewer samples have one constant for everything: a speed.
_FEWEST = 3
# More constants than this many samples can carry are left at 0.
_FEWEST_FOR_SHAPES = 8
# Above this median error, arithmetic gets a speed of its own where the samples can show it.
_POOR_FIT = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductShape:
    """The dims of a product of [batch, m, k] and [batch, k, n].

    Example:
        >>> jq.cluster.ProductShape(m=4096, k=4096, n=512).flops
        17179869184.0
    """

    batch: float = 1
    m: float
    k: float
    n: float

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.k * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSample:
    """A timed kernel.

    Attributes:
        dtype: of its inputs, as HLO writes it.
        size_bytes: that it reads and writes.
        product: the dims of a product, whose `flops` follow from them.

    Example:
        >>> kind = jq.cluster.KernelKind("elementwise")
        >>> jq.cluster.KernelSample(kind=kind, dtype="f32", size_bytes=3e9, time_s=1e-3).flops
        0.0
    """

    kind: KernelKind
    dtype: str
    size_bytes: float
    time_s: float
    flops: float = 0.0
    product: ProductShape | None = None


def fit_kernels(samples: Iterable[KernelSample], *, launch_s: float | None = None) -> tuple[KernelSpeed, ...]:
    """Fits a speed for each kind and type in the samples.

    Args:
        launch_s: to start a kernel, where the samples cannot show it: an accelerator that is timed by the host's clock
            starts one kernel while another runs. By default it is fitted.

    Raises:
        ClusterError: if a time is not above 0.

    Example:
        >>> kind = jq.cluster.KernelKind("elementwise")
        >>> samples = [
        ...     jq.cluster.KernelSample(kind=kind, dtype="f32", size_bytes=size, time_s=2e-6 + size / 4e12)
        ...     for size in (1e6, 1e7, 1e8)
        ... ]
        >>> (speed,) = jq.cluster.fit_kernels(samples)
        >>> f"{speed.bandwidth_bytes_per_s:.1e} bytes/s, {speed.launch_s * 1e6:.1f} us"
        '4.0e+12 bytes/s, 2.0 us'
    """
    groups: dict[tuple[KernelKind, str], list[KernelSample]] = defaultdict(list)
    for sample in samples:
        groups[sample.kind, sample.dtype].append(sample)
    return tuple(_fit_group(kind, dtype, group, launch_s) for (kind, dtype), group in groups.items())


def _fit_group(kind: KernelKind, dtype: str, samples: Sequence[KernelSample], launch_s: float | None) -> KernelSpeed:
    start = KernelSpeed(kind=kind, dtype=dtype)
    # Where arithmetic and traffic always go together, traffic stands for both.
    ratios = {round(sample.flops / sample.size_bytes, 3) for sample in samples if sample.size_bytes}
    computes = kind in (KernelKind.PRODUCT, KernelKind.ATTENTION) or len(ratios) > 2
    is_rich = computes and len(samples) >= _FEWEST_FOR_SHAPES and kind is not KernelKind.ELEMENTWISE
    has_shapes = is_rich and all(sample.product is not None for sample in samples)
    grid = itertools.product(
        _EXPOSED if is_rich else (0.0,),
        _HALF_CONTRACTED if has_shapes else (0.0,),
        _HALF_OUTPUT if has_shapes else (0.0,),
    )
    fits = [
        _fit_constants(
            replace(start, exposed=exposed, half_speed_contracted=contracted, half_speed_output=output),
            samples,
            launch_s=launch_s,
            is_arithmetic=begins,
        )
        for exposed, contracted, output in grid
        for begins in ((True, False) if computes else (False,))
    ]
    best = min(fits, key=_fit_error)
    if len(ratios) > 1 and best.median_error > _POOR_FIT:
        # Functions such as tanh are slow on a CPU: those samples are arithmetic, the others traffic.
        mixed = _fit_constants(start, samples, launch_s=launch_s, is_arithmetic=_with_much_arithmetic(samples))
        best = min(best, mixed, key=_fit_error)
    return best


def _fit_error(fit: KernelSpeed) -> tuple[float, float]:
    return fit.median_error + 0.25 * fit.worst_error, fit.exposed


def _with_much_arithmetic(samples: Sequence[KernelSample]) -> Bool[np.ndarray, " samples"]:
    """Returns the samples with more arithmetic a byte than the middle of what there is."""
    ratios = np.array([sample.flops / max(sample.size_bytes, 1.0) for sample in samples])
    return ratios > np.sqrt(max(ratios.min(), 1e-9) * max(ratios.max(), 1e-9))


def _fit_constants(
    start: KernelSpeed,
    samples: Sequence[KernelSample],
    *,
    launch_s: float | None,
    is_arithmetic: bool | Bool[np.ndarray, " samples"],
) -> KernelSpeed:
    """Fits launch and both speeds; `is_arithmetic`: samples whose arithmetic counts as longer at first."""
    times_s = np.array([sample.time_s for sample in samples], dtype=np.float64)
    sizes = np.array([sample.size_bytes for sample in samples], dtype=np.float64)
    work = np.array([_work(start, sample) for sample in samples], dtype=np.float64)
    if not (np.isfinite(times_s).all() and (times_s > 0).all()):
        raise ClusterError(f"a sample of {start.kind.value} took {times_s.min()} s; times are above 0.")
    is_launch_fitted = launch_s is None and len(samples) >= _FEWEST
    launch = np.ones_like(times_s) if is_launch_fitted else np.zeros_like(times_s)
    # No more than half of the shortest time: a launch that is given is that of another kind of kernel.
    known_s = min(launch_s or 0.0, 0.5 * times_s.min())
    is_longer = np.broadcast_to(is_arithmetic, times_s.shape)
    constants = np.zeros(3)
    for _ in range(_TURNS):
        first = np.where(is_longer, 1.0, start.exposed)
        second = np.where(is_longer, start.exposed, 1.0)
        columns = np.stack([launch, first * work, second * sizes], axis=1)
        constants, _ = fit_robustly(columns, times_s, known_s=known_s)
        found = constants[1] * work > constants[2] * sizes
        if (found == is_longer).all():
            break
        is_longer = found
    arithmetic_s, traffic_s = constants[1] * work, constants[2] * sizes
    longer, shorter = np.maximum(arithmetic_s, traffic_s), np.minimum(arithmetic_s, traffic_s)
    begin_s = float(constants[0]) if is_launch_fitted else known_s
    errors = np.abs((begin_s + longer + start.exposed * shorter) / times_s - 1)
    return replace(
        start,
        launch_s=begin_s,
        flops_per_s=float(1 / constants[1]) if constants[1] > 0 else 0.0,
        bandwidth_bytes_per_s=float(1 / constants[2]) if constants[2] > 0 else 0.0,
        num_samples=len(samples),
        median_error=float(np.median(errors)),
        worst_error=float(np.max(errors)),
    )


def _work(speed: KernelSpeed, sample: KernelSample) -> float:
    """Returns the arithmetic of a kernel; that of a thin product takes longer, as in `times/product.py`."""
    shape = sample.product
    if shape is None:
        return sample.flops
    slowdown = (1 + speed.half_speed_output / shape.m) * (1 + speed.half_speed_output / shape.n)
    return shape.flops * (1 + speed.half_speed_contracted / shape.k) * slowdown
