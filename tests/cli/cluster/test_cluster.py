"""`jaxquard cluster`: what it shows, measures and refuses."""

import datetime
import re
import tomllib

import pytest

from jaxquard.calibrate import Calibration
from jaxquard.cluster import (
    Axis,
    Collective,
    LinkFit,
    ProductFit,
    load_cluster,
    parse_cluster,
    preset_names,
)
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli


def run(*words):
    return run_cli("cluster", *words)


def test_show_without_a_name_lists_the_presets():
    lines = run("show").stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(preset_names())
    assert "h200: up to 1016 chips, 726 TFLOP/s of 989 TFLOP/s, 141 GB at 4.8 TB/s, switch" in lines


def test_show_a_gpu():
    text = run("show", "h200").stdout
    assert "Rows and columns share a chip's port; nodes of 8, joined at 50 GB/s a chip." in text
    assert "A product in slices: 2.9% slower arithmetic, 73% of an output's or fp32 sum's traffic exposed" in text
    assert re.search(r"all_gather +│ +360 GB/s │ +360 GB/s │ 3.4 µs │ 8.4 µs", text)


def test_show_a_torus():
    text = run("show", "tpu-v4").stdout
    assert "Rows and columns have links of their own; permutes go both ways round a ring." in text
    assert "The compiler hides one all-gather behind a product, and no reduce-scatter." in text
    assert "A systolic array of 128x128: thinner products leave a part of it idle." in text
    assert "50% of an output's or fp32 sum's traffic exposed, 2.0 µs a launch." in text


def test_show_one_of_the_papers():
    text = run("show", "tpu-v4-main").stdout
    assert "The paper's own constants, for its reproduction: not to plan with." in text
    assert "A product in slices" not in text


@pytest.mark.parametrize("name", preset_names())
def test_show_toml_reads_back(name):
    assert parse_cluster(run("show", name, "--toml").stdout) == load_cluster(name)


@pytest.mark.parametrize("name", preset_names())
def test_show_json_has_what_the_file_has(name):
    assert read_json(run("show", name, "--json")) == tomllib.loads(run("show", name, "--toml").stdout)


def test_show_json_of_all():
    assert [one["name"] for one in read_json(run("show", "--json"))] == list(preset_names())


def test_a_name_with_underscores():
    assert run("show", "TPU_v4").stdout == run("show", "tpu-v4").stdout


@pytest.mark.parametrize("words", [("--toml",), ("h200", "--toml", "--json")])
def test_toml_is_of_one_cluster(words):
    result = run("show", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: --toml prints one cluster as TOML. Name one, and leave --json out.\n"


def test_a_file_that_is_no_cluster(tmp_path):
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "text.toml").write_text("name = ")
    for name, why in {
        "binary.toml": "(it is no text)",
        "text.toml": "is not TOML: ",
        ".": "is neither a cluster",
    }.items():
        result = run("show", tmp_path / name)
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
        assert why in result.stderr


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
    assert re.search(r"products +│ +726 TFLOP/s │ +│ +6.2 µs │ +24 │ +1.8% │ +10.5%", result.stdout)
    assert result.stderr.splitlines()[:2] == [f"note: {note}" for note in found.notes]
    assert load_cluster(tmp_path / "mine.toml") == cluster
    answer = read_json(run("calibrate", "--json", "--out", tmp_path / "mine.toml"))
    assert [link["collective"] for link in answer["links"]] == ["permute"]
    assert answer["products"]["num_samples"] == 24
    assert answer["notes"] == list(found.notes)
    assert answer["cluster"]["name"] == "h200"


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


def test_an_interrupt_of_calibrate_says_what_is_kept(tmp_path, monkeypatch):
    def interrupted(base, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxquard.calibrate.calibrate", interrupted)
    result = run("calibrate", "--cpu", "--out", tmp_path / "my.toml")
    assert (result.exit_code, result.stderr) == (130, "interrupted. Nothing is kept.\n")
    assert not (tmp_path / "my.toml").exists()


def test_calibrate_refuses_before_it_measures(tmp_path):
    result = run("calibrate", "--base", "h300", "--out", tmp_path / "mine.toml")
    assert (result.exit_code, result.stderr.startswith("error: 'h300' is neither")) == (2, True)
    result = run("calibrate", "--out", tmp_path / "no" / "mine.toml")
    assert result.exit_code == 2
    assert "Give a file in a folder that exists" in result.stderr
