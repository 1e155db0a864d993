"""Links between actors: the seconds of a transfer, from the levels of the cluster between their chips.

A chip of an actor sends its share of a value to the chip at the same place of the other actor, all chips at once. So a
transfer takes as long as one chip's share, over the outermost level at which the two chips stand apart.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jaxquard.cluster.cluster import Cluster, Level
from jaxquard.cluster.levels import levels_of
from jaxquard.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorLink:
    """A link from one actor to another, one way: a fixed time for each transfer, and a bandwidth.

    Example:
        >>> jq.simulate.ActorLink(latency_s=1e-3, bandwidth_bytes_per_s=1e9).time_s(10**6)
        0.002
    """

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = math.inf

    def time_s(self, size_bytes: float) -> float:
        """Returns the seconds of a transfer that has the link for itself."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


ActorLinks = Mapping[tuple[int, int], ActorLink]
INSTANT = ActorLink()
NO_LINKS: ActorLinks = MappingProxyType({})


class _LazyLinks(ActorLinks):
    """The links of all ordered pairs of actors, each made when it is asked for: thousands of actors have millions."""

    __slots__ = ("_chips_apart", "_levels", "_num_actors")

    def __init__(self, levels: Sequence[Level], num_actors: int, chips_apart: int) -> None:
        self._levels, self._num_actors, self._chips_apart = levels, num_actors, chips_apart

    def __getitem__(self, pair: tuple[int, int]) -> ActorLink:
        source, target = pair
        if source == target or not (0 <= source < self._num_actors and 0 <= target < self._num_actors):
            raise KeyError(pair)
        return link_chips(self._levels, source * self._chips_apart, target * self._chips_apart)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return itertools.permutations(range(self._num_actors), 2)

    def __len__(self) -> int:
        return self._num_actors * (self._num_actors - 1)


def link_actors(cluster: Cluster, *, num_actors: int, chips_apart: int) -> ActorLinks:
    """Returns the link of every ordered pair of actors.

    Args:
        chips_apart: the distance from a chip of an actor to the chip at the same place of the next one: the chips of
            an actor where actors follow each other on a cluster, more where data-parallel replicas lie between.

    Raises:
        ClusterError: if the cluster has fewer chips than the actors reach.

    Example:
        >>> links = jq.simulate.link_actors(jq.cluster.load_cluster("h100-8x2"), num_actors=4, chips_apart=4)
        >>> [f"{links[pair].bandwidth_bytes_per_s / 1e9:.0f} GB/s" for pair in ((0, 1), (1, 2))]
        ['360 GB/s', '50 GB/s']
    """
    if num_actors * chips_apart > cluster.num_chips:
        raise ClusterError(
            f"{num_actors} actors, {chips_apart} chips apart, reach over {num_actors * chips_apart} chips, but "
            f"{cluster.name} has {cluster.num_chips}. Use fewer actors, or a larger cluster."
        )
    return _LazyLinks(levels_of(cluster), num_actors, chips_apart)


def link_chips(levels: Sequence[Level], source: int, target: int) -> ActorLink:
    """Returns the link between two chips, by their numbers."""
    assert source != target, source
    inner = 1
    for number, level in enumerate(levels):
        outer = inner * level.size
        if source // outer == target // outer or number == len(levels) - 1:
            steps = _num_steps(level, source // inner % level.size, target // inner % level.size)
            latency_s = level.launch_s + steps * level.latency_s
            return ActorLink(latency_s=latency_s, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s)
        inner = outer
    raise AssertionError("a cluster has a level")


def _num_steps(level: Level, source: int, target: int) -> int:
    """Counts the links on the way between two units: one over a switch, all along each dim of a torus."""
    if not level.is_torus:
        return 1
    steps = 0
    for size in reversed(level.dims):
        distance = abs(source % size - target % size)
        wraps = level.wraps_at > 0 and size > 2 and size % level.wraps_at == 0
        steps += min(distance, size - distance) if wraps else distance
        source, target = source // size, target // size
    return max(steps, 1)
