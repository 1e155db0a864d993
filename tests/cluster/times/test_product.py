"""Products: against what was measured on an H200, by hand on chips that make it easy, and what holds for all shapes."""

import math
import statistics
from dataclasses import replace
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.cluster import Compute, KernelKind, KernelSpeed, Times, load_cluster, parse_products_csv, times_of
from jaxquard.cluster.times.chip_speeds import ITEM_BYTES
from jaxquard.errors import ClusterError

GPUS = ("a100", "h100", "h200", "b200", "v100-nvlink")
DIMS = st.integers(1, 200).map(lambda size: size * 64)
H100 = load_cluster("h100")
# Nothing but multiplications: MeshSlice's own model.
PLAIN = replace(load_cluster("tpu-v4-main"), compute=Compute(peak_flops_per_s=1e15, effective_flops_per_s=1e14))
# 10 cores of 1 TFLOP/s, and memory that is never waited for.
TILED = replace(
    H100, name="tiles", memory=replace(H100.memory, bandwidth_bytes_per_s=1e18),
    compute=Compute(peak_flops_per_s=1e13, effective_flops_per_s=1e13, num_cores=10),
)  # fmt: skip


class TestByHand:
    def test_arithmetic_alone(self):
        assert times_of(PLAIN).product(m=100, k=200, n=300) == pytest.approx(2 * 100 * 200 * 300 / 1e14)

    def test_a_core_computes_a_tile_at_a_time(self):
        # 64 rows and columns are the smallest tile: one of 10 cores has it, and 8 rows take as long as 64.
        one_s = 2 * 64 * 64 * 128 / 1e12
        for rows in (8, 64):
            assert Times(TILED).product(m=rows, k=128, n=64) == pytest.approx(one_s, rel=1e-3)
        assert Times(TILED).product(m=640, k=128, n=64) == pytest.approx(one_s, rel=1e-3)
        assert Times(TILED).product(m=640, k=128, n=640) == pytest.approx(10 * one_s, rel=1e-3)

    def test_few_tiles_are_split_along_the_contracted_dim(self):
        # Of 16 parts, 10 cores run in 1.6 waves; 8 parts leave two cores idle.
        whole_s = 2 * 64 * 64 * 16384 / 1e12
        assert Times(TILED).product(m=64, k=16384, n=64) == pytest.approx(whole_s / 10, rel=1e-3)

    def test_a_last_wave_that_is_not_full(self):
        # 15 tiles on 10 cores: one wave and a half where idle cores leave power to others, two where they do not.
        shapes = {"m": 15 * 128, "k": 128, "n": 128}
        one_s = 2 * 128 * 128 * 128 / 1e12
        assert Times(TILED).product(**shapes) == pytest.approx(1.5 * one_s, rel=1e-3)
        rounded = replace(TILED, compute=replace(TILED.compute, wave_rounding=1.0))
        assert Times(rounded).product(**shapes) == pytest.approx(1.5 * one_s, rel=1e-3)  # 60 tiles of 64 x 64
        assert Times(rounded).product(m=15 * 64, k=128, n=64) == pytest.approx(2 * one_s / 4, rel=1e-3)

    def test_small_tiles_read_their_inputs_more_often(self):
        slow = replace(TILED, compute=replace(TILED.compute, tile_bandwidth_bytes_per_s=1e9))
        # 128 rows and as many columns, 2 bytes each, for every step along the contracted dim.
        assert Times(slow).product(m=12800, k=128, n=1280) == pytest.approx(100 * 128 * 256 * 2 / 1e9, rel=1e-3)

    def test_a_systolic_array_is_filled_or_not(self):
        whole, thin = (
            Times(replace(PLAIN, compute=replace(PLAIN.compute, systolic_dim=128))).product(m=256, k=k, n=16)
            for k in (128, 16)
        )
        assert thin == pytest.approx(whole)

    def test_sums_of_slices(self):
        compute = Compute(peak_flops_per_s=1e15, effective_flops_per_s=1e14, output_exposed=0.5, cast_exposed=1.0,
                          accumulate_slowdown=0.1, launch_s=1e-6)  # fmt: skip
        cluster = replace(H100, name="slices", compute=compute)
        found = Times(cluster).product(m=1000, k=4000, n=1000, num_slices=4)
        # The sum is written once, and read and written three times more; then it is cast.
        memory_s = (0.5 * 7 * 4 + 1.0 * 6) * 1e6 / 3350e9
        assert found == pytest.approx(1.1 * 8e9 / 1e14 + memory_s + 4 * 1.6e-6)

    def test_memory_bounds_a_thin_product(self):
        times = times_of(H100)
        begin_s = H100.compute.launch_s * 2 / 3
        found = times.product(m=16, k=8192, n=8192)
        assert found == pytest.approx(times.memory_pass(2 * 8192 * 8192) + begin_s, rel=0.01)


