"""Compiled transfers between two processes: a permutation over the devices of both.

    devices of process 0:  a0 a1        mesh [[a0, a1], [b0, b1]] with axes (pair, device)
    devices of process 1:  b0 b1        ppermute along pair: a0 -> b0, a1 -> b1

The parts of an array are given as one array that is whole on all of these devices, so that its shape is that
of a part whatever the array's sharding is. In truth the copies differ, which only the code in the
`shard_map` sees. The mesh has the same order of processes in both directions: one communicator serves both.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.runtime.transports.layout import LayoutError
from jaxquard.runtime.transports.wire import WireMessage

Parts = list[jax.Array]
Exchange = Callable[[Parts | None], Parts]


class PairExchange:
    """All transfers from one process to another."""

    def __init__(self, source: Sequence[jax.Device], target: Sequence[jax.Device], *, is_source: bool) -> None:
        """Prepares the mesh; nothing is compiled yet."""
        if len(source) != len(target):
            raise LayoutError(
                f"a process with {len(source)} devices cannot send to one with {len(target)}; they must be as many."
            )
        self._own = tuple(source if is_source else target)
        ends = sorted((source, target), key=lambda devices: devices[0].process_index)
        mesh = Mesh(np.array([list(devices) for devices in ends]), ("pair", "device"))
        self._sharding = NamedSharding(mesh, PartitionSpec())
        self._permutation = [(0, 1)] if ends[0] is source else [(1, 0)]
        self._exchanges: dict[tuple[tuple[tuple[int, ...], np.dtype], ...], Exchange] = {}

    def compile(self, message: WireMessage) -> Exchange:
        """Compiles a function that sends the parts of a message, or, given None, receives them.

        It returns at once, with arrays that are ready when the transfer has ended on this side.
        """
        key = tuple((part.shape, part.dtype) for part in message.parts[:: len(self._own)])
        if key not in self._exchanges:
            self._exchanges[key] = self._compile(key)
        return self._exchanges[key]

    def warm_up(self) -> None:
        """Makes the communicator: both processes wait for each other."""
        jax.block_until_ready(self._compile((((1,), np.dtype(np.uint8)),))(None))

    def _compile(self, key: tuple[tuple[tuple[int, ...], np.dtype], ...]) -> Exchange:
        def permute(*arrays: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(jax.lax.ppermute(array, "pair", self._permutation) for array in arrays)

        types = [jax.ShapeDtypeStruct(shape, dtype, sharding=self._sharding) for shape, dtype in key]
        mapped = jax.shard_map(
            permute, mesh=self._sharding.mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False
        )
        compiled = jax.jit(mapped).lower(*types).compile()
        blanks = [jax.device_put(np.zeros(shape, dtype), device) for shape, dtype in key for device in self._own]
        count = len(self._own)

        def exchange(parts: Parts | None) -> Parts:
            parts = blanks if parts is None else parts
            arrays = [
                jax.make_array_from_single_device_arrays(
                    shape, self._sharding, parts[count * position : count * (position + 1)]
                )
                for position, (shape, _) in enumerate(key)
            ]
            return [shard.data for array in compiled(*arrays) for shard in array.addressable_shards]

        return exchange
