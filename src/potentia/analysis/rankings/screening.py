"""Screening of tasks: which of them should not be ranked on, and why (appendix A.1).

A task is flagged when it has too few training examples to prepare the models, when tuning leaves too many models no
better, when it is shown to rank otherwise than the other tasks do among themselves, when models hardly differ on it,
when its scores sit at the ceiling or the floor, or when its test split is too small to separate models that differ as
they do on the other tasks. A flag carries its evidence and a suggestion, and is what the verdict on a benchmark rests
on (``analysis.benchmark``): failing to show that a task agrees is no flag.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from itertools import compress

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, norm

from potentia.analysis.left_out import NO_ENTRIES, drop_names_in
from potentia.analysis.lineage import group_by_series, named_checkpoints
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.first_place import ENOUGH_MODELS
from potentia.analysis.stats.score_errors import believe_errors
from potentia.analysis.stats.significance import (
    align_outcomes,
    count_task_pairs,
    list_seed_errors,
)
from potentia.analysis.stats.soundness import (
    TEST_LEVEL,
    RankingAnswer,
    ScoreDifferences,
    TaskAgreement,
    TaskAgreements,
    code_families,
    compare_models_by_errors,
    compare_models_by_items,
)
from potentia.analysis.wording import format_level, format_p_value
from potentia.facts import find_task_groups
from potentia.values.findings import Chart, Finding, Heatmap, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

TRAIN_EXAMPLES = 1_000  # fewer cannot prepare a model (section 3.1)
NOT_IMPROVED = 0.20  # share of models that tuning leaves no better (appendix A.1)
ROUNDING = 1e-9  # of a sum of shares
LEAST_GAIN = 0.01  # of the models' scores, that their typical gain is taken for at least
CEILING = 0.97  # a score in [0, 1] above which nothing is left to separate models by
FLOOR_SHARE = 0.1  # of the way from a guess to a perfect score, below which a model surely guesses
RESOLVED = 0.25  # share of model pairs that a test split should resolve


class FlagReason(StrEnum):
    """Why a task should not be ranked on."""

    FEW_TRAINING_EXAMPLES = "few training examples"
    NO_IMPROVEMENT = "no improvement after tuning"
    AGAINST = "ranks against the others"
    UNLIKE = "does not rank as the others"
    NO_DIFFERENCES = "models hardly differ"
    CEILING = "ceiling"
    FLOOR = "floor"
    SMALL_TEST = "test split too small"


SUGGESTIONS = {
    FlagReason.FEW_TRAINING_EXAMPLES: "add training data",
    FlagReason.NO_IMPROVEMENT: "check its prompt and the tuning recipe",
    FlagReason.AGAINST: "check its metric and its labels",
    FlagReason.UNLIKE: "it measures something else, or its prompt or metric is wrong: check them",
    FlagReason.NO_DIFFERENCES: "use a larger test",
    FlagReason.CEILING: "use a harder task",
    FlagReason.FLOOR: "use an easier task, or stronger models",
    FlagReason.SMALL_TEST: "use more test examples, or report it without ranking on it",
}
OTHERWISE = {  # what else can be done where there are other tasks
    FlagReason.FEW_TRAINING_EXAMPLES: ", or drop the task",
    FlagReason.NO_IMPROVEMENT: ", or drop the task",
    FlagReason.AGAINST: "; drop the task if they are right",
    FlagReason.NO_DIFFERENCES: ", or drop the task",
}


@dataclass(frozen=True)
class TaskFlag:
    """One reason to distrust a task, with the evidence."""

    task: str
    reason: FlagReason
    evidence: str
    suggestion: str


@dataclass(frozen=True)
class TaskRanking:
    """What the scores of one task say: whether models differ on it, and whether it ranks them as the others do."""

    differences: ScoreDifferences
    agreement: TaskAgreement

    @property
    def models_differ(self) -> bool:
        """Whether models are shown to differ."""
        return self.differences.p_value < TEST_LEVEL

    @property
    def has_errors(self) -> bool:
        """Whether items or standard errors say how much of the differences is noise."""
        return bool(np.isfinite(self.differences.p_value))


@dataclass(frozen=True)
class Screening(Finding):
    """The flags of every task, and the measures behind them."""

    protocol: Protocol
    tasks: tuple[str, ...]
    flags: tuple[TaskFlag, ...]
    train_examples: Floats  # per task; NaN where unknown
    not_improved: Floats  # share of models
    untuned: npt.NDArray[np.intp]  # models whose score is the untuned model's
    models_compared: npt.NDArray[np.intp]  # with a score before and after tuning
    not_improved_p: Floats  # that test noise alone leaves so many no better
    agreement: Floats  # mean τ with the other tasks
    best: Floats  # best score
    resolved: Floats  # share of pairs of models that differ significantly
    rankings: tuple[TaskRanking, ...] = ()  # what the scores of each task say

    @property
    def flagged_tasks(self) -> tuple[str, ...]:
        """The tasks with at least one flag."""
        flagged = {flag.task for flag in self.flags}
        return tuple(task for task in self.tasks if task in flagged)

    def tables(self) -> Sequence[Table]:
        """Return the flags, then the measures of every task."""
        note = "No task is flagged."
        if self.flags:
            note = "To leave flagged tasks out, in Python: RankingOptions(exclude_flagged=True)."
        flags = Table(
            f"Screening: {len(self.flagged_tasks)} of {len(self.tasks)} tasks flagged",
            ("task", "reason", "evidence", "suggestion"),
            map(astuple, self.flags),
            note,
        )
        column_names = (
            "task",
            "train",
            "not improved",
            "τ with the others",
            "best score",
            "pairs that differ",
            "flags",
        )
        train_examples: list[int | None] = []
        for count in self.train_examples:
            train_examples.append(None if np.isnan(count) else int(count))
        measures = Table(
            "Screening: measures",
            column_names,
            zip(
                self.tasks,
                train_examples,
                self.not_improved,
                self.agreement,
                self.best,
                self.resolved,
                [self._format_reasons(task) for task in self.tasks],
                strict=True,
            ),
            "Not improved: share of models that tuning left no better. "
            "τ: mean with the other tasks.",
            digits=2,
        )
        return [flags, measures]

    def _format_reasons(self, task: str) -> str:
        """List the reasons to distrust a task; a dash where there is none."""
        reasons = [flag.reason for flag in self.flags if flag.task == task]
        return ", ".join(reasons) or "–"

    def charts(self) -> Sequence[Chart]:
        """Return the measures as a heat map."""
        chart = Heatmap(
            "screening",
            "Screening of tasks",
            "High values of the first and low values of the others speak against a task.",
            self.tasks,
            ("not improved", "τ with the others", "pairs that differ"),
            np.stack([self.not_improved, self.agreement, self.resolved], axis=1),
            low=min(0.0, float(np.nanmin(self.agreement, initial=0.0))),
            high=1.0,
        )
        return [chart]


def screen_tasks(
    direct: ScoreMatrix,
    tuned: ScoreMatrix | None = None,
    *,
    train_examples: Mapping[str, float] = NO_ENTRIES,
    chance: Mapping[str, float] = NO_ENTRIES,
    families: Mapping[str, str] = NO_ENTRIES,
    task_groups: Mapping[str, str] = NO_ENTRIES,
    items: Outcomes | None = None,
    tested: Collection[str] = (),
    level: float = LEVEL,
    seed: int = 0,
) -> Screening:
    """Flag the tasks of a study; every check runs only where its evidence exists.

    ``tuned`` gives the effect of tuning, and, where given, the ranking and its resolution; else ``direct`` does.
    ``chance`` maps a task to the score of a guess (default 0), for the floor; ``families`` are those of the models,
    and ``items`` the stored outcomes of the scores that rank. That a task agrees with the others is tested where it
    decides about a flag, and for the tasks ``tested`` in any case.
    """
    final = believe_errors(tuned or direct)
    witnesses = None if tuned is None else _drop_early_checkpoints(tuned)
    ends = _drop_early_checkpoints(final)
    rankings = assess_tasks(final, families, task_groups, items, tested=tested, seed=seed)
    resolved = np.full(len(final.tasks), np.nan)
    for column, task in enumerate(final.tasks):
        counts = count_task_pairs(final, task, items, level=level)
        if counts.pairs:
            resolved[column] = counts.significant / counts.pairs
    agreement = np.array([ranking.agreement.mean.value for ranking in rankings])
    best_scores = np.fmax.reduce(final.oriented(), axis=0) * final.sign
    examples_of_tasks = [float(train_examples.get(task, np.nan)) for task in final.tasks]
    screening = Screening(
        protocol=final.protocol,
        tasks=final.tasks,
        flags=(),
        train_examples=np.array(examples_of_tasks),
        not_improved=_share_not_improved(direct, witnesses),
        untuned=_count_untuned(direct, witnesses),
        models_compared=_count_compared(direct, witnesses),
        not_improved_p=_test_not_improved(direct, witnesses, families),
        agreement=agreement,
        best=best_scores,
        resolved=resolved,
        rankings=tuple(rankings),
    )
    expected_resolution = _expect_resolution(final)
    flags: list[TaskFlag] = []
    for column, task in enumerate(final.tasks):
        faults = [
            *_check_preparation(screening, column),
            *check_ranking(rankings[column]),
            *_check_scores(screening, ends, column, chance.get(task, 0.0)),
            *_check_size(resolved[column], expected_resolution[column], ends, column),
        ]
        for reason, evidence in faults:
            suggestion = SUGGESTIONS[reason]
            if len(final.tasks) > 1:
                suggestion += OTHERWISE.get(reason, "")
            flags.append(TaskFlag(task, reason, evidence, suggestion))
    return replace(screening, flags=tuple(flags))


def _drop_early_checkpoints(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the scores without checkpoints that a later one of their run follows: a run is one witness."""
    early: list[str] = []
    for checkpoints in group_by_series(named_checkpoints(matrix.models)).values():
        early += list(checkpoints)[:-1]
    return matrix.select(models=drop_names_in(matrix.models, early)) if early else matrix


