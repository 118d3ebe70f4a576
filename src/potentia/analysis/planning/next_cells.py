"""The next cells under a budget: which measurements, per unit of cost, would settle the most of the ranking.

A cell's worth is its share of the expected misorderings that go, plus its share of the aggregates' variance that goes
(misorderings alone see only pairs that are close today), divided by its cost. Cells are taken greedily, each changing
the covariance that the next one meets; the values it will have are not known, and need not be: aggregates are close to
linear in unseen cells, with covariance C, and measuring a cell c of variance v takes g·gᵀ/v away, g = cov(a, z_c). For
a pair of models with expected difference d and variance s², of which the cell explains δ², the chance to be ordered
wrongly afterwards is in expectation 2·T(|d|/s, √(s² − δ²)/δ), T being Owen's function: no simulation is needed.

With ``top``, a pair counts by the chance that one of the two is among the first ``top`` and the other is not. The plan
stops at the budget, or as soon as the forecast reaches the confidence asked for: the expected agreement (τ) of the
ranking with the finished study's, or, with ``top``, the expected share of the named top that is truly in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, owens_t

from potentia.analysis.completion.complete import (
    Completion,
    expected_spread,
    measure_steepness,
)
from potentia.analysis.stats.bootstrap import kendall_by_row, percentile_interval
from potentia.analysis.stats.first_place import covariance_root
from potentia.errors import InputError
from potentia.values.findings import Finding, Interval, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats

Indices = npt.NDArray[np.intp]
FORECASTS = 400  # simulated studies behind a forecast
# Who is in the top so likely, and so many rivals in any case, is measured on this share of the tasks before a stop.
TOP_CHANCE = 0.01
RIVALS = 2
MEASURED = 0.25
LUCK = 3.0  # a run is wrong so many times as often as said where it stops at the first look that says enough
CANDIDATES = 150  # cells looked at closely in each step: the best by variance
PAIRS = 3_000  # pairs of models looked at: those most likely to be misordered
VARIANCE_WEIGHT = 1.0  # weight of the variance beside that of misorderings
SETTLED = 0.005  # a pair less likely than this to be misordered is settled
TINY = 1e-300  # keeps divisions finite


@dataclass(frozen=True)
class CellCosts:
    """What each cell would cost, in one unit of any kind; NaN where a cell cannot be run at all."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    values: Floats  # (models, tasks)
    unit: str = "cost"

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.models), len(self.tasks)):
            grid_size = f"{len(self.models)} models × {len(self.tasks)} tasks"
            raise InputError(f"costs are {self.values.shape}, but there are {grid_size}")
        if np.isinf(self.values).any() or (self.values < 0).any():
            raise InputError(
                "a cost is a number from 0 on, or NaN for a result that cannot be computed"
            )


@dataclass(frozen=True)
class NextCells(Finding):
    """The cells to run next, in order, and what the ranking would then be worth."""

    protocol: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: tuple[tuple[str, str], ...]  # (model, task), the most worth per cost first
    costs: tuple[float, ...]
    unit: str
    budget: float | None
    confidence: float | None
    top: int | None
    now: Interval  # agreement (or the top's expected share) before any of them
    forecast: Interval  # after all of them, over what they may turn out to be
    expected: tuple[float, ...]  # after each of them
    reached: bool  # whether the forecast meets the confidence
    settled: bool  # whether what is known now does, however often it was looked at
    left: float  # cost of the cells that would still be unmeasured

    @property
    def cost(self) -> float:
        """What the chosen cells cost together."""
        return float(sum(self.costs))

    def tables(self) -> Sequence[Table]:
        """Return the forecast, and the cells in the order of their worth."""
        measure = "agreement with the finished ranking (τ)"
        if self.top:
            measure = f"share of the top {self.top} that is right"
        forecasts = [
            ("now", 0, 0.0, self.now),
            ("after these results", len(self.cells), self.cost, self.forecast),
        ]
        table_rows = []
        for position, (model, task) in enumerate(self.cells):
            cost = self.costs[position]
            table_rows.append((position + 1, model, task, cost, self.expected[position]))
        return [
            Table(
                f"Expected {measure}",
                ("", "results", self.unit, "expected", "low", "high"),
                forecasts,
                self._note(),
            ),
            Table(
                f"Results to compute next ({Protocol(self.protocol).label})",
                ("", "model", "task", self.unit, "expected"),
                table_rows,
            ),
        ]

    def _note(self) -> str:
        """Say what would still be unmeasured, and whether the plan gets where it was asked to."""
        note = f"Everything that is left after these costs {self.left:.4g} {self.unit}."
        if self.confidence is None:
            return note
        if self.reached:
            reached_words = "These results reach"
        elif self.budget is None:
            reached_words = "These results do not reach"
        else:
            reached_words = "The budget ends before"
        return f"{note} {reached_words} the {self.confidence:g} asked for."


