"""Broadcast and reduction over a ring by neighbour transfers (MeshSlice, section 2.3.3, Figure 3 left).

A matrix streams over the ring in D packets: of P chips, the d-th after the root sends packet t - d in stage t, so
there are P + D - 2 stages, each with a synchronisation, and most links idle in the first and last ones. In all, P - 1
links carry the whole matrix once.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxquard.gemm.algorithms.products.product import Axes
from jaxquard.gemm.algorithms.transfers.rings import axes_size, permute, ring_index


def num_stages(num_chips: int, num_packets: int) -> int:
    """Returns the number of stages: of P chips the d-th sends packet t - d in stage t, and the last one nothing."""
    return num_chips + num_packets - 2 if num_chips > 1 else 0


def broadcast(matrix: jax.Array, axes: Axes, *, root: int, num_packets: int) -> jax.Array:
    """Gives every chip of the ring the matrix of chip `root`."""
    chips = axes_size(axes)
    distance = (ring_index(axes) - root) % chips
    packets = matrix.reshape(num_packets, -1)
    for stage in range(num_stages(chips, num_packets)):
        sent = lax.dynamic_index_in_dim(packets, _packet(stage - distance, num_packets), keepdims=False)
        received = permute(sent, axes, _chain(stage, first=root, chips=chips, num_packets=num_packets))
        slot = stage - distance + 1
        stored = lax.dynamic_update_index_in_dim(packets, received, _packet(slot, num_packets), 0)
        is_mine = (distance > 0) & (slot >= 0) & (slot < num_packets)
        packets = jnp.where(is_mine, stored, packets)
    return packets.reshape(matrix.shape)


def reduce(partial: jax.Array, axes: Axes, *, root: int, num_packets: int, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Sums over the ring, on chip `root`; the others get nothing of use. Packets have the given dtype."""
    chips = axes_size(axes)
    distance = (ring_index(axes) - root - 1) % chips
    packets = partial.reshape(num_packets, -1)
    for stage in range(num_stages(chips, num_packets)):
        sent = lax.dynamic_index_in_dim(packets, _packet(stage - distance, num_packets), keepdims=False)
        chain = _chain(stage, first=root + 1, chips=chips, num_packets=num_packets)
        received = permute(sent.astype(dtype), axes, chain)
        slot = stage - distance + 1
        added = lax.dynamic_index_in_dim(packets, _packet(slot, num_packets), keepdims=False) + received
        stored = lax.dynamic_update_index_in_dim(packets, added, _packet(slot, num_packets), 0)
        is_mine = (distance > 0) & (slot >= 0) & (slot < num_packets)
        packets = jnp.where(is_mine, stored, packets)
    return packets.reshape(partial.shape).astype(dtype)


def _chain(stage: int, *, first: int, chips: int, num_packets: int) -> list[tuple[int, int]]:
    """Returns the pairs (source, destination) of a stage."""
    return [
        ((first + distance) % chips, (first + distance + 1) % chips)
        for distance in range(chips - 1)
        if 0 <= stage - distance < num_packets
    ]


def _packet(number: jax.Array | int, num_packets: int) -> jax.Array:
    return jnp.clip(number, 0, num_packets - 1)
