"""The path of a layer, as users write it: `blocks.3`, `['params']['block_3']`, `encoder/~/layer_*`, `model.py:41`.

A path matches where its components follow each other in the path of a module or of a parameter, so that what stands
before may be left out. A component may have wildcards, as file names have them.
"""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.ir.jaxpr_tools import Equation

Components = tuple[str, ...]

_LINE = re.compile(r"^(?P<line>[^\s\[\]]+\.py:\d+)(?:\[(?P<index>\d+|\*)\])?$")
_SEPARATORS = re.compile(r"[./\[\]'\"]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPath:
    """A path that a user gave.

    Attributes:
        text: as it was written.
        components: of the path; of a source line, at most the iteration of a scan.
        line: `model.py:41`, or "" for a path.
    """

    text: str
    components: Components
    line: str = ""

    @property
    def without_last(self) -> Components:
        return self.components[:-1]

    @property
    def iteration(self) -> str:
        """The iteration of a scan that the path may mean: a number, "*" for each, or "" for none."""
        last = self.components[-1] if self.components else ""
        return last if last == "*" or last.isdigit() else ""


def parse_path(text: str) -> LayerPath:
    """Reads a path."""
    found = _LINE.match(text)
    if found is not None:
        index = found["index"]
        return LayerPath(text=text, components=(index,) if index else (), line=found["line"])
    return LayerPath(text=text, components=split_path(text))


def split_path(text: str) -> Components:
    """Splits a path into components; `~`, which Haiku writes for a constructor, is none."""
    return tuple(part for part in _SEPARATORS.split(text) if part and part != "~")


def match(pattern: Components, path: Components) -> Components | None:
    """Returns the path up to where the pattern ends in it; None if it is not there."""
    for start in range(len(path) - len(pattern) + 1):
        stop = start + len(pattern)
        if all(map(fnmatch.fnmatchcase, path[start:stop], pattern)):
            return path[:stop]
    return None


def scopes_of(equation: Equation) -> Components:
    """Returns the path of the module that an equation stands in, as far as its framework records it."""
    scopes = (scope for scope in equation.source_info.name_stack.stack if type(scope).__name__ == "Scope")
    return tuple(part for scope in scopes for part in split_path(scope.name))


def key_components(keys: Iterable[Any]) -> Components:
    """Returns the path of a leaf, of the keys that JAX gives it."""
    found: list[str] = []
    for key in keys:
        name = next((getattr(key, field) for field in ("key", "name", "idx") if hasattr(key, field)), key)
        found.extend(split_path(str(name)))
    return tuple(found)


def nearest(text: str, known: Iterable[Components]) -> Sequence[str]:
    """Returns the known paths that are most like one that matches nothing."""
    names = {".".join(path) for path in known if path}
    wanted = ".".join(split_path(text))
    ends = {name: name.rsplit(".", 1)[-1] if "." not in wanted else name for name in names}
    by_end: dict[str, str] = {}
    for name in sorted(names, key=len):
        by_end.setdefault(ends[name], name)
    return [by_end[end] for end in difflib.get_close_matches(wanted, by_end, n=3, cutoff=0.3)]
