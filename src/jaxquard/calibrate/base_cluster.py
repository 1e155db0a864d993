"""The cluster that a calibration starts from, for all that it does not measure."""

import os
import re
from collections.abc import Sequence

import jax

from jaxquard.cluster import Cluster, Compute, Links, Memory, Network, Topology, load_cluster

# The beginning of a word in JAX's name of a device, and the preset that describes it: a GH200 is no H200.
_PRESETS = {
    "H200": "h200",
    "H100": "h100",
    "A100": "a100",
    "TPU v4": "tpu-v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v6": "v6e",
}
_ESTIMATED_BANDWIDTH_BYTES_PER_S = 20e9


def base_cluster(devices: Sequence[jax.Device]) -> tuple[Cluster, tuple[str, ...]]:
    """Returns the preset of a kind of device, or an estimate for an unknown one; with remarks on it."""
    kind = devices[0].device_kind
    for part, name in _PRESETS.items():
        if re.search(rf"\b{part}", kind):
            return load_cluster(name), (f"what is not measured is taken from the preset {name}",)
    note = (
        f"no preset describes {kind!r}: the peak is the fitted speed, and the memory's bandwidth "
        f"({_ESTIMATED_BANDWIDTH_BYTES_PER_S / 1e9:.0f} GB/s) is an estimate"
    )
    return _unknown_cluster(devices), (note,)


def _unknown_cluster(devices: Sequence[jax.Device]) -> Cluster:
    stats = devices[0].memory_stats() or {}
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bandwidth = _ESTIMATED_BANDWIDTH_BYTES_PER_S
    links = Links(row_bandwidth_bytes_per_s=bandwidth, column_bandwidth_bytes_per_s=bandwidth, sync_s=0.0, launch_s=0.0)
    return Cluster(
        name=devices[0].platform,
        num_chips=len(devices),
        # 1 FLOP/s: fits replace it, and the peak follows.
        compute=Compute(peak_flops_per_s=1.0, effective_flops_per_s=1.0),
        memory=Memory(size_bytes=stats.get("bytes_limit", host_bytes // len(devices)), bandwidth_bytes_per_s=bandwidth),
        network=Network(topology=Topology.SWITCH, is_bidirectional=False),
        all_gather=links,
        reduce_scatter=links,
        permute=links,
    )
