"""The time of kernels: with measured speeds, and without."""

import dataclasses

import pytest

from jaxquard.cluster import (
    KernelKind,
    KernelSpeed,
    ProductShape,
    cluster_text,
    find_kernel,
    kernel_time_s,
    load_cluster,
    parse_cluster,
    product_time_s,
)
from jaxquard.errors import ClusterError

H100 = load_cluster("h100")
PASS = KernelSpeed(kind=KernelKind.ELEMENTWISE, dtype="f32", bandwidth_bytes_per_s=2e12, launch_s=3e-6)
PRODUCT = KernelSpeed(
    kind=KernelKind.PRODUCT, dtype="bf16", flops_per_s=8e14, bandwidth_bytes_per_s=4e12, exposed=0.5,
    half_speed_contracted=64, half_speed_output=32,
)  # fmt: skip
MEASURED = dataclasses.replace(H100, kernels=(PASS, PRODUCT))


def test_without_measured_kernels_products_are_those_of_the_compute_model():
    shape = ProductShape(m=4096, k=8192, n=2048)
    found = kernel_time_s(H100, KernelKind.PRODUCT, dtype="bf16", size_bytes=1e8, product=shape)
    assert found == pytest.approx(product_time_s(H100.compute, H100.memory, m=4096, k=8192, n=2048))
    # A batch of products has one launch.
    batch = ProductShape(batch=3, m=4096, k=8192, n=2048)
    three = kernel_time_s(H100, KernelKind.PRODUCT, dtype="bf16", size_bytes=1e8, product=batch)
    assert three == pytest.approx(3 * found - 2 * H100.compute.launch_s)


def test_without_measured_kernels_others_pass_over_memory_once():
    found = kernel_time_s(H100, KernelKind.SOFTMAX, dtype="f32", size_bytes=1e9)
    assert found == pytest.approx(H100.compute.launch_s + 1e9 / H100.memory.bandwidth_bytes_per_s)


def test_measured_kernels_have_their_own_constants():
    assert kernel_time_s(MEASURED, KernelKind.ELEMENTWISE, dtype="f32", size_bytes=2e9) == pytest.approx(1.003e-3)
    # What was not measured passes over memory as element-wise kernels do; another type has the same speed.
    assert kernel_time_s(MEASURED, KernelKind.SOFTMAX, dtype="bf16", size_bytes=2e9) == pytest.approx(1.003e-3)


def test_the_longer_of_arithmetic_and_traffic_and_a_share_of_the_other():
    shape = ProductShape(m=1024, k=128, n=1024)
    arithmetic_s = shape.flops / 8e14 * 1.5 * (1 + 32 / 1024) ** 2
    found = kernel_time_s(MEASURED, KernelKind.PRODUCT, dtype="bf16", size_bytes=4e6, product=shape)
    traffic_s = 1e-6
    assert found == pytest.approx(max(arithmetic_s, traffic_s) + 0.5 * min(arithmetic_s, traffic_s))


def test_the_nearest_measured_kernel():
    assert find_kernel(MEASURED, KernelKind.PRODUCT, "bf16") is PRODUCT
    assert find_kernel(MEASURED, KernelKind.PRODUCT, "f32") is PRODUCT
    assert find_kernel(MEASURED, KernelKind.TRANSPOSE, "f32") is None


def test_a_size_that_is_none():
    with pytest.raises(ClusterError, match=r"size_bytes must be a number of 0 or more, but is -1"):
        kernel_time_s(H100, KernelKind.ELEMENTWISE, dtype="f32", size_bytes=-1)


def test_kernels_in_a_file():
    text = cluster_text(MEASURED)
    assert text.count("[[kernels]]") == 2
    assert parse_cluster(text) == MEASURED
    with pytest.raises(ClusterError, match=r"kernels\[0\]\.kind"):
        parse_cluster(text.replace('kind = "elementwise"', 'kind = "elementary"'))
    with pytest.raises(ClusterError, match=r"kernels\[1\]\.flops_per_s"):
        parse_cluster(text.replace("flops_per_s = 800000000000000.0", "flops_per_s = -1.0"))
