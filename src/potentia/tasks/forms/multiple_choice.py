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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from potentia.errors import TaskError
from potentia.tasks.forms import FormField, register_form
from potentia.tasks.forms import open_answers as reading
from potentia.tasks.forms.open_answers import LETTERS, refuse_argument

_SAMPLING = ("sampler", "split", "samples", "process_docs", "fewshot_indices", "fewshot_delimiter")


@dataclass(frozen=True)
class AskedQuestion:
    """One document as people ask it: the bare question, the options' texts, and the right one's place (−1: unknown)."""

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
        lines = [
            f"{letter}. {text}" for letter, text in zip(self.letters, self.options, strict=True)
        ]
        return "\n".join([self.question, *lines, "Answer:"])


@dataclass(frozen=True)
class OptionDraw:
    """How options are drawn: at most ``limit`` (0: all), shuffled where the answer always has the same place."""

    limit: int = 0
    seed: int = 0
    shuffle: bool = False


Read = Callable[[Mapping[str, Any]], AskedQuestion]


def _read(task: Any, draw: OptionDraw, doc: Mapping[str, Any]) -> AskedQuestion:
    """Read question, options and answer from the task's own prompt and columns."""
    if task.multiple_input:
        return _drawn(_sentence(task, doc), draw)
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    options = choices
    if reading.scores_labels(task, choices):
        options = _listed_column(task, doc, len(choices)) or reading.read_options(task, doc)
    prompt = str(task.doc_to_text(doc))
    question = reading.strip_labels(prompt[: _listing(prompt, options)])
    return _drawn(
        AskedQuestion(question, tuple(options), _place(task.doc_to_target(doc), choices)), draw
    )


def _readable(task: Any, draw: OptionDraw) -> Read:
    """Return what reads documents whose options all have a letter."""

    def read(doc: Mapping[str, Any]) -> AskedQuestion:
        asked = _read(task, draw, doc)
        if len(asked.options) > len(LETTERS):
            raise TaskError(
                f"{task.config.task} has a question with {len(asked.options)} options, more than letters"
            )
        return asked

    return read


def _fields(
    config: Mapping[str, Any],
    read: Read,
    ask: Callable[[Any], str],
    choose: Callable[[Any], list[str]],
) -> dict[str, Any]:
    """Return how a document is asked: its prompt, what is chosen from, and the place of the right one."""
    fields = {
        "doc_to_text": ask,
        "doc_to_choice": choose,
        "doc_to_target": lambda doc: read(doc).gold,
    }
    made = {name: FormField(write, config) for name, write in fields.items()}
    return {**made, "target_delimiter": " ", "gen_prefix": None}


def _always_there(config: Mapping[str, Any]) -> bool:
    """Say whether the answer always has the same place (sciq's is the last): a letter would give it away."""
    return isinstance(config.get("doc_to_target"), int)


