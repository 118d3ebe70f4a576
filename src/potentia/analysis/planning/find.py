"""From evidence to a completion: what a study has measured so far, with whatever else is known of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.planning.complete import DRAWS, Completion, Fitted, complete
from potentia.evidence import Evidence
from potentia.facts import ModelTable
from potentia.protocol import DIRECT, Protocol
from potentia.scores import Floats, ScoreMatrix


@dataclass(frozen=True)
class Grid:
    """The cells a study is about: its rows, its tasks with their metrics, the tuned protocol."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    higher_is_better: tuple[bool, ...]
    protocol: Protocol

    def laid_out(self, matrix: ScoreMatrix | None) -> ScoreMatrix:
        """Return the scores of this grid; NaN where there are none."""
        values, stderr, n = (np.full((len(self.models), len(self.tasks)), np.nan) for _ in range(3))
        if matrix is not None:
            rows = {m: i for i, m in enumerate(matrix.models)}
            columns = {t: j for j, t in enumerate(matrix.tasks)}
            for i, model in enumerate(self.models):
                for j, task in enumerate(self.tasks):
                    if model in rows and task in columns:
                        place = rows[model], columns[task]
                        values[i, j], stderr[i, j], n[i, j] = (
                            matrix.values[place],
                            matrix.stderr[place],
                            matrix.n[place],
                        )
        return ScoreMatrix(
            self.protocol, self.models, self.tasks, values, stderr, n, self.higher_is_better, self.metrics
        )


def find_completion(
    grid: Grid,
    evidence: Evidence | None,
    *,
    history: Evidence | None = None,
    facts: ModelTable | None = None,
    measured: Floats | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    fitted: Fitted | None = None,
) -> Completion:
    """Complete the grid from the study's own evidence, history from elsewhere, and facts.

    ``measured`` (True where a cell may be read) hides the others, so that a decision can be made again as it was made.
    """
    own = evidence.scores if evidence is not None else {}
    tuned = grid.laid_out(own.get(grid.protocol))
    if measured is not None:
        tuned = ScoreMatrix(
            tuned.protocol, tuned.models, tuned.tasks, np.where(measured, tuned.values, np.nan), tuned.stderr, tuned.n,
            tuned.higher_is_better, tuned.metrics,
        )  # fmt: skip
    past = history.scores if history is not None else {}
    before = [*_untuned(own), *_untuned(past)]
    table = facts if facts is not None else (evidence or history).facts if (evidence or history) else None  # type: ignore[union-attr]
    return complete(
        tuned,
        direct=before,
        history=[matrix.benchmarks() for protocol, matrix in past.items() if protocol == grid.protocol],
        facts=table,
        draws=draws,
        seed=seed,
        fitted=fitted,
    )


def _untuned(scores: Mapping[Protocol, ScoreMatrix]) -> Sequence[ScoreMatrix]:
    """Scores before tuning: direct ones, with the corpora among them."""
    return [matrix for protocol, matrix in scores.items() if protocol == DIRECT]
