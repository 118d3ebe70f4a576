"""Which differences between models are real.

From standard errors, two models differ on a task when |a - b| exceeds z·sqrt(s_a² + s_b²) (appendix C). On the same
items McNemar's exact test is sharper: it looks only at those that one of the two gets right (a value above one half).
Over many pairs, Benjamini–Hochberg keeps the share of false discoveries down. With insignificant differences as ties,
agreement is tau-b on the pairwise signs (appendix C.2), since such ties are not transitive and make no ranking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, false_discovery_control, norm

from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.correlation import kendall_of_significant_differences, z_of_difference
from potentia.errors import InputError
from potentia.values.findings import Bars, Chart, Finding, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

POWER = 0.8


@dataclass(frozen=True)
class Significance(Finding):
    """How much of a matrix's ranking is real: resolved pairs per task."""

    protocol: Protocol
    level: float
    models: int
    tasks: tuple[str, ...]
    pairs: tuple[int, ...]  # pairs of models that could be compared, per task
    significant: tuple[int, ...]  # by the z test
    discoveries: tuple[int, ...]  # after Benjamini–Hochberg over all pairs of the task
    detectable: tuple[float, ...]  # smallest difference found with 80 % power
    items: tuple[int, ...]  # stored documents that the models share, per task
    by_items: tuple[int, ...]  # pairs that differ on them by McNemar's exact test
    item_discoveries: tuple[int, ...]  # of these after Benjamini–Hochberg

    def tables(self) -> Sequence[Table]:
        """Return the resolved pairs per task."""
        stored = any(self.items)
        columns = ["task", "pairs", "significant", "share", "after BH", "detectable"]
        cells = [
            self.tasks,
            self.pairs,
            self.significant,
            self.shares,
            self.discoveries,
            self.detectable,
        ]
        if stored:
            columns += ["items", "McNemar", "after BH"]
            cells += [
                [x if n else None for n, x in zip(self.items, of, strict=True)]
                for of in self._by_items()
            ]
        doubt = f"{100 * (1 - self.level):.0f} % level"
        title = (
            f"Pairs of models that differ significantly ({self.protocol.label}, {doubt}, z test)"
        )
        note = f"detectable: the smallest difference found with {POWER:.0%} power, at the median standard error."
        note += (
            " McNemar: exact test on the stored items that models share; sharper than errors."
            if stored
            else ""
        )
        return [Table(title, columns, zip(*cells, strict=True), note)]

    def _by_items(self) -> tuple[tuple[int, ...], ...]:
        return self.items, self.by_items, self.item_discoveries

    @property
    def shares(self) -> list[float]:
        """The share of pairs that differ, per task; NaN where none could be compared."""
        return [
            f / p if p else float("nan") for f, p in zip(self.significant, self.pairs, strict=True)
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the resolved share per task; the heat map of tau-b is that of ``measure_agreement``."""
        name, label = f"resolved-{self.protocol}", self.protocol.label
        title = f"Share of model pairs that each task resolves: {label}"
        caption = f"Pairs of models whose difference is significant at the {100 * (1 - self.level):.0f} % level."
        bars = {label: self.shares}
        return [
            Bars(name, title, caption, self.tasks, bars, y_label="share of pairs", group="resolved")
        ]


def measure_significance(
    matrix: ScoreMatrix, outcomes: Outcomes | None = None, *, level: float = LEVEL
) -> Significance:
    """Test every pair of models on every task, by standard errors and, where ``outcomes`` are stored, by items."""
    pairs, significant = count_significant_pairs(matrix, level=level)
    kept, shared = [], []
    for task in matrix.tasks:
        kept.append(
            int((benjamini_hochberg(pair_p_values(matrix.select(tasks=[task]))) <= 1 - level).sum())
        )
        right = align_outcomes(matrix.models, (outcomes or {}).get(task, {}))[2]
        p = mcnemar_p_values(right > 0.5) if right.size else np.zeros(0)
        real = benjamini_hochberg(p[:, None]) if len(p) else p
        shared.append(
            (
                right.shape[1] if len(p) else 0,
                int((p < 1 - level).sum()),
                int((real < 1 - level).sum()),
            )
        )
    items, by_items, item_discoveries = zip(*shared, strict=True) if shared else ((), (), ())
    detectable = tuple(detectable_difference(matrix, level=level).tolist())
    about = matrix.protocol, level, matrix.shape[0], matrix.tasks
    return Significance(
        *about, pairs, significant, tuple(kept), detectable, items, by_items, item_discoveries
    )


def pair_z_scores(matrix: ScoreMatrix) -> Floats:
    """Return z of every pair of models on every task: (pairs, tasks) in the order of ``np.triu_indices``.

    Positive where the first is better. NaN where a score or a standard error is missing; two scores without any error
    differ infinitely or not at all.
    """
    a, b = np.triu_indices(matrix.shape[0], 1)
    values = matrix.oriented()
    return z_of_difference(values[a], matrix.stderr[a], values[b], matrix.stderr[b])


def pair_p_values(matrix: ScoreMatrix) -> Floats:
    """Two-sided p values of ``pair_z``."""
    return np.asarray(2.0 * norm.sf(np.abs(pair_z_scores(matrix))))


def count_significant_pairs(
    matrix: ScoreMatrix, *, level: float = LEVEL
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return, per task, how many pairs of models could be compared and how many differ significantly."""
    pairs, apart = [], []
    for task in matrix.tasks:  # one by one: a thousand models are half a million pairs
        z = np.abs(pair_z_scores(matrix.select(tasks=[task])))
        pairs.append(int((~np.isnan(z)).sum()))
        apart.append(int((z > norm.ppf(0.5 + level / 2)).sum()))
    return tuple(pairs), tuple(apart)


def tau_b_matrix(
    matrix: ScoreMatrix, *, level: float = LEVEL, weights: npt.ArrayLike | None = None
) -> Floats:
    """Tau-b between all tasks with insignificant differences as ties (appendix C.2), under draws of models."""
    threshold = float(norm.ppf(0.5 + level / 2))
    return kendall_of_significant_differences(
        matrix.oriented(), matrix.stderr, threshold, weights=weights
    )


def significant_order(
    values: Floats, stderr: Floats, *, level: float = LEVEL
) -> npt.NDArray[np.bool_]:
    """Return the partial order of one task, ``[a, b]`` true where a significantly beats b (algorithm 1)."""
    if not (np.isfinite(values).all() and np.isfinite(stderr).all()):
        raise InputError("the significant order needs a score and a standard error of every model")
    threshold = norm.ppf(0.5 + level / 2)
    margin = threshold * np.sqrt(stderr[:, None] ** 2 + stderr[None, :] ** 2)
    return np.asarray(values[:, None] - values[None, :] > margin)


def benjamini_hochberg(p: Floats) -> Floats:
    """Benjamini–Hochberg adjusted p values of each column; NaN stays NaN and counts for nothing."""
    columns = np.asarray(p, dtype=np.float64)
    flat = columns.reshape(len(columns), -1)
    adjusted = np.full_like(flat, np.nan)
    for k in range(flat.shape[1]):
        known = np.isfinite(flat[:, k])
        if known.any():
            adjusted[known, k] = false_discovery_control(flat[known, k])
    return adjusted.reshape(columns.shape)


def detectable_difference(matrix: ScoreMatrix, *, level: float = LEVEL) -> Floats:
    """Return the smallest true difference of two models that a test at ``level`` finds with 80 % power, per task."""
    middle = np.array(
        [np.median(c[np.isfinite(c)]) if np.isfinite(c).any() else np.nan for c in matrix.stderr.T]
    )
    return np.asarray((norm.ppf(0.5 + level / 2) + norm.ppf(POWER)) * np.sqrt(2.0) * middle)


def mcnemar_p_value(first_only: int, second_only: int) -> float:
    """McNemar's exact two-sided p value from the two counts of items on which only one model is right."""
    apart = first_only + second_only
    return (
        float(min(1.0, 2.0 * binom.cdf(min(first_only, second_only), apart, 0.5))) if apart else 1.0
    )


def mcnemar_p_values(right: npt.NDArray[np.bool_]) -> Floats:
    """McNemar's exact p value of every pair of rows of (models, items), in the order of ``np.triu_indices``."""
    hits = right.astype(np.float64)
    only = hits @ (1.0 - hits).T  # [a, b]: items that a alone got right
    a, b = np.triu_indices(len(right), 1)
    apart = only[a, b] + only[b, a]
    p = 2.0 * binom.cdf(np.minimum(only[a, b], only[b, a]), apart, 0.5)
    return np.where(apart > 0, np.minimum(p, 1.0), 1.0)


def outcome_tables(matrix: ScoreMatrix, outcomes: Outcomes) -> dict[str, Floats]:
    """Return (models, items) for each task whose items can stand for its scores, to draw their noise from.

    Every model with a score must have the items, all on the same documents, and their mean must be the score: that
    leaves out metrics of a whole set (mcc, f1), whose noise comes from their standard errors.
    """
    tables = {}
    for column, task in enumerate(matrix.tasks):
        scored = list(compress(matrix.models, np.isfinite(matrix.values[:, column])))
        models, _, values = align_outcomes(scored, outcomes.get(task, {}))
        if not scored or models != scored or values.shape[1] == 0:
            continue
        rows = np.isfinite(matrix.values[:, column])
        if np.allclose(values.mean(axis=1), matrix.values[rows, column], atol=1e-6):
            tables[task] = np.full((len(rows), values.shape[1]), np.nan)
            tables[task][rows] = values
    return tables


def align_outcomes(
    models: Sequence[str], outcomes: Mapping[str, Mapping[int, float]]
) -> tuple[list[str], list[int], Floats]:
    """Return the models with items, the documents that all of them have, and the values (models, documents)."""
    present = [m for m in models if outcomes.get(m)]
    documents = sorted(set.intersection(*(set(outcomes[m]) for m in present))) if present else []
    values = np.array([[outcomes[m][d] for d in documents] for m in present], dtype=np.float64)
    return present, documents, values.reshape(len(present), len(documents))


def estimate_test_sizes(matrix: ScoreMatrix) -> dict[str, float]:
    """Return the number of test items behind each task: as stored, or as the standard errors imply.

    Where the number is not stored, an accuracy p with the harness's standard error s comes from p(1 - p)/s² + 1 items;
    it is believed only where the models agree on it, which they do for means of zeros and ones and for nothing else.
    """
    sizes = {}
    for column, task in enumerate(matrix.tasks):
        stored = matrix.n[:, column]
        if np.isfinite(stored).any():
            sizes[task] = float(np.nanmedian(stored))
            continue
        value, stderr = matrix.values[:, column], matrix.stderr[:, column]
        usable = (
            np.isfinite(value)
            & np.isfinite(stderr)
            & (stderr > 0)
            & (value > 0.02)
            & (value < 0.98)
        )
        if usable.any():
            implied = value[usable] * (1 - value[usable]) / stderr[usable] ** 2 + 1
            middle = float(np.median(implied))
            if np.quantile(np.abs(implied - middle), 0.75) < 0.01 * middle:
                sizes[task] = float(round(middle))
    return sizes
