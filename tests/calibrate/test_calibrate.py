"""Calibration on virtual CPU devices: what is measured, what is kept, what is said."""

import dataclasses
import datetime
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxquard.calibrate import calibrate, calibration_text
from jaxquard.calibrate.calibrate import (
    _fit_links,
    _fit_products,
    _poor_notes,
    _Samples,
    _with_links,
    _with_measured_memory,
    base_cluster,
)
from jaxquard.calibrate.kernel_cases import KernelCase, kernel_cases
from jaxquard.calibrate.measure_collectives import group_sizes
from jaxquard.calibrate.measure_kernels import measure_kernels
from jaxquard.calibrate.measure_links import measure_links, ring_sizes
from jaxquard.calibrate.measure_products import measure_products, sliced_product
from jaxquard.calibrate.sampling import Effort, choose_effort
from jaxquard.cluster import (
    Axis,
    Collective,
    KernelKind,
    KernelSample,
    LinkSample,
    ProductSample,
    cluster_text,
    load_cluster,
    parse_cluster,
    ring_time,
)
from jaxquard.cluster.fit.fit_links import fit_one_ring
from jaxquard.errors import ClusterError

_EFFORT = Effort(
    shard_sizes_bytes=(8192, 65536, 524288), ms=(128,), ks=(128, 256), ns=(128, 256), slices=(1, 2),
    rounds=1, sample_s=0.0, longest_s=math.inf,
)  # fmt: skip


@pytest.fixture(scope="module")
def calibration():
    done = []
    found = calibrate(
        load_cluster("h200"), devices=jax.devices()[:4], effort=_EFFORT,
        on_links=lambda *step: done.append(step), on_products=lambda *step: done.append(step),
    )  # fmt: skip
    # Two kinds on rings of two sizes, three chains of permutes; four shapes.
    assert [step[:2] for step in done] == [(n, 7) for n in range(1, 8)] + [(n, 4) for n in range(1, 5)]
    assert done[0][2] == "all_gather of 2"
    return found


def test_what_is_measured(calibration):
    steps = {(s.kind, s.ring_size, s.num_steps) for s in calibration.link_samples}
    assert steps == {
        (Collective.ALL_GATHER, 2, 1), (Collective.ALL_GATHER, 4, 3), (Collective.REDUCE_SCATTER, 2, 1),
        (Collective.REDUCE_SCATTER, 4, 3), (Collective.PERMUTE, 4, 1), (Collective.PERMUTE, 4, 2),
        (Collective.PERMUTE, 4, 4),
    }  # fmt: skip
    assert len(calibration.link_samples) == 7 * 3
    assert len(calibration.product_samples) == 4 * 2
    assert all(sample.time_s > 0 for sample in calibration.link_samples + calibration.product_samples)


def test_the_file_reads_back(calibration):
    text = calibration_text(calibration, date=datetime.date(2026, 11, 15))
    assert text.startswith(
        f"# Measured on 4 x cpu, 2026-11-15, JAX {jax.__version__}, by `jaxquard cluster calibrate`."
    )
    assert parse_cluster(text) == calibration.cluster
    assert calibration.cluster.name == "calibrated h200"
    assert calibration.cluster.memory == load_cluster("h200").memory


def test_one_device_keeps_the_links_of_the_base():
    found = calibrate("h200", devices=jax.devices()[:1], effort=_EFFORT)
    assert found.cluster.all_gather == load_cluster("h200").all_gather
    assert found.link_fits == ()
    assert found.notes[0] == "one device has no links: those of h200 are kept as they are"


def test_ring_sizes():
    assert [ring_sizes(number) for number in (1, 2, 3, 4, 8)] == [(), (2,), (3,), (2, 4), (4, 8)]


def test_large_shards_are_left_out_where_memory_does_not_allow_them():
    effort = Effort(shard_sizes_bytes=(8192, 1 << 40), ms=(), ks=(), ns=(), slices=(1,), rounds=1, sample_s=0.0,
                    longest_s=1.0)  # fmt: skip
    assert {sample.shard_bytes for sample in measure_links(jax.devices()[:2], effort)} == {8192}


