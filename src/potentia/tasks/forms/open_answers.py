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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from potentia.errors import TaskError
from potentia.facts import benchmark
from potentia.tasks.data import as_list
from potentia.tasks.forms import (
    DefinitionChanges,
    DocumentColumns,
    FormField,
    HarnessTask,
    TaskDefinition,
    register_form,
)

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
_BOX_START = "\\boxed{"


@dataclass(frozen=True)
class Solution:
    """A worked answer: the reasoning (may be empty), and every answer that counts as right."""

    reasoning: str
    answers: tuple[str, ...]


class BoxedText(NamedTuple):
    r"""What a ``\boxed{…}`` holds, and where it starts and ends in its text."""

    content: str
    start: int
    end: int


@dataclass(frozen=True)
class _RenderedQuestion:
    """What a task's own prompt shows of a document: the bare question and the options' texts."""

    question: str
    options: list[str]


def read_question(task: HarnessTask, doc: DocumentColumns) -> str:
    """Return the question alone, without the task's labels and without listed options."""
    return _read_rendered_question(task, doc).question


def read_options(task: HarnessTask, doc: DocumentColumns) -> list[str]:
    """Return the options' texts, in the task's order."""
    return _read_rendered_question(task, doc).options


def read_solution(task: HarnessTask, doc: DocumentColumns) -> Solution:
    r"""Return reasoning and answers: divided at ``####`` or the last ``\boxed{}``, else the target is the answer."""
    targets = [str(target).strip() for target in as_list(task.doc_to_target(doc))]
    if not targets:
        targets = [""]
    text = targets[0]
    solution_column = doc.get("solution")
    if isinstance(solution_column, str) and solution_column:
        text = solution_column
    text = _CALCULATION.sub("", text).strip()
    if "####" in text:
        reasoning, _, answer = text.rpartition("####")
        return Solution(reasoning.strip(), (answer.strip(),))
    boxed = find_last_boxed(text)
    if boxed is not None:
        reasoning = f"{text[: boxed.start]}{boxed.content}{text[boxed.end :]}"
        return Solution(reasoning.strip(), (boxed.content.strip(),))
    if text != targets[0]:
        return Solution(text, tuple(targets))
    return Solution("", tuple(targets))


def find_last_boxed(text: str) -> BoxedText | None:
    r"""Return the last ``\boxed{…}`` of a text, if it has one; braces inside are balanced."""
    start = text.rfind(_BOX_START)
    if start < 0:
        return None
    content_start = start + len(_BOX_START)
    depth = 1
    for position in range(content_start, len(text)):
        character = text[position]
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        if depth == 0:
            return BoxedText(text[content_start:position], start, position + 1)
    return None


def _read_rendered_question(task: HarnessTask, doc: DocumentColumns) -> _RenderedQuestion:
    """Read question and options from the task's own prompt; refuse one that scores letters and lists no options."""
    choices: list[str] = []
    if task.config.doc_to_choice is not None:
        choices = [str(choice) for choice in task.doc_to_choice(doc)]
    prompt = str(task.doc_to_text(doc))
    if not scores_labels(task, choices):
        return _RenderedQuestion(strip_labels(prompt), choices)
    labels = [choice.strip().upper() for choice in choices]
    matches = [match for match in _LISTED.finditer(prompt) if match[1].upper() in labels]
    matches = matches[-len(labels) :]
    listed_labels = [match[1].upper() for match in matches]
    if listed_labels != labels:
        raise TaskError(
            f"{task.config.task} scores letters, but its prompt does not list the options line by line",
            hint="a form needs the options' texts",
        )
    question = strip_labels(prompt[: matches[0].start()])
    return _RenderedQuestion(question, [match[2] for match in matches])


def are_labels(choices: Sequence[str]) -> bool:
    """Return whether the options are scored by letter or number (A, B, … or 1, 2, …), not by their texts."""
    labels = [choice.strip().upper() for choice in choices]
    if len(labels) < 2:
        return False
    letters = list(LETTERS[: len(labels)])
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    return labels in (letters, numbers)


LOOKED_AT = 50  # documents that say how a task scores its options
_scores_labels_by_task: WeakKeyDictionary[HarnessTask, bool] = WeakKeyDictionary()


