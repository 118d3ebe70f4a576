"""Commands made of typed options.

The options of a command are a frozen dataclass. Each field is one option or argument: its type, with what typer needs
to know of it, and its default. Options that several commands share are base classes (``cli.option_groups``). A command
is a function that takes its options, so mypy checks every use of them::

    @dataclass(frozen=True, kw_only=True)
    class StatusOptions(OutputOptions):
        store: Annotated[str, typer.Argument(metavar="STORE", help="The store.")] = "potentia.db"

    @command(app, "status", StatusOptions)
    def status(options: StatusOptions) -> None:
        print(options.store)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from potentia.extras import Extra, require_extra

OptionsT = TypeVar("OptionsT")


class PlainCommand(TyperCommand):
    """A command whose help shows flags as flags: ``--json``, not ``--json <bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return arguments and options."""
        return show_flags_plainly(super().get_params(ctx))


def show_flags_plainly(parameters: list[Any]) -> list[Any]:
    """Take the type away from options that take no value, and from arguments, whose names say what they are."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = _no_type
    return parameters


def _no_type(ctx: Any) -> None:
    """Stand for the type of an argument in its help, which would be Python's: ``<list[str]>``."""


def command(
    group: typer.Typer,
    command_name: str,
    options_type: type[OptionsT],
    *,
    needs: Extra | None = None,
) -> Callable[[Callable[[OptionsT], None]], Callable[[OptionsT], None]]:
    """Register a function as a command of a group; its docstring is the help.

    A command that ``needs`` an extra names the line that installs it, before it does anything else.
    """

    def register(action: Callable[[OptionsT], None]) -> Callable[[OptionsT], None]:
        def run_action(**values: Any) -> None:
            if needs is not None:
                require_extra(needs, "this command")
            action(options_type(**values))

        signature = signature_of(options_type)
        run_action.__signature__ = signature  # type: ignore[attr-defined]
        run_action.__annotations__ = {
            parameter.name: parameter.annotation for parameter in signature.parameters.values()
        }
        run_action.__doc__ = action.__doc__
        group.command(command_name, cls=PlainCommand)(run_action)
        return action

    return register


def signature_of(options_type: type) -> inspect.Signature:
    """Return the signature that typer reads: arguments, the command's own options, then shared ones."""
    annotations = _annotations_own_first(options_type)
    fields_by_name = {field.name: field for field in fields(options_type)}
    arguments = []
    options = []
    for option_name, annotation in annotations.items():
        parameter = _parameter_of(fields_by_name[option_name], annotation)
        if _is_argument(annotation):
            arguments.append(parameter)
        else:
            options.append(parameter)
    return inspect.Signature([*arguments, *options])


def _annotations_own_first(options_type: type) -> dict[str, Any]:
    """Return the types of all fields: those of the class itself first, then those of its bases."""
    annotations: dict[str, Any] = {}
    for cls in options_type.__mro__:
        for option_name, annotation in _annotations_of(cls).items():
            annotations.setdefault(option_name, annotation)
    return annotations


@cache
def _annotations_of(cls: type) -> dict[str, Any]:
    """Return the types that one class declares; shared classes are evaluated once."""
    return inspect.get_annotations(cls, eval_str=True)


def _is_argument(annotation: Any) -> bool:
    return any(isinstance(metadata, ArgumentInfo) for metadata in annotation.__metadata__)


def _parameter_of(field: Field[Any], annotation: Any) -> inspect.Parameter:
    """Describe a field to typer, which takes ``...`` for a value that must be given."""
    default = ... if field.default is MISSING else field.default
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
