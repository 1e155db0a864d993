"""The command as a whole."""

import pytest

from tests.cli.run_cli import run, run_apart


def test_without_a_command_it_explains_itself():
    result = run()
    assert "schedule" in result.output
    assert "Spreads a plain JAX training step" in result.output


@pytest.mark.parametrize("group", ["gemm", "cluster"])
def test_a_group_without_a_command_explains_itself_and_nothing_else(group):
    result = run(group)
    assert f"{group} [OPTIONS] COMMAND" in result.stdout
    assert result.stderr == ""


def test_a_command_that_is_not_there_is_answered_with_one_that_is():
    result = run("shrad")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: No such command 'shrad'. Did you mean 'shard'?")


def test_python_m_jaxquard():
    done = run_apart("schedule", "gpipe", "--stages", "2", "--microbatches", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("GPipe(2): 2 stages on 2 actors, 2 microbatches\n")


def test_python_m_jaxquard_says_what_is_wrong_without_a_traceback():
    done = run_apart("schedule", "dual-pipe-v", "--stages", "3", "--microbatches", "2")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: DualPipeV(3) puts two stages on each actor, so it needs an even number of stages, but 3 is "
        "odd. Use --stages 2 or --stages 4.\n"
    )