def scores_labels(task: HarnessTask, choices: Sequence[str]) -> bool:
    """Return whether a task scores its options by letter or number.

    The options of one document may be the texts 1, 2, 3, so that the first documents are looked at together.
    """
    if not are_labels(choices):
        return False
    if task not in _scores_labels_by_task:
        first_documents = islice(task.task_docs, LOOKED_AT)
        _scores_labels_by_task[task] = all(_has_labels(task, doc) for doc in first_documents)
    return _scores_labels_by_task[task]


def _has_labels(task: HarnessTask, doc: DocumentColumns) -> bool:
    """Return whether the choices of one document are letters or numbers."""
    return are_labels([str(choice) for choice in task.doc_to_choice(doc)])


def strip_labels(prompt: str) -> str:
    """Return a prompt without its labels, such as "Question:" before and "Answer:" after it."""
    if not prompt.endswith("\n"):
        prompt = prompt.rstrip()
    without_answer_label = _AFTER.sub("", prompt)
    return _BEFORE.sub("", without_answer_label).strip()


# --- judges ----------------------------------------------------------------------------------------------------------

FILTER = "generated"
METRIC = "math_verify"
_MATH_VERIFY = f"{METRIC}|{FILTER}"
_PARSING_SECONDS = 5


class Generated(str):
    """A whole generated answer, told apart from what the task's own filters extract."""

    __slots__ = ()


def keep_whole(
    responses: Sequence[Sequence[str]], docs: Sequence[DocumentColumns]
) -> list[Generated]:
    """Extract nothing from the answers: math-verify finds the answer itself."""
    return [Generated(answers[0]) for answers in responses]


keep_whole.fingerprint_parts = "the whole answer"  # type: ignore[attr-defined]


class BothJudges:
    """``process_results`` of a form: math-verify for whole answers, the task's own judgement for extracted ones."""

    def __init__(self, task: HarnessTask, definition: TaskDefinition) -> None:
        self._task = task
        self.fingerprint_parts = [definition.get("process_results")]  # what it takes the place of

    def __call__(self, doc: DocumentColumns, results: Sequence[Any]) -> dict[str, Any]:
        """Judge one document's answer."""
        if isinstance(results[0], Generated):
            answers = read_solution(self._task, doc).answers
            return {METRIC: float(_is_any_answer(answers, results[0]))}
        task_metrics: dict[str, Any] = self._task.process_results(doc, results)
        return task_metrics


def is_equal_answer(gold: str, generated: str) -> bool:
    r"""Return whether a generated text gives the right answer: the same ``\boxed{}`` text, or equal mathematically."""
    from math_verify import parse, verify

    boxed = find_last_boxed(generated)
    if boxed is not None and _normalise_answer(boxed.content) == _normalise_answer(gold):
        return True
    # math-verify stops runaway expressions with a signal, which only the main thread can get.
    is_main_thread = threading.current_thread() is threading.main_thread()
    timeout = _PARSING_SECONDS if is_main_thread else None
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    gold_expressions = parse(f"\\boxed{{{gold}}}", parsing_timeout=timeout)
    generated_expressions = parse(generated, parsing_timeout=timeout)
    if not gold_expressions or not generated_expressions:
        return False
    return bool(verify(gold_expressions, generated_expressions, timeout_seconds=timeout))


def verify_answer(metrics: Mapping[str, Any], gold: str, generated: str) -> float:
    """Return math-verify's verdict on a stored answer: as a form stored it, else by the answers that count as right."""
    stored_verdict = metrics.get(_MATH_VERIFY)
    if isinstance(stored_verdict, (int, float)):
        return float(stored_verdict)
    return float(_is_any_answer(gold.split(" | "), generated))


def _is_any_answer(answers: Sequence[str], generated: str) -> bool:
    """Return whether the generated text gives one of the answers that count as right."""
    return any(is_equal_answer(answer, generated) for answer in answers)


def _normalise_answer(text: str) -> str:
    """Return an answer without dollar signs, spare spaces, a full stop at its end and capitals."""
    words = text.replace("$", "").split()
    return " ".join(words).strip(" .").casefold()


