r"""Prompt forms for written (open) answers, most of them from the paper on BOSE, and how such answers are graded.

A prompt form rewrites any suitable task, so it cannot know the names of its columns. It reads what the task itself
renders: the question without its labels ("Question:", "Answer:"), and the options either as the task scores them or,
where it scores letters, as its prompt lists them.

- ``light`` is an instruction close to the texts that a base model was trained on: Problem, Solution, a boxed answer.
  ``light_cot`` also opens the solution.
- ``iclip`` puts standardised examples before the light instruction, and an answer stops at the next "Problem:"
  (section 3.1). ``gsm8k:iclip`` shows 4 examples, ``gsm8k:iclip:8`` shows 8.
- ``instruct`` is the usual instruction that these are compared with, without examples or with some
  (``gsm8k:instruct:4``).
- ``question`` writes "Question: …" and "Answer:", as "Training on the test task" does.

The templates are those of tables 7 to 10, the wording of a solution is that of section 3.1.

An open answer has two graders: the task's own filters and metrics, and math-verify on the whole answer. BOSE's table 11
reports both, because a rule made to extract answers to one prompt misreads the answers to another.
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
from potentia.facts import find_benchmark_facts
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
# The words before questions and answers in the languages of lm-eval's tasks (MGSM, CMMLU and others); a colon follows.
_QUESTION_WORDS = (
    "question|problem|q|frage|aufgabe|pregunta|problema|questão|pergunta|domanda|задача|вопрос|питання|swali|soru|pytanie|"
    "vraag|câu hỏi|問題|問|質問|题目|問題|问题|问|문제|질문|प्रश्न|প্রশ্ন|ప్రశ్న|โจทย์|คำถาม|السؤال|سؤال"
)
_ANSWER_WORDS = (
    "(?:step-by-step )?answer|solution|a|(?:schritt-für-schritt-)?antwort|lösung|respuesta(?: paso a paso)?|solución|"
    "réponse(?: étape par étape)?|solution|resposta|risposta|пошаговое ?решение|ответ|решение|відповідь|"
    "jibu(?: la hatua kwa hatua)?|cevap|odpowiedź|antwoord|câu trả lời|(?:ステップごとの)?答え|解答|回答|"
    "逐步解答|答案|答|정답|답|उत्तर|(?:ধাপে ধাপে )?উত্তর|(?:దశలవారీగా )?సమాధానం|คำตอบ(?:ทีละขั้นตอน)?|الإجابة|الجواب"
)
_QUESTION_LABEL = re.compile(rf"\A\s*(?:{_QUESTION_WORDS})\s*[:.：]\s*", re.IGNORECASE)
_ANSWER_LABEL = re.compile(rf"\s*\n\s*(?:{_ANSWER_WORDS})\s*[:：]\s*\Z", re.IGNORECASE)
_LISTED_OPTION = re.compile(r"^[ \t]*\(?([A-Za-z]|\d{1,2})[.):]\)?[ \t]+(.*?)[ \t]*$", re.MULTILINE)
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
    """What a task's own prompt shows of a document: the bare question, and the texts of its options."""

    question: str
    options: list[str]


def read_question(task: HarnessTask, document: DocumentColumns) -> str:
    """Return the question alone, without labels such as "Question:" and without listed options."""
    return _read_rendered_question(task, document).question


def read_options(task: HarnessTask, document: DocumentColumns) -> list[str]:
    """Return the options' texts, in the task's order."""
    return _read_rendered_question(task, document).options


def read_solution(task: HarnessTask, document: DocumentColumns) -> Solution:
    r"""Return a document's worked answer, of its column ``solution`` or else of its target.

    Reasoning and answer are divided at ``####`` or the last ``\boxed{}``; without these, the targets are the answers.
    """
    targets = [str(target).strip() for target in as_list(task.doc_to_target(document))]
    if not targets:
        targets = [""]
    solution = targets[0]
    solution_column = document.get("solution")
    if isinstance(solution_column, str) and solution_column:
        solution = solution_column
    solution = _CALCULATION.sub("", solution).strip()
    if "####" in solution:
        reasoning, _, answer = solution.rpartition("####")
        return Solution(reasoning.strip(), (answer.strip(),))
    boxed = find_last_boxed(solution)
    if boxed is not None:
        reasoning = f"{solution[: boxed.start]}{boxed.content}{solution[boxed.end :]}"
        return Solution(reasoning.strip(), (boxed.content.strip(),))
    if solution != targets[0]:
        return Solution(solution, tuple(targets))
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


