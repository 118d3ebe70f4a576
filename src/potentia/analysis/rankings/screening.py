"""Screening of tasks: which of them should not be ranked on, and why (appendix A.1).

A task is flagged when it has too few training examples to prepare the models, when tuning leaves too many models no
better, when its ranking may have nothing to do with that of the other tasks, when its scores sit at the ceiling or the
floor, or when its test split is too small to tell the models at hand apart. A flag carries its evidence and a
suggestion; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

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

SUGGESTIONS = {
    "few training examples": "drop the task, or add training data",
    "no improvement after tuning": "drop the task, or check its prompt and the tuning recipe",
    "does not rank as the others": "check the prompt template and the metric; drop the task if they are right",
    "ceiling": "use a harder task",
    "floor": "use an easier task, or stronger models",
    "test split too small": "use more test items, or report it without ranking on it",
}


@dataclass(frozen=True)
class TaskFlag:
    """One reason to distrust a task, with the evidence."""

    task: str
    reason: str
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
        """Tasks with at least one flag."""
        return tuple(t for t in self.tasks if any(f.task == t for f in self.flags))

    def tables(self) -> Sequence[Table]:
        """Return the flags, then the measures of every task."""
        train = (None if np.isnan(count) else int(count) for count in self.train_examples)
        reasons = (
            ", ".join(f.reason for f in self.flags if f.task == task) or "–" for task in self.tasks
        )
        parts = train, self.not_improved, self.agreement, self.best, self.resolved, reasons
        columns = (
            "task",
            "train",
            "not improved",
            "τ with the others",
            "best score",
            "resolved pairs",
            "flags",
        )
        note = "Not improved: share of models that tuning left no better. τ: with the mean of the other tasks."
        title = f"Screening: {len(self.flagged_tasks)} of {len(self.tasks)} tasks flagged"
        told = (
            "Leave flagged tasks out with --exclude-flagged."
            if self.flags
            else "No task is flagged."
        )
        return [
            Table(
                title, ("task", "reason", "evidence", "suggestion"), map(astuple, self.flags), told
            ),
            Table(
                "Screening: measures", columns, zip(self.tasks, *parts, strict=True), note, digits=2
            ),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the measures as a heat map."""
        caption = "High values of the first and low values of the others speak against a task."
        columns = ("not improved", "τ with the others", "resolved pairs")
        values = np.stack([self.not_improved, self.agreement, self.resolved], axis=1)
        low = min(0.0, float(np.nanmin(self.agreement, initial=0.0)))
        return [
            Heatmap(
                "screening", "Screening of tasks", caption, self.tasks, columns, values, low, 1.0
            )
        ]


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
    train = np.array([float(train_examples.get(t, np.nan)) for t in direct.tasks])
    agreement, unrelated = _with_others(direct.oriented())
    pairs, apart = (np.array(counts) for counts in count_significant_pairs(final, level=level))
    resolved = np.divide(apart, pairs, out=np.full(len(direct.tasks), np.nan), where=pairs > 0)
    best = np.fmax.reduce(final.oriented(), axis=0) * final.sign
    found = Screening(
        final.protocol,
        direct.tasks,
        (),
        train,
        _not_improved(direct, tuned),
        agreement,
        unrelated,
        best,
        resolved,
    )
    flags: list[TaskFlag] = []
    for k, task in enumerate(direct.tasks):
        told = _evidence(found, final, k, chance.get(task, 0.0))
        flags += [
            TaskFlag(task, why, evidence, SUGGESTIONS[why])
            for why, (bad, evidence) in told.items()
            if bad
        ]
    return replace(found, flags=tuple(flags))


def _evidence(
    of: Screening, final: ScoreMatrix, k: int, floor: float
) -> dict[str, tuple[bool, str]]:
    """Return whether each reason to distrust a task holds, in the order of ``SUGGESTIONS``, and the evidence."""
    known = np.isfinite(final.values[:, k])
    values, errors, up = final.values[known, k], final.stderr[known, k], final.sign[k] > 0
    middle = float(np.median(values)) if len(values) else np.nan
    tested = np.isfinite(errors)
    low = float((values[tested] <= floor + 2 * errors[tested]).mean()) if tested.any() else 0.0
    train, no_better, tau, p = (
        of.train_examples[k],
        of.not_improved[k],
        of.agreement[k],
        of.unrelated[k],
    )
    evidence = (
        (train < TRAIN_EXAMPLES, f"{train:.0f} training examples, under {TRAIN_EXAMPLES:,}"),
        (no_better > NOT_IMPROVED, f"{no_better:.0%} of models no better, over {NOT_IMPROVED:.0%}"),
        (p > UNRELATED, f"τ {tau:.2f} with the mean of the other tasks (p = {p:.2f})"),
        (
            up and CEILING <= middle <= of.best[k] <= 1.0,
            f"half of the models score {middle:.3f} or more",
        ),
        (
            up and low > 0.5,
            f"{low:.0%} of models are within two standard errors of chance ({floor:.2f})",
        ),
        (
            of.resolved[k] < RESOLVED and len(values) >= ENOUGH_MODELS,
            f"{of.resolved[k]:.0%} of model pairs differ significantly, under {RESOLVED:.0%}",
        ),
    )
    return dict(zip(SUGGESTIONS, evidence, strict=True))


def _with_others(values: Floats) -> tuple[Floats, Floats]:
    """Kendall's τ of each task with the mean z score of the others, and the p value of none against a positive one."""
    tasks = values.shape[1]
    tau, p = np.full(tasks, np.nan), np.full(tasks, np.nan)
    for k in range(tasks) if tasks > 1 else ():
        others = mean_z_scores(np.delete(values, k, axis=1))
        known = np.isfinite(others) & np.isfinite(values[:, k])
        if known.sum() > 1:
            tau[k], chance = kendalltau(values[known, k], others[known], alternative="greater")
            p[k] = chance if known.sum() >= LEAST_MODELS and tasks > 2 else np.nan
    return tau, p


def _not_improved(direct: ScoreMatrix, tuned: ScoreMatrix | None) -> Floats:
    """Share of models whose score after tuning is no better than before."""
    if tuned is None:
        return np.full(len(direct.tasks), np.nan)
    gain = tuned.oriented() - direct.oriented()
    return nan_mean(np.where(np.isfinite(gain), gain <= 0, np.nan), axis=0)
