"""Reads the words and numbers that a user writes into the enums, flags and counts that we use inside."""

import enum
import operator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxquard.cluster import Axis
from jaxquard.errors import GemmError

_NO_DIMS = (((), ()), ((), ()))
Choice = TypeVar("Choice", bound=enum.Enum)


def find_choice(kind: type[Choice], word: Choice | str, name: str) -> Choice:
    """Returns the member of an enum that a word stands for.

    Raises:
        GemmError: if there is none; it lists the words.
    """
    if isinstance(word, kind):
        return word
    by_word = {member.value: member for member in kind}
    if not isinstance(word, str) or word not in by_word:
        raise GemmError(f"{name} must be one of {', '.join(map(repr, by_word))}, but is {word!r}.")
    return by_word[word]


def find_flag(value: Any, name: str) -> bool:
    """Returns True or False, given either, also as NumPy's; None is False.

    Raises:
        GemmError: if it is something else.
    """
    if value is None or isinstance(value, bool | np.bool_):
        return bool(value)
    raise GemmError(f"{name} must be True or False, but is {value!r}.")


def find_count(value: Any, name: str, *, found: str = "") -> int:
    """Returns a whole number of 1 or more as Python's own `int`.

    Args:
        name: the user's name of it.
        found: the place where it was found, if not in an argument of that name.

    Raises:
        GemmError: if it is something else.
    """
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise GemmError(f"{name} must be a whole number of 1 or more, but is {value!r}{found}.")
    return number


def find_precision(precision: Any) -> Any:
    """Returns what `lax.dot_general` takes as the precision of a product.

    Raises:
        GemmError: if it does not.
    """
    if precision is None:
        return None
    precision = tuple(precision) if isinstance(precision, list) else precision
    try:
        jax.eval_shape(lambda: lax.dot_general(np.float32(0), np.float32(0), _NO_DIMS, precision=precision))
    except (TypeError, ValueError):
        raise GemmError(
            "precision must be what `jax.lax.dot_general` takes, such as 'highest' or jax.lax.Precision.HIGH, but is "
            f"{precision!r}."
        ) from None
    return precision


def find_result_dtype(dtype: Any) -> np.dtype | None:
    """Returns the dtype of a product that a user prefers; None for that of the matrices.

    Raises:
        GemmError: if it is not floating, or too narrow for sums.
    """
    if dtype is None:
        return None
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating) or found.itemsize < 2:
        raise GemmError(
            "preferred_element_type must be a floating dtype of 16 bits or more, such as jnp.float32, but is "
            f"{dtype!r}."
        )
    return found


def find_ring(ring: Axis | str | None) -> Axis | None:
    """Returns the direction of the mesh that a word stands for.

    Raises:
        GemmError: if it is none.
    """
    if ring is None or isinstance(ring, Axis):
        return ring
    by_word = {axis.value: axis for axis in Axis}
    if not isinstance(ring, str) or ring not in by_word:
        raise GemmError(f"ring must be 'rows', 'columns' or None, but is {ring!r}.")
    return by_word[ring]
