"""The line of the user's code that made a call or an equation, for errors that name it."""

import os
import sys
from collections.abc import Iterator
from typing import Any

from jaxquard.ir.jaxpr_tools import Equation

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_line() -> str:
    """`train.py:41`: the nearest caller outside jaxquard and JAX."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if not os.path.abspath(path).startswith(_OURS) and package not in (
            "jax",
            "jaxlib",
            "flax",
            "equinox",
        ):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown line"


_MODELS = os.path.join(_OURS, "models") + os.sep
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("jax", "jaxlib", "flax", "equinox", "optax"))


def source_line(equation: Equation) -> str:
    """`train.py:41`: the innermost frame outside JAX, its frameworks and jaxquard, whose models count as the user's."""
    return next(source_lines(equation), "unknown line")


def source_lines(equation: Equation) -> Iterator[str]:
    """The same, and then the frames that called it."""
    traceback: Any = equation.source_info.traceback
    for frame in traceback.frames if traceback is not None else ():
        if is_users_file(frame.file_name):
            yield f"{os.path.basename(frame.file_name)}:{frame.line_num}"


def is_users_file(path: str) -> bool:
    """Returns True for a file that is not of JAX, its frameworks or jaxquard, whose models count as the user's."""
    absolute = os.path.abspath(path)
    if absolute.startswith(_OURS):
        return absolute.startswith(_MODELS)
    is_library = any(name in absolute for name in _LIBRARIES) and "site-packages" in absolute
    return not is_library and not path.startswith("<")