def choose_cells(
    completion: Completion,
    costs: CellCosts,
    *,
    budget: float | None = None,
    confidence: float | None = None,
    top: int | None = None,
    max_cells: int | None = None,
) -> NextCells:
    """Choose the unmeasured cells that are worth the most per cost, within ``budget`` or up to ``confidence``.

    Give a budget, a confidence, or both (the first that is met ends the plan); ``max_cells`` bounds the number of
    cells, for the next wave of an adaptive run. Cells of cost zero are free and always fit.
    """
    if budget is None and confidence is None and max_cells is None:
        raise InputError(
            "a plan needs a budget or a confidence", hint="give budget=…, confidence=… or most=…"
        )
    _check_goal(completion, top, confidence)
    cell_costs = _order_costs(completion, costs)
    remaining_costs = cell_costs.copy()
    remaining_budget = np.inf if budget is None else float(budget)
    state = PlanState(completion, top)
    current_forecast = state.forecast()
    goal_probability = np.inf if confidence is None else stopping_probability(confidence, top)
    expected_agreement = current_forecast.value
    if top is not None:
        # The expected share of the named top that is truly in it, over the draws; for top 1, P(best).
        expected_agreement = float(np.sort(completion.p_top(top))[-top:].mean())
    missing_tasks = np.zeros(len(completion.models), dtype=int)
    if top is not None and confidence is not None:
        missing_tasks = _count_missing_tasks(completion, top)
    settled = expected_agreement >= goal_probability and not missing_tasks.any()
    cells: list[tuple[int, int]] = []
    expected: list[float] = []
    while expected_agreement < goal_probability or missing_tasks.any():
        if max_cells is not None and len(cells) >= max_cells:
            break
        open_cells = np.isfinite(remaining_costs) & (remaining_costs <= remaining_budget)
        if expected_agreement >= goal_probability:
            open_cells &= missing_tasks[:, None] > 0
        cell = state.best_cell(open_cells, remaining_costs)
        if cell is None:
            break
        remaining_budget -= remaining_costs[cell]
        remaining_costs[cell] = np.nan
        state.take(cell)
        model = cell[0]
        missing_tasks[model] = max(missing_tasks[model] - 1, 0)
        cells.append(cell)
        expected_agreement = state.compute_expected_value()
        expected.append(expected_agreement)
    forecast = state.forecast()
    return NextCells(
        protocol=completion.protocol,
        models=completion.models,
        tasks=completion.tasks,
        cells=tuple((completion.models[row], completion.tasks[column]) for row, column in cells),
        costs=tuple(float(cell_costs[cell]) for cell in cells),
        unit=costs.unit,
        budget=budget,
        confidence=confidence,
        top=top,
        now=current_forecast,
        forecast=forecast,
        expected=tuple(expected),
        reached=confidence is not None and forecast.value >= confidence,
        settled=bool(settled),
        left=float(np.nansum(remaining_costs)),
    )


