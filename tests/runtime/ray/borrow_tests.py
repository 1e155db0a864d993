"""Tests of another module, to be run again on Ray.

A module that takes them in gives them its own `mesh` fixtures: they are found by name.
"""

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from _pytest.fixtures import FixtureFunctionDefinition


def borrow_tests(module: ModuleType, *, but: Iterable[str] = (), only: Iterable[str] = ()) -> Mapping[str, Any]:
    """All tests and fixtures of a module, less some; or only some, and the fixtures."""
    but, only = frozenset(but), frozenset(only)
    unknown = [name for name in but | only if not hasattr(module, name)]
    assert not unknown, f"{module.__name__} has no {unknown}"
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, FixtureFunctionDefinition)
        or (name.startswith("test_") and name not in but and (not only or name in only))
    }
