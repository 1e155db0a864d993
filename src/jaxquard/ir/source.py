"""The place in the user's code that made a call or an equation, for errors and tables that name it.

A place is a name scope and a line. The line is the innermost one of the user's own code: not of Python, JAX or
anything that is installed, unless there is nothing else. Models of jaxquard count as the user's.
"""

import functools
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxquard.ir.jaxpr_tools import Equation

UNKNOWN_LINE = "unknown line"
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MODELS = os.path.join(_OURS, "models") + os.sep
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_PYTHON = tuple({os.path.abspath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "platstdlib")})
# Files that are no files, but the user's.
_TYPED = ("<stdin>", "<ipython")
# Where nothing is the user's, a line of a library with models says more than one of these.
_FRAMEWORKS = frozenset(
    {"jax", "jaxlib", "flax", "equinox", "optax", "keras", "haiku", "chex", "einops", "numpy", "jaxtyping", "beartype"}
)
# What JAX makes of scopes under its transformations: `transpose(jvp(encoder))` for `encoder`.
_TRANSFORMED = re.compile(r"\b(?:jvp|transpose|vmap|jit|pjit|checkpoint|rematted_computation|remat|pmap)\(([^()]*)\)")
# Scopes that JAX's own functions and loops open.
_UNNAMED = frozenset({"", "checkpoint", "rematted_computation", "while", "body", "cond", "closed_call", "scan", "jit"})

# A file, by its whole path, and a line of it.
SourceFrame = tuple[str, int]


def user_line() -> str:
    """`train.py:41`: the nearest caller of the user's own; else the nearest one outside of jaxquard and frameworks."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        if not os.path.abspath(frame.f_code.co_filename).startswith(_OURS):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return next(_lines(_users_of(found)), UNKNOWN_LINE)


def raising_line(error: BaseException) -> str:
    """`train.py:41`: the innermost line of the user's own that an error passed through; "" if there is none."""
    frames = [(frame.filename, frame.lineno or 0) for frame in reversed(traceback.extract_tb(error.__traceback__))]
    return next(_lines([frame for frame in frames if is_users_file(frame[0])]), "")


def source_line(equation: Equation) -> str:
    """`train.py:41`: the innermost line of the user's code."""
    return next(source_lines(equation), UNKNOWN_LINE)


def source_lines(equation: Equation) -> Iterator[str]:
    """The same, and then the lines that called it."""
    return _lines(source_frames(equation))


def source_place(equation: Equation) -> str:
    """`encoder/attention, train.py:41`: the name scope, if there is one, and the innermost line of the user's code."""
    return ", ".join(filter(None, (name_scope(equation), source_line(equation))))


def source_frames(equation: Equation) -> Sequence[SourceFrame]:
    """The frames of the user's code, the innermost first; where there are none, those of libraries with models."""
    trace: Any = equation.source_info.traceback
    return () if trace is None else _frames_of(trace)


def _rank(trace: Any) -> int:
    """Returns 2 for a traceback with frames of the user's own, 1 for one with frames of libraries, 0 for others."""
    frames = () if trace is None else _frames_of(trace)
    return 0 if not frames else 2 if is_users_file(frames[0][0]) else 1


def source_inside(call: Equation, equation: Equation) -> Any:
    """Returns the source of an equation from the body of a call or loop: its scope follows that of the call.

    JAX traces `jnp.take` once for all of its calls, without the frames outside. Then the line is that of the call.
    """
    outer, inner = call.source_info, equation.source_info
    # The user's own frames before those of libraries, and the inner ones before the outer.
    trace = max((inner.traceback, outer.traceback), key=_rank)
    return inner.replace(name_stack=outer.name_stack + inner.name_stack, traceback=trace)


def name_scope(equation: Equation) -> str:
    """`encoder/attention`: the scopes (`jax.named_scope`) that an equation stands in, without what JAX adds."""
    text = str(equation.source_info.name_stack)
    while (shorter := _TRANSFORMED.sub(r"\1", text)) != text:
        text = shorter
    # `bd,df->bf` is a scope of `einsum`.
    words = (word for word in text.split("/") if word not in _UNNAMED and not word.startswith("jaxquard "))
    return "/".join(word for word in words if "->" not in word)


def shorten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Returns for each path its shortest end that no other one has: `gpt.py`, or `models/gpt.py` beside another."""
    whole = {path: path.replace("\\", "/").split("/") for path in dict.fromkeys(paths)}
    found = {}
    for path, words in whole.items():
        others = [other for other in whole.values() if other is not words]
        count = 1
        while count < len(words) and any(other[-count:] == words[-count:] for other in others):
            count += 1
        if _INSTALLED.search(path):
            # The whole path inside of the package: its own names are like many others.
            count = max(count, len(_INSTALLED.split(path)[-1].replace("\\", "/").split("/")))
        found[path] = "/".join(words[-count:])
    return found


def _lines(frames: Sequence[SourceFrame]) -> Iterator[str]:
    names = shorten_paths(path for path, _ in frames)
    for path, line in frames:
        yield f"{names[path]}:{line}"


@functools.lru_cache(maxsize=16384)
def _frames_of(trace: Any) -> tuple[SourceFrame, ...]:
    return tuple(_users_of([(frame.file_name, frame.line_num) for frame in trace.frames]))


def _users_of(frames: Sequence[SourceFrame]) -> list[SourceFrame]:
    own = [frame for frame in frames if is_users_file(frame[0])]
    return own or [frame for frame in frames if _is_of_models(frame[0])]


@functools.lru_cache(maxsize=4096)
def is_users_file(path: str) -> bool:
    """Returns true for a file that is neither installed nor made up."""
    absolute = os.path.abspath(path)
    if absolute.startswith(_OURS):
        return absolute.startswith(_MODELS)
    is_installed = _INSTALLED.search(absolute) is not None or absolute.startswith(_PYTHON)
    return not is_installed and (not path.startswith("<") or path.startswith(_TYPED))


@functools.lru_cache(maxsize=4096)
def _is_of_models(path: str) -> bool:
    """Returns true for a file of an installed package that is no framework."""
    inside = _INSTALLED.split(os.path.abspath(path))
    is_ours = os.path.abspath(path).startswith(_OURS)
    return len(inside) > 1 and not is_ours and re.split(r"[/\\]", inside[-1])[0] not in _FRAMEWORKS
