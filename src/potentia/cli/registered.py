"""Options classes for the commands of analyses that papers and other packages register (``potentia.extensions``).

What an analysis declares of its options (``potentia.analysis.registration``) becomes a class of options like those of
the other commands, so that it gets the same sources, output and figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from potentia.analysis.registration import OPTION, OptionDescription


def make_options_type(type_name: str, declared_options: type, base_options: type) -> type:
    """Return a class with the options that a dataclass declares, and with those of ``base_options``."""
    types = get_type_hints(declared_options)
    new_fields = []
    for declared_field in fields(declared_options):
        description = declared_field.metadata.get(OPTION)
        if description is not None:
            new_fields.append(
                _describe_field(declared_field, types[declared_field.name], description)
            )
    return make_dataclass(type_name, new_fields, bases=(base_options,), frozen=True, kw_only=True)


def _describe_field(
    declared_field: Field[Any], declared_type: Any, description: OptionDescription
) -> tuple[str, Any, Any]:
    """Return name, type and default of one option; None stands for an option that was not given."""
    value_type = _value_type(declared_type)
    default = None
    if declared_field.default is MISSING:
        default = MISSING
    elif description.shows_default and get_origin(value_type) is not list:
        default = declared_field.default
    if default is None or value_type is bool:
        value_type = value_type | None
    annotated_type = Annotated[value_type, _typer_option(value_type, description)]  # type: ignore[valid-type]
    if default is MISSING:
        return declared_field.name, annotated_type, field()
    return declared_field.name, annotated_type, field(default=default)


def _value_type(declared_type: Any) -> Any:
    """Return the type of a value on the command line: a list for a tuple, one number for a mapping or a number."""
    alternatives = [declared_type]
    if get_origin(declared_type) is not tuple:
        alternatives = list(get_args(declared_type)) or [declared_type]
    for alternative in alternatives:
        if get_origin(alternative) is tuple:
            return list[get_args(alternative)[0]]  # type: ignore[misc]
    for alternative in alternatives:
        if alternative is not type(None) and get_origin(alternative) is not Mapping:
            return alternative
    raise TypeError(f"no option can be made of {declared_type}")


def _typer_option(value_type: Any, description: OptionDescription) -> Any:
    return typer.Option(
        *description.flags,
        metavar=_choose_metavar(value_type),
        help=description.help,
        min=description.minimum,
        max=description.maximum,
    )


def _choose_metavar(value_type: Any) -> str | None:
    """Return the word for an option's value in its help; None where the choices say it."""
    alternatives = [value_type]
    for part in get_args(value_type):
        alternatives += [part, *get_args(part)]  # of list[str] | None: list[str] and str
    if Path in alternatives:
        return "FILE"
    if float in alternatives or int in alternatives:
        return "NUMBER"
    return "NAME" if str in alternatives else None
