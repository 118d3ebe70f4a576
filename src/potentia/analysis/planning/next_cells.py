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

Racing candidates on one task ends with a ``Choice``: who is best, how sure that is, and what would make it surer.
Rounds are decided on validation (``stats.first``), the end on the test documents by the rule of every ranking
(``rankings.decide``), so that a report on the same store says the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, owens_t

from potentia.analysis.completion.complete import Completion, expected_spread, measure_steepness
from potentia.analysis.rankings.decide import Ranking
from potentia.analysis.rankings.lead import MissingEvidence
from potentia.analysis.rankings.sentences import headline_sentence, missing_sentence
from potentia.analysis.stats.bootstrap import kendall_by_row, percentile_interval
from potentia.analysis.stats.first_place import covariance_root
from potentia.analysis.wording import format_percent, format_plus_minus
from potentia.errors import InputError
from potentia.values.findings import Finding, Interval, Table, jsonable
from potentia.values.scores import Floats

FORECASTS = 400  # simulated studies behind a forecast
# Who is in the top so likely, and so many rivals in any case, is measured on this share of the tasks before a stop.
MAYBE, RIVALS, MEASURED = 0.01, 2, 0.25
LUCK = 3.0  # a run is wrong so many times as often as said where it stops at the first look that says enough


@dataclass(frozen=True)
class CellCosts:
    """What each cell would cost, in one unit of any kind; NaN where a cell cannot be run at all."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    values: Floats  # (models, tasks)
    unit: str = "cost"

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.models), len(self.tasks)):
            asked = f"there are {len(self.models)} models × {len(self.tasks)} tasks"
            raise InputError(f"costs are {self.values.shape}, but {asked}")
        if np.isinf(self.values).any() or (self.values < 0).any():
            raise InputError("a cost is a number from 0 on, or NaN for a cell that cannot be run")


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
        measure = f"share of the top {self.top} that is right" if self.top else measure
        rows = [
            (k + 1, *self.cells[k], self.costs[k], self.expected[k]) for k in range(len(self.cells))
        ]
        spans = [
            ("now", 0, 0.0, self.now),
            ("after these cells", len(rows), self.cost, self.forecast),
        ]
        columns = ("", "cells", self.unit, "expected", "low", "high")
        return [
            Table(f"Expected {measure}", columns, spans, self._note()),
            Table(
                f"Cells to run next ({self.protocol})",
                ("", "model", "task", self.unit, "expected"),
                rows,
            ),
        ]

    def _note(self) -> str:
        """Say what would still be unmeasured, and whether the plan gets where it was asked to."""
        told = f"All cells that are left after these cost {self.left:.4g} {self.unit}."
        if self.confidence is None:
            return told
        short = "These cells do not reach" if self.budget is None else "The budget ends before"
        return f"{told} {'These cells reach' if self.reached else short} the {self.confidence:g} asked for."


def choose_cells(
    completion: Completion,
    costs: CellCosts,
    *,
    budget: float | None = None,
    confidence: float | None = None,
    top: int | None = None,
    most: int | None = None,
) -> NextCells:
    """Choose the unmeasured cells that are worth the most per cost, within ``budget`` or up to ``confidence``.

    Give a budget, a confidence, or both (the first that is met ends the plan); ``most`` bounds the number of cells,
    for the next wave of an adaptive run. Cells of cost zero are free and always fit.
    """
    _check(
        completion, top, confidence, endless=budget is None and confidence is None and most is None
    )
    price = _prices(completion, costs)
    given, room = price.copy(), np.inf if budget is None else float(budget)
    state = PlanState(completion, top)
    cells: list[tuple[int, int]] = []
    expected: list[float] = []
    now = state.forecast()
    goal = np.inf if confidence is None else stopping_probability(confidence, top)
    # of a top: the expected share of the named that is truly in it, over the draws; for top 1, P(best)
    held = now.value if top is None else float(np.sort(completion.p_top(top))[-top:].mean())
    untested = _untested(completion, top if confidence is not None else None)
    settled = held >= goal and not untested.any()
    while (most is None or len(cells) < most) and (held < goal or untested.any()):
        open_cells = np.isfinite(price) & (price <= room)
        if held >= goal:
            open_cells &= untested[:, None] > 0
        found = state.best(open_cells, price)
        if found is None:
            break
        room -= price[found]
        price[found] = np.nan
        state.take(found)
        untested[found[0]] = max(untested[found[0]] - 1, 0)
        cells.append(found)
        held = state.expected()
        expected.append(held)
    after = state.forecast()
    return NextCells(
        protocol=completion.protocol,
        models=completion.models,
        tasks=completion.tasks,
        cells=tuple((completion.models[i], completion.tasks[j]) for i, j in cells),
        costs=tuple(float(given[c]) for c in cells),
        unit=costs.unit,
        budget=budget,
        confidence=confidence,
        top=top,
        now=now,
        forecast=after,
        expected=tuple(expected),
        reached=confidence is not None and after.value >= confidence,
        settled=bool(settled),
        left=float(np.nansum(price)),
    )


def _check(
    completion: Completion, top: int | None, confidence: float | None, *, endless: bool
) -> None:
    if endless:
        raise InputError(
            "a plan needs a budget or a confidence", hint="give budget=…, confidence=… or most=…"
        )
    if top is not None and not 1 <= top <= len(completion.models):
        raise InputError(
            f"top {top} of {len(completion.models)} models",
            hint="top is from 1 to the number of models",
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
    return confidence if top is None else 1.0 - (1.0 - confidence) / LUCK


def _untested(completion: Completion, top: int | None) -> npt.NDArray[np.int_]:
    """How many tasks more each model has to be measured on before a run may name the top: (models,).

    What is said of a model that was never tuned rests on its relatives and its direct scores, and it may be unlike; so
    may the first rivals, however unlikely they seem by then.
    """
    if top is None:
        return np.zeros(len(completion.models), dtype=int)
    chance = completion.p_top(top)
    asked = chance >= MAYBE
    asked[np.lexsort((-completion.aggregate, -chance))[: top + RIVALS]] = True
    lacking = math.ceil(MEASURED * len(completion.tasks)) - completion.measured.sum(axis=1)
    return np.where(asked, np.maximum(lacking, 0), 0)


def _prices(completion: Completion, costs: CellCosts) -> Floats:
    """Costs in the completion's order, NaN for what is measured already or cannot be run."""
    rows = {m: i for i, m in enumerate(costs.models)}
    columns = {t: j for j, t in enumerate(costs.tasks)}
    missing = [m for m in completion.models if m not in rows] + [
        t for t in completion.tasks if t not in columns
    ]
    if missing:
        raise InputError(
            f"no costs for {', '.join(missing[:5])}", hint="give NaN for cells that cannot be run"
        )
    grid = np.ix_([rows[m] for m in completion.models], [columns[t] for t in completion.tasks])
    return np.where(completion.measured, np.nan, costs.values[grid])


