"""The model to use: the winner of a selection, fine-tuned once more on all rows.

Folds test a recipe: each of their models has seen a part of the rows. The one to use is fine-tuned on all of them, with
the learning rate, the passes and the style that the folds chose, and without a search. Where they chose a state on the
way, the learning rate falls as far as it had fallen there, and no further. The model cannot be tested itself, so its
honest estimate is the folds' score. Two rows stay out, because every task has a validation and a test split.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.study import Study, Tuning
from potentia.values.baselines import Baseline
from potentia.values.protocol import TRAIN_BEFORE_TEST
from potentia.values.recipe import LATE_SHARE
from potentia.values.scores import Score

if TYPE_CHECKING:
    from potentia.store import CellRecord

NEARLY_ALL = (1.0, 1e-6, 1e-6)  # shares of the splits, each of which has a row
STORE_NAME = "all-rows.db"  # apart from the selection's: its test is of one row


@dataclass(frozen=True)
class RefitSettings:
    """What the folds chose: a learning rate, passes over the rows, how far they were, and how the model is asked."""

    learning_rate: float
    passes: int
    share: float  # of the whole fine-tuning that had been made by then
    style: str

    @classmethod
    def from_folds(
        cls, cells: Sequence[CellRecord], tuning: Tuning, train_examples: int
    ) -> RefitSettings | None:
        """Return the middle of what the folds chose; None where most of them kept the untuned model."""
        tuned = [cell.selection for cell in cells if cell.selection.tuned]
        if 2 * len(tuned) <= len(cells):
            return None
        planned_epochs, passes_per_epoch = tuning.plan_epochs(train_examples)
        rates = [chosen.learning_rate for chosen in tuned if chosen.learning_rate is not None]
        epochs = [chosen.epoch for chosen in tuned if chosen.epoch is not None]
        styles = Counter(chosen.style or "plain" for chosen in tuned)
        epoch = statistics.median_high(epochs)
        return cls(
            learning_rate=statistics.median_low(rates),
            passes=passes_per_epoch * epoch,
            share=min(epoch / planned_epochs, 1.0),
            style=styles.most_common(1)[0][0],
        )

    def make_tuning(self, tuning: Tuning) -> Tuning:
        """Return the fine-tuning that makes so many passes at this rate."""
        return tuning.model_copy(
            update={
                "learning_rates": (self.learning_rate,),
                "rate_bounds": None,
                "epochs": self.passes,
                "floor": self._find_floor(tuning),
                "least_updates": 0,
                "race": False,
            }
        )

    def _find_floor(self, tuning: Tuning) -> float:
        """Return the share of the learning rate that the whole fine-tuning had left at the chosen state."""
        if tuning.decay == "constant":
            return tuning.floor
        left = 1 - self.share
        if tuning.decay == "late":
            left = min(left / LATE_SHARE, 1.0)
        if tuning.decay == "cosine":
            left = 0.5 * (1 + math.cos(math.pi * self.share))
        return tuning.floor + (1 - tuning.floor) * left


def make_refit_study(study: Study, model_name: str, tuning: Tuning, style: str) -> Study:
    """Return the study that fine-tunes one model of a selection on all rows, in a store of its own."""
    (task,) = study.tasks
    whole_task = task.model_copy(update={"folds": None, "ratios": NEARLY_ALL})
    return study.model_copy(
        update={
            "name": f"{study.name}-all-rows",
            "models": tuple(row for row in study.rows() if row.name == model_name),
            "tasks": (whole_task,),
            "protocols": (TRAIN_BEFORE_TEST,),
            "tuning": tuning,
            "selection": "last",
            "seeds": 1,
            "chat": "always" if style == "chat" else "never",
            "store": str(Path(study.store).parent / STORE_NAME),
            "keep_adapters": True,
        }
    )


def pool_scores(scores: Sequence[Score]) -> Score:
    """Return the score over all folds, whose test examples are different ones."""
    examples = sum(score.n for score in scores)
    weighted = [(score.n / examples, score) for score in scores]
    return Score(
        value=sum(weight * score.value for weight, score in weighted),
        stderr=math.sqrt(sum((weight * score.stderr) ** 2 for weight, score in weighted)),
        n=examples,
        metric=scores[0].metric,
    )


def put_fold_scores(cell: CellRecord, fold_cells: Sequence[CellRecord]) -> CellRecord:
    """Return the result of the model to use with the scores of the folds, which are its estimate."""
    scores: dict[str, Score] = {}
    for metric in fold_cells[0].scores:
        scores[metric] = pool_scores([fold_cell.scores[metric] for fold_cell in fold_cells])
    task = replace(cell.provenance.task, baselines=_pool_baselines(fold_cells))
    return replace(
        cell,
        scores=scores,
        direct_value=None,
        provenance=replace(cell.provenance, task=task),
    )


def _pool_baselines(fold_cells: Sequence[CellRecord]) -> dict[Baseline, Mapping[str, float]]:
    """Return the baselines' scores over all folds."""
    examples = sum(cell.score.n for cell in fold_cells)
    pooled: dict[Baseline, Mapping[str, float]] = {}
    for baseline, scores in fold_cells[0].provenance.task.baselines.items():
        totals = dict.fromkeys(scores, 0.0)
        for cell in fold_cells:
            for metric, value in cell.provenance.task.baselines.get(baseline, {}).items():
                totals[metric] = totals.get(metric, 0.0) + value * cell.score.n / examples
        pooled[baseline] = totals
    return pooled
