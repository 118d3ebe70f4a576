"""Was the fine-tuning the same for all? What every model was given, and which cells may have more in them.

The same recipe is the same fine-tuning where it trains as many parameters by as many updates on as many tokens, and
where its search ends inside what was searched. A cell whose best learning rate lies at the bound, whose validation
still rose at the end, or which kept the untuned model, may have more in it. The ranking leans on such cells where the
order of the mean standardised scores changes once they are left out.

Validation may prefer the untuned model to every tuned state (``selection: validation``), and the paper keeps the better
of both by the test (``selection: paper``). A model that was exposed to a test before the study then skips the tuning
and keeps its advantage, so the models are also ranked by the best tuned state of every cell (``selection: tuned``).

Is the recipe enough? A sample of cells tuned with more capacity beside it, and whether the ranking changes.

A pair of models on a task is ordered otherwise where both ways tell the two apart beyond their noise (1.96 standard
errors each) and do not agree. The gain of a way is its mean advantage over the recipe.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.rankings.decide import decide_ranking
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.stats.correlation import nan_mean
from potentia.values.findings import Finding, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix
from potentia.values.selection import SearchEnd, Selection

if TYPE_CHECKING:
    from potentia.evidence import Evidence

Chosen = Sequence[tuple[str, str, Selection]]  # models, tasks, and what was chosen on each
Places = npt.NDArray[np.intp]
SHOWN_ENDS = (SearchEnd.AT_BOUND, SearchEnd.STILL_RISING, SearchEnd.UNTUNED)  # in this order


@dataclass(frozen=True)
class TuningSummary:
    """What one model was given: medians over its cells, and its cells by how their search ended."""

    model: str
    cells: int
    trainable: float
    parts: tuple[str, ...]  # the targets of its adapters
    tokens: float
    updates: float
    rates: tuple[float, ...]  # the learning rates that were chosen
    doubts: Mapping[SearchEnd, int]
    seed_spread: float  # the median standard deviation between seeds; NaN for one seed
    noise: float  # the median standard error of a test

    @property
    def doubtful(self) -> int:
        """Cells that may have more in them."""
        return sum(self.doubts.values())

    def row(self) -> list[str | None]:
        """Return its cells in the table of all models."""
        amounts = [f"{amount:,.0f}" for amount in (self.trainable, self.tokens, self.updates)]
        doubts = [
            f"{self.doubts[doubt]} of {self.cells}" if self.doubts[doubt] else "–"
            for doubt in SHOWN_ENDS
        ]
        noise = [None if np.isnan(x) else f"{x:.3f}" for x in (self.seed_spread, self.noise)]
        return [self.model, *amounts, _spread(self.rates), *doubts, *noise]


@dataclass(frozen=True)
class TuningComparison(Finding):
    """The fine-tunings of one protocol side by side."""

    protocol: Protocol
    summaries: tuple[TuningSummary, ...]
    moved_models: tuple[
        str, ...
    ]  # models whose place over all tasks changes without the doubtful cells
    untuned_tasks: dict[
        str, tuple[str, ...]
    ]  # by model: the tasks on which it kept the untuned state
    tuned_ranks: dict[
        str, float
    ]  # over all tasks, had every cell its best tuned state; empty where all have

    @property
    def cells(self) -> int:
        """Tuned cells that say how their search ended."""
        return sum(one.cells for one in self.summaries)

    @property
    def doubtful(self) -> int:
        """Cells that may have more in them."""
        return sum(one.doubtful for one in self.summaries)

    def sentences(self) -> list[str]:
        """Say what was not the same, what may have more in it, and what leans on that."""
        said = []
        parts = {one.parts for one in self.summaries}
        if len(parts) > 1:
            shown = "; ".join(sorted(", ".join(names) for names in parts))
            said.append(f"The tuned layers are not the same in all models: {shown}.")
        if self.doubtful:
            many = {doubt: sum(one.doubts[doubt] for one in self.summaries) for doubt in SHOWN_ENDS}
            listed = ", ".join(f"{count} {doubt.label}" for doubt, count in many.items() if count)
            said.append(
                f"{self.doubtful} of {self.cells} tuned cells may have more in them: {listed}."
            )
        else:
            said.append(
                f"In all {self.cells} tuned cells the best setting lies inside what was searched."
            )
        if self.moved_models:
            said.append(
                f"Without these cells, the rank over all tasks changes for {', '.join(self.moved_models)}."
            )
        if self.untuned_tasks:
            said.append(
                "A model that saw a test's form before the study keeps its advantage where it kept the untuned state; "
                "the last column ranks the models by their best tuned states."
            )
        return said

    def tables(self) -> Sequence[Table]:
        """Return one row per model."""
        ranks = {
            one.model: f"{self.tuned_ranks.get(one.model, math.nan):g}" for one in self.summaries
        }
        rows = [
            one.row() + ([ranks[one.model]] if self.untuned_tasks else []) for one in self.summaries
        ]
        columns = (
            "model",
            "trained parameters",
            "tokens",
            "updates",
            "rate",
            *(doubt.label for doubt in SHOWN_ENDS),
            "between seeds",
            "test noise",
            *(["rank if always tuned"] if self.untuned_tasks else []),
        )
        note = (
            " ".join(self.sentences())
            + " Tokens, updates and rate: of the chosen lane, the median of its cells."
        )
        return [Table(f"Was it the same for all? {self.protocol.label}", columns, rows, note)]


def compare_tuning(
    evidence: Evidence, planned: Mapping[Protocol, ScoreMatrix]
) -> dict[Protocol, TuningComparison]:
    """Return what every model was given under each tuned protocol whose cells say it."""
    found: dict[Protocol, TuningComparison] = {}
    for protocol, matrix in planned.items():
        stored = (
            evidence.choices(protocol)
            if protocol.tuned and protocol.step is None and evidence.stores
            else []
        )
        there = [c for c in stored if c.model in matrix.models and c.task in matrix.tasks]
        cells = [(c.model, c.task, c.selection) for c in there if c.names("search")]
        if cells:
            models = keep_names_in(matrix.models, {model for model, _, _ in cells})
            given = tuple(
                _given(model, [cell[1:] for cell in cells if cell[0] == model], matrix)
                for model in models
            )
            kept, ranks = _always_tuned(matrix, cells)
            found[protocol] = TuningComparison(protocol, given, _moved(matrix, cells), kept, ranks)
    return found


def _always_tuned(
    matrix: ScoreMatrix, cells: Chosen
) -> tuple[dict[str, tuple[str, ...]], dict[str, float]]:
    """Return the tasks on which models kept the untuned state, and the ranks if every cell had its best tuned one.

    A cell whose tuned state was not tested stays as it is.
    """
    values = matrix.values.copy()
    kept: dict[str, tuple[str, ...]] = {}
    for model, task, selection in cells:
        if selection.is_untuned:
            kept[model] = (*kept.get(model, ()), task)
            if selection.best_tuned is not None:
                place = matrix.models.index(model), matrix.tasks.index(task)
                values[place] = selection.best_tuned.value
    if not kept:
        return {}, {}
    ranking = decide_ranking(replace(matrix, values=values))
    return kept, dict(zip(ranking.models, ranking.ranks.tolist(), strict=True))


def _given(
    model: str, cells: Sequence[tuple[str, Selection]], matrix: ScoreMatrix
) -> TuningSummary:
    tasks, chosen = zip(*cells, strict=True)
    noise = matrix.select(models=[model], tasks=tasks).stderr.ravel()
    spreads = [one.seed_spread for one in chosen if one.seed_spread is not None]
    parts = dict.fromkeys(name for one in chosen for name in one.target_modules)
    rates = sorted(one.learning_rate for one in chosen if one.learning_rate)
    ends = Counter(one.search for one in chosen)
    doubts = {end: ends[end] for end in SHOWN_ENDS}
    return TuningSummary(
        model,
        cells=len(chosen),
        trainable=_median([one.trainable for one in chosen]),
        parts=tuple(parts),
        tokens=_median([one.tokens for one in chosen]),
        updates=_median([one.updates for one in chosen]),
        rates=tuple(rates),
        doubts=doubts,
        seed_spread=_median(spreads),
        noise=_median(noise),
    )


def _moved(matrix: ScoreMatrix, cells: Chosen) -> tuple[str, ...]:
    """Return the models whose place by mean standardised score changes where doubtful cells are left out."""
    values = matrix.oriented()
    with np.errstate(all="ignore"):
        z = (values - np.nanmean(values, axis=0)) / np.nanstd(values, axis=0)
    z = np.where(np.isfinite(z), z, np.nan)
    sure = z.copy()
    for model, task, selection in cells:
        if selection.may_have_more:
            sure[matrix.models.index(model), matrix.tasks.index(task)] = np.nan
    whole, left = (rankdata(-nan_mean(one), method="min", nan_policy="omit") for one in (z, sure))
    return tuple(
        m for k, m in enumerate(matrix.models) if np.isfinite(left[k]) and left[k] != whole[k]
    )


def _median(values: npt.ArrayLike) -> float:
    known = np.asarray(values, dtype=np.float64)
    return float(np.nanmedian(known)) if np.isfinite(known).any() else math.nan


def _spread(rates: Sequence[float]) -> str:
    """Say the median rate, and the range around it where there is one."""
    if not rates:
        return "–"
    middle, low, high = (
        f"{rate:.0e}".replace("e-0", "e-") for rate in (np.median(rates), rates[0], rates[-1])
    )
    return middle if low == high else f"{middle} ({low} … {high})"


SURE = 1.96


@dataclass(frozen=True)
class TuningVariant:
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
    scores: Mapping[str, Floats]  # by way: (models, tasks)
    errors: Mapping[str, Floats]  # of these scores
    variants: tuple[TuningVariant, ...]

    def sentences(self) -> list[str]:
        """Say of every way what it adds and whether it orders models otherwise; of one model, what it reaches."""
        if len(self.models) == 1:
            alone = "One model cannot show whether the ranking changes: name two or more."
            return [*(self._reached(*row) for row in self._differences()), alone]
        said = []
        for way in self.variants:
            told = f"{way.name}: {way.gain:+.3f} ± {SURE * way.gain_error:.3f} over the recipe"
            turned = (
                f"{len(way.turned)} of {way.pairs} pairs that both tell apart are ordered otherwise"
            )
            turned = turned if way.pairs else "no pair is told apart by both"
            said.append(f"{told}; {turned}{': ' + '; '.join(way.turned) if way.turned else ''}.")
        return said

    def _differences(self) -> list[tuple[str, str, float, float, float, float]]:
        """Return task, way, both scores of the first model, and the 95 % interval of the difference by test noise."""
        rows = []
        for (j, task), way in product(enumerate(self.tasks), self.variants):
            plain, more = (self.scores[name][0][j] for name in (self.recipe, way.name))
            half = SURE * math.hypot(self.errors[self.recipe][0][j], self.errors[way.name][0][j])
            rows.append((task, way.name, plain, more, more - plain - half, more - plain + half))
        return rows

    def _reached(
        self, task: str, way: str, plain: float, more: float, low: float, high: float
    ) -> str:
        noise = (
            f"95 % interval {low:+.3f} to {high:+.3f}"
            if math.isfinite(low)
            else "its noise is not known"
        )
        scores = f"{self.models[0]} scores {plain:.3f} by the recipe and {more:.3f} by {way}"
        return f"On {task} {scores}: {more - plain:+.3f} ({noise})."

    def tables(self) -> Sequence[Table]:
        """Return the ways beside the recipe, and the scores; of one model, every difference with its interval."""
        note = " ".join(self.sentences())
        if len(self.models) == 1:
            title = f"Has {self.models[0]} more in it than the recipe brings out?"
            heads = ("task", "way", self.recipe, "score", "difference", "low", "high")
            return [
                Table(
                    title,
                    heads,
                    ((*row[:4], row[3] - row[2], *row[4:]) for row in self._differences()),
                    note,
                )
            ]
        names = [self.recipe, *(way.name for way in self.variants)]
        columns = ("way", "gain", "±", "τ with the recipe", "pairs told apart", "ordered otherwise")
        ways = [
            (w.name, w.gain, SURE * w.gain_error, w.tau, w.pairs, len(w.turned))
            for w in self.variants
        ]
        rows = [
            (model, task, *(self.scores[name][i][j] for name in names))
            for (i, model), (j, task) in product(enumerate(self.models), enumerate(self.tasks))
        ]
        summary = Table("Is the recipe enough?", columns, ways, note)
        return [summary, Table("Scores", ("model", "task", *names), rows)]


def measure_elicitation(recipe: str, found: Mapping[str, ScoreMatrix]) -> Elicitation:
    """Compare every way's scores with the recipe's; all matrices have the same models and tasks."""
    base = found[recipe]
    ways = tuple(_way(name, base, other) for name, other in found.items() if name != recipe)
    scores, errors = (
        {name: getattr(m, part) for name, m in found.items()} for part in ("values", "stderr")
    )
    return Elicitation(recipe, base.models, base.tasks, scores, errors, ways)


def _way(name: str, base: ScoreMatrix, other: ScoreMatrix) -> TuningVariant:
    gains = (other.oriented() - base.oriented()).ravel()
    gains = gains[np.isfinite(gains)]
    error = float(gains.std(ddof=1) / np.sqrt(len(gains))) if len(gains) > 1 else math.nan
    first, second = np.triu_indices(len(base.models), 1)
    one, two = (_order(matrix, first, second) for matrix in (base, other))  # (pairs, tasks)
    turned = [
        f"{base.models[first[k]]} and {base.models[second[k]]} on {base.tasks[j]}"
        for j, k in np.argwhere((one * two == -1).T)
    ]
    tau = (
        math.nan
        if len(base.models) < 3
        else float(nan_mean(kendall_by_row(base.values.T, other.values.T)))
    )
    gain = float(gains.mean()) if len(gains) else math.nan
    return TuningVariant(name, gain, error, tau, int((one * two != 0).sum()), tuple(turned))


def _order(matrix: ScoreMatrix, first: Places, second: Places) -> Floats:
    """Return the signs of differences beyond their noise, (pairs, tasks); 0 where there is none."""
    gap = matrix.values[first] - matrix.values[second]
    noise = SURE * np.hypot(matrix.stderr[first], matrix.stderr[second])
    return np.where(np.abs(gap) > noise, np.sign(gap), 0.0)
