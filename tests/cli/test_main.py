"""The command as a whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import jaxquard.schedules
from jaxquard.cli.main import app


def environment():
    found = {**os.environ, "PYTHONPATH": str(Path(jaxquard.schedules.__file__).parents[2])}
    found.pop("FORCE_COLOR", None)
    return found


def run_module(*words):
    command = [sys.executable, "-m", "jaxquard", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment())


def test_without_a_command_it_explains_itself():
    result = CliRunner().invoke(app, [])
    assert "schedule" in result.output
    assert "Spreads a plain JAX training step" in result.output


@pytest.mark.parametrize("group", ["gemm", "cluster"])
def test_a_group_without_a_command_explains_itself_and_nothing_else(group):
    result = CliRunner().invoke(app, [group])
    assert f"{group} [OPTIONS] COMMAND" in result.stdout
    assert result.stderr == ""


def test_a_command_that_is_not_there_is_answered_with_one_that_is():
    result = CliRunner().invoke(app, ["shrad"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: No such command 'shrad'. Did you mean 'shard'?")


def test_a_subcommand_does_not_import_what_only_others_need():
    code = """if True:
        import sys
        from jaxquard.cli.main import app
        app(["shard", "search", "--help"], standalone_mode=False)
        print(*sorted(sys.modules), file=sys.stderr)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    imported = set(done.stderr.split())
    assert "jaxquard.cli.shard.search" in imported
    others = {"jaxquard.evaluate", "jaxquard.gemm", "jaxquard.calibrate", "jaxquard.cli.demo", "scipy.optimize"}
    assert not imported & others


def test_python_m_jaxquard():
    done = run_module("schedule", "gpipe", "--stages", "2", "--microbatches", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("GPipe(2): 2 stages on 2 actors, 2 microbatches\n")


def test_python_m_jaxquard_says_what_is_wrong_without_a_traceback():
    done = run_module("schedule", "dual-pipe-v", "--stages", "3", "--microbatches", "2")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: DualPipeV(3) puts two stages on each actor, so it needs an even number of stages, but 3 is "
        "odd. Use DualPipeV(2) or DualPipeV(4).\n"
    )
