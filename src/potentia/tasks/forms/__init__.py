"""Prompt forms: another way to ask the same documents, by a suffix of the name (``arc_challenge:choice``).

A form is a function of the task in its own form. It gets lm-eval's task object (to read the question, the options and
the answer of a document) and the definition, and returns the keys of the definition to replace. Its name and version
are part of the task's fingerprint, and so are the parts of the definition that it replaces.
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
"""(lm-eval task, definition, what follows the form's name and a colon) → keys to replace."""

OWN_KEYS = frozenset(
    {"form", "shots", "main_metric", "metric_names", "labels", "cluster_column", "fixed_examples"}
)
"""Keys of a definition that lm-eval does not know: the form's name, its own number of examples, its main metric,
the names of its metrics where not every filter goes with every metric, and the labels of a classification."""

_REPLACED_KEYS = ("doc_to_text", "doc_to_target", "doc_to_choice")

_FORMS: dict[str, tuple[Form, int]] = {}  # name → the form and its version


def register_form(name: str, version: int = 1) -> Callable[[Form], Form]:
    """Register a form by this name; raise its ``version`` with every change of what it writes or how it judges."""

    def add_form(form: Form) -> Form:
        _FORMS[name] = (form, version)
        return form

    return add_form


class FormField:
    """A field of a definition that a form writes; the fingerprint holds the fields that it replaces."""

    def __init__(self, write: Callable[[DocumentColumns], Any], definition: TaskDefinition) -> None:
        self.write = write
        self.fingerprint_parts = [definition.get(key) for key in _REPLACED_KEYS]

    def __call__(self, doc: DocumentColumns) -> Any:
        """Write the field for one document."""
        return self.write(doc)


def rewrite_definition(spec: str, task: HarnessTask, definition: TaskDefinition) -> dict[str, Any]:
    """Return the definition of a task in another form; ``spec`` is ``form`` or ``form:argument``."""
    name, _, argument = spec.partition(":")
    if name not in _FORMS and has_extension(ExtensionKind.PROMPT_FORM, name):
        _FORMS[name] = load_extension(ExtensionKind.PROMPT_FORM, name)
    if name not in _FORMS:
        form_names = {*_FORMS, *list_extensions(ExtensionKind.PROMPT_FORM)}
        raise TaskError(
            f"no prompt form {name!r} (asked for by {definition.get('task')}:{spec})",
            hint=f"forms: {', '.join(sorted(form_names))}",
        )
    form, version = _FORMS[name]
    changes = form(task, definition, argument)
    return {**definition, **changes, "form": (spec, version)}


from potentia.tasks.forms import blind as _blind  # noqa: E402  (registers its form)
from potentia.tasks.forms import multiple_choice as _multiple_choice  # noqa: E402  (registers its forms)
from potentia.tasks.forms import open_answers as _open_answers  # noqa: E402
