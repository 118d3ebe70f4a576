"""Completion: the cells nobody has run yet and the final ranking, with intervals that hold.

After train-before-test the matrix of scores is nearly of rank one, so a few cells say much about the rest. The factor
model (``factors``) joins whatever is known: the study's measured cells, other tuned scores as history, scores and
perplexity before tuning, and facts. What comes out is kept apart from what went in: ``measured`` holds scores, and
``mean``, ``low`` and ``high`` hold predictions for the other cells alone. The ranking is by mean z score over tasks,
as in ``aggregate_ranks``: what the finished study would say. Its probabilities come from joint draws of all unseen
cells.

How far predictions were off where it can be checked: intervals that cover as often as they say.

The factor model gives every unseen cell a mean and a standard deviation; how often the truth lies within so many of
these is learned from the known scores. Rows that are nearly whole are hidden, fold by fold, down to the cells that
the study's unfinished rows have, and predicted from the others; folds keep a lineage together where the study asks
about models without known relatives, or a whole family where it asks about a family that nobody has measured. The
distances in standard deviations replace the normal quantiles. A few distances say little, so they are pooled with
those of a normal distribution.

Families differ in how well they are predicted, and a new one may be the worst so far. Where a family is new, its scale
is drawn as well: the scales of the known families (root mean square distances) are taken for a normal sample on the
log scale, a new one follows its predictive distribution (a Student t, with a weak belief about the spread), and the
distances of all families, each divided by its own scale and each family counting alike, are multiplied with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata
from scipy.stats import t as student

from potentia.analysis.completion.factors import (
    MOST_ROWS,
    CellPosterior,
    FactorProblem,
    FactorSolution,
    FactorWeights,
    fit_weights,
    predict_cells,
    solve_abilities,
)
from potentia.analysis.completion.features import LinkScale, build_problem
from potentia.analysis.rank_chart import plot_ranks
from potentia.analysis.stats.bootstrap import kendall_by_row, percentile_interval
from potentia.analysis.stats.standardize import mean_z_scores
from potentia.errors import InputError
from potentia.facts import ModelTable
from potentia.facts import models as known_models
from potentia.values.findings import Bars, Chart, Finding, Heatmap, Interval, Table, picked
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

Rows = npt.NDArray[np.intp]
Labels = npt.NDArray[np.str_]
FOLDS = 5
PSEUDO = 150  # distances of a normal distribution in the pool
LEAST_CELLS = 40  # known cells of a study that tell something of its unknown ones
PSEUDO_ROWS, PSEUDO_CELLS = 10, 30  # that were off as far as expected
SCALE_SPREAD, SCALE_WEIGHT = (
    0.3,
    2.0,
)  # families' scales differ by so much on the log scale; a belief worth two of them
KNOWN_SHARE = 0.3  # of a family's rows that are whole, from which on the family is known
LIKE = 3  # a hidden row takes the gaps of one of so many unfinished rows of like ability
_LEVELS = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995])


@dataclass(frozen=True)
class IntervalCalibration:
    """The distance, in standard deviations of the model, within which the truth lies with each of ``_LEVELS``."""

    distances: Floats  # (levels,)
    checked: int  # known cells that were hidden and predicted
    wider: float  # by which the standard deviation of a row's sum has to be multiplied
    freedom: int  # of that estimate

    def distance(self, level: float) -> float:
        """Half-width of the interval of this level, in standard deviations of the model."""
        grid, normal = ndtri(0.5 + _LEVELS / 2.0), float(ndtri(0.5 + level / 2.0))
        beyond = normal * float(self.distances[-1] / grid[-1])
        return beyond if normal > grid[-1] else float(np.interp(normal, grid, self.distances))


def pool_distances(distances: Floats, rows: Floats) -> IntervalCalibration:
    """Make the calibration from observed distances |truth − mean| / sd of cells and of whole rows' sums.

    A ranking hangs on sums. Rows show errors of the abilities, which move all cells of a row, and cells the others,
    so both count alike; how well the scale is known goes by the rows, which are fewer.
    """
    wider = np.sqrt((_mean_square(distances, PSEUDO_CELLS) + _mean_square(rows, PSEUDO_ROWS)) / 2.0)
    return IntervalCalibration(
        _quantiles(distances), len(distances), float(wider), len(rows) + PSEUDO_ROWS
    )


def _mean_square(distances: Floats, pseudo: int) -> float:
    return (float((distances**2).sum()) + pseudo) / (len(distances) + pseudo)


def _quantiles(distances: Floats) -> Floats:
    found = np.quantile(np.concatenate([np.abs(distances), _typical(PSEUDO)]), _LEVELS)
    found[0] = 0.0
    return np.asarray(found)


def distances_for_new_family(distances: Sequence[Floats]) -> Floats:
    """Return the distances at ``_LEVELS`` for a family not seen yet from those of each known one."""
    known = [np.abs(d) for d in distances if len(d)]
    typical = _typical(PSEUDO // 10)
    scales = np.array([np.sqrt(np.mean(np.concatenate([d, typical]) ** 2)) for d in known])
    middle, count = float(np.log(scales).mean()), len(scales)
    squares = float(((np.log(scales) - middle) ** 2).sum())
    freedom = count - 1 + SCALE_WEIGHT
    spread = np.sqrt((squares + SCALE_WEIGHT * SCALE_SPREAD**2) / freedom * (1.0 + 1.0 / count))
    drawn = np.exp(middle + spread * student.ppf(_shares(60), freedom))
    shapes = [np.quantile(d / scale, _shares(200)) for d, scale in zip(known, scales, strict=True)]
    quantiles = np.quantile(
        np.multiply.outer(np.concatenate([*shapes, _typical(200)]), drawn), _LEVELS
    )
    quantiles[0] = 0.0
    return np.asarray(quantiles)


def _typical(count: int) -> Floats:
    """Distances of a normal distribution, evenly over its quantiles."""
    return np.asarray(ndtri(0.5 + _shares(count) / 2.0))


def _shares(count: int) -> Floats:
    return (np.arange(count) + 0.5) / count


def calibrate_intervals(
    problem: FactorProblem,
    solved: FactorSolution,
    study: Rows,
    *,
    lineage: Sequence[str],
    family: Sequence[str],
) -> IntervalCalibration:
    """Hide known scores as the study's are hidden and see how far the predictions are off.

    Whole rows take the gaps of unfinished ones. Where too few are whole, each row has half of its known cells hidden;
    that check may widen a cell's interval, not narrow it.
    """
    known, rng = problem.known, np.random.default_rng(0)
    open_rows = study[~known[study].all(axis=1)]
    share = known.mean(axis=1)
    whole = np.flatnonzero(share >= np.clip(share[open_rows].max(initial=0.0), 0.6, 0.9))
    whole = whole[~np.isin(whole, open_rows)]
    families = np.asarray(family)
    new = len(open_rows) > 0 and _met(families, open_rows, whole) < KNOWN_SHARE
    labels = families if new else _groups(np.asarray(lineage), open_rows, whole, rng)
    enough = len(open_rows) > 0 and len(np.unique(labels[whole])) >= (3 if new else 4)
    if enough:
        rows, hidden = whole, known[whole] & ~known[_alike(solved.mean[0], whole, open_rows, rng)]
    else:
        rows = study[known[study].sum(axis=1) > 1]
        hidden = np.array([_half(row, rng) for row in known[rows]]).reshape(
            len(rows), known.shape[1]
        )
        labels = np.arange(len(known)).astype(str)
    if hidden.sum() < (1 if enough else LEAST_CELLS):
        return pool_distances(np.zeros(0), np.zeros(0))
    if len(rows) > MOST_ROWS:  # enough of them tell
        few = np.sort(rng.permutation(len(rows))[:MOST_ROWS])
        rows, hidden = rows[few], hidden[few]
    if len(known) > MOST_ROWS:
        problem, labels, rows = problem.select_rows(rows), labels[rows], np.arange(len(rows))
    found = _by_rows(problem, rows, hidden, labels[rows], rng, new=bool(new and enough))
    return (
        found
        if enough
        else replace(found, distances=np.maximum(found.distances, _quantiles(np.zeros(0))))
    )


def _alike(ability: Floats, whole: Rows, open_rows: Rows, rng: np.random.Generator) -> Rows:
    """Return an unfinished row of like ability for every whole one."""
    apart = np.abs(ability[whole][:, None] - ability[open_rows])
    near = np.argsort(apart, axis=1, kind="stable")[:, :LIKE]
    return open_rows[near[np.arange(len(whole)), rng.integers(near.shape[1], size=len(whole))]]


def _half(known: npt.NDArray[np.bool_], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Choose half of the known cells of a row."""
    cells = np.flatnonzero(known)
    return np.isin(np.arange(len(known)), rng.permutation(cells)[: len(cells) // 2])


def _met(families: Labels, open_rows: Rows, whole: Rows) -> float:
    """How much of its family an open row can lean on: the share of the family's rows that are whole, on average."""
    there = np.array([(families[whole] == f).sum() for f in families[open_rows]], dtype=np.float64)
    missing = np.array([(families[open_rows] == f).sum() for f in families[open_rows]])
    return float((there / (there + missing)).mean())


def _groups(lineage: Labels, open_rows: Rows, whole: Rows, rng: np.random.Generator) -> Labels:
    """Lineages, as many of them taken apart row by row as open rows have a relative that is known.

    A base model helps to predict its instruct version where it is known, and the check must lean on it as often.
    """
    share = float(np.isin(lineage[open_rows], lineage[whole]).mean()) if len(open_rows) else 0.0
    names = np.unique(lineage)
    apart = np.isin(lineage, names[rng.random(len(names)) < share])
    return np.where(apart, np.array([f"row {i}" for i in range(len(lineage))]), lineage)


def _by_rows(
    problem: FactorProblem,
    rows: Rows,
    hide: npt.NDArray[np.bool_],
    labels: Labels,
    rng: np.random.Generator,
    *,
    new: bool,
) -> IntervalCalibration:
    """Hide these cells of the rows, a fold of groups at a time, learn everything anew, and predict them."""
    groups, tasks = rng.permutation(np.unique(labels)), np.arange(problem.z.shape[1])
    off: dict[str, list[Floats]] = {}  # by family, or all together
    sums = [np.zeros(0)]
    for fold in range(min(FOLDS, len(groups))):
        inside = np.isin(labels, groups[fold::FOLDS]) & hide.any(axis=1)
        some, gone = rows[inside], hide[inside]
        if not len(some):
            continue
        hidden = np.zeros_like(problem.known)
        hidden[some] = gone
        less = problem.hide_cells(hidden)
        posterior = predict_cells(less, solve_abilities(less, fit_weights(less)), some, tasks)
        error = np.where(gone, problem.z[some] - posterior.mean, 0.0)
        distance = error / np.sqrt(np.maximum(posterior.variance, 1e-12))
        for label, row, cells in zip(labels[inside].tolist(), distance, gone, strict=True):
            off.setdefault(label if new else "", []).append(row[cells])
        total, _ = posterior.covariance_with(gone.astype(np.float64))
        sums.append(error.sum(axis=1) / np.sqrt(np.maximum(np.diag(total), 1e-12)))
    families = [np.concatenate(one) for one in off.values()]
    found = pool_distances(np.concatenate([np.zeros(0), *families]), np.concatenate(sums))
    return (
        replace(found, distances=distances_for_new_family(families)) if len(families) > 1 else found
    )


DRAWS = 1_000
LEVEL = 0.95
# How far apart the models will be in all is known to so much, before anything is measured: tasks that agree more than
# expected stretch the mean z scores of all models alike.
STRETCH = 0.05
TIE = 1e-9  # aggregates closer than this are equal but for rounding


@dataclass(frozen=True)
class FittedModel:
    """What a completion learned, to be used again while more cells of the same study come in."""

    weights: FactorWeights
    scale: LinkScale
    calibration: IntervalCalibration


@dataclass(frozen=True)
class Completion(Finding):
    """Measured cells, predicted cells and the ranking of the finished study, as far as it can be known."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    higher_is_better: tuple[bool, ...]  # (tasks,)
    measured: npt.NDArray[np.bool_]  # (models, tasks)
    values: Floats  # measured scores; NaN where predicted
    mean: Floats  # predicted scores (medians); NaN where measured
    low: Floats  # ends of their intervals
    high: Floats
    level: float
    aggregate: Floats  # (models,): mean z score of the completed matrix; higher is better
    rank: Floats  # (models,): 1 is best
    rank_low: Floats  # best rank within the interval
    rank_high: Floats
    p_best: Floats  # (models,)
    p_rank: Floats  # (models, models): [m, r] = P(rank of m is r + 1)
    agreement: Interval  # expected τ of this ranking with the finished study's
    history: int  # rows of history that were used
    checked: int  # known cells that the intervals were calibrated on
    fitted: FittedModel = field(repr=False)
    posterior: CellPosterior = field(repr=False)
    noise: Floats = field(
        repr=False
    )  # (models,): standard error of the aggregates by the tests that were made
    draws: Floats = field(repr=False)  # (draws, models): aggregates as they may turn out

    def p_top(self, k: int) -> Floats:
        """P(rank ≤ k) of every model."""
        return np.asarray(self.p_rank[:, : max(k, 0)].sum(axis=1))

    @property
    def check(self) -> str:
        """Say what the intervals were checked on."""
        if not self.checked:
            return (
                "Too few cells are known to check the intervals; they assume a normal distribution."
            )
        cells = "1 known cell was" if self.checked == 1 else f"{self.checked:,} known cells were"
        return f"{cells} hidden and predicted to check the intervals."

    def order(self) -> list[str]:
        """Return the models from the best to the worst."""
        return list(picked(self.models, np.argsort(self.rank, kind="stable")))

    def tables(self) -> Sequence[Table]:
        """Return the ranking with its probabilities, and the predicted cells."""
        top = min(3, len(self.models))
        in_top = self.p_top(top)
        count = self.measured.sum(axis=1)
        spans = map("{:g} ({:.0f}–{:.0f})".format, self.rank, self.rank_low, self.rank_high)
        cells = (f"{k} of {len(self.tasks)}" for k in count)
        rows = list(zip(self.models, spans, self.p_best, in_top, cells, strict=True))
        row, task = np.nonzero(~self.measured)
        spread = (x[row, task] for x in (self.mean, self.low, self.high))
        unseen = list(zip(picked(self.models, row), picked(self.tasks, task), *spread, strict=True))
        low, high = self.agreement.low, self.agreement.high
        tau = f"{self.agreement.value:.3f} ({100 * self.level:.0f} % interval {low:.3f} to {high:.3f})"
        known = f"{int(count.sum())} of {self.measured.size} cells"
        title = f"Ranking of the finished study, predicted from {known} ({self.protocol})"
        columns = ("model", "rank", "P(best)", f"P(top {top})", "measured")
        note = (
            f"Ranks with {self.level:.0%} intervals; they and both probabilities allow for test noise. "
            f"The finished ranking should agree with this one: τ {tau}."
        )
        ranking = Table(
            title, columns, picked(rows, np.argsort(self.rank, kind="stable")), note, digits=2
        )
        title = f"Predicted cells ({self.protocol}); none of them is measured"
        note = f"{self.level:.0%} intervals. {self.check}"
        predicted = Table(title, ("model", "task", "predicted", "low", "high"), unseen, note)
        return [ranking, predicted] if unseen else [ranking]

    def charts(self) -> Sequence[Chart]:
        """Return P(best), the rank intervals, and how sure each predicted cell is."""
        order, level, p = np.argsort(self.rank, kind="stable"), f"{self.level:.0%}", self.protocol
        names = picked(self.models, order)
        width = np.where(self.measured, 0.0, self.high - self.low)
        best, ranks = f"Probability to be the best model: {p}", f"Rank in the finished study: {p}"
        known, bars = (
            f"From {int(self.measured.sum())} of {self.measured.size} cells.",
            {"P(best)": self.p_best[order]},
        )
        span, of = (
            f"Predicted rank with {level} intervals.",
            (self.models, self.rank, self.rank_low, self.rank_high),
        )
        unseen = f"Width of the {level} interval of each predicted cell; 0 where measured."
        cells = f"What is not measured yet: {p}", unseen, names, self.tasks, width[order]
        return [
            Bars(f"planning-best-{p}", best, known, names, bars, y_label="P(best)"),
            plot_ranks(f"planning-ranks-{p}", ranks, span, *of),
            Heatmap(f"planning-cells-{p}", *cells, low=0.0, unit="width"),
        ]


def complete_matrix(
    tuned: ScoreMatrix,
    *,
    direct: ScoreMatrix | Sequence[ScoreMatrix] | None = None,
    history: ScoreMatrix | Sequence[ScoreMatrix] | None = None,
    facts: ModelTable | None = None,
    chances: Mapping[str, float] | None = None,
    draws: int = DRAWS,
    fitted: FittedModel | None = None,
    check: bool = True,
) -> Completion:
    """Predict the missing cells of ``tuned`` (NaN) and the ranking of its models over all its tasks.

    ``direct`` holds scores before tuning (tasks, corpora; several protocols as a list) of any models of study or
    history; ``history`` tuned scores of other models or studies, on the same or other tasks; ``facts`` what is known
    of models (the shipped facts by default). Only finite cells of ``tuned`` are ever read. ``fitted``, from an
    earlier completion of the same study, saves learning the weights again; the result then depends on that completion
    too. Without ``check`` the intervals are those of a normal distribution.
    """
    if not tuned.models or not tuned.tasks:
        raise InputError("there is nothing to complete: no models or no tasks")
    before, past = _several(direct), _several(history)
    table = facts if facts is not None else known_models()
    problem, scale, kinship = build_problem(
        tuned, before, past, table, chances, fitted.scale if fitted else None
    )
    rows, tasks = np.arange(len(tuned.models)), np.arange(len(tuned.tasks))
    weights = fitted.weights if fitted else fit_weights(problem)
    solved = solve_abilities(problem, weights)
    if fitted:
        calibration = fitted.calibration
    elif check:
        calibration = calibrate_intervals(
            problem, solved, rows, lineage=kinship.lineage, family=kinship.family
        )
    else:
        calibration = pool_distances(np.zeros(0), np.zeros(0))
    posterior = predict_cells(problem, solved, rows, tasks)
    measured = np.isfinite(tuned.values)
    reach = calibration.distance(LEVEL) * np.sqrt(posterior.variance)
    middle, one, other = (scale.to_scores(posterior.mean + k * reach) for k in (0.0, -1.0, 1.0))
    completed = np.where(measured, tuned.values, middle)
    spread = expected_spread(completed, posterior, scale)
    oriented = completed * tuned.sign
    aggregate = divide_by_spread(oriented - oriented.mean(axis=0), spread).mean(
        axis=1
    )  # ``mean_z_scores`` where all is measured
    rng = np.random.default_rng(0)
    drawn = _draw_aggregates(tuned, posterior, scale, draws, rng)
    freedom = calibration.freedom
    wider = calibration.wider * np.sqrt(freedom / rng.chisquare(freedom, size=(draws, 1)))
    stretch = 1.0 + STRETCH * (1.0 - problem.known.mean()) * rng.standard_normal((draws, 1))
    drawn = aggregate * stretch + wider * (drawn - drawn.mean(axis=0))
    errors = divide_by_spread(
        np.where(measured, np.nan_to_num(tuned.stderr), 0.0), spread
    )  # drawn cells hold their noise
    noise = np.sqrt((errors**2).sum(axis=1)) / len(tasks)
    luck = np.random.default_rng([0, 1])  # of the tests; among models that tie, chance decides
    true = drawn + noise * luck.standard_normal(drawn.shape) + TIE * luck.uniform(size=drawn.shape)
    ranks = rankdata(-true, axis=1, method="ordinal").astype(int)  # (draws, models)
    shares = np.stack([np.bincount(column - 1, minlength=len(rows)) for column in ranks.T]) / draws
    tail = (1.0 - LEVEL) / 2.0
    alike = kendall_by_row(aggregate, drawn[: min(draws, max(20, 2_000_000 // len(rows) ** 2))])
    alike = np.nan_to_num(
        alike, nan=1.0 if len(rows) == 1 or measured.all() else 0.0
    )  # all tied: no order to agree on
    return Completion(
        protocol=tuned.protocol,
        models=tuned.models,
        tasks=tuned.tasks,
        higher_is_better=tuned.higher_is_better,
        measured=measured,
        values=np.where(measured, tuned.values, np.nan),
        mean=np.where(measured, np.nan, middle),
        low=np.where(measured, np.nan, np.minimum(one, other)),
        high=np.where(measured, np.nan, np.maximum(one, other)),
        level=LEVEL,
        aggregate=aggregate,
        rank=rankdata(-aggregate),
        rank_low=np.quantile(ranks, tail, axis=0, method="lower"),
        rank_high=np.quantile(ranks, 1.0 - tail, axis=0, method="higher"),
        p_best=shares[:, 0],
        p_rank=shares,
        agreement=percentile_interval(float(alike.mean()), alike, level=LEVEL),
        history=sum(len(m.models) for m in past),
        checked=calibration.checked,
        fitted=FittedModel(weights, scale, calibration),
        posterior=posterior,
        noise=noise,
        draws=drawn,
    )


def expected_spread(completed: Floats, posterior: CellPosterior, scale: LinkScale) -> Floats:
    """How far apart the models will be on each task: predictions lie closer together than the scores to come will.

    How hard the task is moves all models alike, and them no further apart.
    """
    rise = measure_steepness(posterior, scale)
    unseen = (rise**2 * posterior.variance).mean(axis=0) - rise.mean(axis=0) ** 2 * posterior.common
    return np.asarray(np.sqrt(completed.var(axis=0) + np.maximum(unseen, 0.0)))


def measure_steepness(posterior: CellPosterior, scale: LinkScale) -> Floats:
    """How much a score moves with its standardised link value, at the prediction."""
    step = 1e-3
    return np.abs(
        scale.to_scores(posterior.mean + step) - scale.to_scores(posterior.mean - step)
    ) / (2 * step)


def divide_by_spread(scores: Floats, spread: Floats) -> Floats:
    """Divide by how far apart the models are on each task; 0 where they are not."""
    return np.where(spread > 1e-12, scores / np.maximum(spread, 1e-12), 0.0)


def _draw_aggregates(
    tuned: ScoreMatrix,
    posterior: CellPosterior,
    scale: LinkScale,
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """Mean z score of every model in joint draws of the unseen cells: (draws, models).

    Cells are drawn as wide as the posterior has them; how wide their sums should be is ``Calibration.wider``.
    """
    measured = np.isfinite(tuned.values)
    if measured.all():
        return np.repeat(mean_z_scores(tuned.oriented())[None], draws, axis=0)
    result = []
    for chunk in posterior.draw_cells(draws, rng):
        scores = (
            np.where(measured, tuned.values, scale.to_scores(chunk)) * tuned.sign
        )  # (chunk, models, tasks)
        centred = scores - scores.mean(axis=1, keepdims=True)
        result.append(divide_by_spread(centred, scores.std(axis=1, keepdims=True)).mean(axis=2))
    return np.concatenate(result)


def _several(given: ScoreMatrix | Sequence[ScoreMatrix] | None) -> list[ScoreMatrix]:
    if given is None:
        return []
    return [given] if isinstance(given, ScoreMatrix) else list(given)
