"""JSON of strangers: what is wrong with it is said in one line."""

import pytest

from jaxquard.ir.codec import DataError
from jaxquard.ir.parse_json import parse_json
from tests.mutate_json import LONG_INTEGER, NESTED


def test_values():
    assert parse_json('{"a": [1, -2.5, null, true, "x"], "b": 123456789012345678901234567890}') == {
        "a": [1, -2.5, None, True, "x"],
        "b": 123456789012345678901234567890,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NESTED, "it is nested too deeply"),
        (LONG_INTEGER, "it has an integer of 5000 digits, and at most 40 make sense"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff\xfe\xfd", "truncated data"),
    ],
    ids=["deep", "long", "open", "bytes"],
)
def test_what_is_wrong(text, message):
    with pytest.raises(DataError) as caught:
        parse_json(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
