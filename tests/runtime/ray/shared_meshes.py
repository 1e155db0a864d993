"""Meshes on Ray that many tests share, as starting one takes seconds."""

from typing import Any

from jax.sharding import AxisType

import jaxquard as jq

_KINDS: dict[str, dict[str, Any]] = {
    "narrow": {"shape": (2,)},
    "wide": {"shape": (2,), "spmd_mesh": (2, 2), "spmd_axis_names": ("data", "model")},
    "explicit": {
        "shape": (2,),
        "spmd_mesh": (2,),
        "spmd_axis_names": ("model",),
        "spmd_axis_types": AxisType.Explicit,
    },
    "collective": {"shape": (2,), "transport": "collective"},
}


class SharedMeshes:
    """Started when they are first asked for; closed when a test wants a Ray of its own, and at the end."""

    def __init__(self) -> None:
        self._open: dict[str, jq.RemoteMesh] = {}

    def __getitem__(self, kind: str) -> jq.RemoteMesh:
        if kind not in self._open:
            self._open[kind] = jq.RemoteMesh(**_KINDS[kind], runtime="ray", heartbeat_timeout_s=30)
        return self._open[kind]

    def close(self) -> None:
        while self._open:
            _, mesh = self._open.popitem()
            mesh.close()
