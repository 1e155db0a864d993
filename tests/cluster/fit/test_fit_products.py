"""Product fits find made-up constants again, and predict what an H200 did on shapes that they have not seen."""

import random
import statistics
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from jaxquard.cluster import (
    Compute,
    Memory,
    ProductSample,
    fit_products,
    load_cluster,
    parse_products_csv,
    product_errors,
    products_csv,
    times_of,
)
from jaxquard.errors import ClusterError

_MEMORY = Memory(size_bytes=1, bandwidth_bytes_per_s=4.8e12)
_START = Compute(peak_flops_per_s=989e12, effective_flops_per_s=1.0, cast_exposed=1.1, num_cores=132)
_TRUTH = Compute(
    peak_flops_per_s=989e12, effective_flops_per_s=700e12, output_exposed=0.6,
    accumulate_slowdown=0.05, cast_exposed=1.1, num_cores=132, launch_s=4e-6,
)  # fmt: skip


def _cluster(compute):
    return replace(load_cluster("h200"), name="mine", compute=compute, memory=_MEMORY, kernels=())


_FITTED = ("effective_flops_per_s", "output_exposed", "accumulate_slowdown", "launch_s")


def _samples(noise=0.0, *, sizes=(256, 4096, 32768), slices=(1, 2, 4, 8), truth=_TRUTH):
    normal = np.random.default_rng(1).standard_normal
    return [
        ProductSample(
            m=m, k=k, n=n, num_slices=s,
            time_s=times_of(_cluster(truth)).product(m=m, k=k, n=n, num_slices=s) * (1 + noise * normal()),
        )
        for m in sizes for k in (1024, 8192) for n in (512, 8192) for s in slices
    ]  # fmt: skip


@pytest.mark.parametrize(("noise", "tolerance"), [(0, 1e-6), (0.01, 0.25)])
def test_made_up_constants(noise, tolerance):
    fit = fit_products(_samples(noise), start=_cluster(_START))
    for name in _FITTED:
        assert getattr(fit.compute, name) == pytest.approx(getattr(_TRUTH, name), rel=tolerance), name
    assert (fit.compute.peak_flops_per_s, fit.compute.num_cores) == (989e12, 132)
    assert fit.worst_error < 4 * noise + 1e-6


def test_peak_is_at_least_what_was_reached():
    slow = Compute(peak_flops_per_s=1.0, effective_flops_per_s=1.0)
    samples = _samples(truth=Compute(peak_flops_per_s=7e14, effective_flops_per_s=7e14))
    fit = fit_products(samples, start=_cluster(slow))
    assert fit.compute.peak_flops_per_s == fit.compute.effective_flops_per_s == pytest.approx(7e14)


# Nothing but launches of 10 us.
_LAUNCHES_S = {1: 1e-5, 2: 3.2e-5, 4: 6.4e-5, 8: 12.8e-5}


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (_samples(slices=(1,)), "at least 5 samples are needed, some sliced and some whole; found 12, 0 sliced"),
        (_samples(slices=(2,)), "found 12, 12 sliced. Measure more shapes"),
        (_samples()[:3], "found 3, 2 sliced"),
        ([ProductSample(m=s.m, k=s.k, n=s.n, num_slices=s.num_slices, time_s=0.0) for s in _samples()],
         "a sample took 0.0 s; times are above 0. Measure longer runs."),
        ([ProductSample(m=s.m, k=s.k, n=s.n, num_slices=s.num_slices, time_s=_LAUNCHES_S[s.num_slices])
          for s in _samples(sizes=(32,))],
         "the times of the products do not grow with their arithmetic, so they give no FLOP/s"),
    ],
)  # fmt: skip
def test_refused(samples, message):
    with pytest.raises(ClusterError) as caught:
        fit_products(samples, start=_cluster(replace(_START, cast_exposed=0.0, num_cores=0)))
    assert message in str(caught.value)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_fits_or_is_refused_in_words(seed):
    """Tiny products on a busy machine: their times say nothing."""
    times_s = np.random.default_rng(seed).lognormal(-10, 2, 48)
    samples = [
        ProductSample(m=s.m, k=s.k, n=s.n, num_slices=s.num_slices, time_s=float(t))
        for s, t in zip(_samples(), times_s, strict=True)
    ]
    try:
        fit = fit_products(samples, start=_cluster(_START))
    except ClusterError:
        return
    assert np.isfinite([getattr(fit.compute, name) for name in _FITTED]).all()


