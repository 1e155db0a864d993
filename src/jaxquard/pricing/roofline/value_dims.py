"""The sharding of a value as one dim for each mesh axis, and the collectives that lead from one sharding to another.

    dims        for each mesh axis, in their order, the dim of the array that it shards; None: replicated over it

A reshard slices first, which moves nothing, then exchanges dims (all-to-all), then gathers:

    (0, None) -> (1, None)      all-to-all over the first axis
    (0, 1) -> (None, 1)         all-gather over the first axis
    (None, 1) -> (0, 1)         nothing: each device takes its slice
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from jaxquard.cluster.speeds import GroupCollective

Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisCollective:
    """A collective over some axes of a mesh.

    Attributes:
        axes: the numbers of the axes.
        size_bytes: of the array that is whole over a group, as `group_time_s` counts it.
    """

    kind: GroupCollective
    axes: tuple[int, ...]
    size_bytes: float


@functools.lru_cache(maxsize=65536)
def dims_of_spec(spec: PartitionSpec, names: tuple[str, ...]) -> Dims:
    """Returns the dim that each axis shards."""
    found: dict[str, int] = {}
    for dim, entry in enumerate(spec):
        for axis in (entry,) if isinstance(entry, str) else entry or ():
            found[axis] = dim
    return tuple(found.get(name) for name in names)


def num_shards(dims: Dims, sizes: Sequence[int]) -> int:
    """Returns the number of shards of an array."""
    return math.prod(size for size, dim in zip(sizes, dims, strict=True) if dim is not None)


@functools.lru_cache(maxsize=65536)
def reshard_collectives(
    size_bytes: float, before: Dims, after: Dims, sizes: tuple[int, ...]
) -> tuple[AxisCollective, ...]:
    """Returns the collectives of a reshard of an array of so many bytes."""
    return tuple(_reshard(size_bytes, before, after, sizes)) if before != after else ()


def _reshard(size_bytes: float, before: Dims, after: Dims, sizes: tuple[int, ...]) -> Iterator[AxisCollective]:
    pairs = list(zip(before, after, strict=True))
    exchanged = tuple(axis for axis, (a, b) in enumerate(pairs) if a is not None and b is not None and a != b)
    gathered = tuple(axis for axis, (a, b) in enumerate(pairs) if a is not None and b is None)
    sliced = tuple(b if a is None else a for a, b in pairs)
    if exchanged:
        local = size_bytes / num_shards(sliced, sizes)
        yield AxisCollective(kind=GroupCollective.ALL_TO_ALL, axes=exchanged, size_bytes=local)
    if gathered:
        local = size_bytes / num_shards(after, sizes)
        yield AxisCollective(kind=GroupCollective.ALL_GATHER, axes=gathered, size_bytes=local)