def _check_goal(completion: Completion, top: int | None, confidence: float | None) -> None:
    """Raise an error where the top or the confidence asked for cannot be."""
    models = len(completion.models)
    if top is not None and not 1 <= top <= models:
        raise InputError(
            f"top {top} of {models} models", hint="top is from 1 to the number of models"
        )
    if confidence is not None and not 0 < confidence <= 1:
        raise InputError(
            f"a confidence of {confidence:g}", hint="a confidence lies between 0 and 1, such as 0.9"
        )


def stopping_probability(confidence: float, top: int | None) -> float:
    """Return the probability at which a run may stop that looks after every wave.

    Of a model that is right, posterior odds are a test martingale, and the first probability of 1 − a is wrong in at
    most a/(1 − a) of the stops (Ville's inequality). Ours learns its weights and widths anew at every look, and what
    crosses first is partly luck: the doubt that it may have is a third of the doubt asked for (``bench/planning.py``).
    """
    if top is None:
        return confidence
    return 1.0 - (1.0 - confidence) / LUCK


def _count_missing_tasks(completion: Completion, top: int) -> npt.NDArray[np.int_]:
    """Return how many tasks more each model has to be measured on before a run may name the top: (models,).

    What is said of a model that was never tuned rests on its relatives and its direct scores, and it may be unlike; so
    may the first rivals, however unlikely they seem by then.
    """
    chances = completion.p_top_undoubted(top)
    must_be_measured = chances >= TOP_CHANCE
    likeliest = np.lexsort((-completion.aggregate, -chances))
    must_be_measured[likeliest[: top + RIVALS]] = True
    needed = math.ceil(MEASURED * len(completion.tasks))
    missing = np.maximum(needed - completion.measured.sum(axis=1), 0)
    return np.where(must_be_measured, missing, 0)


def _order_costs(completion: Completion, costs: CellCosts) -> Floats:
    """Return costs in the completion's order, NaN for what is measured already or cannot be run."""
    missing = [model for model in completion.models if model not in costs.models]
    missing += [task for task in completion.tasks if task not in costs.tasks]
    if missing:
        raise InputError(
            f"no costs for {', '.join(missing[:5])}",
            hint="give NaN for results that cannot be computed",
        )
    row_of_model = {model: row for row, model in enumerate(costs.models)}
    column_of_task = {task: column for column, task in enumerate(costs.tasks)}
    rows = [row_of_model[model] for model in completion.models]
    columns = [column_of_task[task] for task in completion.tasks]
    return np.where(completion.measured, np.nan, costs.values[np.ix_(rows, columns)])


@dataclass(frozen=True)
class _OpenPairs:
    """Pairs of models that may be misordered."""

    first: Indices
    second: Indices
    p_misordered: Floats
    importance: Floats


@dataclass(frozen=True)
class _TakenCell:
    """A cell measured in thought."""

    covariance: Floats  # (models, tasks): of the cell with all cells, given those taken before
    variance: float


