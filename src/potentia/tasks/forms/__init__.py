"""Prompt forms: other ways to ask the same documents, chosen by a suffix of the task's name (``arc_challenge:choice``).

A form is a function. It gets lm-eval's task object as the definition has it, to read the question, the options and the
answer of a document, and the definition; it returns the keys of the definition to replace. An *argument* may follow the
form's name (``mmlu_pro:choice:4``). Name, argument and version of a form are part of the task's fingerprint, and so are
the parts of the definition that it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from potentia.errors import TaskError
from potentia.extensions import (
    ExtensionKind,
    has_extension,
    list_extensions,
    load_extension,
)

HarnessTask = Any
"""lm-eval's task object, which has no types of its own."""

DocumentColumns = Mapping[str, Any]
"""One document of a task: column → value."""

TaskDefinition = Mapping[str, Any]
"""A task's definition, as lm-eval reads it from YAML."""

DefinitionChanges = dict[str, Any]
"""The keys of a definition that a form replaces, with their new values."""

Form = Callable[[HarnessTask, TaskDefinition, str], DefinitionChanges]
"""(lm-eval task, definition, the form's argument) → keys to replace."""

OWN_KEYS = frozenset(
    {
        "form",  # (form with its argument, version)
        "shots",  # how many examples a form shows by itself
        "main_metric",
        "metric_names",  # where not every metric goes with every filter
        "labels",  # of a classification: the words of each label
        "cluster_column",  # its equal values make clusters of examples
        "fixed_examples",  # whether the same examples stand before every question
    }
)
"""Keys of a definition that Potentia reads and lm-eval does not know."""

_REPLACED_KEYS = ("doc_to_text", "doc_to_target", "doc_to_choice")

_FORMS: dict[str, tuple[Form, int]] = {}  # name → the form and its version


def register_form(form_name: str, version: int = 1) -> Callable[[Form], Form]:
    """Register a form by this name; raise its ``version`` with every change of what it writes or how it grades."""

    def add_form(write_form: Form) -> Form:
        _FORMS[form_name] = (write_form, version)
        return write_form

    return add_form


class FormField:
    """A function of a document that a form puts into a definition (``doc_to_text`` …).

    The fingerprint has the fields of the definition that it replaces, and not this code: the form's version stands for
    that.
    """

    def __init__(
        self, write: Callable[[DocumentColumns], object], definition: TaskDefinition
    ) -> None:
        self.write = write
        self.fingerprint_parts = [definition.get(key) for key in _REPLACED_KEYS]

    def __call__(self, document: DocumentColumns) -> object:
        """Return the field of one document."""
        return self.write(document)


def rewrite_definition(
    form_spec: str, task: HarnessTask, definition: TaskDefinition
) -> dict[str, object]:
    """Return the definition of a task in another form; ``form_spec`` is ``FORM`` or ``FORM:ARGUMENT``."""
    form_name, _, argument = form_spec.partition(":")
    if form_name not in _FORMS and has_extension(ExtensionKind.PROMPT_FORM, form_name):
        _FORMS[form_name] = load_extension(ExtensionKind.PROMPT_FORM, form_name)
    if form_name not in _FORMS:
        form_names = {*_FORMS, *list_extensions(ExtensionKind.PROMPT_FORM)}
        raise TaskError(
            f"no prompt form {form_name!r} (asked for by {definition.get('task')}:{form_spec})",
            hint=f"forms: {', '.join(sorted(form_names))}",
        )
    write_form, version = _FORMS[form_name]
    changes = write_form(task, definition, argument)
    return {**definition, **changes, "form": (form_spec, version)}


from potentia.tasks.forms import blind as _blind  # noqa: E402  (registers its form)
from potentia.tasks.forms import multiple_choice as _multiple_choice  # noqa: E402  (registers its forms)
from potentia.tasks.forms import open_answers as _open_answers  # noqa: E402
