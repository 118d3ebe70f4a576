"""Multiple choice in two forms: ``cloze`` scores the options' texts, ``choice`` lists them and scores letters.

The same knowledge is asked with and without the skill of picking a letter (section 3.2 of Training on the test task).
``choice`` is written as lm-eval writes MMLU, ``cloze`` as it writes ARC and ``mmlu_continuation``. A number behind the
form reduces every question to that many options, the right one among them (``mmlu_pro:choice:4``, appendix E); a second
number is the seed of the draw (``mmlu_pro:choice:4:7``). Accuracy comes with the Brier score in both forms.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from potentia.errors import TaskError
from potentia.tasks.forms import reading, register
from potentia.tasks.forms.reading import LETTERS


class Template:
    """Calls ``write(task, doc)``; the fingerprint holds the writer and the task's own fields that it reads."""

    def __init__(self, write: Any, task: Any, config: Mapping[str, Any]) -> None:
        self._write, self._task = write, task
        own = [config.get(key) for key in ("doc_to_text", "doc_to_target", "doc_to_choice")]
        self.fingerprint_parts = {"template": write, "own": own}

    def __call__(self, doc: Mapping[str, Any]) -> Any:
        """Write the field for one document."""
        return self._write(self._task, doc)


_SAMPLING = ("sampler", "split", "samples", "process_docs", "fewshot_indices", "fewshot_delimiter")


@dataclass(frozen=True)
class Asked:
    """One document as people ask it: the bare question, the options' texts, and the right one's place (−1: unknown)."""

    question: str
    options: tuple[str, ...]
    gold: int


@dataclass(frozen=True)
class Draw:
    """How options are drawn: at most ``limit`` (0: all), shuffled where the answer always has the same place."""

    limit: int = 0
    seed: int = 0
    shuffle: bool = False


def read(task: Any, doc: Mapping[str, Any], draw: Draw = Draw()) -> Asked:  # noqa: B008 (frozen)
    """Read question, options and answer from the task's own prompt and columns."""
    if task.multiple_input:
        return _drawn(_sentence(task, doc), draw)
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    options = choices
    if reading.scores_labels(task, choices):
        options = _listed_column(task, doc, len(choices)) or reading.options(task, doc)
    gold = _place(task.doc_to_target(doc), choices)
    return _drawn(Asked(_question(task, doc, options), tuple(options), gold), draw)


def ask_choice(task: Any, doc: Mapping[str, Any], draw: Draw) -> str:
    """List the options under the question with letters, as lm-eval writes MMLU."""
    asked = read(task, doc, draw)
    if len(asked.options) > len(LETTERS):
        raise TaskError(f"{task.config.task} has a question with {len(asked.options)} options, more than letters")
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, asked.options, strict=False)]
    return "\n".join([asked.question, *lines, "Answer:"])


def ask_cloze(task: Any, doc: Mapping[str, Any], draw: Draw) -> str:
    """Ask without listing the options: ARC's prompt."""
    return f"Question: {read(task, doc, draw).question}\nAnswer:"


def ask_as_it_does(task: Any, doc: Mapping[str, Any], draw: Draw) -> str:
    """Ask with the task's own prompt."""
    return str(task.doc_to_text(doc))


def letters(task: Any, doc: Mapping[str, Any], draw: Draw) -> list[str]:
    """Return one letter per option."""
    return list(LETTERS[: len(read(task, doc, draw).options)])


def texts(task: Any, doc: Mapping[str, Any], draw: Draw) -> list[str]:
    """Return the options' texts."""
    return list(read(task, doc, draw).options)


def place(task: Any, doc: Mapping[str, Any], draw: Draw) -> int:
    """Return the place of the right option among those that remain."""
    return read(task, doc, draw).gold


