"""Dataclasses as plain data, ready for JSON or TOML, and back: one codec for plans, cells and clusters.

The types of the fields drive both directions:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Segment:
        kind: int = field(metadata=stored(minimum=0))
        time_s: float                                    # infinity is null: there is no price
        strategy: tuple[tuple[str, ...], ...]
        axis: Axis | None = field(default=None, metadata=stored(formerly=("ring",)))

    to_data(segment)            {"kind": 3, "time_s": 0.25, "strategy": [["rows"]], "axis": "columns"}
    from_data(Segment, data)    the same segment; a `DataError` says where the data is wrong

Reading is strict: a missing or unknown key, a number where a text belongs, or a value out of range is refused. A field
that was renamed is read under its former names, so that files outlive names.
"""

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

Writer = Callable[[Any], Any]
Reader = Callable[[Any, str], Any]


class DataError(ValueError):
    """Data that does not describe what was asked for; callers turn it into an error of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Special:
    """A type that the codec does not know: a function that writes it, and one that reads it, given its place."""

    write: Writer
    read: Reader


Specials = Mapping[type, Special]


# Of an integer: `parse_json` takes 40 digits.
_LARGEST = 10**39


def stored(
    *, formerly: tuple[str, ...] = (), minimum: float | None = None, above: float | None = None
) -> dict[str, Any]:
    """The metadata of a field.

    Args:
        formerly: names under which older files have it.
        minimum: numbers in it are at least this.
        above: numbers in it are larger than this.
    """
    return {"formerly": formerly, "minimum": minimum, "above": above}


def to_data(value: Any, *, specials: Specials = types.MappingProxyType({})) -> Any:
    """Returns a value as dicts, lists, texts, numbers, booleans and None."""
    if type(value) in specials:
        return specials[type(value)].write(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_data(getattr(value, field.name), specials=specials) for field in fields}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_data(entry, specials=specials) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_data(entry, specials=specials) for entry in value]
    if isinstance(value, float) and value == math.inf:
        return None
    assert value is None or isinstance(value, bool | int | float | str), f"no plain data: {value!r}"
    return value


def from_data(
    kind: Any,
    data: Any,
    *,
    where: str,
    specials: Specials = types.MappingProxyType({}),
    is_complete: bool = False,
) -> Any:
    """Returns the value of a type that `to_data` wrote.

    Args:
        kind: a dataclass, or any type that a field may have.
        where: names the data in errors.
        is_complete: a field may not be left out, even if it has a default.

    Raises:
        DataError: if the data describes no such value.
    """
    decoder = _Decoder(specials=specials, is_complete=is_complete)
    try:
        return decoder.read(kind, data, where, types.MappingProxyType({}))
    except RecursionError:
        raise DataError(f"{where} is nested too deeply") from None


@functools.cache
def _hints_of(kind: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields: a file has many values of few types, and annotations take long to read."""
    return typing.get_type_hints(kind)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Decoder:
    specials: Specials
    is_complete: bool

    def read(self, kind: Any, data: Any, where: str, limits: Mapping[str, Any]) -> Any:
        """Reads data as a type; `limits` is the metadata of the field around it."""
        if kind is Any:
            return data
        if kind in self.specials:
            return self.specials[kind].read(data, where)
        origin = typing.get_origin(kind)
        if origin in (typing.Union, types.UnionType):
            return self._read_optional(kind, data, where, limits)
        if origin is tuple:
            return self._read_tuple(typing.get_args(kind), data, where, limits)
        if origin is not None and issubclass(origin, Mapping):
            return self._read_mapping(typing.get_args(kind)[1], data, where, limits)
        if dataclasses.is_dataclass(kind):
            return self._read_fields(kind, data, where)
        if issubclass(kind, enum.Enum):
            return _read_word(kind, data, where)
        return _read_plain(kind, data, where, limits)

    def _read_optional(self, kind: Any, data: Any, where: str, limits: Mapping[str, Any]) -> Any:
        others = [one for one in typing.get_args(kind) if one is not types.NoneType]
        assert len(others) == 1, f"only X | None can be read, not {kind}"
        return None if data is None else self.read(others[0], data, where, limits)

    def _read_tuple(self, kinds: tuple[Any, ...], data: Any, where: str, limits: Mapping[str, Any]) -> Any:
        if not isinstance(data, list | tuple):
            raise DataError(f"{where} should be a list, found {data!r:.80}")
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            kinds = (kinds[0],) * len(data)
        if len(kinds) != len(data):
            raise DataError(f"{where} should have {len(kinds)} entries, found {data!r:.80}")
        entries = enumerate(zip(kinds, data, strict=True))
        return tuple(self.read(kind, entry, f"{where}[{number}]", limits) for number, (kind, entry) in entries)

    def _read_mapping(self, kind: Any, data: Any, where: str, limits: Mapping[str, Any]) -> Any:
        if not isinstance(data, Mapping):
            raise DataError(f"{where} should be a table, found {data!r:.80}")
        return {str(key): self.read(kind, entry, f"{where}.{key}", limits) for key, entry in data.items()}

    def _read_fields(self, kind: Any, data: Any, where: str) -> Any:
        if not isinstance(data, Mapping):
            raise DataError(f"{where} should be a table, found {data!r:.80}")
        fields = {field.name: field for field in dataclasses.fields(kind)}
        hints = _hints_of(kind)
        values = {}
        for key, entry in data.items():
            name = key if key in fields else _current_name(fields, key)
            if name is None or name in values:
                raise DataError(f"{where} has the unknown key {key}; the keys are {', '.join(fields)}")
            values[name] = self.read(hints[name], entry, f"{where}.{key}", fields[name].metadata)
        for name, field in fields.items():
            if name not in values and (self.is_complete or not _has_default(field)):
                raise DataError(f"{where} lacks the {_key_text(name, hints[name])}; the keys are {', '.join(fields)}")
        return kind(**values)


