"""Two models side by side on every task they share: who is better, and how sure that is.

Each task has its test (``task_difference``). Which differences are real is decided for all tasks together
(Benjamini–Hochberg, 5 % false discoveries). Who is better over all of them is what their own difference says
(``pair_test``): the other models of the table have no part in it, but that a ranking by z scores may order the two
otherwise is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.completion import predict_missing_cells
from potentia.analysis.rankings.decide import decide_ranking
from potentia.analysis.rankings.lead import (
    Lead,
    MissingEvidence,
    estimate_missing_evidence,
    measure_lead,
)
from potentia.analysis.rankings.margin import MarginComparison, compare_within_margin
from potentia.analysis.rankings.sentences import pair_sentences
from potentia.analysis.rankings.task_difference import DifferenceTest, measure_task_difference
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.non_inferiority import are_equivalent, check_margin
from potentia.analysis.stats.significance import (
    benjamini_hochberg,
    estimate_test_sizes,
)
from potentia.errors import InputError, suggest_names
from potentia.values.findings import Finding, Interval, Table, TableValue, ValuedText, short_names
from potentia.values.protocol import Protocol
from potentia.values.scores import Outcomes, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence


@dataclass(frozen=True)
class TaskComparison:
    """One task under one protocol; ``difference`` is of the first model over the second, and more is better."""

    models: tuple[str, str]
    protocol: Protocol
    task: str
    first: float
    second: float
    difference: Interval
    p_value: float
    test: DifferenceTest
    documents: int | None  # that both have answered; None without items
    first_only: tuple[int, ...] = ()  # documents that the first model alone gets right
    second_only: tuple[int, ...] = ()
    is_text: bool = False  # a text to predict, in bits; it has no part in a mean of scores
    is_significant: bool | None = (
        None  # among all tasks of the protocol; None without standard errors
    )

    def table_row(self, *, with_items: bool) -> list[TableValue]:
        """Return its cells in the table of a pair, with the documents that one model alone gets right."""
        row: list[TableValue] = [
            self.protocol.label,
            self.task,
            self.first,
            self.second,
            self.difference.value,
            self._format_interval(),
        ]
        if with_items and self.documents is None:
            row += [None, None, None]
        elif with_items:
            row += [len(self.first_only), len(self.second_only), self.documents]
        is_small = self.p_value < 0.0005
        row.append(ValuedText("< 0.001", value=self.p_value) if is_small else self.p_value)
        if self.is_significant is None:
            return [*row, None, None]
        return [*row, self.test.value, self.is_significant]

    def describe_margin(self, margin: float) -> str | None:
        """Say whether the two models are as good as each other within a margin."""
        if not math.isfinite(self.difference.low):
            return None
        if are_equivalent(self.difference, margin):
            return "yes"
        if self.difference.low > margin or self.difference.high < -margin:
            return "no"
        return "open"

    def _format_interval(self) -> str | None:
        """Write the interval of the difference; None where it is not known."""
        if not math.isfinite(self.difference.low):
            return None
        low, high = self.difference.low, self.difference.high
        return ValuedText(f"{low:+.3f} to {high:+.3f}", low=low, high=high)


@dataclass(frozen=True)
class ModelComparison(Finding):
    """Two models on every task and protocol that both have."""

    first: str
    second: str
    tasks: tuple[TaskComparison, ...]
    leads: dict[Protocol, Lead]  # who is better over all tasks of a protocol
    missing: dict[Protocol, MissingEvidence]  # what would tell them apart
    # Whether the one that seems worse is as good within a margin, where one is given.
    margins: dict[Protocol, MarginComparison] = field(default_factory=dict)
    margin: float | None = None
    level: float = LEVEL

    @property
    def names(self) -> tuple[str, str]:
        """The two models by the short names that people read."""
        first, second = short_names([self.first, self.second])
        return first, second

    def sentences(self) -> list[str]:
        """Say, for each protocol, who is better and how sure that is."""
        sentences = []
        for protocol, lead in self.leads.items():
            comparisons = [task for task in self.tasks if task.protocol == protocol]
            without_texts = [task for task in comparisons if not task.is_text]
            missing = self.missing.get(protocol)
            sentences += pair_sentences(lead, protocol, without_texts or comparisons, missing)
            if protocol in self.margins:
                sentences.append(self.margins[protocol].sentence(first=self.first))
            elif self.margin is not None:
                candidate, reference = short_names([lead.second, lead.first])
                sentences.append(
                    f"Whether {candidate} is as good as {reference} within {self.margin:g} over all tasks cannot be "
                    "said: their scores have different scales. The table says it task by task."
                )
        return sentences

    def tables(self) -> Sequence[Table]:
        """Return a row for each task and protocol."""
        first, second = self.names
        with_items = any(task.documents is not None for task in self.tasks)
        column_names = ["protocol", "task", first, second, "difference"]
        column_names.append(f"{100 * self.level:.0f} % interval")
        note = "Difference: the first over the second, where more is better."
        if with_items:
            column_names += [f"{first} alone", f"{second} alone", "examples"]
            note += " Alone: examples that only one of the two gets right."
        column_names += ["p", "test", "real"]
        note += (
            " Real: significant among all tasks of the protocol "
            "(Benjamini–Hochberg, 5 % false discoveries)."
        )
        table_rows = [task.table_row(with_items=with_items) for task in self.tasks]
        if self.margin is not None:
            column_names.append(f"within {self.margin:g}")
            note += f" Within {self.margin:g}: whether the whole interval is; open where more examples must tell."
            table_rows = [
                [*row, task.describe_margin(self.margin)]
                for row, task in zip(table_rows, self.tasks, strict=True)
            ]
        frame_names = {
            first: "first",
            second: "second",
            f"{100 * self.level:.0f} % interval": "",
            f"{first} alone": "first_alone",
            f"{second} alone": "second_alone",
            "real": "significant",
        }
        title = f"{first} against {second}"
        return [Table(title, column_names, table_rows, note, frame_names=frame_names)]


def find_pair(
    evidence: Evidence, first: str, second: str, *, margin: float | None = None
) -> ModelComparison:
    """Compare two models, task by task.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        first: A model, by its name or a part of it that no other model has.
        second: The other model.
        margin: Also say whether the one that seems worse is as good within this difference of scores.

    Example:
        >>> potentia.find_pair("potentia.db", "SmolLM2-135M", "pythia-160m").sentences()
    """
    if margin is not None:
        check_margin(margin)
    first_model = resolve_model_name(evidence, first)
    second_model = resolve_model_name(evidence, second)
    if first_model == second_model:
        raise InputError(f"{first} and {second} are the same model", where=evidence.source)
    comparisons: list[TaskComparison] = []
    leads: dict[Protocol, Lead] = {}
    missing: dict[Protocol, MissingEvidence] = {}
    margins: dict[Protocol, MarginComparison] = {}
    for protocol, matrix in evidence.final_scores.items():
        if first_model not in matrix.models or second_model not in matrix.models:
            continue
        outcomes = evidence.outcomes.get(protocol, {})
        of_protocol = compare_tasks(matrix.select(models=[first_model, second_model]), outcomes)
        if not of_protocol:
            continue
        comparisons += of_protocol
        only_texts = all(task.is_text for task in of_protocol)
        ranked = matrix.corpora() if only_texts else matrix.benchmarks()
        cell_sampler = predict_missing_cells(evidence, [ranked]).get(protocol)
        ranking = decide_ranking(
            ranked,
            outcomes,
            task_groups=evidence.background.task_groups,
            cell_sampler=cell_sampler,
        )
        lead = measure_lead(ranking, ranked, outcomes, first_model, second_model)
        if lead is None:
            continue
        leads[protocol] = lead
        if margin is not None:
            within = compare_within_margin(
                ranked, outcomes, lead.second, lead.first, margin, ranking.groups
            )
            if within is not None:
                margins[protocol] = within
        test_sizes = estimate_test_sizes(ranked)
        missing_evidence = estimate_missing_evidence(
            ranking, ranked, outcomes, test_sizes, lead.first, lead.second
        )
        if missing_evidence is not None:
            missing[protocol] = missing_evidence
    if not comparisons:
        raise InputError(f"{first_model} and {second_model} share no task", where=evidence.source)
    return ModelComparison(
        first=first_model,
        second=second_model,
        tasks=tuple(comparisons),
        leads=leads,
        missing=missing,
        margins=margins,
        margin=margin,
    )


def resolve_model_name(evidence: Evidence, requested_name: str) -> str:
    """Return the model that is meant: its name, its last part, or a part that no other model has."""
    folded = requested_name.casefold()
    exact = [model for model in evidence.models if model == requested_name]
    same_ending = [
        model for model in evidence.models if model.rpartition("/")[2].casefold() == folded
    ]
    containing = [model for model in evidence.models if folded in model.casefold()]
    for candidates in (exact, same_ending, containing):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise InputError(
                f"{requested_name!r} may be {len(candidates)} models",
                where=evidence.source,
                hint=suggest_names(requested_name, candidates),
            )
    raise InputError(
        f"no model {requested_name!r}",
        where=evidence.source,
        hint=suggest_names(requested_name, evidence.models),
    )


def compare_tasks(
    matrix: ScoreMatrix, outcomes: Outcomes, *, level: float = LEVEL
) -> list[TaskComparison]:
    """Compare the two rows of a matrix on every task that both have; which differences are real is decided together."""
    tasks_with_scores = set(matrix.benchmarks().tasks)
    comparisons = []
    for column, task in enumerate(matrix.tasks):
        comparison = _compare_task(matrix, column, outcomes, level)
        if comparison is not None:
            comparisons.append(replace(comparison, is_text=task not in tasks_with_scores))
    if not comparisons:
        return []
    p_values = np.array([comparison.p_value for comparison in comparisons])
    marked = []
    for comparison, adjusted in zip(
        comparisons, benjamini_hochberg(p_values).tolist(), strict=True
    ):
        is_significant = None if math.isnan(adjusted) else adjusted <= 1 - level
        marked.append(replace(comparison, is_significant=is_significant))
    return marked


def _compare_task(
    matrix: ScoreMatrix, column: int, outcomes: Outcomes, level: float
) -> TaskComparison | None:
    """Compare the two rows of a matrix on one task; None where one has no score."""
    tested = measure_task_difference(matrix, column, outcomes)
    if tested is None:
        return None
    return TaskComparison(
        models=(matrix.models[0], matrix.models[1]),
        protocol=matrix.protocol,
        task=matrix.tasks[column],
        first=float(matrix.values[0, column]),
        second=float(matrix.values[1, column]),
        difference=tested.interval(level),
        p_value=tested.p_value,
        test=tested.test,
        documents=tested.documents,
        first_only=tested.first_only,
        second_only=tested.second_only,
    )