def test_csv():
    samples = _samples()
    again = parse_products_csv(products_csv(samples))
    assert [(s.m, s.k, s.n, s.num_slices) for s in again] == [(s.m, s.k, s.n, s.num_slices) for s in samples]
    assert [s.time_s for s in again] == pytest.approx([s.time_s for s in samples], rel=1e-5)
    with pytest.raises(ClusterError, match=r"x\.csv should begin with m,k,n,num_slices,time_s, found"):
        parse_products_csv("m,k\n1,2\n", source="x.csv")
    for row, message in (
        ("1,2,3,4,5,6", "it has more than 5 values"),
        ("0,2,3,4,5", "sizes, slices and times are above 0"),
        ("1,2,3,4,inf", "sizes, slices and times are above 0"),
    ):
        with pytest.raises(ClusterError, match=rf"line 2 of x\.csv is no product: {message}"):
            parse_products_csv(f"m,k,n,num_slices,time_s\n{row}\n", source="x.csv")
    with pytest.raises(ClusterError, match=r"line 2 of x\.csv is no product: invalid literal"):
        parse_products_csv("m,k,n,num_slices,time_s\n1,2,3,four,5\n", source="x.csv")


def _h200_samples():
    file = resources.files("jaxquard.cluster") / "presets" / "h200.csv"
    return parse_products_csv(file.read_text(), source="h200.csv")


def test_the_h200_preset_is_the_fit_of_its_measurements():
    cluster = load_cluster("h200")
    fit = fit_products(_h200_samples(), start=cluster)
    for name in _FITTED:
        assert getattr(cluster.compute, name) == pytest.approx(getattr(fit.compute, name), rel=1e-2), name
    assert fit.median_error < 0.035
    assert fit.worst_error < 0.125


def _held_out_errors():
    """Fits on half of the shapes, judged on the other half: every other shape, and twelve shuffles, both ways.

    The three small ones, which alone show what a launch takes, are in every fit and judge none.
    """
    cluster, samples = load_cluster("h200"), _h200_samples()
    shapes = sorted({(s.m, s.k, s.n) for s in samples if s.m > 1000})
    halves = [set(shapes[0::2]), set(shapes[1::2])]
    shuffle = random.Random(0).shuffle
    for _ in range(12):
        shuffle(shapes)
        halves += [set(shapes[:13]), set(shapes[13:])]
    for half in halves:
        seen = [s for s in samples if (s.m, s.k, s.n) in half or s.m < 1000]
        fit = fit_products(seen, start=cluster)
        yield product_errors([s for s in samples if s not in seen], replace(cluster, compute=fit.compute))


def test_half_of_the_shapes_predict_the_other_half():
    """All but one: (2048, 3072, 12288) at S=2 is always too slow by 12 %. Measured again, it was not."""
    errors = list(_held_out_errors())
    every = [error for split in errors for error in split]
    assert statistics.median(every) < 0.035
    assert sum(error <= 0.10 for error in every) / len(every) > 0.98
    assert max(max(split) for split in errors[:2]) < 0.125
    assert max(every) < 0.17


def test_other_shapes_measured_after_the_fit():
    """Seven shapes at S = 1, 2, 4, 8 on a machine newly lent: the aim of at most 10 % is kept."""
    cluster = load_cluster("h200")
    samples = parse_products_csv((Path(__file__).parent / "h200_other_shapes.csv").read_text())
    assert not {(s.m, s.k, s.n) for s in samples} & {(s.m, s.k, s.n) for s in _h200_samples()}
    errors = product_errors(samples, cluster)
    assert statistics.median(errors) < 0.045
    assert max(errors) < 0.10


@pytest.mark.parametrize(
    ("shape", "slices", "measured"),
    [
        ((8192, 12288, 6144), 2, 1.04), ((8192, 12288, 6144), 4, 1.09), ((8192, 12288, 6144), 8, 1.24),
        ((32768, 3072, 12288), 2, 1.13), ((32768, 3072, 12288), 4, 1.39), ((32768, 3072, 12288), 8, 2.09),
    ],
)  # fmt: skip
def test_what_slicing_costs_with_an_fp32_result(shape, slices, measured):
    """Design decision 9, measured on another day and not fitted: times against the whole product."""
    cluster = load_cluster("h200")
    m, k, n = shape
    whole, sliced = (
        times_of(cluster).product(m=m, k=k, n=n, num_slices=count, output_item_bytes=4) for count in (1, slices)
    )
    assert sliced / whole == pytest.approx(measured, rel=0.08)
