"""The command `jaxquard` and its subcommands, one a file.

Whatever a user can get wrong ends here as one line on stderr and exit code 2, without a
traceback: every subcommand may let a `JaxquardError` pass.
"""

from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from jaxquard.cli.cluster import cluster_app
from jaxquard.cli.demo import demo
from jaxquard.cli.gemm import gemm_app
from jaxquard.cli.reproduce import reproduce
from jaxquard.cli.schedule import schedule
from jaxquard.cli.shard import shard_app
from jaxquard.errors import JaxquardError

# Click's UsageError, wherever this version of typer keeps it.
_UsageError: Any = typer.BadParameter.__mro__[1]


class _OneLineErrors(TyperGroup):
    """Runs a subcommand; an error of ours, or in its options, becomes a line and an exit code."""

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


def _print_error(message: str) -> None:
    line = " ".join(message.split())
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {line}", markup=False, style="red")


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="jaxquard spreads a plain JAX training step over a cluster.",
)


app.command()(demo)
app.command()(reproduce)
app.command()(schedule)
app.add_typer(cluster_app, name="cluster")
app.add_typer(gemm_app, name="gemm")
app.add_typer(shard_app, name="shard")


def main() -> None:
    """Entry point of the installed command."""
    app()
