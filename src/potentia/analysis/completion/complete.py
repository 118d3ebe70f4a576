"""Completion: the cells nobody has run yet and the final ranking, with intervals that hold.

After train-before-test the matrix of scores is nearly of rank one, so a few cells say much about the rest. The factor
model (``factors``) joins whatever is known: the study's measured cells, other tuned scores as history, scores and
perplexity before tuning, and facts. What comes out is kept apart from what went in: ``measured`` holds scores, and
``mean``, ``low`` and ``high`` hold predictions for the other cells alone. The ranking is by mean z score over tasks,
as in ``aggregate_ranks``: what the finished study would say. Its probabilities come from joint draws of all unseen
cells, with intervals that were checked on known scores (``calibration``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.completion.calibration import IntervalCalibration, calibrate_intervals
from potentia.analysis.completion.factors import (
    CellPosterior,
    FactorProblem,
    FactorWeights,
    fit_weights,
    predict_cells,
    solve_abilities,
)
from potentia.analysis.completion.features import build_problem
from potentia.analysis.completion.links import LinkScale
from potentia.analysis.rank_chart import plot_ranks
from potentia.analysis.stats.bootstrap import kendall_by_row, percentile_interval
from potentia.analysis.stats.standardize import mean_z_scores
from potentia.errors import InputError
from potentia.facts import ModelTable
from potentia.facts import models as known_models
from potentia.values.findings import (
    Bars,
    Chart,
    Finding,
    Heatmap,
    Interval,
    Table,
    select_positions,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

DRAWS = 1_000
LEVEL = 0.95
# How far apart the models will be in all is known to so much, before anything is measured: tasks that agree more than
# expected stretch the mean z scores of all models alike.
STRETCH = 0.05
# Without history, what scores before fine-tuning say of those after it is taken from other studies. It may not hold
# here (on another kind of matrix a τ of 0.15 to 0.31 was reached where 0.67 to 0.75 was expected): so much weight is
# on that until results of this study have been checked.
DOUBT = 0.5
CHECKED_RESULTS = 20  # of this study, after which its own results decide
TIE = 1e-9  # aggregates closer than this are equal but for rounding
LEAST_COMPARED_DRAWS = 20
MOST_COMPARED_NUMBERS = 2_000_000  # pairs of models in the draws that rankings are compared on


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
    doubt: (
        float  # weight on predictions that say nothing here; 0 where history or own results speak
    )
    fitted: FittedModel = field(repr=False)
    posterior: CellPosterior = field(repr=False)
    noise: Floats = field(
        repr=False
    )  # (models,): standard error of the aggregates by the tests made
    draws: Floats = field(repr=False)  # (draws, models): aggregates as they may turn out

    def p_top(self, k: int) -> Floats:
        """Return P(rank ≤ k) of every model."""
        return np.asarray(self.p_rank[:, : max(k, 0)].sum(axis=1))

    @property
    def check(self) -> str:
        """What the intervals were checked on, in words."""
        if not self.checked:
            return (
                "Too few cells are known to check the intervals; they assume a normal distribution."
            )
        cells = "1 known cell was" if self.checked == 1 else f"{self.checked:,} known cells were"
        return f"{cells} hidden and predicted to check the intervals."

    @property
    def basis(self) -> str:
        """What the expected ranking rests on, in words."""
        measured = int(self.measured.sum())
        if self.history:
            return f"It rests on {self.history:,} rows of history and {measured:,} results of this study."
        if self.doubt == 0:
            return f"It rests on {measured:,} results of this study."
        return (
            f"It rests on how scores before fine-tuning foretold those after it in other studies; only {measured:,} "
            f"fine-tuned results of this study check that, so a weight of {100 * self.doubt:.0f} % is on its not "
            "holding here."
        )

    def order(self) -> list[str]:
        """Return the models from the best to the worst."""
        return list(select_positions(self.models, self._best_first()))

    def _best_first(self) -> npt.NDArray[np.intp]:
        return np.argsort(self.rank, kind="stable")

    def _describe_measured(self) -> str:
        return f"{int(self.measured.sum())} of {self.measured.size} cells"

    def tables(self) -> Sequence[Table]:
        """Return the ranking with its probabilities, and the predicted cells."""
        if self.measured.all():
            return [self._tabulate_ranking()]
        return [self._tabulate_ranking(), self._tabulate_predictions()]

    def _tabulate_ranking(self) -> Table:
        top = min(3, len(self.models))
        cells_of_models = self.measured.sum(axis=1)
        rows = list(
            zip(
                self.models,
                map("{:g} ({:.0f}–{:.0f})".format, self.rank, self.rank_low, self.rank_high),
                self.p_best,
                self.p_top(top),
                [f"{cells} of {len(self.tasks)}" for cells in cells_of_models],
                strict=True,
            )
        )
        tau = self.agreement
        level = f"{100 * self.level:.0f} %"
        expected_tau = f"{tau.value:.3f} ({level} interval {tau.low:.3f} to {tau.high:.3f})"
        return Table(
            f"Ranking of the finished study, predicted from {self._describe_measured()} "
            f"({self.protocol})",
            ("model", "rank", "P(best)", f"P(top {top})", "measured"),
            select_positions(rows, self._best_first()),
            f"Ranks with {self.level:.0%} intervals; they and both probabilities allow for test noise. "
            f"The finished ranking should agree with this one: τ {expected_tau}. {self.basis}",
            digits=2,
        )

    def _tabulate_predictions(self) -> Table:
        row, column = np.nonzero(~self.measured)
        rows = zip(
            select_positions(self.models, row),
            select_positions(self.tasks, column),
            self.mean[row, column],
            self.low[row, column],
            self.high[row, column],
            strict=True,
        )
        return Table(
            f"Predicted cells ({self.protocol}); none of them is measured",
            ("model", "task", "predicted", "low", "high"),
            rows,
            f"{self.level:.0%} intervals. {self.check}",
        )

    def charts(self) -> Sequence[Chart]:
        """Return P(best), the rank intervals, and how sure each predicted cell is."""
        order = self._best_first()
        names = select_positions(self.models, order)
        level = f"{self.level:.0%}"
        widths = np.where(self.measured, 0.0, self.high - self.low)
        return [
            Bars(
                f"planning-best-{self.protocol}",
                f"Probability to be the best model: {self.protocol}",
                f"From {self._describe_measured()}.",
                names,
                {"P(best)": self.p_best[order]},
                y_label="P(best)",
            ),
            plot_ranks(
                f"planning-ranks-{self.protocol}",
                f"Rank in the finished study: {self.protocol}",
                f"Predicted rank with {level} intervals.",
                self.models,
                self.rank,
                self.rank_low,
                self.rank_high,
            ),
            Heatmap(
                f"planning-cells-{self.protocol}",
                f"What is not measured yet: {self.protocol}",
                f"Width of the {level} interval of each predicted cell; 0 where measured.",
                names,
                self.tasks,
                widths[order],
                low=0.0,
                unit="width",
            ),
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
    histories = _as_list(history)
    problem, scale, kinship = build_problem(
        tuned,
        _as_list(direct),
        histories,
        facts if facts is not None else known_models(),
        chances,
        fitted.scale if fitted else None,
    )
    rows = np.arange(len(tuned.models))
    weights = fitted.weights if fitted else fit_weights(problem)
    solution = solve_abilities(problem, weights)
    if fitted:
        calibration = fitted.calibration
    elif check:
        calibration = calibrate_intervals(
            problem, solution, rows, lineage=kinship.lineage, family=kinship.family
        )
    else:
        calibration = IntervalCalibration.normal()
    posterior = predict_cells(problem, solution, rows, np.arange(len(tuned.tasks)))
    cells = _PredictedCells.from_posterior(tuned, posterior, scale, calibration)
    doubt = _measure_doubt(cells.measured, has_history=bool(histories))
    aggregates = _DrawnAggregates.draw(
        tuned, problem, posterior, scale, calibration, cells, draws, doubt
    )
    ranks = aggregates.ranks
    rank_shares = _count_ranks(ranks)
    tail = (1.0 - LEVEL) / 2.0
    measured = cells.measured
    return Completion(
        protocol=tuned.protocol,
        models=tuned.models,
        tasks=tuned.tasks,
        higher_is_better=tuned.higher_is_better,
        measured=measured,
        values=np.where(measured, tuned.values, np.nan),
        mean=np.where(measured, np.nan, cells.median),
        low=np.where(measured, np.nan, cells.low),
        high=np.where(measured, np.nan, cells.high),
        level=LEVEL,
        aggregate=cells.aggregate,
        rank=rankdata(-cells.aggregate),
        rank_low=np.quantile(aggregates.doubted_ranks, tail, axis=0, method="lower"),
        rank_high=np.quantile(aggregates.doubted_ranks, 1.0 - tail, axis=0, method="higher"),
        p_best=rank_shares[:, 0],
        p_rank=rank_shares,
        agreement=_expect_agreement(cells, aggregates.doubted),
        history=sum(len(matrix.models) for matrix in histories),
        checked=calibration.checked,
        doubt=doubt,
        fitted=FittedModel(weights, scale, calibration),
        posterior=posterior,
        noise=aggregates.noise,
        draws=aggregates.draws,
    )


def _as_list(matrices: ScoreMatrix | Sequence[ScoreMatrix] | None) -> list[ScoreMatrix]:
    """Return one matrix, several or none as a list."""
    if matrices is None:
        return []
    if isinstance(matrices, ScoreMatrix):
        return [matrices]
    return list(matrices)


@dataclass(frozen=True)
class _PredictedCells:
    """The completed matrix: predicted scores with their intervals, and what it says of the ranking."""

    measured: npt.NDArray[np.bool_]  # (models, tasks)
    median: Floats  # (models, tasks), as are the next two
    low: Floats
    high: Floats
    spread: Floats  # (tasks,): how far apart the models will be
    aggregate: Floats  # (models,)

    @classmethod
    def from_posterior(
        cls,
        tuned: ScoreMatrix,
        posterior: CellPosterior,
        scale: LinkScale,
        calibration: IntervalCalibration,
    ) -> _PredictedCells:
        """Turn the distribution of the cells on the link scale into scores."""
        measured = np.isfinite(tuned.values)
        half_width = calibration.distance(LEVEL) * np.sqrt(posterior.variance)
        median = scale.to_scores(posterior.mean)
        # Where lower is better, the link turns the interval round.
        lower_end = scale.to_scores(posterior.mean - half_width)
        upper_end = scale.to_scores(posterior.mean + half_width)
        completed = np.where(measured, tuned.values, median)
        spread = expected_spread(completed, posterior, scale)
        oriented = completed * tuned.sign
        # This is ``mean_z_scores`` where all is measured.
        z_scores = divide_by_spread(oriented - oriented.mean(axis=0), spread)
        return cls(
            measured=measured,
            median=median,
            low=np.minimum(lower_end, upper_end),
            high=np.maximum(lower_end, upper_end),
            spread=spread,
            aggregate=z_scores.mean(axis=1),
        )


@dataclass(frozen=True)
class _DrawnAggregates:
    """Aggregates of the models as they may turn out, and as they truly are beyond the noise of the tests."""

    draws: Floats  # (draws, models): as predicted, to choose results by
    doubted: Floats  # (draws, models): with the weight on predictions that say nothing
    noise: Floats  # (models,): standard error of the aggregates by the tests that were made
    ranks: npt.NDArray[np.int_]  # (draws, models)
    doubted_ranks: npt.NDArray[np.int_]  # the same with that weight

    @classmethod
    def draw(
        cls,
        tuned: ScoreMatrix,
        problem: FactorProblem,
        posterior: CellPosterior,
        scale: LinkScale,
        calibration: IntervalCalibration,
        cells: _PredictedCells,
        count: int,
        doubt: float,
    ) -> _DrawnAggregates:
        """Draw the aggregates, as wide as the calibration has them, and the noise of the tests."""
        rng = np.random.default_rng(0)
        drawn = _draw_aggregates(tuned, posterior, scale, count, rng)
        freedom = calibration.freedom
        chi_square = rng.chisquare(freedom, size=(count, 1))
        widening = calibration.wider * np.sqrt(freedom / chi_square)
        unknown_share = 1.0 - problem.known.mean()
        stretch = 1.0 + STRETCH * unknown_share * rng.standard_normal((count, 1))
        drawn = cells.aggregate * stretch + widening * (drawn - drawn.mean(axis=0))
        # Drawn cells hold their noise already.
        stderr = np.where(cells.measured, np.nan_to_num(tuned.stderr), 0.0)
        errors = divide_by_spread(stderr, cells.spread)
        noise = np.sqrt((errors**2).sum(axis=1)) / len(tuned.tasks)
        # The luck of the tests; among models that tie, chance decides.
        luck = np.random.default_rng([0, 1])
        true_aggregates = drawn + noise * luck.standard_normal(drawn.shape)
        true_aggregates = true_aggregates + TIE * luck.uniform(size=drawn.shape)
        ranks = rankdata(-true_aggregates, axis=1, method="ordinal").astype(int)
        doubted = _mix_in_doubt(drawn, cells.measured, doubt)
        doubted_ranks = rankdata(-doubted, axis=1, method="ordinal").astype(int) if doubt else ranks
        return cls(drawn, doubted, noise, ranks, doubted_ranks)


def _measure_doubt(measured: npt.NDArray[np.bool_], *, has_history: bool) -> float:
    """Return the weight on predictions that say nothing in this study."""
    if has_history or measured.all():
        return 0.0
    return DOUBT * max(0.0, 1.0 - float(measured.sum()) / CHECKED_RESULTS)


def _mix_in_doubt(drawn: Floats, measured: npt.NDArray[np.bool_], doubt: float) -> Floats:
    """Let some draws be of models in any order, as far as they are not measured."""
    if doubt == 0:
        return drawn
    rng = np.random.default_rng([0, 2])
    says_nothing = rng.random(len(drawn)) < doubt
    known_share = measured.mean(axis=1)
    shuffled = rng.permuted(drawn[says_nothing], axis=1)
    mixed = drawn.copy()
    mixed[says_nothing] = known_share * drawn[says_nothing] + (1 - known_share) * shuffled
    return mixed


def _count_ranks(ranks: npt.NDArray[np.int_]) -> Floats:
    """Return how often every model has every rank, as a share of the draws: (models, ranks)."""
    draws, models = ranks.shape
    counts = [np.bincount(column - 1, minlength=models) for column in ranks.T]
    return np.asarray(np.stack(counts) / draws)


def _expect_agreement(cells: _PredictedCells, draws: Floats) -> Interval:
    """Return the expected τ of the predicted ranking with the finished study's."""
    models = len(cells.aggregate)
    compared = max(LEAST_COMPARED_DRAWS, MOST_COMPARED_NUMBERS // models**2)
    tau = kendall_by_row(cells.aggregate, draws[: min(len(draws), compared)])
    # Where all models tie there is no order to agree on.
    tau_of_ties = 1.0 if models == 1 or cells.measured.all() else 0.0
    tau = np.nan_to_num(tau, nan=tau_of_ties)
    return percentile_interval(float(tau.mean()), tau, level=LEVEL)


def expected_spread(completed: Floats, posterior: CellPosterior, scale: LinkScale) -> Floats:
    """Return how far apart the models will be on each task: predictions lie closer together than the scores to come.

    How hard the task is moves all models alike, and them no further apart.
    """
    slope = measure_steepness(posterior, scale)
    variance_of_cells = (slope**2 * posterior.variance).mean(axis=0)
    variance_in_common = slope.mean(axis=0) ** 2 * posterior.common
    unseen = np.maximum(variance_of_cells - variance_in_common, 0.0)
    return np.asarray(np.sqrt(completed.var(axis=0) + unseen))


def measure_steepness(posterior: CellPosterior, scale: LinkScale) -> Floats:
    """Return how much a score moves with its standardized link value, at the prediction."""
    step = 1e-3
    above = scale.to_scores(posterior.mean + step)
    below = scale.to_scores(posterior.mean - step)
    return np.asarray(np.abs(above - below) / (2 * step))


def divide_by_spread(scores: Floats, spread: Floats) -> Floats:
    """Divide by how far apart the models are on each task; 0 where they are not."""
    return np.where(spread > 1e-12, scores / np.maximum(spread, 1e-12), 0.0)


def _draw_aggregates(
    tuned: ScoreMatrix,
    posterior: CellPosterior,
    scale: LinkScale,
    count: int,
    rng: np.random.Generator,
) -> Floats:
    """Return the mean z score of every model in joint draws of the unseen cells: (draws, models).

    Cells are drawn as wide as the posterior has them; how wide their sums should be is
    ``IntervalCalibration.wider``.
    """
    measured = np.isfinite(tuned.values)
    if measured.all():
        return np.repeat(mean_z_scores(tuned.oriented())[None], count, axis=0)
    aggregates = []
    for chunk in posterior.draw_cells(count, rng):  # (draws, models, tasks)
        scores = np.where(measured, tuned.values, scale.to_scores(chunk)) * tuned.sign
        centred = scores - scores.mean(axis=1, keepdims=True)
        spread = scores.std(axis=1, keepdims=True)
        aggregates.append(divide_by_spread(centred, spread).mean(axis=2))
    return np.concatenate(aggregates)
