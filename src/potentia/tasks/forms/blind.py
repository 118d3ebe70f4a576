"""The prompt form ``blind``: the same examples without their questions, a task's *blind twin*.

A model that is fine-tuned and tested blind sees the options (where the prompt lists them) and the template around the
question, never the question. What it scores beyond a guess comes from the answers alone: their length, their style,
words that occur only in right ones. ``blind:swapped`` shows the question of another example instead, so that the prompt
looks as usual. The form may follow another form: ``arc_easy:choice:blind``.

Which columns are the question is found by trying: the value of a column is exchanged with that of another example. If
this changes the prompt, but neither the options nor the right answer, the column is the question.
"""

from __future__ import annotations

import hashlib
import itertools
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
LENDING_EXAMPLES = 2_000  # whose questions may take the place of others


class BlindText(FormField):
    """Writes the prompt of a blind example; ``sighted_text`` writes what the example would ask otherwise."""

    def __init__(
        self,
        write: Callable[[DocumentColumns], object],
        definition: TaskDefinition,
        sighted_text: Callable[[DocumentColumns], object],
    ) -> None:
        super().__init__(write, definition)
        self.sighted_text = sighted_text


@register_form("blind")
def make_blind_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``blind``: the question is removed, or with ``swapped`` is another example's."""
    task_name = definition.get("task")
    if argument not in ("", REMOVED, SWAPPED):
        raise TaskError(
            f"no variant {argument!r} of blind",
            hint="blind removes the question, blind:swapped shows another example's",
        )
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        raise TaskError(f"{task_name} is a perplexity corpus: it has no question to remove")
    if getattr(task, "multiple_input", False):
        raise TaskError(
            f"{task_name} has its options inside the sentence: there is no question apart from them",
            hint="leave out its blind twin",
        )
    examples = list(_take_first(task.task_docs, LENDING_EXAMPLES))
    columns = find_question_columns(task, examples[:TRIED_EXAMPLES])
    if not columns:
        raise TaskError(
            f"the question of {task_name} cannot be told from its options",
            hint="put question and choices into columns of their own, or leave out its blind twin",
        )
    if argument == SWAPPED:

        def hide_question(document: DocumentColumns) -> dict[str, object]:
            lender = _choose_lender(document, examples, columns)
            return {**document, **{column: lender[column] for column in columns}}
    else:

        def hide_question(document: DocumentColumns) -> dict[str, object]:
            return {**document, **{column: _empty_value(document[column]) for column in columns}}

    write_text = task.doc_to_text
    return {
        "doc_to_text": BlindText(
            lambda document: write_text(hide_question(document)),
            definition,
            sighted_text=write_text,
        ),
        "should_decontaminate": False,
    }


def find_question_columns(
    task: HarnessTask, examples: Sequence[DocumentColumns]
) -> tuple[str, ...]:
    """Return the columns that are the question alone: they change the prompt, but neither options nor answer."""
    columns_in_prompt: dict[str, None] = {}
    columns_of_answer: set[str] = set()
    neighbours = [*examples[1:], *examples[:1]]
    for example, neighbour in zip(examples, neighbours, strict=True):
        prompt = task.doc_to_text(example)
        answer = _read_answer(task, example)
        options = _read_listed_options(task, example)
        for column in example:
            if column not in neighbour or example[column] == neighbour[column]:
                continue
            if any(text in options for text in _list_texts(example[column])):
                columns_of_answer.add(column)  # an option that the prompt lists stays in it
                continue
            exchanged = {**example, column: neighbour[column]}
            try:
                if _read_answer(task, exchanged) != answer:
                    columns_of_answer.add(column)
                elif task.doc_to_text(exchanged) != prompt:
                    columns_in_prompt[column] = None
            except (KeyError, ValueError, IndexError, TypeError):
                # a column that the other columns must fit is more than the question
                columns_of_answer.add(column)
    return tuple(column for column in columns_in_prompt if column not in columns_of_answer)


def _read_answer(task: HarnessTask, document: DocumentColumns) -> tuple[object, object]:
    """Return the options of an example, if its task has any, and its right answer."""
    choices = None
    if task.OUTPUT_TYPE == "multiple_choice":
        choices = list(task.doc_to_choice(document))
    return choices, task.doc_to_target(document)


def _read_listed_options(task: HarnessTask, document: DocumentColumns) -> set[str]:
    """Return the options that a prompt lists, of a task that scores their letters; empty for any other task."""
    if task.OUTPUT_TYPE != "multiple_choice":
        return set()
    choices = [str(choice) for choice in task.doc_to_choice(document)]
    if not scores_labels(task, choices):
        return set()
    return {option.strip() for option in read_options(task, document)}


def _list_texts(content_value: object) -> list[str]:
    """Return every text in the value of a column."""
    if isinstance(content_value, str):
        return [content_value.strip()]
    if isinstance(content_value, Mapping):
        content_value = list(content_value.values())
    if isinstance(content_value, (list, tuple)):
        return list(itertools.chain.from_iterable(map(_list_texts, content_value)))
    return []


def _empty_value(value: object) -> object:
    """Return an empty value of the same shape: "" for a text, 0 for a number, the same keys for a mapping."""
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
    document: DocumentColumns, examples: Sequence[DocumentColumns], columns: Sequence[str]
) -> DocumentColumns:
    """Return the example whose question takes the place of this document's: the same in every run, never its own."""
    question = {column: document[column] for column in columns}
    digest = hashlib.sha256(repr(sorted(question.items())).encode()).digest()
    start = int.from_bytes(digest[:8], "big")
    for offset in range(len(examples)):
        lender = examples[(start + offset) % len(examples)]
        if any(lender[column] != document[column] for column in columns):
            return lender
    raise TaskError("all examples ask the same question: no other can take its place")


def _take_first(examples: Any, count: int) -> list[dict[str, object]]:
    """Return the first examples as plain columns."""
    if hasattr(examples, "select"):
        examples = examples.select(range(min(count, len(examples)))).to_list()
    return [dict(example) for example in list(examples)[:count]]
