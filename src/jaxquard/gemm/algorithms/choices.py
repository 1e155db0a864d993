"""Reads the words and numbers that a user writes into the enums, flags and counts that we use inside."""

import enum
import operator
from typing import Any, TypeVar

import numpy as np

from jaxquard.cluster import Axis
from jaxquard.errors import GemmError

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