def _read_rendered_question(task: HarnessTask, document: DocumentColumns) -> _RenderedQuestion:
    """Return question and options as the task's own prompt has them.

    Raise for a task that scores letters and does not list the options line by line.
    """
    choices: list[str] = []
    if task.config.doc_to_choice is not None:
        choices = [str(choice) for choice in task.doc_to_choice(document)]
    prompt = str(task.doc_to_text(document))
    if not scores_labels(task, choices):
        return _RenderedQuestion(strip_labels(prompt), choices)
    labels = [choice.strip().upper() for choice in choices]
    matches = [match for match in _LISTED_OPTION.finditer(prompt) if match[1].upper() in labels]
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
    """Return whether choices are the letters A, B, … or the numbers 1, 2, …, and so no texts of options."""
    labels = [choice.strip().upper() for choice in choices]
    if len(labels) < 2:
        return False
    letters = list(LETTERS[: len(labels)])
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    return labels in (letters, numbers)


SAMPLE_SIZE = 50  # documents that decide how a task scores its options
_scores_labels_by_task: WeakKeyDictionary[HarnessTask, bool] = WeakKeyDictionary()


def scores_labels(task: HarnessTask, choices: Sequence[str]) -> bool:
    """Return whether a task scores its options by letter or number, and not by their texts.

    ``choices`` are those of one document. Its options may happen to be the texts 1, 2, 3, so the first documents of the
    task must have such choices too.
    """
    if not are_labels(choices):
        return False
    if task not in _scores_labels_by_task:
        first_documents = islice(task.task_docs, SAMPLE_SIZE)
        _scores_labels_by_task[task] = all(
            _has_labels(task, document) for document in first_documents
        )
    return _scores_labels_by_task[task]


def _has_labels(task: HarnessTask, document: DocumentColumns) -> bool:
    """Return whether the choices of one document are letters or numbers."""
    return are_labels([str(choice) for choice in task.doc_to_choice(document)])


def strip_labels(prompt: str) -> str:
    """Return a prompt without its labels, such as "Question:" before and "Answer:" after it."""
    if not prompt.endswith("\n"):
        prompt = prompt.rstrip()
    without_answer_label = _ANSWER_LABEL.sub("", prompt)
    return _QUESTION_LABEL.sub("", without_answer_label).strip()


# --- graders ---------------------------------------------------------------------------------------------------------

FILTER = "generated"
METRIC = "math_verify"
_MATH_VERIFY = f"{METRIC}|{FILTER}"
_PARSING_SECONDS = 5


class WholeAnswer(str):
    """A whole generated answer; the type tells it from what the task's own filters extract."""

    __slots__ = ()


def keep_whole_answer(
    responses: Sequence[Sequence[str]], documents: Sequence[DocumentColumns]
) -> list[WholeAnswer]:
    """Return each document's answer whole, as a filter of lm-eval: math-verify finds the result in it."""
    return [WholeAnswer(answers[0]) for answers in responses]


keep_whole_answer.fingerprint_parts = "the whole answer"  # type: ignore[attr-defined]


class BothGraders:
    """``process_results`` of a form: math-verify grades whole answers, the task itself what its filters extract."""

    def __init__(self, task: HarnessTask, definition: TaskDefinition) -> None:
        self._task = task
        # it calls the task's own process_results, which the fingerprint must have
        self.fingerprint_parts = [definition.get("process_results")]

    def __call__(self, document: DocumentColumns, results: Sequence[object]) -> dict[str, object]:
        """Return the metrics of one document's answer under one filter."""
        if isinstance(results[0], WholeAnswer):
            answers = read_solution(self._task, document).answers
            return {METRIC: float(_gives_any_answer(answers, results[0]))}
        task_metrics: dict[str, object] = self._task.process_results(document, results)
        return task_metrics