Fault = tuple[FlagReason, str]  # a reason to distrust a task, and the evidence


def assess_tasks(
    matrix: ScoreMatrix,
    families: Mapping[str, str],
    task_groups: Mapping[str, str],
    items: Outcomes | None,
    *,
    tested: Collection[str] = (),
    seed: int = 0,
) -> list[TaskRanking]:
    """Ask of every task whether models differ on it, and whether it ranks them as the others do.

    Agreement is tested where it decides about a flag, and for the tasks ``tested`` in any case.
    """
    matrix = believe_errors(matrix)
    groups = find_task_groups(matrix.tasks, task_groups)
    agreements = TaskAgreements(matrix, families, groups, level=LEVEL, seed=seed)
    rankings = []
    for column, task in enumerate(matrix.tasks):
        differences = compare_models(matrix, column, (items or {}).get(task, {}), agreements.family)
        models_differ = differences.p_value < TEST_LEVEL
        agreement = agreements.compare(task, models_differ=models_differ, must_test=task in tested)
        rankings.append(TaskRanking(differences, agreement))
    return rankings


def compare_models(
    matrix: ScoreMatrix,
    column: int,
    items: Mapping[str, Mapping[int, float]],
    family: npt.NDArray[np.intp],
) -> ScoreDifferences:
    """Ask whether models differ on a task: by the items that all of them answered, else by their standard errors."""
    is_scored = np.isfinite(matrix.values[:, column])
    models = list(compress(matrix.models, is_scored))
    aligned = align_outcomes(models, items)
    if len(aligned.values) == len(models) >= 2 and aligned.values.shape[1] >= 2:
        _, family_of_scored = np.unique(family[is_scored], return_inverse=True)
        seed_errors = list_seed_errors(matrix, matrix.tasks[column], models)
        return compare_models_by_items(
            aligned.values,
            family_of_scored,
            aligned.clusters,
            seed_variance=float(np.mean(np.square(seed_errors))),
        )
    return compare_models_by_errors(matrix.oriented()[:, column], matrix.stderr[:, column], family)


