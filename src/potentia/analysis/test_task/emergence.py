"""How emergence fades as models train on the test task: c_e and log-linear R² by amount of training (figure 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from potentia.analysis.test_task.cohort import Cohort, against_compute
from potentia.analysis.test_task.scaling import HingeFit, LogLinearFit, fit_hinge, fit_log_linear
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Line, Plot, Table

LEAST_MODELS = 8  # that a curve is fitted to


@dataclass(frozen=True)
class EmergenceCurve(Finding):
    """The hinge and the line fitted at each amount of test-task training (number of examples)."""

    task: str
    examples: tuple[int, ...]
    hinges: tuple[HingeFit, ...]
    lines: tuple[LogLinearFit, ...]
    span: tuple[float, float]  # log₁₀ FLOPs of the smallest and the largest model
    batch: int | None = None  # examples per optimizer step, where amounts come from steps

    def tables(self) -> Sequence[Table]:
        """Return one row per amount of training."""
        rows = tuple(
            (
                examples,
                hinge.n,
                hinge.emergence.value,
                f"{hinge.emergence_interval.low:.2f} – {hinge.emergence_interval.high:.2f}",
                f"{10**hinge.emergence.value:.1e}",
                hinge.slope.value,
                hinge.r2,
                line.r2,
            )
            for examples, hinge, line in zip(self.examples, self.hinges, self.lines, strict=True)
        )
        columns = ("examples", "models", "c_e", "c_e 95 %", "FLOPs", "α", "R² hinge", "R² log-linear")
        note = "c_e: log₁₀ of the FLOPs from which models rise above chance; a log-linear R² near 1 means no emergence."
        if self.batch is not None:
            note += f" Examples: optimizer steps × {self.batch}, the batch."
        return (Table(f"{self.task}: emergence by amount of test-task training", columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return c_e and R² against the number of training examples, and some of the fitted curves."""
        start = min((n for n in self.examples if n), default=3) / 3
        x = tuple(float(n or start) for n in self.examples)
        low, high = zip(*((_finite(h, "low"), _finite(h, "high")) for h in self.hinges), strict=True)
        point = Line("c_e", x, tuple(h.emergence.value for h in self.hinges), low, high)
        fit = Line("log-linear R²", x, tuple(line.r2 for line in self.lines))
        caption = "Training on the test task moves emergence to smaller scales. The first point is before any training."
        grid = np.linspace(*self.span, 200)
        some = sorted({round(i) for i in np.linspace(0, len(self.examples) - 1, 5)})
        curves = tuple(
            Line(f"{self.examples[i]:,} examples", tuple(10**grid), tuple(self.hinges[i].predict(grid))) for i in some
        )
        drawn = [
            against_compute(
                f"{self.task}-curves",
                f"{self.task}: scaling as models train on the test task",
                "Each curve is the hinge fitted after that much training.",
                lines=curves,
            )
        ]
        for kind, title, line, what in (
            ("emergence", "point of emergence", point, "log₁₀ FLOPs of emergence"),
            ("log-linear", "how log-linear the scaling is", fit, "R² of the log-linear fit"),
        ):
            axes: dict[str, Any] = {"x_label": "training examples", "y_label": what, "log_x": True}
            drawn.append(Plot(f"{self.task}-{kind}", f"{self.task}: {title}", caption, lines=(line,), **axes))
        return drawn


def trace_emergence(
    task: str,
    stages: Mapping[int, Mapping[str, float]],
    cohort: Cohort,
    *,
    chance: float = 0.0,
    higher_is_better: bool = True,
    batch: int | None = None,
    least: int = LEAST_MODELS,
) -> EmergenceCurve:
    """Fit both curves at each amount of training: ``stages`` maps examples seen to model → score.

    Amounts at which fewer than ``least`` models were scored are left out, as their fits would compare other models.
    """
    known = set(cohort.models)
    examples, hinges, lines = [], [], []
    for amount in sorted(stages):
        scores = {name: value for name, value in stages[amount].items() if name in known and np.isfinite(value)}
        if len(scores) < least:
            continue
        part = cohort.select(list(scores))
        y = np.array(list(scores.values()))
        examples.append(amount)
        hinges.append(
            fit_hinge(part.log_compute, y, chance=chance, families=part.family, higher_is_better=higher_is_better)
        )
        lines.append(fit_log_linear(part.log_compute, y, families=part.family))
    if not examples:
        raise InputError(f"no stage of {task} has {least} models of known compute")
    span = (float(cohort.log_compute.min()), float(cohort.log_compute.max()))
    return EmergenceCurve(task, tuple(examples), tuple(hinges), tuple(lines), span, batch)


def _finite(hinge: HingeFit, end: str) -> float:
    value = float(getattr(hinge.emergence_interval, end))
    return value if np.isfinite(value) else hinge.emergence.value