def test_a_long_run_ends_its_series():
    effort = Effort(shard_sizes_bytes=(8192, 16384), ms=(), ks=(), ns=(), slices=(1,), rounds=1, sample_s=0.0,
                    longest_s=0.0)  # fmt: skip
    assert {sample.shard_bytes for sample in measure_links(jax.devices()[:2], effort)} == {8192}


def test_slices_sum_to_the_product():
    lhs, rhs = (np.random.default_rng(0).standard_normal(shape) for shape in ((8, 12), (12, 4)))
    slices = lhs.reshape(8, 3, 4).transpose(1, 0, 2), rhs.reshape(3, 4, 4)
    found = jax.jit(sliced_product)(*(np.float32(part) for part in slices))
    np.testing.assert_allclose(found, lhs @ rhs, rtol=1e-5, atol=1e-5)
    assert [sample.num_slices for sample in measure_products(jax.devices()[0], _EFFORT)][:2] == [1, 2]


@pytest.mark.parametrize("devices", [[], "cpu", [3]])
def test_devices_that_are_none(devices):
    with pytest.raises(ClusterError, match=r"devices must be one device of JAX or more, such as jax.devices"):
        calibrate(devices=devices)


def test_efforts():
    assert choose_effort("gpu", is_quick=False).shard_sizes_bytes[::8] == (8 * 1024, 512 * 1024**2)
    for platform in ("cpu", "tpu"):
        quick, full = (choose_effort(platform, is_quick=is_quick) for is_quick in (True, False))
        assert len(quick.shard_sizes_bytes) < len(full.shard_sizes_bytes)


def _link_samples(steps, launch_s=2e-5, sync_s=5e-6):
    return [
        LinkSample(kind=kind, ring_size=max(steps) + 1, num_steps=count, shard_bytes=size,
                   time_s=launch_s + count * (sync_s + size / 40e9))
        for kind in Collective for count in steps for size in (8192, 131072, 2097152)
    ]  # fmt: skip


def test_two_devices_take_the_sync_time_of_the_base():
    base = load_cluster("h200")
    fits, notes = _fit_links(_link_samples((1,), sync_s=3.4e-6), base)
    for fit in fits:
        found = (fit.bandwidth_bytes_per_s, fit.sync_s, fit.launch_s)
        assert found == pytest.approx((40e9, 3.4e-6, 2e-5), rel=1e-6)
    assert notes[0] == "2 devices make one ring, so the sync time of all_gather is that of h200"
    _, notes = _fit_links(_link_samples((2,)), base)
    assert notes[0].startswith("3 devices make one ring")
    one_size = [sample for sample in _link_samples((1,)) if sample.shard_bytes == 8192]
    fits, notes = _fit_links(one_size, base)
    assert fits == ()
    assert notes[0] == (
        "all_gather is that of h200: bandwidth and launch need samples of two shard sizes, found 1. Measure another"
    )


def test_a_chain_of_permutes_has_the_price_that_was_measured():
    """Chains are what is measured, so a chain has one launch; without permutes the base's way of counting stays."""
    base, samples = load_cluster("h200"), _link_samples((1, 2, 4))
    fits, _ = _fit_links(samples, base)
    cluster = _with_links(base, fits)
    for sample in samples:
        how = {"mesh_shape": (4, 1), "shard_bytes": sample.shard_bytes, "num_steps": sample.num_steps}
        found = ring_time(cluster, sample.kind, axis=Axis.ROWS, **how)
        assert found.time_s == pytest.approx(sample.time_s, rel=1e-6)
    assert parse_cluster(cluster_text(cluster)) == cluster
    assert _with_links(base, [fit for fit in fits if fit.kind is not Collective.PERMUTE]).network == base.network


