"""The parts of levels over which any set of devices extends, as the replica groups of a compiled program name them.

A group that is a box has, along every dim of every level, the same places for all places along the others. Its spans
are those of `group_spans`, so that both price alike. Any other set, such as three chips of one host and one of another,
is taken as one ring of all its devices through the outermost level that it spans, which is never faster than it is.
"""

import itertools
import math
from collections.abc import Iterable, Sequence

from jaxquard.cluster.cluster import Level
from jaxquard.cluster.levels import LevelSpan, closes_to_ring
from jaxquard.errors import ClusterError


def spans_of_devices(levels: Sequence[Level], device_ids: Iterable[int]) -> tuple[LevelSpan, ...]:
    """Returns the parts of levels over which a set of devices extends, innermost first; none for a single device.

    Args:
        levels: of the cluster (`levels_of`).
        device_ids: the numbers of the chips, innermost level fastest.

    Raises:
        ClusterError: if there are no devices, or a number is no chip of the cluster.

    Example:
        >>> levels = jq.cluster.levels_of(jq.cluster.load_cluster("h100-8x16"))
        >>> [(span.level.name, span.size) for span in jq.cluster.spans_of_devices(levels, range(0, 128, 4))]
        [('node', 2), ('between nodes', 16)]
    """
    dims = [(level, size) for level in levels for size in reversed(level.dims)]
    devices = sorted(set(device_ids))
    _check_devices(devices, math.prod(size for _, size in dims))
    places = [_places([size for _, size in dims], device) for device in devices]
    along = [sorted(set(column)) for column in zip(*places, strict=True)]
    if math.prod(map(len, along)) == len(devices):
        return tuple(
            _span(level, whole, found, dim)
            for dim, ((level, whole), found) in enumerate(zip(dims, along, strict=True))
            if len(found) > 1
        )
    outermost = max(dim for dim, found in enumerate(along) if len(found) > 1)
    return (LevelSpan(level=dims[outermost][0], size=len(devices), dim=outermost),)


def _check_devices(devices: Sequence[int], num_chips: int) -> None:
    if not devices:
        raise ClusterError("device_ids must have a device, but is empty.")
    wrong = [device for device in devices if not 0 <= device < num_chips]
    if wrong:
        raise ClusterError(f"device_ids has {wrong[0]}, but the cluster's chips are 0 to {num_chips - 1}.")


def _places(sizes: Sequence[int], device: int) -> tuple[int, ...]:
    """Returns the place of a device along each dim, innermost first."""
    places = []
    for size in sizes:
        device, place = divmod(device, size)
        places.append(place)
    return tuple(places)


def _span(level: Level, whole: int, places: Sequence[int], dim: int) -> LevelSpan:
    is_ring = level.is_torus and len(places) == whole and closes_to_ring(level, whole)
    gaps = (after - before for before, after in itertools.pairwise(places))
    return LevelSpan(level=level, size=len(places), is_ring=is_ring, stride=max(gaps), dim=dim)
