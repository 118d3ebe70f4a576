"""Was the fine-tuning the same for all? What every model was given, and which cells may have more in them.

The same recipe is the same fine-tuning where it trains as many parameters by as many updates on as many tokens, and
where its search ends inside what was searched. A cell whose best learning rate lies at the bound, whose validation
still rose at the end, or which kept the untuned model, may have more in it. The ranking leans on such cells where the
order of the mean standardized scores changes once they are left out.

Validation may prefer the untuned model to every tuned state (``selection: validation``), and the paper keeps the better
of both by the test (``selection: paper``). A model that was exposed to a test before the study then skips the tuning
and keeps its advantage, so the models are also ranked by the best tuned state of every cell (``selection: tuned``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.rankings.decide import decide_ranking
from potentia.analysis.stats.correlation import nan_mean
from potentia.values.findings import Finding, Table, ValuedText
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix
from potentia.values.selection import SearchEnd, Selection

if TYPE_CHECKING:
    from potentia.evidence import Evidence

SHOWN_ENDS = (SearchEnd.AT_BOUND, SearchEnd.STILL_RISING, SearchEnd.UNTUNED)  # in this order
DOUBTS = {  # what is said of so many fine-tunings
    SearchEnd.AT_BOUND: "the best learning rate was the largest or smallest of the grid",
    SearchEnd.STILL_RISING: "validation was still rising at the last epoch",
    SearchEnd.UNTUNED: "validation preferred the untuned model",
}
ALWAYS_TUNED_COLUMN = "rank if always tuned"


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

    def table_row(self) -> list[str | None]:
        """Return its cells in the table of all models."""
        row: list[str | None] = [self.model]
        for amount in (self.trainable, self.tokens, self.updates):
            row.append(ValuedText(f"{amount:,.0f}", value=amount))
        row.append(_format_rates(self.rates))
        for end in SHOWN_ENDS:
            count = self.doubts[end]
            row.append(ValuedText(f"{count} of {self.cells}" if count else "–", value=count))
        for error in (self.seed_spread, self.noise):
            row.append(None if np.isnan(error) else ValuedText(f"{error:.3f}", value=error))
        return row


def _format_rates(rates: Sequence[float]) -> str:
    """Write the median learning rate, and the range around it where there is one; ``rates`` are sorted."""
    if not rates:
        return "–"
    median_rate = float(np.median(rates))
    median = _format_rate(median_rate)
    lowest = _format_rate(rates[0])
    highest = _format_rate(rates[-1])
    text = median if lowest == highest else f"{median} ({lowest} … {highest})"
    return ValuedText(text, value=median_rate, low=rates[0], high=rates[-1])


def _format_rate(learning_rate: float) -> str:
    """Write a learning rate: 1e-4."""
    return f"{learning_rate:.0e}".replace("e-0", "e-")


@dataclass(frozen=True)
class TuningComparison(Finding):
    """The fine-tunings of one protocol side by side."""

    protocol: Protocol
    summaries: tuple[TuningSummary, ...]
    moved_models: tuple[str, ...]  # whose place over all tasks changes without the doubtful cells
    untuned_tasks: dict[str, tuple[str, ...]]  # by model: where it kept the untuned state
    tuned_ranks: dict[str, float]  # had every cell its best tuned state; empty where all have

    @property
    def cells(self) -> int:
        """Tuned cells that say how their search ended."""
        return sum(summary.cells for summary in self.summaries)

    @property
    def doubtful(self) -> int:
        """Cells that may have more in them."""
        return sum(summary.doubtful for summary in self.summaries)

    def sentences(self) -> list[str]:
        """Say what was not the same, what may have more in it, and what leans on that."""
        sentences = []
        targets = {summary.parts for summary in self.summaries}
        if len(targets) > 1:
            listed = "; ".join(sorted(", ".join(names) for names in targets))
            sentences.append(f"Not the same layers were fine-tuned in all models: {listed}.")
        if self.doubtful:
            sentences.append(
                f"In {self.doubtful} of {self.cells} fine-tunings the score may be too low: "
                f"{self._count_doubts()}."
            )
        else:
            sentences.append(
                f"In all {self.cells} fine-tunings the best setting lies inside what was searched."
            )
        if self.moved_models:
            models = ", ".join(self.moved_models)
            sentences.append(
                f"Without these results, the rank over all tasks changes for {models}."
            )
        if self.untuned_tasks:
            sentences.append(
                "Where the untuned model was used, earlier practice still counts. "
                "The last column ranks fine-tuned models only."
            )
        return sentences

    def _count_doubts(self) -> str:
        """Say how many cells ended in each doubtful way."""
        counts = []
        for end in SHOWN_ENDS:
            count = sum(summary.doubts[end] for summary in self.summaries)
            if count:
                counts.append(f"in {count} {DOUBTS[end]}")
        return ", ".join(counts)

    def tables(self) -> Sequence[Table]:
        """Return one row per model, with the sentences below it."""
        return [self.model_table(note=" ".join(self.sentences()))]

    def model_table(self, note: str = "") -> Table:
        """Return one row per model; a note comes first below it."""
        column_names = ["model", "trained parameters", "tokens", "updates", "rate"]
        column_names += [end.label for end in SHOWN_ENDS]
        column_names += ["between seeds", "test noise"]
        table_rows = [summary.table_row() for summary in self.summaries]
        if self.untuned_tasks:
            column_names.append(ALWAYS_TUNED_COLUMN)
            for row, summary in zip(table_rows, self.summaries, strict=True):
                tuned_rank = self.tuned_ranks.get(summary.model, math.nan)
                row.append(ValuedText(f"{tuned_rank:g}", value=tuned_rank))
        columns_note = "Tokens, updates and rate: of the chosen fine-tuning, the median over tasks."
        title = f"Did every model train well? {self.protocol.label}"
        return Table(title, column_names, table_rows, f"{note} {columns_note}".lstrip())


@dataclass(frozen=True)
class _ChosenState:
    """What validation chose for one model on one task."""

    model: str
    task: str
    selection: Selection


def compare_tuning(
    evidence: Evidence, final_matrices: Mapping[Protocol, ScoreMatrix]
) -> dict[Protocol, TuningComparison]:
    """Return what every model was given under each tuned protocol whose cells say it."""
    comparisons: dict[Protocol, TuningComparison] = {}
    for protocol, matrix in final_matrices.items():
        chosen = _read_choices(evidence, protocol, matrix)
        if not chosen:
            continue
        models = keep_names_in(matrix.models, {state.model for state in chosen})
        untuned_tasks = _list_untuned_tasks(chosen)
        comparisons[protocol] = TuningComparison(
            protocol=protocol,
            summaries=tuple(_summarize_tuning(model, chosen, matrix) for model in models),
            moved_models=_find_moved_models(matrix, chosen),
            untuned_tasks=untuned_tasks,
            tuned_ranks=_rank_always_tuned(matrix, chosen) if untuned_tasks else {},
        )
    return comparisons


def _read_choices(
    evidence: Evidence, protocol: Protocol, matrix: ScoreMatrix
) -> list[_ChosenState]:
    """Return what validation chose for the cells of a matrix that say how their search ended."""
    if not protocol.tuned or protocol.step is not None or not evidence.stores:
        return []
    chosen = []
    for record in evidence.choices(protocol):
        is_shown = record.model in matrix.models and record.task in matrix.tasks
        if not is_shown:
            continue
        selection = record.selection
        if selection.search is not None:
            chosen.append(_ChosenState(record.model, record.task, selection))
    return chosen


def _list_untuned_tasks(chosen: Sequence[_ChosenState]) -> dict[str, tuple[str, ...]]:
    """Return, by model, the tasks on which it kept the untuned state."""
    untuned_tasks: dict[str, tuple[str, ...]] = {}
    for state in chosen:
        if state.selection.is_untuned:
            earlier = untuned_tasks.get(state.model, ())
            untuned_tasks[state.model] = (*earlier, state.task)
    return untuned_tasks


def _rank_always_tuned(matrix: ScoreMatrix, chosen: Sequence[_ChosenState]) -> dict[str, float]:
    """Return the ranks if every cell had its best tuned state; one that was not tested stays as it is."""
    values = matrix.values.copy()
    for state in chosen:
        best_tuned = state.selection.best_tuned
        if state.selection.is_untuned and best_tuned is not None:
            row = matrix.models.index(state.model)
            column = matrix.tasks.index(state.task)
            values[row, column] = best_tuned.value
    ranking = decide_ranking(replace(matrix, values=values))
    return dict(zip(ranking.models, ranking.ranks.tolist(), strict=True))


def _summarize_tuning(
    model: str, chosen: Sequence[_ChosenState], matrix: ScoreMatrix
) -> TuningSummary:
    """Summarize what one model was given."""
    states = [state for state in chosen if state.model == model]
    selections = [state.selection for state in states]
    targets: dict[str, None] = {}  # in the order of first use
    for selection in selections:
        targets |= dict.fromkeys(selection.target_modules)
    end_counts = Counter(selection.search for selection in selections)
    rates = [selection.learning_rate for selection in selections if selection.learning_rate]
    spreads = [
        selection.seed_spread for selection in selections if selection.seed_spread is not None
    ]
    of_model = matrix.select(models=[model], tasks=[state.task for state in states])
    return TuningSummary(
        model=model,
        cells=len(selections),
        trainable=_median_of_known([selection.trainable for selection in selections]),
        parts=tuple(targets),
        tokens=_median_of_known([selection.tokens for selection in selections]),
        updates=_median_of_known([selection.updates for selection in selections]),
        rates=tuple(sorted(rates)),
        doubts={end: end_counts[end] for end in SHOWN_ENDS},
        seed_spread=_median_of_known(spreads),
        noise=_median_of_known(of_model.stderr.ravel()),
    )


def _find_moved_models(matrix: ScoreMatrix, chosen: Sequence[_ChosenState]) -> tuple[str, ...]:
    """Return the models whose place by mean standardized score changes where doubtful cells are left out."""
    values = matrix.oriented()
    with np.errstate(all="ignore"):
        z_scores = (values - np.nanmean(values, axis=0)) / np.nanstd(values, axis=0)
    z_scores = np.where(np.isfinite(z_scores), z_scores, np.nan)
    without_doubtful = z_scores.copy()
    for state in chosen:
        if state.selection.may_have_more:
            row = matrix.models.index(state.model)
            column = matrix.tasks.index(state.task)
            without_doubtful[row, column] = np.nan
    ranks = rankdata(-nan_mean(z_scores), method="min", nan_policy="omit")
    ranks_without = rankdata(-nan_mean(without_doubtful), method="min", nan_policy="omit")
    moved = np.isfinite(ranks_without) & (ranks_without != ranks)
    return tuple(model for model, has_moved in zip(matrix.models, moved, strict=True) if has_moved)


def _median_of_known(values: npt.ArrayLike) -> float:
    """Return the median of the values that are known; NaN where none is."""
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).any():
        return math.nan
    return float(np.nanmedian(numbers))