def test_a_kind_that_cannot_be_fitted_is_that_of_the_base():
    flat = [LinkSample(kind=s.kind, ring_size=4, num_steps=s.num_steps, shard_bytes=s.shard_bytes, time_s=1e-3)
            for s in _link_samples((1, 3))]  # fmt: skip
    fits, notes = _fit_links(flat, load_cluster("h200"))
    assert fits == ()
    assert notes[0].startswith("all_gather is that of h200: the times of all_gather along rows do not grow")
    with pytest.raises(ClusterError, match="the times of permute do not grow with the shard"):
        fit_one_ring([s for s in flat if s.kind is Collective.PERMUTE and s.num_steps == 1], sync_s=0.0)


def test_products_that_cannot_be_fitted():
    flat = [
        ProductSample(m=64, k=k, n=64, num_slices=s, time_s=t)
        for k in (64, 128, 256)
        for s, t in ((1, 1e-5), (2, 3.2e-5))
    ]
    fit, notes = _fit_products(flat, load_cluster("h200"))
    assert fit is None
    assert notes[0].startswith("products are those of h200: the times of the products do not grow")
    unknown, notes = base_cluster(jax.devices())
    assert notes[0].startswith("no preset describes 'cpu': the peak is the fitted speed")
    with pytest.raises(ClusterError, match="do not grow with their arithmetic"):
        _fit_products(flat, unknown)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-40GB", "a100"),
        ("TPU v4", "tpu-v4"), ("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v5p", "v5p"), ("TPU v6 lite", "v6e"),
        ("NVIDIA GH200 480GB", "gpu"), ("NVIDIA A10", "gpu"),
    ],
)  # fmt: skip
def test_the_base_of_a_kind_of_device(kind, name):
    device = SimpleNamespace(device_kind=kind, platform="gpu", memory_stats=lambda: {"bytes_limit": 10**9})
    cluster, notes = base_cluster([device])
    assert cluster.name == name
    assert notes[0].startswith("no preset describes" if name == "gpu" else "what is not measured is taken from the")


def test_poor_fits_are_said_to_be():
    samples = _link_samples((1, 3))
    fits, _ = _fit_links(samples, load_cluster("h200"))
    assert _poor_notes(fits, None) == ()
    noisy = [LinkSample(kind=s.kind, ring_size=4, num_steps=s.num_steps, shard_bytes=s.shard_bytes,
                        time_s=s.time_s * (4 if number % 2 else 1)) for number, s in enumerate(samples)]  # fmt: skip
    fits, _ = _fit_links(noisy, load_cluster("h200"))
    assert any(note.startswith("the fit of all_gather is poor (median error") for note in _poor_notes(fits, None))


_KERNELS = tuple(case for case in kernel_cases("cpu", is_quick=True) if case.sizes[-1] < 1000 and case.sizes[0] < 300)
_ALL_EFFORT = dataclasses.replace(
    _EFFORT, shard_sizes_bytes=(8192, 65536), ms=(64, 256), ks=(64, 512), ns=(64, 512),
    collective_sizes_bytes=(1 << 14, 1 << 18), kernels=_KERNELS[:4],
)  # fmt: skip


@pytest.mark.parametrize(
    ("num_devices", "num_series", "num_kernels"), [(2, 5, 2), pytest.param(4, 15, 4, marks=pytest.mark.slow)]
)
def test_kernels_and_collectives_over_groups(num_devices, num_series, num_kernels):
    """Five kinds over groups of all devices; of four devices, over pairs along either axis too."""
    done = []
    found = calibrate(
        devices=jax.devices()[:num_devices], effort=dataclasses.replace(_ALL_EFFORT, kernels=_KERNELS[:num_kernels]),
        on_collectives=lambda *step: done.append(step), on_kernels=lambda *step: done.append(step),
    )  # fmt: skip
    assert [step[:2] for step in done[:num_series]] == [(number, num_series) for number in range(1, num_series + 1)]
    assert done[0][2] == "all_gather of 2"
    assert [step[0] for step in done[num_series:]] == list(range(1, num_kernels + 1))
    assert {sample.group_size for sample in found.collective_samples} == {2, num_devices}
    assert len(found.collective_samples) == num_series * 2
    assert len(found.kernel_samples) == num_kernels
    assert {speed.kind for speed in found.kernel_speeds} == {case.kind for case in _KERNELS[:num_kernels]}
    # A busy machine may fit none of the collectives, and then says so.
    noted = [note for note in found.notes if "over groups is that of the level" in note]
    assert len(found.collective_speeds) + len(noted) == 5
    assert sum(speed.num_samples for speed in found.kernel_speeds) == num_kernels
    text = calibration_text(found)
    assert "[[kernels]]" in text
    assert "median_error" in text
    assert parse_cluster(text) == found.cluster


