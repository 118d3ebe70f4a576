"""Completion: the cells nobody has run yet and the final ranking, with intervals that hold.

After train-before-test the matrix of scores is nearly of rank one, so a few cells say much about the rest. The factor
model (``factors``) joins whatever is known: the study's measured cells, other tuned scores as history, scores and
perplexity before tuning, and facts. What comes out is kept apart from what went in: ``measured`` holds scores, and
``mean``, ``low`` and ``high`` hold predictions for the other cells alone. The ranking is by mean z score over tasks,
those of one benchmark counting as one: what the finished study would say. Its probabilities come from joint draws of
all unseen cells, with intervals that were checked on known scores (``calibration``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata

from potentia.analysis.completion.calibration import IntervalCalibration, calibrate_intervals
from potentia.analysis.completion.factors import (
    LOADING,
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
from potentia.analysis.stats.standardize import standardize
from potentia.analysis.wording import format_percent
from potentia.errors import InputError
from potentia.facts import ModelTable, find_task_groups
from potentia.facts import models as known_models
from potentia.values.findings import (
    Bars,
    Chart,
    Finding,
    Heatmap,
    Interval,
    Table,
    ValuedText,
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
# on that, and the results of this study move it.
DOUBT = 0.5
LEAST_CHECKED_MODELS = 3  # that share tasks: fewer say nothing of the order of models
SLOPE_BY_CHANCE = (
    0.05  # standard deviation of the slope where scores before fine-tuning say nothing
)
CHECKED_DEVIATION = (
    0.5  # of a result about what is expected of its model, at least, in spreads of models
)
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
    p_rank_undoubted: Floats = field(repr=False)  # the same without the doubt: to choose results by
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
    task_weights: Floats = field(repr=False)  # (tasks,): of each task in the aggregates

    def draw_scores(self, count: int, rng: np.random.Generator) -> Iterator[Floats]:
        """Yield scores of all cells as they may turn out, (draws, models, tasks), some draws at a time.

        They are as wide as the calibration on known scores has them. As far as it is in doubt whether predictions say
        anything here, a draw gives each model the cells of another.
        """
        models = len(self.models)
        calibration = self.fitted.calibration
        mean = self.posterior.mean
        for chunk in self.posterior.draw_cells(count, rng):
            chi_square = rng.chisquare(calibration.freedom, size=(len(chunk), 1, 1))
            widening = calibration.wider * np.sqrt(calibration.freedom / chi_square)
            scores = self.fitted.scale.to_scores(mean + widening * (chunk - mean))
            if self.doubt:
                says_nothing = np.flatnonzero(rng.random(len(scores)) < self.doubt)
                order = rng.permuted(np.tile(np.arange(models), (len(says_nothing), 1)), axis=1)
                scores[says_nothing] = scores[says_nothing[:, None], order]
            yield scores

    def p_top(self, k: int) -> Floats:
        """Return P(rank ≤ k) of every model."""
        return np.asarray(self.p_rank[:, : max(k, 0)].sum(axis=1))

    def p_top_undoubted(self, k: int) -> Floats:
        """Return P(rank ≤ k) of every model if predictions hold here as elsewhere, to choose results by."""
        return np.asarray(self.p_rank_undoubted[:, : max(k, 0)].sum(axis=1))

    @property
    def check(self) -> str:
        """What the intervals were checked on, in words."""
        if not self.checked:
            return "There are too few results to check the intervals; they assume a normal distribution."
        cells = (
            "1 measured result was"
            if self.checked == 1
            else f"{self.checked:,} measured results were"
        )
        return f"{cells} hidden and predicted to check the intervals."

    @property
    def basis(self) -> str:
        """What the expected ranking rests on, in words."""
        measured = int(self.measured.sum())
        if self.history:
            return f"It rests on {self.history:,} models of other studies and {measured:,} results of this study."
        if self.doubt == 0:
            return f"It rests on {measured:,} results of this study."
        results = "1 fine-tuned result" if measured == 1 else f"{measured:,} fine-tuned results"
        return (
            "It assumes that scores before fine-tuning predict those after it as they do in other studies. With "
            f"{results} the probability that this does not hold here is {format_percent(self.doubt)}; "
            "the intervals allow for it."
        )

    def order(self) -> list[str]:
        """Return the models from the best to the worst."""
        return list(select_positions(self.models, self._best_first()))

    def _best_first(self) -> npt.NDArray[np.intp]:
        return np.argsort(self.rank, kind="stable")

    def _describe_measured(self) -> str:
        return f"{int(self.measured.sum())} of {self.measured.size} results"

    def tables(self) -> Sequence[Table]:
        """Return the ranking with its probabilities, and the predicted cells."""
        if self.measured.all():
            return [self._tabulate_ranking()]
        return [self._tabulate_ranking(), self._tabulate_predictions()]

    def _tabulate_ranking(self) -> Table:
        top_count = min(3, len(self.models))
        cells_of_models = self.measured.sum(axis=1)
        table_rows = list(
            zip(
                self.models,
                map(_format_rank, self.rank, self.rank_low, self.rank_high),
                self.p_best,
                self.p_top(top_count),
                [
                    ValuedText(f"{cells} of {len(self.tasks)}", value=cells)
                    for cells in cells_of_models.tolist()
                ],
                strict=True,
            )
        )
        tau = self.agreement
        level = f"{100 * self.level:.0f} %"
        expected_tau = f"{tau.value:.3f} ({level} interval {tau.low:.3f} to {tau.high:.3f})"
        return Table(
            f"Ranking of the finished study, predicted from {self._describe_measured()} "
            f"({self.protocol.label})",
            ("model", "rank", "P(best)", f"P(top {top_count})", "measured"),
            select_positions(table_rows, self._best_first()),
            f"Ranks with {self.level:.0%} intervals; they and both probabilities allow for test noise. "
            f"The finished ranking should agree with this one: τ {expected_tau}. {self.basis}",
            digits=2,
        )

    def _tabulate_predictions(self) -> Table:
        row, column = np.nonzero(~self.measured)
        table_rows = zip(
            select_positions(self.models, row),
            select_positions(self.tasks, column),
            self.mean[row, column],
            self.low[row, column],
            self.high[row, column],
            strict=True,
        )
        return Table(
            f"Predicted results ({self.protocol.label}); none of them is measured",
            ("model", "task", "predicted", "low", "high"),
            table_rows,
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
                f"Probability to be the best model: {self.protocol.label}",
                f"From {self._describe_measured()}.",
                names,
                {"P(best)": self.p_best[order]},
                y_label="P(best)",
            ),
            plot_ranks(
                f"planning-ranks-{self.protocol}",
                f"Rank in the finished study: {self.protocol.label}",
                f"Predicted rank with {level} intervals.",
                self.models,
                self.rank,
                self.rank_low,
                self.rank_high,
            ),
            Heatmap(
                f"planning-cells-{self.protocol}",
                f"What is not measured yet: {self.protocol.label}",
                f"Width of the {level} interval of each predicted result; 0 where measured.",
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
    task_groups: Mapping[str, str] | None = None,
    draws: int = DRAWS,
    fitted: FittedModel | None = None,
    check: bool = True,
) -> Completion:
    """Predict the missing cells of ``tuned`` (NaN) and the ranking of its models over all its tasks.

    ``direct`` holds scores before tuning (tasks, corpora; several protocols as a list) of any models of study or
    history; ``history`` tuned scores of other models or studies, on the same or other tasks; ``facts`` what is known
    of models (the shipped facts by default). ``task_groups`` are groups by task that the user names, beside those that
    names and facts tell; without it every task counts by itself. Only finite cells of ``tuned`` are ever read.
    ``fitted``, from an earlier completion of the same study, saves learning the weights again; the result then depends
    on that completion too. Without ``check`` the intervals are those of a normal distribution.
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
    task_weights = _weigh_tasks(tuned.tasks, task_groups)
    cells = _PredictedCells.from_posterior(tuned, posterior, scale, calibration, task_weights)
    doubt = 0.0
    if not histories and not cells.measured.all():
        doubt = measure_doubt(problem)
    aggregates = _DrawnAggregates.draw(
        tuned, problem, posterior, scale, calibration, cells, draws, doubt, task_weights
    )
    rank_shares = _count_ranks(aggregates.doubted_ranks)
    tail_share = (1.0 - LEVEL) / 2.0
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
        rank_low=np.quantile(aggregates.doubted_ranks, tail_share, axis=0, method="lower"),
        rank_high=np.quantile(aggregates.doubted_ranks, 1.0 - tail_share, axis=0, method="higher"),
        p_best=rank_shares[:, 0],
        p_rank=rank_shares,
        p_rank_undoubted=_count_ranks(aggregates.ranks),
        agreement=_expect_agreement(cells, aggregates.doubted),
        history=sum(len(matrix.models) for matrix in histories),
        checked=calibration.checked,
        doubt=doubt,
        fitted=FittedModel(weights, scale, calibration),
        posterior=posterior,
        noise=aggregates.noise,
        draws=aggregates.draws,
        task_weights=task_weights,
    )


