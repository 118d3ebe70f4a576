"""Foreign JSON: every value is checked for its type before it is used.

A file of another tool can hold anything at any key. ``JsonObject`` gives a value only as the type that is asked for:
what is absent is empty, and what is of another type is either an error that names the place or counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from potentia.errors import DataError
from potentia.files import read_text


@dataclass(frozen=True)
class JsonObject:
    """One object of a foreign file, and where it stands for errors."""

    content: Mapping[str, object]
    source: str

    @classmethod
    def require(cls, value: object, source: str, *, description: str) -> JsonObject:
        """Take a value that has to be an object."""
        if not isinstance(value, dict):
            raise DataError(f"{description} is not an object", where=source)
        return cls(value, source)

    def get_object(self, *field_names: str) -> JsonObject:
        """Return the object under these names; an absent one is empty, another type is an error."""
        content: Mapping[str, object] = self.content
        for field_name in field_names:
            inner = content.get(field_name)
            if inner is not None and not isinstance(inner, dict):
                raise DataError(f"{field_name} is not an object", where=self.source)
            content = inner or {}
        return JsonObject(content, self.source)

    def find_object(self, *field_names: str) -> JsonObject:
        """Return the object under these names; empty where there is none."""
        content: Mapping[str, object] = self.content
        for field_name in field_names:
            inner = content.get(field_name)
            content = inner if isinstance(inner, dict) else {}
        return JsonObject(content, self.source)

    def get_value(self, field_name: str) -> object:
        """Return what stands under a name, whatever it is; None where there is nothing."""
        return self.content.get(field_name)

    def find_text(self, field_name: str) -> str | None:
        """Return a text that is not blank, without the blanks around it; None for anything else."""
        value = self.content.get(field_name)
        if not isinstance(value, str):
            return None
        return value.strip(" \t") if value.strip() else None

    def find_integer(self, field_name: str) -> int | None:
        """Return a whole number; None for anything else."""
        value = self.content.get(field_name)
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value

    def find_boolean(self, field_name: str) -> bool | None:
        """Return true or false; None for anything else."""
        value = self.content.get(field_name)
        return value if isinstance(value, bool) else None

    def find_objects(self, field_name: str) -> list[JsonObject]:
        """Return the objects of a list; what is no object is left out."""
        return [
            JsonObject(value, self.source)
            for value in self.find_list(field_name)
            if isinstance(value, dict)
        ]

    def find_list(self, field_name: str) -> list[object]:
        """Return a list; empty where there is none."""
        value = self.content.get(field_name)
        return value if isinstance(value, list) else []


def float_or_none(value: object) -> float | None:
    """Return a JSON number, true or false as a float; None for anything else and for what no float can hold."""
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of a JSON file may be longer than any float
        return None


def load_json(path: Path) -> object:
    """Parse a file; every fault names its place, and a key given twice is one."""

    def check_unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        content: dict[str, object] = {}
        for field_name, value in pairs:
            if field_name in content:
                raise DataError(
                    f"the key {field_name!r} appears twice in one object", where=str(path)
                )
            content[field_name] = value
        return content

    try:
        return json.loads(read_text(path), object_pairs_hook=check_unique)
    except json.JSONDecodeError as error:
        location = f"{path}, line {error.lineno}, column {error.colno}"
        is_cut = error.pos >= len(error.doc.rstrip())
        hint = "the file ends too early: copy it again" if is_cut else None
        raise DataError(f"this is not valid JSON: {error.msg}", where=location, hint=hint) from None
    except DataError:
        raise
    except (RecursionError, ValueError) as error:
        reason = type(error).__name__
        raise DataError(f"this JSON cannot be read: {reason}", where=str(path)) from None


def read_json_lines(path: Path) -> Iterator[object]:
    """Give the value of every line of a JSONL file."""
    for line_number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", type(error).__name__)
            location = f"{path}, line {line_number}"
            raise DataError(f"this is not valid JSON: {reason}", where=location) from None
