"""Speed of the ranking analyses against loops of scipy, each line with its target.

    python bench/analysis.py
    python bench/analysis.py --scores train_before_test_scores.csv

The scipy loop is timed on a share of the resamples and scaled up; its result on that share must equal ours.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from potentia.analysis.rankings.alignment import align_orders
from potentia.analysis.stats.correlation import kendall_matrix

MODELS, TASKS, RESAMPLES = 61, 24, 1_000


def best_of(work: Callable[[], object], times: int = 3) -> float:
    """Return the shortest of several wall times."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def bootstrap() -> bool:
    """All-pairs tau with 1,000 bootstrap resamples on 61 × 24: under 3 s, at least 50 times a scipy loop."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(MODELS, 1)) + rng.normal(size=(MODELS, TASKS)).round(2)
    draws = rng.multinomial(MODELS, [1 / MODELS] * MODELS, size=RESAMPLES)
    ours = best_of(lambda: (kendall_matrix.forget(), kendall_matrix(values, weights=draws)))  # type: ignore[attr-defined]
    share = 3
    pairs = [(i, j) for i in range(TASKS) for j in range(i)]
    start = time.perf_counter()
    loop = np.empty((share, len(pairs)))
    for r in range(share):
        rows = values[np.repeat(np.arange(MODELS), draws[r])]
        loop[r] = [kendalltau(rows[:, i], rows[:, j]).statistic for i, j in pairs]
    scipy = (time.perf_counter() - start) * RESAMPLES / share
    tau = kendall_matrix(values, weights=draws[:share])
    np.testing.assert_allclose(
        tau[:, [i for i, _ in pairs], [j for _, j in pairs]], loop, atol=1e-12
    )
    return report("tau, 61 × 24, 1,000 resamples", ours, 3.0, scipy, 50.0)


def many_models() -> bool:
    """All-pairs tau of 4,500 models × 40 tasks: under 30 s."""
    values = np.random.default_rng(1).normal(size=(4_500, 40)).round(3)
    return report("tau, 4,500 × 40", best_of(lambda: kendall_matrix(values), 1), 30.0)


def alignment() -> bool:
    """Aligned rankings of 61 models, against the paper's loop over all pairs of available models."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "analysis" / "rankings"))
    from test_alignment import naive_rank_models

    rng = np.random.default_rng(2)
    inputs = rng.random(MODELS), np.full(MODELS, 0.1), rng.random(MODELS), np.full(MODELS, 0.1)
    np.testing.assert_array_equal(align_orders(*inputs), naive_rank_models(*inputs))
    ours = best_of(lambda: align_orders(*inputs))
    return report(
        "alignment, 61 models", ours, 0.1, best_of(lambda: naive_rank_models(*inputs), 1), 10.0
    )


def reproduction(scores: Path) -> bool:
    """The whole reproduction of the paper, 1,000 resamples everywhere: under 20 s."""
    from potentia.evidence import read
    from potentia.papers.train_before_test.reproduction import reproduce_train_before_test

    return report(
        "reproduce train-before-test",
        best_of(lambda: reproduce_train_before_test(read(scores).scores), 1),
        20.0,
    )


def report(
    name: str, seconds: float, limit: float, peer: float | None = None, ratio: float | None = None
) -> bool:
    """Print one line and say whether its targets hold."""
    holds = seconds < limit
    line = f"{name:34} {seconds:8.3f} s  (target < {limit:g} s)"
    if peer is not None and ratio is not None:
        holds &= peer / seconds >= ratio
        line += f"   loop {peer:8.1f} s   {peer / seconds:8.0f}×  (target ≥ {ratio:g}×)"
    print(f"{line}   {'ok' if holds else 'MISSED'}")
    return holds


def main() -> None:
    """Run every measurement; exit 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = (
        Path(__file__).resolve().parents[2]
        / "shared"
        / "data"
        / "published"
        / "train_before_test_scores.csv"
    )
    parser.add_argument(
        "--scores", type=Path, default=default, help="the scores published with the paper"
    )
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores")
    results = [bootstrap(), many_models(), alignment()]
    if arguments.scores.exists():
        results.append(reproduction(arguments.scores))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