def judge_by_both(task: HarnessTask, definition: TaskDefinition) -> DefinitionChanges:
    """Return the keys of a definition that report both judges; the task's own filters stay first.

    A task whose own filters look for an answer in the text keeps its main metric. One that compares the whole text, or
    that looks for the words of its own prompt, would judge every boxed answer wrong: there math-verify is the main one.
    """
    default_filter = {"name": "none", "filter": [{"function": "take_first"}]}
    task_filters = list(definition.get("filter_list") or [default_filter])
    metric_entries = definition.get("metric_list") or [{"metric": "exact_match"}]
    task_metrics = [entry for entry in metric_entries if entry.get("metric") != METRIC]
    metric_names = []
    for task_filter in task_filters:
        for entry in task_metrics:
            metric_names.append(f"{entry['metric']}|{task_filter['name']}")
    has_extraction = any(_extracts_answer(task_filter) for task_filter in task_filters)
    math_verify_metric = {"metric": METRIC, "aggregation": "mean", "higher_is_better": True}
    whole_answer_filter = {
        "name": FILTER,
        "filter": [{"function": "custom", "filter_fn": keep_whole}],
    }
    return {
        "process_results": BothJudges(task, definition),
        "metric_list": [*task_metrics, math_verify_metric],
        "metric_names": [*metric_names, _MATH_VERIFY],
        "main_metric": None if has_extraction else _MATH_VERIFY,
        "filter_list": [*task_filters, whole_answer_filter],
    }


def _extracts_answer(task_filter: Mapping[str, Any]) -> bool:
    """Return whether a filter looks for the answer in the text."""
    steps = task_filter.get("filter") or []
    return any(step.get("function") == "regex" for step in steps)


# --- BOSE's forms ----------------------------------------------------------------------------------------------------

