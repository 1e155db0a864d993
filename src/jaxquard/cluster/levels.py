"""The levels of a cluster, nested: chips in a host, hosts in a pod, pods in a cluster; or chips in a torus.

Chips are numbered with the innermost level fastest, and in a torus with its last dim fastest, as JAX numbers the
devices of a mesh. So the axes of a mesh take whole levels or parts of them, beginning with the last axis:

    16 hosts of 8 chips, mesh (dp=16, tp=8)      tp within a host, dp between hosts
    16 hosts of 8 chips, mesh (dp=32, tp=4)      tp within half a host; dp has 2 in a host and 16 between hosts
    a torus of 4x4, mesh (x=4, y=4)              x along the first dim, y along the second

A file need not say its levels: those of a switch with nodes follow from its network.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from jaxquard.cluster.cluster import Cluster, Level, Topology
from jaxquard.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSpan:
    """The part of a level's dim over which a group of devices extends.

    Attributes:
        size: the number of its devices along the dim.
        is_ring: the dim closes to a ring, of which the group has the whole.
        stride: the distance of neighbours along the dim.
        dim: the number of the dim among those of all levels, from the innermost one on.

    Example:
        >>> node, between = jq.cluster.levels_of(jq.cluster.load_cluster("h100-8x16"))
        >>> jq.cluster.LevelSpan(level=between, size=4).is_ring
        False
    """

    level: Level = field(repr=False)
    size: int
    is_ring: bool = False
    stride: int = 1
    dim: int = 0


def levels_of(cluster: Cluster) -> tuple[Level, ...]:
    """Returns the levels of a cluster, innermost first; those that its file leaves out follow from its network.

    Example:
        >>> [(level.name, level.dims) for level in jq.cluster.levels_of(jq.cluster.load_cluster("h100"))]
        [('node', (8,)), ('between nodes', (127,))]
    """
    if cluster.levels:
        return cluster.levels
    links, network = cluster.all_gather, cluster.network
    bandwidth = min(links.row_bandwidth_bytes_per_s, links.column_bandwidth_bytes_per_s)
    if network.topology is Topology.TORUS:
        rows = max(size for size in range(1, math.isqrt(cluster.num_chips) + 1) if cluster.num_chips % size == 0)
        dims = (rows, cluster.num_chips // rows)
        # Collectives use both ways of a ring; a level has the bandwidth of one.
        return (_level("torus", dims, bandwidth / 2, links.sync_s, links.launch_s, is_torus=True),)
    node = network.chips_per_node or cluster.num_chips
    inner = _level("node", (min(node, cluster.num_chips),), bandwidth, links.sync_s, links.launch_s)
    if node >= cluster.num_chips:
        return (inner,)
    latency_s = links.sync_s + network.between_nodes_sync_s
    num_nodes = math.ceil(cluster.num_chips / node)
    between = network.between_nodes_bandwidth_bytes_per_s
    return (inner, _level("between nodes", (num_nodes,), between, latency_s, links.launch_s))


def _level(
    name: str, dims: tuple[int, ...], bandwidth: float, latency_s: float, launch_s: float, *, is_torus: bool = False
) -> Level:
    return Level(
        name=name,
        dims=dims,
        is_torus=is_torus,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=latency_s,
        launch_s=launch_s,
    )


def with_shape(cluster: Cluster, shape: Sequence[int]) -> Cluster:
    """Returns a cluster of this shape: `(8, 16)` is 16 hosts of 8 chips; of a torus, the dims of a slice come first.

    Raises:
        ClusterError: if the cluster cannot have it; it says what it can.

    Example:
        >>> jq.cluster.with_shape(jq.cluster.load_cluster("h100"), (8, 16)).num_chips
        128
    """
    known = levels_of(cluster)
    text = "x".join(map(str, shape))
    most = sum(len(level.dims) for level in known)
    if shape and min(shape) < 1:
        raise ClusterError(
            f"{cluster.name}-{text} has a size of {min(shape)}, but each is 1 or more. Say {_example(cluster, known)}."
        )
    if not len(known[0].dims) <= len(shape) <= most:
        raise ClusterError(
            f"{cluster.name}-{text} has {len(shape)} sizes, but {cluster.name} has "
            f"{' and then '.join(_dims_words(level) for level in known)}. Say {_example(cluster, known)}."
        )
    levels, rest = [], tuple(shape)
    for level in known:
        dims, rest = rest[: len(level.dims)], rest[len(level.dims) :]
        if not dims:
            break
        limit = level.dims if level.is_torus else (max(level.dims),)
        if level is known[0] and any(size > most for size, most in zip(sorted(dims), sorted(limit), strict=True)):
            raise ClusterError(
                f"{cluster.name}-{text} has {'x'.join(map(str, dims))} chips in a {level.name}, but there are at most "
                f"{'x'.join(map(str, level.dims))}. Say {_example(cluster, known)}."
            )
        levels.append(replace(level, dims=dims))
    num_chips = math.prod(shape)
    network = cluster.network
    if network.topology is Topology.SWITCH:
        network = replace(network, chips_per_node=shape[0] if len(shape) > 1 else 0)
    return replace(cluster, name=f"{cluster.name}-{text}", num_chips=num_chips, network=network, levels=tuple(levels))


def _dims_words(level: Level) -> str:
    return f"{len(level.dims)} of a {level.name}" if level.is_torus else f"1 for '{level.name}'"


def _example(cluster: Cluster, levels: Sequence[Level]) -> str:
    inner = "x".join(map(str, levels[0].dims))
    return f"{cluster.name}-{inner}" + (f" or {cluster.name}-{inner}x2" if len(levels) > 1 else "")


def group_spans(levels: Sequence[Level], mesh_shape: Sequence[int], axes: Collection[int]) -> tuple[LevelSpan, ...]:
    """Returns the parts of levels over which the groups along some axes of a mesh extend, innermost first.

    Args:
        mesh_shape: the sizes of the mesh's axes, the last one numbered fastest.
        axes: which of them the devices of a group differ in.

    Example:
        >>> levels = jq.cluster.levels_of(jq.cluster.load_cluster("h100-8x16"))
        >>> [(span.level.name, span.size) for span in jq.cluster.group_spans(levels, (32, 4), axes={0})]
        [('node', 2), ('between nodes', 16)]
    """
    dims = [(level, size) for level in levels for size in reversed(level.dims)]
    found: list[LevelSpan] = []
    place, left = 0, dims[0][1]
    for axis in reversed(range(len(mesh_shape))):
        rest = mesh_shape[axis]
        while rest > 1:
            if left == 1 and place + 1 < len(dims):
                place += 1
                left = dims[place][1]
                continue
            level, whole = dims[place]
            is_last = place + 1 == len(dims)
            size = rest if is_last else min(rest, left)
            if axis in axes and size > 1:
                _extend(found, LevelSpan(level=level, size=size, stride=max(1, whole // left), dim=place), whole)
            left = max(1, left // size)
            rest = math.ceil(rest / size)
            if is_last:
                break
    return tuple(found)


def _extend(found: list[LevelSpan], span: LevelSpan, whole: int) -> None:
    """Adds a span of a dim that has `whole` devices; one that goes on where the last ended is part of that one."""
    if found and found[-1].dim == span.dim and found[-1].stride * found[-1].size == span.stride:
        last = found.pop()
        span = replace(last, size=last.size * span.size)
    is_ring = span.level.is_torus and span.size == whole and closes_to_ring(span.level, whole)
    found.append(replace(span, is_ring=is_ring))


def closes_to_ring(level: Level, size: int) -> bool:
    """Returns true if a dim of a torus has links from its end to its beginning."""
    return size > 2 and level.wraps_at > 0 and size % level.wraps_at == 0
