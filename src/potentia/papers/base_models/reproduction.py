"""BOSE's printed numbers beside ours: table 4's scores of four methods give figure 5's mean ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.papers.base_models.ablation import Ablation, compare_methods
from potentia.papers.printed import read_printed_numbers
from potentia.values.findings import Findings, Table
from potentia.values.protocol import DIRECT
from potentia.values.scores import ScoreMatrix

PRINTED_ICLIP_RANK = 1.31  # figure 5, in the text
PRINTED_CELLS_BEST = 28  # cells of 36 in which ICLiP is best
PRINTED_CELLS_NEAR_BEST = 2


@dataclass(frozen=True, eq=False)
class BosePaper(Findings):
    """Our numbers from the printed table beside the paper's."""

    ablation: Ablation

    def tables(self) -> Sequence[Table]:
        """Return the checks, then the ablation."""
        iclip = self.ablation.methods.index("iclip")
        mean_rank = self.ablation.mean_rank[iclip].value
        cells_best = float(self.ablation.best[iclip])
        cells_near = float(self.ablation.near[iclip])
        rows = (
            ("figure 5", "mean rank of ICLiP over 36 cells", mean_rank, PRINTED_ICLIP_RANK),
            (
                "section 4.4",
                "cells in which ICLiP is best",
                cells_best,
                float(PRINTED_CELLS_BEST),
            ),
            (
                "section 4.4",
                "cells in which it is within one point",
                cells_near,
                float(PRINTED_CELLS_NEAR_BEST),
            ),
        )
        note = "From the scores of table 4. The two instruct methods are level there; the text says that shots help."
        return (
            Table("BOSE: ours and the paper's", ("place", "number", "ours", "paper"), rows, note),
            *self.ablation.tables(),
        )


def reproduce_bose() -> BosePaper:
    """Rank the methods of table 4 in every cell."""
    printed = read_printed_numbers("base_models")
    table = printed["TABLE_4"]
    tasks = []
    for method in printed["METHODS"]:
        tasks += [f"{task}:{method}" for task in printed["TASKS"]]
    values = np.array([np.concatenate(rows) for rows in table.values()])
    scores = ScoreMatrix.build(list(table), tasks, values)
    return BosePaper(compare_methods({DIRECT: scores}, tolerance=1.0))
