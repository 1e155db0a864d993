"""`jaxquard reproduce published`: what it prints, writes and refuses."""

import json
import shutil
from pathlib import Path

import pytest

from jaxquard.evaluate.published import rows as rows_module
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli

DATA = Path(rows_module.__file__).parent / "data"


def run(*words, columns=120):
    return run_cli("reproduce", "published", *words, columns=columns)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    return run("--out", folder), folder


def test_prints_each_file_and_each_framework(done):
    result, folder = done
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("published_steps.csv: 31 rows, 0 skipped, median error 3")
    assert lines[1].split("  ")[0] == "framework"
    assert any(line.startswith("Megatron-LM 2022 SP+selective") for line in lines)
    assert any(line.startswith("published_bubbles.csv: 12 rows") for line in lines)
    assert any(line.startswith("published_memory.csv: 12 rows") for line in lines)
    assert (folder / "published.html").read_text().startswith("<!doctype html>")
    assert json.loads((folder / "published.json").read_text())["schema"] == "jaxquard-published"


@pytest.mark.parametrize(("name", "rows"), [("published_bubbles.csv", 12), ("published_memory.csv", 12)])
def test_json_is_the_summary_of_a_file(tmp_path, name, rows):
    shutil.copy(DATA / name, tmp_path / "mine.csv")
    found = read_json(run("--data", tmp_path / "mine.csv", "--out", tmp_path, "--json"))
    assert list(found) == ["rows", "skipped", "median_error", "mean_error", "worst", "by_system"]
    assert found["rows"] == rows
    assert found["skipped"] == []


def test_skipped_rows_are_printed(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text("id,system,model,seq,hardware,n_dev\nr1,NeMo,Llama3-8B,8192,Abacus,8\n")
    result = run("--data", file, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "steps.csv: all 1 rows are skipped" in result.stdout
    assert "skipped r1: no chip is known in 'abacus'" in result.stdout


def test_other_columns_are_refused(tmp_path):
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    result = run("--data", tmp_path / "bad.csv", "--out", tmp_path)
    assert result.exit_code == 2
    assert "bad.csv has the columns a, b" in result.stderr


def test_options_of_others_are_refused(tmp_path):
    assert "--quick can only be given with cfp" in run("--quick", "--out", tmp_path).stderr
    refused = run_cli("reproduce", "meshslice", "--data", "x.csv", "--out", tmp_path)
    assert "--data can only be given with published" in refused.stderr
