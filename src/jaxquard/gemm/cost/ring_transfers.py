"""Transfers: one collective on the rings of a mesh, with the parts of its time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxquard.cluster import Axis, Cluster, Collective, RingTime
from jaxquard.cluster.times.ring import (
    checked_ring_time,
    num_launches,
    ring_bandwidth_bytes_per_s,
    ring_size,
    ring_sync_s,
    shares_port,
)
from jaxquard.gemm.algorithms.products.sized_product import MeshShape, MovingMatrix, SizedProduct
from jaxquard.gemm.algorithms.transfers.ring_broadcast import num_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTransfer:
    """A collective that all chips of a mesh do at once, each on its ring along `axis`.

    Attributes:
        num_steps: from neighbour to neighbour.
        num_launches: of operations, one after another.
        size_bytes: the bytes that a chip sends in all of them.
    """

    name: str
    axis: Axis
    kind: Collective
    num_steps: int
    num_launches: int
    size_bytes: float
    time: RingTime

    @property
    def time_s(self) -> float:
        return self.time.time_s

    @property
    def memory_bytes(self) -> float:
        """The bytes read and written in a chip's memory: a reduction also reads what it adds to."""
        return self.size_bytes * (3 if self.kind is Collective.REDUCE_SCATTER else 2)


def collective_transfer(
    cluster: Cluster, product: SizedProduct, moving: MovingMatrix, *, mesh_shape: MeshShape, num_slices: int
) -> tuple[RingTransfer, ...]:
    """Returns the all-gather or reduce-scatter of one slice of a matrix; nothing on a ring of one chip."""
    ring = ring_size(moving.axis, mesh_shape)
    shard = product.shard_bytes(moving, mesh_shape) / num_slices
    time = checked_ring_time(cluster, moving.collective, axis=moving.axis, mesh_shape=mesh_shape, shard_bytes=shard)
    return _transfers(moving, moving.collective, steps=ring - 1, launches=1, size_bytes=(ring - 1) * shard, time=time)


def permutes_transfer(
    cluster: Cluster,
    moving: MovingMatrix,
    *,
    mesh_shape: MeshShape,
    num_permutes: int,
    size_bytes: float,
    bidirectional: bool = False,
) -> tuple[RingTransfer, ...]:
    """Returns permutes to a neighbour one after another, each of so many bytes; nothing for none, or for one chip.

    With `bidirectional` each sends one half of its bytes each way.
    """
    if ring_size(moving.axis, mesh_shape) == 1:
        return ()
    time = checked_ring_time(
        cluster,
        Collective.PERMUTE,
        axis=moving.axis,
        mesh_shape=mesh_shape,
        shard_bytes=size_bytes,
        num_steps=num_permutes,
        bidirectional=bidirectional,
    )
    launches = round(num_launches(cluster, Collective.PERMUTE, num_steps=num_permutes))
    sent_bytes = num_permutes * size_bytes
    return _transfers(
        moving, Collective.PERMUTE, steps=num_permutes, launches=launches, size_bytes=sent_bytes, time=time
    )


def shift_transfer(
    cluster: Cluster,
    product: SizedProduct,
    moving: MovingMatrix,
    *,
    mesh_shape: MeshShape,
    num_steps: int,
    bidirectional: bool = False,
) -> tuple[RingTransfer, ...]:
    """Sends whole shards round the ring by a chain of `num_steps` permutes."""
    return permutes_transfer(
        cluster,
        moving,
        mesh_shape=mesh_shape,
        num_permutes=num_steps,
        size_bytes=product.shard_bytes(moving, mesh_shape),
        bidirectional=bidirectional,
    )