SHOTS = 4
STOP = "Problem:"
STEPS = "let's think step by step."
INSTRUCTION = (
    "You're {expert}. Given the following question, please reason step by step "
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
# How a word in the name or the tag of a task begins, and the field of knowledge that it stands for.
_DOMAIN_WORDS = (
    ("math", r".*math|m?gsm|aime|amc|algebra|geometry|arithmetic|calculus|gaokao|asdiv|svamp"),
    ("logic", r"logi|deduction|syllog|puzzle"),
    ("medicine", r"medic|medq|medmc|pubmed|med$|clinical|anatomy"),
    ("law", r"law|legal|jurisprudence"),
    ("programming", r"code|coding|program|humaneval|mbpp|python|sql"),
    ("science", r"scien|sciq|physics|chemistry|biology|gpqa|astronomy|arc$"),
    ("history", r"histor"),
    ("economics", r"econom|financ|business"),
    ("reading comprehension", r"drop$|squad|coqa|quac|reading"),
    ("general knowledge", r"trivia|nq$|webqs|knowledge"),
    ("reasoning", r"bbh|reason|musr"),
    ("translation", r"translat|wmt"),
)


DocumentWriter = Callable[[HarnessTask, DocumentColumns], str]
"""What writes the prompt or the solution of a document."""


def _write_problem(task: HarnessTask, doc: DocumentColumns, opening: str = "") -> str:
    """Table 9: write the problem and the start of its solution; section 3.1 also opens the solution itself."""
    return f"Problem: {read_question(task, doc)}\nSolution:{opening}"


def _write_solution(task: HarnessTask, doc: DocumentColumns) -> str:
    r"""Write a standardised solution: the reasoning, then "The final answer is \boxed{…}"."""
    solution = read_solution(task, doc)
    final_answer = f"The final answer is \\boxed{{{solution.answers[0]}}}"
    if not solution.reasoning:
        return final_answer
    return f"{solution.reasoning}\n{final_answer}"


def _write_solution_in_steps(task: HarnessTask, doc: DocumentColumns) -> str:
    """Write a standardised solution that opens with "let's think step by step.", as section 3.1 has it."""
    has_reasoning = bool(read_solution(task, doc).reasoning)
    separator = " " if has_reasoning else "\n"
    return f"{STEPS}{separator}{_write_solution(task, doc)}"


@register_form("light")
def light(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """Table 9: give a light instruction and no example."""
    refuse_argument("light", argument)
    return _instruct_lightly(
        task, definition, ask=_write_problem, answer=_write_solution_in_steps, shots=0
    )


@register_form("light_cot")
def light_cot(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """Section 3.1's template with an empty {cot}: open the solution with "let's think step by step."."""
    refuse_argument("light_cot", argument)
    write_opened_problem = partial(_write_problem, opening=f" {STEPS}")
    return _instruct_lightly(
        task, definition, ask=write_opened_problem, answer=_write_solution, shots=0
    )


@register_form("iclip")
def iclip(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """Table 10: put standardised examples before the light instruction.

    Behind the name may stand their number and ``fixed``: the same examples before every question.
    """
    number, _, last = argument.rpartition(":")
    is_fixed = last == "fixed"
    shots_argument = number if is_fixed else argument
    shots = _parse_shots("iclip", shots_argument, default=SHOTS, least=1)
    changes = _instruct_lightly(
        task, definition, ask=_write_problem, answer=_write_solution_in_steps, shots=shots
    )
    if is_fixed:
        changes["fixed_examples"] = True
    return changes


@register_form("instruct")
def instruct(task: HarnessTask, definition: TaskDefinition, argument: str) -> DefinitionChanges:
    """Tables 7 and 8: give the instruction that is common for instruct models, without or with examples.

    The instruction names a field of knowledge: the one behind the form (``task:instruct:chess``,
    ``task:instruct:4:chess``), else the task's.
    """
    shots_argument, domain = _split_domain(argument)
    shots = _parse_shots("instruct", shots_argument, default=0, least=0)
    changes = _ask_open_question(
        task, definition, "instruct", ask=read_question, answer=_write_solution, shots=shots
    )
    expert = _name_expert(domain or _find_domain(definition))
    changes["description"] = INSTRUCTION.format(expert=expert)
    changes["target_delimiter"] = "\n"
    return changes


def _instruct_lightly(
    task: HarnessTask,
    definition: TaskDefinition,
    *,
    ask: DocumentWriter,
    answer: DocumentWriter,
    shots: int,
) -> DefinitionChanges:
    """Ask for an open answer that ends where the next problem begins; special tokens of the task still end it too."""
    changes = _ask_open_question(task, definition, "light", ask=ask, answer=answer, shots=shots)
    generation_settings = dict(definition.get("generation_kwargs") or {})
    task_stops = as_list(generation_settings.get("until"))
    special_tokens = [text for text in task_stops if text.startswith("<")]
    generation_settings["until"] = [STOP, *special_tokens]
    changes["generation_kwargs"] = generation_settings
    return changes


def _ask_open_question(
    task: HarnessTask,
    definition: TaskDefinition,
    form: str,
    *,
    ask: DocumentWriter,
    answer: DocumentWriter,
    shots: int,
) -> DefinitionChanges:
    """Ask for an open answer; examples are drawn from train, in place of those that the definition sets aside."""
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"{task.config.task} asks no open question, which the form {form} needs",
            hint="option_ppl and blank_ppl are for multiple choice",
        )
    return {
        **judge_by_both(task, definition),
        "description": "",
        "doc_to_text": FormField(partial(ask, task), definition),
        "doc_to_target": FormField(partial(answer, task), definition),
        "doc_to_choice": None,
        "target_delimiter": " ",
        "fewshot_config": None,
        "fewshot_split": definition.get("training_split"),
        "fewshot_delimiter": "\n\n",
        "gen_prefix": None,
        "shots": shots,
    }


def _split_domain(argument: str) -> tuple[str, str]:
    """Return the number of examples and the field of knowledge that stand behind the form's name."""
    first, _, rest = argument.partition(":")
    if not first or first.isdecimal():
        return first, rest.replace("_", " ").strip()
    return rest, first.replace("_", " ").strip()


def _name_expert(domain: str) -> str:
    """Return who is asked: an expert of the field, or an expert where no field is known."""
    if not domain:
        return "an expert"
    article = "an" if domain[0].lower() in "aeiou" else "a"
    return f"{article} {domain} expert"


def _find_domain(definition: TaskDefinition) -> str:
    """Return a task's field of knowledge: by the facts, else by its name, tag and category; empty where unknown."""
    name = str(definition.get("task") or "")
    benchmark_facts = benchmark(name)
    if benchmark_facts is not None and benchmark_facts.category in _DOMAINS:
        return _DOMAINS[benchmark_facts.category]
    tags = " ".join(map(str, as_list(definition.get("tag"))))
    words = re.split(r"[^a-z]+", f"{name} {tags}".lower())
    for domain, beginnings in _DOMAIN_WORDS:
        if any(re.match(beginnings, word) for word in words):
            return domain
    return ""


def _parse_shots(form: str, argument: str, *, default: int, least: int) -> int:
    """Return how many examples stand before a question: the number behind the form's name, else its default."""
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