def gives_answer(gold: str, generated: str) -> bool:
    r"""Return whether a generated text gives the right answer: the same ``\boxed{}`` text, or equal mathematically."""
    from math_verify import parse, verify

    boxed = find_last_boxed(generated)
    if boxed is not None and _normalise_answer(boxed.content) == _normalise_answer(gold):
        return True
    # math-verify stops endless parsing with a signal, which only the main thread can receive.
    is_main_thread = threading.current_thread() is threading.main_thread()
    timeout = _PARSING_SECONDS if is_main_thread else None
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    gold_expressions = parse(f"\\boxed{{{gold}}}", parsing_timeout=timeout)
    generated_expressions = parse(generated, parsing_timeout=timeout)
    if not gold_expressions or not generated_expressions:
        return False
    return bool(verify(gold_expressions, generated_expressions, timeout_seconds=timeout))


def verify_answer(metrics: Mapping[str, object], gold: str, generated: str) -> float:
    """Return 1.0 or 0.0, math-verify's grade of a stored answer: the one stored in its metrics, else a new one."""
    stored_grade = metrics.get(_MATH_VERIFY)
    if isinstance(stored_grade, (int, float)):
        return float(stored_grade)
    return float(_gives_any_answer(gold.split(" | "), generated))


def _gives_any_answer(answers: Sequence[str], generated: str) -> bool:
    """Return whether a generated text gives one of these answers."""
    return any(gives_answer(answer, generated) for answer in answers)


def _normalise_answer(text: str) -> str:
    """Return an answer in lower case, without dollar signs, extra spaces and dots at its ends."""
    words = text.replace("$", "").split()
    return " ".join(words).strip(" .").casefold()


def write_grading_keys(task: HarnessTask, definition: TaskDefinition) -> DefinitionChanges:
    """Return the keys of a definition for both graders; the task's own filters stay first.

    A task keeps its main metric if its filter finds a boxed answer in the text. A task that compares the whole text, or
    looks for words of its own prompt, would grade every boxed answer as wrong: there math-verify is the main metric.
    """
    default_filter = {"name": "none", "filter": [{"function": "take_first"}]}
    task_filters = list(definition.get("filter_list") or [default_filter])
    metric_entries = definition.get("metric_list") or [{"metric": "exact_match"}]
    task_metrics = [entry for entry in metric_entries if entry.get("metric") != METRIC]
    metric_names = []
    for task_filter in task_filters:
        for entry in task_metrics:
            metric_names.append(f"{entry['metric']}|{task_filter['name']}")
    math_verify_metric = {"metric": METRIC, "aggregation": "mean", "higher_is_better": True}
    whole_answer_filter = {
        "name": FILTER,
        "filter": [{"function": "custom", "filter_fn": keep_whole_answer}],
    }
    return {
        "process_results": BothGraders(task, definition),
        "metric_list": [*task_metrics, math_verify_metric],
        "metric_names": [*metric_names, _MATH_VERIFY],
        "main_metric": _choose_main_metric(definition, task_filters, metric_names),
        "filter_list": [*task_filters, whole_answer_filter],
    }


def _choose_main_metric(
    definition: TaskDefinition,
    task_filters: Sequence[Mapping[str, Any]],
    metric_names: Sequence[str],
) -> str | None:
    """Return the main metric of a form whose answers are boxed; None keeps the task's own.

    The task's own stays if its filter finds boxed answers, else another of its metrics does whose filter finds them,
    else it is math-verify.
    """
    usable_metrics = []
    for task_filter in task_filters:
        if _reads_boxed_answers(task_filter):
            ending = f"|{task_filter['name']}"
            usable_metrics += [name for name in metric_names if name.endswith(ending)]
    benchmark_facts = find_benchmark_facts(str(definition.get("task") or ""))
    usual_metric = benchmark_facts.metric if benchmark_facts is not None else ""
    if (usual_metric or metric_names[0]) in usable_metrics:
        return None
    return usable_metrics[0] if usable_metrics else _MATH_VERIFY