def check_ranking(ranking: TaskRanking) -> list[Fault]:
    """Return what the ranking of a task says against it, on evidence alone."""
    if not ranking.has_errors:
        return []
    agreement = ranking.agreement
    answer = agreement.answer
    tau = f"mean τ {agreement.mean.value:.2f} with the others"
    faults = []
    if answer is RankingAnswer.AGAINST and ranking.models_differ:
        faults.append((FlagReason.AGAINST, f"{tau} ({format_p_value(agreement.p_against)})"))
    elif answer is RankingAnswer.UNLIKE:
        shortfall = agreement.shortfall
        level = format_level(shortfall.level)
        interval = f"{level} interval {shortfall.low:.2f} to {shortfall.high:.2f}"
        evidence = (
            f"{tau}, where a test of its size should reach {agreement.expected:.2f} "
            f"(difference {shortfall.value:.2f}, {interval}; among the others it is "
            f"{agreement.among_others:.2f})"
        )
        faults.append((FlagReason.UNLIKE, evidence))
    is_noise = answer in (RankingAnswer.UNLIKE, RankingAnswer.AGAINST) or agreement.is_narrow
    if not ranking.models_differ and answer is not RankingAnswer.AGREES and is_noise:
        p_value = format_p_value(ranking.differences.p_value)
        evidence = f"scores differ no more than by chance ({p_value})"
        if agreement.is_narrow:
            evidence += ", and by less than half as much as on the other tasks"
        faults.append((FlagReason.NO_DIFFERENCES, evidence))
    return faults


