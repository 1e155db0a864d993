"""A reduce-scatter as neighbour transfers along a line, step by step, so that each step can run beside a product.

Sums flow in both directions at once. In step t = 1 .. P - 1, chip i hands on to chip i + 1 the sum for chip
i + P - t, which so far has the terms of chips 0 .. i; and to chip i - 1, as in a mirror. All sums arrive in the last
step. No transfer goes from the last chip round to the first: on v5e:4x8 the compiler made the steps of a closed ring
synchronous, and those of a line not (on v4 it made both asynchronous). Where the chips form a torus, a closed ring in
both directions would send half as much over each link.

A chip sends P - 1 parts on the average, as in a ring; transfers have the dtype of the matrices (see `rings`).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.algorithms.products.product import Axes, accumulator
from jaxquard.gemm.algorithms.transfers.rings import permute, ring_index, ring_size

Passing = tuple[jax.Array, jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineScatter:
    """One reduce-scatter along `dim`; `name` is the scope in which its transfers appear in the compiled program."""

    axes: Axes
    dim: int
    name: str

    @property
    def num_steps(self) -> int:
        return ring_size(self.axes) - 1

    def step(self, partial: jax.Array, number: int, passing: Passing | None) -> Passing:
        """Returns the sums that arrive in step `number` from either side, given those of the step before."""
        chips, chip = ring_size(self.axes), ring_index(self.axes)
        forward = self._part(partial, chip + chips - number)
        backward = self._part(partial, chip - chips + number)
        if passing is not None:
            forward, backward = _add(forward, passing[0]), _add(backward, passing[1])
        pairs = [(i, i + 1) for i in range(number)]
        mirrored = [(chips - 1 - source, chips - 1 - destination) for source, destination in pairs]
        with jax.named_scope(self.name):
            return permute(forward, self.axes, pairs), permute(backward, self.axes, mirrored)

    def finish(self, partial: jax.Array, passing: Passing | None) -> jax.Array:
        """Returns this chip's sum, given the sums that arrived in the last step."""
        mine = self._part(partial, ring_index(self.axes)) if self.num_steps else partial
        return mine if passing is None else _add(mine, *passing)

    def _part(self, partial: jax.Array, chip: jax.Array | int) -> jax.Array:
        """Returns this chip's term of a chip's sum; beyond the line's end any part, as nobody receives it."""
        chips = ring_size(self.axes)
        width = partial.shape[self.dim] // chips
        return lax.dynamic_slice_in_dim(partial, jnp.clip(chip, 0, chips - 1) * width, width, axis=self.dim)


def _add(first: jax.Array, *others: jax.Array) -> jax.Array:
    dtype = accumulator(first.dtype)
    return sum((other.astype(dtype) for other in others), first.astype(dtype)).astype(first.dtype)
