"""Dropout needs a key, and differs by key."""

from collections.abc import Callable
from typing import Any

import jax


def check_dropout(loss: Callable[..., Any], params: Any, microbatch: Any, *, plain: Any, dropout: Any) -> None:
    """Compares losses with and without a key, and of two keys.

    Args:
        plain: the config without dropout.
        dropout: the same with it.
    """

    def value(seed: int) -> float:
        return float(loss(params, microbatch, dropout, key=jax.random.key(seed)))

    without = float(loss(params, microbatch, plain))
    assert float(loss(params, microbatch, dropout)) == without
    assert value(1) == value(1)
    assert len({value(1), value(2), without}) == 3