def _weigh_tasks(tasks: Sequence[str], task_groups: Mapping[str, str] | None) -> Floats:
    """Return the weight of each task in a mean over groups of tasks; without groups all weigh the same."""
    if task_groups is None:
        return np.full(len(tasks), 1.0 / len(tasks))
    group_of_task = find_task_groups(tasks, task_groups)
    sizes = Counter(group_of_task.values())
    return np.array([1.0 / sizes[group_of_task[task]] for task in tasks]) / len(sizes)


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
        task_weights: Floats,
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
        # These are z scores where all is measured.
        z_scores = divide_by_spread(oriented - oriented.mean(axis=0), spread)
        return cls(
            measured=measured,
            median=median,
            low=np.minimum(lower_end, upper_end),
            high=np.maximum(lower_end, upper_end),
            spread=spread,
            aggregate=z_scores @ task_weights,
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
        task_weights: Floats,
    ) -> _DrawnAggregates:
        """Draw the aggregates, as wide as the calibration has them, and the noise of the tests."""
        rng = np.random.default_rng(0)
        drawn = _draw_aggregates(tuned, posterior, scale, count, rng, task_weights)
        freedom = calibration.freedom
        chi_square = rng.chisquare(freedom, size=(count, 1))
        widening = calibration.wider * np.sqrt(freedom / chi_square)
        unknown_share = 1.0 - problem.is_known.mean()
        stretch = 1.0 + STRETCH * unknown_share * rng.standard_normal((count, 1))
        drawn = cells.aggregate * stretch + widening * (drawn - drawn.mean(axis=0))
        # Drawn cells hold their noise already.
        stderr = np.where(cells.measured, np.nan_to_num(tuned.stderr), 0.0)
        errors = divide_by_spread(stderr, cells.spread)
        noise = np.sqrt(errors**2 @ task_weights**2)
        # The luck of the tests; among models that tie, chance decides.
        luck_generator = np.random.default_rng([0, 1])
        true_aggregates = drawn + noise * luck_generator.standard_normal(drawn.shape)
        true_aggregates = true_aggregates + TIE * luck_generator.uniform(size=drawn.shape)
        ranks = rankdata(-true_aggregates, axis=1, method="ordinal").astype(int)
        doubted = _mix_in_doubt(drawn, cells.measured, doubt)
        doubted_ranks = rankdata(-doubted, axis=1, method="ordinal").astype(int) if doubt else ranks
        return cls(drawn, doubted, noise, ranks, doubted_ranks)


