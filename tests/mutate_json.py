"""JSON as a stranger may write it: a real one with some entries replaced, removed or doubled."""

import copy

from hypothesis import strategies as st

NESTED = "[" * 10_000 + "]" * 10_000
LONG_INTEGER = "9" * 5_000
# Texts that no parser should choke on.
HOSTILE_TEXTS = [
    "",
    "{",
    "[]",
    "null",
    "7",
    '"a"',
    "\ud800",
    NESTED,
    LONG_INTEGER,
    '{"schema": NaN}',
    "\x00",
    "[1e999]",
]

_ODD = [
    None, True, False, -1, 0, 1, 2, 2.5, 1e300, 10**18, 10**30, "", "..", "../..", "/etc", "a\nb", "object", "U8",
    "float33", "key<fry>", "key<none>", [], {}, [[]], [None], [-1], [10**15, 10**15], {"a": 1}, "x" * 20_000, "\ud800",
]  # fmt: skip


def _places(content, at=()):
    yield at
    if isinstance(content, dict):
        for key in content:
            yield from _places(content[key], (*at, key))
    elif isinstance(content, list):
        for number, entry in enumerate(content):
            yield from _places(entry, (*at, number))


@st.composite
def mutations(draw, content):
    """The content after one to three changes."""
    content = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        *outer, last = draw(st.sampled_from([place for place in _places(content) if place] or [(None,)]))
        if last is None:
            break
        parent = content
        for step in outer:
            parent = parent[step]
        match draw(st.sampled_from(["replace", "remove", "double", "swap"])):
            case "replace":
                parent[last] = copy.deepcopy(draw(st.sampled_from(_ODD)))
            case "remove":
                del parent[last]
            case "double" if isinstance(parent, list):
                parent.append(copy.deepcopy(parent[last]))
            case "double":
                parent[f"{last}x"] = parent[last]
            case "swap":
                other = draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
                parent[last], parent[other] = parent[other], parent[last]
    return content


def result_or_one_line(function, error):
    """The result of a function; None if it raises this error, which then has one line."""
    try:
        return function()
    except error as caught:
        message = str(caught)
    assert "\n" not in message
    return None
