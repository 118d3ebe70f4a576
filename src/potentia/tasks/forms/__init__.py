"""Prompt forms: another way to ask the same documents, by a suffix of the name (``arc_challenge:choice``).

A form is a function of the task in its own form. It gets lm-eval's task object (to read the question, the options and
the answer of a document) and the definition, and returns the keys of the definition to replace. Functions among them
are hashed into the task's fingerprint with the file that holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from potentia.errors import TaskError

Form = Callable[[Any, Mapping[str, Any], str], dict[str, Any]]
"""(lm-eval task, definition, what follows the form's name and a colon) → keys to replace."""

OWN_KEYS = frozenset({"form", "shots", "main_metric", "metric_names", "labels"})
"""Keys of a definition that lm-eval does not know: the form's name, its own number of examples, its main metric,
the names of its metrics where not every filter goes with every metric, and the labels of a classification."""

_FORMS: dict[str, Form] = {}


def register(name: str) -> Callable[[Form], Form]:
    """Make a form known by this name."""

    def keep(form: Form) -> Form:
        _FORMS[name] = form
        return form

    return keep


def names() -> tuple[str, ...]:
    """Return the names of all forms."""
    return tuple(sorted(_FORMS))


def rewrite(spec: str, task: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a task in another form; ``spec`` is ``form`` or ``form:argument``."""
    name, _, argument = spec.partition(":")
    if name not in _FORMS:
        known = ", ".join(names()) or "none"
        raise TaskError(f"no prompt form {name!r} (asked for by {config.get('task')}:{spec})", hint=f"forms: {known}")
    return {**config, **_FORMS[name](task, config, argument), "form": spec}


from potentia.tasks.forms import bose as _bose  # noqa: E402  (registers its forms)
from potentia.tasks.forms import multiple_choice as _multiple_choice  # noqa: E402
