"""Prompt forms of multiple choice.

Two ask for the same knowledge, with and without the skill of picking a letter (Training on the test task, section 3.2):

- ``choice`` lists the options with letters in the prompt and scores the letters, as lm-eval's MMLU does;
- ``cloze`` does not list the options and scores their texts, as lm-eval's ARC does.

A number after the form draws that many options of every question, the right one among them (``mmlu_pro:choice:4``,
appendix E); a second number is the seed of the draw (``mmlu_pro:choice:4:7``).

Two are from the paper on BOSE:

- ``option_ppl`` (table 5) lists the options; the likeliest letter wins.
- ``blank_ppl`` (table 6) does not list them; the completed text of the lowest perplexity wins. ``blank_ppl:option``
  takes the perplexity of the option alone. It is per token, or per character (``blank_ppl:character``).

A form reads the bare question, the options and the right answer of a document from the task's own prompt and choices
(``AskedQuestion``), since it cannot know the names of the columns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import numpy as np

from potentia.errors import TaskError
from potentia.tasks.forms import (
    DefinitionChanges,
    DocumentColumns,
    FormField,
    HarnessTask,
    TaskDefinition,
    register_form,
)
from potentia.tasks.forms.open_answers import (
    LETTERS,
    read_options,
    refuse_argument,
    scores_labels,
    strip_labels,
)

_SAMPLING_KEYS = (
    "sampler",
    "split",
    "samples",
    "process_docs",
    "fewshot_indices",
    "fewshot_delimiter",
)
_ACCURACY_METRICS = frozenset({"acc", "acc_norm", "brier_score"})
_UNKNOWN_INDEX = -1


@dataclass(frozen=True)
class AskedQuestion:
    """What one document asks, whatever its task's prompt looks like."""

    question: str  # without labels such as "Question:", and without the options
    options: tuple[str, ...]  # their texts
    gold: int  # the index of the right option; −1 where it is not known

    @property
    def letters(self) -> list[str]:
        """One letter per option."""
        return list(LETTERS[: len(self.options)])

    def write_listing(self) -> str:
        """Return the question with the options below it, each with its letter, as lm-eval writes MMLU."""
        lines = [self.question]
        for letter, text in zip(self.letters, self.options, strict=True):
            lines.append(f"{letter}. {text}")
        lines.append("Answer:")
        return "\n".join(lines)


@dataclass(frozen=True)
class OptionDraw:
    """Which options of a question are shown, and in which order."""

    limit: int = 0  # at most so many; 0 means all
    seed: int = 0
    shuffle: bool = False  # for a task whose right option is always at the same place

    def reduces(self, option_count: int) -> bool:
        """Return whether a question with this many options loses some of them."""
        return 0 < self.limit < option_count


QuestionReader = Callable[[DocumentColumns], AskedQuestion]
"""Reads what a document asks, its options drawn already."""


# --- the forms -------------------------------------------------------------------------------------------------------


@register_form("choice")
def make_choice_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``choice``: the options are listed, and their letters are scored."""
    shuffle = _has_constant_gold_index(definition)
    option_draw = _parse_option_draw(task, definition, "choice", argument, shuffle=shuffle)
    read_question = _make_lettered_question_reader(task, option_draw)
    fields = _write_question_keys(
        definition,
        read_question,
        write_prompt=lambda document: read_question(document).write_listing(),
        write_choices=lambda document: read_question(document).letters,
    )
    sampling = _keep_fewshot_sampling(definition)
    metrics = _write_accuracy_metrics(definition, "acc")
    return {**fields, **sampling, **metrics}


@register_form("cloze")
def make_cloze_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``cloze``: the options are not listed, and their texts are scored.

    A task that is asked so already keeps its own prompt.
    """
    option_draw = _parse_option_draw(task, definition, "cloze", argument)
    if _lists_options(task):
        return _write_cloze_keys(task, definition, option_draw)
    if not option_draw.limit:
        return {}
    if task.multiple_input:
        raise TaskError(
            f"{definition.get('task')} completes one sentence; its options cannot be reduced"
        )
    read_question = partial(_read_question, task, option_draw)
    fields = _write_question_keys(
        definition,
        read_question,
        write_prompt=lambda document: str(task.doc_to_text(document)),
        write_choices=lambda document: list(read_question(document).options),
    )
    sampling = _keep_fewshot_sampling(definition)
    return {**fields, **sampling, "target_delimiter": task.config.target_delimiter}


