"""The reading of values, and the help, as the functions of commands declare them."""

from pathlib import Path
from typing import Annotated

import pytest
import typer

from jaxquard.cli.command import Command
from jaxquard.cli.declared import declared_parameters
from jaxquard.cli.exit_codes import UsageError
from tests.cli.run_cli import APART


def _work(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    stages: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stages.", show_default="all")] = None,
    actors: Annotated[int, typer.Option(metavar="N", min=1, max=8, help="Actors.")] = 4,
    time: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Of a task.")] = 0.0,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the work is written that the actors do in-process.")
    ] = Path("x.json"),
    compare: Annotated[bool, typer.Option(help="Compare.")] = True,
    quick: Annotated[bool, typer.Option("--quick", help="Quick.")] = False,
) -> None:
    """Works.

    Example: jaxquard work a --stages 2 --actors 4 --time 1.5 --out a-rather-long-name-of-a-file.json
    """
    typer.echo((name, stages, actors, time, out, compare, quick))


def run(*words):
    app = typer.Typer(add_completion=False)
    app.command("work", cls=Command)(_work)
    return typer.testing.CliRunner(**APART).invoke(app, words, prog_name="work")


def test_values_and_defaults():
    assert run("a").stdout.strip() == str(("a", None, 4, 0.0, Path("x.json"), True, False))
    words = "a --stages 2 --actors 8 --time 1.5 --out y --no-compare --quick".split()
    assert run(*words).stdout.strip() == str(("a", 2, 8, 1.5, Path("y"), False, True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "Missing argument 'NAME'."),
        ("a --stages 0", "--stages should be a whole number, 1 or more, but is 0."),
        ("a --stages 1.0", "--stages should be a whole number, 1 or more, but is 1.0."),
        ("a --actors 9", "--actors should be a whole number from 1 to 8, but is 9."),
        ("a --time inf", "--time should be a number, 0 or more, but is inf."),
        ("a --time=-1", "--time should be a number, 0 or more, but is -1."),
        ("a --time x", "--time should be a number, 0 or more, but is x."),
    ],
)
def test_values_that_are_refused(words, message):
    error = run(*words.split()).exception
    assert isinstance(error, UsageError)
    assert str(error) == f"{message} See work --help."


def test_a_function_says_what_its_parameters_are():
    declared = declared_parameters(_work)
    assert [(one.kind, one.low, one.high) for one in declared.values()] == [
        (str, None, None),
        (int, 1, None),
        (int, 1, 8),
        (float, 0, None),
        (Path, None, None),
        (bool, None, None),
        (bool, None, None),
    ]
    assert declared_parameters(None) == {}


def test_help():
    assert (
        run("--help").stdout
        == """\
Usage: work [OPTIONS] NAME

  Works.

  Example: jaxquard work a --stages 2 --actors 4 --time 1.5 --out a-rather-long-name-of-a-file.json

Arguments:
  NAME  Its name.

Options:
  --stages N                Stages. [default: all]
  --actors N                Actors. [default: 4]
  --time SECONDS            Of a task. [default: 0]
  --out FILE                Where the work is written that the actors do
                            in-process. [default: x.json]
  --compare / --no-compare  Compare. [default: compare]
  --quick                   Quick.
  --help                    Show this message and exit.
"""
    )
