"""Reads arrays onto devices from a checkpoint: for each device just the box that it holds."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord, data_type
from jaxquard.runtime.checkpoint.files.read_pieces import ReadJob
from jaxquard.runtime.checkpoint.files.regions import Region
from jaxquard.runtime.transfer import is_key


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWanted:
    """A request for rows of a leaf as one array on an actor. It can be pickled.

    Attributes:
        start: the first row; 0 for a scalar.
        type: of the array on the actor, with its sharding there.
    """

    leaf: LeafRecord
    start: int
    type: ArrayType


def rows_job(wanted: RowsWanted, sharding: Sharding) -> ReadJob:
    """Makes a `jax.Array` of a leaf's rows, with this sharding; other processes fill their own devices."""
    shape, tail = wanted.type.shape, data_type(wanted.leaf).tail

    def region_of(index: tuple[slice, ...] | None) -> Region:
        return Region.of_index((index or ())[: len(shape)], shape).shifted(wanted.start).extended(tail)

    def make(read: Any) -> jax.Array:
        with jax.enable_x64(True):
            if not is_key(wanted.leaf.dtype):
                return jax.make_array_from_callback(shape, sharding, lambda index: read(region_of(index)))
            data = jax.make_array_from_callback(
                (*shape, *tail),
                _with_tail(sharding, len(shape)),
                lambda index: read(region_of(index)),
            )
            return jax.random.wrap_key_data(data, impl=_jax_compat.key_implementation(wanted.leaf.dtype))

    indices = sharding.addressable_devices_indices_map(shape).values()
    regions = {region_of(index): None for index in indices if index is not None}
    return ReadJob(leaf=wanted.leaf, regions=tuple(regions), make=make)


def value_job(leaf: LeafRecord) -> ReadJob:
    """Makes a NumPy array of the whole leaf; of random keys, their data."""
    region = Region.whole(leaf.shape).extended(data_type(leaf).tail)
    return ReadJob(leaf=leaf, regions=(region,), make=lambda read: np.asarray(read(region)))


def _with_tail(sharding: Sharding, num_dims: int) -> Sharding:
    """Turns the sharding of keys into that of their data, whose last dims are not sharded."""
    if isinstance(sharding, NamedSharding):
        spec = (*sharding.spec, *(None,) * (num_dims - len(sharding.spec)))
        return NamedSharding(sharding.mesh, PartitionSpec(*spec, None))
    return sharding
