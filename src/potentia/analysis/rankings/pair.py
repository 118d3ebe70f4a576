"""Two models side by side on every task they share, and every two models: who is better, and how sure that is.

Where items are stored the difference is taken document by document: its interval is of the paired differences, and
McNemar's exact test looks at the documents that one model alone gets right. Where there are no items, or a score is no
mean of items (f1, mcc), two scores have nothing in common but their errors. Which differences are real is decided for
all tasks together (Benjamini–Hochberg, 5 % false discoveries); who is better over all of them is what ``decide`` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.stats import norm
from scipy.stats import t as student

from potentia.analysis.completion import predict_missing_cells
from potentia.analysis.rankings.decide import (
    CLAIM_PROBABILITY,
    Ranking,
    decide_ranking,
)
from potentia.analysis.rankings.noise import paired_outcomes, task_noise
from potentia.analysis.rankings.sentences import pair_sentences
from potentia.analysis.stats import significance as tests
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.significance import POWER, benjamini_hochberg, estimate_test_sizes
from potentia.errors import InputError
from potentia.values.findings import Cell, Finding, Interval, Table, picked, short_names
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

MOST_DOCUMENTS, MOST_TASKS = 100.0, 10.0  # times as many as there are: more are out of reach
MCNEMAR, PAIRED, APART = "McNemar", "paired t", "z"


@dataclass(frozen=True)
class Lead:
    """How far one model's mean score lies above another's on the tasks that both have."""

    first: str
    second: str
    tasks: int
    difference: Interval
    chance: float  # that the first is better, as the ranking draws it
    generalizes: bool  # on other tasks like these too

    @property
    def is_certain(self) -> bool:
        """Whether the first may be called better."""
        return self.chance >= CLAIM_PROBABILITY


def measure_lead(
    ranking: Ranking, matrix: ScoreMatrix, items: Outcomes | None, one: str, two: str
) -> Lead | None:
    """Compare two models; the likelier of them is the first. None where they share no task."""
    chance = ranking.probability_better(one, two)
    found = _gap(matrix, items, one, two)
    if found is None:
        return None
    if chance < 0.5 and found[0].any():  # those that score alike stay in their order
        one, two, chance, found = two, one, 1.0 - chance, (-found[0], *found[1:])
    gap, variance, _ = found
    half = float(norm.ppf(0.5 + ranking.level / 2)) * np.sqrt(variance.sum()) / len(gap)
    return Lead(
        one,
        two,
        len(gap),
        Interval.around(gap.mean(), half, ranking.level),
        chance,
        ranking.generalizes,
    )


def _gap(
    matrix: ScoreMatrix, items: Outcomes | None, one: str, two: str
) -> tuple[Floats, Floats, npt.NDArray[np.intp]] | None:
    """Return differences on the tasks that both models have, their variances, and which tasks these are.

    Tasks where less is better are left out where there are others: a mean over both says nothing.
    """
    pair = matrix.select(models=[one, two])
    both = np.flatnonzero(np.isfinite(pair.values).all(axis=0))
    up = both[np.asarray(matrix.higher_is_better, dtype=bool)[both]]
    both = up if len(up) else both
    if not len(both):
        return None
    noise = np.stack(
        [task_noise(pair, int(k), items).full_covariance() for k in both]
    )  # (tasks, 2, 2)
    there = np.isfinite(pair.stderr[:, both]).all(axis=0)
    variance = np.where(there, noise[:, 0, 0] + noise[:, 1, 1] - 2 * noise[:, 0, 1], np.nan)
    values = pair.oriented()[:, both]
    return values[0] - values[1], variance, both


@dataclass(frozen=True)
class MissingEvidence:
    """What would tell two models apart four times in five; ``documents`` and ``tasks`` are more than there are now."""

    first: str
    rival: str
    times: float  # as many test documents; infinite where the choice of tasks alone could change the order
    documents: int | None  # per task; None where their number is not known, or none would do
    tasks: int | None  # where documents alone would not do; None beyond reach
    several: bool  # tasks there are
    opposed: bool  # each leads on a task


def estimate_missing_evidence(
    ranking: Ranking,
    matrix: ScoreMatrix,
    items: Outcomes | None,
    sizes: Mapping[str, float],
    one: str,
    two: str,
) -> MissingEvidence | None:
    """Return how many documents or tasks would separate two models, if they differ as much as they seem to.

    The variance of their difference in the ranking has two parts: test noise, which falls with the documents, and the
    rest, which falls with the tasks alone. None where nothing is missing or no error is known.
    """
    found = _gap(matrix, items, one, two)
    if (
        found is None
        or not ranking.can_claim
        or ranking.probability_better(one, two) >= CLAIM_PROBABILITY
    ):
        return None
    gaps, variance, both = found
    tasks = picked(matrix.tasks, both)
    if not np.isfinite(variance).all():
        return None
    several, opposed = len(tasks) > 1, bool(gaps.min() < 0 < gaps.max())
    gap = ranking.draws[:, ranking.models.index(one)] - ranking.draws[:, ranking.models.index(two)]
    scale = ranking.task_scales[[ranking.tasks.index(t) for t in tasks]]
    noise = float((scale**2 * variance).sum()) / len(tasks) ** 2
    total = max(float(np.var(gap)), noise) if ranking.generalizes else noise
    choice = total - noise
    allowed = (float(gap.mean()) / detectable_z(ranking.level)) ** 2
    if allowed > choice and 0 < noise <= MOST_DOCUMENTS * (allowed - choice):
        times = noise / (allowed - choice)
        known = [sizes[t] for t in tasks if t in sizes]
        more = None
        if known:
            more = max(1, math.ceil((times - 1) * float(np.median(known))))
            unit = int(10 ** max(0, len(str(more)) - 2))
            more = -(-more // unit) * unit  # two digits, rounded up: nobody knows more
        return MissingEvidence(one, two, times, more, None, several, opposed)
    wanted = len(tasks) * total / allowed if allowed > 0 else math.inf
    few = ranking.generalizes and wanted <= MOST_TASKS * len(tasks)
    more = max(1, math.ceil(wanted) - len(tasks)) if few else None
    return MissingEvidence(one, two, math.inf, None, more, several, opposed)


def detectable_z(level: float = LEVEL) -> float:
    """Return the standard errors of a difference that is found with 80 % power."""
    return float(norm.ppf(0.5 + level / 2) + norm.ppf(POWER))


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
    test: str
    documents: int | None  # that both have answered; None without items
    first_only: tuple[int, ...] = ()  # documents that the first model alone gets right
    second_only: tuple[int, ...] = ()
    is_text: bool = False  # a text to predict, in bits; it has no part in a mean of scores
    is_significant: bool | None = (
        None  # significant among all tasks of the protocol; None without standard errors
    )

    def table_row(self, items: bool) -> list[Cell]:
        """Return its cells in the table of a pair, with the documents that one model alone gets right."""
        low, high = self.difference.low, self.difference.high
        row: list[Cell] = [
            self.protocol.label,
            self.task,
            self.first,
            self.second,
            self.difference.value,
        ]
        row.append(f"{low:+.3f} to {high:+.3f}" if math.isfinite(low) else None)
        if items:
            counted = len(self.first_only), len(self.second_only), self.documents
            row += counted if self.documents is not None else [None] * 3
        row.append("< 0.001" if self.p_value < 0.0005 else self.p_value)
        return row + (
            [None, None]
            if self.is_significant is None
            else [self.test, "yes" if self.is_significant else "no"]
        )


@dataclass(frozen=True)
class ModelComparison(Finding):
    """Two models on every task and protocol that both have."""

    first: str
    second: str
    tasks: tuple[TaskComparison, ...]
    leads: dict[Protocol, Lead]  # who is better over all tasks of a protocol
    missing: dict[Protocol, MissingEvidence]  # what would tell them apart
    level: float = LEVEL

    @property
    def names(self) -> tuple[str, str]:
        """The two models by the short names that people read."""
        one, two = short_names([self.first, self.second])
        return one, two

    def sentences(self) -> list[str]:
        """Say, for each protocol, who is better and how sure that is."""
        found = []
        for protocol, lead in self.leads.items():
            pairs = [pair for pair in self.tasks if pair.protocol == protocol]
            tasks = [pair for pair in pairs if not pair.is_text] or pairs
            found += pair_sentences(lead, protocol, tasks, self.missing.get(protocol))
        return found

    def tables(self) -> Sequence[Table]:
        """Return a row for each task and protocol."""
        one, two = self.names
        items = any(pair.documents is not None for pair in self.tasks)
        rows = [pair.table_row(items) for pair in self.tasks]
        alone = (f"{one} alone", f"{two} alone", "documents") if items else ()
        note = "Difference: the first over the second, where more is better."
        if items:
            note += " Alone: documents that one of the two alone gets right."
        note += " Real: significant among all tasks of the protocol (Benjamini–Hochberg, 5 % false discoveries)."
        span = f"{100 * self.level:.0f} % interval"
        columns = ("protocol", "task", one, two, "difference", span, *alone, "p", "test", "real")
        return [Table(f"{one} against {two}", columns, rows, note)]


def find_pair(evidence: Evidence, first: str, second: str) -> ModelComparison:
    """Compare two models, given by name or by a part of it that no other model has."""
    one, two = (resolve_model_name(evidence, name) for name in (first, second))
    if one == two:
        raise InputError(f"{first} and {second} are the same model", where=evidence.source)
    pairs: list[TaskComparison] = []
    leads: dict[Protocol, Lead] = {}
    missing: dict[Protocol, MissingEvidence] = {}
    for protocol, matrix in evidence.planned.items():
        if not {one, two} <= set(matrix.models):
            continue
        outcomes = evidence.outcomes.get(protocol, {})
        found = compare_tasks(matrix.select(models=[one, two]), outcomes)
        if not found:
            continue
        pairs += found
        ranked = (
            matrix.benchmarks() if any(not pair.is_text for pair in found) else matrix.corpora()
        )
        ranking = decide_ranking(
            ranked, outcomes, cell_sampler=predict_missing_cells(evidence, [ranked]).get(protocol)
        )
        lead = measure_lead(ranking, ranked, outcomes, one, two)
        if lead is not None:
            leads[protocol] = lead
            more = estimate_missing_evidence(
                ranking, ranked, outcomes, estimate_test_sizes(ranked), lead.first, lead.second
            )
            missing |= {} if more is None else {protocol: more}
    if not pairs:
        raise InputError(f"{one} and {two} share no task", where=evidence.source)
    return ModelComparison(one, two, tuple(pairs), leads, missing)


def compare_tasks(
    matrix: ScoreMatrix, outcomes: Outcomes, *, level: float = LEVEL
) -> list[TaskComparison]:
    """Compare the two rows of a matrix on every task that both have; which differences are real is decided together."""
    tasks = set(matrix.benchmarks().tasks)
    every = [
        _of_task(matrix, k, outcomes, level, text=t not in tasks)
        for k, t in enumerate(matrix.tasks)
    ]
    found = [pair for pair in every if pair is not None]
    if not found:
        return []
    adjusted = benjamini_hochberg(np.array([pair.p_value for pair in found])).tolist()
    real = [None if math.isnan(p) else p <= 1 - level for p in adjusted]
    return [replace(pair, is_significant=sure) for pair, sure in zip(found, real, strict=True)]


def resolve_model_name(evidence: Evidence, name: str) -> str:
    """Return the model that is meant: its name, its last part, or a part that no other model has."""
    models, plain = evidence.models, name.casefold()
    for same in (
        lambda m: m == name,
        lambda m: m.rpartition("/")[2].casefold() == plain,
        lambda m: plain in m.casefold(),
    ):
        found = [model for model in models if same(model)]
        if len(found) == 1:
            return found[0]
        if found:
            message, hint = (
                f"{name!r} may be {len(found)} models",
                f"such as {', '.join(found[:5])}",
            )
            raise InputError(message, where=evidence.source, hint=hint)
    raise InputError(
        f"no model {name!r}", where=evidence.source, hint=f"there are: {', '.join(models[:12])}"
    )


def _of_task(
    matrix: ScoreMatrix, k: int, outcomes: Outcomes, level: float, *, text: bool
) -> TaskComparison | None:
    """Compare the two rows of a matrix on one task; None where one has no score."""
    one, two = (float(v) for v in matrix.values[:, k])
    if not (math.isfinite(one) and math.isfinite(two)):
        return None
    difference = (one - two) * (1.0 if matrix.higher_is_better[k] else -1.0)
    error, test, p, freedom = float(np.hypot(*matrix.stderr[:, k])), APART, math.nan, math.inf
    documents, only = None, ((), ())
    if np.isfinite(matrix.n[:, k]).all() and math.isfinite(
        error
    ):  # the errors themselves are known from n documents
        error, freedom = (
            float(np.hypot(*task_noise(matrix, k, None).errors)),
            float(matrix.n[:, k].min()) - 1,
        )
    found = paired_outcomes(matrix, k, outcomes)
    if found is not None:
        x, y = found.outcomes
        documents, freedom, test = len(x), len(x) - 1, PAIRED
        seeds = [matrix.seed_error(model, matrix.tasks[k]) for model in matrix.models]
        error = math.hypot(float(np.std(x - y, ddof=1)) / math.sqrt(len(x)), *seeds)
        if set(np.unique([x, y])) <= {0.0, 1.0}:
            numbers = np.array(sorted(outcomes[matrix.tasks[k]][matrix.models[0]]))
            only = (tuple(numbers[x > y].tolist()), tuple(numbers[x < y].tolist()))
            test, p = MCNEMAR, tests.mcnemar_p_value(len(only[0]), len(only[1]))
    if test != MCNEMAR and math.isfinite(error):
        p = (
            2.0 * float(student.sf(abs(difference) / error, freedom))
            if error > 0
            else float(difference == 0)
        )
    half = float(norm.ppf(0.5 + level / 2)) * error
    span = Interval.around(difference, half, level)
    names = (matrix.models[0], matrix.models[1])
    return TaskComparison(
        names,
        matrix.protocol,
        matrix.tasks[k],
        one,
        two,
        span,
        p,
        test,
        documents,
        *only,
        is_text=text,
    )


@dataclass(frozen=True)
class EvidenceMap:
    """Every pair of models (in the order of ``np.triu_indices``) on every task of one protocol."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    basis: tuple[str, ...]  # per task: McNemar or z test
    values: Floats  # (models, tasks)
    stderr: Floats  # (models, tasks)
    difference: Floats  # (pairs, tasks), first minus second, higher is better
    p: Floats  # (pairs, tasks)
    critical: (
        Floats  # (tasks,) the largest p that Benjamini–Hochberg keeps over all pairs of the task
    )
    detectable: Floats  # (pairs,) of the mean difference
    mean: Floats  # (pairs,) mean difference over the shared tasks
    mean_p: Floats  # (pairs,)
    level: float = LEVEL

    def count_outcomes(
        self,
    ) -> tuple[npt.NDArray[np.int_], npt.NDArray[np.int_], npt.NDArray[np.int_]]:
        """Return wins, losses and ties of the first model of every pair, over the tasks that both have."""
        known = np.isfinite(self.p)
        real = known & (self.p < 1 - self.level)
        wins, losses = (
            (real & (self.difference > 0)).sum(axis=1),
            (real & (self.difference < 0)).sum(axis=1),
        )
        return wins, losses, known.sum(axis=1) - wins - losses

    def pair_rows(self) -> list[tuple[int | float, ...]]:
        """Return wins, losses, ties, mean difference, its p and what is detectable of every pair over all tasks."""
        means = zip(self.mean.tolist(), self.mean_p.tolist(), self.detectable.tolist(), strict=True)
        return [
            (*map(int, each), *mean)
            for *each, mean in zip(*self.count_outcomes(), means, strict=True)
        ]


