"""The printed tables of BOSE that allow a check: table 4's scores of four methods give figure 5's mean ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.base_models.ablation import Ablation, compare_methods
from potentia.papers.printed import printed
from potentia.values.findings import Chart, Finding, Table
from potentia.values.protocol import DIRECT
from potentia.values.scores import ScoreMatrix

_TABLES = printed("bose")
METHODS: list[str] = _TABLES["METHODS"]
TASKS: list[str] = _TABLES["TASKS"]
TABLE_4: dict[str, list[list[float]]] = _TABLES["TABLE_4"]
PRINTED = {"iclip": 1.31}  # figure 5, in the text
BEST, NEAR = 28, 2  # cells of 36 in which ICLiP is best, and near the best


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
            ("figure 5", "mean rank of ICLiP over 36 cells", rank, PRINTED["iclip"]),
            ("section 4.4", "cells in which ICLiP is best", float(found.best[place]), float(BEST)),
            ("section 4.4", "cells in which it is within one point", float(found.near[place]), float(NEAR)),
        )
        note = "From the scores of table 4. The two instruct methods are level there; the text says that shots help."
        return (Table("BOSE: ours and the paper's", ("place", "number", "ours", "paper"), rows, note), *found.tables())

    def charts(self) -> Sequence[Chart]:
        """Return the ablation's charts."""
        return self.ablation.charts()


def reproduce_bose() -> Bose:
    """Rank the methods of table 4 in every cell."""
    tasks = [f"{task}:{method}" for method in METHODS for task in TASKS]
    values = np.array([np.concatenate(rows) for rows in TABLE_4.values()])
    return Bose(compare_methods({DIRECT: ScoreMatrix.build(list(TABLE_4), tasks, values)}, tolerance=1.0))
