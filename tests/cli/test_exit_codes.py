"""Exit codes, and the one line that goes with each."""

import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest

from jaxquard import errors
from jaxquard.cli import exit_codes
from jaxquard.cli.exit_codes import FAILED, INTERRUPTED, OK, USAGE, UsageError, exit_code, run_command
from tests.cli.run_cli import environment, run, run_apart

FAILURES = {
    "ActorFailed",
    "CheckpointError",
    "CheckpointOwnedError",
    "DamagedCheckpointError",
    "DeletedArrayError",
    "InfeasibleError",
    "InfeasibleGemmError",
    "InfeasiblePlanError",
    "InfeasibleShardingError",
    "InfeasibleStepError",
    "MeshError",
    "PricingError",
    "RemoteArrayError",
    "StaleOwnerError",
    "TaskFailed",
}


@pytest.mark.parametrize("name", [name for name, kind in vars(errors).items() if inspect.isclass(kind)])
def test_every_error_has_its_code(name):
    assert exit_code(getattr(errors, name)("why")) == (FAILED if name in FAILURES else USAGE)


def test_codes():
    assert (OK, FAILED, USAGE, INTERRUPTED) == (0, 1, 2, 130)
    assert exit_code(UsageError("why")) == USAGE


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("two\nlines of it."), USAGE, "error: two lines of it."),
        (errors.InfeasibleError("nothing fits."), FAILED, "error: nothing fits."),
        (RuntimeError("bad\nnews"), FAILED, "error: RuntimeError: bad (test_exit_codes.py:"),
        (ValueError(), FAILED, "error: ValueError: no message (test_exit_codes.py:"),
        (MemoryError(), FAILED, "error: out of memory (MemoryError). Give a smaller problem, or more devices."),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."),
            FAILED,
            "error: out of memory (RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.). Give a",
        ),
        (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
        (OSError(28, "No space left on device"), FAILED, "error: cannot write the answer (No space left on device)."),
    ],
)
def test_errors_become_one_line(error, code, line, capsys):
    def fail():
        raise error

    assert run_command(fail, show_traceback=False) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(line)
    assert len(printed.err.splitlines()) == 1


def test_a_traceback_for_those_who_ask(capsys):
    def fail():
        raise UsageError("why.")

    assert run_command(fail, show_traceback=True) == USAGE
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "error: why."


@pytest.mark.parametrize("words", [("--traceback", "schedule", "x"), ("schedule", "x", "--traceback")])
def test_the_traceback_may_be_asked_for_anywhere(words):
    result = run(*words)
    assert result.exit_code == USAGE
    assert result.stderr.startswith("Traceback")
    assert result.stderr.splitlines()[-1].startswith("error: no schedule is called 'x'.")


def test_without_a_reader_it_ends_quietly():
    """As with `| head -1`: the other end is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "jaxquard", "schedule", "1f1b", "--stages", "8", "--microbatches", "64", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=environment(), timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (FAILED, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a file that is always full")
def test_a_full_disk():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "jaxquard", "list", "algorithms"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=60)
    assert done.returncode == FAILED
    assert done.stderr == "error: cannot write the answer (No space left on device).\n"
    result = run("schedule", "gpipe", "--stages", 2, "--microbatches", 2, "--out", "/dev/full")
    assert result.exit_code == FAILED
    assert result.stderr.startswith("error: cannot write /dev/full (No space left on device).")


def test_ctrl_c_in_a_command_that_says_nothing_of_it(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("jaxquard.cli.cluster.show"), "find_cluster", interrupt)
    result = run("gemm", "tune", "--model", "gpt3")
    assert (result.exit_code, result.stdout, result.stderr) == (INTERRUPTED, "", "interrupted\n")


def test_ctrl_c_while_a_command_is_imported():
    script = """
import signal, sys
import jaxquard.cli.main as command

assert "numpy" not in sys.modules

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
command.main()
"""
    command = [sys.executable, "-c", script, "list", "models"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "interrupted\n")


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("--bogus", USAGE, "error: No such option: --bogus. See jaxquard --help."),
        ("schedule", USAGE, "error: Missing argument 'NAME|FILE.csv'. See jaxquard schedule --help."),
        (
            "shard search gpt-tiny --mesh",
            USAGE,
            "error: Option '--mesh' requires an argument. See jaxquard shard search",
        ),
        (
            "schedule 1f1b --stages -3 --microbatches 2",
            USAGE,
            "error: --stages should be a whole number, 1 or more, but",
        ),
        ("gemm tune --model gpt3 --chips 5000", USAGE, "error: --chips should be from 1 to the 4096 of tpu-v4, found"),
        (
            "gemm tune --layers 64x64 --rows 64 --chips 7",
            FAILED,
            "error: --chips is 7, but no mesh of 7 chips divides the layers for mesh",
        ),
        (
            "gemm tune --model gpt3 --chips 4 --cluster v5e",
            FAILED,
            "error: nothing fits in 16.00 GB of each of 4 chips",
        ),
        ("gemm tune --model gpt3 --memory-limit 1MB", FAILED, "error: nothing fits in 0.00 GB of each of 256 chips"),
        ("gemm tune --model gpt3 --memory-limit x", USAGE, "error: --memory-limit should be a size above 0"),
        ("gemm tune --model gpt3 --chips 32 --algorithm cannon", FAILED, "error: cannon needs a square mesh"),
        (
            "simulate --schedule interleaved --stages 9 --actors 4 --forward-ms 1",
            USAGE,
            "error: Interleaved(9, 4) gives every actor as many stages, but 9 stages do not divide among 4 actors.",
        ),
        ("simulate --model gpt:175b", USAGE, "error: --model needs --cluster, the hardware that it runs on."),
        ("schedule ./no.csv", USAGE, "error: cannot read the schedule no.csv (No such file or directory)."),
    ],
)
def test_nonsense(words, code, line):
    result = run(*words.split())
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith(line)
    assert len(result.stderr.splitlines()) == 1
    assert not any(name in result.stderr for name in ("num_stages", "num_chips", "memory_limit_bytes", "=True"))


def test_an_argument_too_many():
    """Versions of typer put it as `argument` or as `argument(s)`."""
    result = run("shard", "search", "gpt-tiny", "more")
    assert (result.exit_code, result.stdout) == (USAGE, "")
    shown = result.stderr.replace("argument(s)", "argument")
    assert shown == "error: Got unexpected extra argument (more). See jaxquard shard search --help.\n"


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "mine.csv"
    path.write_bytes(b"\xff\xfe\x00")
    result = run("schedule", path)
    assert result.exit_code == USAGE
    assert len(result.stderr.splitlines()) == 1
    assert run("schedule", tmp_path / "folder.csv").exit_code == USAGE
    (tmp_path / "folder.csv").mkdir()
    result = run("schedule", tmp_path / "folder.csv")
    assert (result.exit_code, len(result.stderr.splitlines())) == (USAGE, 1)


def test_help_names_the_codes():
    result = run("--help")
    assert "Exit codes: 0 done, 1 it could not be done, 2 usage, 130 interrupted." in " ".join(result.stdout.split())
    assert [int(code) for code in re.findall(r"^ *(\d+) ", exit_codes.__doc__, re.MULTILINE)] == [0, 1, 2, 130]


def test_version():
    import jaxquard

    result = run("--version")
    assert (result.exit_code, result.stdout, result.stderr) == (OK, f"jaxquard {jaxquard.__version__}\n", "")
    assert run_apart("--version").stdout == result.stdout
