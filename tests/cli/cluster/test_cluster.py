"""`jaxquard cluster`: what it shows, measures and refuses."""

import datetime
import re

import pytest
from typer.testing import CliRunner

from jaxquard.calibrate import Calibration
from jaxquard.cli.main import app
from jaxquard.cluster import (
    Axis,
    Collective,
    LinkFit,
    ProductFit,
    load_cluster,
    parse_cluster,
    preset_names,
)


def run(*words):
    environment = {"COLUMNS": "120", "NO_COLOR": "1", "FORCE_COLOR": None}
    return CliRunner().invoke(app, ["cluster", *map(str, words)], env=environment)


def test_show_without_a_name_lists_the_presets():
    lines = run("show").stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(preset_names())
    assert "h200: up to 1016 chips, 737 TFLOP/s of 989 TFLOP/s, 141 GB at 4.8 TB/s, switch" in lines


def test_show_a_gpu():
    text = run("show", "h200").stdout
    assert "Rows and columns share a chip's port; nodes of 8, joined at 50 GB/s a chip." in text
    assert "A product in slices: 3.9% slower arithmetic, 74% of an output's or fp32 sum's traffic exposed" in text
    assert re.search(r"all_gather +│ +360 GB/s │ +360 GB/s │ 3.4 µs │ 8.4 µs", text)


def test_show_a_torus():
    text = run("show", "tpu-v4").stdout
    assert "Rows and columns have links of their own; permutes go both ways round a ring." in text
    assert "A product in slices" not in text


@pytest.mark.parametrize("name", preset_names())
def test_show_toml_reads_back(name):
    assert parse_cluster(run("show", name, "--toml").stdout) == load_cluster(name)


def test_an_unknown_name_is_answered_with_the_names():
    result = run("show", "h300")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: 'h300' is neither a cluster of the package nor a file. Use one of a100, ")


def test_calibrate_prints_fits_and_notes(tmp_path, monkeypatch):
    cluster = load_cluster("h200")
    fit = LinkFit(
        kind=Collective.PERMUTE, axis=Axis.ROWS, bandwidth_bytes_per_s=42e9, sync_s=3e-6, launch_s=1.25e-5,
        num_samples=27, median_error=0.012, worst_error=0.6,
    )  # fmt: skip
    products = ProductFit(compute=cluster.compute, num_samples=24, median_error=0.018, worst_error=0.105)
    found = Calibration(
        cluster=cluster, device="2 x H200", link_fits=(fit,), product_fit=products, link_samples=(), product_samples=(),
        notes=("the fit of permute is poor", "all_gather is that of h200"),
    )  # fmt: skip
    asked = {}
    monkeypatch.setattr("jaxquard.calibrate.calibrate", lambda base, **options: asked.update(options) or found)
    result = run("calibrate", "--quick", "--out", tmp_path / "mine.toml")
    assert asked["is_quick"]
    assert re.search(r"permute +│ +42 GB/s │ 3.0 µs │ 12.5 µs │ +27 │ +1.2% │ +60.0%", result.stdout)
    assert re.search(r"products +│ +737 TFLOP/s │ +│ +9.4 µs │ +24 │ +1.8% │ +10.5%", result.stdout)
    assert result.stderr.splitlines()[:2] == [f"note: {note}" for note in found.notes]
    assert load_cluster(tmp_path / "mine.toml") == cluster


@pytest.mark.slow
def test_calibrate_writes_a_cluster(tmp_path):
    path = tmp_path / "mine.toml"
    result = run("calibrate", "--quick", "--cpu", "--base", "h200", "--out", path)
    assert result.exit_code == 0, result.stderr
    assert "calibrated h200, on 8 x cpu" in result.stdout
    assert f"wrote {path}" in result.stderr
    text = path.read_text()
    assert text.startswith(f"# Measured on 8 x cpu, {datetime.date.today()}, JAX ")
    assert load_cluster(path).name == "calibrated h200"
    # A busy machine may fit nothing, and then says so.
    for kind in ("all_gather", "reduce_scatter", "permute"):
        assert re.search(rf"{kind} +│", result.stdout) or f"note: {kind} is that of h200" in result.stderr
    assert re.search(r"products +│", result.stdout) or "note: products are those of h200" in result.stderr


def test_calibrate_refuses_before_it_measures(tmp_path):
    result = run("calibrate", "--base", "h300", "--out", tmp_path / "mine.toml")
    assert (result.exit_code, result.stderr.startswith("error: 'h300' is neither")) == (2, True)
    result = run("calibrate", "--out", tmp_path / "no" / "mine.toml")
    assert result.exit_code == 2
    assert "Give a file in a folder that exists" in result.stderr
