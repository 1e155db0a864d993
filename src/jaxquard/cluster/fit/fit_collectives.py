"""The speed of each kind of collective from measured times, by the formulas of `group_time` for one level.

    launch + steps * latency + sent bytes / bandwidth

with n devices and b bytes of the whole array:

    all-gather, reduce-scatter, all-to-all     n - 1 steps          b (n - 1) / n
    all-reduce                                 2 (n - 1) steps      2 b (n - 1) / n
    permute                                    1 step               b
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxquard.cluster.fit.fit_robustly import fit_robustly
from jaxquard.cluster.speeds import CollectiveSpeed, GroupCollective
from jaxquard.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSample:
    """A timed collective.

    Attributes:
        group_size: devices that take part together; other groups of the same size run at the same time.
        size_bytes: of the whole array, as `group_time_s` has it.

    Example:
        >>> kind = jq.cluster.GroupCollective("all_reduce")
        >>> jq.cluster.CollectiveSample(kind=kind, group_size=8, size_bytes=2**20, time_s=1e-4).group_size
        8
    """

    kind: GroupCollective
    group_size: int
    size_bytes: float
    time_s: float


def fit_collectives(samples: Iterable[CollectiveSample]) -> tuple[CollectiveSpeed, ...]:
    """Fits bandwidth, latency and launch of each kind in the samples; with one group size all steps count as launch.

    Raises:
        ClusterError: if the times of a kind do not grow with the bytes.

    Example:
        >>> kind = jq.cluster.GroupCollective("all_gather")
        >>> samples = [
        ...     jq.cluster.CollectiveSample(
        ...         kind=kind,
        ...         group_size=count,
        ...         size_bytes=size,
        ...         time_s=5e-6 + (count - 1) * 1e-6 + size * (count - 1) / count / 5e10,
        ...     )
        ...     for count in (2, 4, 8)
        ...     for size in (2**20, 2**22, 2**24)
        ... ]
        >>> (speed,) = jq.cluster.fit_collectives(samples)
        >>> f"{speed.bandwidth_bytes_per_s:.1e}", round(speed.latency_s * 1e6, 2), round(speed.launch_s * 1e6, 2)
        ('5.0e+10', 1.0, 5.0)
    """
    groups: dict[GroupCollective, list[CollectiveSample]] = defaultdict(list)
    for sample in samples:
        groups[sample.kind].append(sample)
    return tuple(_fit_kind(kind, group) for kind, group in groups.items())


def _fit_kind(kind: GroupCollective, samples: Sequence[CollectiveSample]) -> CollectiveSpeed:
    steps = np.array([_num_steps(kind, sample.group_size) for sample in samples], dtype=np.float64)
    sent = np.array([_sent_bytes(sample) for sample in samples], dtype=np.float64)
    times_s = np.array([sample.time_s for sample in samples], dtype=np.float64)
    if len(set(sent)) < 2:
        raise ClusterError(f"{kind.value} needs samples of two sizes to separate its constants. Measure another.")
    counted = steps if len(set(steps)) > 1 else np.zeros_like(steps)
    columns = np.stack([np.ones_like(steps), counted, sent], axis=1)
    (launch_s, latency_s, per_byte_s), residuals = fit_robustly(columns, times_s)
    if per_byte_s == 0:
        raise ClusterError(
            f"the times of {kind.value} do not grow with its bytes, so they give no bandwidth. Measure larger arrays "
            f"(the largest sent {sent.max():.0f} bytes)."
        )
    return CollectiveSpeed(
        kind=kind,
        bandwidth_bytes_per_s=float(1 / per_byte_s),
        latency_s=float(latency_s),
        launch_s=float(launch_s),
        num_samples=len(samples),
        median_error=float(np.median(np.abs(residuals))),
        worst_error=float(np.max(np.abs(residuals))),
    )


def _num_steps(kind: GroupCollective, size: int) -> int:
    if kind is GroupCollective.PERMUTE:
        return 1
    return (2 if kind is GroupCollective.ALL_REDUCE else 1) * (size - 1)


def _sent_bytes(sample: CollectiveSample) -> float:
    if sample.kind is GroupCollective.PERMUTE:
        return sample.size_bytes
    share = (sample.group_size - 1) / sample.group_size
    return (2 if sample.kind is GroupCollective.ALL_REDUCE else 1) * share * sample.size_bytes
