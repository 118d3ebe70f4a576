"""Screening of tasks: which of them should not be ranked on, and why (appendix A.1).

A task is flagged when it has too few training examples to prepare the models, when tuning leaves too many models no
better, when its ranking may have nothing to do with that of the other tasks, when its scores sit at the ceiling or the
floor, or when its test split is too small to tell the models at hand apart. A flag carries its evidence and a
suggestion; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau

from potentia.analysis.rankings.aggregate import mean_z
from potentia.analysis.rankings.agreement import shared
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.first import FEW_MODELS
from potentia.analysis.stats.significance import count_pairs
from potentia.values.findings import Cell, Chart, Finding, Heatmap, Table
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
class Flag:
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
    flags: tuple[Flag, ...]
    train_examples: Floats  # per task; NaN where unknown
    not_improved: Floats  # share of models
    agreement: Floats  # tau with the mean of the other tasks
    unrelated: Floats  # p value of no agreement against a positive one; NaN of few models
    best: Floats  # best score
    resolved: Floats  # share of pairs of models that differ significantly

    @property
    def flagged(self) -> tuple[str, ...]:
        """Tasks with at least one flag."""
        return tuple(t for t in self.tasks if any(f.task == t for f in self.flags))

    def tables(self) -> Sequence[Table]:
        """Return the flags, then the measures of every task."""
        measures: list[tuple[Cell, ...]] = []
        for k, task in enumerate(self.tasks):
            train = None if np.isnan(self.train_examples[k]) else int(self.train_examples[k])
            each = (float(m[k]) for m in (self.not_improved, self.agreement, self.best, self.resolved))
            measures.append((task, train, *each, ", ".join(f.reason for f in self.flags if f.task == task) or "–"))
        columns = ("task", "train", "not improved", "τ with the others", "best score", "resolved pairs", "flags")
        note = "Not improved: share of models that tuning left no better. τ: with the mean of the other tasks."
        return [
            Table(
                f"Screening: {len(self.flagged)} of {len(self.tasks)} tasks flagged",
                ("task", "reason", "evidence", "suggestion"),
                tuple((f.task, f.reason, f.evidence, f.suggestion) for f in self.flags),
                note="Leave flagged tasks out with --exclude-flagged." if self.flags else "No task is flagged.",
            ),
            Table("Screening: measures", columns, tuple(measures), note, digits=2),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the measures as a heat map."""
        return [
            Heatmap(
                name="screening",
                title="Screening of tasks",
                caption="High values of the first and low values of the others speak against a task.",
                rows=self.tasks,
                columns=("not improved", "τ with the others", "resolved pairs"),
                values=np.stack([self.not_improved, self.agreement, self.resolved], axis=1),
                low=min(0.0, float(np.nanmin(self.agreement, initial=0.0))),
                high=1.0,
            )
        ]


def screen(
    direct: ScoreMatrix,
    tuned: ScoreMatrix | None = None,
    *,
    train_examples: Mapping[str, float] | None = None,
    chance: Mapping[str, float] | None = None,
    level: float = LEVEL,
) -> Screening:
    """Flag the tasks of a study; every check runs only where its evidence exists.

    ``direct`` gives the ranking and its resolution; ``tuned`` the effect of tuning, and, where given, ceiling and
    resolution after it. ``chance`` maps a task to the score of a guess (default 0), for the floor.
    """
    if tuned is not None:
        direct, tuned = shared(direct, tuned)
    final = tuned or direct
    tasks = direct.tasks
    train = np.array([float((train_examples or {}).get(t, np.nan)) for t in tasks])
    not_improved = _not_improved(direct, tuned)
    agreement, unrelated = _with_others(direct.oriented())
    pairs, apart = (np.array(counts) for counts in count_pairs(final, level=level))
    resolved = np.divide(apart, pairs, out=np.full(len(tasks), np.nan), where=pairs > 0)
    up = np.asarray(final.higher_is_better, dtype=bool)
    best = np.fmax.reduce(final.oriented(), axis=0) * np.where(up, 1.0, -1.0)
    flags: list[Flag] = []
    for k, task in enumerate(tasks):
        values = final.values[np.isfinite(final.values[:, k]), k]
        middle, floor = float(np.median(values)) if len(values) else np.nan, (chance or {}).get(task, 0.0)
        low = _at_floor(final, k, floor)
        evidence = {
            "few training examples": (
                train[k] < TRAIN_EXAMPLES, f"{train[k]:.0f} training examples, under {TRAIN_EXAMPLES:,}"
            ),
            "no improvement after tuning": (
                not_improved[k] > NOT_IMPROVED, f"{not_improved[k]:.0%} of models no better, over {NOT_IMPROVED:.0%}"
            ),
            "does not rank as the others": (
                unrelated[k] > UNRELATED,
                f"τ {agreement[k]:.2f} with the mean of the other tasks (p = {unrelated[k]:.2f})",
            ),
            "ceiling": (
                up[k] and CEILING <= middle <= best[k] <= 1.0, f"half of the models score {middle:.3f} or more"
            ),
            "floor": (
                up[k] and low > 0.5, f"{low:.0%} of models are within two standard errors of chance ({floor:.2f})"
            ),
            "test split too small": (
                resolved[k] < RESOLVED and len(values) >= FEW_MODELS,
                f"{resolved[k]:.0%} of model pairs differ significantly, under {RESOLVED:.0%}",
            ),
        }  # fmt: skip
        flags += [Flag(task, why, told, SUGGESTIONS[why]) for why, (found, told) in evidence.items() if found]
    return Screening(final.protocol, tasks, tuple(flags), train, not_improved, agreement, unrelated, best, resolved)


def _with_others(values: Floats) -> tuple[Floats, Floats]:
    """Kendall's τ of each task with the mean z score of the others, and the p value of none against a positive one."""
    tasks = values.shape[1]
    tau, p = np.full(tasks, np.nan), np.full(tasks, np.nan)
    for k in range(tasks) if tasks > 1 else ():
        others = mean_z(np.delete(values, k, axis=1))
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


def _at_floor(matrix: ScoreMatrix, column: int, chance: float) -> float:
    value, error = matrix.values[:, column], matrix.stderr[:, column]
    known = np.isfinite(value) & np.isfinite(error)
    return float((value[known] <= chance + 2 * error[known]).mean()) if known.any() else 0.0
