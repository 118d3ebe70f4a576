"""Multiple choice in other forms: ``cloze`` scores the options' texts, ``choice`` lists them and scores letters.

The same knowledge is asked with and without the skill of picking a letter (section 3.2 of Training on the test task).
``choice`` is written as lm-eval writes MMLU, ``cloze`` as it writes ARC and ``mmlu_continuation``. A number behind the
form reduces every question to that many options, the right one among them (``mmlu_pro:choice:4``, appendix E); a second
number is the seed of the draw (``mmlu_pro:choice:4:7``). Accuracy comes with the Brier score in both forms.

BOSE's are ``option_ppl`` (table 5: options listed) and ``blank_ppl`` (table 6): which completed text is the likeliest,
without listing the options, by the perplexity of the whole text or, as ``blank_ppl:option``, of the option alone; per
token, or per character with ``:character`` behind it.
"""

from __future__ import annotations

import hashlib
import itertools
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
    """One document as people ask it: the bare question, the options' texts, the right one's index (−1: unknown)."""

    question: str
    options: tuple[str, ...]
    gold: int

    @property
    def letters(self) -> list[str]:
        """One letter per option."""
        return list(LETTERS[: len(self.options)])

    @property
    def listed(self) -> str:
        """The options under the question with letters, as lm-eval writes MMLU."""
        lines = [self.question]
        for letter, text in zip(self.letters, self.options, strict=True):
            lines.append(f"{letter}. {text}")
        lines.append("Answer:")
        return "\n".join(lines)


@dataclass(frozen=True)
class OptionDraw:
    """How options are drawn: at most ``limit`` (0: all), shuffled where the answer's index is always the same."""

    limit: int = 0
    seed: int = 0
    shuffle: bool = False

    def reduces(self, count: int) -> bool:
        """Return whether a question with this many options loses some of them."""
        return 0 < self.limit < count


QuestionReader = Callable[[DocumentColumns], AskedQuestion]


# --- the forms -------------------------------------------------------------------------------------------------------


