"""Whether a larger search for the learning rate would change θ (appendix B.3).

One group gets its best learning rate by the test itself, while the others keep the one that validation chose: a θ that
stays small was not an artefact of the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.left_out import NO_ENTRIES
from potentia.errors import InputError
from potentia.papers.task_training.adjustment import GroupScaling, compare_groups
from potentia.papers.task_training.cohort import ModelSplit, ScorePair
from potentia.values.findings import Chart, Finding, Line, Plot, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats

if TYPE_CHECKING:
    from potentia.evidence import Evidence

RateScores = Mapping[str, Mapping[float, float]]  # model → learning rate → score on the test split


@dataclass(frozen=True)
class RateBudget(Finding):
    """Every model's score by learning rate on one task, and θ where the group has its best rate."""

    task: str
    models: tuple[str, ...]
    rates: tuple[float, ...]
    values: Floats  # (models, rates); NaN where a rate was not tried
    chosen: tuple[float, ...]  # score of the rate that validation chose
    favoured: GroupScaling | None = None  # equation 1 after adjustment, the group at its best rate
    usual: GroupScaling | None = None  # the same at the rates that were chosen

    def tables(self) -> Sequence[Table]:
        """Return one row per model, and both effects."""
        score_table = Table(
            f"{self.task}: score by learning rate",
            ("model", *(f"{learning_rate:g}" for learning_rate in self.rates), "chosen"),
            zip(self.models, *self.values.T, self.chosen, strict=True),
            "The score on the test split at every learning rate. Validation chooses; these scores choose nothing.",
        )
        if self.favoured is None or self.usual is None:
            return [score_table]
        favoured_label = f"best rate by the test for models {self.favoured.split.label}"
        effects = {"as chosen": self.usual.effect, favoured_label: self.favoured.effect}
        effect_table = Table(
            f"{self.task}: θ by search budget",
            ("rates", "θ", "p"),
            [(label, effect.value, effect.clustered_p) for label, effect in effects.items()],
            "A θ that stays small where one group is favoured in the search is no artefact of it (appendix B.3).",
        )
        return [score_table, effect_table]

    def charts(self) -> Sequence[Chart]:
        """Return a line per model over the learning rates."""
        lines = tuple(
            Line(model, self.rates, scores)
            for model, scores in zip(self.models, self.values, strict=True)
        )
        chart = Plot(
            f"{self.task}-rates",
            f"{self.task}: score by learning rate",
            "The score on the test split after adjustment; a best rate at an end may want another grid.",
            lines=lines,
            x_label="learning rate",
            y_label="score",
            log_x=True,
        )
        return [chart]


def read_stored_rates(evidence: Evidence, protocol: Protocol) -> dict[str, RateScores]:
    """Return the scores of every learning rate by task, where a study stored them; several seeds are averaged."""
    if not evidence.stores:
        return {}
    seed_scores: dict[str, dict[str, dict[float, list[float]]]] = {}
    for cell in evidence.choices(protocol):
        tested_rates = cell.selection.rates
        if not tested_rates:
            continue
        by_rate = seed_scores.setdefault(cell.task, {}).setdefault(cell.model, {})
        for state in tested_rates:
            by_rate.setdefault(state.learning_rate, []).append(state.value)
    rates_by_task: dict[str, RateScores] = {}
    for task, by_model in seed_scores.items():
        rates_by_task[task] = {
            model: _average_seeds(by_rate) for model, by_rate in by_model.items() if by_rate
        }
    return {task: by_model for task, by_model in rates_by_task.items() if by_model}


def _average_seeds(scores_by_rate: Mapping[float, Sequence[float]]) -> dict[float, float]:
    return {
        learning_rate: float(np.mean(scores)) for learning_rate, scores in scores_by_rate.items()
    }


def compare_rates(
    task: str,
    rates: RateScores,
    score_pair: ScorePair | None = None,
    split: ModelSplit | None = None,
    *,
    chosen: Mapping[str, float] = NO_ENTRIES,
    draws: int = 1999,
    seed: int = 0,
) -> RateBudget:
    """Lay every rate's scores side by side; with a pair and its division, give the group its best and fit θ again."""
    models = tuple(rates)
    all_rates: set[float] = set()
    for by_rate in rates.values():
        all_rates.update(by_rate)
    grid = tuple(sorted(all_rates))
    values = []
    for model in models:
        values.append([rates[model].get(learning_rate, np.nan) for learning_rate in grid])
    budget = RateBudget(
        task=task,
        models=models,
        rates=grid,
        values=np.array(values),
        chosen=tuple(float(chosen.get(model, np.nan)) for model in models),
    )
    if score_pair is None or split is None:
        return budget
    sweep = []
    for learning_rate in grid:
        scores = [
            rates.get(model, {}).get(learning_rate, np.nan) for model in score_pair.cohort.models
        ]
        sweep.append(np.array(scores))
    favoured_pair = give_group_best_rate(score_pair, split, sweep)
    return replace(
        budget,
        favoured=compare_groups(favoured_pair, split, draws=draws, seed=seed).after,
        usual=compare_groups(score_pair, split, draws=draws, seed=seed).after,
    )


def give_group_best_rate(
    score_pair: ScorePair, split: ModelSplit, sweep: Sequence[Floats]
) -> ScorePair:
    """Give the group its best score of a learning-rate sweep, and leave the others as they are (B.3).

    ``sweep`` holds one array of adjusted scores per learning rate (NaN where it was not tried). If θ stays near zero
    even so, it is not the choice of learning rate that took the group's advantage away.
    """
    if any(scores.shape != score_pair.after.shape for scores in sweep):
        raise InputError("every learning rate of the sweep needs one score per model")
    tried = np.stack([score_pair.after, *sweep])
    best_scores = (
        np.nanmax(tried, axis=0) if score_pair.higher_is_better else np.nanmin(tried, axis=0)
    )
    return replace(score_pair, after=np.where(split.members, best_scores, score_pair.after))
