"""The numbers that the documents print, typed into ``printed.json``, and two documents whose tables allow a check.

Of the train-before-test paper: table 5 (mean agreement of each benchmark with all others: direct, 5-shot, tuned),
table 3 (bits per byte on arXiv, Wiki and Stack), table 4 (billions of parameters and of tokens, 10^18 FLOPs), tables 6
and 8, and what its text says, direct scores before tuned ones. Of BOSE, table 4's scores of four methods give figure
5's mean ranks; of the proxy-task paper, table 4's scores give table 5's variances and R.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from potentia.analysis.base_models.ablation import Ablation, compare_methods
from potentia.analysis.proxy.proxies import Robustness, measure_robustness
from potentia.values.findings import Chart, Finding, Table
from potentia.values.protocol import DIRECT
from potentia.values.scores import ScoreMatrix


@cache
def printed(document: str) -> dict[str, Any]:
    """Return the tables of one document."""
    return dict(json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))[document])


ICLIP_RANK = 1.31  # figure 5, in the text
BEST, CLOSE = 28, 2  # cells of 36 in which ICLiP is best, and near the best


@dataclass(frozen=True, eq=False)
class Bose(Finding):
    """Our numbers from the printed table beside the paper's."""

    ablation: Ablation

    def tables(self) -> Sequence[Table]:
        """Return the checks, then the ablation."""
        found = self.ablation
        place = found.methods.index("iclip")
        rank = found.mean_rank[place].value
        rows = (
            ("figure 5", "mean rank of ICLiP over 36 cells", rank, ICLIP_RANK),
            ("section 4.4", "cells in which ICLiP is best", float(found.best[place]), float(BEST)),
            ("section 4.4", "cells in which it is within one point", float(found.near[place]), float(CLOSE)),
        )
        note = "From the scores of table 4. The two instruct methods are level there; the text says that shots help."
        return (Table("BOSE: ours and the paper's", ("place", "number", "ours", "paper"), rows, note), *found.tables())

    def charts(self) -> Sequence[Chart]:
        """Return the ablation's charts."""
        return self.ablation.charts()


def reproduce_bose() -> Bose:
    """Rank the methods of table 4 in every cell."""
    bose = printed("bose")
    tasks = [f"{task}:{method}" for method in bose["METHODS"] for task in bose["TASKS"]]
    values = np.array([np.concatenate(rows) for rows in bose["TABLE_4"].values()])
    return Bose(compare_methods({DIRECT: ScoreMatrix.build(list(bose["TABLE_4"]), tasks, values)}, tolerance=1.0))


SEEDS, DATA = tuple("ABC"), tuple("DEFGH")  # models of table 4 that differ in their seed, and in their data
NEAR = 0.06  # of the printed value: the tables are rounded, and the document does not say how its variance divides


@dataclass(frozen=True, eq=False)
class ProxyPaper(Finding):
    """Our variances and ratios from the printed scores beside the paper's."""

    robustness: Robustness

    def tables(self) -> Sequence[Table]:
        """Return every entry of table 5, ours and the paper's, then the finding."""
        rows = []
        for one in self.robustness.tasks:
            ours = (one.seed_variance, one.data_variance, one.ratio.value)
            names = ("seed variance", "data variance", "R")
            for name, mine, theirs in zip(names, ours, printed("proxy")["TABLE_5"][one.task], strict=True):
                same = abs(mine - theirs) <= max(0.005, NEAR * theirs)
                rows.append((one.task, name, mine, theirs, "yes" if same else "no"))
        note = "From the eight small models of table 4; the entries marked no do not follow from it."
        columns = ("task", "number", "ours", "paper", f"within {NEAR:.0%}")
        title = "Proxy tasks, table 5: ours and the paper's"
        return Table(title, columns, rows, note), *self.robustness.tables()

    def charts(self) -> Sequence[Chart]:
        """Return the finding's charts."""
        return self.robustness.charts()


def reproduce_proxy() -> ProxyPaper:
    """Measure the robustness of the candidate tasks on the printed scores."""
    proxy = printed("proxy")
    values = np.array([proxy["TABLE_4"][task] for task in proxy["TASKS"]]).T
    scores = ScoreMatrix.build([*SEEDS, *DATA], proxy["TASKS"], values)
    return ProxyPaper(measure_robustness(scores, list(DATA), list(SEEDS)))