@register_form("choice")
def choice(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """List the options and score their letters: MMLU's form."""
    shuffle = _has_constant_gold(definition)
    draw = _parse_draw(task, definition, "choice", argument, shuffle=shuffle)
    read_question = _make_lettered_reader(task, draw)
    fields = _write_fields(
        definition,
        read_question,
        ask=lambda doc: read_question(doc).listed,
        choose=lambda doc: read_question(doc).letters,
    )
    sampling = _keep_example_sampling(definition)
    metrics = _score_accuracy(definition, "acc")
    return {**fields, **sampling, **metrics}


@register_form("cloze")
def cloze(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """List no options and score their texts: ARC's form. A task that is so already stays as it is."""
    draw = _parse_draw(task, definition, "cloze", argument)
    if _lists_options(task):
        return _hide_options(task, definition, draw)
    if not draw.limit:
        return {}
    if task.multiple_input:
        raise TaskError(
            f"{definition.get('task')} completes one sentence; its options cannot be reduced"
        )
    read_question = partial(_read_question, task, draw)
    fields = _write_fields(
        definition,
        read_question,
        ask=lambda doc: str(task.doc_to_text(doc)),
        choose=lambda doc: list(read_question(doc).options),
    )
    sampling = _keep_example_sampling(definition)
    return {**fields, **sampling, "target_delimiter": task.config.target_delimiter}


def _hide_options(
    task: HarnessTask, definition: TaskDefinition, draw: OptionDraw
) -> DefinitionChanges:
    """Return ``cloze`` of a task whose own prompt lists its options."""
    read_question = partial(_read_question, task, draw)
    fields = _write_fields(
        definition,
        read_question,
        ask=lambda doc: f"Question: {read_question(doc).question}\nAnswer:",
        choose=lambda doc: list(read_question(doc).options),
    )
    sampling = _keep_example_sampling(definition)
    metrics = _score_accuracy(definition, "acc", "acc_norm")
    description = str(definition.get("description") or "")
    description = description.replace("multiple choice questions", "questions")
    return {**fields, **sampling, "description": description, **metrics}


@register_form("option_ppl")
def option_ppl(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """Table 5: list the options; the likeliest letter wins."""
    refuse_argument("option_ppl", argument)
    draw = OptionDraw(shuffle=_has_constant_gold(definition))
    read_question = _make_lettered_reader(task, draw)
    fields = _write_fields(
        definition,
        read_question,
        ask=lambda doc: f"Question: {read_question(doc).listed}",
        choose=lambda doc: read_question(doc).letters,
    )
    return _rank_options(task, definition, fields, "acc")


@register_form("blank_ppl")
def blank_ppl(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """Table 6: list no options; the completed text of the lowest perplexity wins.

    Perplexity is per token, over the whole text or, with ``blank_ppl:option``, over the option after the question;
    ``character`` (``blank_ppl:character``, ``blank_ppl:option:character``) takes it per character, which all
    tokenizers share (``acc_norm``). ``acc`` compares the same texts by their likelihood.
    """
    words = [word for word in argument.split(":") if word]
    metric = "acc_token"
    if words and words[-1] == "character":
        metric = "acc_norm"
        words.pop()
    compared_text = ":".join(words)
    read_question = partial(_read_question, task, OptionDraw())
    if compared_text in ("", "whole"):
        fields = _write_fields(
            definition,
            read_question,
            ask=lambda doc: "",
            choose=partial(_complete_texts, task),
        )
        fields["target_delimiter"] = ""
        return _rank_options(task, definition, fields, metric)
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
    fields = _write_fields(
        definition,
        read_question,
        ask=lambda doc: read_question(doc).question,
        choose=lambda doc: list(read_question(doc).options),
    )
    return _rank_options(task, definition, fields, metric)


def _complete_texts(task: HarnessTask, doc: DocumentColumns) -> list[str]:
    """Complete the question with each option; a task of sentences to complete already holds each sentence's start."""
    if task.multiple_input:
        sentence_end = f"{task.config.target_delimiter}{task.doc_to_target(doc)}"
        return [f"{sentence_start}{sentence_end}" for sentence_start in task.doc_to_choice(doc)]
    asked_question = _read_question(task, OptionDraw(), doc)
    return [f"{asked_question.question} {text}".strip() for text in asked_question.options]


# --- the keys of a definition ----------------------------------------------------------------------------------------


def _write_fields(
    definition: TaskDefinition,
    read_question: QuestionReader,
    *,
    ask: Callable[[DocumentColumns], str],
    choose: Callable[[DocumentColumns], list[str]],
) -> DefinitionChanges:
    """Return the keys that say how a document is asked: its prompt, its choices, and the index of the right one."""
    return {
        "doc_to_text": FormField(ask, definition),
        "doc_to_choice": FormField(choose, definition),
        "doc_to_target": FormField(lambda doc: read_question(doc).gold, definition),
        "target_delimiter": " ",
        "gen_prefix": None,
    }


def _rank_options(
    task: HarnessTask, definition: TaskDefinition, fields: DefinitionChanges, metric: str
) -> DefinitionChanges:
    """Return the keys of BOSE's forms: no description, accuracies alone, examples from the training split."""
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


def _keep_example_sampling(definition: TaskDefinition) -> DefinitionChanges:
    """Keep from where the definition draws its examples, not how it writes them."""
    fewshot_config = definition.get("fewshot_config")
    sampling = None
    if isinstance(fewshot_config, Mapping):
        sampling = {key: fewshot_config[key] for key in fewshot_config if key in _SAMPLING_KEYS}
    return {"should_decontaminate": False, "fewshot_config": sampling}


def _score_accuracy(definition: TaskDefinition, *metrics: str) -> DefinitionChanges:
    """Score accuracy; a task that is judged by another measure of its labels (mcc, f1) keeps its own."""
    task_metrics = {str(entry.get("metric")) for entry in definition.get("metric_list") or ()}
    if not task_metrics <= _ACCURACY_METRICS:
        return {}
    return {"metric_list": _list_mean_metrics(*metrics), "main_metric": "acc"}


def _list_mean_metrics(*metrics: str) -> list[dict[str, Any]]:
    """Return lm-eval's entries for metrics that are averaged over documents."""
    return [
        {"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics
    ]


def _parse_draw(
    task: HarnessTask,
    definition: TaskDefinition,
    form: str,
    argument: str,
    *,
    shuffle: bool = False,
) -> OptionDraw:
    """Check that the task has options, and read the number of options and the seed behind the form's name."""
    name = definition.get("task")
    if task.OUTPUT_TYPE != "multiple_choice":
        raise TaskError(
            f"{name} has no options to choose from",
            hint=f"{form} is a form of multiple-choice tasks",
        )
    if callable(definition.get("process_results")):
        raise TaskError(
            f"{name} grades its answers in its own way, which does not fit the form {form}"
        )
    if not argument:
        return OptionDraw(shuffle=shuffle)
    limit, _, seed = argument.partition(":")
    is_limit = limit.isdecimal() and limit not in ("0", "1")
    is_seed = not seed or seed.isdecimal()
    if not (is_limit and is_seed):
        raise TaskError(
            f"{form}:{argument} does not say how many options", hint=f"such as {name}:{form}:4"
        )
    return OptionDraw(limit=int(limit), seed=int(seed or 0), shuffle=shuffle)


def _has_constant_gold(definition: TaskDefinition) -> bool:
    """Return whether the answer's index is always the same (sciq's is the last): a letter would give it away."""
    return isinstance(definition.get("doc_to_target"), int)


# --- reading a document ----------------------------------------------------------------------------------------------


def _make_lettered_reader(task: HarnessTask, draw: OptionDraw) -> QuestionReader:
    """Return a function that reads documents, and refuses those with more options than letters."""

    def read_question(doc: DocumentColumns) -> AskedQuestion:
        asked_question = _read_question(task, draw, doc)
        count = len(asked_question.options)
        if count > len(LETTERS):
            raise TaskError(
                f"{task.config.task} has a question with {count} options, more than letters"
            )
        return asked_question

    return read_question


def _read_question(task: HarnessTask, draw: OptionDraw, doc: DocumentColumns) -> AskedQuestion:
    """Read question, options and answer from the task's own prompt and columns."""
    if task.multiple_input:
        return _draw_options(_read_sentence(task, doc), draw)
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    options = choices
    if scores_labels(task, choices):
        options = _read_option_column(task, doc, len(choices)) or read_options(task, doc)
    prompt = str(task.doc_to_text(doc))
    question = strip_labels(prompt[: _find_listing(prompt, options)])
    gold = _find_gold(task.doc_to_target(doc), choices)
    return _draw_options(AskedQuestion(question, tuple(options), gold), draw)


def _lists_options(task: HarnessTask) -> bool:
    """Return whether a task lists its options in the prompt, by its first document."""
    if task.multiple_input:
        return False
    doc = next(iter(task.task_docs))
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    if scores_labels(task, choices):
        return True
    return _find_listing(str(task.doc_to_text(doc)), choices) is not None


def _find_listing(prompt: str, options: Sequence[str]) -> int | None:
    """Return where a prompt begins to list these options with letters or numbers, if it does."""
    first_option = re.escape(options[0].strip())
    pattern = rf"^[ \t]*\(?(?:[Aa]|1)[.):]\)?[ \t]+{first_option}[ \t]*$"
    matches = list(re.finditer(pattern, prompt, re.MULTILINE))
    if not matches:
        return None
    return matches[-1].start()


def _read_option_column(task: HarnessTask, doc: DocumentColumns, count: int) -> list[str] | None:
    """Return the options from a column of the document, where one holds exactly what the prompt lists.

    A column keeps what lines cannot: options of several lines, and their spaces.
    """
    prompt = str(task.doc_to_text(doc))
    for value in doc.values():
        column = value.get("text") if isinstance(value, Mapping) else value
        if not _is_list_of_texts(column, count):
            continue
        start = _find_listing(prompt, column)
        if start is None:
            continue
        listing = prompt[start:]
        if all(text.strip() in listing for text in column):
            return list(column)
    return None


def _is_list_of_texts(column: Any, count: int) -> TypeGuard[Sequence[str]]:
    """Return whether a column holds this many texts."""
    if not isinstance(column, (list, tuple)) or len(column) != count:
        return False
    return all(isinstance(text, str) for text in column)


def _read_sentence(task: HarnessTask, doc: DocumentColumns) -> AskedQuestion:
    """Read a sentence to complete (winogrande): what its contexts share, a blank, the rest; options fill the blank."""
    contexts = [str(context) for context in task.doc_to_choice(doc)]
    shared_start = _find_shared_start(contexts)
    sentence = f"{shared_start}_{task.config.target_delimiter}{task.doc_to_target(doc)}"
    options = tuple(context[len(shared_start) :] for context in contexts)
    gold = _find_gold(task.doc_to_text(doc), contexts)
    return AskedQuestion(sentence.strip(), options, gold)


def _find_shared_start(contexts: Sequence[str]) -> str:
    """Return the words with which all contexts begin, and the space behind them."""
    columns = itertools.takewhile(
        lambda characters: len(set(characters)) == 1, zip(*contexts, strict=False)
    )
    shared_characters = "".join(characters[0] for characters in columns)
    return shared_characters[: shared_characters.rfind(" ") + 1]


def _find_gold(target: Any, choices: Sequence[str]) -> int:
    """Return the index of the right choice from lm-eval's target: an index, a text, or a list of either."""
    if isinstance(target, (list, tuple)):
        target = target[0] if target else None
    if target is None:
        return _UNKNOWN_INDEX
    if isinstance(target, str):
        return choices.index(target) if target in choices else _UNKNOWN_INDEX
    index = int(target)
    return index if 0 <= index < len(choices) else _UNKNOWN_INDEX


def _draw_options(asked_question: AskedQuestion, draw: OptionDraw) -> AskedQuestion:
    """Discard wrong options at random until ``limit`` remain, in their order; the same for a document everywhere."""
    gold = asked_question.gold
    options = asked_question.options
    is_reduced = draw.reduces(len(options))
    if gold == _UNKNOWN_INDEX or not (draw.shuffle or is_reduced):
        return asked_question
    generator = _seed_generator(asked_question, draw.seed)
    indices = list(range(len(options)))
    if is_reduced:
        wrong_indices = [index for index in indices if index != gold]
        drawn_indices = generator.choice(wrong_indices, size=draw.limit - 1, replace=False)
        indices = sorted([gold, *drawn_indices.tolist()])
    if draw.shuffle:
        indices = [indices[position] for position in generator.permutation(len(indices))]
    drawn_options = tuple(options[index] for index in indices)
    return AskedQuestion(asked_question.question, drawn_options, indices.index(gold))


def _seed_generator(asked_question: AskedQuestion, seed: int) -> np.random.Generator:
    """Return a generator that depends on the seed and the question's content alone."""
    content = "\0".join([str(seed), asked_question.question, *asked_question.options])
    digest = hashlib.sha256(content.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
