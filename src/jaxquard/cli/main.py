"""The command `jaxquard` and its subcommands, one a file, each imported when it is asked for.

Whatever a user can get wrong ends here as one line on stderr and exit code 2, without a
traceback: every subcommand may let a `JaxquardError` pass.
"""

import importlib
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from jaxquard.cli.interrupt import keep_interrupts
from jaxquard.errors import JaxquardError

# Where each subcommand is. None of them waits for what the others import.
_SUBCOMMANDS = {
    "demo": "jaxquard.cli.demo:demo",
    "reproduce": "jaxquard.cli.reproduce:reproduce",
    "schedule": "jaxquard.cli.schedule:schedule",
    "cluster": "jaxquard.cli.cluster:cluster_app",
    "gemm": "jaxquard.cli.gemm:gemm_app",
    "shard": "jaxquard.cli.shard:shard_app",
}
# Click's UsageError, wherever this version of typer keeps it.
_UsageError: Any = typer.BadParameter.__mro__[1]


class _Subcommands(TyperGroup):
    """Imports and runs a subcommand; an error of ours, or in its options, becomes a line and an exit code."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name) if cmd_name in _SUBCOMMANDS else None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except JaxquardError as error:
            _print_error(str(error))
        except _UsageError as error:
            command, message = (error.ctx or ctx).command_path, error.format_message().rstrip(".")
            # A group without a subcommand has printed its help by now, and has no message.
            if message:
                _print_error(f"{message}. See {command} --help.")
        raise typer.Exit(2)


def _load(name: str) -> Any:
    """The command of a function, or of a group of its own."""
    module, _, attribute = _SUBCOMMANDS[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    around = typer.Typer(add_completion=False, rich_markup_mode="rich", callback=_does_nothing)
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name)
    else:
        around.command(name)(found)
    group: Any = typer.main.get_command(around)
    return group.commands[name]


def _does_nothing() -> None:
    """Stands for a subcommand that is not imported yet."""


def _print_error(message: str) -> None:
    line = " ".join(message.split())
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {line}", markup=False, style="red")


app = typer.Typer(
    cls=_Subcommands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="jaxquard spreads a plain JAX training step over a cluster.",
)
for _name in _SUBCOMMANDS:
    app.command(_name)(_does_nothing)


def main() -> None:
    """Entry point of the installed command."""
    keep_interrupts()
    app()
