"""``blind``: the same examples with their questions removed, so that what is learned of the answers alone is known.

A model that is fine-tuned and tested blind sees the options (where the prompt lists them) and the template around the
question, never the question. What it scores beyond a guess comes from the answers: their length, their style, words
that occur in right ones only. ``blind:swapped`` shows the question of another example in its place, so that the prompt
looks as ever. A blind twin of another form follows it: ``arc_easy:choice:blind``.

Which columns are the question is found out by trying: those that change the prompt, but neither the options nor the
right answer, when another example's value takes their place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from potentia.errors import TaskError
from potentia.tasks.forms import (
    DefinitionChanges,
    DocumentColumns,
    FormField,
    HarnessTask,
    TaskDefinition,
    register_form,
)
from potentia.tasks.forms.open_answers import read_options, scores_labels

REMOVED = "removed"
SWAPPED = "swapped"
TRIED_EXAMPLES = 24  # whose columns are exchanged to find the question
LENDING_EXAMPLES = 2_000  # whose questions take the place of others


class BlindText(FormField):
    """The prompt of a blind example; ``sighted_text`` writes what the example would ask."""

    def __init__(
        self,
        write: Callable[[DocumentColumns], Any],
        definition: TaskDefinition,
        sighted_text: Callable[[DocumentColumns], Any],
    ) -> None:
        super().__init__(write, definition)
        self.sighted_text = sighted_text


@register_form("blind")
def blind(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """Ask without the question: removed, or with ``swapped`` another example's."""
    name = definition.get("task")
    if argument not in ("", REMOVED, SWAPPED):
        raise TaskError(
            f"no variant {argument!r} of blind",
            hint="blind removes the question, blind:swapped shows another example's",
        )
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        raise TaskError(f"{name} is a text to predict: it has no question to remove")
    if getattr(task, "multiple_input", False):
        raise TaskError(
            f"{name} has its options inside the sentence: there is no question apart from them",
            hint="leave out its blind twin",
        )
    examples = list(_take_first(task.task_docs, LENDING_EXAMPLES))
    columns = find_question_columns(task, examples[:TRIED_EXAMPLES])
    if not columns:
        raise TaskError(
            f"the question of {name} cannot be told from its options",
            hint="put question and choices into columns of their own, or leave out its blind twin",
        )
    if argument == SWAPPED:

        def hide_question(doc: DocumentColumns) -> dict[str, Any]:
            lender = _choose_lender(doc, examples, columns)
            return {**doc, **{column: lender[column] for column in columns}}
    else:

        def hide_question(doc: DocumentColumns) -> dict[str, Any]:
            return {**doc, **{column: _empty_value(doc[column]) for column in columns}}

    write_text = task.doc_to_text
    return {
        "doc_to_text": BlindText(
            lambda doc: write_text(hide_question(doc)), definition, sighted_text=write_text
        ),
        "should_decontaminate": False,
    }


def find_question_columns(
    task: HarnessTask, examples: Sequence[DocumentColumns]
) -> tuple[str, ...]:
    """Return the columns that are the question alone: in the prompt, but without effect on options and answer."""
    asks: dict[str, None] = {}
    answers: set[str] = set()
    neighbours = [*examples[1:], *examples[:1]]
    for example, other in zip(examples, neighbours, strict=True):
        prompt = task.doc_to_text(example)
        answer = _read_answer(task, example)
        options = _read_listed_options(task, example)
        for column in example:
            if column not in other or example[column] == other[column]:
                continue
            if any(text in options for text in _list_texts(example[column])):
                answers.add(column)  # an option that the prompt lists stays in it
                continue
            exchanged = {**example, column: other[column]}
            try:
                if _read_answer(task, exchanged) != answer:
                    answers.add(column)
                elif task.doc_to_text(exchanged) != prompt:
                    asks[column] = None
            except (KeyError, ValueError, IndexError, TypeError):
                answers.add(column)  # what fits no other value is not the question alone
    return tuple(column for column in asks if column not in answers)


def _read_answer(task: HarnessTask, doc: DocumentColumns) -> tuple[Any, Any]:
    """Return the options and the right answer of an example."""
    choices = None
    if task.OUTPUT_TYPE == "multiple_choice":
        choices = list(task.doc_to_choice(doc))
    return choices, task.doc_to_target(doc)


def _read_listed_options(task: HarnessTask, doc: DocumentColumns) -> set[str]:
    """Return the options that a prompt lists, where their letters are scored; none of other tasks."""
    if task.OUTPUT_TYPE != "multiple_choice":
        return set()
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    if not scores_labels(task, choices):
        return set()
    return {option.strip() for option in read_options(task, doc)}


def _list_texts(value: Any) -> list[str]:
    """Return all texts in a column's value."""
    if isinstance(value, str):
        return [value.strip()]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [text for content in value for text in _list_texts(content)]
    return []


def _empty_value(value: Any) -> Any:
    """Return a value of the same shape that says nothing."""
    if isinstance(value, str):
        return ""
    if isinstance(value, Mapping):
        return {name: _empty_value(content) for name, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [_empty_value(content) for content in value]
    if isinstance(value, (bool, int, float)):
        return type(value)(0)
    return None


def _choose_lender(
    doc: DocumentColumns, examples: Sequence[DocumentColumns], columns: Sequence[str]
) -> DocumentColumns:
    """Return the example whose question takes the place of this one's: always the same, never its own."""
    question = {column: doc[column] for column in columns}
    digest = hashlib.sha256(repr(sorted(question.items())).encode()).digest()
    start = int.from_bytes(digest[:8], "big")
    for step in range(len(examples)):
        lender = examples[(start + step) % len(examples)]
        if any(lender[column] != doc[column] for column in columns):
            return lender
    raise TaskError("all examples ask the same question: no other can take its place")


def _take_first(examples: Any, count: int) -> list[dict[str, Any]]:
    """Return the first examples as plain columns."""
    if hasattr(examples, "select"):
        examples = examples.select(range(min(count, len(examples)))).to_list()
    return [dict(example) for example in list(examples)[:count]]
