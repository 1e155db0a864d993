"""Bandwidth, synchronisation and launch of collectives from measured times (MeshSlice, section 4.5).

The paper sets the synchronisation by comparing two ring sizes, and bandwidth and launch by a regression over shard
sizes from 8 KB to 512 MB. Here one robust regression does all: the time is linear in the three. Two devices make no
second ring, so there the synchronisation is given.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxquard.cluster.cluster import Axis, Collective
from jaxquard.cluster.fit.fit_robustly import fit_robustly
from jaxquard.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSample:
    """One measured collective.

    Attributes:
        shard_bytes: the bytes of a chip before an all-gather, after a reduce-scatter, or in one permute.
        num_steps: steps of the ring; left out, one less than its chips.

    Example:
        >>> gather = jq.cluster.Collective("all_gather")
        >>> jq.cluster.LinkSample(kind=gather, ring_size=4, shard_bytes=2**20, time_s=1e-4).axis
        <Axis.ROWS: 'rows'>
    """

    kind: Collective
    ring_size: int
    shard_bytes: float
    time_s: float
    axis: Axis = Axis.ROWS
    num_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """The fitted cost of one kind of collective along one axis.

    Attributes:
        median_error: median relative error of the fit on its samples.
        worst_error: the largest relative error.

    Example:
        >>> fit = jq.cluster.LinkFit(
        ...     kind=jq.cluster.Collective("all_gather"),
        ...     axis=jq.cluster.Axis("rows"),
        ...     bandwidth_bytes_per_s=50e9,
        ...     sync_s=1e-6,
        ...     launch_s=5e-6,
        ...     num_samples=9,
        ...     median_error=0.01,
        ...     worst_error=0.04,
        ... )
        >>> f"{fit.bandwidth_bytes_per_s / 1e9:g} GB/s, at most {fit.worst_error:.0%} off"
        '50 GB/s, at most 4% off'
    """

    kind: Collective
    axis: Axis
    bandwidth_bytes_per_s: float
    sync_s: float
    launch_s: float
    num_samples: int
    median_error: float
    worst_error: float


def fit_links(samples: Iterable[LinkSample]) -> tuple[LinkFit, ...]:
    """Fits bandwidth, synchronisation and launch for each kind of collective and axis in the samples.

    Raises:
        ClusterError: there are fewer than two ring sizes or two shard sizes of a kind.

    Example:
        >>> gather = jq.cluster.Collective("all_gather")
        >>> samples = [
        ...     jq.cluster.LinkSample(
        ...         kind=gather, ring_size=size, shard_bytes=shard, time_s=5e-6 + (size - 1) * (1e-6 + shard / 50e9)
        ...     )
        ...     for size in (2, 4, 8)
        ...     for shard in (2**20, 2**22, 2**24)
        ... ]
        >>> (fit,) = jq.cluster.fit_links(samples)
        >>> f"{fit.bandwidth_bytes_per_s:.2g}", round(fit.sync_s * 1e6, 2), round(fit.launch_s * 1e6, 2)
        ('5e+10', 1.0, 5.0)
    """
    groups: dict[tuple[Collective, Axis], list[LinkSample]] = defaultdict(list)
    for sample in samples:
        groups[sample.kind, sample.axis].append(sample)
    return tuple(_fit_group(kind, axis, group) for (kind, axis), group in groups.items())


def _fit_group(kind: Collective, axis: Axis, samples: list[LinkSample]) -> LinkFit:
    steps = np.array([s.ring_size - 1 if s.num_steps is None else s.num_steps for s in samples], dtype=np.float64)
    sizes = np.array([sample.shard_bytes for sample in samples], dtype=np.float64)
    times_s = np.array([sample.time_s for sample in samples], dtype=np.float64)
    for what, values in (("ring sizes", steps), ("shard sizes", sizes)):
        if len(set(values)) < 2:
            raise ClusterError(
                f"{kind.value} along {axis.value} needs samples of two {what} to separate its constants, "
                f"found {len(set(values))}. Measure another."
            )
    if (times_s <= 0).any():
        raise ClusterError(f"a sample of {kind.value} along {axis.value} took {times_s.min()} s; times are above 0.")
    columns = np.stack([np.ones_like(steps), steps, steps * sizes], axis=1)
    (launch_s, sync_s, per_byte_s), residuals = fit_robustly(columns, times_s)
    if per_byte_s == 0:
        raise ClusterError(
            f"the times of {kind.value} along {axis.value} do not grow with the shard, so they give no bandwidth. "
            f"Measure larger shards (the largest had {sizes.max():.0f} bytes)."
        )
    return LinkFit(
        kind=kind,
        axis=axis,
        bandwidth_bytes_per_s=float(1 / per_byte_s),
        sync_s=float(sync_s),
        launch_s=float(launch_s),
        num_samples=len(samples),
        median_error=float(np.median(np.abs(residuals))),
        worst_error=float(np.max(np.abs(residuals))),
    )


def fit_one_ring(samples: Sequence[LinkSample], *, sync_s: float) -> LinkFit:
    """Fits bandwidth and launch of one kind to samples of one ring size, given the synchronisation of a step.

    Raises:
        ClusterError: there are fewer than two shard sizes, or the times do not grow with the shard.
    """
    num_sizes = len({sample.shard_bytes for sample in samples})
    if num_sizes < 2:
        raise ClusterError(f"bandwidth and launch need samples of two shard sizes, found {num_sizes}. Measure another.")
    kind, steps = samples[0].kind, samples[0].num_steps or samples[0].ring_size - 1
    sizes = np.array([sample.shard_bytes for sample in samples], dtype=np.float64)
    times_s = np.array([sample.time_s for sample in samples], dtype=np.float64)
    columns = np.stack([np.ones_like(sizes), steps * sizes], axis=1)
    (intercept_s, per_byte_s), residuals = fit_robustly(columns, times_s)
    if per_byte_s == 0:
        raise ClusterError(f"the times of {kind.value} do not grow with the shard, so they give no bandwidth.")
    return LinkFit(
        kind=kind,
        axis=Axis.ROWS,
        bandwidth_bytes_per_s=float(1 / per_byte_s),
        sync_s=min(sync_s, float(intercept_s) / steps),
        launch_s=max(0.0, float(intercept_s) - steps * sync_s),
        num_samples=len(samples),
        median_error=float(np.median(np.abs(residuals))),
        worst_error=float(np.max(np.abs(residuals))),
    )