@register_form("choice")
def choice(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Options listed, letters scored: MMLU's form."""
    read = _readable(task, _draw(task, config, "choice", argument, shuffle=_always_there(config)))
    fields = _fields(config, read, lambda doc: read(doc).listed, lambda doc: read(doc).letters)
    return {**fields, **_kept(config), **_metrics(config, ("acc",))}


@register_form("cloze")
def cloze(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Options not listed, their texts scored: ARC's form. A task that is so already stays as it is."""
    draw = _draw(task, config, "cloze", argument)
    read = partial(_read, task, draw)
    write = partial(_fields, config, read, choose=lambda doc: list(read(doc).options))
    if _lists_options(task):
        description = str(config.get("description") or "").replace(
            "multiple choice questions", "questions"
        )
        fields = write(ask=lambda doc: f"Question: {read(doc).question}\nAnswer:")
        return {
            **fields,
            **_kept(config),
            "description": description,
            **_metrics(config, ("acc", "acc_norm")),
        }
    if not draw.limit:
        return {}
    if task.multiple_input:
        raise TaskError(
            f"{config.get('task')} completes one sentence; its options cannot be reduced"
        )
    own = write(ask=lambda doc: str(task.doc_to_text(doc)))
    return {**own, **_kept(config), "target_delimiter": task.config.target_delimiter}


@register_form("option_ppl")
def option_ppl(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 5: options listed, the likeliest letter wins."""
    refuse_argument("option_ppl", argument)
    read = _readable(task, OptionDraw(shuffle=_always_there(config)))
    fields = _fields(
        config, read, lambda doc: f"Question: {read(doc).listed}", lambda doc: read(doc).letters
    )
    return _ranked(task, config, fields, "acc")


@register_form("blank_ppl")
def blank_ppl(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 6: options not listed, the completed text of the lowest perplexity wins.

    Perplexity is per token, over the whole text or, with ``blank_ppl:option``, over the option after the question;
    ``character`` (``blank_ppl:character``, ``blank_ppl:option:character``) takes it per character, which all
    tokenizers share (``acc_norm``). ``acc`` compares the same texts by their likelihood.
    """
    words = [word for word in argument.split(":") if word]
    metric = "acc_norm" if words[-1:] == ["character"] else "acc_token"
    part = ":".join(words[:-1] if metric == "acc_norm" else words)
    read = partial(_read, task, OptionDraw())

    def whole(doc: Mapping[str, Any]) -> list[str]:
        """Complete the question with each option; a task of sentences to complete has them whole."""
        if task.multiple_input:
            end = f"{task.config.target_delimiter}{task.doc_to_target(doc)}"
            return [f"{start}{end}" for start in task.doc_to_choice(doc)]
        asked = read(doc)
        return [f"{asked.question} {text}".strip() for text in asked.options]

    if part in ("", "whole"):
        fields = _fields(config, read, lambda doc: "", whole) | {"target_delimiter": ""}
        return _ranked(task, config, fields, metric)
    if part != "option":
        hint = "blank_ppl (the whole text) or blank_ppl:option, each also with :character"
        raise TaskError(f"no variant {argument!r} of blank_ppl", hint=hint)
    if getattr(task, "multiple_input", False):
        raise TaskError(
            f"{config.get('task')} has its options inside the sentence, not at its end",
            hint="blank_ppl compares the whole sentences",
        )
    fields = _fields(
        config, read, lambda doc: read(doc).question, lambda doc: list(read(doc).options)
    )
    return _ranked(task, config, fields, metric)


def _ranked(
    task: Any, config: Mapping[str, Any], fields: dict[str, Any], metric: str
) -> dict[str, Any]:
    """Return a definition of BOSE's: no description, accuracies alone, examples from train."""
    if task.OUTPUT_TYPE != "multiple_choice":
        raise TaskError(
            f"{config.get('task')} has no options to choose from",
            hint="light, iclip and instruct ask for open answers",
        )
    more = {
        "description": "",
        "fewshot_config": None,
        "fewshot_split": config.get("training_split"),
    }
    return {
        **fields,
        **more,
        "process_results": None,
        "metric_list": _means("acc", "acc_norm"),
        "main_metric": metric,
    }


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keep from where the definition draws its examples, not how it writes them."""
    shots = config.get("fewshot_config")
    drawn = (
        {k: v for k, v in shots.items() if k in _SAMPLING} if isinstance(shots, Mapping) else None
    )
    return {"should_decontaminate": False, "fewshot_config": drawn}


def _metrics(config: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Score accuracy; a task that is judged by another measure of its labels (mcc, f1) keeps it."""
    own = {str(entry.get("metric")) for entry in config.get("metric_list") or ()}
    if not own <= {"acc", "acc_norm", "brier_score"}:
        return {}
    return {"metric_list": _means(*names), "main_metric": "acc"}


def _means(*names: str) -> list[dict[str, Any]]:
    return [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in names]


def _draw(
    task: Any, config: Mapping[str, Any], form: str, argument: str, *, shuffle: bool = False
) -> OptionDraw:
    """Check that the task has options, and read the number of options and the seed behind the form's name."""
    name = config.get("task")
    if task.OUTPUT_TYPE != "multiple_choice":
        raise TaskError(
            f"{name} has no options to choose from",
            hint=f"{form} is a form of multiple-choice tasks",
        )
    if callable(config.get("process_results")):
        raise TaskError(
            f"{name} grades its answers in its own way, which does not fit the form {form}"
        )
    limit, _, seed = argument.partition(":")
    if (
        (argument and not limit.isdecimal())
        or (seed and not seed.isdecimal())
        or limit in ("0", "1")
    ):
        raise TaskError(
            f"{form}:{argument} does not say how many options", hint=f"such as {name}:{form}:4"
        )
    return OptionDraw(int(limit or 0), int(seed or 0), shuffle)


def _lists_options(task: Any) -> bool:
    """Tell from its first document whether a task lists its options in the prompt."""
    if task.multiple_input:
        return False
    doc = next(iter(task.task_docs))
    choices = [str(choice) for choice in task.doc_to_choice(doc)]
    return (
        reading.scores_labels(task, choices)
        or _listing(str(task.doc_to_text(doc)), choices) is not None
    )


def _listing(prompt: str, options: list[str]) -> int | None:
    """Return where a prompt begins to list these options with letters or numbers, if it does."""
    first = re.escape(options[0].strip())
    found = list(
        re.finditer(rf"^[ \t]*\(?(?:[Aa]|1)[.):]\)?[ \t]+{first}[ \t]*$", prompt, re.MULTILINE)
    )
    return found[-1].start() if found else None


def _listed_column(task: Any, doc: Mapping[str, Any], count: int) -> list[str] | None:
    """Return the options from a column of the document, where one holds exactly what the prompt lists.

    A column keeps what lines cannot: options of several lines, and their spaces.
    """
    prompt = str(task.doc_to_text(doc))
    for value in doc.values():
        column = value.get("text") if isinstance(value, Mapping) else value
        if (
            isinstance(column, (list, tuple))
            and len(column) == count
            and all(isinstance(v, str) for v in column)
        ):
            start = _listing(prompt, list(column))
            if start is not None and all(text.strip() in prompt[start:] for text in column):
                return list(column)
    return None


def _sentence(task: Any, doc: Mapping[str, Any]) -> AskedQuestion:
    """Read a sentence to complete (winogrande): what its contexts share, a blank, the rest; options fill the blank."""
    contexts = [str(context) for context in task.doc_to_choice(doc)]
    same = itertools.takewhile(
        lambda characters: len(set(characters)) == 1, zip(*contexts, strict=False)
    )
    shared = "".join(characters[0] for characters in same)
    shared = shared[: shared.rfind(" ") + 1]
    whole = f"{shared}_{task.config.target_delimiter}{task.doc_to_target(doc)}".strip()
    options = tuple(context[len(shared) :] for context in contexts)
    return AskedQuestion(whole, options, _place(task.doc_to_text(doc), contexts))


def _place(gold: Any, choices: list[str]) -> int:
    if isinstance(gold, (list, tuple)):
        gold = gold[0] if gold else -1
    if isinstance(gold, str):
        return choices.index(gold) if gold in choices else -1
    return int(gold) if gold is not None and 0 <= int(gold) < len(choices) else -1


def _drawn(asked: AskedQuestion, draw: OptionDraw) -> AskedQuestion:
    """Discard wrong options at random until ``limit`` remain, in their order; the same for a document everywhere."""
    count, gold = len(asked.options), asked.gold
    if gold < 0 or not (draw.shuffle or 0 < draw.limit < count):
        return asked
    content = "\0".join([str(draw.seed), asked.question, *asked.options])
    generator = np.random.default_rng(
        int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big")
    )
    kept = list(range(count))
    if 0 < draw.limit < count:
        wrong = [i for i in kept if i != gold]
        kept = sorted(
            [gold, *(int(i) for i in generator.choice(wrong, size=draw.limit - 1, replace=False))]
        )
    if draw.shuffle:
        kept = [kept[int(i)] for i in generator.permutation(len(kept))]
    return AskedQuestion(asked.question, tuple(asked.options[i] for i in kept), kept.index(gold))
