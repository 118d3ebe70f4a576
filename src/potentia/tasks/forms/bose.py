r"""BOSE's prompts for base models: ``light`` and ``iclip`` for open answers, ``blank_ppl`` for multiple choice.

A light instruction is close to the texts that a base model was trained on (Problem, Solution, a boxed answer); ICLiP
puts standardised examples before it and stops at the next "Problem:" (section 3.1). Blank-ppl asks which completed text
is the likeliest, without listing the options (section 3.2). ``instruct`` and ``option_ppl`` are the usual prompts they
are compared with. The templates are those of tables 5 to 10; the wording of a solution is that of section 3.1.

Names: ``gsm8k:light``, ``gsm8k:light_cot``, ``gsm8k:iclip`` (4 examples) or ``gsm8k:iclip:8``, ``gsm8k:instruct``
(none) or ``gsm8k:instruct:4``; ``arc_easy:option_ppl``, ``arc_easy:blank_ppl`` (perplexity of the whole text) or
``arc_easy:blank_ppl:option`` (of the option alone), per token, or per character with ``:character`` behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from potentia.errors import TaskError
from potentia.facts import benchmark
from potentia.tasks.forms import register
from potentia.tasks.forms.multiple_choice import Draw, Template, ask_choice, letters, place, read, texts
from potentia.tasks.forms.reading import judged_by_both, question, solution

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


# Open answers (tables 7 to 10)


def problem(task: Any, doc: Mapping[str, Any]) -> str:
    """Table 9: the problem, and the start of its solution."""
    return f"Problem: {question(task, doc)}\nSolution:"


def problem_with_steps(task: Any, doc: Mapping[str, Any]) -> str:
    """Section 3.1: the same with the first words of every solution, the reasoning left empty."""
    return f"{problem(task, doc)} {STEPS}"


def worked(task: Any, doc: Mapping[str, Any]) -> str:
    r"""Write a standardised solution: reasoning, then "The final answer is \boxed{…}"."""
    found = solution(task, doc)
    last = f"The final answer is \\boxed{{{found.answers[0]}}}"
    return f"{found.reasoning}\n{last}" if found.reasoning else last


def worked_in_steps(task: Any, doc: Mapping[str, Any]) -> str:
    """Write a standardised solution as section 3.1 words it."""
    gap = " " if solution(task, doc).reasoning else "\n"
    return f"{STEPS}{gap}{worked(task, doc)}"


@register("light")
def light(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 9: a light instruction, no example."""
    _no_argument("light", argument)
    return _light(task, config, problem, worked_in_steps, 0)


