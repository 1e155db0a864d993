"""Link fits find made-up constants again, under noise and outliers."""

import re

import numpy as np
import pytest

from jaxquard.cluster import Axis, Collective, LinkSample, fit_links
from jaxquard.errors import ClusterError

_SIZES = [8 * 1024 * 4**power for power in range(9)]


def _samples(noise, *, rings=(2, 4), outliers=0):
    random = np.random.default_rng(0)
    samples = []
    for ring in rings:
        for size in _SIZES:
            for _ in range(5):
                time_s = 13e-6 + (ring - 1) * (5e-6 + size / 60e9)
                time_s *= 1 + noise * abs(random.standard_normal()) if noise else 1
                samples.append((ring, size, time_s))
    for position in random.choice(len(samples), outliers, replace=False):
        ring, size, time_s = samples[position]
        samples[position] = (ring, size, 5 * time_s)
    return [LinkSample(kind=Collective.ALL_GATHER, ring_size=r, shard_bytes=s, time_s=t) for r, s, t in samples]


def test_links_exactly():
    (fit,) = fit_links(_samples(0))
    assert (fit.bandwidth_bytes_per_s, fit.sync_s, fit.launch_s) == pytest.approx((60e9, 5e-6, 13e-6), rel=1e-6)
    assert fit.worst_error < 1e-6


@pytest.mark.parametrize("outliers", [0, 9])
def test_links_under_noise(outliers):
    (fit,) = fit_links(_samples(0.03, outliers=outliers))
    assert fit.bandwidth_bytes_per_s == pytest.approx(60e9, rel=0.05)
    assert (fit.sync_s, fit.launch_s) == pytest.approx((5e-6, 13e-6), rel=0.25)
    assert fit.median_error < 0.03
    assert (fit.worst_error > 0.5) is bool(outliers)


def test_links_of_each_kind_and_axis():
    other = [
        LinkSample(kind=Collective.PERMUTE, axis=Axis.COLUMNS, ring_size=4, num_steps=steps, shard_bytes=size,
                   time_s=1e-5 + steps * size / 30e9)
        for size in _SIZES for steps in (1, 2)
    ]  # fmt: skip
    first, second = fit_links(_samples(0) + other)
    assert (first.kind, first.axis) == (Collective.ALL_GATHER, Axis.ROWS)
    assert (second.kind, second.axis, second.num_samples) == (Collective.PERMUTE, Axis.COLUMNS, len(other))
    assert second.bandwidth_bytes_per_s == pytest.approx(30e9, rel=1e-6)
    assert second.sync_s == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (_samples(0, rings=(4,)), "all_gather along rows needs samples of two ring sizes"),
        ([s for s in _samples(0) if s.shard_bytes == 8192], "needs samples of two shard sizes"),
        ([LinkSample(kind=s.kind, ring_size=s.ring_size, shard_bytes=s.shard_bytes, time_s=0.0) for s in _samples(0)],
         "took 0.0 s; times are above 0"),
        ([LinkSample(kind=s.kind, ring_size=s.ring_size, shard_bytes=s.shard_bytes, time_s=1.0) for s in _samples(0)],
         "do not grow with the shard, so they give no bandwidth"),
    ],
)  # fmt: skip
def test_too_few_link_samples(samples, message):
    with pytest.raises(ClusterError, match=re.escape(message)):
        fit_links(samples)
