"""Emergence and training on the test task: as models train on it, c_e falls and a line describes them (figure 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.errors import InputError
from potentia.papers.task_training.cohort import Cohort, plot_against_compute
from potentia.papers.task_training.scaling import (
    HingeFit,
    LogLinearFit,
    fit_hinge,
    fit_log_linear,
)
from potentia.values.findings import Chart, Finding, Line, Plot, Points, Table

MIN_MODELS = 8  # that a curve is fitted to
CURVES_SHOWN = 5


@dataclass(frozen=True)
class EmergenceCurve(Finding):
    """The hinge and the line fitted at each amount of test-task training (number of examples)."""

    task: str
    examples: tuple[int, ...]
    hinges: tuple[HingeFit, ...]
    lines: tuple[LogLinearFit, ...]
    span: tuple[float, float]  # log₁₀ FLOPs of the smallest and the largest model
    batch: int | None = None  # examples per optimizer step, where amounts come from steps
    points: tuple[Points, ...] = ()  # the models' scores at each amount
    amounts_to_draw: tuple[int, ...] = ()  # beside some that are spread over all

    def tables(self) -> Sequence[Table]:
        """Return one row per amount of training."""
        table_rows = []
        for examples, hinge, line in zip(self.examples, self.hinges, self.lines, strict=True):
            alpha, emergence, bounds, r2, _ = hinge.curve_row()
            flops = None
            if np.isfinite(hinge.emergence.value):
                flops = f"{10**hinge.emergence.value:.1e}"
            table_rows.append((examples, hinge.n, emergence, bounds, flops, alpha, r2, line.r2))
        columns = ("examples", "models", "c_e", "c_e 95 %", "FLOPs", "α", "R² hinge")
        note = "c_e: log₁₀ of the FLOPs from which models rise above chance; a log-linear R² near 1 means no emergence."
        if self.batch is not None:
            note += f" Examples: optimizer steps × {self.batch}, the batch."
        title = f"{self.task}: emergence by amount of test-task training"
        return (Table(title, (*columns, "R² log-linear"), table_rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return c_e and R² against the number of training examples, and some of the fitted curves."""
        r2_line = Line("log-linear R²", self._example_axis(), [line.r2 for line in self.lines])
        hinges_caption = (
            "Each curve is the hinge fitted after that much training; a point is a model."
        )
        lines_caption = (
            "Each line is the log-linear fit after that much training; a point is a model."
        )
        return [
            self._plot_curves("curves", "scaling", self.hinges, hinges_caption),
            self._plot_curves("lines", "log-linear scaling", self.lines, lines_caption),
            self._plot_by_examples(
                "emergence",
                "point of emergence",
                self._emergence_line(),
                "log₁₀ FLOPs of emergence",
            ),
            self._plot_by_examples(
                "log-linear",
                "how log-linear the scaling is",
                r2_line,
                "R² of the log-linear fit",
            ),
        ]

    def _example_axis(self) -> list[float]:
        """Return the amounts as a logarithmic axis shows them: none stands left of the smallest."""
        smallest = min((amount for amount in self.examples if amount), default=3)
        return [amount or smallest / 3 for amount in self.examples]

    def _emergence_line(self) -> Line:
        values = np.array([hinge.emergence.value for hinge in self.hinges])
        points = np.where(np.isfinite(values), values, np.nan)  # one below all models is not drawn
        low_ends = np.array([hinge.emergence_interval.low for hinge in self.hinges])
        highs = np.array([hinge.emergence_interval.high for hinge in self.hinges])
        return Line(
            "c_e",
            self._example_axis(),
            points,
            low=np.where(np.isfinite(low_ends), low_ends, points),
            high=np.where(np.isfinite(highs), highs, points),
        )

    def _plot_curves(
        self,
        chart_name: str,
        title: str,
        fits: Sequence[HingeFit | LogLinearFit],
        caption: str,
    ) -> Plot:
        """Draw some of the amounts: the models, and the curve fitted to them."""
        grid = np.linspace(*self.span, 200)
        positions_drawn = self._choose_positions()
        curves = []
        for index in positions_drawn:
            label = f"{self.examples[index]:,} examples"
            curves.append(Line(label, 10**grid, fits[index].predict(grid)))
        return plot_against_compute(
            f"{self.task}-{chart_name}",
            f"{self.task}: {title} as models train on the test task",
            caption,
            points=tuple(self.points[index] for index in positions_drawn if self.points),
            lines=tuple(curves),
        )

    def _choose_positions(self) -> list[int]:
        """Return which amounts a chart shows: the first, the last, some between, and those that have to be there."""
        spread = np.linspace(0, len(self.examples) - 1, CURVES_SHOWN)
        positions = {round(position) for position in spread.tolist()}
        for amount in self.amounts_to_draw:
            if amount in self.examples:
                positions.add(self.examples.index(amount))
        return sorted(positions)

    def _plot_by_examples(self, chart_name: str, title: str, line: Line, y_label: str) -> Plot:
        return Plot(
            f"{self.task}-{chart_name}",
            f"{self.task}: {title}",
            "Training on the test task moves emergence to smaller scales. The first point is before any training.",
            lines=(line,),
            x_label="training examples",
            y_label=y_label,
            log_x=True,
        )


def trace_emergence(
    task: str,
    stages: Mapping[int, Mapping[str, float]],
    cohort: Cohort,
    *,
    chance: float = 0.0,
    higher_is_better: bool = True,
    batch: int | None = None,
    amounts_to_draw: Sequence[int] = (),
) -> EmergenceCurve:
    """Fit both curves at each amount of training: ``stages`` maps examples seen to model → score.

    Amounts at which fewer than ``MIN_MODELS`` were scored are left out, as their fits would compare other models.
    """
    models = set(cohort.models)
    examples = []
    hinges = []
    lines = []
    points = []
    for amount in sorted(stages):
        score_by_model = {}
        for model, score in stages[amount].items():
            if model in models and np.isfinite(score):
                score_by_model[model] = score
        if len(score_by_model) < MIN_MODELS:
            continue
        scored = cohort.select(list(score_by_model))
        scores = np.array(list(score_by_model.values()))
        hinge = fit_hinge(
            scored.log_compute,
            scores,
            chance=chance,
            families=scored.family,
            higher_is_better=higher_is_better,
        )
        examples.append(amount)
        hinges.append(hinge)
        lines.append(fit_log_linear(scored.log_compute, scores, families=scored.family))
        points.append(Points(f"{amount:,} examples", scored.compute, scores, scored.models))
    if not examples:
        raise InputError(f"no stage of {task} has {MIN_MODELS} models of known compute")
    return EmergenceCurve(
        task=task,
        examples=tuple(examples),
        hinges=tuple(hinges),
        lines=tuple(lines),
        span=(float(cohort.log_compute.min()), float(cohort.log_compute.max())),
        batch=batch,
        points=tuple(points),
        amounts_to_draw=tuple(amounts_to_draw),
    )
