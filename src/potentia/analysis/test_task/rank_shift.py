"""How far models move in the ranking by adjustment (figure 17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from potentia.analysis.test_task.pair import Pair
from potentia.values.findings import Bump, Chart, Finding, Table
from potentia.values.scores import Floats


@dataclass(frozen=True)
class RankShift(Finding):
    """Ranks of the same models before and after (1 is best), and by how many places they move."""

    task: str
    models: tuple[str, ...]
    families: tuple[str, ...]
    ranks: Floats  # (models, 2)
    tau: float

    @property
    def shifts(self) -> Floats:
        """Places gained (positive) or lost by adjustment."""
        return np.asarray(self.ranks[:, 0] - self.ranks[:, 1])

    @property
    def mean(self) -> float:
        """Mean absolute shift."""
        return float(np.abs(self.shifts).mean())

    @property
    def largest(self) -> float:
        """Largest absolute shift."""
        return float(np.abs(self.shifts).max())

    def tables(self) -> Sequence[Table]:
        """Return the summary and the models that move most."""
        summary = Table(
            f"{self.task}: change of ranks by adjustment",
            ("models", "mean shift", "largest shift", "Kendall's τ"),
            ((len(self.models), self.mean, self.largest, self.tau),),
            digits=2,
        )
        order = np.argsort(-np.abs(self.shifts), kind="stable")[:10]
        rows = tuple((self.models[i], *map(float, self.ranks[i]), float(self.shifts[i])) for i in order)
        return summary, Table("The ten largest shifts", ("model", "before", "after", "places gained"), rows, digits=0)

    def charts(self) -> Sequence[Chart]:
        """Return the ranks in two columns joined by lines."""
        return (
            Bump(
                name=f"{self.task}-ranks",
                title=f"{self.task}: ranks before and after adjustment",
                caption=f"Models move by {self.mean:.1f} places on average, {self.largest:.0f} at most.",
                models=self.models,
                columns=("before", "after"),
                ranks=self.ranks,
                groups=self.families,
            ),
        )


def shift_of_ranks(pair: Pair) -> RankShift:
    """Rank the models before and after adjustment; models with equal scores share the mean of their places."""
    scores = pair.oriented()
    ranks = np.column_stack([stats.rankdata(-score) for score in scores])
    tau = float(stats.kendalltau(*scores).statistic)
    return RankShift(pair.task, pair.cohort.models, pair.cohort.family, ranks, tau)
