"""`jaxquard reproduce`: what it prints, writes and refuses."""

import json
import re

import pytest

from jaxquard.cli.reproduce import meshslice as command
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli
from tests.evaluate.meshslice.shared_results import meshslice_results


def run(*words, columns=120):
    return run_cli("reproduce", *words, columns=columns)


@pytest.fixture(scope="module")
def known_results(tmp_path_factory):
    def results(*, on_progress):
        on_progress(1, 1, "Figure 9")
        return meshslice_results(tmp_path_factory)

    return results


@pytest.fixture(scope="module", params=["known", pytest.param("computed", marks=pytest.mark.slow)])
def done(request, tmp_path_factory, known_results):
    """With results that other tests have computed, or by itself."""
    folder = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "known":
            patch.setattr(command, "reproduce_meshslice", known_results)
        return run("meshslice", "--out", folder / "new" / "pages"), folder / "new" / "pages"


def test_prints_the_headlines(done):
    result, _ = done
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["headline", "paper", "ours", "band", "verdict"]
    assert lines[1].split("  ")[0] == "MeshSlice over Wang, GPT-3, 256 chips"
    assert re.split(r"\s{2,}", lines[1].strip())[1:] == ["13.8 %", "25.0 %", "10.8 to 60.4 %", "within band"]
    assert len(lines) == 1 + 17 + 1
    assert lines[-1] == ("5 of 17 headlines reproduce, 6 lie within the band, 6 do not reproduce. The page says why.")


def test_writes_the_page_and_the_numbers(done):
    result, folder = done
    page, numbers = folder / "meshslice.html", folder / "meshslice.json"
    assert page.read_text().startswith("<!doctype html>")
    assert len(json.loads(numbers.read_text())["headlines"]) == 17
    assert f"wrote {page}" in result.stderr
    assert f"wrote {numbers}" in result.stderr
    took = re.search(r"took (\d+) s", result.stderr)
    assert took is not None


def test_json_has_what_the_file_has(done, tmp_path, monkeypatch, known_results):
    monkeypatch.setattr(command, "reproduce_meshslice", known_results)
    answer = read_json(run("meshslice", "--out", tmp_path, "--json"))
    assert answer == json.loads((tmp_path / "meshslice.json").read_text())
    assert len(answer["headlines"]) == 17


@pytest.fixture
def no_work(monkeypatch):
    """Mistakes are found before the work begins."""

    def fail(**_):
        raise AssertionError("the work began")

    monkeypatch.setattr(command, "reproduce_meshslice", fail)


@pytest.mark.usefixtures("no_work")
def test_an_unknown_paper():
    result = run("gpipe")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: no paper is called 'gpipe'. Use one of: meshslice, cfp, jaxpp, published.\n",
    )


@pytest.mark.usefixtures("no_work")
def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("")
    result = run("meshslice", "--out", tmp_path / "file")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot make the folder {tmp_path / 'file'} (File exists). Give --out")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("no_work")
def test_numbers_that_cannot_be_written(tmp_path):
    (tmp_path / "meshslice.json").mkdir()
    result = run("meshslice", "--out", tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: cannot write {tmp_path / 'meshslice.json'} (Is a directory).")


@pytest.mark.usefixtures("no_work")
def test_a_paper_must_be_named():
    result = run()
    assert result.exit_code == 2
    assert "PAPER" in result.stderr
