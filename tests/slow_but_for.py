"""Cases of a test of which `make test` runs some and `make test-slow` the others."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but_for(values: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """Returns the values as parameters, marked slow but for those that are kept; a tuple is several parameters."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    names = [value if isinstance(value, tuple) else (value,) for value in kept]
    assert all(name in rows for name in names)
    return [pytest.param(*row, marks=() if row in names else pytest.mark.slow) for row in rows]