def measure_doubt(problem: FactorProblem) -> float:
    """Return how likely it is that what is known before fine-tuning says nothing of this study's results.

    Of models on the same task, the ability that is expected before anything is measured should say who scores more:
    the slope of results on it is some positive number where scores before fine-tuning tell (half-normal, as wide as
    ``LOADING``), and 0 where they do not. Both are as likely beforehand. The error of the slope is robust to models,
    which bring their own luck to all tasks.
    """
    is_known = problem.is_known
    has_rivals = is_known & (is_known.sum(axis=0) > 1)
    if int(has_rivals.any(axis=1).sum()) < LEAST_CHECKED_MODELS:
        return DOUBT
    counts = np.maximum(has_rivals.sum(axis=0), 1)
    expected = np.where(has_rivals, problem.expected_ability[:, None], 0.0)
    expected = np.where(has_rivals, expected - expected.sum(axis=0) / counts, 0.0)
    scores = np.where(has_rivals, problem.scores, 0.0)
    scores = np.where(has_rivals, scores - scores.sum(axis=0) / counts, 0.0)
    information = float((expected**2).sum())
    if information < 1e-9:
        return DOUBT
    slope = float((expected * scores).sum()) / information
    by_model = (expected * (scores - slope * expected)).sum(axis=1)
    models = int(has_rivals.any(axis=1).sum())
    variance = float((by_model**2).sum()) / information**2 * models / (models - 1)
    variance = max(variance, CHECKED_DEVIATION**2 / information)
    error = float(np.sqrt(variance + SLOPE_BY_CHANCE**2))
    width = float(np.hypot(error, LOADING))
    share_above = float(norm.cdf(slope * LOADING / (error * width)))
    if_telling = (1.0 - DOUBT) * 2.0 * float(norm.pdf(slope, 0.0, width)) * share_above
    if_silent = DOUBT * float(norm.pdf(slope, 0.0, error))
    return if_silent / (if_silent + if_telling)


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
    draws: int,
    rng: np.random.Generator,
    task_weights: Floats,
) -> Floats:
    """Return the mean z score of every model in joint draws of the unseen cells: (draws, models).

    Cells are drawn as wide as the posterior has them; how wide their sums should be is
    ``IntervalCalibration.wider``.
    """
    measured = np.isfinite(tuned.values)
    if measured.all():
        return np.repeat((standardize(tuned.oriented()) @ task_weights)[None], draws, axis=0)
    aggregates = []
    for chunk in posterior.draw_cells(draws, rng):  # (draws, models, tasks)
        scores = np.where(measured, tuned.values, scale.to_scores(chunk)) * tuned.sign
        centred = scores - scores.mean(axis=1, keepdims=True)
        spread = scores.std(axis=1, keepdims=True)
        aggregates.append(divide_by_spread(centred, spread) @ task_weights)
    return np.concatenate(aggregates)


def _format_rank(rank: float, low: float, high: float) -> ValuedText:
    return ValuedText(f"{rank:g} ({low:.0f}–{high:.0f})", value=rank, low=low, high=high)
