"""The one rule behind "first", "better", "tied" and "holds": draws from the posterior of every model's overall score.

The overall score is a mean over tasks of scores on a common scale: the scores themselves where models are few, z scores
from five models on (with two models a z score only counts signs). A missing cell is drawn from a model + task fit, so
that what was not measured widens the interval; models that share no task with the others are shown apart.

What is drawn besides depends on what can be said. With five tasks or more the tasks are a sample: the mean over tasks
varies as Student's t with the covariance of the models over tasks, which holds test noise, seeds, the choice of tasks
and the likeness of relatives at once. With fewer tasks nothing can be said of others, and test noise alone is drawn,
paired where models answered the same documents. Where a score has no standard error nothing is claimed at all.

A claim needs a probability of 97.5 %: for two equal models that is the two-sided test at 5 %, for more it is stricter.
The first of many is partly first by luck, so from five models on the draws behind P(first) are shrunk (``shrunk``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import rankdata

from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.first_place import (
    CLAIM_PROBABILITY,
    ENOUGH_MODELS,
    ENOUGH_TASKS,
    covariance_root,
    first_place_shares,
    paired_noise_covariance,
    shrink_draws,
)
from potentia.facts import variant_of
from potentia.values.findings import Finding, Table, picked
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

if TYPE_CHECKING:
    from potentia.analysis.completion import CellSampler

CLOSE = 0.05  # a model at least so likely to be first is named beside the first
DRAWS, LEAST_DRAWS, MOST_NUMBERS = 10_000, 400, 2_000_000
CHUNK = 500
PAIRED_MODELS = 1_000  # from more, the covariance of test noise takes too long

SCORE, MEAN_SCORE, MEAN_Z = "score", "mean score", "mean z"
NAMES = {SCORE: "score", MEAN_SCORE: "mean score over tasks", MEAN_Z: "mean z score over tasks"}


@dataclass(frozen=True)
class Ranking(Finding):
    """Models from best to worst under one protocol, and how likely each is the first."""

    protocol: Protocol
    method: str
    models: tuple[str, ...]  # best first
    tasks: tuple[str, ...]
    scores: Floats  # (models,) by the method; higher is better
    ranks: Floats
    low: Floats  # best rank within the interval; NaN without standard errors
    high: Floats
    p_first: Floats  # NaN without standard errors
    task_counts: tuple[int, ...]  # tasks of each model
    generalizes: bool  # whether the draws are of other tasks like these too
    unranked: tuple[str, ...] = ()  # models that share no task with these
    level: float = LEVEL
    task_scales: Floats = field(
        default_factory=lambda: np.zeros(0), repr=False
    )  # (tasks,): by which scores are multiplied
    draws: Floats = field(default_factory=lambda: np.zeros((0, 0)), repr=False)  # (draws, models)

    @property
    def reason(self) -> str:
        """Why this method."""
        return {
            SCORE: "there is one task",
            MEAN_SCORE: f"z scores need {ENOUGH_MODELS} models",
            MEAN_Z: "tasks count alike, whatever their scale",
        }[self.method]

    @property
    def can_claim(self) -> bool:
        """Whether anything can be claimed: every score has a standard error."""
        return bool(len(self.draws))

    @property
    def first(self) -> str:
        """The model that is most likely the best; without standard errors the one with the best score."""
        return self.models[int(np.argmax(np.round(self.p_first, 2))) if self.can_claim else 0]

    @property
    def is_first_certain(self) -> bool:
        """Whether the first may be called the best."""
        return (
            self.can_claim
            and len(self.models) > 1
            and float(self.p_first.max()) >= CLAIM_PROBABILITY
        )

    @property
    def rivals(self) -> tuple[str, ...]:
        """The models that may be first too, the likeliest first; none where the first is sure or nothing is known."""
        if self.is_first_certain or not self.can_claim:
            return ()
        first, chance = self.first, dict(zip(self.models, self.p_first.tolist(), strict=True))
        others = sorted((m for m in self.models if m != first), key=lambda m: -chance[m])
        return tuple(m for k, m in enumerate(others) if chance[m] >= CLOSE or k == 0)

    @property
    def rival_variants(self) -> tuple[str, ...]:
        """The rivals that are the first itself in other bits, at another step or treated; none where all models are."""
        base = variant_of(self.first)
        if all(variant_of(m) == base for m in self.models):
            return ()
        return tuple(m for m in self.rivals if variant_of(m) == base)

    def rank_of(self, model: str) -> float | None:
        """Return a model's rank; None where it has none."""
        return float(self.ranks[self.models.index(model)]) if model in self.models else None

    def probability_better(self, one: str, two: str) -> float:
        """Return the probability that one model is better than the other; NaN where nothing is known of it."""
        if not self.can_claim or one not in self.models or two not in self.models:
            return math.nan
        gap = self.draws[:, self.models.index(one)] - self.draws[:, self.models.index(two)]
        return float(np.mean(gap > 0) + 0.5 * np.mean(gap == 0))

    def tables(self) -> Sequence[Table]:
        """Return the ranking."""
        ranks, spans = map("{:g}".format, self.ranks), map(format_rank_span, self.low, self.high)
        rows = zip(
            self.models, ranks, spans, self.p_first, self.task_counts, self.scores, strict=True
        )
        title = f"Overall ranking ({self.protocol.label}, {len(self.models)} models × {len(self.tasks)} tasks)"
        columns = ("model", "rank", f"{self.level:.0%} interval", "P(first)", "tasks", self.method)
        note = f"By the {NAMES[self.method]}: {self.reason}."
        if self.unranked:
            note += f" Not ranked, for want of a common task: {', '.join(self.unranked)}."
        return [Table(title, columns, rows, note, digits=2)]


