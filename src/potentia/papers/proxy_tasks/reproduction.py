"""The proxy-task paper's printed numbers beside ours: table 4's scores give table 5's variances and R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.papers.printed import read_printed_numbers
from potentia.papers.proxy_tasks.proxies import Robustness, measure_robustness
from potentia.values.findings import Findings, Table
from potentia.values.scores import ScoreMatrix

SEED_MODELS = tuple("ABC")  # models of table 4 that differ in their seed alone
DATA_MODELS = tuple("DEFGH")  # … and in their data
TOLERANCE = (
    0.06  # of the printed value: tables are rounded, and how the variance divides is not said
)


@dataclass(frozen=True, eq=False)
class ProxyPaper(Findings):
    """Our variances and ratios from the printed scores beside the paper's."""

    robustness: Robustness

    def tables(self) -> Sequence[Table]:
        """Return every entry of table 5, ours and the paper's, then the finding."""
        rows = []
        table_5 = read_printed_numbers("proxy_tasks")["TABLE_5"]
        for task in self.robustness.tasks:
            ours = (task.seed_variance, task.data_variance, task.ratio.value)
            names = ("seed variance", "data variance", "R")
            for name, value, printed in zip(names, ours, table_5[task.task], strict=True):
                is_close = abs(value - printed) <= max(0.005, TOLERANCE * printed)
                rows.append((task.task, name, value, printed, "yes" if is_close else "no"))
        comparison = Table(
            "Proxy tasks, table 5: ours and the paper's",
            ("task", "number", "ours", "paper", f"within {TOLERANCE:.0%}"),
            rows,
            "From the eight small models of table 4; the entries marked no do not follow from it.",
        )
        return comparison, *self.robustness.tables()


def reproduce_proxy() -> ProxyPaper:
    """Measure the robustness of the candidate tasks on the printed scores."""
    printed = read_printed_numbers("proxy_tasks")
    tasks = printed["TASKS"]
    values = np.array([printed["TABLE_4"][task] for task in tasks]).T
    scores = ScoreMatrix.build([*SEED_MODELS, *DATA_MODELS], tasks, values)
    return ProxyPaper(measure_robustness(scores, list(DATA_MODELS), list(SEED_MODELS)))
