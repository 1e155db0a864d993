"""The kernels of the H200's preset are the fit of what was measured."""

import csv
from importlib import resources

import pytest

from jaxquard.cluster import KernelKind, KernelSample, fit_kernels, load_cluster

# A third of what starting a product took in the first fit of the preset.
_LAUNCH_S = 9.38e-6 / 3


def samples():
    text = (resources.files("jaxquard.cluster") / "presets" / "h200_kernels.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        yield KernelSample(
            kind=KernelKind(row["kind"]), dtype=row["dtype"], size_bytes=float(row["size_bytes"]),
            flops=float(row["flops"]), time_s=float(row["time_s"]),
        )  # fmt: skip


def test_the_preset_is_the_fit_of_its_measurements():
    cluster = load_cluster("h200")
    found = {(speed.kind, speed.dtype): speed for speed in cluster.kernels}
    measured = list(samples())
    assert found.keys() == {(sample.kind, sample.dtype) for sample in measured}
    fitted = fit_kernels(measured, launch_s=_LAUNCH_S)
    for speed in fitted:
        preset = found[speed.kind, speed.dtype]
        assert preset.flops_per_s == pytest.approx(speed.flops_per_s, rel=1e-3)
        assert preset.bandwidth_bytes_per_s == pytest.approx(speed.bandwidth_bytes_per_s, rel=1e-3)
        assert preset.median_error == pytest.approx(speed.median_error, abs=1e-3)
        assert preset.num_samples == speed.num_samples
    assert len(fitted) == 6
