"""Bandwidth and launch of collectives from one ring size alone: two devices make no second ring."""

from collections.abc import Sequence

import numpy as np

from jaxquard.cluster import Axis, LinkFit, LinkSample
from jaxquard.cluster.fit_robustly import fit_robustly
from jaxquard.errors import ClusterError


def fit_one_ring(samples: Sequence[LinkSample], *, sync_s: float) -> LinkFit:
    """The fit of one kind, with the synchronisation of a step given, not found.

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
