"""The seconds of collectives over axes of a mesh, whose axes take the cluster's levels from the inside."""

import functools
from collections.abc import Sequence

from jaxquard.cluster.cluster import Cluster
from jaxquard.cluster.levels import LevelSpan, group_spans, levels_of
from jaxquard.cluster.speeds import GroupCollective
from jaxquard.cluster.times.collective import group_time_s


class MeshTimes:
    """Times of collectives on one mesh of a cluster."""

    def __init__(self, cluster: Cluster, sizes: Sequence[int]) -> None:
        self._levels = levels_of(cluster)
        self._sizes = tuple(sizes)
        self._spans: dict[tuple[int, ...], tuple[LevelSpan, ...]] = {}
        self.collective_s = functools.lru_cache(maxsize=65536)(self._collective_s)

    def _collective_s(self, kind: GroupCollective, axes: tuple[int, ...], size_bytes: float) -> float:
        if axes not in self._spans:
            self._spans[axes] = group_spans(self._levels, self._sizes, set(axes))
        return group_time_s(kind, self._spans[axes], size_bytes)
