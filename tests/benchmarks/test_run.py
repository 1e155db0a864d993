import pytest

from benchmarks import run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tree with two benchmarks, one of which fails."""
    benchmarks = tmp_path / "benchmarks"
    benchmarks.mkdir()
    (benchmarks / "good.py").write_text("def main():\n    print('a table')\n")
    (benchmarks / "bad.py").write_text("def main():\n    raise SystemExit(3)\n")
    (benchmarks / "measure.py").write_text("")
    (benchmarks / "shard_search.py").write_text("def main():\n    print('hours later')\n")
    monkeypatch.setattr(run, "FOLDER", benchmarks)


@pytest.mark.usefixtures("folder")
def test_runs_the_named_one(capfd):
    assert run.main(["good"]) == 0
    out = capfd.readouterr().out
    assert "a table" in out
    assert "== good: done in " in out
    assert "bad" not in out


@pytest.mark.usefixtures("folder")
def test_runs_all_and_reports_which_failed(capfd):
    assert run.main([]) == 1
    out = capfd.readouterr().out
    assert "== bad: failed with status 3" in out
    assert "a table" in out
    assert out.endswith("failed: bad\n")
    assert "hours later" not in out


@pytest.mark.usefixtures("folder")
def test_a_long_one_runs_if_it_is_named(capfd):
    assert run.main(["shard_search"]) == 0
    assert "hours later" in capfd.readouterr().out


@pytest.mark.usefixtures("folder")
def test_an_unknown_name_is_answered_with_the_list(capsys):
    with pytest.raises(SystemExit):
        run.main(["goood"])
    assert "there is no benchmark goood. There are: bad, good, shard_search." in capsys.readouterr().err
