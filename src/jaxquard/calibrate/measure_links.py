"""Times all-gathers, reduce-scatters and permutes on rings of devices.

Rings of two sizes separate the time of a step from the time to launch; for a permute, which is one step on any ring,
chains of one, two and four of them do.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.calibrate.sampling import Effort, time_runs_of, time_runs_s
from jaxquard.cluster import Collective, LinkSample
from jaxquard.pricing.values.make_values import make_array

_AXIS = "ring"
_CHAINS = (1, 2, 4)
_ITEM_BYTES = 4
# Inputs, results and what a collective needs meanwhile, of the memory of a device.
_MEMORY_SHARE = 0.25
# Virtual devices have no memory of their own: a ring's buffers together.
_CPU_BYTES = 1 << 30

Progress = Callable[[int, int, str], None]


def ring_sizes(num_devices: int) -> tuple[int, ...]:
    """Returns the number of all devices, and of half of them; no ring for one device, and one for two."""
    return tuple(sorted({size for size in (num_devices // 2, num_devices) if size > 1}))


def measure_links(
    devices: Sequence[jax.Device], effort: Effort, *, on_progress: Progress | None = None
) -> tuple[LinkSample, ...]:
    """Returns samples of every kind of collective, as large as memory and the effort's `longest_s` allow."""
    series = [
        (kind, ring, chain)
        for kind in Collective
        for ring in (ring_sizes(len(devices)) if kind is not Collective.PERMUTE else (len(devices),))
        for chain in (_CHAINS if kind is Collective.PERMUTE else (1,))
    ]
    samples: list[LinkSample] = []
    for number, (kind, ring, chain) in enumerate(series):
        samples += _measure_series(kind, devices[:ring], chain, effort)
        if on_progress is not None:
            on_progress(number + 1, len(series), f"{kind.value} of {ring}")
    return tuple(samples)


def _measure_series(
    kind: Collective, devices: Sequence[jax.Device], chain: int, effort: Effort
) -> Iterator[LinkSample]:
    """Yields samples of one kind on one ring, from small shards to large."""
    mesh = Mesh(np.array(devices), (_AXIS,))
    run = _collective(kind, mesh, chain)
    is_async = devices[0].platform != "cpu"
    for size_bytes in effort.shard_sizes_bytes:
        if size_bytes * (len(devices) + 1) > memory_bytes(devices):
            return
        arguments = (_shards(kind, mesh, size_bytes),)
        jax.block_until_ready(run(*arguments))
        once_s = time_runs_of(run, arguments, count=1, is_async=is_async)
        time_s = min(
            time_runs_s(run, arguments, sample_s=effort.sample_s, is_async=is_async) for _ in range(effort.rounds)
        )
        steps = chain if kind is Collective.PERMUTE else len(devices) - 1
        yield LinkSample(
            kind=kind, ring_size=len(devices), num_steps=steps, shard_bytes=size_bytes, time_s=min(time_s, once_s)
        )
        if once_s > effort.longest_s:
            return


def _collective(kind: Collective, mesh: Mesh, chain: int) -> Callable[..., Any]:
    """Returns a collective of a ring's shards, under `jit`."""
    size = mesh.devices.size
    ring = [(chip, (chip + 1) % size) for chip in range(size)]

    def body(shard: jax.Array) -> jax.Array:
        if kind is Collective.ALL_GATHER:
            return lax.all_gather(shard, _AXIS, tiled=True)
        if kind is Collective.REDUCE_SCATTER:
            return lax.psum_scatter(shard, _AXIS, tiled=True)
        for _ in range(chain):
            shard = lax.ppermute(shard, _AXIS, ring)
        return shard

    sharded = PartitionSpec(_AXIS)
    out = PartitionSpec() if kind is Collective.ALL_GATHER else sharded
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(sharded,), out_specs=out, check_vma=False))


def _shards(kind: Collective, mesh: Mesh, size_bytes: int) -> jax.Array:
    """Returns the input of a collective of shards of this size; of a reduce-scatter, each device has one for each."""
    size = mesh.devices.size
    length = size_bytes // _ITEM_BYTES * size * (size if kind is Collective.REDUCE_SCATTER else 1)
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
    return make_array(jax.ShapeDtypeStruct((length,), np.dtype(np.float32)), sharding)


def memory_bytes(devices: Sequence[jax.Device]) -> float:
    """Returns the bytes that one device may use."""
    if devices[0].platform == "cpu":
        return _CPU_BYTES / len(devices)
    stats = devices[0].memory_stats() or {}
    return _MEMORY_SHARE * stats.get("bytes_limit", _CPU_BYTES)
