"""Commands and groups as jaxquard has them, on top of typer's.

- Help has no `<bool>` or `<str>` beside options and arguments whose name says it.
- Options that had another name before are still taken (`OLD_SPELLINGS`).
- Errors of the library name flags: `--stages 4` where a Python user would read `num_stages=4`.
- Values are read here: typer's own reader imports pydantic, which takes as long as everything else together.
"""

import math
import re
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from jaxquard.errors import JaxquardError

OLD_SPELLINGS = {"--svg": "--plot", "--csv": "--out", "--save": "--out", "--trace": "--out"}

# Python argument names in messages of the library, where the flag is not `--` and the name.
_FLAGS = {
    "every_combination": "--every-combination",
    "forward_s": "--forward-time",
    "input_gradient_s": "--input-gradient-time",
    "memory_limit_bytes": "--memory-limit",
    "mesh_shape": "--mesh",
    "num_actors": "--actors",
    "num_chips": "--chips",
    "num_microbatches": "--microbatches",
    "num_rows": "--rows",
    "num_slices": "--slices",
    "num_stages": "--stages",
    "transfer_s": "--transfer-time",
    "weight_gradient_s": "--weight-gradient-time",
}
# Click's UsageError, wherever this version of typer keeps it.
_UsageError: Any = typer.BadParameter.__mro__[1]
_FLAG_ITSELF = ("address", "dataflow", "platform", "recompute", "runtime", "slices")


class Command(TyperCommand):
    """A command of ours."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_prepare(param) for param in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, _current_spellings(args, self._flags()))
        except _UsageError as error:
            error.ctx = error.ctx or ctx
            raise

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
        return [_prepare(param) for param in super().get_params(ctx)]


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


def _prepare(param: Any) -> Any:
    """Takes types out of a parameter's help, and lets us read its value; an option keeps its metavar."""
    if getattr(param, "is_flag", False) and param.metavar is None:
        param.metavar = ""
    if param.param_type_name == "argument":
        param.display_type_rich = lambda ctx: None
    # A value out of range is answered with the range.
    param._get_number_range_help_str = lambda: None
    described = getattr(param, "type_descriptor", None)
    if described is not None and described.annotation in _READERS and not param.multiple:
        param._runtime_param = _Reader()
    return param


class _Reader:
    """Reads the value of a parameter; stands in for typer's reader, whose one method this is."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        described = param.type_descriptor
        try:
            read = _READERS[described.annotation](value)
        except ValueError:
            read = None
        low, high = described.parameter_info.min, described.parameter_info.max
        if described.annotation in (int, float) and not _is_within(read, low, high):
            name = param.opts[0] if param.param_type_name == "option" else param.metavar or param.name
            what = "a whole number" if described.annotation is int else "a number"
            limits = "" if low is None else f", {low:g} or more" if high is None else f" from {low:g} to {high:g}"
            raise _UsageError(f"{name} should be {what}{limits}, but is {value}.", ctx=ctx)
        return read


def _is_within(number: float | None, low: float | None, high: float | None) -> bool:
    if number is None or not math.isfinite(number):
        return False
    return (low is None or number >= low) and (high is None or number <= high)


_READERS: dict[Any, Any] = {str: str, bool: bool, int: int, float: float, Path: Path}


def _current_spellings(args: list[str], flags: set[str]) -> list[str]:
    """Replaces old names of options, up to `--`, which ends options."""
    end = args.index("--") if "--" in args else len(args)
    current = []
    for word in args[:end]:
        name, equals, value = word.partition("=")
        new = OLD_SPELLINGS.get(name)
        current.append(f"{new}{equals}{value}" if new in flags and name not in flags else word)
    return [*current, *args[end:]]