def test_whole_products_of_an_h200_come_out():
    """They are among what the preset was fitted to, with slices of them, which have most of the error."""
    text = (resources.files("jaxquard.cluster") / "presets" / "h200.csv").read_text()
    samples = [one for one in parse_products_csv(text) if one.num_slices == 1]
    times = times_of(load_cluster("h200"))
    errors = [abs(times.product(m=one.m, k=one.k, n=one.n) / one.time_s - 1) for one in samples]
    assert len(errors) == 30
    assert statistics.median(errors) < 0.03
    assert max(errors) < 0.08


class TestNumbers:
    @pytest.mark.parametrize(("dtype", "rate"), [("float32", 0.478), ("f8e4m3fn", 1.77), ("fp16", 1.0), ("pred", 1.0)])
    def test_other_kinds_have_their_own_speed(self, dtype, rate):
        assert times_of(H100).chip.flops_per_s(dtype) == pytest.approx(721e12 * rate)

    def test_a_chip_without_8_bits_computes_in_16(self):
        chip = times_of(load_cluster("a100")).chip
        assert chip.flops_per_s("fp8") == chip.flops_per_s("bf16")

    def test_an_unknown_chip_takes_its_clusters_figures(self):
        mine = replace(H100, name="mine")
        assert times_of(mine).chip.flops_per_s("bf16") == 721e12
        assert times_of(mine).chip.name == "mine"

    def test_a_clusters_own_speed_counts_for_all_kinds_of_numbers(self):
        """A calibrated file is what is planned with, whatever the table of chips says."""
        half = replace(H100, name="calibrated h100", compute=replace(H100.compute, effective_flops_per_s=360.5e12))
        for dtype in ("bf16", "fp32", "fp8"):
            assert times_of(half).chip.flops_per_s(dtype) == pytest.approx(times_of(H100).chip.flops_per_s(dtype) / 2)

    def test_measured_kinds_of_numbers_come_first(self):
        speed = KernelSpeed(kind=KernelKind.PRODUCT, dtype="f32", flops_per_s=1e14)
        measured = replace(H100, kernels=(speed,))
        slow, fast = (times_of(one).product(m=8192, k=8192, n=8192, dtype="float32") for one in (measured, H100))
        assert slow / fast == pytest.approx(721e12 * 0.478 / 1e14, rel=0.02)
        shape = {"m": 4096, "k": 4096, "n": 4096}
        assert times_of(measured).product(**shape) == times_of(H100).product(**shape)
        # In 16 bits a GPU's file has the constants of whole and sliced products instead.
        short = replace(H100, kernels=(KernelSpeed(kind=KernelKind.PRODUCT, dtype="bf16", flops_per_s=9e14),))
        assert times_of(short).product(**shape) == times_of(H100).product(**shape)


@pytest.mark.parametrize("name", ["m", "k", "n", "batch", "num_slices"])
@pytest.mark.parametrize("size", [0, -1, math.nan])
def test_sizes_that_are_none(name, size):
    with pytest.raises(ClusterError, match=rf"{name} must be a number above 0, but is {size}"):
        times_of(H100).product(**{"m": 1, "k": 1, "n": 1, name: size})


@given(
    m=DIMS,
    n=DIMS,
    k=DIMS,
    cluster=st.sampled_from((*GPUS, "v5e", "v5p", "v6e")),
    dtype=st.sampled_from(("bf16", "fp8", "fp32")),
)
def test_no_product_is_faster_than_the_chip(m, n, k, cluster, dtype):
    times = times_of(load_cluster(cluster))
    time_s, item = times.product(m=m, n=n, k=k, dtype=dtype), ITEM_BYTES[dtype]
    assert time_s >= 2 * m * n * k / times.chip.flops_per_s(dtype)
    assert time_s >= (item * (m * k + k * n) + max(item, 2) * m * n) / times.chip.bandwidth_bytes_per_s


@given(m=DIMS, n=DIMS, k=DIMS, cluster=st.sampled_from((*GPUS, "v5e", "cpu")))
def test_a_larger_product_takes_longer(m, n, k, cluster):
    times = times_of(load_cluster(cluster))
    one_s = times.product(m=m, n=n, k=k)
    assert times.product(m=2 * m, n=n, k=k) >= one_s
    assert times.product(m=m, n=2 * n, k=k) >= one_s
    assert times.product(m=m, n=n, k=2 * k) >= 0.999 * one_s
    assert times.product(m=m, n=n, k=k, batch=2) >= one_s
