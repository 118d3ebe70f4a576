"""The capabilities of table 1: which of 42 tasks are of problem-solving, language, knowledge, comprehension, reasoning.

The tasks have the paper's names in ``printed.json``; those of lm-eval that are spelled otherwise stand beside them.
"""

from __future__ import annotations

from functools import cache

from potentia.facts import find_benchmark_facts
from potentia.papers.printed import read_printed_numbers
from potentia.values.protocol import TaskName


def find_capability(task: str) -> str | None:
    """Return the capability that table 1 gives a task of lm-eval; None where it is not in the table."""
    base_task = TaskName(task).base
    facts = find_benchmark_facts(base_task)
    names = [base_task]
    if facts is not None and facts.name:
        names.append(facts.name)
    capability_by_name = _read_capabilities()
    for name in names:
        capability = capability_by_name.get(_simplify(name))
        if capability is not None:
            return capability
    return None


@cache
def _read_capabilities() -> dict[str, str]:
    """Return the capability of every task of table 1, by its simplified names."""
    printed = read_printed_numbers("proxy_tasks")
    names_in_lm_eval: dict[str, list[str]] = printed["TABLE_1_IN_LM_EVAL"]
    capability_by_name = {}
    for capability, paper_names in printed["TABLE_1"].items():
        for paper_name in paper_names:
            for name in (paper_name, *names_in_lm_eval.get(paper_name, ())):
                capability_by_name[_simplify(name)] = capability
    return capability_by_name


def _simplify(name: str) -> str:
    """Return the letters and digits of a name in lower case, as papers and lm-eval spell names differently."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())
