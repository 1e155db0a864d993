"""The time of a collective over any group of devices of a mesh, by the algorithm that fits the group best.

Over a switch, with n chips, b bytes of the whole array, a port of w bytes/s each way and l seconds a step:

    ring            all-gather, reduce-scatter     (n - 1) (l + b / n / w)
                    all-reduce                     both, one after the other
    tree            all-reduce                     2 ceil(log2 n) l + 2 b / w: fewer steps, for small arrays
    hierarchical    each level in turn: inside a host on whole arrays, between hosts on the shards of a host's chips,
                    which use all the host's ports at once
    all-to-all      what stays inside a host and what leaves it each by its own port, at the same time

In a torus a dim that closes to a ring carries both ways, an open one is a line. All dims of a group work at the same
time. An all-to-all moves each byte a quarter of the way round a ring, or a third of the way along a line.
"""

import math
from collections.abc import Callable, Sequence
from itertools import groupby

from jaxquard.cluster.cluster import Level, check_number
from jaxquard.cluster.levels import LevelSpan
from jaxquard.cluster.speeds import GroupCollective
from jaxquard.errors import ClusterError


def group_time_s(kind: GroupCollective, spans: Sequence[LevelSpan], size_bytes: float) -> float:
    """Returns the time of a collective over a group.

    Args:
        spans: of the group (`group_spans`); none for a single device, which moves nothing.
        size_bytes: of the whole array: what a device has after an all-gather, before a reduce-scatter, and before and
            after an all-reduce, an all-to-all or a permute.

    Raises:
        ClusterError: if the size is no number of 0 or more.

    Example:
        >>> cluster = jq.cluster.load_cluster("h100-8x16")
        >>> spans = jq.cluster.group_spans(jq.cluster.levels_of(cluster), (16, 8), axes={1})  # within a host
        >>> time_s = jq.cluster.group_time_s(jq.cluster.GroupCollective("all_gather"), spans, 2**30)
        >>> f"{time_s * 1e3:.1f} ms"
        '2.6 ms'
    """
    if not isinstance(kind, GroupCollective):
        names = ", ".join(f"GroupCollective.{member.name}" for member in GroupCollective)
        raise ClusterError(f"kind must be one of {names}, but is {kind!r}.")
    check_number(size_bytes, "size_bytes", is_positive=False)
    if not spans:
        return 0.0
    stages = _stages(spans, kind)
    return max(stage.level.launch_s for stage in stages) + _TIMES[kind](stages, size_bytes)


class _Stage:
    """The spans of one level: what a device can send there, and in how many steps its group is reached."""

    def __init__(self, level: Level, spans: Sequence[LevelSpan]):
        self.level = level
        self.spans = spans
        self.size = math.prod(span.size for span in spans)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Of the whole stage: of a port, or of all dims of a torus together, a ring both ways."""
        one = self.level.bandwidth_bytes_per_s
        if not self.level.is_torus:
            return one
        # Spans of one dim share its links.
        ways = {span.dim: 1 + span.is_ring for span in self.spans}
        return one * sum(ways.values())

    @property
    def num_steps(self) -> int:
        """Of a ring through the group: as many as there are others; each way round of a torus half of them."""
        if not self.level.is_torus:
            return self.size - 1
        return sum(span.stride * (span.size // 2 if span.is_ring else span.size - 1) for span in self.spans)

    def gather_s(self, size_bytes: float) -> float:
        """Returns the time of an all-gather or a reduce-scatter of so many bytes in all."""
        moved = size_bytes * (self.size - 1) / self.size
        return self.num_steps * self.level.latency_s + moved / self.bandwidth_bytes_per_s

    def exchange_s(self, size_bytes: float, share: float) -> float:
        """Returns the time of an all-to-all of a device's bytes, of which a share goes to others of this stage."""
        if not self.level.is_torus:
            return (self.size - 1) * self.level.latency_s + size_bytes * share / self.level.bandwidth_bytes_per_s
        one = self.level.bandwidth_bytes_per_s
        slowest = max(span.size * span.stride * size_bytes / ((8 if span.is_ring else 4) * one) for span in self.spans)
        return self.num_steps * self.level.latency_s + slowest


def _stages(spans: Sequence[LevelSpan], kind: GroupCollective) -> list[_Stage]:
    levels = groupby(spans, key=lambda span: span.level)
    return [_Stage(level.for_collective(kind), list(of_level)) for level, of_level in levels]


def _gather_s(stages: Sequence[_Stage], size_bytes: float) -> float:
    """Returns the faster of one ring through all levels, and of each level in turn."""
    in_turn, left = 0.0, size_bytes
    for stage in stages:
        in_turn += stage.gather_s(left)
        left /= stage.size
    size = math.prod(stage.size for stage in stages)
    if len(stages) == 1 or any(stage.level.is_torus for stage in stages):
        return in_turn
    # A ring leaves a host once; as many rings as the host has ports run side by side.
    ports, bandwidth, latency_s = 1, math.inf, 0.0
    for stage in stages:
        bandwidth = min(bandwidth, stage.level.bandwidth_bytes_per_s * ports)
        ports *= stage.size
        latency_s = max(latency_s, stage.level.latency_s)
    ring = (size - 1) * latency_s + size_bytes * (size - 1) / size / bandwidth
    return min(in_turn, ring)


def _reduce_s(stages: Sequence[_Stage], size_bytes: float) -> float:
    """Returns the faster of a reduce-scatter followed by an all-gather, and of a tree."""
    both = 2 * _gather_s(stages, size_bytes)
    if any(stage.level.is_torus for stage in stages):
        return both
    steps_s = sum(2 * math.ceil(math.log2(stage.size)) * stage.level.latency_s for stage in stages)
    slowest = min(stage.level.bandwidth_bytes_per_s for stage in stages)
    return min(both, steps_s + 2 * size_bytes / slowest)


def _exchange_s(stages: Sequence[_Stage], size_bytes: float) -> float:
    """Returns the slowest level: an outer one has what leaves the inner ones."""
    size, inner, times_s = math.prod(stage.size for stage in stages), 1, []
    for stage in stages:
        reached = inner * stage.size
        times_s.append(stage.exchange_s(size_bytes, (reached - inner) / size))
        inner = reached
    return max(times_s)


def _permute_s(stages: Sequence[_Stage], size_bytes: float) -> float:
    """Returns the time of the slowest neighbours: those of the outermost level."""
    level = stages[-1].level
    return level.latency_s + size_bytes / level.bandwidth_bytes_per_s


_TIMES: dict[GroupCollective, Callable[[Sequence[_Stage], float], float]] = {
    GroupCollective.ALL_GATHER: _gather_s,
    GroupCollective.REDUCE_SCATTER: _gather_s,
    GroupCollective.ALL_REDUCE: _reduce_s,
    GroupCollective.ALL_TO_ALL: _exchange_s,
    GroupCollective.PERMUTE: _permute_s,
}
