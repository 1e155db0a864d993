"""The kernels of the H200's preset are the fit of what was measured."""

import csv
from importlib import resources

import pytest

from jaxquard.cluster import KernelKind, KernelSample, ProductShape, fit_kernels, load_cluster


def samples():
    text = (resources.files("jaxquard.cluster") / "presets" / "h200_kernels.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        dims = {name: int(row[name]) for name in ("batch", "m", "k", "n") if row[name]}
        yield KernelSample(
            kind=KernelKind(row["kind"]), dtype=row["dtype"], size_bytes=float(row["size_bytes"]),
            flops=float(row["flops"]), time_s=float(row["time_s"]), product=ProductShape(**dims) if dims else None,
        )  # fmt: skip


@pytest.mark.parametrize("has_products", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_preset_is_the_fit_of_its_measurements(has_products):
    cluster = load_cluster("h200")
    found = {(speed.kind, speed.dtype): speed for speed in cluster.kernels}
    measured = list(samples())
    assert found.keys() == {(sample.kind, sample.dtype) for sample in measured}
    chosen = [sample for sample in measured if (sample.product is not None) == has_products]
    fitted = fit_kernels(chosen, launch_s=cluster.compute.launch_s / 3)
    for speed in fitted:
        preset = found[speed.kind, speed.dtype]
        assert preset.flops_per_s == pytest.approx(speed.flops_per_s, rel=1e-3)
        assert preset.bandwidth_bytes_per_s == pytest.approx(speed.bandwidth_bytes_per_s, rel=1e-3)
        assert preset.median_error == pytest.approx(speed.median_error, abs=1e-3)
        assert preset.num_samples == speed.num_samples
    assert found[KernelKind.PRODUCT, "bf16"].median_error < 0.02
    assert len(fitted) == (2 if has_products else 6)
