"""Screening of tasks: which of them should not be ranked on, and why (appendix A.1).

A task is flagged when it has too few training examples to prepare the models, when tuning leaves too many models no
better, when its ranking may have nothing to do with that of the other tasks, when its scores sit at the ceiling or the
floor, or when its test split is too small to tell the models at hand apart. A flag carries its evidence and a
suggestion; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from enum import StrEnum

import numpy as np
from scipy.stats import kendalltau

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.rankings.agreement import select_shared
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.first_place import ENOUGH_MODELS
from potentia.analysis.stats.significance import count_significant_pairs
from potentia.analysis.stats.standardize import mean_z_scores
from potentia.values.findings import Chart, Finding, Heatmap, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

TRAIN_EXAMPLES = 1_000  # fewer cannot prepare a model (section 3.1)
NOT_IMPROVED = 0.20  # share of models that tuning leaves no better (appendix A.1)
UNRELATED = 0.05  # p value above which a task may as well rank at random
LEAST_MODELS = 8  # fewer cannot show that a task ranks as the others do
CEILING = 0.97  # a score in [0, 1] above which there is nothing left to tell apart
RESOLVED = 0.25  # share of model pairs that a test split should resolve


class FlagReason(StrEnum):
    """Why a task should not be ranked on."""

    FEW_TRAINING_EXAMPLES = "few training examples"
    NO_IMPROVEMENT = "no improvement after tuning"
    UNRELATED = "does not rank as the others"
    CEILING = "ceiling"
    FLOOR = "floor"
    SMALL_TEST = "test split too small"


SUGGESTIONS = {
    FlagReason.FEW_TRAINING_EXAMPLES: "drop the task, or add training data",
    FlagReason.NO_IMPROVEMENT: "drop the task, or check its prompt and the tuning recipe",
    FlagReason.UNRELATED: (
        "check the prompt template and the metric; drop the task if they are right"
    ),
    FlagReason.CEILING: "use a harder task",
    FlagReason.FLOOR: "use an easier task, or stronger models",
    FlagReason.SMALL_TEST: "use more test items, or report it without ranking on it",
}


@dataclass(frozen=True)
class TaskFlag:
    """One reason to distrust a task, with the evidence."""

    task: str
    reason: FlagReason
    evidence: str
    suggestion: str


@dataclass(frozen=True)
class Screening(Finding):
    """The flags of every task, and the measures behind them."""

    protocol: Protocol
    tasks: tuple[str, ...]
    flags: tuple[TaskFlag, ...]
    train_examples: Floats  # per task; NaN where unknown
    not_improved: Floats  # share of models
    agreement: Floats  # tau with the mean of the other tasks
    unrelated: Floats  # p value of no agreement against a positive one; NaN of few models
    best: Floats  # best score
    resolved: Floats  # share of pairs of models that differ significantly

    @property
    def flagged_tasks(self) -> tuple[str, ...]:
        """The tasks with at least one flag."""
        flagged = {flag.task for flag in self.flags}
        return tuple(task for task in self.tasks if task in flagged)

    def tables(self) -> Sequence[Table]:
        """Return the flags, then the measures of every task."""
        note = "No task is flagged."
        if self.flags:
            note = "Leave flagged tasks out with --exclude-flagged."
        flags = Table(
            f"Screening: {len(self.flagged_tasks)} of {len(self.tasks)} tasks flagged",
            ("task", "reason", "evidence", "suggestion"),
            map(astuple, self.flags),
            note,
        )
        columns = (
            "task",
            "train",
            "not improved",
            "τ with the others",
            "best score",
            "resolved pairs",
            "flags",
        )
        measures = Table(
            "Screening: measures",
            columns,
            zip(
                self.tasks,
                [None if np.isnan(count) else int(count) for count in self.train_examples],
                self.not_improved,
                self.agreement,
                self.best,
                self.resolved,
                [self._format_reasons(task) for task in self.tasks],
                strict=True,
            ),
            "Not improved: share of models that tuning left no better. "
            "τ: with the mean of the other tasks.",
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
            ("not improved", "τ with the others", "resolved pairs"),
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
    level: float = LEVEL,
) -> Screening:
    """Flag the tasks of a study; every check runs only where its evidence exists.

    ``direct`` gives the ranking and its resolution; ``tuned`` the effect of tuning, and, where given, ceiling and
    resolution after it. ``chance`` maps a task to the score of a guess (default 0), for the floor.
    """
    if tuned is not None:
        direct, tuned = select_shared(direct, tuned)
    final = tuned or direct
    agreement, unrelated = _agree_with_others(direct.oriented())
    pairs, significant = count_significant_pairs(final, level=level)
    compared = np.array(pairs)
    resolved = np.full(len(direct.tasks), np.nan)
    np.divide(np.array(significant), compared, out=resolved, where=compared > 0)
    screening = Screening(
        protocol=final.protocol,
        tasks=direct.tasks,
        flags=(),
        train_examples=np.array([float(train_examples.get(t, np.nan)) for t in direct.tasks]),
        not_improved=_share_not_improved(direct, tuned),
        agreement=agreement,
        unrelated=unrelated,
        best=np.fmax.reduce(final.oriented(), axis=0) * final.sign,
        resolved=resolved,
    )
    flags: list[TaskFlag] = []
    for column, task in enumerate(direct.tasks):
        for reason, evidence in _check_task(screening, final, column, chance.get(task, 0.0)):
            flags.append(TaskFlag(task, reason, evidence, SUGGESTIONS[reason]))
    return replace(screening, flags=tuple(flags))


def _check_task(
    screening: Screening, final: ScoreMatrix, column: int, floor: float
) -> list[tuple[FlagReason, str]]:
    """Return every reason to distrust a task, with the evidence."""
    scored = np.isfinite(final.values[:, column])
    scores = final.values[scored, column]
    errors = final.stderr[scored, column]
    higher_is_better = final.sign[column] > 0
    reasons = []
    train = screening.train_examples[column]
    if train < TRAIN_EXAMPLES:
        evidence = f"{train:.0f} training examples, under {TRAIN_EXAMPLES:,}"
        reasons.append((FlagReason.FEW_TRAINING_EXAMPLES, evidence))
    not_improved = screening.not_improved[column]
    if not_improved > NOT_IMPROVED:
        evidence = f"{not_improved:.0%} of models no better, over {NOT_IMPROVED:.0%}"
        reasons.append((FlagReason.NO_IMPROVEMENT, evidence))
    p_value = screening.unrelated[column]
    if p_value > UNRELATED:
        tau = screening.agreement[column]
        evidence = f"τ {tau:.2f} with the mean of the other tasks (p = {p_value:.2f})"
        reasons.append((FlagReason.UNRELATED, evidence))
    median = float(np.median(scores)) if len(scores) else np.nan
    if higher_is_better and CEILING <= median <= screening.best[column] <= 1.0:
        reasons.append((FlagReason.CEILING, f"half of the models score {median:.3f} or more"))
    share_at_floor = _share_at_floor(scores, errors, floor)
    if higher_is_better and share_at_floor > 0.5:
        evidence = (
            f"{share_at_floor:.0%} of models are within two standard errors of chance ({floor:.2f})"
        )
        reasons.append((FlagReason.FLOOR, evidence))
    resolved = screening.resolved[column]
    if resolved < RESOLVED and len(scores) >= ENOUGH_MODELS:
        evidence = f"{resolved:.0%} of model pairs differ significantly, under {RESOLVED:.0%}"
        reasons.append((FlagReason.SMALL_TEST, evidence))
    return reasons


def _share_at_floor(scores: Floats, errors: Floats, floor: float) -> float:
    """Return the share of models within two standard errors of a guess; 0 where no error is known."""
    tested = np.isfinite(errors)
    if not tested.any():
        return 0.0
    return float((scores[tested] <= floor + 2 * errors[tested]).mean())


def _agree_with_others(values: Floats) -> tuple[Floats, Floats]:
    """Return τ of each task with the mean z score of the others, and the p value of none against a positive one."""
    tasks = values.shape[1]
    tau = np.full(tasks, np.nan)
    p_values = np.full(tasks, np.nan)
    if tasks < 2:
        return tau, p_values
    for column in range(tasks):
        others = mean_z_scores(np.delete(values, column, axis=1))
        both = np.isfinite(others) & np.isfinite(values[:, column])
        if both.sum() < 2:
            continue
        test = kendalltau(values[both, column], others[both], alternative="greater")
        tau[column] = test.statistic
        if both.sum() >= LEAST_MODELS and tasks > 2:
            p_values[column] = test.pvalue
    return tau, p_values


def _share_not_improved(direct: ScoreMatrix, tuned: ScoreMatrix | None) -> Floats:
    """Return the share of models whose score after tuning is no better than before."""
    if tuned is None:
        return np.full(len(direct.tasks), np.nan)
    gains = tuned.oriented() - direct.oriented()
    return nan_mean(np.where(np.isfinite(gains), gains <= 0, np.nan), axis=0)
