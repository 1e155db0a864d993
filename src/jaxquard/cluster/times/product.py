"""The time of matrix products on one chip, whole or sliced.

    whole    launch + max(arithmetic + exposed output, traffic)
    sliced   1.6 S launches + S arithmetic * fp32 sum + exposed (write, S - 1 times read and write) + cast (read, write)

With nothing but arithmetic this is section 3.2.2 of MeshSlice, and so it is with the paper's own constants. `traffic`
reads both inputs and writes the output once. The arithmetic follows from the kind of chip:

    GPU             tiles of the output, one a core at a time, each 2 (k + start) deep; a small tile reads its inputs
                    more often for the same arithmetic, so that reading them takes longer (`tile_bandwidth`). Outputs of
                    few tiles are split along k, and the parts are summed.
    systolic array  k is padded to a multiple of its side, as is the one of m and n that loses less
    others          slower by (1 + k0 / k) (1 + n0 / m) (1 + n0 / n), with k0 and n0 the dims at half of the speed

A product that is sliced along its contracted dim is summed in fp32. The sum is written once, and read and written for
every further slice; kernels that end in an fp32 sum are slower, and the last wave of their tiles leaves cores idle; at
the end a pass turns the sum into the output. docs/benchmarks.md has the errors of this model on an H200.
"""

import functools
import math

from jaxquard.cluster.cluster import Compute, check_number
from jaxquard.cluster.speeds import KernelKind
from jaxquard.cluster.times.chip_speeds import ITEM_BYTES, ChipSpeeds, number_format

ACCUMULATOR_BYTES = 4
# The kind that every chip with matrix units has: a V100 knows no bf16.
SIXTEEN_BITS = "fp16"
# A kernel by itself begins in a third of the time of a product, which a library starts (seen in a profile of an H200).
PASS_BEGIN = 1 / 3
# Of a launch, what a slice takes beside it to begin its addition; fitted with h200.csv.
_SUM_BEGIN = 0.6
_TILES = ((128, 128), (128, 64), (64, 128), (64, 64))
# Of the contracted dim, the minimum of a part of a split product.
_MINIMUM_DEPTH = 128
_MOST_PARTS = 16
# Kernels that end in an fp32 sum come in few tile sizes.
_SUM_TILE, _SMALL_SUM_TILE = (128, 256), (128, 128)
# A small tile reads its inputs more often for the same arithmetic. An estimate, not fitted.
_SMALL_TILE_SLOWDOWN = 1.15


@functools.lru_cache(maxsize=200_000)
def whole_product_s(
    chip: ChipSpeeds, m: float, k: float, n: float, batch: float, dtype: str, output_item_bytes: float
) -> float:
    """Returns the seconds of `batch` products of [m, k] and [k, n], which one kernel computes."""
    for name, size in (("m", m), ("k", k), ("n", n), ("batch", batch)):
        check_number(size, name)
    bandwidth = chip.bandwidth_bytes_per_s
    output_bytes = output_item_bytes * batch * m * n
    traffic_s = (ITEM_BYTES.get(number_format(dtype), 2.0) * batch * (m * k + k * n) + output_bytes) / bandwidth
    time_s = arithmetic_s(chip, m, k, n, batch, dtype)
    measured = None if is_tiled(chip.compute) else chip.kernel(KernelKind.PRODUCT, dtype)
    if measured is not None:
        shorter, longer = sorted((time_s, traffic_s * bandwidth / (measured.bandwidth_bytes_per_s or bandwidth)))
        return measured.launch_s + longer + measured.exposed * shorter
    if output_item_bytes == ACCUMULATOR_BYTES and number_format(dtype) != "fp32":
        time_s *= sum_slowdown(chip.compute, m=batch * m, n=n)
    time_s += chip.compute.output_exposed * output_bytes / bandwidth
    return chip.compute.launch_s + max(time_s, traffic_s / chip.memory_share)


@functools.lru_cache(maxsize=200_000)
def sliced_product_s(chip: ChipSpeeds, m: float, k: float, n: float, num_slices: int, item_bytes: float) -> float:
    """Returns the seconds of a product that is sliced along k, in 16 bits, with partial products summed in fp32.

    An output of 4 bytes is that sum itself.
    """
    for name, number in (("m", m), ("k", k), ("n", n), ("num_slices", num_slices)):
        check_number(number, name)
    if num_slices == 1:
        return whole_product_s(chip, m, k, n, 1, SIXTEEN_BITS, item_bytes)
    compute, bandwidth = chip.compute, chip.bandwidth_bytes_per_s
    slice_s = arithmetic_s(chip, m, k / num_slices, n, 1, SIXTEEN_BITS) * sum_slowdown(compute, m=m, n=n)
    sums_s = compute.output_exposed * sum_bytes(m=m, n=n, num_slices=num_slices) / bandwidth
    sums_s += cast_s(chip, m=m, n=n, item_bytes=item_bytes)
    return num_slices * slice_s + sums_s + num_begun(num_slices) * compute.launch_s


