"""Times every kind of collective over groups of devices, as the axes of a mesh form them.

All groups of a size communicate at the same time, as they do in a program. Groups are neighbours (the last axis of a
mesh) and, where there are more of them, devices at a distance (the first axis).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.calibrate.measure_links import memory_bytes
from jaxquard.calibrate.sampling import Effort, time_runs_of, time_runs_s
from jaxquard.cluster import CollectiveSample, GroupCollective
from jaxquard.pricing.values.make_values import make_array

_OUTER, _INNER = "outer", "inner"
_ITEM_BYTES = 4

Progress = Callable[[int, int, str], None]


def group_sizes(num_devices: int) -> tuple[int, ...]:
    """Returns the sizes of groups: all devices, and those that divide them, down to two.

    One device has none.
    """
    return tuple(size for size in range(2, num_devices + 1) if num_devices % size == 0)


def measure_collectives(
    devices: Sequence[jax.Device], effort: Effort, *, on_progress: Progress | None = None
) -> tuple[CollectiveSample, ...]:
    """Returns samples of every kind, group size and array size, as large as memory and the effort allow."""
    series = [
        (kind, size, axis)
        for kind in GroupCollective
        for size in group_sizes(len(devices))
        for axis in ((_INNER,) if size == len(devices) else (_INNER, _OUTER))
    ]
    samples: list[CollectiveSample] = []
    for number, (kind, size, axis) in enumerate(series):
        samples += _measure_series(kind, size, axis, devices, effort)
        if on_progress is not None:
            on_progress(number + 1, len(series), f"{kind.value} of {size}")
    return tuple(samples)


def _measure_series(
    kind: GroupCollective, size: int, axis: str, devices: Sequence[jax.Device], effort: Effort
) -> Iterator[CollectiveSample]:
    others = len(devices) // size
    shape = (others, size) if axis == _INNER else (size, others)
    mesh = Mesh(np.array(devices).reshape(shape), (_OUTER, _INNER))
    run = _collective(kind, mesh, axis)
    is_async = devices[0].platform != "cpu"
    for size_bytes in effort.collective_sizes_bytes:
        if 2 * size_bytes > memory_bytes(devices):
            return
        arguments = (_whole_array(kind, mesh, size, size_bytes),)
        jax.block_until_ready(run(*arguments))
        once_s = time_runs_of(run, arguments, count=1, is_async=is_async)
        times_s = [
            time_runs_s(run, arguments, sample_s=effort.sample_s, is_async=is_async) for _ in range(effort.rounds)
        ]
        yield CollectiveSample(kind=kind, group_size=size, size_bytes=size_bytes, time_s=min(*times_s, once_s))
        if once_s > effort.longest_s:
            return


def _collective(kind: GroupCollective, mesh: Mesh, axis: str) -> Callable[..., Any]:
    """Returns a collective of every group along an axis, under `jit`."""
    size = mesh.shape[axis]
    ring = [(chip, (chip + 1) % size) for chip in range(size)]

    def body(values: jax.Array) -> jax.Array:
        match kind:
            case GroupCollective.ALL_GATHER:
                return lax.all_gather(values, axis, tiled=True)
            case GroupCollective.REDUCE_SCATTER:
                return lax.psum_scatter(values, axis, tiled=True)
            case GroupCollective.ALL_REDUCE:
                return lax.psum(values, axis)
            case GroupCollective.ALL_TO_ALL:
                return lax.all_to_all(values, axis, split_axis=0, concat_axis=0, tiled=True)
            case GroupCollective.PERMUTE:
                return lax.ppermute(values, axis, ring)

    every = PartitionSpec((_OUTER, _INNER))
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=every, out_specs=every, check_vma=False))


def _whole_array(kind: GroupCollective, mesh: Mesh, size: int, size_bytes: int) -> jax.Array:
    """Returns the input of a collective; an all-gather begins with a part of the whole array on each device."""
    held = size_bytes // _ITEM_BYTES // (size if kind is GroupCollective.ALL_GATHER else 1)
    held = max(size, held // size * size)
    sharding = NamedSharding(mesh, PartitionSpec((_OUTER, _INNER)))
    return make_array(jax.ShapeDtypeStruct((held * mesh.size,), np.dtype(np.float32)), sharding)