@register("light_cot")
def light_cot(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Section 3.1's template with an empty {cot}: the solution is opened with "let's think step by step."."""
    _no_argument("light_cot", argument)
    return _light(task, config, problem_with_steps, worked, 0)


@register("iclip")
def iclip(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 10: standardised examples before the light instruction."""
    return _light(task, config, problem, worked_in_steps, _shots("iclip", argument, SHOTS, least=1))


@register("instruct")
def instruct(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Tables 7 and 8: the instruction that is common for instruct models, without or with examples."""
    _open_ended(task, "instruct")
    return {
        **judged_by_both(task, config),
        "description": INSTRUCTION.format(domain=_domain(config)),
        "doc_to_text": Template(question, task, config),
        "doc_to_target": Template(worked, task, config),
        "target_delimiter": "\n",
        **_examples(config, _shots("instruct", argument, 0, least=0)),
    }


def _light(task: Any, config: Mapping[str, Any], ask: Any, answer: Any, shots: int) -> dict[str, Any]:
    _open_ended(task, "light")
    settings = dict(config.get("generation_kwargs") or {})
    own = settings.get("until") or []
    ends = [text for text in ([own] if isinstance(own, str) else own) if text.startswith("<")]
    return {
        **judged_by_both(task, config),
        "description": "",
        "doc_to_text": Template(ask, task, config),
        "doc_to_target": Template(answer, task, config),
        "target_delimiter": " ",
        "generation_kwargs": {**settings, "until": [STOP, *ends]},
        **_examples(config, shots),
    }


def _examples(config: Mapping[str, Any], shots: int) -> dict[str, Any]:
    """Draw examples from train, seeded and never the document itself, in place of those the definition sets aside."""
    return {
        "fewshot_config": None,
        "fewshot_split": config.get("training_split"),
        "fewshot_delimiter": "\n\n",
        "gen_prefix": None,
        "doc_to_choice": None,
        "shots": shots,
    }


# Multiple choice (tables 5 and 6)


def listed(task: Any, doc: Mapping[str, Any], draw: Draw) -> str:
    """Table 5: the question and its lettered options."""
    return f"Question: {ask_choice(task, doc, draw)}"


def asked(task: Any, doc: Mapping[str, Any], draw: Draw) -> str:
    """Table 6, the part before the option."""
    return read(task, doc, draw).question


def blanks(task: Any, doc: Mapping[str, Any], draw: Draw) -> list[str]:
    """Table 6: the question completed with each option; a task of sentences to complete has them whole."""
    if task.multiple_input:
        return [f"{start}{task.config.target_delimiter}{task.doc_to_target(doc)}" for start in task.doc_to_choice(doc)]
    found = read(task, doc, draw)
    return [f"{found.question} {text}".strip() for text in found.options]


def nothing(task: Any, doc: Mapping[str, Any], draw: Draw) -> str:
    """Stand before the whole text: no context."""
    return ""


@register("option_ppl")
def option_ppl(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 5: options listed, the likeliest letter wins."""
    _no_argument("option_ppl", argument)
    # An answer that always has the same place (sciq's is the last) would be given away by its letter.
    return _choice(
        task, config, listed, letters, " ", "acc", Draw(shuffle=isinstance(config.get("doc_to_target"), int))
    )


@register("blank_ppl")
def blank_ppl(task: Any, config: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Table 6: options not listed, the completed text of the lowest perplexity wins.

    Perplexity is per token, over the whole text or, with ``blank_ppl:option``, over the option after the question;
    ``character`` (``blank_ppl:character``, ``blank_ppl:option:character``) takes it per character, which all
    tokenizers share (``acc_norm``). ``acc`` compares the same texts by their likelihood.
    """
    words = [word for word in argument.split(":") if word]
    metric = "acc_norm" if words[-1:] == ["character"] else "acc_token"
    part = ":".join(words[:-1] if metric == "acc_norm" else words)
    if part == "option":
        if getattr(task, "multiple_input", False):
            raise TaskError(
                f"{config.get('task')} has its options inside the sentence, not at its end",
                hint="blank_ppl compares the whole sentences",
            )
        return _choice(task, config, asked, texts, " ", metric, Draw())
    if part not in ("", "whole"):
        hint = "blank_ppl (the whole text) or blank_ppl:option, each also with :character"
        raise TaskError(f"no variant {argument!r} of blank_ppl", hint=hint)
    return _choice(task, config, nothing, blanks, "", metric, Draw())


def _choice(
    task: Any, config: Mapping[str, Any], ask: Any, choose: Any, delimiter: str, metric: str, draw: Draw
) -> dict[str, Any]:
    if task.OUTPUT_TYPE != "multiple_choice":
        raise TaskError(
            f"{config.get('task')} has no options to choose from", hint="light, iclip and instruct ask for open answers"
        )
    return {
        "description": "",
        "doc_to_text": Template(partial(ask, draw=draw), task, config),
        "doc_to_choice": Template(partial(choose, draw=draw), task, config),
        "doc_to_target": Template(partial(place, draw=draw), task, config),
        "target_delimiter": delimiter,
        "fewshot_config": None,
        "fewshot_split": config.get("training_split"),
        "gen_prefix": None,
        "process_results": None,
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
        ],
        "main_metric": metric,
    }


def _open_ended(task: Any, form: str) -> None:
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"{task.config.task} asks no open question, which the form {form} needs",
            hint="option_ppl and blank_ppl are for multiple choice",
        )


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


def _no_argument(form: str, argument: str) -> None:
    if argument:
        raise TaskError(f"the form {form} takes nothing after it, not {argument!r}")
