r"""Two judges of an open answer: the task's own filters and metrics, and math-verify on the whole answer.

BOSE's table 11 reports both, because an extraction rule made for one prompt misjudges the answers to another.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from potentia.tasks.forms.reading import last_boxed, solution

FILTER = "generated"
METRIC = "math_verify"


class Generated(str):
    """A whole generated answer, told apart from what the task's own filters extract."""

    __slots__ = ()


def keep_whole(responses: Sequence[Sequence[str]], docs: Sequence[Mapping[str, Any]]) -> list[Generated]:
    """Filter that extracts nothing: math-verify finds the answer itself."""
    return [Generated(answers[0]) for answers in responses]


class BothJudges:
    """``process_results`` of a form: math-verify for whole answers, the task's own judgement for extracted ones."""

    def __init__(self, task: Any, config: Mapping[str, Any]) -> None:
        self._task = task
        # What the fingerprint must know of the definition that this form replaces.
        self.fingerprint_parts = {
            "judge": math_equal,
            "own": [config.get(key) for key in ("doc_to_text", "doc_to_target", "doc_to_choice", "process_results")],
        }

    def __call__(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """Judge one document's answer."""
        if isinstance(results[0], Generated):
            answers = solution(self._task, doc).answers
            return {METRIC: float(any(math_equal(answer, results[0]) for answer in answers))}
        own: dict[str, Any] = self._task.process_results(doc, results)
        return own


def math_equal(gold: str, generated: str) -> bool:
    r"""Tell whether the generated text gives the right answer: the same ``\boxed{}`` text, or equal mathematically."""
    from math_verify import parse, verify

    boxed = last_boxed(generated)
    if boxed is not None and _plain(boxed[0]) == _plain(gold):
        return True
    # math-verify stops runaway expressions with a signal, which only the main thread can get.
    limit = 5 if threading.current_thread() is threading.main_thread() else None
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    right = parse(f"\\boxed{{{gold}}}", parsing_timeout=limit)
    given = parse(generated, parsing_timeout=limit)
    return bool(right and given and verify(right, given, timeout_seconds=limit))


def verified(metrics: Mapping[str, Any], gold: str, generated: str) -> float:
    """Return math-verify's verdict on a stored answer: as a form stored it, else by the answers that count as right."""
    stored = metrics.get(f"{METRIC}|{FILTER}")
    if isinstance(stored, (int, float)):
        return float(stored)
    return float(any(math_equal(answer, generated) for answer in gold.split(" | ")))


def _plain(text: str) -> str:
    return " ".join(text.replace("$", "").split()).strip(" .").casefold()


def judged_by_both(task: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a definition that report both judges; the task's own filters stay first.

    A task whose own filters look for an answer in the text keeps its main metric. One that compares the whole text, or
    that looks for the words of its own prompt, would judge every boxed answer wrong: there math-verify is the main one.
    """
    own_filters = list(config.get("filter_list") or [{"name": "none", "filter": [{"function": "take_first"}]}])
    own_metrics = [m for m in config.get("metric_list") or [{"metric": "exact_match"}] if m.get("metric") != METRIC]
    names = [f"{metric['metric']}|{own['name']}" for own in own_filters for metric in own_metrics]
    extracts = any(step.get("function") == "regex" for own in own_filters for step in own.get("filter") or [])
    added = {"metric": METRIC, "aggregation": "mean", "higher_is_better": True}
    return {
        "process_results": BothJudges(task, config),
        "metric_list": [*own_metrics, added],
        "metric_names": [*names, f"{METRIC}|{FILTER}"],
        "main_metric": None if extracts else f"{METRIC}|{FILTER}",
        "filter_list": [*own_filters, {"name": FILTER, "filter": [{"function": "custom", "filter_fn": keep_whole}]}],
    }
