"""The command `jaxquard` and its subcommands, one a file.

Whatever a user can get wrong ends here as one line on stderr and exit code 2, without a
traceback: every subcommand may let a `JaxquardError` pass.
"""

from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from jaxquard.cli.schedule import schedule
from jaxquard.errors import JaxquardError


class _OneLineErrors(TyperGroup):
    """Runs a subcommand; an error of ours becomes a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except JaxquardError as error:
            line = " ".join(str(error).split())
            Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {line}", markup=False, style="red")
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="jaxquard spreads a plain JAX training step over a cluster.",
)


@app.callback()
def _root() -> None:
    """Makes `jaxquard` a group of subcommands even while there is only one."""


app.command()(schedule)


def main() -> None:
    """Entry point of the installed command."""
    app()