@register("choice")
def choice(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Options listed, letters scored: MMLU's form."""
    draw = _draw(task, config, "choice", argument)
    if isinstance(config.get("doc_to_target"), int):  # sciq's answer is always the last: a letter would give it away
        draw = replace(draw, shuffle=True)
    return {**_rewritten(task, config, ask_choice, letters, draw), **_metrics(config, ("acc",))}


@register("cloze")
def cloze(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Options not listed, their texts scored: ARC's form. A task that is so already stays as it is."""
    draw = _draw(task, config, "cloze", argument)
    if not _lists_options(task):
        if not draw.limit:
            return {}
        if task.multiple_input:
            raise TaskError(f"{config.get('task')} completes one sentence; its options cannot be reduced")
        kept = _rewritten(task, config, ask_as_it_does, texts, draw)
        return {**kept, "target_delimiter": task.config.target_delimiter}
    description = str(config.get("description") or "").replace("multiple choice questions", "questions")
    asked = _rewritten(task, config, ask_cloze, texts, draw)
    return {**asked, "description": description, **_metrics(config, ("acc", "acc_norm"))}


def _rewritten(task: Any, config: Mapping[str, Any], ask: Any, choose: Any, draw: Draw) -> dict[str, Any]:
    shots = config.get("fewshot_config")
    return {
        "doc_to_text": Template(partial(ask, draw=draw), task, config),
        "doc_to_choice": Template(partial(choose, draw=draw), task, config),
        "doc_to_target": Template(partial(place, draw=draw), task, config),
        "target_delimiter": " ",
        "gen_prefix": None,
        "should_decontaminate": False,
        "fewshot_config": {k: v for k, v in shots.items() if k in _SAMPLING} if isinstance(shots, Mapping) else None,
    }


def _metrics(config: Mapping[str, Any], means: tuple[str, ...]) -> dict[str, Any]:
    """Score accuracy; a task that is judged by another measure of its labels (mcc, f1) keeps it."""
    own = {str(entry.get("metric")) for entry in config.get("metric_list") or ()}
    if not own <= {"acc", "acc_norm", "brier_score"}:
        return {}
    listed = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in means]
    return {"metric_list": listed, "main_metric": "acc"}


def _draw(task: Any, config: Mapping[str, Any], form: str, argument: str) -> Draw:
    """Check that the task has options, and read the number of options and the seed behind the form's name."""
    name = config.get("task")
    if task.OUTPUT_TYPE != "multiple_choice":
        raise TaskError(f"{name} has no options to choose from", hint=f"{form} is a form of multiple-choice tasks")
    if callable(config.get("process_results")):
        raise TaskError(f"{name} grades its answers in its own way, which does not fit the form {form}")
    limit, _, seed = argument.partition(":")
    if (argument and not limit.isdecimal()) or (seed and not seed.isdecimal()) or limit in ("0", "1"):
        raise TaskError(f"{form}:{argument} does not say how many options", hint=f"such as {name}:{form}:4")
    return Draw(int(limit or 0), int(seed or 0))


def _lists_options(task: Any) -> bool:
    """Tell from its first document whether a task lists its options in the prompt."""
    if task.multiple_input:
        return False
    doc = next(iter(task.task_docs))
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    return reading.scores_labels(task, choices) or _listing(str(task.doc_to_text(doc)), choices) is not None


def _question(task: Any, doc: Mapping[str, Any], options: list[str]) -> str:
    """Return the question without labels and without the options, where the prompt lists them."""
    prompt = str(task.doc_to_text(doc))
    start = _listing(prompt, options)
    return reading.bare(prompt if start is None else prompt[:start])


def _listing(prompt: str, options: list[str]) -> int | None:
    """Return where a prompt begins to list these options with letters or numbers, if it does."""
    first = re.escape(options[0].strip())
    found = list(re.finditer(rf"^[ \t]*\(?(?:[Aa]|1)[.):]\)?[ \t]+{first}[ \t]*$", prompt, re.MULTILINE))
    return found[-1].start() if found else None


def _listed_column(task: Any, doc: Mapping[str, Any], count: int) -> list[str] | None:
    """Return the options from a column of the document, where one holds exactly what the prompt lists.

    A column keeps what lines cannot: options of several lines, and their spaces.
    """
    prompt = str(task.doc_to_text(doc))
    for value in doc.values():
        column = value.get("text") if isinstance(value, Mapping) else value
        if isinstance(column, (list, tuple)) and len(column) == count and all(isinstance(v, str) for v in column):
            start = _listing(prompt, list(column))
            if start is not None and all(text.strip() in prompt[start:] for text in column):
                return list(column)
    return None


def _sentence(task: Any, doc: Mapping[str, Any]) -> Asked:
    """Read a sentence to complete (winogrande): what its contexts share, a blank, the rest; options fill the blank."""
    contexts = [str(context) for context in task.doc_to_choice(doc)]
    same = itertools.takewhile(lambda characters: len(set(characters)) == 1, zip(*contexts, strict=False))
    shared = "".join(characters[0] for characters in same)
    shared = shared[: shared.rfind(" ") + 1]
    rest = str(task.doc_to_target(doc))
    options = tuple(context[len(shared) :] for context in contexts)
    return Asked(
        f"{shared}_{task.config.target_delimiter}{rest}".strip(), options, _place(task.doc_to_text(doc), contexts)
    )


def _place(gold: Any, choices: list[str]) -> int:
    if isinstance(gold, (list, tuple)):
        gold = gold[0] if gold else -1
    if isinstance(gold, str):
        return choices.index(gold) if gold in choices else -1
    return int(gold) if gold is not None and 0 <= int(gold) < len(choices) else -1


def _drawn(asked: Asked, draw: Draw) -> Asked:
    """Discard wrong options at random until ``limit`` remain, in their order; the same for a document everywhere."""
    count, gold = len(asked.options), asked.gold
    if gold < 0 or not (draw.shuffle or 0 < draw.limit < count):
        return asked
    content = "\0".join([str(draw.seed), asked.question, *asked.options])
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big"))
    kept = list(range(count))
    if 0 < draw.limit < count:
        wrong = [i for i in kept if i != gold]
        kept = sorted([gold, *(int(i) for i in generator.choice(wrong, size=draw.limit - 1, replace=False))])
    if draw.shuffle:
        kept = [kept[int(i)] for i in generator.permutation(len(kept))]
    return Asked(asked.question, tuple(asked.options[i] for i in kept), kept.index(gold))
