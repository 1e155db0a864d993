"""Clusters by the words that publications use for hardware: "A100-80G Selene", "H100-80G DGX (Eos, NDR400)", "v5p-128".

A preset gives most figures; what a publication says besides (memory, network, power limit) replaces them. Figures of
variants that no preset has stand here with their sources.
"""

import functools
import re
from dataclasses import dataclass, replace

from jaxquard.cluster import ChipSpeeds, Cluster, chip_speeds, load_cluster, with_shape
from jaxquard.errors import PublishedDataError

# NVIDIA GB200 NVL72 data sheet: 72 GPUs of 186 GB on one NVLink of 1.8 TB/s both ways; 80 % of one way as for b200.
_NVL_DOMAIN = 72
# The bandwidth of networks of clouds, bytes/s a GPU of 8: AWS p4d 400 Gb/s, p4de 400 Gb/s, p5 3200 Gb/s a host.
_NETWORKS = {"p4d": 6.25e9, "p4de": 6.25e9, "p5": 50e9, "efa": 6.25e9}
# Other numbers with a G, as in "200G HDR", are no sizes of memory.
_MEMORY_SIZES = (16, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256, 288)
# An H100 of 350 W with PCIe, beside one of 700 W: 756 of 989 TFLOP/s by the data sheet, less under its power limit.
_PCIE_SPEED = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A cluster and the chip that computes in it."""

    cluster: Cluster
    chip: ChipSpeeds


def find_hardware(text: str, num_devices: int) -> Hardware:
    """Returns the hardware that a publication names.

    Raises:
        PublishedDataError: if no chip in it is known.
    """
    return _find(text.lower(), num_devices)


@functools.lru_cache(maxsize=4_000)
def _find(text: str, num_devices: int) -> Hardware:
    words = set(re.split(r"[^a-z0-9]+", text))
    tpu = re.search(r"\b(?:tpu[ -]*)?v(4|5e|5p|6e|5 ?lite(?:pod)?)\b|trillium", text)
    if tpu:
        name = {"4": "tpu-v4", "5p": "v5p", "6e": "v6e", None: "v6e"}.get(tpu[1], "v5e")
        return _tpu(name, num_devices)
    gpu = next((name for name in _GPUS if any(re.search(rf"\b{word}", text) for word in _GPUS[name])), None)
    if gpu is None:
        raise PublishedDataError(
            f"no chip is known in {text!r}. Known are V100, A100, H100, H200, B200, GB200, MI300X, TPU v4, v5e, v5p "
            "and v6e."
        )
    cluster = _gpu_cluster(gpu, text)
    network = next((_NETWORKS[word] for word in words if word in _NETWORKS), None) or _host_network(text)
    if network and gpu != "gb200":
        cluster = _with_network(cluster, network)
    # A preset has the chips of one machine that exists; others have more of the same hosts.
    cluster = replace(cluster, num_chips=max(cluster.num_chips, num_devices))
    chip = chip_speeds(cluster)
    if gpu == "h100" and ("pcie" in text or "nvl" in words):
        cluster, chip = _with_links(cluster, 25e9), chip.at_speed(_PCIE_SPEED)
    power = re.search(r"(\d{3}) ?w\b", text)
    if power and gpu == "h100":
        # Clocks follow the cube root to the square root of the power limit; 700 W is the whole (NVIDIA's data sheet).
        chip = chip.at_speed(min(1.0, (int(power[1]) / 700) ** 0.5))
    return Hardware(cluster=cluster, chip=chip)


# Memory, its bandwidth, and the bandwidth of a chip to the others of its host: data sheets of AMD and Intel (7 links of
# 64 GB/s each way, 76.8 on an MI355X; 8 of 50 on an MI250X; 21 ports of 100 Gb/s on a Gaudi 2), of which collectives
# are estimated to reach 70 %. Then the FLOP/s of large products in 16 bits: the best that a search over shapes finds in
# short runs (S. Bekman, Machine Learning Engineering, compute/accelerator/README.md), of which 0.907 remain in long
# ones, as on an H200; of a Gaudi 2 all. Then its cores.
_OTHERS = {
    "mi355x": (288_000_000_000, 8e12, 376e9, 1419e12, 256),
    "mi325x": (256_000_000_000, 6e12, 310e9, 712e12, 304),
    "mi300x": (192_000_000_000, 5.3e12, 310e9, 606e12, 304),
    "mi250x": (128_000_000_000, 3.2e12, 140e9, 267e12, 208),
    "gaudi2": (96_000_000_000, 2.45e12, 180e9, 419e12, 2),
}
# Of the idle share of a last wave of tiles, what those chips lose: an estimate.
_WAVE_ROUNDING = 0.2
_GB200_FLOPS_PER_S = 1652e12
_GPUS = {
    "gb200": ("gb200", "gb300"),
    "b200": ("b200", "b300"),
    "h200": ("h200", "gh200"),
    "h100": ("h100", "h800"),
    "a100-pcie": ("a100-pcie", "a100 pcie"),
    "a100": ("a100", "a800"),
    "v100": ("v100",),
    "mi355x": ("mi355", "mi350"),
    "mi325x": ("mi325",),
    "mi300x": ("mi300",),
    "mi250x": ("mi250",),
    "gaudi2": ("gaudi ?-?2",),
}


def _gpu_cluster(gpu: str, text: str) -> Cluster:
    like = {"gb200": "b200", "v100": "v100-nvlink"} | dict.fromkeys(_OTHERS, "h100")
    cluster = load_cluster(like.get(gpu, gpu))
    if gpu == "gb200":
        network = replace(cluster.network, chips_per_node=_NVL_DOMAIN)
        memory = replace(cluster.memory, size_bytes=186_000_000_000)
        compute = replace(cluster.compute, effective_flops_per_s=_GB200_FLOPS_PER_S)
        cluster = replace(cluster, name="gb200", num_chips=18_432, network=network, memory=memory, compute=compute)
    elif gpu in _OTHERS:
        size_bytes, bandwidth, links, speed, num_cores = _OTHERS[gpu]
        memory = replace(cluster.memory, size_bytes=size_bytes, bandwidth_bytes_per_s=bandwidth)
        compute = replace(
            cluster.compute, effective_flops_per_s=speed, num_cores=num_cores, wave_rounding=_WAVE_ROUNDING,
            tile_bandwidth_bytes_per_s=0.0,
        )  # fmt: skip
        cluster = _with_links(replace(cluster, name=gpu, memory=memory, compute=compute), links)
    elif gpu == "v100":
        # DGX-1 and DGX-2 with InfiniBand EDR: 4 or 8 adapters of 100 Gb/s for 8 or 16 GPUs.
        network = replace(
            cluster.network,
            chips_per_node=16 if "dgx-2" in text or "dgx2" in text else 8,
            between_nodes_bandwidth_bytes_per_s=6.25e9,
            between_nodes_sync_s=10.6e-6,
        )
        cluster = replace(cluster, num_chips=4096, network=network)
    sizes = [int(size) for size in re.findall(r"\b(\d{2,3}) ?gi?b?\b", text)]
    size = next((size for size in sizes if size in _MEMORY_SIZES), None)
    if size:
        memory = replace(cluster.memory, size_bytes=size * 10**9)
        if gpu == "a100" and size == 40:
            memory = replace(memory, bandwidth_bytes_per_s=1555e9)  # NVIDIA A100 data sheet: 40 GB at 1555 GB/s.
        if "hbm2e" in text and gpu == "h100":
            memory = replace(memory, bandwidth_bytes_per_s=2.4e12)
        cluster = replace(cluster, memory=memory)
    return cluster


def _host_network(text: str) -> float | None:
    """Returns the bytes/s of a GPU where a publication states Gb/s of a host of 8: those are 800 and more."""
    stated = [int(number) for number in re.findall(r"\b(\d{3,4}) ?gb(?:ps|it/s|/s)", text)]
    return next((number * 1e9 / 8 / 8 for number in stated if number >= 800), None)


def _with_network(cluster: Cluster, bandwidth: float) -> Cluster:
    network = replace(cluster.network, between_nodes_bandwidth_bytes_per_s=bandwidth)
    return replace(cluster, network=network)


def _with_links(cluster: Cluster, bandwidth: float) -> Cluster:
    links = replace(cluster.all_gather, row_bandwidth_bytes_per_s=bandwidth, column_bandwidth_bytes_per_s=bandwidth)
    return replace(cluster, all_gather=links, reduce_scatter=links, permute=links)


def _tpu(name: str, num_devices: int) -> Hardware:
    """A slice as near to a cube or a square as its chips allow, and several slices where one pod does not suffice."""
    cluster = load_cluster(name)
    pod = 256 if name in ("v5e", "v6e") else 8192
    in_slice = min(num_devices, pod)
    shape = _torus(in_slice, 2 if name in ("v5e", "v6e") else 3)
    limits = sorted(cluster.levels[0].dims)
    if any(size > limit for size, limit in zip(sorted(shape), limits, strict=True)):
        cluster = replace(cluster, levels=(replace(cluster.levels[0], dims=shape), *cluster.levels[1:]))
    slices = -(-num_devices // in_slice)
    shaped = with_shape(cluster, (*shape, slices) if slices > 1 else shape)
    return Hardware(cluster=shaped, chip=chip_speeds(shaped))


def _torus(count: int, num_dims: int) -> tuple[int, ...]:
    dims = []
    for left in range(num_dims, 1, -1):
        target = round(count ** (1 / left))
        size = next((size for size in range(target, 0, -1) if count % size == 0), 1)
        dims.append(size)
        count //= size
    return tuple(sorted((*dims, count)))


# Peaks of data sheets that no preset has, in 16 bits without sparsity: NVIDIA GB200 NVL72, AMD, Intel.
_PEAKS = {
    "gb200": 2500e12,
    "mi355x": 2300e12,
    "mi325x": 1307e12,
    "mi300x": 1307e12,
    "mi250x": 383e12,
    "gaudi2": 432e12,
}


def peak_flops_per_s(hardware: Hardware, dtype: str) -> float:
    """Returns the data sheet's peak, which utilisation is a share of."""
    peak = _PEAKS.get(hardware.chip.name, hardware.cluster.compute.peak_flops_per_s)
    has_narrow = dtype in hardware.chip.rates and dtype in ("fp8", "fp4")
    return peak * (2 if has_narrow else 1)
