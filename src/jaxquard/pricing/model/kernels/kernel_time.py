"""The time of one kernel by its shape: products, fused and unfused attention, passes over memory.

A product [m, k] x [k, n] on a GPU is computed in tiles of the output, one a core at a time:

    time = waves of tiles x tile area x 2 (k + start) / (FLOP/s of a core)      at the better of two tile sizes
           but not less than its bytes over the memory's bandwidth

A product whose output has fewer tiles than the chip has cores is split along k, at the cost of summing the parts. On a
systolic array k and n are padded to its sides.
"""

import functools
import math

from jaxquard.pricing.model.kernels.chip import ITEM_BYTES, ChipProfile, Flash

# Of the speed of a whole tile, what a tile of half its area reaches (the same estimate as in cluster/product_time.py).
_SMALL_TILE_SPEED = 1 / 1.15
_SUM_BYTES = 4


def matmul_time_s(chip: ChipProfile, m: float, n: float, k: float, dtype: str, batch: float = 1) -> float:
    """Returns the time of a product, or of a batch of equal ones.

    Example:
        >>> chip = jq.pricing.chip_of(jq.cluster.load_cluster("h200"))
        >>> f"{jq.pricing.matmul_time_s(chip, 8192, 6144, 12288, 'bf16') * 1e3:.2f} ms"
        '2.09 ms'
    """
    return _cached_matmul_s(chip, m, n, k, dtype, batch)


@functools.lru_cache(maxsize=200_000)
def _cached_matmul_s(chip: ChipProfile, m: float, n: float, k: float, dtype: str, batch: float) -> float:
    speed = chip.flops_per_s(dtype)
    item = ITEM_BYTES[dtype]
    traffic = batch * (item * (m * k + k * n) + max(item, 2) * m * n) / chip.memory_bandwidth_bytes_per_s
    if chip.is_systolic:
        rows, columns = chip.tile
        padded = math.ceil(k / rows) * rows + chip.start_depth
        arithmetic = 2 * m * padded * math.ceil(n / columns) * columns * batch / speed
    else:
        arithmetic = _tiled_s(chip, m, n, k, batch, speed)
    return max(arithmetic, traffic) + chip.launch_s


def _tiled_s(chip: ChipProfile, m: float, n: float, k: float, batch: float, speed: float) -> float:
    rows, columns = chip.tile
    small = min(rows, columns)
    best = math.inf
    for tile_m, tile_n, share in ((rows, columns, 1.0), (columns, rows, 1.0), (small, small, _SMALL_TILE_SPEED)):
        tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch
        parts = min(8, max(1, math.floor(chip.num_cores / tiles), 1)) if k > 4096 else 1
        waves = tiles * parts / chip.num_cores
        waves = max(1.0, waves + chip.wave_rounding * (math.ceil(waves) - waves))
        area_s = waves * chip.num_cores * 2 * tile_m * tile_n * (k / parts + chip.start_depth) / (speed * share)
        if parts > 1:
            area_s += 2 * parts * _SUM_BYTES * m * n * batch / chip.memory_bandwidth_bytes_per_s
        best = min(best, area_s)
    return best


def pass_time_s(chip: ChipProfile, size_bytes: float, num_kernels: float = 1) -> float:
    """Returns the time of kernels that read and write so many bytes and compute little.

    Example:
        >>> chip = jq.pricing.chip_of(jq.cluster.load_cluster("a100"))
        >>> f"{jq.pricing.pass_time_s(chip, 1e9) * 1e3:.2f} ms"
        '0.57 ms'
    """
    return size_bytes / chip.memory_bandwidth_bytes_per_s + num_kernels * chip.launch_s


def is_unfused(chip: ChipProfile, attention: str) -> bool:
    """Returns true if attention runs as products and a softmax: the framework's, or the chip has no fused kernels."""
    return attention == "unfused" or not chip.flash


def find_flash(chip: ChipProfile, name: str) -> Flash:
    """Returns the fused attention of a generation, or the newest older one that the chip has."""
    order = ("flash3", "flash2", "flash1")
    for candidate in order[order.index(name) :]:
        if candidate in chip.flash:
            return chip.flash[candidate]
    return next(iter(chip.flash.values()))


def flash_time_s(
    chip: ChipProfile, flash: Flash, *, flops: float, seq: float, head_dim: float, is_backward: bool
) -> float:
    """Returns the time of fused attention.

    Args:
        flops: forward, with the causal half of the pairs.
        is_backward: 5 products instead of 2.

    Example:
        >>> chip = jq.pricing.chip_of(jq.cluster.load_cluster("h100"))
        >>> flash = chip.flash["flash3"]
        >>> time_s = jq.pricing.flash_time_s(chip, flash, flops=1e12, seq=8192, head_dim=128, is_backward=False)
        >>> f"{time_s * 1e3:.2f} ms"
        '2.12 ms'
    """
    speed = flash.backward_flops_per_s if is_backward else flash.forward_flops_per_s
    # Heads narrower than 128 leave more of the time to the exponentials: 2307.08691 and 2407.08608 show 0.8 for 64.
    narrow = min(1.0, 0.8 + 0.2 * (head_dim - 64) / 64) if head_dim >= 64 else 0.8 * head_dim / 64
    work = flops * (2.5 if is_backward else 1.0)
    return work / (speed * narrow) * (1 + flash.half_seq / seq) + (2 if is_backward else 1) * chip.launch_s
