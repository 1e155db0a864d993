"""The command as a whole."""

import pytest

from tests.cli.run_cli import run, run_apart


@pytest.mark.parametrize("words", [(), ("shard",), ("gemm",), ("cluster",)])
def test_without_a_command_the_help_is_the_answer(words):
    """As `pip`, `gh` and `docker` have it: on stdout, and nothing went wrong."""
    result = run(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == run(*words, "--help").stdout
    assert f"{' '.join(['jaxquard', *words])} [OPTIONS] COMMAND [ARGS]..." in result.stdout


def test_help_lists_the_commands():
    lines = [" ".join(line.split()) for line in run("--help").stdout.splitlines()]
    assert "Spreads a plain JAX training step over a cluster." in lines
    assert "gemm 2D tensor-parallel matrix products: tune them, and time them." in lines


def test_a_command_that_is_not_there_is_answered_with_one_that_is():
    result = run("shrad")
    assert result.exit_code == 2
    assert result.stderr == "error: No such command 'shrad'. Did you mean 'shard'? See jaxquard --help.\n"
    assert run("gemm", "x").stderr == (
        "error: No such command 'x'. Use one of: tune, bench, overlap. See jaxquard gemm --help.\n"
    )


def test_an_option_that_is_not_there_is_answered_with_one_that_is():
    result = run("list", "--jsn")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: No such option: --jsn. Did you mean --json? See jaxquard list --help.\n"


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
