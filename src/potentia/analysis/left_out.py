"""Who is left out of an analysis, and why: said with its answer, never silently."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

N = TypeVar("N", bound=str)
NO_ENTRIES: Mapping[str, Any] = MappingProxyType({})  # where nothing is known of models or tasks


def join_first_names(names: Collection[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(list(names)[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def keep_names_in(names: Iterable[N], *there: Collection[object]) -> list[N]:
    """Return the names that are in all of these."""
    return [name for name in names if all(name in part for part in there)]


def drop_names_in(names: Iterable[N], there: Collection[object]) -> list[N]:
    """Return the names that are not there."""
    return [name for name in names if name not in there]


def describe_left_out(reasons: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """Return a line for each reason that leaves somebody out."""
    return tuple(
        f"left out, {why}: {join_first_names(names)}" for why, names in reasons.items() if names
    )


def format_notes(lines: Collection[str]) -> str:
    """Return these lines as the end of a table's note."""
    return "".join(f" {line[0].upper()}{line[1:]}." for line in lines)
