"""The linear cost of a collective on a ring (MeshSlice, section 3.2.2).

    time = launch + (num_chips - 1) * (sync + shard / bandwidth)

A permute is one step; of a chain of them each has its launch, unless the constants are of chains
(`Network.launches_each_permute`). Halves that go both ways at once are launched at once, as are collectives along rows
and columns. A ring of one chip moves nothing and costs nothing.

Over a switch a mesh is virtual (section 6): a ring that leaves a node is as slow as the network between nodes,
and the rows and the columns of a mesh share a chip's port (`shares_port`) when both go the same way.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from jaxquard.cluster.cluster import Axis, Cluster, Collective, Topology, check_cluster, check_number
from jaxquard.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTime:
    """The time of a collective: launch, synchronisation and transfer.

    Example:
        >>> time = jq.cluster.RingTime(launch_s=1e-5, sync_s=2e-5, transfer_s=7e-5)
        >>> f"{time.transfer_s / time.time_s:.0%} of {time.time_s:.1e} s"
        '70% of 1.0e-04 s'
    """

    launch_s: float = 0.0
    sync_s: float = 0.0
    transfer_s: float = 0.0

    @property
    def time_s(self) -> float:
        return self.launch_s + self.sync_s + self.transfer_s


def ring_time(
    cluster: Cluster,
    kind: Collective,
    *,
    axis: Axis,
    mesh_shape: tuple[int, int],
    shard_bytes: float,
    num_steps: float | None = None,
    bidirectional: bool = False,
) -> RingTime:
    """Predicts the time of one collective, or of a chain of permutes, alone on its ring.

    Args:
        mesh_shape: rows and columns of chips; chips are numbered along the rows, so that a node is filled by a row
            before the next one begins.
        shard_bytes: the bytes that a chip sends in one step.
        num_steps: the number of steps, or of permutes; left out, one less than the chips of the ring.
        bidirectional: a permute sends one half of the shard each way round; it counts where links carry both at once.

    Raises:
        ClusterError: an argument is none that a ring can have.

    Example:
        >>> cluster = jq.cluster.load_cluster("tpu-v4")
        >>> time = jq.cluster.ring_time(
        ...     cluster,
        ...     jq.cluster.Collective("all_gather"),
        ...     axis=jq.cluster.Axis("rows"),
        ...     mesh_shape=(4, 4),
        ...     shard_bytes=2**20,
        ... )
        >>> f"{time.time_s:.2e}"
        '1.70e-04'
    """
    _check_ring(cluster, kind, axis=axis, mesh_shape=mesh_shape, shard_bytes=shard_bytes, num_steps=num_steps)
    return checked_ring_time(
        cluster,
        kind,
        axis=axis,
        mesh_shape=mesh_shape,
        shard_bytes=shard_bytes,
        num_steps=num_steps,
        bidirectional=bidirectional,
    )


def checked_ring_time(
    cluster: Cluster,
    kind: Collective,
    *,
    axis: Axis,
    mesh_shape: tuple[int, int],
    shard_bytes: float,
    num_steps: float | None = None,
    bidirectional: bool = False,
) -> RingTime:
    """Returns what `ring_time` does for arguments that are known to be right: a tuner asks for many."""
    ring = ring_size(axis, mesh_shape)
    if ring == 1 or num_steps == 0:
        return RingTime()
    links = cluster.links(kind)
    steps = ring - 1 if num_steps is None else num_steps
    sync_s = ring_sync_s(cluster, kind, axis=axis, mesh_shape=mesh_shape)
    bandwidth = ring_bandwidth_bytes_per_s(cluster, kind, axis=axis, mesh_shape=mesh_shape, bidirectional=bidirectional)
    return RingTime(
        launch_s=num_launches(cluster, kind, num_steps=steps) * links.launch_s,
        sync_s=steps * sync_s,
        transfer_s=steps * shard_bytes / bandwidth,
    )


def num_launches(cluster: Cluster, kind: Collective, *, num_steps: float) -> float:
    """Returns the number of launches of so many steps of a ring."""
    return num_steps if kind is Collective.PERMUTE and cluster.network.launches_each_permute else 1


def ring_size(axis: Axis, mesh_shape: tuple[int, int]) -> int:
    """Returns the chips of a ring: along the rows there are as many as the mesh has rows."""
    return mesh_shape[0] if axis is Axis.ROWS else mesh_shape[1]


def ring_bandwidth_bytes_per_s(
    cluster: Cluster, kind: Collective, *, axis: Axis, mesh_shape: tuple[int, int], bidirectional: bool = False
) -> float:
    """Returns the bandwidth of the slowest step of a ring."""
    bandwidth = cluster.links(kind).bandwidth_bytes_per_s(axis)
    if kind is Collective.PERMUTE and bidirectional and cluster.network.is_bidirectional:
        bandwidth *= 2
    if is_between_nodes(cluster, axis=axis, mesh_shape=mesh_shape):
        bandwidth = min(bandwidth, cluster.network.between_nodes_bandwidth_bytes_per_s)
    return bandwidth


def ring_sync_s(cluster: Cluster, kind: Collective, *, axis: Axis, mesh_shape: tuple[int, int]) -> float:
    """Returns the synchronisation time of the slowest step of a ring."""
    leaves = is_between_nodes(cluster, axis=axis, mesh_shape=mesh_shape)
    return cluster.links(kind).sync_s + (cluster.network.between_nodes_sync_s if leaves else 0.0)


def is_between_nodes(cluster: Cluster, *, axis: Axis, mesh_shape: tuple[int, int]) -> bool:
    """Returns whether the rings along an axis leave a node."""
    node = cluster.network.chips_per_node
    if node == 0 or cluster.network.between_nodes_bandwidth_bytes_per_s == 0:
        return False
    rows, columns = mesh_shape
    if rows * columns <= node:
        return False
    return rows > 1 if axis is Axis.ROWS else columns > node or node % columns != 0


def shares_port(cluster: Cluster, mesh_shape: tuple[int, int]) -> bool:
    """Returns whether the rings along the rows and along the columns take bandwidth from each other."""
    if cluster.network.topology is Topology.TORUS:
        return False
    sides = [is_between_nodes(cluster, axis=axis, mesh_shape=mesh_shape) for axis in Axis]
    return sides[0] == sides[1]


def _check_ring(
    cluster: Any, kind: Any, *, axis: Any, mesh_shape: Any, shard_bytes: float, num_steps: float | None
) -> None:
    """Raises a ClusterError unless a collective can be priced."""
    check_cluster(cluster)
    for name, value, words in (("kind", kind, Collective), ("axis", axis, Axis)):
        if not isinstance(value, words):
            members = ", ".join(f"{words.__name__}.{member.name}" for member in words)
            raise ClusterError(f"{name} must be one of {members}, but is {value!r}.")
    is_pair = isinstance(mesh_shape, tuple | list) and len(mesh_shape) == 2
    if not is_pair or not all(isinstance(count, Integral) and int(count) > 0 for count in mesh_shape):
        raise ClusterError(f"mesh_shape must be the rows and columns of chips, say (4, 2), but is {mesh_shape!r}.")
    check_number(shard_bytes, "shard_bytes", is_positive=False)
    if num_steps is not None:
        check_number(num_steps, "num_steps", is_positive=False)
