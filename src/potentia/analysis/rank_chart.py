"""The chart of ranks with their intervals, which rankings and predictions share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from potentia.values.findings import Plot, Points, select_positions
from potentia.values.scores import Floats


def order_best_first(ranks: Floats) -> npt.NDArray[np.intp]:
    """Return the indices of the models from the best to the worst, without those that have no rank."""
    order = np.argsort(ranks, kind="stable")
    return order[np.isfinite(ranks[order])]


def plot_ranks(
    chart_name: str,
    title: str,
    caption: str,
    models: Sequence[str],
    ranks: Floats,
    low: Floats,
    high: Floats,
    group: str = "",
) -> Plot:
    """Return the chart of ranks with their intervals, best model first."""
    order = order_best_first(ranks)
    positions = np.arange(1.0, len(order) + 1)
    points = Points(
        "rank", positions, ranks[order], select_positions(models, order), low[order], high[order]
    )
    return Plot(
        chart_name,
        title,
        caption,
        (points,),
        x_label="model, by rank",
        y_label="rank (1 is best)",
        group=group,
    )
