"""What of a task's score is reached without its questions: its blind twin, fine-tuned and tested in the same way.

A blind model can score no more than a guess, or than always the most frequent answer, unless the answers themselves
give the right one away. The test is one-sided, over examples: the mean over models of "right when blind" minus what
the better of these two baselines gets right, at the 1 % level. *Share reached blind* is what the blind models have
beyond the baseline, over what the sighted ones have beyond it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import t as student_t

from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.stats.significance import align_outcomes
from potentia.errors import InputError
from potentia.facts import find_chance_score
from potentia.values.clusters import (
    LEAST_CLUSTERS,
    Clusters,
    clustered_error,
    degrees_of_freedom,
)
from potentia.values.findings import Bars, Chart, Finding, Table
from potentia.values.protocol import Protocol, TaskName
from potentia.values.scores import Floats

if TYPE_CHECKING:
    from potentia.evidence import Evidence

BLIND_LEVEL = 0.01  # of the test that a task's answers give anything away
SERIOUS_SHARE = 0.1  # of the score beyond a guess that is reached blind: to be mended
RUINOUS_SHARE = 0.5  # from which the task measures its answers more than what it asks
OFTEN_RIGHT = 0.8  # share of blind models, from which an example is a candidate for removal
LISTED_EXAMPLES = 20


@dataclass(frozen=True)
class BlindTwin:
    """One task beside its blind twin by one protocol; means are over the models that have both."""

    protocol: Protocol
    task: str
    models: tuple[str, ...]
    sighted: tuple[float, ...]  # score of each model
    blind: tuple[float, ...]
    baseline: float  # of a guess, or of always the most frequent answer
    p_value: float  # that blind models are no better than the baseline
    examples: int
    often_right: tuple[
        tuple[int, float], ...
    ]  # example and share of blind models right, most often first

    @property
    def mean_sighted(self) -> float:
        """The mean score with the question."""
        return sum(self.sighted) / len(self.sighted)

    @property
    def mean_blind(self) -> float:
        """The mean score without the question."""
        return sum(self.blind) / len(self.blind)

    @property
    def share_reached(self) -> float:
        """What blind models have beyond the baseline, over what sighted ones have; NaN where these have nothing."""
        sighted_gain = self.mean_sighted - self.baseline
        if sighted_gain <= 0:
            return math.nan
        return max(0.0, self.mean_blind - self.baseline) / sighted_gain

    @property
    def gives_answers_away(self) -> bool:
        """Whether blind models are significantly better than the baseline."""
        return self.p_value < BLIND_LEVEL

    @property
    def tau_without_blind(self) -> float:
        """Kendall's τ between the order of the models as it is and after each one's blind score is taken off."""
        sighted = np.array(self.sighted)
        return float(kendall_by_row(sighted, sighted - np.array(self.blind)))

    @property
    def best(self) -> str:
        """The best model by the score as it is."""
        return self.models[int(np.argmax(self.sighted))]

    @property
    def best_without_blind(self) -> str:
        """The best model once each one's blind score is taken off."""
        return self.models[int(np.argmax(np.array(self.sighted) - np.array(self.blind)))]

    def describe(self) -> str:
        """Say what is reached blind, in one sentence."""
        scores = f"{self.mean_blind:.2f} blind, {self.mean_sighted:.2f} with the question"
        if not self.gives_answers_away:
            return (
                f"{self.task}: nothing can be learned from the answers alone "
                f"({scores}, {self.baseline:.2f} by guessing)."
            )
        share = ""
        if math.isfinite(self.share_reached):
            share = f"{self.share_reached:.0%} of the score beyond guessing is "
        return (
            f"{self.task}: {share}reached without the question ({scores}, "
            f"{self.baseline:.2f} by guessing, P = {self.p_value:.1g})."
        )


