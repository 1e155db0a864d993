"""Attention against published figures, passes over memory with measured speeds and without, clusters as keys."""

from dataclasses import replace

import pytest

from jaxquard.cluster import KernelKind, KernelSpeed, cluster_text, load_cluster, number_format, parse_cluster, times_of
from jaxquard.errors import ClusterError

H100, CPU = load_cluster("h100"), load_cluster("cpu-8")
PASS = KernelSpeed(kind=KernelKind.ELEMENTWISE, dtype="f32", bandwidth_bytes_per_s=2e12, launch_s=3e-6)
PRODUCT = KernelSpeed(
    kind=KernelKind.PRODUCT, dtype="bf16", flops_per_s=8e10, bandwidth_bytes_per_s=4e8, exposed=0.5,
    half_speed_contracted=64, half_speed_output=32, launch_s=1e-6,
)  # fmt: skip
MEASURED = replace(CPU, kernels=(PASS, PRODUCT))


@pytest.mark.parametrize(
    ("cluster", "name", "seq", "published"),
    [
        # Forward with a causal mask and heads of 128: figures 5 and 6 of arXiv 2307.08691, figure 5 of 2407.08608.
        ("a100", "flash2", 16384, 190e12),
        ("h100", "flash2", 16384, 360e12),
        ("h100", "flash3", 16384, 600e12),
    ],
)
def test_published_attention_comes_out(cluster, name, seq, published):
    times = times_of(load_cluster(cluster))
    time_s = times.attention(times.find_flash(name), flops=1e13, seq=seq, head_dim=128, is_backward=False)
    assert 1e13 / time_s == pytest.approx(published, rel=0.08)


def test_without_measured_kernels_others_pass_over_memory_once():
    found = times_of(H100).memory_pass(1e9, kind=KernelKind.SOFTMAX)
    assert found == pytest.approx(H100.compute.launch_s / 3 + 1e9 / (0.9 * H100.memory.bandwidth_bytes_per_s))
    # Kernels share the bytes, and each begins.
    assert times_of(H100).memory_pass(1e9, num_kernels=3) - found == pytest.approx(H100.compute.launch_s * 2 / 3)


def test_arithmetic_counts_on_a_cpu():
    assert times_of(CPU).memory_pass(0, arithmetic=1e9) - times_of(CPU).memory_pass(0) == pytest.approx(1e-2)
    assert times_of(H100).memory_pass(0, arithmetic=1e9) == times_of(H100).memory_pass(0)


def test_measured_kernels_have_their_own_constants():
    times = times_of(MEASURED)
    assert times.memory_pass(2e9, dtype="f32") == pytest.approx(1.003e-3)
    # What was not measured passes over memory as element-wise kernels do; another type has the same speed.
    assert times.memory_pass(2e9, kind=KernelKind.SOFTMAX, dtype="bf16") == pytest.approx(1.003e-3)


def test_the_longer_of_arithmetic_and_traffic_and_a_share_of_the_other():
    m, k, n = 1024, 128, 1024
    arithmetic_s = 2 * m * k * n / 8e10 * 1.5 * (1 + 32 / 1024) ** 2
    traffic_s = 2 * (m * k + k * n + m * n) / 4e8
    found = times_of(MEASURED).product(m=m, k=k, n=n)
    assert found == pytest.approx(1e-6 + max(arithmetic_s, traffic_s) + 0.5 * min(arithmetic_s, traffic_s))
    # fp64 takes twice the time of what was measured in 16 bits.
    wide = times_of(MEASURED).product(m=m, k=k, n=n, dtype="float64", output_item_bytes=2)
    assert wide > 1.5 * found


def test_a_size_that_is_none():
    with pytest.raises(ClusterError, match=r"size_bytes must be a number of 0 or more, but is -1"):
        times_of(H100).memory_pass(-1)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("bfloat16", "bf16"), ("float8_e4m3fn", "fp8"), ("f8e5m2", "fp8"), ("f4e2m1fn", "fp4"), ("float64", "fp64"),
     ("c64", "c64"), ("complex128", "c128"), ("s8", "fp8"), ("int32", "fp32"), ("pred", "pred"), ("fp4", "fp4")],
)  # fmt: skip
def test_names_of_numbers(name, wanted):
    assert number_format(name) == wanted


def test_clusters_of_one_name_are_apart():
    other = replace(H100, compute=replace(H100.compute, effective_flops_per_s=1e12))
    assert hash(other) == hash(H100)
    assert times_of(other) is not times_of(H100)
    assert times_of(load_cluster("h100")) is times_of(H100)


def test_kernels_in_a_file():
    text = cluster_text(MEASURED)
    assert text.count("[[kernels]]") == 2
    assert parse_cluster(text) == MEASURED
    with pytest.raises(ClusterError, match=r"kernels\[0\]\.kind"):
        parse_cluster(text.replace('kind = "elementwise"', 'kind = "elementary"'))
    with pytest.raises(ClusterError, match=r"kernels\[1\]\.flops_per_s"):
        parse_cluster(text.replace("flops_per_s = 80000000000.0", "flops_per_s = -1.0"))
