"""Times the steps of a short training loop."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxquard.pricing.end_of_time import check_time

_WARM_UP = 2
_FEWEST = 2
_MIN_STEPS = 5
_MAX_STEPS = 40
_STEPS_S = 2.0


def time_loop(
    step: Callable[..., Any],
    values: Sequence[Any],
    *,
    state: Sequence[int],
    end_s: float = math.inf,
) -> list[float]:
    """Returns the seconds of each step but the first ones.

    Raises:
        OutOfTimeError: if fewer than two of those are done at the end of the time.

    Args:
        step: a distributed step.
        values: its arguments.
        state: the arguments that the next step gets from this one's results.
        end_s: of the time for it, by `time.monotonic`.
    """
    values, args = [*values], [jax.tree.map(_type_of, value) for value in values]
    times_s: list[float] = []
    while len(times_s) < _WARM_UP + _MIN_STEPS or (sum(times_s[_WARM_UP:]) < _STEPS_S and len(times_s) < _MAX_STEPS):
        if time.monotonic() >= end_s and len(times_s) >= _WARM_UP + _FEWEST:
            break
        check_time(end_s)
        start_s = time.perf_counter()
        results = step(*values)
        _wait(results)
        times_s.append(time.perf_counter() - start_s)
        _carry(values, results, state, args)
    return times_s[_WARM_UP:]


def _wait(results: Any) -> None:
    for leaf in jax.tree.leaves(results):
        leaf.block_until_ready()


def _carry(values: list[Any], results: Any, state: Sequence[int], args: Sequence[Any]) -> None:
    """Puts the new state in the place of the donated one: results of the same structure and types, in order."""
    outputs = list(results) if isinstance(results, tuple) else [results]
    for number in state:
        alike = [
            at for at, output in enumerate(outputs) if jax.tree.structure(output) == jax.tree.structure(args[number])
        ]
        place = next((at for at in alike if _types(outputs[at]) == _types(args[number])), alike[0])
        values[number] = outputs.pop(place)


def _type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _types(tree: Any) -> list[tuple[Any, Any]]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]