def _reads_boxed_answers(task_filter: Mapping[str, Any]) -> bool:
    """Return whether a filter's regular expression finds a boxed answer where no words of its own prompt are near."""
    for filter_step in task_filter.get("filter") or []:
        if filter_step.get("function") == "regex":
            pattern = re.compile(str(filter_step.get("regex_pattern") or ""))
            return any(_finds_answer(pattern, answer) for answer in ("7", "yes", "True", "A"))
    return False


def _finds_answer(pattern: re.Pattern[str], answer: str) -> bool:
    """Return whether a pattern finds exactly this answer in a sentence with it in a box."""
    for match in pattern.findall(f"The final answer is \\boxed{{{answer}}}"):
        groups = match if isinstance(match, tuple) else (match,)
        if answer in groups:
            return True
    return False


# --- BOSE's forms ----------------------------------------------------------------------------------------------------

SHOTS = 4  # examples of iclip unless its argument says otherwise
STOP = "Problem:"
STEPS = "let's think step by step."
INSTRUCTION = (
    "You're {expert}. Given the following question, please reason step by step "
    "and put your final answer within \\boxed{{}}.\n"
)
# The field of knowledge that ``instruct`` names: by the category of the facts on benchmarks,
_DOMAINS = {
    "Math": "math",
    "Med": "medicine",
    "PBC": "science",
    "CR": "commonsense reasoning",
    "QA": "question answering",
    "LU": "language",
}
# or by how a word in the name or tag of a task begins; the first match counts.
_DOMAIN_WORDS = (
    (
        "math",
        r".*math|.*gsm|hrm$|aime|amc|putnam|algebra|geometry|arithmetic|calculus|gaokao|asdiv|svamp|statistics",
    ),
    ("logic", r"logi|deduction|syllog|puzzle|lsat$"),
    (
        "medicine",
        r"medi[cq]|.*medq|.*medmc|medtext|meddialog|mimic|meqsum|pubmed|med$|clinical|anatomy|virology",
    ),
    ("medicine", r"health|nurs|doctor|pharm|nutrition|careqa"),
    ("law", r"law|legal|jurisprudence|kbl$|statut"),
    ("computer science", r"computer|cybersecurity|machine$"),
    ("programming", r"code(?!name)|coding|program|humaneval|mbpp|python|sql|cruxeval|jsonschema"),
    ("engineering", r"engineer|electrical|manufactur"),
    ("psychology", r"psycho"),
    ("philosophy", r"philosoph|moral|ethic"),
    ("geography", r"geograph"),
    ("economics", r".*econom|financ|business|account|marketing|management|taxation|jfinqa"),
    ("social science", r"social|sociolog|politic"),
    ("history", r"histor"),
    ("science", r"scien|sciq|physics|chemistry|biology|gpqa|astronomy|arc$"),
    (
        "reading comprehension",
        r"drop$|.*squad|.*xquad|mlqa|tydiqa|coqa|quac|reading|qasper|babilong|longbook",
    ),
    ("summarization", r".*sum$|.*summ?ar|xlsum|cnn"),
    ("general knowledge", r"trivia|nq$|webqs|knowledge|truthfulqa|jaqket|miscell|facts"),
    ("reasoning", r"bbh|bigbench|reason|musr|babi$"),
    ("planning", r"acp$"),
    ("physics of everyday life", r"piqa"),
    ("translation", r"translat|wmt|flores|salt$|transliteration"),
)


DocumentWriter = Callable[[HarnessTask, DocumentColumns], str]
"""Writes the prompt or the solution of a document."""


def _write_problem(task: HarnessTask, document: DocumentColumns, opening: str = "") -> str:
    """Return the problem and the start of its solution (table 9); ``opening`` begins the solution itself."""
    return f"Problem: {read_question(task, document)}\nSolution:{opening}"