@dataclass(frozen=True)
class BlindTwins(Finding):
    """Every task that has a blind twin, and what the twins cost."""

    twins: tuple[BlindTwin, ...]
    token_share: float  # of all training tokens, what the twins took; NaN where unknown

    def tables(self) -> Sequence[Table]:
        """Return one row per protocol and task, and the examples that blind models get right."""
        column_names = (
            "protocol",
            "task",
            "models",
            "score",
            "blind",
            "guess",
            "share reached blind",
            "P",
            "τ without blind",
            "best",
            "best without blind",
        )
        table_rows = []
        for blind_twin in self.twins:
            means = (
                blind_twin.mean_sighted,
                blind_twin.mean_blind,
                blind_twin.baseline,
                blind_twin.share_reached,
            )
            order = (blind_twin.tau_without_blind, blind_twin.best, blind_twin.best_without_blind)
            names = (blind_twin.protocol.label, blind_twin.task, len(blind_twin.models))
            table_rows.append((*names, *means, blind_twin.p_value, *order))
        note = (
            "guess: the better of a uniform guess and of always the most frequent answer. P: that blind models are no "
            "better than that, one-sided, over examples. τ without blind: agreement of the order of the models with "
            "the order after each one's blind score is taken off."
        )
        if math.isfinite(self.token_share):
            note += f" The blind twins took {self.token_share:.0%} of the training tokens."
        tables = [Table("Scores without the question", column_names, table_rows, note)]
        example_rows = self._list_examples()
        if example_rows:
            example_note = (
                f"Right in at least {OFTEN_RIGHT:.0%} of the blind models: candidates for removal."
            )
            tables.append(
                Table(
                    "Examples that blind models get right",
                    ("protocol", "task", "example", "share of blind models right"),
                    example_rows,
                    example_note,
                )
            )
        return tables

    def _list_examples(self) -> list[tuple[str, str, int, float]]:
        rows = []
        for blind_twin in self.twins:
            if not blind_twin.gives_answers_away:
                continue
            for example, share in blind_twin.often_right[:LISTED_EXAMPLES]:
                rows.append((blind_twin.protocol.label, blind_twin.task, example, share))
        return rows

    def charts(self) -> Sequence[Chart]:
        """Return the scores with and without the question, for every protocol."""
        charts = []
        for protocol in dict.fromkeys(blind_twin.protocol for blind_twin in self.twins):
            twins = [blind_twin for blind_twin in self.twins if blind_twin.protocol == protocol]
            title = f"With and without the question ({protocol.label})"
            chart = Bars(
                f"blind-{protocol}",
                title,
                "Mean scores of the models, blind ones fine-tuned and tested without the question.",
                [blind_twin.task for blind_twin in twins],
                {
                    "with the question": [blind_twin.mean_sighted for blind_twin in twins],
                    "blind": [blind_twin.mean_blind for blind_twin in twins],
                    "guess": [blind_twin.baseline for blind_twin in twins],
                },
                y_label="score",
                group="blind",
            )
            charts.append(chart)
        return charts

    def sentences(self) -> list[str]:
        """Say of every task what is reached blind, those that give answers away first, and what the twins cost."""
        last_protocol = self.twins[-1].protocol
        twins = [blind_twin for blind_twin in self.twins if blind_twin.protocol == last_protocol]
        twins.sort(key=lambda blind_twin: blind_twin.p_value)
        sentences = [f"{blind_twin.describe()}" for blind_twin in twins]
        if math.isfinite(self.token_share):
            sentences.append(f"Blind twins took {self.token_share:.0%} of the training tokens.")
        return sentences


def find_blind_twins(evidence: Evidence) -> BlindTwins:
    """Compare every task with its blind twin, by every protocol that has both."""
    twins = []
    for protocol, matrix in evidence.blind.items():
        for task_name in matrix.tasks:
            sighted = TaskName(task_name).sighted
            blind_twin = find_blind_twin(evidence, str(sighted), protocol)
            if blind_twin is not None:
                twins.append(blind_twin)
    if not twins:
        raise InputError(
            f"no blind twins in {evidence.source}",
            hint="ask for them with `blind: true` under a task of the study",
        )
    return BlindTwins(tuple(twins), _measure_token_share(evidence))


