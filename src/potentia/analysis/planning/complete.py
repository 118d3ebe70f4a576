"""Completion: the cells nobody has run yet and the final ranking, with intervals that hold.

After train-before-test the matrix of scores is nearly of rank one, so a few cells say much about the rest. The factor
model (``factors``) joins whatever is known: the study's measured cells, other tuned scores as history, scores and
perplexity before tuning, and facts. What comes out is kept apart from what went in: ``measured`` holds scores, and
``mean``, ``low`` and ``high`` hold predictions for the other cells alone. The ranking is by mean z score over tasks,
as in ``aggregate_ranks``: what the finished study would say. Its probabilities come from joint draws of all unseen
cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.planning.calibrate import Calibration, calibrate, pooled
from potentia.analysis.planning.factors import Posterior, Weights, learn, predict, solve
from potentia.analysis.planning.features import Scale, set_up
from potentia.analysis.rankings.aggregate import mean_z, rank_plot
from potentia.analysis.stats.bootstrap import interval, tau_rows
from potentia.errors import InputError
from potentia.facts import ModelTable
from potentia.facts import models as known_models
from potentia.values.findings import Bars, Chart, Finding, Heatmap, Interval, Table, picked
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

DRAWS = 1_000
LEVEL = 0.95
# How far apart the models will be in all is known to so much, before anything is measured: tasks that agree more than
# expected stretch the mean z scores of all models alike.
STRETCH = 0.05
TIE = 1e-9  # aggregates closer than this are equal but for rounding


@dataclass(frozen=True)
class Fitted:
    """What a completion learned, to be used again while more cells of the same study come in."""

    weights: Weights
    scale: Scale
    calibration: Calibration


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
    fitted: Fitted = field(repr=False)
    posterior: Posterior = field(repr=False)
    noise: Floats = field(repr=False)  # (models,): standard error of the aggregates by the tests that were made
    draws: Floats = field(repr=False)  # (draws, models): aggregates as they may turn out

    def p_top(self, k: int) -> Floats:
        """P(rank ≤ k) of every model."""
        return np.asarray(self.p_rank[:, : max(k, 0)].sum(axis=1))

    @property
    def check(self) -> str:
        """Say what the intervals were checked on."""
        if not self.checked:
            return "Too few cells are known to check the intervals; they assume a normal distribution."
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
        ranking = Table(title, columns, picked(rows, np.argsort(self.rank, kind="stable")), note, digits=2)
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
        known, bars = f"From {int(self.measured.sum())} of {self.measured.size} cells.", {"P(best)": self.p_best[order]}
        span, of = f"Predicted rank with {level} intervals.", (self.models, self.rank, self.rank_low, self.rank_high)
        unseen = f"Width of the {level} interval of each predicted cell; 0 where measured."
        cells = f"What is not measured yet: {p}", unseen, names, self.tasks, width[order]
        return [
            Bars(f"planning-best-{p}", best, known, names, bars, y_label="P(best)"),
            rank_plot(f"planning-ranks-{p}", ranks, span, *of),
            Heatmap(f"planning-cells-{p}", *cells, low=0.0, unit="width"),
        ]


def complete(
    tuned: ScoreMatrix,
    *,
    direct: ScoreMatrix | Sequence[ScoreMatrix] | None = None,
    history: ScoreMatrix | Sequence[ScoreMatrix] | None = None,
    facts: ModelTable | None = None,
    chances: Mapping[str, float] | None = None,
    draws: int = DRAWS,
    fitted: Fitted | None = None,
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
    problem, scale, kinship = set_up(tuned, before, past, table, chances, fitted.scale if fitted else None)
    rows, tasks = np.arange(len(tuned.models)), np.arange(len(tuned.tasks))
    weights = fitted.weights if fitted else learn(problem)
    solved = solve(problem, weights)
    if fitted:
        calibration = fitted.calibration
    elif check:
        calibration = calibrate(problem, solved, rows, lineage=kinship.lineage, family=kinship.family)
    else:
        calibration = pooled(np.zeros(0), np.zeros(0))
    posterior = predict(problem, solved, rows, tasks)
    measured = np.isfinite(tuned.values)
    reach = calibration.distance(LEVEL) * np.sqrt(posterior.variance)
    middle, one, other = (scale.scores(posterior.mean + k * reach) for k in (0.0, -1.0, 1.0))
    completed = np.where(measured, tuned.values, middle)
    spread = expected_spread(completed, posterior, scale)
    oriented = completed * tuned.sign
    aggregate = in_spreads(oriented - oriented.mean(axis=0), spread).mean(axis=1)  # ``mean_z`` where all is measured
    rng = np.random.default_rng(0)
    drawn = _draw_aggregates(tuned, posterior, scale, draws, rng)
    freedom = calibration.freedom
    wider = calibration.wider * np.sqrt(freedom / rng.chisquare(freedom, size=(draws, 1)))
    stretch = 1.0 + STRETCH * (1.0 - problem.known.mean()) * rng.standard_normal((draws, 1))
    drawn = aggregate * stretch + wider * (drawn - drawn.mean(axis=0))
    errors = in_spreads(np.where(measured, np.nan_to_num(tuned.stderr), 0.0), spread)  # drawn cells hold their noise
    noise = np.sqrt((errors**2).sum(axis=1)) / len(tasks)
    luck = np.random.default_rng([0, 1])  # of the tests; among models that tie, chance decides
    true = drawn + noise * luck.standard_normal(drawn.shape) + TIE * luck.uniform(size=drawn.shape)
    ranks = rankdata(-true, axis=1, method="ordinal").astype(int)  # (draws, models)
    shares = np.stack([np.bincount(column - 1, minlength=len(rows)) for column in ranks.T]) / draws
    tail = (1.0 - LEVEL) / 2.0
    alike = tau_rows(aggregate, drawn[: min(draws, max(20, 2_000_000 // len(rows) ** 2))])
    alike = np.nan_to_num(alike, nan=1.0 if len(rows) == 1 or measured.all() else 0.0)  # all tied: no order to agree on
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
        agreement=interval(float(alike.mean()), alike, level=LEVEL),
        history=sum(len(m.models) for m in past),
        checked=calibration.checked,
        fitted=Fitted(weights, scale, calibration),
        posterior=posterior,
        noise=noise,
        draws=drawn,
    )


def expected_spread(completed: Floats, posterior: Posterior, scale: Scale) -> Floats:
    """How far apart the models will be on each task: predictions lie closer together than the scores to come will.

    How hard the task is moves all models alike, and them no further apart.
    """
    rise = steepness(posterior, scale)
    unseen = (rise**2 * posterior.variance).mean(axis=0) - rise.mean(axis=0) ** 2 * posterior.common
    return np.asarray(np.sqrt(completed.var(axis=0) + np.maximum(unseen, 0.0)))


def steepness(posterior: Posterior, scale: Scale) -> Floats:
    """How much a score moves with its standardised link value, at the prediction."""
    step = 1e-3
    return np.abs(scale.scores(posterior.mean + step) - scale.scores(posterior.mean - step)) / (2 * step)


def in_spreads(scores: Floats, spread: Floats) -> Floats:
    """Divide by how far apart the models are on each task; 0 where they are not."""
    return np.where(spread > 1e-12, scores / np.maximum(spread, 1e-12), 0.0)


def _draw_aggregates(
    tuned: ScoreMatrix, posterior: Posterior, scale: Scale, draws: int, rng: np.random.Generator
) -> Floats:
    """Mean z score of every model in joint draws of the unseen cells: (draws, models).

    Cells are drawn as wide as the posterior has them; how wide their sums should be is ``Calibration.wider``.
    """
    measured = np.isfinite(tuned.values)
    if measured.all():
        return np.repeat(mean_z(tuned.oriented())[None], draws, axis=0)
    result = []
    for chunk in posterior.draws(draws, rng):
        scores = np.where(measured, tuned.values, scale.scores(chunk)) * tuned.sign  # (chunk, models, tasks)
        centred = scores - scores.mean(axis=1, keepdims=True)
        result.append(in_spreads(centred, scores.std(axis=1, keepdims=True)).mean(axis=2))
    return np.concatenate(result)


def _several(given: ScoreMatrix | Sequence[ScoreMatrix] | None) -> list[ScoreMatrix]:
    if given is None:
        return []
    return [given] if isinstance(given, ScoreMatrix) else list(given)
