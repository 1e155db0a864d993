"""Refuses what no ring and no product can have, in the user's words, where a price would come out wrong instead."""

import math
from numbers import Integral, Real
from typing import Any

from jaxquard.cluster.cluster import Axis, Cluster, Collective
from jaxquard.errors import ClusterError


def check_cluster(cluster: Any) -> None:
    """Raises a ClusterError unless it is a Cluster."""
    if not isinstance(cluster, Cluster):
        raise ClusterError(f"cluster must be a Cluster, but is {cluster!r:.80}. Load one: load_cluster('tpu-v4').")


def check_ring(
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


def check_number(value: Any, name: str, *, is_positive: bool = True) -> None:
    """Raises a ClusterError unless it is a number above 0, or of at least 0."""
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (is_positive and value == 0):
        raise ClusterError(f"{name} must be a number {'above 0' if is_positive else 'of 0 or more'}, but is {value!r}.")
