"""Which models and tasks an analysis leaves out, and why: told with its answer, never silently."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

N = TypeVar("N", bound=str)
NO_ENTRIES: Mapping[str, Any] = MappingProxyType({})  # where nothing is known of models or tasks


def join_first_names(names: Collection[str], max_names: int = 3) -> str:
    """Return the first names, and how many more there are."""
    listed = ", ".join(list(names)[:max_names])
    if len(names) > max_names:
        return f"{listed} and {len(names) - max_names} more"
    return listed


def keep_names_in(names: Iterable[N], *collections: Collection[object]) -> list[N]:
    """Return the names that are in all of these collections."""
    return [
        candidate
        for candidate in names
        if all(candidate in collection for collection in collections)
    ]


def drop_names_in(names: Iterable[N], collection: Collection[object]) -> list[N]:
    """Return the names that are not in the collection."""
    return [candidate for candidate in names if candidate not in collection]


def describe_left_out(reasons: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return a line for each reason that leaves out a model or a task."""
    lines = []
    for reason, names in reasons.items():
        if names:
            lines.append(f"left out, {reason}: {join_first_names(names)}")
    return tuple(lines)


def format_notes(lines: Collection[str]) -> str:
    """Return these lines as the end of a table's note."""
    return "".join(f" {line[0].upper()}{line[1:]}." for line in lines)
