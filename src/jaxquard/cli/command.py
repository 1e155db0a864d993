"""Commands and groups as jaxquard has them, on top of typer's.

- Their help is plain text (`help_text`), and their values are read by `declared`: alike with every version of typer.
- Options that had another name before, or have a short one, are still taken (`OLD_SPELLINGS`).
- Errors of the library name flags: `--stages 4` where a Python user would read `num_stages=4`.
- A group without a command prints its help and ends with code 0, as `pip` and `gh` do.
"""

import contextlib
import difflib
import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from jaxquard.cli.declared import read_here
from jaxquard.cli.exit_codes import UsageError, did_you_mean
from jaxquard.cli.help_text import write_help
from jaxquard.errors import ClusterError, JaxquardError

OLD_SPELLINGS = {
    "--svg": "--plot",
    "--csv": "--out",
    "--save": "--out",
    "--trace": "--out",
    "--algorithm": "--algorithms",
    "--batch": "--global-batch",
    "--seq": "--sequence-length",
}

# Python argument names in messages of the library, where the flag is not `--` and the name.
_FLAGS = {
    "every_combination": "--every-combination",
    "forward_s": "--forward-time",
    "ignores_marks": "--ignore-marks",
    "input_gradient_s": "--input-gradient-time",
    "loss_reduction": "--loss-reduction",
    "memory_limit_bytes": "--memory-limit",
    "mesh_shape": "--mesh",
    "num_actors": "--actors",
    "num_chips": "--chips",
    "num_microbatches": "--microbatches",
    "num_rows": "--rows",
    "num_slices": "--slices",
    "optimizer_bytes": "--optimizer-bytes",
    "num_stages": "--stages",
    "transfer_s": "--transfer-time",
    "weight_gradient_s": "--weight-gradient-time",
}
# Click's UsageError, wherever this version of typer keeps it.
_UsageError: Any = typer.BadParameter.__mro__[1]
_FLAG_ITSELF = ("address", "dataflow", "method", "platform", "recompute", "runtime", "slices")


class Command(TyperCommand):
    """A command of ours."""

    def get_params(self, ctx: Any) -> list[Any]:
        return read_here(super().get_params(ctx), function=self.callback)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _points_to_help(ctx):
            # Otherwise words of another program follow, which are not ours to read.
            current = _current_spellings(args, self._flags()) if ctx.allow_interspersed_args else args
            return super().parse_args(ctx, current)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_help(self, ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ClusterError:
            raise  # It names keys of a cluster's file, such as `num_chips`, which are no flags.
        except JaxquardError as error:
            error.args = (use_flags(str(error), self._flags()),)
            raise

    def _flags(self) -> set[str]:
        return {name for param in self.params for name in param.opts}


class Group(TyperGroup):
    """A group of commands of ours."""

    def get_params(self, ctx: Any) -> list[Any]:
        return read_here(super().get_params(ctx), function=self.callback)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_help(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit()
        with _points_to_help(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args[0] in known or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        near = map(repr, difflib.get_close_matches(args[0], known))
        hint = did_you_mean(near) or f" Use one of: {', '.join(known)}."
        raise UsageError(f"No such command {args[0]!r}.{hint} See {ctx.command_path} --help.")


@contextlib.contextmanager
def _points_to_help(ctx: Any) -> Iterator[None]:
    """Ends the message of a usage error with the command whose help explains it."""
    try:
        yield
    except UsageError as error:
        error.args = (f"{error} See {ctx.command_path} --help.",)
        raise
    except _UsageError as error:
        error.ctx = error.ctx or ctx
        raise


def use_flags(message: str, flags: set[str]) -> str:
    """Replaces Python argument names by the flags of a command: `num_stages=4` by `--stages 4`."""
    for name, flag in {**_FLAGS, **{name: f"--{name}" for name in _FLAG_ITSELF}}.items():
        if flag not in flags:
            continue
        message = re.sub(rf"(?<![\w-]){name}=True\b", flag, message)
        message = re.sub(rf"(?<![\w-]){name}=(['\"])([^'\"]*)\1", rf"{flag} \2", message)
        message = re.sub(rf"(?<![\w-]){name}=([^\s'\",.;]+(?:\.\d+)?)", rf"{flag} \1", message)
        if name in _FLAGS:
            message = re.sub(rf"(?<![\w-]){name}\b", flag, message)
    return message


def _current_spellings(args: list[str], flags: set[str]) -> list[str]:
    """Replaces old names of options, up to `--`, which ends options."""
    end = args.index("--") if "--" in args else len(args)
    current = []
    for word in args[:end]:
        name, equals, value = word.partition("=")
        new = OLD_SPELLINGS.get(name)
        current.append(f"{new}{equals}{value}" if new in flags and name not in flags else word)
    return [*current, *args[end:]]
