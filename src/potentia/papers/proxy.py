"""The printed tables of the proxy-task paper that allow a check: table 4's scores give table 5's variances and R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.proxy.robustness import Robustness, measure_robustness
from potentia.papers.printed import printed
from potentia.values.findings import Cell, Chart, Finding, Table
from potentia.values.scores import ScoreMatrix

_TABLES = printed("proxy")
TASKS: list[str] = _TABLES["TASKS"]
TABLE_4: dict[str, list[float]] = _TABLES["TABLE_4"]  # models A to C differ in their seed, D to H in their data
TABLE_5: dict[str, list[float]] = _TABLES["TABLE_5"]  # seed variance, data variance, R as printed
TABLE_6_AND_8: dict[str, list[float]] = _TABLES["TABLE_6_AND_8"]  # A-t1, NA-t1, A-t2, NA-t2, PPL, Filter, Diversity
PROXY_ROW: list[float] = _TABLES["PROXY_ROW"]
SEEDS, DATA = tuple("ABC"), tuple("DEFGH")
NEAR = 0.06  # of the printed value: the tables are rounded, and the document does not say how its variance divides


@dataclass(frozen=True, eq=False)
class ProxyPaper(Finding):
    """Our variances and ratios from the printed scores beside the paper's."""

    robustness: Robustness

    def tables(self) -> Sequence[Table]:
        """Return every entry of table 5, ours and the paper's, then the finding."""
        rows: list[tuple[Cell, ...]] = []
        for one in self.robustness.tasks:
            ours = (one.seed_variance, one.data_variance, one.ratio.value)
            names = ("seed variance", "data variance", "R")
            for name, mine, theirs in zip(names, ours, TABLE_5[one.task], strict=True):
                same = abs(mine - theirs) <= max(0.005, NEAR * theirs)
                rows.append((one.task, name, mine, theirs, "yes" if same else "no"))
        note = "From the eight small models of table 4; the entries marked no do not follow from it."
        columns = ("task", "number", "ours", "paper", f"within {NEAR:.0%}")
        return (
            Table("Proxy tasks, table 5: ours and the paper's", columns, tuple(rows), note),
            *self.robustness.tables(),
        )

    def charts(self) -> Sequence[Chart]:
        """Return the finding's charts."""
        return self.robustness.charts()


def reproduce_proxy() -> ProxyPaper:
    """Measure the robustness of the candidate tasks on the printed scores."""
    scores = ScoreMatrix.build([*SEEDS, *DATA], TASKS, np.array([TABLE_4[t] for t in TASKS]).T)
    return ProxyPaper(measure_robustness(scores, list(DATA), list(SEEDS)))