def _key_text(name: str, kind: Any) -> str:
    if not dataclasses.is_dataclass(kind):
        return f"key {name}"
    return f"table {name} with the keys {', '.join(field.name for field in dataclasses.fields(kind))}"


def _current_name(fields: Mapping[str, Any], key: str) -> str | None:
    return next((name for name, field in fields.items() if key in field.metadata.get("formerly", ())), None)


def _has_default(field: Any) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _read_word(kind: type[enum.Enum], data: Any, where: str) -> enum.Enum:
    words = [member.value for member in kind]
    if data not in words:
        raise DataError(f"{where} should be one of {', '.join(map(str, words))}, found {data!r:.80}")
    return kind(data)


def _read_plain(kind: type, data: Any, where: str, limits: Mapping[str, Any]) -> Any:
    if kind in (str, bool):
        if not isinstance(data, kind):
            raise DataError(f"{where} should be {'a text' if kind is str else 'true or false'}, found {data!r:.80}")
        return data
    assert kind in (int, float), f"no rule reads {kind}"
    if kind is float and data is None:
        return math.inf
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise DataError(f"{where} should be a number, found {data!r:.80}")
    if not _is_finite(data):
        raise DataError(f"{where} should be finite, found {data!r:.80}")
    if kind is int and data != int(data):
        raise DataError(f"{where} should be a whole number, found {data!r:.80}")
    if kind is int and abs(data) > _LARGEST:
        # 1e308 is a whole number that is written with more digits than any reader takes.
        raise DataError(f"{where} should be at most {_LARGEST:.0e} in size, found {data!r:.80}")
    minimum, above = limits.get("minimum"), limits.get("above")
    if minimum is not None and data < minimum:
        raise DataError(f"{where} should be at least {minimum:g}, found {data!r:.80}")
    if above is not None and data <= above:
        raise DataError(f"{where} should be above {above:g}, found {data!r:.80}")
    return kind(data)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer that no float holds
        return False