def test_group_sizes():
    assert [group_sizes(number) for number in (1, 2, 6, 8)] == [(), (2,), (2, 3, 6), (2, 4, 8)]


def test_the_memory_of_an_unknown_device_has_the_bandwidth_that_passes_reach():
    start, _ = base_cluster(jax.devices()[:1])
    samples = [
        KernelSample(kind=KernelKind.ELEMENTWISE, dtype="f32", size_bytes=size, time_s=1e-6 + size / 3e10)
        for size in (1e5, 1e6, 1e7)
    ]
    measured = _Samples(links=(), collectives=(), products=(), kernels=tuple(samples))
    assert _with_measured_memory(start, measured).memory.bandwidth_bytes_per_s == pytest.approx(3e10)
    preset = load_cluster("h200")
    assert _with_measured_memory(preset, measured) == preset


def test_kernels_on_every_platform():
    for platform in ("cpu", "gpu"):
        quick, whole = (kernel_cases(platform, is_quick=is_quick) for is_quick in (True, False))
        assert len(quick) < len(whole)
        assert {case.kind for case in whole} == set(KernelKind)
        assert {KernelKind.PRODUCT, KernelKind.ELEMENTWISE, KernelKind.REDUCTION} <= {case.kind for case in quick}


@pytest.mark.parametrize("case", [
    KernelCase(kind=KernelKind.PRODUCT, dtype="bfloat16", out_dtype="float32", sizes=(2, 8, 16, 4)),
    KernelCase(kind=KernelKind.ELEMENTWISE, dtype="float32", out_dtype="bfloat16", sizes=(3, 64, 1)),
    KernelCase(kind=KernelKind.ATTENTION, dtype="float32", out_dtype="float32", sizes=(1, 16, 2, 8)),
    KernelCase(kind=KernelKind.COLUMN_REDUCTION, dtype="float32", out_dtype="float32", sizes=(16, 8)),
])  # fmt: skip
def test_the_work_of_a_kernel(case):
    (sample,) = measure_kernels(jax.devices()[:1], [case])
    expected = {
        KernelKind.PRODUCT: (2 * 2 * 8 * 16 * 4, 2 * (2 * 8 * 16 + 2 * 16 * 4) + 4 * 2 * 8 * 4),
        KernelKind.ELEMENTWISE: (64 * (5 + 10), 64 * (3 * 4 + 2)),
        KernelKind.ATTENTION: (4 * 2 * 16 * 16 * 8, 4 * 4 * 16 * 2 * 8),
        KernelKind.COLUMN_REDUCTION: (16 * 8, 4 * (16 * 8 + 8)),
    }
    assert (sample.flops, sample.size_bytes) == expected[case.kind]
    assert sample.dtype == {"bfloat16": "bf16", "float32": "f32"}[case.dtype]
    assert sample.time_s > 0


def test_a_kernel_that_cannot_run_is_left_out_and_time_ends():
    huge = KernelCase(kind=KernelKind.ELEMENTWISE, dtype="float32", out_dtype="float32", sizes=(1, 1 << 50, 0))
    assert measure_kernels(jax.devices()[:1], [huge]) == ()
    assert measure_kernels(jax.devices()[:1], _KERNELS, limit_s=-1.0) == ()
