"""The time of a product of one chip's matrices, whole or sliced.

    whole    2 m k n / effective * thin              + exposed * (write)                + launch
    sliced   2 m k n / effective * thin * fp32 sum   + exposed * (write, S - 1 times read and write)
                                                     + cast (read, write)               + S launches

With all but the first term 0, this is section 3.2.2 of MeshSlice. `thin` is (1 + k0 / k) (1 + n0 / m) (1 + n0 / n)
with k0 and n0 the dims at which speed is halved; and on a systolic array of T by T, k is padded to a multiple of T, as
is the one of m and n that loses less: a contracted dim of 16 fills an eighth of an array of 128. A product that is
sliced along its contracted dim is summed in fp32:

- The sum is written once and then read and written for every further slice, 4 bytes an element each time. As with
  the output of a whole product, a share of that traffic is not hidden behind the arithmetic.
- Kernels that end in an fp32 sum are slower, and come in few tile sizes: the last wave of tiles leaves cores idle.
- At the end a separate pass turns the sum into the output.

docs/benchmarks.md has the errors of this model on an H200.
"""

import math

from jaxquard.cluster.cluster import Compute, Memory, check_number

ACCUMULATOR_BYTES = 4
_TILE, _SMALL_TILE = (128, 256), (128, 128)
# A small tile reads its inputs more often for the same arithmetic. An estimate, not fitted.
_SMALL_TILE_SLOWDOWN = 1.15


def product_time_s(compute: Compute, memory: Memory, *, m: float, k: float, n: float, item_bytes: int = 2) -> float:
    """Predicts the time of a product of [m, k] and [k, n], whose output is written once.

    Raises:
        ClusterError: if a dim is not a positive number.

    Example:
        >>> cluster = jq.cluster.load_cluster("h200")
        >>> f"{jq.cluster.product_time_s(cluster.compute, cluster.memory, m=8192, k=12288, n=6144):.2e}"
        '1.71e-03'
    """
    for name, dim in (("m", m), ("k", k), ("n", n)):
        check_number(dim, name)
    arithmetic_s = arithmetic_time_s(compute, m=m, k=k, n=n)
    if item_bytes == ACCUMULATOR_BYTES:
        arithmetic_s *= sum_slowdown(compute, m=m, n=n)
    output_s = compute.output_exposed * item_bytes * m * n / memory.bandwidth_bytes_per_s
    return arithmetic_s + output_s + compute.launch_s


def sliced_product_time_s(
    compute: Compute, memory: Memory, *, m: int, k: int, n: int, num_slices: int, item_bytes: int = 2
) -> float:
    """Predicts the time of a product that is sliced along k, with partial products summed in fp32.

    An output of 4 bytes is that sum itself.

    Raises:
        ClusterError: if a dim or the number of slices is not a positive number.

    Example:
        >>> cluster = jq.cluster.load_cluster("h200")
        >>> sizes = {"m": 8192, "k": 12288, "n": 6144}
        >>> whole, sliced = (
        ...     jq.cluster.sliced_product_time_s(cluster.compute, cluster.memory, num_slices=slices, **sizes)
        ...     for slices in (1, 8)
        ... )
        >>> f"{sliced / whole:.2f}"
        '1.41'
    """
    for name, number in (("m", m), ("k", k), ("n", n), ("num_slices", num_slices)):
        check_number(number, name)
    if num_slices == 1:
        return product_time_s(compute, memory, m=m, k=k, n=n, item_bytes=item_bytes)
    arithmetic_s = num_slices * arithmetic_time_s(compute, m=m, k=k / num_slices, n=n)
    arithmetic_s *= sum_slowdown(compute, m=m, n=n)
    output_s = compute.output_exposed * sum_bytes(m=m, n=n, num_slices=num_slices) / memory.bandwidth_bytes_per_s
    cast_s = cast_time_s(compute, memory, m=m, n=n, item_bytes=item_bytes)
    return arithmetic_s + output_s + cast_s + num_slices * compute.launch_s


def arithmetic_time_s(compute: Compute, *, m: float, k: float, n: float) -> float:
    """Returns the seconds of the multiplications alone."""
    slowdown = 1 + compute.half_speed_contracted / k
    slowdown *= (1 + compute.half_speed_output / m) * (1 + compute.half_speed_output / n)
    if compute.systolic_dim:
        slowdown *= padding(k, compute.systolic_dim)
        slowdown *= min(padding(m, compute.systolic_dim), padding(n, compute.systolic_dim))
    return 2 * m * k * n / compute.effective_flops_per_s * slowdown


def padding(size: float, multiple: int) -> float:
    """Returns the factor by which a size grows that is rounded up to a multiple."""
    return math.ceil(size / multiple) * multiple / size


def sum_bytes(*, m: float, n: float, num_slices: int) -> float:
    """Returns the bytes read and written of an fp32 sum of slices: the first one only writes it."""
    return (2 * num_slices - 1) * ACCUMULATOR_BYTES * m * n


def cast_time_s(compute: Compute, memory: Memory, *, m: float, n: float, item_bytes: int) -> float:
    """Returns the seconds to turn an fp32 sum into the output."""
    if item_bytes == ACCUMULATOR_BYTES:
        return 0.0
    return compute.cast_exposed * (ACCUMULATOR_BYTES + item_bytes) * m * n / memory.bandwidth_bytes_per_s


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

    return min(rounded_up(*_TILE), _SMALL_TILE_SLOWDOWN * rounded_up(*_SMALL_TILE))


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