CANDIDATES = 150  # cells looked at closely in each step: the best by variance
PAIRS = 3_000  # pairs of models looked at: those most likely to be misordered
VAR = 1.0  # weight of the variance beside that of misorderings
NEAR = 0.005  # a pair less likely than this to be misordered is settled


class PlanState:
    """The covariance of aggregates and cells, as cells are taken, and what would then be known of the ranking."""

    def __init__(self, completion: Completion, top: int | None) -> None:
        """Linearise each model's aggregate in its unseen cells."""
        self.completion, self.top = completion, top
        self.posterior, self.aggregate = completion.posterior, completion.aggregate
        scale, wider = completion.fitted.scale, completion.fitted.calibration.wider
        rise = measure_steepness(self.posterior, scale)
        filled = np.where(completion.measured, completion.values, completion.mean)
        spread = expected_spread(filled, self.posterior, scale)
        weights = np.where(
            completion.measured | (spread < 1e-12), 0.0, rise / np.maximum(spread, 1e-12)
        )
        total, cells = self.posterior.covariance_with(weights / len(completion.tasks))
        # The spread of whole rows was checked apart from that of cells; both sides of g·gᵀ/v scale with it.
        self.start = self.total = total * wider**2
        self.cells = cells * wider
        self.variance = self.posterior.variance.copy()
        self.taken: list[tuple[Floats, float]] = []
        self.luck = np.random.default_rng(0).standard_normal((3, FORECASTS, len(self.aggregate)))

    def best(self, cells: npt.NDArray[np.bool_], price: Floats) -> tuple[int, int] | None:
        """The open cell with the most worth per cost."""
        places = np.argwhere(cells & (self.variance > 1e-10))
        if not len(places):
            return None
        count = len(self.aggregate)
        cost = np.maximum(price[tuple(places.T)], 1e-12 * np.nanmax(price, initial=1e-300) + 1e-300)
        g = self.cells[:, places[:, 0], places[:, 1]]  # (models, places)
        v = self.variance[tuple(places.T)]
        lost = (
            (g**2).sum(axis=0) - g.sum(axis=0) ** 2 / count
        ) / v  # of the variance about the common mean
        if len(places) > 2 * CANDIDATES:
            keep = np.union1d(
                np.argsort(-lost / cost)[:CANDIDATES], np.argsort(-lost)[: CANDIDATES // 4]
            )
            places, cost, g, v, lost = places[keep], cost[keep], g[:, keep], v[keep], lost[keep]
        total = float(np.trace(self.total) - self.total.sum() / count)
        worth = lost / max(total, 1e-300)
        first, second, base, share = self._pairs()
        if len(base):
            gap = (self.aggregate[first] - self.aggregate[second])[:, None]
            s2 = _pair_variance(self.total, first, second)[:, None]
            after = expected_misorder(gap, s2, (g[first] - g[second]) ** 2 / v)
            gone = share @ (base[:, None] - after)
            worth = VAR * worth + gone / max(float(share @ base), 1e-300)
        row, task = places[int(np.argmax(worth / cost))]
        return int(row), int(task)

    def _pairs(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Floats, Floats]:
        """Pairs that may be misordered: both models, how likely, and how much it matters.

        All pairs matter alike; with a top, by the chance that a pair straddles its edge.
        """
        first, second = np.triu_indices(len(self.aggregate), 1)
        gap = np.abs(self.aggregate[first] - self.aggregate[second])
        flip = ndtr(-gap / np.sqrt(_pair_variance(self.total, first, second)))
        share = np.ones(len(flip))
        if self.top is not None:
            p = self.completion.p_top(self.top)
            share = p[first] * (1.0 - p[second]) + p[second] * (1.0 - p[first])
        weight = flip * share
        near = np.flatnonzero((flip > NEAR) & (weight > 0))
        near = near[np.argsort(-weight[near], kind="stable")[:PAIRS]]
        return first[near], second[near], flip[near], share[near]

    def take(self, cell: tuple[int, int]) -> None:
        """Measure a cell in thought: everything that varies with it varies less."""
        along = self.posterior.covariance_of(*cell)  # (models, tasks)
        for earlier, variance in self.taken:
            along = along - earlier * earlier[cell] / variance
        variance = float(max(along[cell], 1e-12))
        g = self.cells[:, cell[0], cell[1]].copy()
        self.taken.append((along, variance))
        self.total = self.total - np.outer(g, g) / variance
        self.cells = self.cells - g[:, None, None] * (along / variance)
        self.variance = np.maximum(self.variance - along**2 / variance, 0.0)

    def expected(self) -> float:
        """The forecast's mean: in closed form for pairs, simulated for a top."""
        if self.top is not None:
            return self.forecast().value
        first, second = np.triu_indices(len(self.aggregate), 1)
        if not len(first):
            return 1.0
        before = _pair_variance(self.start, first, second)
        after = np.minimum(_pair_variance(self.total, first, second), before)
        gap = self.aggregate[first] - self.aggregate[second]
        return float(1.0 - 2.0 * expected_misorder(gap, before, before - after).mean())

    def forecast(self) -> Interval:
        """Simulate what will be believed and what is true: a′ ~ N(a, C − C′) and truth ~ N(a′, C′).

        Who is truly in the top, the noise of the tests hides even when all is measured.
        """
        left = covariance_root(self.total)
        believed = self.aggregate + self.luck[0] @ covariance_root(self.start - self.total).T
        truth = believed + self.luck[1] @ left.T
        count = len(self.aggregate)
        if self.top is not None:
            truth = truth + self.luck[2] * self.completion.noise
            named, real = (
                np.argsort(-x, axis=1, kind="stable")[:, : self.top] for x in (believed, truth)
            )
            measure = (named[:, :, None] == real[:, None, :]).any(axis=2).mean(axis=1)
            return percentile_interval(float(measure.mean()), measure, level=self.completion.level)
        few = max(20, min(len(truth), 2_000_000 // count**2))
        tied = 0.0 if left.any() and count > 1 else 1.0
        measure = np.nan_to_num(kendall_by_row(believed[:few], truth[:few]), nan=tied)
        return percentile_interval(self.expected(), measure, level=self.completion.level)


def expected_misorder(gap: Floats, variance: Floats, explained: Floats) -> Floats:
    """P(to order a pair wrongly), expected, once ``explained`` of its ``variance`` is known: 2·T(|d|/s, s′/δ)."""
    whole = np.maximum(variance, 1e-300)
    known = np.clip(explained, 0.0, whole)
    slant = np.sqrt((whole - known) / np.maximum(known, 1e-300))
    return np.asarray(2.0 * owens_t(np.abs(gap) / np.sqrt(whole), np.minimum(slant, 1e9)))


def _pair_variance(
    total: Floats, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> Floats:
    own = np.diag(total)
    return np.maximum(own[first] + own[second] - 2.0 * total[first, second], 1e-18)


Z = 1.959964


@dataclass(frozen=True)
class CandidateStanding:
    """One candidate at the end: scores with standard errors, its chance to be best, where it went out."""

    model: str
    direct: float
    direct_stderr: float
    tuned: float  # test score after tuning; NaN for those that went out before
    tuned_stderr: float
    validation: float
    p_best: float  # among the finalists; NaN for the others
    dropped_in_round: int | None = None  # the round it went out in
    problem: str = ""


@dataclass(frozen=True)
class ModelChoice(Finding):
    """The answer: the best model for this data, how sure that is, and what it would take to be surer."""

    task: str
    metric: str
    ranking: Ranking  # of the finalists
    missing: MissingEvidence | None  # what would separate the first two
    p_dropped_best: float  # chance that a model dropped before the end would have been the best
    seconds: float  # spent in all
    more_seconds: float  # what scoring so many documents would take; NaN where unknown
    train_documents: int  # documents that the finalists were tuned on
    standings: tuple[CandidateStanding, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The model that is most likely the best."""
        return self.ranking.first

    @property
    def p_best(self) -> float:
        """Its chance."""
        return next(s.p_best for s in self.standings if s.model == self.best)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, the best with its chance, and who is close to it."""
        found = {f.name: jsonable(getattr(self, f.name)) for f in fields(self)}
        return found | {
            "best": self.best,
            "p_best": self.p_best,
            "close": list(self.ranking.rivals),
        }

    def answer(self) -> str:
        """Say which model is the best for the data, how sure that is, and what would make it surer."""
        if all(s.problem for s in self.standings if s.model != self.best):
            return f"{self.best} is the only one of {len(self.standings)} that could be tuned: nothing was compared."
        alone = len(self.ranking.models) < 2
        told = [f"{self.best} alone reached the end." if alone else headline_sentence(self.ranking)]
        if self.missing is not None:
            told.append(missing_sentence(self.missing))
            if math.isfinite(self.more_seconds) and math.isfinite(self.missing.times):
                told.append(f"That is about {self.more_seconds:.0f} s of scoring.")
        dropped = sum(s.dropped_in_round is not None for s in self.standings)
        if dropped:
            models = "The model that was" if dropped == 1 else f"The {dropped} models that were"
            told.append(
                f"{models} dropped early had a chance of {format_percent(self.p_dropped_best)} to be the best."
            )
        return " ".join(told)

    def tables(self) -> Sequence[Table]:
        """Return the candidates, best first."""
        rows = []
        for s in self.standings:
            state = s.problem or (
                "best"
                if s.model == self.best
                else "close"
                if s.model in self.ranking.rivals
                else ""
            )
            state = (
                f"out in round {s.dropped_in_round}" if s.dropped_in_round is not None else state
            )
            scores = (
                format_plus_minus(s.direct, Z * s.direct_stderr),
                format_plus_minus(s.tuned, Z * s.tuned_stderr),
            )
            rows.append((s.model, *scores, s.validation, s.p_best, state))
        note = self.answer() + "".join(f" {note}" for note in self.notes)
        columns = ("model", "direct", "tuned", "validation", "P(best)", "")
        return [
            Table(
                f"{self.task} ({self.metric}), tuned on {self.train_documents} documents",
                columns,
                rows,
                note,
            )
        ]
