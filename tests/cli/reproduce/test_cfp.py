"""`jaxquard reproduce cfp`: what it draws, keeps and refuses."""

import json
import time
from dataclasses import replace

import pytest

from jaxquard.cli.reproduce import cfp as command
from jaxquard.evaluate.cfp import Results, read_results, results_text
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli
from tests.evaluate.cfp.made_cells import made_cell, made_results, priced_for


def run(*words, columns=140):
    return run_cli("reproduce", *words, columns=columns)


@pytest.fixture
def asked(monkeypatch):
    """Nothing is measured; the list has the options of each call."""
    calls = []

    def reproduce(**options):
        calls.append(options)
        options["on_done"](made_results().cells[0])
        return made_results()

    monkeypatch.setattr(command, "reproduce_cfp", reproduce)
    return calls


def test_draws_an_earlier_run(asked, tmp_path):
    (tmp_path / "cells.json").write_text(results_text(made_results()))
    result = run("cfp", "--from", tmp_path / "cells.json", "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert asked == []
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["headline", "paper", "ours", "verdict"]
    assert lines[1].split("  ")[0] == "faster than Alpa, mean, 8 devices of one node"
    assert lines[1].split()[-6:] == ["1.63x", "1.50x", "in", "kind,", "but", "less"]
    assert lines[-1].endswith("The page says what can be compared.")
    assert (tmp_path / "new" / "cfp.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["cfp.html"]


def test_json_of_an_earlier_run(asked, tmp_path):
    (tmp_path / "cells.json").write_text(results_text(made_results()))
    answer = read_json(run("cfp", "--from", tmp_path / "cells.json", "--out", tmp_path, "--json"))
    assert len(answer["cells"]) == len(made_results().cells)
    assert asked == []


def test_cells_of_a_quick_run_are_not_drawn_with_others(asked, tmp_path):
    thin = made_cell("bert", is_thin=True)
    (tmp_path / "cells.json").write_text(results_text(Results(cells=(thin, made_cell("gpt")))))
    run("cfp", "--from", tmp_path / "cells.json", "--out", tmp_path)
    page = (tmp_path / "cfp.html").read_text()
    assert "GPT, 2 layers" in page
    assert "BERT, 2 layers" not in page
    assert "quick run" not in page


def test_a_quick_run_is_drawn_beside_the_full_page(asked, tmp_path):
    (tmp_path / "cells.json").write_text(results_text(Results(cells=(made_cell("bert", is_thin=True),))))
    run("cfp", "--from", tmp_path / "cells.json", "--out", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cells.json", "cfp-quick.html"]


def test_a_cell_whose_plan_did_not_run_says_why(monkeypatch, tmp_path):
    cell = made_cell("gpt")
    failed = tuple(replace(run, measured_s=None, coarse_s=None, failure="no memory") for run in cell.runs)

    def reproduce(*, on_done, **_):
        on_done(replace(cell, runs=failed))
        return Results()

    monkeypatch.setattr(command, "reproduce_cfp", reproduce)
    assert "gpt, 2 layers of 256, batch 8: no memory\n" in run("cfp", "--out", tmp_path).stderr


def test_measures_what_is_asked_for(asked, tmp_path):
    result = run("cfp", "--out", tmp_path, "--quick", "--models", "gpt, moe", "--cache", tmp_path / "prices")
    assert result.exit_code == 0, result.output
    (options,) = asked
    assert (options["models"], options["is_quick"]) == (("gpt", "moe"), True)
    assert options["path"] == tmp_path / "cfp-quick.json"
    assert options["cache"].folder == tmp_path / "prices"
    assert "gpt, 2 layers of 256, batch 8: 10.0 ms" in result.stderr
    assert f"wrote {tmp_path / 'cfp-quick.html'}" in result.stderr


def test_keeps_results_where_out_says(asked, tmp_path):
    run("cfp", "--out", tmp_path / "other")
    assert asked[0]["path"] == tmp_path / "other" / "cfp.json"
    assert (asked[0]["models"], asked[0]["is_quick"]) == (None, False)


def test_an_interrupted_run_says_how_to_go_on(monkeypatch, tmp_path):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "reproduce_cfp", interrupt)
    result = run("cfp", "--out", tmp_path)
    assert result.exit_code == 130
    kept = tmp_path / "cfp.json"
    assert (
        result.stderr == f"interrupted. Finished cells are kept in {kept}, and the same command goes on from there.\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["meshslice", "--quick"], "--quick can only be given with cfp. Leave out what is not for meshslice."),
        (
            ["meshslice", "--models", "gpt", "--from", "x.json"],
            "--from and --models can only be given with cfp. Leave out what is not for meshslice.",
        ),
        (
            ["cfp", "--from", "x.json", "--quick"],
            "--from draws an earlier run and measures nothing. Leave out --quick.",
        ),
        (
            ["cfp", "--from", "x.json"],
            "cannot read x.json (No such file or directory). Give the file of an earlier run.",
        ),
        (["cfp", "--models", "gpt,elmo"], "--models has 'elmo', which is no model here. Use gpt, bert, llama, moe."),
        (["jaxpp", "--cluster", "cpu-8"], "--cluster can only be given with cfp. Leave out what is not for jaxpp."),
        (
            ["cfp", "--from", "x.json", "--cluster", "cpu-8"],
            "--from draws an earlier run and measures nothing. Leave out --cluster.",
        ),
        (["cfp", "--models", ""], "--models has '', which is no model here. Use gpt, bert, llama, moe."),
        (["gpt"], "no paper is called 'gpt'. Use one of: meshslice, cfp, jaxpp, published."),
    ],
)
def test_nonsense_ends_in_one_line(asked, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert (result.exit_code, result.stderr) == (2, f"error: {said}\n")
    assert asked == []
    assert not list(tmp_path.iterdir())


def test_another_file_is_not_written_over(asked, tmp_path):
    path = tmp_path / "cfp.json"
    path.write_text(json.dumps({"schema": "something else"}))
    result = run("cfp", "--out", tmp_path)
    assert result.exit_code == 2
    assert "found something else" in result.stderr
    assert asked == []
    assert json.loads(path.read_text()) == {"schema": "something else"}


@pytest.mark.slow
def test_a_quick_run_for_real(tmp_path):
    words = ("cfp", "--quick", "--out", tmp_path, "--cache", tmp_path / "prices")
    start_s = time.monotonic()
    result = run(*words)
    measured_s = time.monotonic() - start_s
    assert result.exit_code == 0, result.output
    found = read_results(tmp_path / "cfp-quick.json")
    assert {cell.spec.model for cell in found.cells} == {"gpt", "llama", "moe"}
    assert all(cell.best is not None and cell.best.measured_s for cell in found.cells)
    page = (tmp_path / "cfp-quick.html").read_text()
    for number in (1, 7, 8, 9, 10, 11, 12, 13, 14):
        assert f'<section id="figure-{number}">' in page
    start_s = time.monotonic()
    assert run(*words).exit_code == 0
    assert time.monotonic() - start_s < measured_s / 4, "nothing is measured again"
    assert read_results(tmp_path / "cfp-quick.json") == found != Results()


def test_a_cluster_has_files_of_its_own(asked, tmp_path):
    result = run("cfp", "--out", tmp_path, "--cluster", "cpu-8", "--quick", "--models", "gpt")
    assert result.exit_code == 0, result.output
    (options,) = asked
    assert options["path"] == tmp_path / "cfp-cpu-8-quick.json"
    assert options["cluster"].name == "cpu-8"
    assert (tmp_path / "cfp-cpu-8-quick.html").exists()


def test_a_run_for_a_cluster_is_drawn_under_its_name(asked, tmp_path):
    (tmp_path / "cells.json").write_text(results_text(priced_for("a100-pcie-8", made_results())))
    assert run("cfp", "--from", tmp_path / "cells.json", "--out", tmp_path / "new").exit_code == 0
    (page,) = (tmp_path / "new").iterdir()
    assert page.name == "cfp-a100-pcie-8.html"
    assert "Nothing here ran" in page.read_text()


def test_a_cell_that_is_priced_says_so(monkeypatch, tmp_path):
    (cell, *_) = priced_for("a100-pcie-8", made_results()).cells
    monkeypatch.setattr(command, "reproduce_cfp", lambda *, on_done, **_: on_done(cell) or Results())
    said = run("cfp", "--out", tmp_path, "--cluster", "a100-pcie-8").stderr
    assert "gpt, 2 layers of 256, batch 8: 10.0 ms, priced for a100-pcie-8\n" in said


@pytest.mark.slow
def test_a_quick_run_for_a_cluster_for_real(tmp_path):
    words = (
        "cfp",
        "--quick",
        "--cluster",
        "cpu-8",
        "--models",
        "gpt",
        "--out",
        tmp_path,
        "--cache",
        tmp_path / "prices",
    )
    result = run(*words)
    assert result.exit_code == 0, result.output
    found = read_results(tmp_path / "cfp-cpu-8-quick.json")
    assert found.cluster == "cpu-8"
    assert all(cell.best is not None and cell.best.priced_s for cell in found.cells)
    assert run(*words).exit_code == 0
    assert read_results(tmp_path / "cfp-cpu-8-quick.json") == found