def map_evidence(matrix: ScoreMatrix, outcomes: Outcomes | None = None) -> EvidenceMap | None:
    """Compare every two models on every higher-is-better task with standard errors; None where there is none."""
    known = np.isfinite(matrix.values)
    usable = matrix.sign > 0
    usable &= (known.sum(axis=0) > 1) & np.isfinite(matrix.stderr).any(axis=0)
    rows = known.any(axis=1)
    if not usable.any() or rows.sum() < 2:
        return None
    tested = matrix.select(models=rows, tasks=usable)
    first, second = np.triu_indices(len(tested.models), 1)
    difference = tested.values[first] - tested.values[second]
    p = tests.pair_p_values(tested)
    basis = [
        _sharpen(p[:, k], tested.models, (outcomes or {}).get(task, {}))
        for k, task in enumerate(tested.tasks)
    ]
    kept = np.where(benjamini_hochberg(p) <= 1 - LEVEL, p, np.nan)
    critical = np.array([np.nanmax(c) if np.isfinite(c).any() else 0.0 for c in kept.T])
    variance = tested.stderr[first] ** 2 + tested.stderr[second] ** 2
    both = np.isfinite(difference) & np.isfinite(variance)
    shared = np.maximum(both.sum(axis=1), 1)
    mean = np.where(both.any(axis=1), np.where(both, difference, 0.0).sum(axis=1) / shared, np.nan)
    error = np.sqrt(np.where(both, variance, 0.0).sum(axis=1)) / shared
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_p = np.where(mean == 0, 1.0, 2.0 * norm.sf(np.abs(mean / error)))
    detectable = np.where(np.isfinite(mean), detectable_z(LEVEL) * error, np.nan)
    cells = tested.values, tested.stderr, difference, p, critical
    return EvidenceMap(
        matrix.protocol, tested.models, tested.tasks, tuple(basis), *cells, detectable, mean, mean_p
    )


def _sharpen(p: Floats, models: Sequence[str], outcomes: Mapping[str, Mapping[int, float]]) -> str:
    """Put McNemar's p in the place of the z test's for every pair of models with items; returns the test's name."""
    there, _, values = tests.align_outcomes(models, outcomes)
    if len(there) < 2 or not values.shape[1]:
        return "z test"
    present = [models.index(model) for model in there]
    first, second = np.triu_indices(len(present), 1)
    a, b = np.array(present)[first], np.array(present)[second]
    n = len(models)
    p[a * (2 * n - a - 1) // 2 + b - a - 1] = tests.mcnemar_p_values(values > 0.5)
    return "McNemar"
