r"""BOSE's prompts for base models and open answers: ``light`` and ``iclip`` (for multiple choice: ``blank_ppl``).

A light instruction is close to the texts that a base model was trained on (Problem, Solution, a boxed answer); ICLiP
puts standardised examples before it and stops at the next "Problem:" (section 3.1). ``instruct`` is the usual prompt
they are compared with. The templates are those of tables 7 to 10; the wording of a solution is that of section 3.1.

Names: ``gsm8k:light``, ``gsm8k:light_cot``, ``gsm8k:iclip`` (4 examples) or ``gsm8k:iclip:8``, ``gsm8k:instruct``
(none) or ``gsm8k:instruct:4``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from potentia.errors import TaskError
from potentia.facts import benchmark
from potentia.tasks.forms import Template, register
from potentia.tasks.forms.reading import judged_by_both, question, solution

SHOTS = 4
STOP = "Problem:"
STEPS = "let's think step by step."
INSTRUCTION = (
    "You're a {domain} expert. Given the following question, please reason step by step "
    "and put your final answer within \\boxed{{}}.\n"
)
_DOMAINS = {
    "Math": "math", "Med": "medicine", "PBC": "science", "CR": "commonsense reasoning", "QA": "question answering",
    "LU": "language",
}  # fmt: skip


def _problem(task: Any, doc: Mapping[str, Any], steps: str = "") -> str:
    """Table 9: the problem and the start of its solution; in section 3.1 with the first words of every solution."""
    return f"Problem: {question(task, doc)}\nSolution:{steps}"


def _worked(task: Any, doc: Mapping[str, Any], *, steps: bool = False) -> str:
    r"""Write a standardised solution: reasoning, "The final answer is \boxed{…}"; in steps as section 3.1 has it."""
    found = solution(task, doc)
    reasoning = f"{found.reasoning}\n" if found.reasoning else ""
    start = STEPS + (" " if reasoning else "\n") if steps else ""
    return f"{start}{reasoning}The final answer is \\boxed{{{found.answers[0]}}}"


@register("light")
def light(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 9: a light instruction, no example."""
    no_argument("light", argument)
    return _light(task, config, _problem, partial(_worked, steps=True), 0)


@register("light_cot")
def light_cot(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Section 3.1's template with an empty {cot}: the solution is opened with "let's think step by step."."""
    no_argument("light_cot", argument)
    return _light(task, config, partial(_problem, steps=f" {STEPS}"), _worked, 0)


@register("iclip")
def iclip(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 10: standardised examples before the light instruction."""
    return _light(task, config, _problem, partial(_worked, steps=True), _shots("iclip", argument, SHOTS, least=1))


@register("instruct")
def instruct(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Tables 7 and 8: the instruction that is common for instruct models, without or with examples."""
    asked = _open(task, config, "instruct", question, _worked, _shots("instruct", argument, 0, least=0))
    return asked | {"description": INSTRUCTION.format(domain=_domain(config)), "target_delimiter": "\n"}


def _light(task: Any, config: Mapping[str, Any], ask: Any, answer: Any, shots: int) -> dict[str, Any]:
    asked = _open(task, config, "light", ask, answer, shots)
    settings = dict(config.get("generation_kwargs") or {})
    own = settings.get("until") or []
    ends = [text for text in ([own] if isinstance(own, str) else own) if text.startswith("<")]
    return asked | {"generation_kwargs": {**settings, "until": [STOP, *ends]}}


def _open(task: Any, config: Mapping[str, Any], form: str, ask: Any, answer: Any, shots: int) -> dict[str, Any]:
    """Ask for an open answer; examples are drawn from train, in place of those that the definition sets aside."""
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"{task.config.task} asks no open question, which the form {form} needs",
            hint="option_ppl and blank_ppl are for multiple choice",
        )
    return {
        **judged_by_both(task, config),
        "description": "",
        "doc_to_text": Template(partial(ask, task), config),
        "doc_to_target": Template(partial(answer, task), config),
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
        raise TaskError(f"{form}:{argument} does not say how many examples", hint=f"such as {form}:{max(SHOTS, least)}")
    return int(argument)


def no_argument(form: str, argument: str) -> None:
    """Refuse an argument of a form that takes none."""
    if argument:
        raise TaskError(f"the form {form} takes nothing after it, not {argument!r}")