@functools.lru_cache(maxsize=200_000)
def arithmetic_s(chip: ChipSpeeds, m: float, k: float, n: float, batch: float, dtype: str) -> float:
    """Returns the seconds of the multiplications alone."""
    compute, speed = chip.compute, chip.flops_per_s(dtype)
    k0, n0 = compute.half_speed_contracted, compute.half_speed_output
    measured = chip.kernel(KernelKind.PRODUCT, dtype)
    if is_tiled(compute):
        # Products in 16 bits are fitted with their slices (`Compute`).
        is_own = measured is not None and number_format(measured.dtype) == number_format(dtype)
        if measured is not None and is_own and ITEM_BYTES.get(number_format(dtype)) != 2:
            speed = measured.flops_per_s
        return _tiled_s(chip, m, k, n, batch, speed, ITEM_BYTES.get(number_format(dtype), 2.0))
    if measured is not None:
        # One of another type says how this one would be.
        speed = measured.flops_per_s * chip.rate(dtype) / chip.rate(measured.dtype)
        k0, n0 = measured.half_speed_contracted, measured.half_speed_output
    slowdown = (1 + k0 / k) * (1 + n0 / m) * (1 + n0 / n)
    if compute.systolic_dim:
        slowdown *= padding(k, compute.systolic_dim)
        slowdown *= min(padding(m, compute.systolic_dim), padding(n, compute.systolic_dim))
    return 2 * batch * m * k * n / speed * slowdown if speed else 0.0


def num_begun(num_slices: int) -> float:
    """Returns the launches of a product's slices, each of which begins again to add to the sum."""
    return num_slices * (1 + _SUM_BEGIN) if num_slices > 1 else 1


def is_tiled(compute: Compute) -> bool:
    """Returns true for a chip whose cores compute a tile of an output each."""
    return compute.num_cores > 1


def _tiled_s(
    chip: ChipSpeeds, m: float, k: float, n: float, batch: float, flops_per_s: float, item_bytes: float
) -> float:
    """Returns the seconds of the best size of tiles, and of parts along k where there are fewer tiles than cores."""
    compute = chip.compute
    core_flops_per_s, start = flops_per_s / compute.num_cores, compute.half_speed_contracted
    best_s = math.inf
    for rows, columns in _TILES:
        tiles = math.ceil(m / rows) * math.ceil(n / columns) * batch
        deep_s = 2 * rows * columns / core_flops_per_s
        if compute.tile_bandwidth_bytes_per_s:
            deep_s = max(deep_s, (rows + columns) * item_bytes / compute.tile_bandwidth_bytes_per_s)
        parts = 1
        while True:
            waves = tiles * parts / compute.num_cores
            waves = max(1.0, waves + compute.wave_rounding * (math.ceil(waves) - waves))
            time_s = waves * deep_s * (k / parts + start)
            if parts > 1:
                # The parts are written and read, and a second kernel adds them.
                moved_bytes = parts * ACCUMULATOR_BYTES * batch * m * n
                time_s += moved_bytes / chip.bandwidth_bytes_per_s + compute.launch_s / 4
            best_s = min(best_s, time_s)
            parts *= 2
            if parts > _MOST_PARTS or k / parts < _MINIMUM_DEPTH or tiles * parts > 2 * compute.num_cores:
                break
    return best_s


def padding(size: float, multiple: int) -> float:
    """Returns the factor by which a size grows that is rounded up to a multiple."""
    return math.ceil(size / multiple) * multiple / size


def sum_bytes(*, m: float, n: float, num_slices: int) -> float:
    """Returns the bytes read and written of an fp32 sum of slices: the first one only writes it."""
    return (2 * num_slices - 1) * ACCUMULATOR_BYTES * m * n


def cast_s(chip: ChipSpeeds, *, m: float, n: float, item_bytes: float) -> float:
    """Returns the seconds to turn an fp32 sum into the output."""
    if item_bytes == ACCUMULATOR_BYTES:
        return 0.0
    return chip.compute.cast_exposed * (ACCUMULATOR_BYTES + item_bytes) * m * n / chip.bandwidth_bytes_per_s


def sum_slowdown(compute: Compute, *, m: float, n: float) -> float:
    """Returns the factor by which the arithmetic takes longer if it ends in an fp32 sum."""
    return (1 + compute.accumulate_slowdown) * wave_slowdown(compute, m=m, n=n)


def wave_slowdown(compute: Compute, *, m: float, n: float) -> float:
    """Returns the slowdown by tiles in whole waves, one tile a core; at the better of two tile sizes."""
    if compute.num_cores == 0:
        return 1.0

    def rounded_up(rows: int, columns: int) -> float:
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        return math.ceil(tiles / compute.num_cores) * compute.num_cores / tiles

    return min(rounded_up(*_SUM_TILE), _SMALL_TILE_SLOWDOWN * rounded_up(*_SMALL_SUM_TILE))


def product_memory_bytes(
    compute: Compute, *, m: float, k: float, n: float, item_bytes: int, accumulates: bool
) -> float:
    """The memory traffic of a tiled product (section 4.1): both inputs once per tile of the output, the output once.

    Args:
        accumulates: the output is added to an fp32 accumulator, which is read and written.

    Example:
        >>> compute = jq.cluster.load_cluster("tpu-v4").compute
        >>> jq.cluster.product_memory_bytes(compute, m=4096, k=4096, n=4096, item_bytes=2, accumulates=False)
        167772160
    """
    inputs = item_bytes * (m * k * math.ceil(n / compute.tile) + k * n * math.ceil(m / compute.tile))
    output_bytes = 2 * ACCUMULATOR_BYTES if accumulates else item_bytes
    return inputs + output_bytes * m * n
