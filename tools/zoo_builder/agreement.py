"""The check's summary: how tasks agree before and after tuning, and how both agree with the truth."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def _tau(x: Floats, y: Floats) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(x, y).statistic)


def mean_tau(values: Floats) -> float:
    """Mean Kendall tau over all pairs of tasks (columns)."""
    return float(
        np.mean(
            [_tau(values[:, i], values[:, j]) for i, j in combinations(range(values.shape[1]), 2)]
        )
    )


def first_share(values: Floats) -> float:
    """Share of variance of the first principal component of the standardised columns."""
    z = (values - values.mean(0)) / np.maximum(values.std(0), 1e-12)
    power = np.linalg.svd(z, compute_uv=False) ** 2
    return float(power[0] / power.sum())


def ranking(values: Floats) -> Floats:
    """One number per model: its mean rank over the tasks (higher is better)."""
    from scipy.stats import rankdata

    return np.asarray(np.mean([rankdata(column) for column in values.T], axis=0), dtype=np.float64)


def summary(
    result: dict[str, Any], tasks: list[str] | None = None, kinds: tuple[str, ...] = ("base",)
) -> str:
    """Tables of both matrices and the agreement statistics of the models of the given kinds."""
    names = [n for n in result["rows"] if result["facts"][n]["kind"] in kinds]
    chosen = [i for i, t in enumerate(result["tasks"]) if tasks is None or t in tasks]
    knowledge = np.array([result["facts"][n]["knowledge"] for n in names])
    lines = []
    for part in ("direct", "tuned"):
        values = np.array([[result["rows"][n][part][i] for i in chosen] for n in names])
        lines.append(
            f"{part:20s} know  " + " ".join(f"{result['tasks'][i][:6]:>6s}" for i in chosen)
        )
        for k in np.argsort(knowledge):
            lines.append(
                f"{names[k]:20s} {knowledge[k]:.3f} " + " ".join(f"{x:6.3f}" for x in values[k])
            )
        taus = " ".join(f"{_tau(values[:, i], knowledge):6.2f}" for i in range(values.shape[1]))
        lines.append(f"{'tau to knowledge':20s}       {taus}")
        lines.append(
            f"{part}: mean tau {mean_tau(values):.3f}, PC1 {first_share(values):.3f}, mean rank against knowledge "
            f"{_tau(ranking(values), knowledge):.3f}, mean score against it {_tau(values.mean(1), knowledge):.3f}"
        )
    return "\n".join(lines)