class PlanState:
    """The covariance of aggregates and cells, as cells are taken, and what would then be known of the ranking."""

    def __init__(self, completion: Completion, top: int | None) -> None:
        """Linearize each model's aggregate in its unseen cells."""
        self.completion = completion
        self.top = top
        self.posterior = completion.posterior
        self.aggregate = completion.aggregate
        scale = completion.fitted.scale
        completed = np.where(completion.measured, completion.values, completion.mean)
        spread = expected_spread(completed, self.posterior, scale)
        slope = measure_steepness(self.posterior, scale)
        is_fixed = completion.measured | (spread < 1e-12)
        weights = np.where(is_fixed, 0.0, slope / np.maximum(spread, 1e-12))
        covariance, with_cells = self.posterior.covariance_with(weights * completion.task_weights)
        # The spread of whole rows was checked apart from that of cells; both sides of g·gᵀ/v scale with it.
        wider = completion.fitted.calibration.wider
        self.start_covariance = covariance * wider**2  # C: (models, models)
        self.covariance = self.start_covariance  # C′, as cells are taken
        self.with_cells = with_cells * wider  # g of every cell: (models, models, tasks)
        self.variance = self.posterior.variance.copy()  # v of every cell: (models, tasks)
        self.taken: list[_TakenCell] = []
        models = len(self.aggregate)
        self.luck = np.random.default_rng(0).standard_normal((3, FORECASTS, models))

    def best_cell(self, open_cells: npt.NDArray[np.bool_], costs: Floats) -> tuple[int, int] | None:
        """Return the open cell with the most worth per cost; None where no open cell says anything."""
        places = np.argwhere(open_cells & (self.variance > 1e-10))
        if not len(places):
            return None
        free_cost = 1e-12 * np.nanmax(costs, initial=TINY) + TINY
        cost = np.maximum(costs[tuple(places.T)], free_cost)
        removed = self._removed_variance(places)
        if len(places) > 2 * CANDIDATES:
            by_worth = np.argsort(-removed / cost)[:CANDIDATES]
            by_variance = np.argsort(-removed)[: CANDIDATES // 4]
            candidates = np.union1d(by_worth, by_variance)
            places = places[candidates]
            cost = cost[candidates]
            removed = removed[candidates]
        variance = float(np.trace(self.covariance) - self.covariance.sum() / len(self.aggregate))
        worth = removed / max(variance, TINY)
        pairs = self._open_pairs()
        if len(pairs.first):
            worth = VARIANCE_WEIGHT * worth + self._count_removed_misorderings(places, pairs)
        row, column = places[int(np.argmax(worth / cost))]
        return int(row), int(column)

    def _removed_variance(self, places: Indices) -> Floats:
        """Return how much of the aggregates' variance about their common mean each cell takes away."""
        covariance = self.with_cells[:, places[:, 0], places[:, 1]]  # (models, places)
        variance = self.variance[tuple(places.T)]
        models = len(self.aggregate)
        return np.asarray(
            ((covariance**2).sum(axis=0) - covariance.sum(axis=0) ** 2 / models) / variance
        )

    def _count_removed_misorderings(self, places: Indices, pairs: _OpenPairs) -> Floats:
        """Return the share of the expected misorderings that each cell takes away."""
        covariance = self.with_cells[:, places[:, 0], places[:, 1]]
        v = self.variance[tuple(places.T)]
        difference = (self.aggregate[pairs.first] - self.aggregate[pairs.second])[:, None]
        variance = _pair_variance(self.covariance, pairs.first, pairs.second)[:, None]
        explained = (covariance[pairs.first] - covariance[pairs.second]) ** 2 / v
        after = expected_misorder(difference, variance, explained)
        removed = pairs.importance @ (pairs.p_misordered[:, None] - after)
        total = float(pairs.importance @ pairs.p_misordered)
        return np.asarray(removed / max(total, TINY))

    def _open_pairs(self) -> _OpenPairs:
        """Return the pairs that may be misordered, how likely, and how much it matters.

        All pairs matter alike; with a top, by the chance that a pair straddles its edge.
        """
        first, second = np.triu_indices(len(self.aggregate), 1)
        difference = np.abs(self.aggregate[first] - self.aggregate[second])
        deviation = np.sqrt(_pair_variance(self.covariance, first, second))
        p_misordered = ndtr(-difference / deviation)
        importance = np.ones(len(p_misordered))
        if self.top is not None:
            p_top = self.completion.p_top_undoubted(self.top)
            only_first = p_top[first] * (1.0 - p_top[second])
            only_second = p_top[second] * (1.0 - p_top[first])
            importance = only_first + only_second
        weight = p_misordered * importance
        is_open = np.flatnonzero((p_misordered > SETTLED) & (weight > 0))
        order = np.argsort(-weight[is_open], kind="stable")
        is_open = is_open[order[:PAIRS]]
        return _OpenPairs(
            first=first[is_open],
            second=second[is_open],
            p_misordered=p_misordered[is_open],
            importance=importance[is_open],
        )

    def take(self, cell: tuple[int, int]) -> None:
        """Measure a cell in thought: everything that varies with it varies less."""
        covariance = self.posterior.covariance_with_cell(*cell)  # (models, tasks)
        for earlier in self.taken:
            covariance = (
                covariance - earlier.covariance * earlier.covariance[cell] / earlier.variance
            )
        variance = float(max(covariance[cell], 1e-12))
        row, column = cell
        taken_covariance = self.with_cells[:, row, column].copy()
        self.taken.append(_TakenCell(covariance, variance))
        self.covariance = self.covariance - np.outer(taken_covariance, taken_covariance) / variance
        self.with_cells = self.with_cells - taken_covariance[:, None, None] * (
            covariance / variance
        )
        self.variance = np.maximum(self.variance - covariance**2 / variance, 0.0)

    def compute_expected_value(self) -> float:
        """Return the forecast's mean: in closed form for pairs, simulated for a top."""
        if self.top is not None:
            return self.forecast().value
        first, second = np.triu_indices(len(self.aggregate), 1)
        if not len(first):
            return 1.0
        before = _pair_variance(self.start_covariance, first, second)
        after = np.minimum(_pair_variance(self.covariance, first, second), before)
        difference = self.aggregate[first] - self.aggregate[second]
        misordered = expected_misorder(difference, before, before - after)
        return float(1.0 - 2.0 * misordered.mean())

    def forecast(self) -> Interval:
        """Simulate what will be believed and what is true: a′ ~ N(a, C − C′) and truth ~ N(a′, C′).

        Who is truly in the top, the noise of the tests hides even when all is measured.
        """
        known_root = covariance_root(self.start_covariance - self.covariance)
        open_root = covariance_root(self.covariance)
        believed = self.aggregate + self.luck[0] @ known_root.T
        truth = believed + self.luck[1] @ open_root.T
        level = self.completion.level
        if self.top is not None:
            truth = truth + self.luck[2] * self.completion.noise
            shares = _share_of_top(believed, truth, self.top)
            return percentile_interval(float(shares.mean()), shares, level=level)
        models = len(self.aggregate)
        compared = max(20, min(len(truth), 2_000_000 // models**2))
        tau_of_ties = 0.0 if open_root.any() and models > 1 else 1.0
        tau = kendall_by_row(believed[:compared], truth[:compared])
        return percentile_interval(
            self.compute_expected_value(), np.nan_to_num(tau, nan=tau_of_ties), level=level
        )


def _share_of_top(believed: Floats, truth: Floats, top: int) -> Floats:
    """Return, for each draw, the share of the believed top that is truly in it."""
    named = np.argsort(-believed, axis=1, kind="stable")[:, :top]
    actual = np.argsort(-truth, axis=1, kind="stable")[:, :top]
    is_right = (named[:, :, None] == actual[:, None, :]).any(axis=2)
    return np.asarray(is_right.mean(axis=1))


def expected_misorder(difference: Floats, variance: Floats, explained: Floats) -> Floats:
    """Return the expected P(to order a pair wrongly) once ``explained`` of its ``variance`` is known.

    That is 2·T(|d|/s, s′/δ) with Owen's function T, s² the variance, δ² the explained part and s′² the rest.
    """
    variance = np.maximum(variance, TINY)
    explained = np.clip(explained, 0.0, variance)
    slant = np.sqrt((variance - explained) / np.maximum(explained, TINY))
    distance = np.abs(difference) / np.sqrt(variance)
    return np.asarray(2.0 * owens_t(distance, np.minimum(slant, 1e9)))


def _pair_variance(covariance: Floats, first: Indices, second: Indices) -> Floats:
    """Return the variance of the difference of pairs of aggregates."""
    variances = np.diag(covariance)
    of_difference = variances[first] + variances[second] - 2.0 * covariance[first, second]
    return np.maximum(of_difference, 1e-18)
