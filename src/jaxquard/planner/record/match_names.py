"""Names by which a user speaks of parts of a model: paths of parameters, with wildcards, and lines of code.

A path is the keys of a leaf, with dots between: `layers.3.mlp.up`. A pattern matches a path if its words stand in it
one after the other, wherever they begin, so that `layers.*.mlp` has all of every layer's `mlp`, and `params.` before
it makes no difference. In a word, `*`, `?` and `[0-3]` are those of file names; `**` is any number of words.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

# Of two names, the part that they share: "shedule" has 0.93 of "schedule".
_SLIP = 0.75
_LINE = re.compile(r"[^:]+\.py:\d+")


def is_line(text: str) -> bool:
    """Returns true for a line of code: `model.py:41`."""
    return _LINE.fullmatch(text) is not None


def match_line(pattern: str, line: str) -> bool:
    """Returns true if a line is the one that is meant; folders that only one of the two has make no difference."""
    meant, found = (f"/{text}".replace("\\", "/") for text in (pattern, line))
    return meant.endswith(found) or found.endswith(meant)


def match_path(pattern: str, path: str) -> bool:
    """Returns true if the words of a pattern stand in a path one after the other."""
    words, keys = pattern.split("."), path.split(".")
    return any(_match_words(words, keys[start:]) for start in range(len(keys)))


def _match_words(words: Sequence[str], keys: Sequence[str]) -> bool:
    if not words:
        return True
    if words[0] == "**":
        return any(_match_words(words[1:], keys[start:]) for start in range(len(keys) + 1))
    return bool(keys) and fnmatchcase(keys[0], words[0]) and _match_words(words[1:], keys[1:])


def path_prefixes(paths: Iterable[str]) -> list[str]:
    """Returns the paths and the paths above them, with the numbers of layers as stars, each once."""
    found: dict[str, None] = {}
    for path in paths:
        words = ["*" if word.isdecimal() else word for word in path.split(".")]
        while words and words[-1] == "*":
            words.pop()
        found.update((".".join(words[: count + 1]), None) for count in range(len(words)) if words[count] != "*")
    return list(found)


def nearest_names(text: str, names: Iterable[str], *, most: int = 3) -> list[str]:
    """Returns the names that are most like a text; the first few where none is."""
    known = list(dict.fromkeys(names))
    near = difflib.get_close_matches(text, known, n=most, cutoff=0.5)
    return near or known[:most]


def is_slip(name: str, known: str) -> bool:
    """Returns true if a name looks like a slip of the pen for a known one."""
    return name != known and difflib.SequenceMatcher(a=name, b=known).ratio() > _SLIP
