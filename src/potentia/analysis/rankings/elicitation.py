"""Is the recipe enough? A sample of cells tuned with more capacity beside it, and whether the ranking changes.

A pair of models on a task is ordered otherwise where both ways tell the two apart beyond their noise (1.96 standard
errors each) and do not agree. The gain of a way is its mean advantage over the recipe.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.stats.kendall import kendall_matrix
from potentia.values.findings import Cell, Finding, Table
from potentia.values.scores import ScoreMatrix

SURE = 1.96


@dataclass(frozen=True)
class Way:
    """One way of tuning beside the recipe."""

    name: str
    gain: float  # over cells
    gain_error: float
    tau: float  # of the two rankings, the mean over tasks; NaN for fewer than three models
    pairs: int  # that both ways tell apart
    turned: tuple[str, ...]  # pairs ordered otherwise


@dataclass(frozen=True)
class Elicitation(Finding):
    """The recipe and other ways of tuning, cell by cell."""

    recipe: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    scores: Mapping[str, tuple[tuple[float, ...], ...]]  # by way, then model, then task
    ways: tuple[Way, ...]

    def sentences(self) -> list[str]:
        """Say of every way what it adds and whether it orders models otherwise."""
        said = []
        for way in self.ways:
            told = f"{way.name}: {way.gain:+.3f} ± {SURE * way.gain_error:.3f} over the recipe"
            turned = f"{len(way.turned)} of {way.pairs} pairs that both tell apart are ordered otherwise"
            said.append(f"{told}; {turned}{': ' + '; '.join(way.turned) if way.turned else ''}.")
        return said

    def tables(self) -> Sequence[Table]:
        """Return the ways beside the recipe, and the scores."""
        names = [self.recipe, *(way.name for way in self.ways)]
        summary = Table(
            "Is the recipe enough?",
            ("way", "gain", "±", "τ with the recipe", "pairs told apart", "ordered otherwise"),
            tuple(
                (w.name, w.gain, SURE * w.gain_error, None if np.isnan(w.tau) else w.tau, w.pairs, len(w.turned))
                for w in self.ways
            ),
            note=" ".join(self.sentences()),
        )
        rows: list[tuple[Cell, ...]] = [
            (model, task, *(self.scores[name][i][j] for name in names))
            for i, model in enumerate(self.models)
            for j, task in enumerate(self.tasks)
        ]
        return [summary, Table("Scores", ("model", "task", *names), tuple(rows))]


def find_elicitation(recipe: str, found: Mapping[str, ScoreMatrix]) -> Elicitation:
    """Compare every way's scores with the recipe's; all matrices have the same models and tasks."""
    base = found[recipe]
    ways = tuple(_way(name, base, other) for name, other in found.items() if name != recipe)
    scores = {name: tuple(tuple(map(float, row)) for row in matrix.values) for name, matrix in found.items()}
    return Elicitation(recipe, base.models, base.tasks, scores, ways)


def _way(name: str, base: ScoreMatrix, other: ScoreMatrix) -> Way:
    signs = np.array([1.0 if metric.higher_is_better else -1.0 for metric in base.metrics])
    gains = ((other.values - base.values) * signs).ravel()
    gains = gains[np.isfinite(gains)]
    error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else float("nan")
    pairs, turned = 0, []
    for j, task in enumerate(base.tasks):
        for a, b in itertools.combinations(range(len(base.models)), 2):
            one, two = (_difference(matrix, a, b, j) for matrix in (base, other))
            if one and two:
                pairs += 1
                if one != two:
                    turned.append(f"{base.models[a]} and {base.models[b]} on {task}")
    taus = [
        kendall_matrix(np.column_stack([base.values[:, j], other.values[:, j]]))[0, 1]
        for j in range(len(base.tasks))
        if len(base.models) > 2
    ]
    tau = float(np.nanmean(taus)) if taus else float("nan")
    return Way(name, float(gains.mean()) if len(gains) else float("nan"), error, tau, pairs, tuple(turned))


def _difference(matrix: ScoreMatrix, a: int, b: int, task: int) -> int:
    """Return the sign of a difference beyond its noise; 0 where there is none."""
    gap = matrix.values[a, task] - matrix.values[b, task]
    noise = SURE * np.hypot(matrix.stderr[a, task], matrix.stderr[b, task])
    return int(np.sign(gap)) if np.isfinite(gap) and abs(gap) > noise else 0