def _check_preparation(screening: Screening, column: int) -> list[Fault]:
    """Return whether a task can prepare the models, and whether it does."""
    faults = []
    train = screening.train_examples[column]
    if train < TRAIN_EXAMPLES:
        evidence = f"{train:.0f} training examples; the limit is {TRAIN_EXAMPLES:,}"
        faults.append((FlagReason.FEW_TRAINING_EXAMPLES, evidence))
    not_improved = screening.not_improved[column]
    p_value = screening.not_improved_p[column]
    is_luck = p_value >= TEST_LEVEL  # not where no standard error is known
    if not_improved > NOT_IMPROVED and not is_luck:
        models = screening.models_compared[column]
        evidence = f"{round(not_improved * models)} of {models} models did not improve"
        untuned = screening.untuned[column]
        if untuned:
            evidence += f"; for {untuned} of them the untuned model was used"
        evidence += f"; the limit is {100 * NOT_IMPROVED:.0f} %"
        if np.isfinite(p_value):
            evidence += f", exceeded by more than test noise ({format_p_value(p_value)})"
        faults.append((FlagReason.NO_IMPROVEMENT, evidence))
    return faults


def _check_scores(
    screening: Screening, final: ScoreMatrix, column: int, floor: float
) -> list[Fault]:
    """Return whether the scores of a task sit at the ceiling or at the floor."""
    if not final.higher_is_better[column]:
        return []
    scored = np.isfinite(final.values[:, column])
    scores = final.values[scored, column]
    faults = []
    median = float(np.median(scores)) if len(scores) else np.nan
    if CEILING <= median <= screening.best[column] <= 1.0:
        faults.append(
            (
                FlagReason.CEILING,
                f"half of the models score {median:.3f} or more; the limit is {CEILING:g}",
            )
        )
    at_floor = share_at_floor(scores, final.stderr[scored, column], floor)
    if at_floor > 0.5:
        evidence = f"{100 * at_floor:.0f} % of models score no better than a guess ({floor:.2f})"
        faults.append((FlagReason.FLOOR, evidence))
    return faults


def share_at_floor(scores: Floats, errors: Floats, chance_score: float) -> float:
    """Return the share of models whose interval ends near the chance level; 0 where no standard error is known."""
    tested = np.isfinite(errors)
    if not tested.any():
        return 0.0
    upper_ends = scores[tested] + 2 * errors[tested]
    highest_guess = chance_score + FLOOR_SHARE * (1 - chance_score)
    return float((upper_ends <= highest_guess).mean())


def _check_size(resolved: float, expected: float, final: ScoreMatrix, column: int) -> list[Fault]:
    """Return whether a test is too small for models that differ as on the other tasks."""
    has_models = np.isfinite(final.values[:, column]).sum() >= ENOUGH_MODELS
    if not (has_models and resolved < RESOLVED and expected < RESOLVED):
        return []
    evidence = (
        f"{100 * resolved:.0f} % of model pairs differ significantly; with the gaps of the other tasks "
        f"it would be {100 * expected:.0f} %, under {100 * RESOLVED:.0f} %"
    )
    return [(FlagReason.SMALL_TEST, evidence)]


