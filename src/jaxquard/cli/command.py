"""Commands and groups as jaxquard has them, on top of typer's.

- Help has no `<bool>` or `<str>` beside options and arguments whose name says it.
- Options that had another name before are still taken (`OLD_SPELLINGS`).
- Errors of the library name flags: `--stages 4` where a Python user would read `num_stages=4`.
"""

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from jaxquard.errors import JaxquardError

OLD_SPELLINGS = {"--svg": "--plot", "--csv": "--out", "--save": "--out", "--trace": "--out"}

# Python argument names in messages of the library, where the flag is not `--` and the name.
_FLAGS = {
    "batch_axis": "--every-combination",
    "forward_s": "--forward-time",
    "input_gradient_s": "--input-gradient-time",
    "memory_limit_bytes": "--memory-limit",
    "num_actors": "--actors",
    "num_chips": "--chips",
    "num_microbatches": "--microbatches",
    "num_rows": "--rows",
    "num_slices": "--slices",
    "num_stages": "--stages",
    "transfer_s": "--transfer-time",
    "weight_gradient_s": "--weight-gradient-time",
}
_FLAG_ITSELF = ("address", "dataflow", "platform", "runtime", "slices")


class Command(TyperCommand):
    """A command of ours."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_without_type(param) for param in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _current_spellings(args, self._flags()))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except JaxquardError as error:
            error.args = (use_flags(str(error), self._flags()),)
            raise

    def _flags(self) -> set[str]:
        return {name for param in self.params for name in param.opts}


class Group(TyperGroup):
    """A group of commands of ours."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_without_type(param) for param in super().get_params(ctx)]


def use_flags(message: str, flags: set[str]) -> str:
    """Replaces Python argument names by the flags of a command: `num_stages=4` by `--stages 4`."""
    for name, flag in {**_FLAGS, **{name: f"--{name}" for name in _FLAG_ITSELF}}.items():
        if flag not in flags:
            continue
        message = re.sub(rf"(?<![\w-]){name}=(['\"]?)([^\s'\",.;]+(?:\.\d+)?)\1", rf"{flag} \2", message)
        if name in _FLAGS:
            message = re.sub(rf"(?<![\w-]){name}\b", flag, message)
    return message


def _without_type(param: Any) -> Any:
    """Takes the type off a flag or an argument; an option keeps its metavar."""
    if getattr(param, "is_flag", False) and param.metavar is None:
        param.metavar = ""
    if param.param_type_name == "argument" and hasattr(param, "display_type_rich"):
        param.display_type_rich = lambda ctx: None
    # A value out of range is answered with the range.
    param._get_number_range_help_str = lambda: None
    return param


def _current_spellings(args: list[str], flags: set[str]) -> list[str]:
    """Replaces old names of options, up to `--`, which ends options."""
    end = args.index("--") if "--" in args else len(args)
    current = []
    for word in args[:end]:
        name, equals, value = word.partition("=")
        new = OLD_SPELLINGS.get(name)
        current.append(f"{new}{equals}{value}" if new in flags and name not in flags else word)
    return [*current, *args[end:]]
