"""A reduce-scatter as neighbour permutes in two streams round a ring, so that each can run beside a product.

The sum for a chip starts one chip after it and is complete when it comes home, P - 1 permutes later. The first half of
the other dim goes forward and the second half backward, so that on a torus each direction of a link carries half of
every sum. Transfers have the dtype of the matrices (see `rings`).

On v5e the compiler makes a permute synchronous if it closes a ring, on v4, v5p and v6e it does not. A permute over at
most two chips stays asynchronous on all of them. So on v5e the ring is folded: 0, 2, 4, .., 5, 3, 1. Then no permute
goes further than two chips, and on a line of chips a link carries no more than with a ring that closes over all of it:
each direction P - 1 times a chip's part of the sums.
"""

from dataclasses import dataclass

import jax
import numpy as np
from jax import lax

from jaxquard.gemm.algorithms.products.product import Axes
from jaxquard.gemm.algorithms.transfers.rings import axes_size, permute, ring_index

_FOLDED_KINDS = frozenset({"TPU v5 lite", "TPU v5e"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStream:
    """The sums of some rows (or columns): `width` of them, from `start` on.

    Attributes:
        order: the chips in the order of the ring.
        step: 1: a chip sends to the next one of the ring; -1: to the one before.
    """

    axes: Axes
    order: tuple[int, ...]
    step: int
    start: int
    width: int

    @property
    def num_chips(self) -> int:
        return len(self.order)

    def own(self, matrix: jax.Array, *, dim: int) -> jax.Array:
        """Returns the rows of a matrix whose sums this stream takes along."""
        return lax.slice_in_dim(matrix, self.start, self.start + self.width, axis=dim)

    def destinations(self) -> jax.Array:
        """Returns, for each turn, the number of the chip whose sum is here; in the last turn it is this one."""
        chips = self.num_chips
        places = [self.order.index(chip) for chip in range(chips)]
        table = [[self.order[(place - self.step * (turn + 1)) % chips] for turn in range(chips)] for place in places]
        return lax.dynamic_index_in_dim(np.array(table, np.int32), ring_index(self.axes), keepdims=False)

    def send(self, total: jax.Array) -> jax.Array:
        """Sends a sum on by one chip."""
        chips = self.num_chips
        pairs = [(self.order[i], self.order[(i + self.step) % chips]) for i in range(chips)]
        return permute(total, self.axes, pairs)


def ring_streams(axes: Axes, size: int) -> tuple[RingStream, ...]:
    """Returns the streams of sums with `size` rows; one row cannot be halved."""
    order = folded_order(axes_size(axes)) if _is_folded() else tuple(range(axes_size(axes)))
    half = size // 2
    if half == 0:
        return (RingStream(axes=axes, order=order, step=1, start=0, width=size),)
    return (
        RingStream(axes=axes, order=order, step=1, start=0, width=half),
        RingStream(axes=axes, order=order, step=-1, start=half, width=size - half),
    )


def folded_order(num_chips: int) -> tuple[int, ...]:
    """Returns a ring over a line of chips in which neighbours are at most two apart.

    Example:
        >>> folded_order(6)
        (0, 2, 4, 5, 3, 1)
    """
    return (*range(0, num_chips, 2), *range(num_chips - 1 - num_chips % 2, 0, -2))


def _is_folded() -> bool:
    """Returns whether the devices of the mesh around us close no ring of asynchronous permutes."""
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    return getattr(device, "device_kind", None) in _FOLDED_KINDS