def _write_solution(task: HarnessTask, document: DocumentColumns) -> str:
    r"""Return a standardised solution: the reasoning, then "The final answer is \boxed{…}"."""
    solution = read_solution(task, document)
    final_answer = f"The final answer is \\boxed{{{solution.answers[0]}}}"
    if not solution.reasoning:
        return final_answer
    return f"{solution.reasoning}\n{final_answer}"


def _write_solution_in_steps(task: HarnessTask, document: DocumentColumns) -> str:
    """Return a standardised solution that begins with "let's think step by step." (section 3.1)."""
    has_reasoning = bool(read_solution(task, document).reasoning)
    separator = " " if has_reasoning else "\n"
    return f"{STEPS}{separator}{_write_solution(task, document)}"


@register_form("light")
def make_light_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``light`` (table 9): a light instruction and no example."""
    refuse_argument("light", argument)
    return _write_light_keys(
        task,
        definition,
        write_question=_write_problem,
        write_answer=_write_solution_in_steps,
        shots=0,
    )


@register_form("light_cot")
def make_light_cot_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``light_cot``: as ``light``, but the prompt opens the solution.

    It opens with "let's think step by step.", as the template of section 3.1 does with an empty {cot}.
    """
    refuse_argument("light_cot", argument)
    write_opened_problem = partial(_write_problem, opening=f" {STEPS}")
    return _write_light_keys(
        task, definition, write_question=write_opened_problem, write_answer=_write_solution, shots=0
    )


@register_form("iclip")
def make_iclip_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``iclip`` (table 10): standardised examples before the light instruction.

    The argument is their number and perhaps ``fixed`` (``iclip:8:fixed``): the same examples before every question.
    """
    number_before_fixed, _, last_argument = argument.rpartition(":")
    is_fixed = last_argument == "fixed"
    shots_argument = number_before_fixed if is_fixed else argument
    shots = _parse_shots("iclip", shots_argument, default=SHOTS, least=1)
    changes = _write_light_keys(
        task,
        definition,
        write_question=_write_problem,
        write_answer=_write_solution_in_steps,
        shots=shots,
    )
    if is_fixed:
        changes["fixed_examples"] = True
    return changes


@register_form("question")
def make_question_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``question``: "Question: …", then "Answer:" on the next line.

    "Training on the test task" does so for its data of mathematics. Nothing stands between the colon and the answer, as
    in the authors' code.
    """
    refuse_argument("question", argument)
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"{task.config.task} is not answered by writing, which the form question needs",
            hint="choice and cloze are for multiple choice",
        )
    return {
        "description": "",
        "doc_to_text": FormField(partial(_write_labelled_question, task), definition),
        "target_delimiter": "",
    }


def _write_labelled_question(task: HarnessTask, document: DocumentColumns) -> str:
    return f"Question: {strip_labels(str(task.doc_to_text(document)))}\nAnswer:"


@register_form("instruct")
def make_instruct_form(
    task: HarnessTask, definition: TaskDefinition, argument: str
) -> DefinitionChanges:
    """Return the keys of the form ``instruct`` (tables 7 and 8): the usual instruction for instruct models.

    It names a field of knowledge: the one in the argument (``task:instruct:chess``, ``task:instruct:4:chess``), else
    the task's, by the facts on benchmarks or by its name.
    """
    shots_argument, domain = _split_domain(argument)
    shots = _parse_shots("instruct", shots_argument, default=0, least=0)
    changes = _write_open_keys(
        task,
        definition,
        "instruct",
        write_question=read_question,
        write_answer=_write_solution,
        shots=shots,
    )
    expert = _name_expert(domain or _find_domain(definition))
    changes["description"] = INSTRUCTION.format(expert=expert)
    changes["target_delimiter"] = "\n"
    generation_settings = dict(definition.get("generation_kwargs") or {})
    if "until" in generation_settings:
        # A line break or a comma would end the steps that the instruction asks for.
        task_stops = as_list(generation_settings["until"])
        generation_settings["until"] = [text for text in task_stops if re.search(r"\w", text)]
        changes["generation_kwargs"] = generation_settings
    return changes


