"""`jaxquard run`: the programs that it finds, and what it refuses."""

import os
import sys

import pytest

from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.run.find_program import program_command
from tests.cli.run_cli import run, run_apart


def refused(*words):
    result = run("run", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_programs_that_are_not_there(here):
    (here / "folder").mkdir()
    assert refused("train.py") == (
        "error: train.py is not there. Give a Python file or an executable, or -m and the name of a module.\n"
    )
    assert refused("folder").startswith("error: folder is a folder. ")
    assert refused("-m", "no_such_package.train") == (
        "error: no module is called 'no_such_package'. Give a name that `python -m` takes, such as a.train.\n"
    )
    assert refused("-m", "json.no_such").startswith("error: no module is called 'json.no_such'.")
    assert refused("-m", "a..b").startswith("error: no module is called ")
    assert refused("-m", "json").startswith("error: json is a package without __main__")
    assert refused() == "error: Missing argument 'PROGRAM'. See jaxquard run --help.\n"
    assert list(here.iterdir()) == [here / "folder"]


def test_a_file_that_cannot_be_run(here):
    (here / "train.sh").write_text("#!/bin/sh\n")
    assert refused("train.sh").startswith("error: train.sh is neither a Python file (.py) nor executable.")
    (here / "train.sh").chmod(0o755)
    assert program_command("train.sh", ["a"], is_module=False) == [str(here / "train.sh"), "a"]
    (here / "train.py").write_text("")
    assert program_command("train.py", [], is_module=False) == [sys.executable, "train.py"]
    if os.getuid():
        (here / "train.py").chmod(0)
        with pytest.raises(UsageError, match="cannot be read"):
            program_command("train.py", [], is_module=False)


def test_a_module_is_found_and_not_imported(here):
    (here / "package" / "inner").mkdir(parents=True)
    for name in ("__init__", "inner/__init__", "inner/train"):
        (here / "package" / f"{name}.py").write_text("raise AssertionError('imported')")
    assert program_command("package.inner.train", ["x"], is_module=True) == [
        *(sys.executable, "-m", "package.inner.train", "x")
    ]


@pytest.mark.parametrize("option", ["--max-restarts", "--backoff", "--max-backoff", "--grace", "--stable-after"])
def test_limits_are_not_negative(option, here):
    (here / "train.py").write_text("")
    for value in ("-1", "x", "nan"):
        assert refused(option, value, "train.py").startswith(f"error: {option} should be a ")
    assert list(here.iterdir()) == [here / "train.py"]


def test_other_values_that_are_refused(here):
    (here / "train.py").write_text("")
    assert refused("--output-timeout", "0", "train.py").startswith("error: --output-timeout should be more than 0")
    for name in ("../x", "a/b", "", ".", "x" * 101):
        assert refused("--id", name, "train.py").startswith("error: --id should be letters, digits")
    assert refused("--out", "train.py", "train.py").startswith("error: cannot write train.py/")
    assert refused("--max-restart", "1", "train.py") == (
        "error: No such option: --max-restart. Did you mean --max-restarts? See jaxquard run --help.\n"
    )


def test_a_module_runs_with_its_arguments(here):
    (here / "words.py").write_text("import sys; print(sys.argv[1:])")
    done = run_apart("run", "-m", "words", "--json", "-m", "--out=x", cwd=here)
    assert (done.returncode, done.stdout) == (0, "['--json', '-m', '--out=x']\n")
    (log,) = here.glob("runs/*/log.txt")
    assert done.stderr == f"run {log.parent.name}: log in {log.relative_to(here)}\ndone after 0 restarts\n"
