"""Scores by stage: before tuning, after it, and at steps on the way, each benchmark by any metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from potentia.errors import DataError, InputError
from potentia.formats.read import read_score_files
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix


class StagedScores:
    """Scores by stage and by any metric: a file that is read once for each metric."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._main_scores = read_score_files(path).scores
        self._scores_by_metric: dict[str, dict[Protocol, ScoreMatrix]] = {}

    def stages(self) -> tuple[str, ...]:
        """Return the names of the stages."""
        return tuple(dict.fromkeys(protocol.base for protocol in self._main_scores))

    def _scores_by(self, metric: str) -> dict[Protocol, ScoreMatrix]:
        if metric not in self._scores_by_metric:
            self._scores_by_metric[metric] = {}
            with suppress(DataError):  # no score is by it
                self._scores_by_metric[metric] = read_score_files(self.path, metric=metric).scores
        return self._scores_by_metric[metric]

    def scores(
        self, stage: str, benchmark: str, metric: str, *, step: int | None = None
    ) -> dict[str, float]:
        """Return model → score of one benchmark at one stage (and step)."""
        protocol = Protocol(stage) if step is None else Protocol(stage).at_step(step)
        matrix = self._scores_by(metric).get(protocol)
        scores: dict[str, float] = {}
        if matrix is not None:
            cells = [cell for cell in matrix.scores() if cell[1] == benchmark]
            scores = {model: score.value for model, _, score in cells}
        if not scores:
            at_step = "" if step is None else f", step {step}"
            raise InputError(
                f"no {benchmark} ({metric}) at stage {stage}{at_step}",
                where=str(self.path),
                hint=f"stages there: {', '.join(self.stages())}",
            )
        return scores

    def steps(self, stage: str, benchmark: str, metric: str) -> dict[int, dict[str, float]]:
        """Return step → model → score of one benchmark."""
        steps = []
        for protocol, matrix in self._scores_by(metric).items():
            if protocol.base == stage and benchmark in matrix.tasks and protocol.step:
                steps.append(protocol.step)
        return {
            step_number: self.scores(stage, benchmark, metric, step=step_number)
            for step_number in sorted(set(steps))
        }

    def matrix(self, stage: str, metrics: Mapping[str, str]) -> ScoreMatrix:
        """Return one stage as a matrix of benchmarks, each by the metric given for it."""
        columns = {
            benchmark: self.scores(stage, benchmark, metric)
            for benchmark, metric in metrics.items()
        }
        distinct_models: dict[str, None] = {}
        for column in columns.values():
            distinct_models |= dict.fromkeys(column)
        models = list(distinct_models)
        values = []
        for model in models:
            values.append([column.get(model, math.nan) for column in columns.values()])
        return ScoreMatrix.build(
            models, list(columns), values, metrics=list(metrics.values()), protocol=stage
        )