def find_blind_twin(evidence: Evidence, task: str, protocol: Protocol) -> BlindTwin | None:
    """Compare one task with its blind twin; None where there is none, or no examples are stored."""
    if protocol not in evidence.blind or protocol not in evidence.scores:
        return None
    blind = evidence.blind[protocol]
    sighted = evidence.scores[protocol]
    blind_tasks = [blind_task for blind_task in blind.tasks if TaskName(blind_task).sighted == task]
    if not blind_tasks or task not in sighted.tasks:
        return None
    outcomes = evidence.blind_outcomes.get(protocol, {}).get(blind_tasks[0], {})
    blind_scores = dict(
        zip(blind.models, blind.values[:, blind.tasks.index(blind_tasks[0])], strict=True)
    )
    column = sighted.tasks.index(task)
    scores = dict(zip(sighted.models, sighted.values[:, column], strict=True))
    models = []
    for model, blind_score in blind_scores.items():
        sighted_score = scores.get(model, math.nan)
        if math.isfinite(blind_score) and math.isfinite(sighted_score):
            models.append(model)
    if not models or not outcomes:
        return None
    chance = find_chance_score(task, sighted.metrics[column], evidence.background.chance)
    right_answers = _read_right_answers(evidence, protocol, models[0], blind_tasks[0])
    return compare_blind(
        protocol,
        task,
        sighted={model: float(scores[model]) for model in models},
        blind={model: float(blind_scores[model]) for model in models},
        items=outcomes,
        right_answers=right_answers,
        chance=chance,
    )


def _read_right_answers(
    evidence: Evidence, protocol: Protocol, model: str, task: str
) -> dict[int, str]:
    """Return the right answer of every stored example of one result."""
    items = evidence.items_of(protocol, model, task)
    return {outcome.doc_id: outcome.gold for outcome in items}


def compare_blind(
    protocol: Protocol,
    task: str,
    *,
    sighted: Mapping[str, float],
    blind: Mapping[str, float],
    items: Mapping[str, Mapping[int, float]],
    right_answers: Mapping[int, str],
    chance: float | None,
) -> BlindTwin:
    """Test whether blind models are better than the better of a guess and of always the most frequent answer."""
    aligned = align_outcomes(list(blind), items)
    share_right = aligned.values.mean(axis=0)  # (examples,)
    baseline = _baseline_by_example(aligned.documents, right_answers, chance or 0.0)
    order = np.argsort(-share_right, kind="stable")
    often_right = [
        (aligned.documents[position], float(share_right[position]))
        for position in order
        if share_right[position] >= OFTEN_RIGHT
    ]
    p_value = _p_value_of_mean_above_zero(share_right - baseline, aligned.clusters)
    return BlindTwin(
        protocol=protocol,
        task=task,
        models=tuple(blind),
        sighted=tuple(sighted[model] for model in blind),
        blind=tuple(blind.values()),
        baseline=float(baseline.mean()) if len(baseline) else math.nan,
        p_value=p_value,
        examples=len(aligned.documents),
        often_right=tuple(often_right),
    )


def _baseline_by_example(
    examples: Sequence[int], right_answers: Mapping[int, str], chance: float
) -> Floats:
    """Return what the better baseline scores on every example: a guess, or always the most frequent answer."""
    answers = [right_answers.get(example, "") for example in examples]
    counts = Counter(answer for answer in answers if answer)
    if counts:
        frequent, count = counts.most_common(1)[0]
        if count / len(answers) > chance:
            return np.array([float(answer == frequent) for answer in answers])
    return np.full(len(answers), chance)


def _p_value_of_mean_above_zero(differences: Floats, clusters: Clusters) -> float:
    """Return the one-sided p-value of a t test with clustered errors; 1 for too few clusters.

    The null hypothesis is that the mean over examples is at most 0.
    """
    if clusters.count < LEAST_CLUSTERS:
        return 1.0
    mean = float(differences.mean())
    stderr = clustered_error(differences, clusters)
    if stderr == 0:
        return 0.0 if mean > 0 else 1.0
    return float(student_t.sf(mean / stderr, degrees_of_freedom(clusters)))


def _measure_token_share(evidence: Evidence) -> float:
    """Return the share of all training tokens that blind twins took; NaN where no fine-tuning says its tokens."""
    blind_tokens = 0
    all_tokens = 0
    for cell in evidence.cells():
        tokens = cell.selection.tokens or 0
        all_tokens += tokens
        if TaskName(cell.task).sighted is not None:
            blind_tokens += tokens
    return blind_tokens / all_tokens if all_tokens else math.nan
