"""``PlainRecord``: frozen dataclasses that turn themselves into plain JSON values and back, checked by their types.

The fields of a class are its whole format. Reading, a missing key takes the field's default, and a value of another
type is an error that names the field. A class may have a field ``details``, a mapping that keeps all keys that are no
field, so that no fact is lost at a hand-over; other classes drop such keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from potentia.errors import DataError

DETAILS = "details"  # the field that keeps all keys that are no field
Reader = Callable[[object], object]
"""Turns a plain value into a field's value, or raises a ``DataError``."""


class PlainRecord:
    """The base of frozen dataclasses that are stored as plain JSON values."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values; a field that has its default is left out."""
        content: dict[str, Any] = {}
        for field_name, default in _find_schema(type(self)).defaults.items():
            field_value = getattr(self, field_name)
            if field_name == DETAILS:
                content |= to_plain(field_value)
            elif field_value != default:
                content[field_name] = to_plain(field_value)
        return content

    @classmethod
    def from_dict(cls, content: object) -> Self:
        """Make a record of what ``to_dict`` returned, as the module's docstring says; raise ``DataError`` otherwise."""
        if not isinstance(content, Mapping):
            raise DataError(f"expected an object, not {_name_type(content)}")
        schema = _find_schema(cls)
        values: dict[str, object] = {}
        details: dict[str, object] = {}
        for field_name, value in content.items():
            read_value = schema.readers.get(field_name)
            if read_value is None:
                details[field_name] = value
                continue
            try:
                values[field_name] = read_value(value)
            except DataError as error:
                raise DataError(f"{field_name}: {error.message}") from None
        if details and DETAILS in schema.defaults:
            values[DETAILS] = details
        try:
            return cls(**values)
        except TypeError:
            missing = [field_name for field_name in schema.readers if field_name not in values]
            raise DataError(f"one of these is missing: {', '.join(missing)}") from None


def to_plain(value: object) -> Any:
    """Return records, enums, mappings and tuples as plain JSON values."""
    if isinstance(value, PlainRecord):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {to_plain(member_name): to_plain(member) for member_name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(member) for member in value]
    return value


@dataclasses.dataclass(frozen=True)
class _RecordSchema:
    """The fields of a class of records, by name."""

    defaults: Mapping[str, object]
    readers: Mapping[str, Reader]  # of all fields but the details, which take any value


_SCHEMAS: dict[
    type, _RecordSchema
] = {}  # kept, since a store may have 200,000 records of one class


def _find_schema(record_type: Any) -> _RecordSchema:
    """Return the fields of a class of records."""
    schema = _SCHEMAS.get(record_type)
    if schema is None:
        hints = get_type_hints(record_type)
        defaults = {field.name: _read_default(field) for field in dataclasses.fields(record_type)}
        readers = {
            field_name: _choose_reader(hints[field_name])
            for field_name in defaults
            if field_name != DETAILS
        }
        schema = _SCHEMAS[record_type] = _RecordSchema(defaults, readers)
    return schema


def _read_default(record_field: dataclasses.Field[Any]) -> object:
    if record_field.default_factory is not dataclasses.MISSING:
        return record_field.default_factory()
    return record_field.default


def _choose_reader(type_hint: Any) -> Reader:
    """Return the function that reads a value of this type."""
    origin = get_origin(type_hint)
    if type_hint in (Any, object):
        return _read_anything
    if origin in (Union, UnionType):
        return _make_optional_reader(get_args(type_hint))
    if origin is tuple:
        return _make_tuple_reader(_choose_reader(get_args(type_hint)[0]))
    if origin is not None and issubclass(origin, Mapping):
        key_type, value_type = get_args(type_hint)
        return _make_mapping_reader(_choose_reader(key_type), _choose_reader(value_type))
    if issubclass(type_hint, PlainRecord):
        return _make_record_reader(type_hint)
    if issubclass(type_hint, Enum):
        return _make_enum_reader(type_hint)
    return _SCALAR_READERS[type_hint]


def _make_record_reader(record_type: type[PlainRecord]) -> Reader:
    return lambda value: record_type.from_dict(value)


def _read_anything(value: object) -> object:
    return value


def _make_optional_reader(union_types: tuple[object, ...]) -> Reader:
    """Return the reader of ``X | None``, the only kind of union that a record may have."""
    (value_type,) = (union_type for union_type in union_types if union_type is not NoneType)
    read_value = _choose_reader(value_type)
    return lambda value: None if value is None else read_value(value)


def _make_tuple_reader(read_member: Reader) -> Reader:
    def read_tuple(value: object) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)):
            raise DataError(f"expected a list, not {_name_type(value)}")
        return tuple(map(read_member, value))

    return read_tuple


def _make_mapping_reader(read_key: Reader, read_value: Reader) -> Reader:
    def read_mapping(mapping: object) -> dict[object, object]:
        if not isinstance(mapping, Mapping):
            raise DataError(f"expected an object, not {_name_type(mapping)}")
        return {read_key(str(key)): read_value(value) for key, value in mapping.items()}

    return read_mapping


def _make_enum_reader(enum_type: type[Enum]) -> Reader:
    def read_enum(value: object) -> Enum:
        try:
            return enum_type(value)
        except ValueError:
            values = ", ".join(str(member.value) for member in enum_type)
            raise DataError(f"{value!r} is not one of {values}") from None

    return read_enum


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"expected a number, not {_name_type(value)}")
    try:
        return float(value)
    except OverflowError:
        raise DataError("expected a number that is not so large") from None


def _read_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DataError(f"expected a whole number, not {_name_type(value)}")
    return value


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise DataError(f"expected a boolean, not {_name_type(value)}")
    return value


def _read_str(value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"expected a string, not {_name_type(value)}")
    return value


_SCALAR_READERS: dict[type, Reader] = {
    float: _read_float,
    int: _read_int,
    bool: _read_bool,
    str: _read_str,
}


def _name_type(value: object) -> str:
    """Return a value's type by its name in JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, (list, tuple)) else "an object"