def broadcast_transfer(
    cluster: Cluster,
    product: SizedProduct,
    moving: MovingMatrix,
    *,
    mesh_shape: MeshShape,
    num_parts: int,
    group: int,
    num_packets: int,
) -> tuple[RingTransfer, ...]:
    """Returns SUMMA's broadcasts or reductions of `group` of a matrix's `num_parts` parts (section 2.3.3).

    A part streams over a ring of P chips as D packets in P + D - 2 stages (`num_stages`), each synchronised and each a
    permute, as `ring_broadcast` makes them; or, where the network has broadcasts, each part is one operation.
    """
    ring = ring_size(moving.axis, mesh_shape)
    if ring == 1:
        return ()
    kind = broadcast_kind(cluster, moving)
    part = product.gathered_bytes(moving, mesh_shape) / num_parts
    bandwidth = ring_bandwidth_bytes_per_s(cluster, kind, axis=moving.axis, mesh_shape=mesh_shape)
    sync_s = ring_sync_s(cluster, kind, axis=moving.axis, mesh_shape=mesh_shape)
    steps = group * num_stages(ring, num_packets)
    launches = group if cluster.network.has_broadcast else round(num_launches(cluster, kind, num_steps=steps))
    time = RingTime(
        launch_s=launches * cluster.links(kind).launch_s,
        sync_s=steps * sync_s,
        transfer_s=steps * part / num_packets / bandwidth,
    )
    return _transfers(moving, moving.collective, steps=steps, launches=launches, size_bytes=group * part, time=time)


def broadcast_minimum_s(cluster: Cluster, moving: MovingMatrix, *, mesh_shape: MeshShape) -> float:
    """Returns the seconds that SUMMA's broadcasts or reductions of a matrix take with one packet and no bytes."""
    ring, kind = ring_size(moving.axis, mesh_shape), broadcast_kind(cluster, moving)
    if ring == 1:
        return 0.0
    steps = math.lcm(*mesh_shape) * num_stages(ring, 1)
    launches = 0.0 if cluster.network.has_broadcast else num_launches(cluster, kind, num_steps=steps)
    sync_s = ring_sync_s(cluster, kind, axis=moving.axis, mesh_shape=mesh_shape)
    return launches * cluster.links(kind).launch_s + steps * sync_s


def broadcast_kind(cluster: Cluster, moving: MovingMatrix) -> Collective:
    """Returns the kind of collective whose constants a broadcast or reduction of a matrix has."""
    return moving.collective if cluster.network.has_broadcast else Collective.PERMUTE


def share_port(cluster: Cluster, transfers: Sequence[RingTransfer], mesh_shape: MeshShape) -> tuple[RingTransfer, ...]:
    """Returns the transfers as they are when all are under way at once.

    On a switch what a chip sends along rows and columns goes through one port (section 6), so that each takes as long
    as the transfers of all; on a torus nothing changes.
    """
    if not shares_port(cluster, mesh_shape):
        return tuple(transfers)
    transfer_s = sum(transfer.time.transfer_s for transfer in transfers)
    return tuple(replace(transfer, time=replace(transfer.time, transfer_s=transfer_s)) for transfer in transfers)


def _transfers(
    moving: MovingMatrix, kind: Collective, *, steps: int, launches: int, size_bytes: float, time: RingTime
) -> tuple[RingTransfer, ...]:
    if steps == 0:
        return ()
    return (
        RingTransfer(
            name=moving.name,
            axis=moving.axis,
            kind=kind,
            num_steps=steps,
            num_launches=launches,
            size_bytes=size_bytes,
            time=time,
        ),
    )


def transpose_time_s(cluster: Cluster, *, shard_bytes: float, mesh_shape: MeshShape) -> float:
    """Returns the seconds to exchange the directions over which a matrix is sharded, rows for columns.

    Shards go from neighbour to neighbour, at most half the ring of each direction, as in Cannon's skew.
    """
    return sum(
        checked_ring_time(
            cluster,
            Collective.PERMUTE,
            axis=axis,
            mesh_shape=mesh_shape,
            shard_bytes=shard_bytes,
            num_steps=ring_size(axis, mesh_shape) // 2,
        ).time_s
        for axis in Axis
    )
