"""Plain data and back: the same value, former names, and every refusal with its place."""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.ir.codec import DataError, Special, from_data, stored, to_data


class Axis(enum.Enum):
    ROWS = "rows"
    COLUMNS = "columns"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    kind: int = dataclasses.field(metadata=stored(minimum=0))
    time_s: float
    names: tuple[tuple[str, ...], ...] = ()
    axis: Axis | None = dataclasses.field(default=None, metadata=stored(formerly=("ring",)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    title: str
    parts: tuple[Part, ...]
    shape: tuple[int, int] = dataclasses.field(metadata=stored(above=0))
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    is_final: bool = False
    ratio: complex = 0j


SPECIALS = {complex: Special(write=lambda z: [z.real, z.imag], read=lambda data, where: complex(*data))}
numbers = st.floats(allow_nan=False, allow_infinity=False)
part_values = st.builds(
    Part,
    kind=st.integers(min_value=0, max_value=2**53),
    time_s=numbers | st.just(math.inf),
    names=st.lists(st.lists(st.text(), max_size=3).map(tuple), max_size=3).map(tuple),
    axis=st.sampled_from([None, *Axis]),
)
whole_values = st.builds(
    Whole,
    title=st.text(),
    parts=st.lists(part_values, max_size=4).map(tuple),
    shape=st.tuples(*[st.integers(min_value=1, max_value=9)] * 2),
    sizes=st.dictionaries(st.text(), st.integers(min_value=-5, max_value=5), max_size=3),
    is_final=st.booleans(),
    ratio=st.builds(complex, numbers, numbers),
)
GOOD = {
    "title": "a",
    "parts": [{"kind": 1, "time_s": 0.5, "names": [["x"]], "axis": "rows"}],
    "shape": [2, 4],
    "sizes": {"x": 1},
    "is_final": True,
    "ratio": [0.0, 1.0],
}


@given(whole_values)
def test_reads_back_what_it_wrote_through_json(value):
    text = json.dumps(to_data(value, specials=SPECIALS), allow_nan=False)
    assert from_data(Whole, json.loads(text), where="file", specials=SPECIALS) == value


def test_a_former_name_is_read_and_the_current_one_written():
    old = {"kind": 0, "time_s": None, "ring": "columns"}
    part = from_data(Part, old, where="file")
    assert part == Part(kind=0, time_s=math.inf, axis=Axis.COLUMNS)
    assert to_data(part) == {"kind": 0, "time_s": None, "names": [], "axis": "columns"}


def test_complete_data_leaves_nothing_out():
    short = {"kind": 0, "time_s": 1.0}
    assert from_data(Part, short, where="file") == Part(kind=0, time_s=1.0)
    with pytest.raises(DataError, match="file lacks the key names; the keys are kind, time_s, names, axis"):
        from_data(Part, short, where="file", is_complete=True)
    whole = to_data(Part(kind=0, time_s=1.0))
    assert from_data(Part, whole, where="file", is_complete=True) == Part(kind=0, time_s=1.0)


def test_a_missing_table_is_named_with_its_keys():
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Owner:
        part: Part

    with pytest.raises(DataError, match="file lacks the table part with the keys kind, time_s, names, axis; the keys"):
        from_data(Owner, {}, where="file")


def changed(**entries):
    return {**GOOD, **entries}


def part_with(**entries):
    return changed(parts=[{**GOOD["parts"][0], **entries}])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "file should be a table, found []"),
        (changed(more=1), "file has the unknown key more; the keys are title, parts, shape, sizes, is_final, ratio"),
        ({"title": "a"}, "file lacks the key parts; the keys are title, parts, shape, sizes, is_final, ratio"),
        (changed(title=3), "file.title should be a text, found 3"),
        (changed(is_final=1), "file.is_final should be true or false, found 1"),
        (changed(parts={}), "file.parts should be a list, found {}"),
        (changed(sizes=[1]), "file.sizes should be a table, found [1]"),
        (changed(sizes={"x": "1"}), "file.sizes.x should be a number, found '1'"),
        (changed(shape=[1]), "file.shape should have 2 entries, found [1]"),
        (changed(shape=[1, 0]), "file.shape[1] should be above 0, found 0"),
        (part_with(kind=-1), "file.parts[0].kind should be at least 0, found -1"),
        (part_with(kind=1.5), "file.parts[0].kind should be a whole number, found 1.5"),
        (part_with(kind=1e308), "file.parts[0].kind should be at most 1e+39 in size, found 1e+308"),
        (part_with(kind=True), "file.parts[0].kind should be a number, found True"),
        (part_with(time_s=math.nan), "file.parts[0].time_s should be finite, found nan"),
        (part_with(time_s=10**400), f"file.parts[0].time_s should be finite, found {str(10**400)[:80]}"),
        (part_with(axis="up"), "file.parts[0].axis should be one of rows, columns, found 'up'"),
        (part_with(axis={}), "file.parts[0].axis should be one of rows, columns, found {}"),
        (part_with(ring="rows"), "file.parts[0] has the unknown key ring; the keys are kind, time_s, names, axis"),
    ],
)
def test_says_what_is_wrong_and_where(data, message):
    with pytest.raises(DataError) as caught:
        from_data(Whole, data, where="file", specials=SPECIALS)
    assert str(caught.value) == message
