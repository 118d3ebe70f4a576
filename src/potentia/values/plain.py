"""Frozen dataclasses that write themselves as plain JSON values and read themselves back, checked by their types.

What a class declares is the whole format: a key that is missing takes the field's default, and a value of another type
is an error that names the field. A class may declare ``details``, a mapping that keeps the keys it does not name, so
that no fact is lost at a hand-over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from potentia.errors import DataError

DETAILS = "details"
Reader = Callable[[Any], Any]


class PlainRecord:
    """The base of a frozen dataclass that travels as plain JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a field that holds its default is left out."""
        content: dict[str, Any] = {}
        for name, default in _shape_of(type(self)).defaults.items():
            value = getattr(self, name)
            if name == DETAILS:
                content |= to_plain(value)
            elif value != default:
                content[name] = to_plain(value)
        return content

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Read what ``to_dict`` wrote; missing keys take their defaults, values of another type are refused."""
        if not isinstance(content, Mapping):
            raise DataError(f"expected names with values, not {_name_type(content)}")
        shape = _shape_of(cls)
        values: dict[str, Any] = {}
        details: dict[str, Any] = {}
        for name, value in content.items():
            read_value = shape.readers.get(name)
            if read_value is None:
                details[name] = value
                continue
            try:
                values[name] = read_value(value)
            except DataError as error:
                raise DataError(f"{name}: {error.message}") from None
        if details and DETAILS in shape.defaults:
            values[DETAILS] = details
        try:
            return cls(**values)
        except TypeError:
            missing = [name for name in shape.readers if name not in values]
            raise DataError(f"one of these is missing: {', '.join(missing)}") from None


def to_plain(value: Any) -> Any:
    """Turn records, enums, mappings and tuples into what JSON has."""
    if isinstance(value, PlainRecord):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: to_plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    return value


@dataclasses.dataclass(frozen=True)
class _Shape:
    """The fields of a record: their defaults, and the functions that read all but the details."""

    defaults: Mapping[str, Any]
    readers: Mapping[str, Reader]


_SHAPES: dict[type, _Shape] = {}  # a store may have 200,000 records of one shape


def _shape_of(record_type: Any) -> _Shape:
    shape = _SHAPES.get(record_type)
    if shape is None:
        hints = get_type_hints(record_type)
        defaults = {field.name: _default_of(field) for field in dataclasses.fields(record_type)}
        readers = {name: _reader_of(hints[name]) for name in defaults if name != DETAILS}
        shape = _SHAPES[record_type] = _Shape(defaults, readers)
    return shape


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _reader_of(hint: Any) -> Reader:
    """Return the function that reads a value of this type."""
    origin = get_origin(hint)
    if hint is Any:
        return _read_anything
    if origin in (Union, UnionType):
        return _read_optional(get_args(hint))
    if origin is tuple:
        return _read_tuple(_reader_of(get_args(hint)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _read_mapping(_reader_of(get_args(hint)[1]))
    if issubclass(hint, PlainRecord):
        return _read_record(hint)
    if issubclass(hint, Enum):
        return _read_enum(hint)
    return _SCALAR_READERS[hint]


def _read_record(record_type: type[PlainRecord]) -> Reader:
    return lambda value: record_type.from_dict(value)


def _read_anything(value: Any) -> Any:
    return value


def _read_optional(kinds: tuple[Any, ...]) -> Reader:
    """Read a type or None; no field is of two other types."""
    (kind,) = (kind for kind in kinds if kind is not NoneType)
    read_value = _reader_of(kind)
    return lambda value: None if value is None else read_value(value)


def _read_tuple(read_part: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise DataError(f"expected a list, not {_name_type(value)}")
        return tuple(map(read_part, value))

    return read


def _read_mapping(read_part: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise DataError(f"expected names with values, not {_name_type(value)}")
        return {str(name): read_part(part) for name, part in value.items()}

    return read


def _read_enum(kind: type[Enum]) -> Reader:
    def read(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            values = ", ".join(str(member.value) for member in kind)
            raise DataError(f"{value!r} is none of {values}") from None

    return read


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"expected a number, not {_name_type(value)}")
    try:
        return float(value)
    except OverflowError:
        raise DataError("expected a number that is not so large") from None


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"expected a whole number, not {_name_type(value)}")
    return value


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DataError(f"expected true or false, not {_name_type(value)}")
    return value


def _read_str(value: Any) -> str:
    if not isinstance(value, str):
        raise DataError(f"expected text, not {_name_type(value)}")
    return value


_SCALAR_READERS: dict[Any, Reader] = {
    float: _read_float,
    int: _read_int,
    bool: _read_bool,
    str: _read_str,
}


def _name_type(value: Any) -> str:
    """Name the type of a value as a person who writes JSON does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, (list, tuple)) else "names with values"
