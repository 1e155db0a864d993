"""From the words that a user writes to the enums that we use inside."""

import enum
from typing import TypeVar

from jaxquard.errors import GemmError

Choice = TypeVar("Choice", bound=enum.Enum)


def find_choice(kind: type[Choice], word: Choice | str, name: str) -> Choice:
    """The member of an enum that a word stands for.

    Raises:
        GemmError: if there is none; it lists the words.
    """
    if isinstance(word, kind):
        return word
    by_word = {member.value: member for member in kind}
    if word not in by_word:
        raise GemmError(f"{name} must be one of {', '.join(map(repr, by_word))}, but is {word!r}.")
    return by_word[word]
