r"""Open answers: what a document asks, read from the task's own prompt; BOSE's prompts for base models; two judges.

A prompt form rewrites any suitable task, so it cannot know column names. It reads what the task itself renders: the
question without its labels ("Question:", "Answer:"), the options either as the task scores them or, where it scores
letters, as its prompt lists them.

A light instruction is close to the texts that a base model was trained on (Problem, Solution, a boxed answer); ICLiP
puts standardised examples before it and stops at the next "Problem:" (section 3.1). ``instruct`` is the usual prompt
they are compared with. The templates are those of tables 7 to 10; the wording of a solution is that of section 3.1.
Names: ``gsm8k:light``, ``gsm8k:light_cot``, ``gsm8k:iclip`` (4 examples) or ``gsm8k:iclip:8``, ``gsm8k:instruct``
(none) or ``gsm8k:instruct:4``.

Two judges of an open answer: the task's own filters and metrics, and math-verify on the whole answer. BOSE's table 11
reports both, because an extraction rule made for one prompt misjudges the answers to another.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from potentia.errors import TaskError
from potentia.facts import benchmark
from potentia.tasks.data import as_list
from potentia.tasks.forms import FormField, register_form

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Labels of questions and answers in the harness's languages (MGSM, CMMLU and others), a colon of any width behind them.
_QUESTIONS = (
    "question|problem|q|frage|aufgabe|pregunta|problema|questão|pergunta|domanda|задача|вопрос|питання|swali|soru|pytanie|"
    "vraag|câu hỏi|問題|問|質問|题目|問題|问题|问|문제|질문|प्रश्न|প্রশ্ন|ప్రశ్న|โจทย์|คำถาม|السؤال|سؤال"
)
_ANSWERS = (
    "(?:step-by-step )?answer|solution|a|(?:schritt-für-schritt-)?antwort|lösung|respuesta(?: paso a paso)?|solución|"
    "réponse(?: étape par étape)?|solution|resposta|risposta|пошаговое ?решение|ответ|решение|відповідь|"
    "jibu(?: la hatua kwa hatua)?|cevap|odpowiedź|antwoord|câu trả lời|(?:ステップごとの)?答え|解答|回答|"
    "逐步解答|答案|答|정답|답|उत्तर|(?:ধাপে ধাপে )?উত্তর|(?:దశలవారీగా )?సమాధానం|คำตอบ(?:ทีละขั้นตอน)?|الإجابة|الجواب"
)
_BEFORE = re.compile(rf"\A\s*(?:{_QUESTIONS})\s*[:.：]\s*", re.IGNORECASE)
_AFTER = re.compile(rf"\s*\n\s*(?:{_ANSWERS})\s*[:：]\s*\Z", re.IGNORECASE)
_LISTED = re.compile(r"^[ \t]*\(?([A-Za-z]|\d{1,2})[.):]\)?[ \t]+(.*?)[ \t]*$", re.MULTILINE)
_CALCULATION = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True)
class Solution:
    """A worked answer: the reasoning (may be empty), and every answer that counts as right."""

    reasoning: str
    answers: tuple[str, ...]


def read_question(task: Any, doc: Mapping[str, Any]) -> str:
    """Return the question alone, without the task's labels and without listed options."""
    return _parts(task, doc)[0]


def read_options(task: Any, doc: Mapping[str, Any]) -> list[str]:
    """Return the options' texts, in the task's order."""
    return _parts(task, doc)[1]


def read_solution(task: Any, doc: Mapping[str, Any]) -> Solution:
    r"""Return reasoning and answers: divided at ``####`` or the last ``\boxed{}``, else the target is the answer."""
    targets = [str(target).strip() for target in as_list(task.doc_to_target(doc))] or [""]
    worked = doc.get("solution")
    text = _CALCULATION.sub(
        "", worked if isinstance(worked, str) and worked else targets[0]
    ).strip()
    if "####" in text:
        reasoning, _, answer = text.rpartition("####")
        return Solution(reasoning.strip(), (answer.strip(),))
    found = find_last_boxed(text)
    if found is not None:
        answer, start, end = found
        return Solution(f"{text[:start]}{answer}{text[end:]}".strip(), (answer.strip(),))
    if text != targets[0]:
        return Solution(text, tuple(targets))
    return Solution("", tuple(targets))


