"""The times of the collectives of one strategy on one cluster: which devices a group has, and where they are.

Devices are numbered as `Parallelism` says: tensor innermost, then context, data and pipeline. The mesh is therefore
(pipeline, data, context, tensor), and its axes take the cluster's levels from the inside.
"""

import functools
import math
from collections.abc import Sequence

from jaxquard.cluster import ChipSpeeds, Times, chip_speeds
from jaxquard.cluster.cluster import Cluster, Level
from jaxquard.cluster.levels import LevelSpan, group_spans, levels_of
from jaxquard.cluster.speeds import GroupCollective
from jaxquard.pricing.model.parallelism import Parallelism

_PIPELINE, _DATA, _CONTEXT, _TENSOR = range(4)


class GroupTimes:
    """Times of the collectives of one strategy, and of the kernels between them (`kernels`)."""

    def __init__(self, cluster: Cluster, parallelism: Parallelism, chip: ChipSpeeds | None = None):
        self.cluster = cluster
        self.kernels = Times(cluster, in_training(chip or chip_speeds(cluster)))
        self.chip = self.kernels.chip
        par = parallelism
        shape = (par.pipeline, par.data, par.context, par.tensor)
        self._levels = levels_of(cluster)
        self._shape = shape
        self.tensor = self._spans({_TENSOR})
        self._context = self._spans({_CONTEXT}) if par.context > 1 else ()
        self.data = self._spans({_DATA, _CONTEXT})
        self.pipeline = self._spans({_PIPELINE})
        self.shards, self.replicas = self._sharded(par)
        self._expert = self._expert_spans(par)

    def _spans(self, axes: set[int]) -> tuple[LevelSpan, ...]:
        return _cached_spans(self._levels, self._shape, frozenset(axes))

    def _sharded(self, par: Parallelism) -> tuple[Sequence[LevelSpan], Sequence[LevelSpan]]:
        """The groups of ZeRO: devices that share state, and those that have the same shard (hybrid sharding)."""
        if not par.shard_group or par.shard_group == par.data:
            return self.data, ()
        outer = par.data // par.shard_group
        shape = (par.pipeline, outer, par.shard_group, par.context, par.tensor)
        return (
            _cached_spans(self._levels, shape, frozenset({2, 3})),
            _cached_spans(self._levels, shape, frozenset({1})),
        )

    def _expert_spans(self, par: Parallelism) -> Sequence[LevelSpan]:
        if par.expert == 1:
            return ()
        # Expert groups take tensor ranks too unless each expert is itself sharded over them.
        sharded = par.expert_tensor or par.tensor
        inner = par.tensor * par.context * par.data // sharded
        shape = (par.pipeline, max(1, inner // par.expert), par.expert, sharded)
        return _cached_spans(self._levels, shape, frozenset({2}))

    def tensor_sum_s(self, size_bytes: float) -> float:
        """An all-reduce over the tensor group."""
        return self.kernels.collective(GroupCollective.ALL_REDUCE, self.tensor, size_bytes)

    def tensor_gather_s(self, size_bytes: float) -> float:
        """An all-gather over the tensor group."""
        return self.kernels.collective(GroupCollective.ALL_GATHER, self.tensor, size_bytes)

    def tensor_scatter_s(self, size_bytes: float) -> float:
        """A reduce-scatter over the tensor group."""
        return self.kernels.collective(GroupCollective.REDUCE_SCATTER, self.tensor, size_bytes)

    def context_s(self, size_bytes: float) -> float:
        """An all-gather of keys and values over the devices that share a sequence."""
        return self.kernels.collective(GroupCollective.ALL_GATHER, self._context, size_bytes) if self._context else 0.0

    def expert_s(self, size_bytes: float) -> float:
        """An all-to-all over the devices that share the experts."""
        return self.kernels.collective(GroupCollective.ALL_TO_ALL, self._expert, size_bytes) if self._expert else 0.0

    def expert_copies(self, top_k: int) -> float:
        """The hosts that a token's experts are on, if these are spread evenly; all its experts where there is one."""
        hosts = math.prod(span.size for span in self._expert[1:])
        return float(top_k) if hosts == 1 else hosts * (1 - (1 - 1 / hosts) ** top_k)

    def shard_gather_s(self, size_bytes: float) -> float:
        """An all-gather over the devices that share state; a reduce-scatter takes as long."""
        return self.kernels.collective(GroupCollective.ALL_GATHER, self.shards, size_bytes) if self.shards else 0.0

    def replica_sum_s(self, size_bytes: float) -> float:
        """An all-reduce over the devices that have the same shard."""
        return self.kernels.collective(GroupCollective.ALL_REDUCE, self.replicas, size_bytes) if self.replicas else 0.0

    def data_sum_s(self, size_bytes: float) -> float:
        """An all-reduce over all replicas."""
        return self.kernels.collective(GroupCollective.ALL_REDUCE, self.data, size_bytes) if self.data else 0.0

    def send_s(self, size_bytes: float) -> float:
        """A message to the next actor of the pipeline."""
        return self.kernels.collective(GroupCollective.PERMUTE, self.pipeline, size_bytes) if self.pipeline else 0.0


@functools.lru_cache(maxsize=50_000)
def _cached_spans(levels: tuple[Level, ...], shape: tuple[int, ...], axes: frozenset[int]) -> tuple[LevelSpan, ...]:
    return group_spans(levels, shape, axes)


@functools.lru_cache(maxsize=256)
def in_training(chip: ChipSpeeds) -> ChipSpeeds:
    """Returns a chip as it is inside of a training step, hot and beside others: slower than alone."""
    return chip.at_speed(chip.training_share)