def _write_cloze_keys(
    task: HarnessTask, definition: TaskDefinition, option_draw: OptionDraw
) -> DefinitionChanges:
    """Return the keys of the form ``cloze`` for a task whose own prompt lists the options: they are left out."""
    read_question = partial(_read_question, task, option_draw)
    fields = _write_question_keys(
        definition,
        read_question,
        write_prompt=lambda document: f"Question: {read_question(document).question}\nAnswer:",
        write_choices=lambda document: list(read_question(document).options),
    )
    sampling = _keep_fewshot_sampling(definition)
    metrics = _write_accuracy_metrics(definition, "acc", "acc_norm")
    description = str(definition.get("description") or "")
    description = re.sub(r"multiple[ -]choice (?=question)", "", description, flags=re.IGNORECASE)
    return {**fields, **sampling, "description": description, **metrics}


@register_form("option_ppl")
def make_option_ppl_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``option_ppl`` (table 5): the options are listed, and the likeliest letter wins."""
    refuse_argument("option_ppl", argument)
    option_draw = OptionDraw(shuffle=_has_constant_gold_index(definition))
    read_question = _make_lettered_question_reader(task, option_draw)
    fields = _write_question_keys(
        definition,
        read_question,
        write_prompt=lambda document: f"Question: {read_question(document).write_listing()}",
        write_choices=lambda document: read_question(document).letters,
    )
    return _complete_bose_keys(task, definition, fields, "acc")


@register_form("blank_ppl")
def make_blank_ppl_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``blank_ppl`` (table 6): the completed text of the lowest perplexity wins.

    The perplexity is per token (``acc_token``), of the whole text or, with the argument ``option``, of the option after
    the question. The argument ``character`` (also ``option:character``) takes it per character (``acc_norm``), which
    does not depend on the tokenizer. ``acc`` compares the same texts by their likelihood.
    """
    argument_words = [word for word in argument.split(":") if word]
    metric = "acc_token"
    if argument_words and argument_words[-1] == "character":
        metric = "acc_norm"
        argument_words.pop()
    compared_text = ":".join(argument_words)
    read_question = partial(_read_question, task, OptionDraw())
    if compared_text in ("", "whole"):
        fields = _write_question_keys(
            definition,
            read_question,
            write_prompt=lambda document: "",
            write_choices=partial(_complete_texts, task),
        )
        fields["target_delimiter"] = ""
        return _complete_bose_keys(task, definition, fields, metric)
    if compared_text != "option":
        raise TaskError(
            f"no variant {argument!r} of blank_ppl",
            hint="blank_ppl (the whole text) or blank_ppl:option, each also with :character",
        )
    if getattr(task, "multiple_input", False):
        raise TaskError(
            f"{definition.get('task')} has its options inside the sentence, not at its end",
            hint="blank_ppl compares the whole sentences",
        )
    fields = _write_question_keys(
        definition,
        read_question,
        write_prompt=lambda document: read_question(document).question,
        write_choices=lambda document: list(read_question(document).options),
    )
    return _complete_bose_keys(task, definition, fields, metric)


def _complete_texts(task: HarnessTask, document: DocumentColumns) -> list[str]:
    """Return the question completed with each option.

    The choices of a task of sentences (winogrande) are the sentence's start, already completed; its end is added.
    """
    if task.multiple_input:
        sentence_end = f"{task.config.target_delimiter}{task.doc_to_target(document)}"
        return [
            f"{sentence_start}{sentence_end}" for sentence_start in task.doc_to_choice(document)
        ]
    asked_question = _read_question(task, OptionDraw(), document)
    return [f"{asked_question.question} {text}".strip() for text in asked_question.options]


# --- the keys of a definition ----------------------------------------------------------------------------------------


def _write_question_keys(
    definition: TaskDefinition,
    read_question: QuestionReader,
    *,
    write_prompt: Callable[[DocumentColumns], str],
    write_choices: Callable[[DocumentColumns], list[str]],
) -> DefinitionChanges:
    """Return the keys of a definition for a document's prompt, its choices, and the index of the right one."""
    return {
        "doc_to_text": FormField(write_prompt, definition),
        "doc_to_choice": FormField(write_choices, definition),
        "doc_to_target": FormField(lambda document: read_question(document).gold, definition),
        "target_delimiter": " ",
        "gen_prefix": None,
    }


def _complete_bose_keys(
    task: HarnessTask, definition: TaskDefinition, fields: DefinitionChanges, metric: str
) -> DefinitionChanges:
    """Complete the keys of a form of BOSE's: no description, accuracy as metric, examples from the training split."""
    if task.OUTPUT_TYPE != "multiple_choice":
        raise TaskError(
            f"{definition.get('task')} has no options to choose from",
            hint="light, iclip and instruct ask for open answers",
        )
    return {
        **fields,
        "description": "",
        "fewshot_config": None,
        "fewshot_split": definition.get("training_split"),
        "process_results": None,
        "metric_list": _list_mean_metrics("acc", "acc_norm"),
        "main_metric": metric,
    }