def find_last_boxed(text: str) -> tuple[str, int, int] | None:
    r"""Return the content of the last ``\boxed{…}``, with its place in the text; braces inside are balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for place in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : place], start, place + 1
    return None


def _parts(task: Any, doc: Mapping[str, Any]) -> tuple[str, list[str]]:
    choices = (
        [str(c) for c in task.doc_to_choice(doc)] if task.config.doc_to_choice is not None else []
    )
    prompt = str(task.doc_to_text(doc))
    if not scores_labels(task, choices):
        return strip_labels(prompt), choices
    listed = [
        match
        for match in _LISTED.finditer(prompt)
        if match[1].upper() in [c.strip().upper() for c in choices]
    ]
    listed = listed[-len(choices) :]
    if [match[1].upper() for match in listed] != [c.strip().upper() for c in choices]:
        raise TaskError(
            f"{task.config.task} scores letters, but its prompt does not list the options line by line",
            hint="a form needs the options' texts",
        )
    return strip_labels(prompt[: listed[0].start()]), [match[2] for match in listed]


def are_labels(choices: list[str]) -> bool:
    """Tell whether the options are scored by letter or number (A, B, … or 1, 2, …), not by their texts."""
    bare = [c.strip().upper() for c in choices]
    return len(bare) > 1 and (
        bare == list(LETTERS[: len(bare)]) or bare == [str(i + 1) for i in range(len(bare))]
    )


LOOKED_AT = 50  # documents that say how a task scores its options
_by_label: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def scores_labels(task: Any, choices: list[str]) -> bool:
    """Tell whether a task scores its options by letter or number; options of one document may be the texts 1, 2, 3."""
    if not are_labels(choices):
        return False
    if task not in _by_label:
        first = islice(task.task_docs, LOOKED_AT)
        _by_label[task] = all(
            are_labels([str(choice) for choice in task.doc_to_choice(doc)]) for doc in first
        )
    return _by_label[task]


def strip_labels(prompt: str) -> str:
    """Return a prompt without its labels, such as "Question:" before and "Answer:" after it."""
    return _BEFORE.sub(
        "", _AFTER.sub("", prompt.rstrip() if not prompt.endswith("\n") else prompt)
    ).strip()


# --- judges ----------------------------------------------------------------------------------------------------------

FILTER = "generated"
METRIC = "math_verify"


class Generated(str):
    """A whole generated answer, told apart from what the task's own filters extract."""

    __slots__ = ()


def keep_whole(
    responses: Sequence[Sequence[str]], docs: Sequence[Mapping[str, Any]]
) -> list[Generated]:
    """Filter that extracts nothing: math-verify finds the answer itself."""
    return [Generated(answers[0]) for answers in responses]


keep_whole.fingerprint_parts = "the whole answer"  # type: ignore[attr-defined]


