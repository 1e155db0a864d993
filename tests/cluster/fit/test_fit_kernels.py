"""Speeds of kernels from times: those that made them come back, and noise and outliers hardly move them."""

import dataclasses

import numpy as np
import pytest

from jaxquard.cluster import (
    KernelKind,
    KernelSample,
    KernelSpeed,
    ProductShape,
    fit_kernels,
    load_cluster,
    times_of,
)
from jaxquard.errors import ClusterError

SHAPES = [
    ProductShape(batch=batch, m=m, k=k, n=n)
    for batch, m, k, n in [
        (1, 16384, 4096, 4096), (1, 2048, 4096, 16384), (1, 16384, 512, 4096), (1, 4096, 16384, 512),
        (32, 2048, 128, 2048), (32, 2048, 2048, 128), (1, 8192, 8192, 8192), (1, 512, 16384, 4096),
        (1, 1536, 16384, 4096), (256, 2048, 128, 2048), (8, 512, 64, 512), (1, 4096, 2048, 4096),
    ]
]  # fmt: skip


def bytes_of(shape):
    return 2 * shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)


def made_by(speed, noise=0.0):
    """Samples whose times follow from a speed."""
    cluster = dataclasses.replace(load_cluster("cpu"), kernels=(speed,))
    random = np.random.default_rng(0)
    for shape in SHAPES:
        time_s = times_of(cluster).product(m=shape.m, k=shape.k, n=shape.n, batch=shape.batch)
        yield KernelSample(
            kind=speed.kind, dtype=speed.dtype, size_bytes=bytes_of(shape), product=shape,
            time_s=time_s * (1 + noise * random.standard_normal()),
        )  # fmt: skip


SPEED = KernelSpeed(
    kind=KernelKind.PRODUCT, dtype="bf16", flops_per_s=8e14, bandwidth_bytes_per_s=3.5e12, exposed=0.5,
    half_speed_contracted=64, half_speed_output=16, launch_s=4e-6,
)  # fmt: skip


def test_the_constants_come_back():
    (found,) = fit_kernels(made_by(SPEED))
    assert found.worst_error < 1e-6
    assert found.flops_per_s == pytest.approx(8e14, rel=1e-3)
    assert found.bandwidth_bytes_per_s == pytest.approx(3.5e12, rel=1e-3)
    assert found.launch_s == pytest.approx(4e-6, rel=1e-2)
    assert found.num_samples == len(SHAPES)


def test_noise_and_an_outlier():
    samples = list(made_by(SPEED, noise=0.01))
    samples[0] = dataclasses.replace(samples[0], time_s=5 * samples[0].time_s)
    (found,) = fit_kernels(samples)
    assert found.flops_per_s == pytest.approx(8e14, rel=0.08)
    assert found.median_error < 0.03
    assert found.worst_error > 0.5


def test_each_kind_and_type_has_its_own():
    passes = [
        KernelSample(kind=KernelKind.ELEMENTWISE, dtype=dtype, size_bytes=size, time_s=1e-6 + size / bandwidth)
        for dtype, bandwidth in (("f32", 4e12), ("bf16", 2e12))
        for size in (1e6, 1e7, 1e8)
    ]
    found = {(speed.kind, speed.dtype): speed for speed in fit_kernels([*passes, *list(made_by(SPEED))[:4]])}
    assert len(found) == 3
    assert found[KernelKind.ELEMENTWISE, "bf16"].bandwidth_bytes_per_s == pytest.approx(2e12)
    assert found[KernelKind.ELEMENTWISE, "f32"].flops_per_s == 0


def test_few_samples_give_a_speed_and_no_launch():
    kind = KernelKind.SOFTMAX
    (found,) = fit_kernels([KernelSample(kind=kind, dtype="f32", size_bytes=1e9, time_s=5e-4)])
    assert (found.bandwidth_bytes_per_s, found.launch_s) == (pytest.approx(2e12), 0.0)


def test_a_time_that_is_none():
    kind = KernelKind.SOFTMAX
    with pytest.raises(ClusterError, match=r"a sample of softmax took 0\.0 s; times are above 0"):
        fit_kernels([KernelSample(kind=kind, dtype="f32", size_bytes=1e9, time_s=0.0)])


def test_costly_functions_have_a_speed_of_their_own():
    """Two kinds of samples, with tanh and without, separate arithmetic from traffic."""
    kind = KernelKind.ELEMENTWISE
    samples = [
        KernelSample(
            kind=kind, dtype="f32", size_bytes=size * 4 * num_arrays, flops=size * flops,
            time_s=1e-5 + max(size * 4 * num_arrays / 2e10, size * flops / 1e10),
        )
        for size in (1 << 16, 1 << 18, 1 << 20)
        for num_arrays, flops in ((3, 1), (2, 21))
    ]  # fmt: skip
    (found,) = fit_kernels(samples)
    assert found.worst_error < 1e-6
    assert found.flops_per_s == pytest.approx(1e10, rel=1e-3)