def _keep_fewshot_sampling(definition: TaskDefinition) -> DefinitionChanges:
    """Return the keys for few-shot examples: they come from where the definition draws them, but are written anew."""
    fewshot_config = definition.get("fewshot_config")
    sampling = None
    if isinstance(fewshot_config, Mapping):
        sampling = {key: fewshot_config[key] for key in fewshot_config if key in _SAMPLING_KEYS}
    return {"should_decontaminate": False, "fewshot_config": sampling}


def _write_accuracy_metrics(definition: TaskDefinition, *metrics: str) -> DefinitionChanges:
    """Return the keys for these metrics; none for a task that has other metrics (mcc, f1), which keeps its own."""
    task_metrics = {str(entry.get("metric")) for entry in definition.get("metric_list") or ()}
    if not task_metrics <= _ACCURACY_METRICS:
        return {}
    return {"metric_list": _list_mean_metrics(*metrics), "main_metric": "acc"}


def _list_mean_metrics(*metrics: str) -> list[dict[str, object]]:
    """Return lm-eval's entries for metrics that are averaged over documents."""
    return [
        {"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics
    ]


def _parse_option_draw(
    task: HarnessTask,
    definition: TaskDefinition,
    form_name: str,
    argument: str,
    *,
    shuffle: bool = False,
) -> OptionDraw:
    """Return the draw that a form's argument asks for: ``LIMIT`` or ``LIMIT:SEED``, as in ``arc_easy:choice:4:7``.

    Raise for a task that the form does not fit.
    """
    task_name = definition.get("task")
    if task.OUTPUT_TYPE != "multiple_choice":
        raise TaskError(
            f"{task_name} has no options to choose from",
            hint=f"{form_name} is a form of multiple-choice tasks",
        )
    if callable(definition.get("process_results")):
        raise TaskError(
            f"{task_name} grades its answers in its own way, which does not fit the form {form_name}"
        )
    if not argument:
        return OptionDraw(shuffle=shuffle)
    limit, _, seed = argument.partition(":")
    if not limit.isdecimal() or int(limit) < 2:
        raise TaskError(
            f"{form_name}:{argument} does not say how many options",
            hint=f"such as {task_name}:{form_name}:4",
        )
    if seed and not seed.isdecimal():
        raise TaskError(
            f"{form_name}:{argument}: the seed {seed!r} is not a whole number",
            hint=f"such as {task_name}:{form_name}:{limit}:7",
        )
    return OptionDraw(limit=int(limit), seed=int(seed or 0), shuffle=shuffle)


def _has_constant_gold_index(definition: TaskDefinition) -> bool:
    """Return whether the right option is always at the same place (in sciq the last): its letter would give it away."""
    return isinstance(definition.get("doc_to_target"), int)


# --- reading a document ----------------------------------------------------------------------------------------------


def _make_lettered_question_reader(task: HarnessTask, option_draw: OptionDraw) -> QuestionReader:
    """Return a function that reads what a document asks, and raises if there are more options than letters."""

    def read_lettered_question(document: DocumentColumns) -> AskedQuestion:
        asked_question = _read_question(task, option_draw, document)
        option_count = len(asked_question.options)
        if option_count > len(LETTERS):
            raise TaskError(
                f"{task.config.task} has a question with {option_count} options;"
                f" there are only {len(LETTERS)} letters to name them"
            )
        return asked_question

    return read_lettered_question


def _read_question(
    task: HarnessTask, option_draw: OptionDraw, document: DocumentColumns
) -> AskedQuestion:
    """Return what a document asks, read from the task's own prompt and choices, with the options drawn."""
    if task.multiple_input:
        return _draw_options(_read_sentence(task, document), option_draw)
    choices = [str(choice) for choice in task.doc_to_choice(document)]
    options = choices
    if scores_labels(task, choices):  # the choices are letters; the texts are in the prompt
        options = _find_option_column(task, document, len(choices)) or read_options(task, document)
    prompt = str(task.doc_to_text(document))
    question = strip_labels(prompt[: _find_listing_start(prompt, options)])
    gold = _find_gold_index(task.doc_to_target(document), choices)
    return _draw_options(AskedQuestion(question, tuple(options), gold), option_draw)


def _lists_options(task: HarnessTask) -> bool:
    """Return whether a task's own prompt lists the options; the first document decides."""
    if task.multiple_input:
        return False
    document = next(iter(task.task_docs))
    choices = [str(choice) for choice in task.doc_to_choice(document)]
    if scores_labels(task, choices):
        return True
    return _find_listing_start(str(task.doc_to_text(document)), choices) is not None


def _find_listing_start(prompt: str, options: Sequence[str]) -> int | None:
    """Return where a prompt begins to list these options with letters or numbers; None if it does not.

    That is the last line with "A" or "1" and the first option: an example before the question may list it too.
    """
    first_option = re.escape(options[0].strip())
    pattern = rf"^[ \t]*\(?(?:[Aa]|1)[.):]\)?[ \t]+{first_option}[ \t]*$"
    matches = list(re.finditer(pattern, prompt, re.MULTILINE))
    if not matches:
        return None
    return matches[-1].start()


def _find_option_column(
    task: HarnessTask, document: DocumentColumns, option_count: int
) -> list[str] | None:
    """Return the options from the document's column of texts that the prompt lists; None if there is none.

    A column is better than the lines of the prompt, which lose line breaks and spaces inside an option. It fits if the
    listing begins with its first text and holds all the others.
    """
    prompt = str(task.doc_to_text(document))
    for column_value in document.values():
        texts = column_value
        if isinstance(column_value, Mapping):  # ARC's {"text": […], "label": […]}
            texts = column_value.get("text")
        if not _is_list_of_texts(texts, option_count):
            continue
        start = _find_listing_start(prompt, texts)
        if start is None:
            continue
        listing = prompt[start:]
        if all(text.strip() in listing for text in texts):
            return list(texts)
    return None


def _is_list_of_texts(value: object, expected_count: int) -> TypeGuard[Sequence[str]]:
    """Return whether a value is a list of this many texts."""
    if not isinstance(value, (list, tuple)) or len(value) != expected_count:
        return False
    return all(isinstance(text, str) for text in value)


def _read_sentence(task: HarnessTask, document: DocumentColumns) -> AskedQuestion:
    """Return a sentence to complete (winogrande) as a question: the sentence with a blank, which the options fill.

    Its choices are contexts: the start of the sentence, each with another option at the end.
    """
    contexts = [str(context) for context in task.doc_to_choice(document)]
    shared_start = _find_shared_start(contexts)
    sentence = f"{shared_start}_{task.config.target_delimiter}{task.doc_to_target(document)}"
    options = tuple(context[len(shared_start) :] for context in contexts)
    gold = _find_gold_index(task.doc_to_text(document), contexts)
    return AskedQuestion(sentence.strip(), options, gold)


def _find_shared_start(contexts: Sequence[str]) -> str:
    """Return the words with which all contexts begin, and the space after them."""
    shared_start = ""
    for characters in zip(*contexts, strict=False):
        if len(set(characters)) > 1:
            break
        shared_start += characters[0]
    return shared_start[: shared_start.rfind(" ") + 1]


def _find_gold_index(target: Any, choices: Sequence[str]) -> int:
    """Return the index of the right choice, of lm-eval's target: an index, a text, or a list of these (the first)."""
    if isinstance(target, (list, tuple)):
        target = target[0] if target else None
    if target is None:
        return _UNKNOWN_INDEX
    if isinstance(target, str):
        return choices.index(target) if target in choices else _UNKNOWN_INDEX
    index = int(target)
    return index if 0 <= index < len(choices) else _UNKNOWN_INDEX


def _draw_options(asked_question: AskedQuestion, option_draw: OptionDraw) -> AskedQuestion:
    """Return a question with its options drawn: wrong ones are dropped at random down to the limit, then shuffled.

    The draw is seeded by the content of the question, so that every model gets the same options.
    """
    gold = asked_question.gold
    options = asked_question.options
    is_reduced = option_draw.reduces(len(options))
    if gold == _UNKNOWN_INDEX or not (option_draw.shuffle or is_reduced):
        return asked_question
    generator = _seed_generator(asked_question, option_draw.seed)
    indices = list(range(len(options)))
    if is_reduced:
        wrong_indices = [index for index in indices if index != gold]
        drawn_indices = generator.choice(wrong_indices, size=option_draw.limit - 1, replace=False)
        indices = sorted([gold, *drawn_indices.tolist()])
    if option_draw.shuffle:
        indices = [indices[position] for position in generator.permutation(len(indices))]
    drawn_options = tuple(options[index] for index in indices)
    return AskedQuestion(asked_question.question, drawn_options, indices.index(gold))


def _seed_generator(asked_question: AskedQuestion, seed: int) -> np.random.Generator:
    """Return a generator that depends on the seed and the question's content alone."""
    content = "\0".join([str(seed), asked_question.question, *asked_question.options])
    digest = hashlib.sha256(content.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