def format_rank_span(low: float, high: float) -> str | None:
    """Write an interval of ranks."""
    return f"{low:.0f}–{high:.0f}" if math.isfinite(low) else None


def decide_ranking(
    matrix: ScoreMatrix,
    items: Outcomes | None = None,
    *,
    unseen: CellSampler | None = None,
    level: float = LEVEL,
    seed: int = 0,
    draws: int = DRAWS,
) -> Ranking:
    """Rank the models of a matrix over all its tasks.

    ``items`` are stored outcomes, for paired noise; ``unseen`` draws the missing cells, else the model + task fit does.
    """
    apart: tuple[str, ...] = ()
    if unseen is None:
        matrix, apart = _joined(matrix)
    models, tasks = matrix.shape
    known = np.isfinite(matrix.values)
    method = SCORE if tasks == 1 else MEAN_SCORE if models < ENOUGH_MODELS else MEAN_Z
    general = float(np.median(known.sum(axis=1))) >= ENOUGH_TASKS
    rng = np.random.default_rng(seed)
    count = int(np.clip(MOST_NUMBERS // max(models, 1), LEAST_DRAWS, draws))
    sign = matrix.sign
    noise = [task_noise(matrix, k, items) for k in range(tasks)]
    whole: Iterator[
        tuple[Floats, int]
    ]  # scores with the missing cells drawn, and for how many draws
    if known.all():
        scale = scales(matrix, method)
        x = matrix.oriented() * scale
        estimate, whole = x.mean(axis=1), iter([(x[None], count)])
    elif unseen is not None:
        filled = np.where(known, matrix.values, np.concatenate(list(unseen(2 * LEAST_DRAWS, rng))))
        scale = scales(matrix, method, filled)
        estimate = (filled.mean(axis=0) * sign * scale).mean(axis=1)
        whole = (
            (np.where(known, matrix.values, c) * sign * scale, len(c)) for c in unseen(count, rng)
        )
    else:
        scale = scales(matrix, method)
        x, error = matrix.oriented() * scale, np.where(known, matrix.stderr * scale, 0.0)
        estimate = _additive(x[None], known)[0].mean(axis=2)[0]
        whole = _fitted(x, error, known, count, general, rng)
        noise = noise if general else []  # drawn with the cells
    drawn = np.zeros((0, models))
    if np.isfinite(matrix.stderr[known]).all() and models > 1:
        drawn = np.concatenate(
            [_draw(chunk, known, noise, scale, size, general, rng) for chunk, size in whole]
        )
        drawn = drawn - drawn.mean(axis=0) + estimate
    order = np.argsort(-estimate, kind="stable")
    low = high = chance = np.full(models, np.nan)
    if len(drawn):
        places = rankdata(-drawn, axis=1)
        tail = (1 - level) / 2
        low, high = np.quantile(places, [tail, 1 - tail], axis=0)
        chance = first_place_shares(
            shrink_draws(drawn, np.random.default_rng([seed, 1]))
            if models >= ENOUGH_MODELS
            else drawn
        )
    ranks = rankdata(-np.round(estimate, 12))
    scores, ranks, low, high, chance = (x[order] for x in (estimate, ranks, low, high, chance))
    names, measured = picked(matrix.models, order), tuple(known.sum(axis=1)[order].tolist())
    about = general, apart, level, scale, drawn[:, order]
    return Ranking(
        matrix.protocol,
        method,
        names,
        matrix.tasks,
        scores,
        ranks,
        low,
        high,
        chance,
        measured,
        *about,
    )


def _joined(matrix: ScoreMatrix) -> tuple[ScoreMatrix, tuple[str, ...]]:
    """Return the largest part whose models are tied by common tasks, and the models apart."""
    known = np.isfinite(matrix.values)
    row, column = np.nonzero(known)
    models, tasks = matrix.shape
    graph = coo_array(
        (np.ones(len(row)), (row, models + column)), shape=(models + tasks, models + tasks)
    )
    _, label = connected_components(graph, directed=False)
    sizes = np.bincount(label[:models], minlength=label.max() + 1)
    tied = label[:models] == np.argmax(sizes)
    if tied.all():
        return matrix, ()
    return matrix.select(models=tied, tasks=known[tied].any(axis=0)), tuple(
        compress(matrix.models, ~tied)
    )


def scales(matrix: ScoreMatrix, method: str, filled: Floats | None = None) -> Floats:
    """What a score of each task is multiplied by before the mean is taken.

    With missing cells ``filled`` (draws, models, tasks) says how far apart all models are: the few that were measured
    on a task, often the small ones, would make it count too much.
    """
    values = matrix.values
    size = np.nanmax(np.abs(values), axis=0)
    if method == MEAN_Z:
        spread = (
            np.nanstd(values, axis=0)
            if filled is None
            else np.sqrt(filled.var(axis=1).mean(axis=0))
        )
        varies = spread > 1e-12 * np.maximum(size, 1e-300)
        return np.asarray(np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0))
    if (size <= 1.0).all() or len(set(matrix.metrics)) == 1:
        return np.ones(len(size))
    return np.asarray(1.0 / np.where(size <= 1.0, 1.0, size))


def _additive(x: Floats, known: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Fit model + task to the known cells of each (k, models, tasks); return the fit and the residuals."""
    here = known.astype(np.float64)
    y = np.where(known, x, 0.0)
    rows, columns = here.sum(axis=1), here.sum(axis=0)
    system = np.diag(columns) - here.T @ (here / rows[:, None])  # tasks, with the models eliminated
    right = y.sum(axis=1) - (y.sum(axis=2) / rows) @ here
    task = right @ np.linalg.pinv(system, hermitian=True)
    model = (y.sum(axis=2) - task @ here.T) / rows
    fit = model[:, :, None] + task[:, None, :]
    return fit, np.where(known, y - fit, 0.0)


def _fitted(
    x: Floats,
    error: Floats,
    known: npt.NDArray[np.bool_],
    count: int,
    general: bool,
    rng: np.random.Generator,
) -> Iterator[tuple[Floats, int]]:
    """Yield the scores with the missing cells drawn from the model + task fit, all that it leaves open drawn too.

    Luck in a measured cell moves the cells that are predicted from it, so of these tasks alone both are drawn at once.
    """
    _, left = _additive(x[None], known)
    freedom = int(known.sum()) - sum(x.shape) + 1
    variance = float((left**2).sum()) / freedom if freedom > 0 else float(np.nanvar(x))
    variance = max(variance, float((error[known] ** 2).mean()))
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        luck = np.sqrt(max(freedom, 1) / rng.chisquare(max(freedom, 1), size=size))[:, None, None]
        spread = math.sqrt(variance) * luck
        luck_of_cells = rng.standard_normal((size, *x.shape))
        fit, _ = _additive(np.where(known, x, 0.0) + spread * luck_of_cells, known)
        seen = x if general else x + error * luck_of_cells
        yield np.where(known, seen, fit + spread * rng.standard_normal(fit.shape)), size


def task_noise(matrix: ScoreMatrix, column: int, items: Outcomes | None) -> Floats:
    """Return the covariance of the test noise of the models on one task: (models, models), or (models,) if diagonal.

    Models that answered the same documents have the covariance of their outcomes. One document more of each kind
    counts: who was never wrong on few documents may yet be.
    """
    error = np.nan_to_num(matrix.stderr[:, column])
    n = matrix.n[:, column]
    share = np.isfinite(n) & (np.abs(np.nan_to_num(matrix.values[:, column])) <= 1.0)
    error = np.sqrt(
        error**2 + np.where(share, 1.0 / np.maximum(np.where(share, n, 1.0), 1.0), 0.0) ** 2
    )
    table = (
        paired_outcomes(matrix, column, items)
        if items and len(matrix.models) <= PAIRED_MODELS
        else None
    )
    if table is None:
        return np.asarray(error)
    rows, values = table
    covariance: Floats = np.diag(error**2)
    covariance[np.ix_(rows, rows)] = paired_noise_covariance(error[rows], values)
    return covariance


def noise_covariance(matrix: ScoreMatrix, column: int, items: Outcomes | None) -> Floats:
    """Return ``noise_of`` as a whole matrix."""
    noise = task_noise(matrix, column, items)
    return np.diag(noise**2) if noise.ndim == 1 else noise


def paired_outcomes(
    matrix: ScoreMatrix, column: int, items: Outcomes | None
) -> tuple[npt.NDArray[np.intp], Floats] | None:
    """Return the rows whose score is the mean of stored items, and their (models, documents) on shared documents."""
    stored = (items or {}).get(matrix.tasks[column], {})
    values = matrix.values[:, column]
    rows = [k for k, m in enumerate(matrix.models) if is_mean_of(stored.get(m, {}), values[k])]
    table = stack_outcomes([stored[matrix.models[k]] for k in rows])
    return None if table is None else (np.array(rows), table)


def is_mean_of(outcomes: Mapping[int, float], score: float) -> bool:
    """Whether a score is the mean of these outcomes, by document."""
    return len(outcomes) > 1 and math.isclose(
        sum(outcomes.values()) / len(outcomes), score, abs_tol=1e-6
    )


def stack_outcomes(several: Sequence[Mapping[int, float]]) -> Floats | None:
    """Return outcomes by document as (rows, documents); None where they are not of the same documents, two at least."""
    if (
        len(several) < 2
        or len(several[0]) < 2
        or any(one.keys() != several[0].keys() for one in several)
    ):
        return None
    documents = sorted(several[0])
    return np.array([[one[d] for d in documents] for one in several])


def _draw(
    whole: Floats,
    known: npt.NDArray[np.bool_],
    noise: Sequence[Floats],
    scale: Floats,
    count: int,
    general: bool,
    rng: np.random.Generator,
) -> Floats:
    """Draw the overall score of every model ``count`` times from (1 or count, models, tasks): (count, models)."""
    tasks = whole.shape[2]
    mean = whole.mean(axis=2)
    if general:
        off = whole - mean[:, :, None]
        off = off - off.mean(axis=1, keepdims=True)  # what all models share changes no rank
        seen = sum(
            float(np.trace(n) if n.ndim == 2 else (n**2).sum()) * s**2
            for n, s in zip(noise, scale, strict=True)
        )
        spread = float((off**2).sum(axis=(1, 2)).mean()) * tasks / (tasks - 1)
        floor = (
            max(1.0, math.sqrt(seen / spread)) if spread > 0 else 1.0
        )  # scores that vary less than their noise
        weights = rng.standard_normal((count, tasks)) * np.sqrt(
            (tasks - 1) / rng.chisquare(tasks - 1, size=(count, 1))
        )
        weights *= floor / math.sqrt(tasks * (tasks - 1))
        moved = weights @ off[0].T if len(off) == 1 else np.einsum("kt,kmt->km", weights, off)
        return np.asarray(mean + moved)
    total = np.zeros((count, whole.shape[1]))
    for k, part in enumerate(noise):
        g = rng.standard_normal((count, whole.shape[1]))
        total += (
            scale[k] * known[:, k] * (g * part if part.ndim == 1 else g @ covariance_root(part).T)
        )
    return np.asarray(mean + total / tasks)
