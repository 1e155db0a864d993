"""The command `jaxquard` and its subcommands, one a file, each imported when it is asked for.

A command may let every error pass: it ends here, as one line on stderr and an exit code (`exit_codes`).
"""

import importlib
import sys
from typing import Annotated, Any

import typer

from jaxquard import __version__
from jaxquard.cli.command import Command, Group
from jaxquard.cli.exit_codes import INTERRUPTED, print_message, run_command
from jaxquard.cli.interrupt import end_early_interrupts, keep_interrupts

# Where each subcommand is. None of them waits for what the others import.
_SUBCOMMANDS = {
    "demo": "jaxquard.cli.demo.command:demo",
    "run": "jaxquard.cli.run.command:run",
    "schedule": "jaxquard.cli.schedule:schedule",
    "simulate": "jaxquard.cli.simulate.command:simulate",
    "plan": "jaxquard.cli.plan:plan_app",
    "shard": "jaxquard.cli.shard:shard_app",
    "price": "jaxquard.cli.price.command:price",
    "gemm": "jaxquard.cli.gemm:gemm_app",
    "cluster": "jaxquard.cli.cluster:cluster_app",
    "checkpoint": "jaxquard.cli.checkpoint:checkpoint_app",
    "reproduce": "jaxquard.cli.reproduce.command:reproduce",
    "list": "jaxquard.cli.list_names:list_names",
}
_TRACEBACK = "--traceback"
# Subcommands that start another program: the words after its name are that program's own.
_STARTS_PROGRAM = ("run",)


class _Subcommands(Group):
    """Imports and runs a subcommand; an error becomes a line and an exit code."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name) if cmd_name in _SUBCOMMANDS else None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print_message("interrupted")
            raise typer.Exit(INTERRUPTED) from None

    def main(self, args: Any = None, *rest: Any, standalone_mode: bool = True, **options: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        # It may stand anywhere, as one adds it at the end of a command that has failed.
        end = next((place for place, word in enumerate(words) if word in _STARTS_PROGRAM), len(words))
        show_traceback = _TRACEBACK in words[:end]
        words = [word for word in words[:end] if word != _TRACEBACK] + words[end:]
        run = super().main
        code = run_command(lambda: run(words, *rest, standalone_mode=False, **options), show_traceback=show_traceback)
        if standalone_mode:
            sys.exit(code)
        return code


def _load(name: str) -> Any:
    """The command of a function, or of a group of its own."""
    module, _, attribute = _SUBCOMMANDS[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    around = typer.Typer(add_completion=False, rich_markup_mode=None, callback=_does_nothing)
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name)
    else:
        settings = {"allow_interspersed_args": name not in _STARTS_PROGRAM}
        around.command(name, cls=Command, context_settings=settings)(found)
    group: Any = typer.main.get_command(around)
    return group.commands[name]


def _does_nothing() -> None:
    """Stands for a subcommand that is not imported yet."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"jaxquard {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="jaxquard",
    cls=_Subcommands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(
    epilog="Exit codes: 0 done, 1 it could not be done, 2 usage, 130 interrupted. With --json, stdout has JSON and "
    "nothing else."
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option(_TRACEBACK, help="Show where an error comes from; may stand anywhere.")
    ] = False,
) -> None:
    """Spreads a plain JAX training step over a cluster."""


for _name in _SUBCOMMANDS:
    app.command(_name)(_does_nothing)


def main() -> None:
    """Runs the command; `jaxquard.__main__` calls it."""
    end_early_interrupts()
    keep_interrupts()
    app()
