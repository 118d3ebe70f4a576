"""How much of newer models' advantage is mediated by training on the test task (appendix C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.test_task.cohort import Split
from potentia.analysis.test_task.pair import Pair
from potentia.analysis.test_task.scaling import Coefficient, linear_coefficients
from potentia.values.findings import Finding, Table
from potentia.values.scores import Floats

KNOTS = (22.0, 23.0)  # log₁₀ FLOPs: 10²² and 10²³ (after equation 2)


@dataclass(frozen=True)
class Mediation(Finding):
    """The indirect effect φ′ (N → T → A, equation 6) and the direct effect ψ (N → A, equation 5) of a group N."""

    task: str
    group: str
    n: int
    mediated: Coefficient
    mediated_r2: float
    direct: Coefficient
    direct_r2: float

    def tables(self) -> Sequence[Table]:
        """Return both effects, a row each."""
        rows = tuple(
            (name, c.value, c.stderr, c.p, c.clustered_stderr, c.clustered_p, r2)
            for name, c, r2 in (
                ("mediated φ (before − after)", self.mediated, self.mediated_r2),
                ("direct ψ (after)", self.direct, self.direct_r2),
            )
        )
        columns = ("effect", "value", "s.e.", "p", "s.e. by family", "p by family", "R²")
        note = f"{self.n} models; compute enters piecewise log-linearly with knots at 10²² and 10²³ FLOPs."
        return (Table(f"{self.task}: mediation by test-task training, {self.group}", columns, rows, note),)


def mediate(pair: Pair, split: Split, *, knots: Sequence[float] = KNOTS) -> Mediation:
    """Regress the adjusted score (ψ) and the change by adjustment (φ′) on f(C) and N.

    f(C) is the continuous piecewise log-linear function with the given knots: its slope changes there, its value does
    not jump. This reading of equation 2 is the one that gives the published tables 3 and 4.
    """
    x = pair.cohort.log_compute
    design = _design(x, np.asarray(split.members, dtype=np.float64), knots)
    before, after = pair.oriented()
    families = pair.cohort.family
    change, change_r2 = linear_coefficients(design, before - after, families)
    adjusted, adjusted_r2 = linear_coefficients(design, after, families)
    return Mediation(pair.task, split.label, len(x), change[-1], change_r2, adjusted[-1], adjusted_r2)


def _design(x: Floats, group: Floats, knots: Sequence[float]) -> Floats:
    columns = [np.ones_like(x), x - x.mean()]
    for bend in (np.maximum(0.0, x - knot) for knot in knots):
        if np.linalg.matrix_rank(np.column_stack([*columns, bend])) > len(columns):  # else no models lie on one side
            columns.append(bend)
    return np.column_stack([*columns, group])
