"""Puts the values of a cell together from what each process of its actor has."""

from collections.abc import Sequence

import numpy as np

Shard = tuple[tuple[tuple[int, int], ...], np.ndarray]


def join_shards(by_process: Sequence[Sequence[Shard]]) -> np.ndarray:
    """The whole array; every process gives the parts that it has, with the bounds of each along each dim."""
    shards = [shard for shards in by_process for shard in shards]
    index, data = shards[0]
    if all(other == index for other, _ in shards):
        return np.array(data)
    shape = tuple(max(index[dim][1] for index, _ in shards) for dim in range(len(index)))
    whole = np.empty((*shape, *data.shape[len(shape) :]), data.dtype)
    for index, part in shards:
        whole[tuple(slice(*bounds) for bounds in index)] = part
    return whole
