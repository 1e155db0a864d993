"""Constants that a cluster's file may leave out: those of its kind of chip, never 0.

The network shows the kind: TPUs form a torus, GPUs hang on a switch. A file of the paper's own constants
(`is_paper_set`) is left as it is: the paper's cost model has none of them.
"""

from collections.abc import Mapping
from typing import Any

from jaxquard.cluster.cluster import Topology

_TPU = {
    # The systolic array of all TPUs up to v5p; v6e has 256.
    "compute": {
        "systolic_dim": 128,
        # Between the shares of v5e, v5p and v6e, as their compiler estimates them (see the presets).
        "output_exposed": 0.5,
        "launch_s": 2e-6,
        "slice_copy_exposed": 1.0,
        "cast_exposed": 0.0,
    },
    "network": {"hides_one_collective": True},
}
_GPU = {
    # As measured on an H200 (see its preset).
    "compute": {
        "output_exposed": 0.732,
        "accumulate_slowdown": 0.0285,
        "launch_s": 6.15e-6,
        "slice_copy_exposed": 1.0,
        "cast_exposed": 1.1,
        "num_cores": 132,
    }
}
KINDS: Mapping[Topology, tuple[str, Mapping[str, Mapping[str, Any]]]] = {
    Topology.TORUS: ("TPUs", _TPU),
    Topology.SWITCH: ("GPUs", _GPU),
}
"""The name of each kind, and its constants by table and key."""


def fill_defaults(content: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the content of a cluster's file with the constants of its kind where it has none, and their names.

    The names are a text such as "compute.launch_s and compute.systolic_dim of TPUs", or empty where nothing is filled.
    """
    network = content.get("network")
    topology = network.get("topology") if isinstance(network, dict) else None
    if content.get("is_paper_set") is True or topology not in [member.value for member in Topology]:
        return content, ""
    kind, tables = KINDS[Topology(topology)]
    filled, names = dict(content), []
    for table, constants in tables.items():
        if not isinstance(filled.get(table), dict):
            continue
        missing = {key: value for key, value in constants.items() if key not in filled[table]}
        filled[table] = {**filled[table], **missing}
        names += [f"{table}.{key}" for key in missing]
    if not names:
        return content, ""
    *first, last = names
    return filled, f"{', '.join(first)} and {last} of {kind}" if first else f"{last} of {kind}"