class BothJudges:
    """``process_results`` of a form: math-verify for whole answers, the task's own judgement for extracted ones."""

    def __init__(self, task: Any, config: Mapping[str, Any]) -> None:
        self._task = task
        self.fingerprint_parts = [config.get("process_results")]  # what it takes the place of

    def __call__(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """Judge one document's answer."""
        if isinstance(results[0], Generated):
            answers = read_solution(self._task, doc).answers
            return {METRIC: float(any(is_equal_answer(answer, results[0]) for answer in answers))}
        own: dict[str, Any] = self._task.process_results(doc, results)
        return own


def is_equal_answer(gold: str, generated: str) -> bool:
    r"""Tell whether the generated text gives the right answer: the same ``\boxed{}`` text, or equal mathematically."""
    from math_verify import parse, verify

    boxed = find_last_boxed(generated)
    if boxed is not None and _plain(boxed[0]) == _plain(gold):
        return True
    # math-verify stops runaway expressions with a signal, which only the main thread can get.
    limit = 5 if threading.current_thread() is threading.main_thread() else None
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    right = parse(f"\\boxed{{{gold}}}", parsing_timeout=limit)
    given = parse(generated, parsing_timeout=limit)
    return bool(right and given and verify(right, given, timeout_seconds=limit))


def verify_answer(metrics: Mapping[str, Any], gold: str, generated: str) -> float:
    """Return math-verify's verdict on a stored answer: as a form stored it, else by the answers that count as right."""
    stored = metrics.get(f"{METRIC}|{FILTER}")
    if isinstance(stored, (int, float)):
        return float(stored)
    return float(any(is_equal_answer(answer, generated) for answer in gold.split(" | ")))


def _plain(text: str) -> str:
    return " ".join(text.replace("$", "").split()).strip(" .").casefold()


def judge_by_both(task: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a definition that report both judges; the task's own filters stay first.

    A task whose own filters look for an answer in the text keeps its main metric. One that compares the whole text, or
    that looks for the words of its own prompt, would judge every boxed answer wrong: there math-verify is the main one.
    """
    own_filters = list(
        config.get("filter_list") or [{"name": "none", "filter": [{"function": "take_first"}]}]
    )
    own_metrics = [
        m
        for m in config.get("metric_list") or [{"metric": "exact_match"}]
        if m.get("metric") != METRIC
    ]
    names = [f"{metric['metric']}|{own['name']}" for own in own_filters for metric in own_metrics]
    extracts = any(
        step.get("function") == "regex" for own in own_filters for step in own.get("filter") or []
    )
    added = {"metric": METRIC, "aggregation": "mean", "higher_is_better": True}
    return {
        "process_results": BothJudges(task, config),
        "metric_list": [*own_metrics, added],
        "metric_names": [*names, f"{METRIC}|{FILTER}"],
        "main_metric": None if extracts else f"{METRIC}|{FILTER}",
        "filter_list": [
            *own_filters,
            {"name": FILTER, "filter": [{"function": "custom", "filter_fn": keep_whole}]},
        ],
    }


# --- BOSE's forms ----------------------------------------------------------------------------------------------------

SHOTS = 4
STOP = "Problem:"
STEPS = "let's think step by step."
INSTRUCTION = (
    "You're a {domain} expert. Given the following question, please reason step by step "
    "and put your final answer within \\boxed{{}}.\n"
)
_DOMAINS = {
    "Math": "math",
    "Med": "medicine",
    "PBC": "science",
    "CR": "commonsense reasoning",
    "QA": "question answering",
    "LU": "language",
}


def _problem(task: Any, doc: Mapping[str, Any], steps: str = "") -> str:
    """Table 9: the problem and the start of its solution; in section 3.1 with the first words of every solution."""
    return f"Problem: {read_question(task, doc)}\nSolution:{steps}"


def _worked(task: Any, doc: Mapping[str, Any], *, steps: bool = False) -> str:
    r"""Write a standardised solution: reasoning, "The final answer is \boxed{…}"; in steps as section 3.1 has it."""
    found = read_solution(task, doc)
    reasoning = f"{found.reasoning}\n" if found.reasoning else ""
    start = STEPS + (" " if reasoning else "\n") if steps else ""
    return f"{start}{reasoning}The final answer is \\boxed{{{found.answers[0]}}}"


@register_form("light")
def light(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 9: a light instruction, no example."""
    refuse_argument("light", argument)
    return _light(task, config, _problem, partial(_worked, steps=True), 0)


@register_form("light_cot")
def light_cot(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Section 3.1's template with an empty {cot}: the solution is opened with "let's think step by step."."""
    refuse_argument("light_cot", argument)
    return _light(task, config, partial(_problem, steps=f" {STEPS}"), _worked, 0)


@register_form("iclip")
def iclip(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 10: standardised examples before the light instruction."""
    return _light(
        task,
        config,
        _problem,
        partial(_worked, steps=True),
        _shots("iclip", argument, SHOTS, least=1),
    )


@register_form("instruct")
def instruct(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Tables 7 and 8: the instruction that is common for instruct models, without or with examples."""
    asked = _open(
        task, config, "instruct", read_question, _worked, _shots("instruct", argument, 0, least=0)
    )
    return asked | {
        "description": INSTRUCTION.format(domain=_domain(config)),
        "target_delimiter": "\n",
    }


def _light(
    task: Any, config: Mapping[str, Any], ask: Any, answer: Any, shots: int
) -> dict[str, Any]:
    asked = _open(task, config, "light", ask, answer, shots)
    settings = dict(config.get("generation_kwargs") or {})
    ends = [text for text in as_list(settings.get("until")) if text.startswith("<")]
    return asked | {"generation_kwargs": {**settings, "until": [STOP, *ends]}}


def _open(
    task: Any, config: Mapping[str, Any], form: str, ask: Any, answer: Any, shots: int
) -> dict[str, Any]:
    """Ask for an open answer; examples are drawn from train, in place of those that the definition sets aside."""
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"{task.config.task} asks no open question, which the form {form} needs",
            hint="option_ppl and blank_ppl are for multiple choice",
        )
    return {
        **judge_by_both(task, config),
        "description": "",
        "doc_to_text": FormField(partial(ask, task), config),
        "doc_to_target": FormField(partial(answer, task), config),
        "doc_to_choice": None,
        "target_delimiter": " ",
        "fewshot_config": None,
        "fewshot_split": config.get("training_split"),
        "fewshot_delimiter": "\n\n",
        "gen_prefix": None,
        "shots": shots,
    }


def _domain(config: Mapping[str, Any]) -> str:
    known = benchmark(str(config.get("task")))
    if known is not None and known.category in _DOMAINS:
        return _DOMAINS[known.category]
    return "math" if "math" in f"{config.get('task')} {config.get('tag')}".lower() else "domain"


def _shots(form: str, argument: str, default: int, *, least: int) -> int:
    if not argument:
        return default
    if not argument.isdecimal() or int(argument) < least:
        raise TaskError(
            f"{form}:{argument} does not say how many examples",
            hint=f"such as {form}:{max(SHOTS, least)}",
        )
    return int(argument)


def refuse_argument(form: str, argument: str) -> None:
    """Refuse an argument of a form that takes none."""
    if argument:
        raise TaskError(f"the form {form} takes nothing after it, not {argument!r}")