def _write_light_keys(
    task: HarnessTask,
    definition: TaskDefinition,
    *,
    write_question: DocumentWriter,
    write_answer: DocumentWriter,
    shots: int,
) -> DefinitionChanges:
    """Return the keys of BOSE's light instructions: an answer ends where the next problem begins.

    It also ends at the special tokens (``<…>``) at which the task's own answers end.
    """
    changes = _write_open_keys(
        task,
        definition,
        "light",
        write_question=write_question,
        write_answer=write_answer,
        shots=shots,
    )
    generation_settings = dict(definition.get("generation_kwargs") or {})
    task_stops = as_list(generation_settings.get("until"))
    special_tokens = [text for text in task_stops if text.startswith("<")]
    generation_settings["until"] = [STOP, *special_tokens]
    changes["generation_kwargs"] = generation_settings
    return changes


def _write_open_keys(
    task: HarnessTask,
    definition: TaskDefinition,
    form_name: str,
    *,
    write_question: DocumentWriter,
    write_answer: DocumentWriter,
    shots: int,
) -> DefinitionChanges:
    """Return the keys of a form that asks for an open answer.

    Examples are drawn from train, in place of those that the definition sets aside.
    """
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"{task.config.task} asks no open question, which the form {form_name} needs",
            hint="option_ppl and blank_ppl are for multiple choice",
        )
    return {
        **write_grading_keys(task, definition),
        "description": "",
        "doc_to_text": FormField(partial(write_question, task), definition),
        "doc_to_target": FormField(partial(write_answer, task), definition),
        "doc_to_choice": None,
        "target_delimiter": " ",
        "fewshot_config": None,
        "fewshot_split": definition.get("training_split"),
        "fewshot_delimiter": "\n\n",
        "gen_prefix": None,
        "shots": shots,
    }


def add_domain(form: str, category: str) -> str:
    """Return a form with a task's category as its field of knowledge, if it is ``instruct`` and names none itself."""
    form_name, _, argument = form.partition(":")
    if form_name != "instruct" or _split_domain(argument)[1]:
        return form
    domain = _DOMAINS.get(category, category)
    return ":".join(part for part in (form_name, argument, domain) if part)


def _split_domain(argument: str) -> tuple[str, str]:
    """Return the number of examples and the field of knowledge in an argument, whichever comes first."""
    first_part, _, other_part = argument.partition(":")
    if not first_part or first_part.isdecimal():
        return first_part, other_part.replace("_", " ").strip()
    return other_part, first_part.replace("_", " ").strip()


def _name_expert(domain: str) -> str:
    """Return who the prompt says is asked: an expert of the field, or just an expert if the field is unknown."""
    if not domain:
        return "an expert"
    article = "an" if domain[0].lower() in "aeiou" else "a"
    return f"{article} {domain} expert"


def _find_domain(definition: TaskDefinition) -> str:
    """Return a task's field of knowledge, by the facts on benchmarks, else by its name and tags; empty if unknown."""
    task_name = str(definition.get("task") or "")
    benchmark_facts = find_benchmark_facts(task_name)
    if benchmark_facts is not None and benchmark_facts.category in _DOMAINS:
        return _DOMAINS[benchmark_facts.category]
    tags = " ".join(map(str, as_list(definition.get("tag"))))
    words = re.split(r"[^a-z]+", f"{task_name} {tags}".lower())
    for domain, beginnings in _DOMAIN_WORDS:
        if any(re.match(beginnings, word) for word in words):
            return domain
    return ""


def _parse_shots(form_name: str, argument: str, *, default: int, least: int) -> int:
    """Return how many examples a form's argument asks for, at least ``least``; an empty argument gives the default."""
    if not argument:
        return default
    if not argument.isdecimal() or int(argument) < least:
        raise TaskError(
            f"{form_name}:{argument} does not say how many examples",
            hint=f"such as {form_name}:{max(SHOTS, least)}",
        )
    return int(argument)


def refuse_argument(form_name: str, argument: str) -> None:
    """Raise if a form that takes no argument has one."""
    if argument:
        raise TaskError(f"the form {form_name} takes nothing after it, not {argument!r}")
