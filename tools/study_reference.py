"""Write the second half of ``docs/study.md``, the reference of the study file, from its schema.

python tools/study_reference.py            # writes it
python tools/study_reference.py --check    # says whether it is up to date
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from potentia.study import Study
from potentia.values.protocol import Protocol

PAGE = Path(__file__).resolve().parents[1] / "docs" / "study.md"
MARK = (
    "<!-- The rest is written by tools/study_reference.py from src/potentia/study/schema.py. -->\n"
)
WORDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    Protocol: "protocol",
}
BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def page() -> str:
    """Return the whole page: what is written by hand, then the study and every record in it, each as a table."""
    records: dict[type[BaseModel], str] = {}
    _collect(Study, "the study", records)
    by_hand = PAGE.read_text("utf-8").partition(MARK)[0]
    parts = [by_hand + MARK]
    for record, heading in records.items():
        text = " ".join((record.__doc__ or "").split()).replace("``", "`")
        parts.append(f"## {heading[0].upper() + heading[1:]}\n\n{text}\n\n{_table(record)}")
    return "\n".join(parts)


def _collect(
    record: type[BaseModel], heading: str, heading_by_record: dict[type[BaseModel], str]
) -> None:
    if record in heading_by_record:
        return
    heading_by_record[record] = heading
    for name, field in record.model_fields.items():
        for inner in _records(field.annotation):
            _collect(inner, f"`{name}`", heading_by_record)


def _records(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [
        heading_by_record for arg in get_args(annotation) for heading_by_record in _records(arg)
    ]


def _table(record: type[BaseModel]) -> str:
    lines = ["| key | value | default | |", "|---|---|---|---|"]
    for name, field in record.model_fields.items():
        kind = _kind(field.annotation, field.metadata)
        lines.append(f"| `{name}` | {kind} | {_default(field)} | {field.description or ''} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "needed"
    if value is None or value == () or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(_written(item) for item in value)}]`"
    return f"`{_written(value)}`"


def _written(value: Any) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """Say in words what a field takes."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(
            args[0], [*metadata, *(m for a in args[1:] for m in getattr(a, "metadata", [a]))]
        )
    if origin in (types.UnionType, Union):
        return _kind(next(arg for arg in args if arg is not type(None)), metadata)
    if origin is Literal:
        return " or ".join(f"`{arg}`" for arg in args)
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"list of {_plural(_kind(args[0], []))}"
        return f"list of {len(args)} numbers"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "record"
    bounds = [
        f"{sign} {getattr(m, name):g}"
        for m in metadata
        for name, sign in BOUNDS.items()
        if hasattr(m, name)
    ]
    return " ".join([WORDS[annotation], *([", ".join(bounds)] if bounds else [])])


def _plural(words: str) -> str:
    first, *other_words = words.split(" ")
    if first == "whole":
        return " ".join(["whole numbers", *other_words[1:]])
    return " ".join([first if first == "text" else f"{first}s", *other_words])


def main() -> None:
    """Write the page, or check it."""
    page_text = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text("utf-8") != page_text:
            sys.exit(f"{PAGE} is not up to date: python tools/study_reference.py")
        return
    PAGE.write_text(page_text, "utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
