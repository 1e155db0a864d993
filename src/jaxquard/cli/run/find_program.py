"""Finds the program that `jaxquard run` is to start, without importing anything of it."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from jaxquard.cli.exit_codes import UsageError


def program_command(program: str, arguments: Sequence[str], *, is_module: bool) -> list[str]:
    """Returns the words that start a program.

    Raises:
        UsageError: there is no such file or module, or it cannot be run.
    """
    if is_module:
        _check_module(program)
        return [sys.executable, "-m", program, *arguments]
    path = Path(program)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "is not there"
        raise UsageError(f"{program} {found}. Give a Python file or an executable, or -m and the name of a module.")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{program} cannot be read. Give a file that this user can read.")
    if path.suffix == ".py":
        return [sys.executable, program, *arguments]
    if not os.access(path, os.X_OK):
        raise UsageError(f"{program} is neither a Python file (.py) nor executable. Rename it, or run chmod +x on it.")
    return [str(path.absolute()), *arguments]


def _check_module(name: str) -> None:
    """Looks for a module as `python -m` does, from the current folder on; packages are not imported for it."""
    spec, locations, known = None, [os.getcwd(), *sys.path], ""
    for part in name.split("."):
        known = f"{known}.{part}" if known else part
        spec = _find(known, locations) if part else None
        if spec is None:
            raise UsageError(
                f"no module is called {known or name!r}. Give a name that `python -m` takes, such as a.train."
            )
        locations = list(spec.submodule_search_locations or [])
    if spec is not None and locations and _find(f"{name}.__main__", locations) is None:
        raise UsageError(f"{name} is a package without __main__, so it cannot be run. Give a module in it.")


def _find(name: str, locations: list[str]) -> ModuleSpec | None:
    return PathFinder.find_spec(name, locations)
