"""Parameters as the functions of commands declare them, and the reading of their values.

Values are read here because typer's own reader differs from version to version, and in some of them imports pydantic,
which takes as long as everything else together. Only public names of typer and click are used, so that any version
from 0.15.4 on answers alike.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.models import ParameterInfo

from jaxquard.cli.exit_codes import UsageError

_WORDS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A parameter of a command's function: the type of its value, the range of a number, the default, the help."""

    kind: type
    low: float | None
    high: float | None
    default: Any
    help: str

    def read(self, text: Any, *, name: str) -> Any:
        """Reads a value as given.

        Raises:
            UsageError: it is no number, or out of range.
        """
        if self.kind not in _WORDS:
            return Path(text) if self.kind is Path else text
        try:
            number = self.kind(text)
        except ValueError:
            number = math.nan
        if not self._has(number):
            raise UsageError(f"{name} should be {_WORDS[self.kind]}{self._range}, but is {text}.")
        return number

    def _has(self, number: float) -> bool:
        is_low = self.low is not None and number < self.low
        is_high = self.high is not None and number > self.high
        return math.isfinite(number) and not is_low and not is_high

    @property
    def _range(self) -> str:
        if self.low is None:
            return ""
        return f", {self.low:g} or more" if self.high is None else f" from {self.low:g} to {self.high:g}"


def declared_parameters(function: Callable[..., Any] | None) -> dict[str, Declared]:
    """Returns the parameters of a command's function by name; typer may have wrapped the function."""
    if function is None:
        return {}
    function = inspect.unwrap(function)
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *extras = typing.get_args(hints[name])
        info = next(extra for extra in extras if isinstance(extra, ParameterInfo))
        found[name] = Declared(
            kind=_without_none(kind), low=info.min, high=info.max, default=parameter.default, help=info.help or ""
        )
    return found


def _without_none(kind: Any) -> Any:
    """Returns `int` for `int | None`."""
    if not isinstance(kind, types.UnionType):
        return kind
    (one,) = (part for part in typing.get_args(kind) if part is not types.NoneType)
    return one


def read_here(params: list[Any], *, function: Callable[..., Any] | None) -> list[Any]:
    """Has the values of click's parameters read by `Declared.read`; those of typer itself are flags."""
    declared = declared_parameters(function)
    for param in params:
        param.process_value = functools.partial(_process_value, param, declared.get(param.name))
    return params


def _process_value(param: Any, declared: Declared | None, ctx: Any, value: Any) -> Any:
    name = param.opts[0] if param.param_type_name == "option" else param.metavar
    if value is None or param.value_is_missing(value):
        if param.required:
            raise UsageError(f"Missing {param.param_type_name} '{name}'.")
        value = None
    elif declared is not None:
        value = declared.read(value, name=name)
    return value if param.callback is None else param.callback(ctx, param, value)
