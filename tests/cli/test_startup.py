"""Help, completion, usage errors and drawings come without JAX, and commands without what only others need."""

import shutil
import subprocess
import sys

import pytest

from tests.cli.run_cli import environment

SCRIPT = """
import sys
from jaxquard.cli.main import app
try:
    app(sys.argv[1:], prog_name="jaxquard")
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""
HEAVY = {"jax", "jaxlib", "numpy", "scipy", "pydantic", "optax", "ray"}
DRAWS = {"rich", "markdown_it", "pygments"}


def modules(*words, code=0, **more):
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**more), timeout=120)
    assert done.returncode == code, done.stderr
    return set(done.stderr.splitlines()[-1].split()), done.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--version", 0),
        ("--help", 0),
        ("--bogus", 2),
        ("demo --help", 0),
        ("plan --help", 0),
        ("plan search --help", 0),
        ("plan llama3:405b", 2),
        ("plan llama3:405b --cluster h100-8 --fix stages", 2),
        ("shard search --help", 0),
        ("shard search", 2),
        ("shard search gpt-tiny --mesh 2by4", 2),
        ("shard compare gpt-tiny --devices x", 2),
        ("gemm tune --model gpt5", 2),
        ("gemm bench --dataflow up", 2),
        ("demo --runtime threads", 2),
        ("reproduce gpipe", 2),
        ("run --help", 0),
        ("run no_such_file.py", 2),
        ("list algorithms", 0),
        ("list schedules", 0),
        ("schedule zero-bubble-v --stages 8 --microbatches 16", 0),
        ("schedule 1f1b --stages 4 --microbatches 8 --json", 0),
        ("schedule 1f1b --stages 4", 2),
    ],
)
def test_no_jax(words, code):
    imported, _ = modules(*words.split(), code=code)
    assert not imported & HEAVY
    ours = [name for name in imported if name.startswith("jaxquard")]
    assert len(ours) <= 80


def test_help_and_usage_errors_draw_nothing():
    """Old versions of typer import rich themselves."""
    script = "import sys, typer; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(), timeout=120
    )
    by_typer = set(done.stdout.split())
    for words, code in (("--help", 0), ("gemm tune --help", 0), ("--bogus", 2), ("schedule 1f1b --stages 4", 2)):
        imported, _ = modules(*words.split(), code=code)
        assert not (imported - by_typer) & DRAWS, words


def test_completion_knows_commands_options_and_names():
    lines = {
        "jaxquard sch": "schedule",
        "jaxquard shard search --mem": "--memory-limit",
        "jaxquard schedule zero-bubble-v": "zero-bubble-v",
        "jaxquard gemm tune --algorithm mesh": "meshslice",
        "jaxquard gemm tune --model meg": "megatron-nlg",
        "jaxquard reproduce c": "cfp",
        "jaxquard demo --runtime in": "in-process",
        "jaxquard list mod": "models",
    }
    for line, expected in lines.items():
        words = line.split()
        count = str(len(words) - 1)
        imported, shown = modules(_JAXQUARD_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=count)
        assert shown.split() == [expected]
        assert not imported & HEAVY


@pytest.mark.skipif(shutil.which("bash") is None, reason="typer asks which shell it runs in; here it shall be bash")
def test_completion_can_be_shown():
    # Not the last command of the shell, which would make way for it.
    in_bash = ["bash", "-c", '"$@"; exit $?', "bash", sys.executable, "-c", SCRIPT, "--show-completion"]
    done = subprocess.run(in_bash, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "_JAXQUARD_COMPLETE=complete_bash" in done.stdout


def test_a_subcommand_does_not_import_what_only_others_need():
    imported, _ = modules("shard", "search", "--help")
    assert "jaxquard.cli.shard.search" in imported
    others = {"jaxquard.evaluate", "jaxquard.gemm", "jaxquard.calibrate", "jaxquard.cli.demo", "jaxquard.cli.gemm"}
    assert not imported & others