def _expect_resolution(matrix: ScoreMatrix) -> Floats:
    """Return the share of pairs that each test would resolve if models differed as they do on the other tasks."""
    models, tasks = matrix.shape
    expected = np.full(tasks, np.nan)
    noise = nan_mean(matrix.stderr**2, axis=0)
    first_of_pair, second_of_pair = np.triu_indices(models, 1)
    score_gaps = np.abs(
        matrix.values[first_of_pair] - matrix.values[second_of_pair]
    )  # (pairs, tasks)
    scales = [metric.scale for metric in matrix.metrics]
    for column in range(tasks):
        comparable_tasks = []
        for position in range(tasks):
            if position != column and scales[position] == scales[column]:
                comparable_tasks.append(position)
        gaps_of_others = score_gaps[:, comparable_tasks]
        known_gaps = gaps_of_others[np.isfinite(gaps_of_others)]
        if len(known_gaps) and np.isfinite(noise[column]):
            threshold = norm.ppf(0.5 + LEVEL / 2) * np.sqrt(2 * noise[column])
            expected[column] = float((known_gaps > threshold).mean())
    return expected


def _test_not_improved(
    direct: ScoreMatrix, tuned: ScoreMatrix | None, families: Mapping[str, str]
) -> Floats:
    """Return P that test noise leaves so many models no better, by task; NaN where no error is known.

    Of models that gain little a small test leaves many no better. So many are expected by luck where the share that is
    allowed truly is no better and all others gain what the median model does; a family of near copies counts once.
    Only whole families exceed the limit: two of eight are no more than its 1.6, rounded up.
    """
    p_values = np.full(len((tuned or direct).tasks), np.nan)
    if tuned is None:
        return p_values
    before, errors_before, _ = direct.arrange(tuned.models, tuned.tasks)
    gains = (tuned.values - before) * tuned.sign
    errors = np.hypot(tuned.stderr, errors_before)
    family = code_families(tuned.models, families)
    for column, metric in enumerate(tuned.metrics):
        is_known = np.isfinite(gains[:, column]) & np.isfinite(errors[:, column])
        if not is_known.any():
            continue
        least_gain = LEAST_GAIN * (100.0 if metric.scale == "percent" else 1.0)
        typical_gain = max(least_gain, float(np.median(gains[is_known, column])))
        noise = np.maximum(errors[is_known, column], 1e-12)
        by_luck = float(norm.sf(typical_gain / noise).mean())
        is_no_better = gains[is_known, column] <= 0
        _, unit_of_model = np.unique(family[is_known], return_inverse=True)
        models_of_unit = np.bincount(unit_of_model)
        shares = np.bincount(unit_of_model, weights=is_no_better) / models_of_unit
        units = len(models_of_unit)
        allowed = math.ceil(NOT_IMPROVED * units)
        others = math.floor(shares.sum() + ROUNDING) - allowed
        p_values[column] = 1.0
        if others > 0:
            p_values[column] = float(binom.sf(others - 1, units - allowed, by_luck))
    return p_values


def _measure_gains(direct: ScoreMatrix, tuned: ScoreMatrix) -> Floats:
    """Return what tuning gains each model on each task of the tuned scores; NaN where a score is missing."""
    before, _, _ = direct.arrange(tuned.models, tuned.tasks)
    return (tuned.values - before) * tuned.sign


def _count_untuned(direct: ScoreMatrix, tuned: ScoreMatrix | None) -> npt.NDArray[np.intp]:
    """Return how many models have the score of the untuned model after tuning, by task."""
    if tuned is None:
        return np.zeros(len(direct.tasks), dtype=np.intp)
    return np.asarray((_measure_gains(direct, tuned) == 0).sum(axis=0), dtype=np.intp)


def _count_compared(direct: ScoreMatrix, tuned: ScoreMatrix | None) -> npt.NDArray[np.intp]:
    """Return how many models have a score before and after tuning, by task."""
    if tuned is None:
        return np.zeros(len(direct.tasks), dtype=np.intp)
    gains = _measure_gains(direct, tuned)
    return np.asarray(np.isfinite(gains).sum(axis=0), dtype=np.intp)


def _share_not_improved(direct: ScoreMatrix, tuned: ScoreMatrix | None) -> Floats:
    """Return the share of models whose score after tuning is no better than before, by task of the tuned scores."""
    if tuned is None:
        return np.full(len(direct.tasks), np.nan)
    gains = _measure_gains(direct, tuned)
    return nan_mean(np.where(np.isfinite(gains), gains <= 0, np.nan), axis=0)
