"""Consistency: whether a base model that scores better becomes a better instruct model.

Consistency is Kendall's tau between the scores of base models, by some method, and the scores of their instruct
versions by the method commonly used for these (BOSE, section 4.3). The models are a small sample of all models, so
the intervals resample the pairs as well as the items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.analysis.base_models.ablation import (
    DRAWS,
    Column,
    Improvement,
    columns,
    improvement_chart,
    improvement_table,
    mean_tau,
    order_methods,
    tau_heatmap,
)
from potentia.analysis.left_out import left_out, noted
from potentia.analysis.stats.bootstrap import redraw, tau_interval, tau_rows
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Interval, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True, eq=False)
class Link:
    """One benchmark: base models by one method against their instruct versions by the reference method."""

    task: str
    method: str
    reference: str
    pairs: tuple[tuple[str, str], ...]
    base: Floats
    instruct: Floats
    tau: Interval
    gain: float  # mean score of the instruct versions less that of the base models


@dataclass(frozen=True)
class Consistency(Finding):
    """Consistency of every benchmark and method over the pairs of base and instruct models."""

    baseline: str | None
    methods: tuple[str, ...]
    links: tuple[Link, ...]
    improvements: tuple[Improvement, ...]
    left_out: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return tau per benchmark and method, the mean per method, and the improvements (tables 2 and 3's layout)."""
        rows = tuple(
            (k.task, k.method, k.reference, len(k.pairs), k.tau.value, k.tau.low, k.tau.high, k.gain)
            for k in self.links
        )
        found = [
            Table(
                "Consistency: Kendall's tau between base models and their instruct versions",
                ("task", "base models by", "instruct models by", "pairs", "tau", "low", "high", "gain"),
                rows,
                note="gain: mean score of the instruct versions less that of the base models. Intervals resample the "
                f"pairs, and the scores where their standard errors are known.{noted(self.left_out)}",
            ),
            Table(
                "Mean consistency of each method",
                ("method", "tasks", "mean tau"),
                tuple(self._mean_row(method) for method in self.methods),
            ),
        ]
        if self.improvements:
            found.append(improvement_table("consistency", self.improvements, "pairs"))
        return found

    def charts(self) -> Sequence[Chart]:
        """Return tau as a heat map, and base against instruct scores for each benchmark."""
        caption = "Kendall's tau between base models and their instruct versions; 1 means the same order."
        taus = {(k.task, k.method): k.tau.value for k in self.links}
        drawn: list[Chart] = [tau_heatmap("consistency", "Consistency by method", caption, taus)]
        if self.improvements:
            drawn.append(improvement_chart("consistency", self.improvements))
        for task in dict.fromkeys(k.task for k in self.links):
            drawn.append(
                Plot(
                    f"consistency-{task}",
                    f"{task}: base and instruct",
                    "Each point is one pair. Points that rise from left to right are consistent.",
                    points=tuple(
                        Points(k.method, tuple(k.base.tolist()), tuple(k.instruct.tolist()), tuple(dict(k.pairs)))
                        for k in self.links
                        if k.task == task
                    ),
                    x_label="base model's score",
                    y_label="instruct version's score",
                )
            )
        return drawn

    def _mean_row(self, method: str) -> tuple[str, int, float]:
        taus = [k.tau.value for k in self.links if k.method == method]
        return method, int(np.isfinite(taus).sum()), mean_tau(taus)


def measure_consistency(
    scores: Mapping[Protocol, ScoreMatrix],
    pairs: Mapping[str, str],
    *,
    reference: str | None = None,
    baseline: str | None = None,
    draws: int = DRAWS,
) -> Consistency:
    """Compare base models with their instruct versions (``pairs``: base → instruct), per benchmark and method.

    ``reference`` is the method that scores the instruct versions; ``"same"`` takes each method on both sides. Without
    one it is ``instruct`` where the benchmark was scored so, else ``direct``, else the same method: the paper scores
    instruct models with their common prompt whatever the base models get. The links of a benchmark share their
    resampled pairs, so improvements over the ``baseline`` are paired.
    """
    if len(pairs) < 3:
        raise InputError(f"{len(pairs)} pairs of base and instruct models; tau needs three", hint="name more pairs")
    found = columns(scores)
    methods = order_methods(found, baseline)
    by_key = {(c.task, c.method): c for c in found}
    links: list[Link] = []
    improvements: list[Improvement] = []
    for task in dict.fromkeys(c.task for c in found):
        rng = np.random.default_rng(0)
        choices = rng.integers(0, len(pairs), size=(draws, len(pairs)))
        spreads: dict[str, tuple[Link, Floats]] = {}
        for method in methods:
            column = by_key.get((task, method))
            judge = _judge(by_key, task, method, reference)
            if column is None or judge is None:
                continue
            made = _link(column, judge, pairs, choices, rng)
            if made is not None:
                spreads[method] = made
        links.extend(link for link, _ in spreads.values())
        if baseline is not None and baseline in spreads:
            improvements.extend(_improve(spreads, baseline))
    if not links:
        raise InputError(
            "no benchmark has scores of three or more base models and their instruct versions",
            hint="score both sides of each pair, or name the pairs in a CSV file with the columns base and instruct",
        )
    present = tuple(m for m in methods if any(k.method == m for k in links))
    taken = {model for link in links for pair in link.pairs for model in pair}
    scored = dict.fromkeys(model for column in found for model in column.models)
    reasons: dict[str, list[str]] = {
        "not scored on both sides of the pair": [base for base in pairs if base not in taken],
        "in no pair of base and instruct": [m for m in scored if m not in pairs and m not in pairs.values()],
    }
    return Consistency(baseline, present, tuple(links), tuple(improvements), left_out(reasons))


def _judge(by_key: Mapping[tuple[str, str], Column], task: str, method: str, reference: str | None) -> Column | None:
    if reference == "same":
        return by_key.get((task, method))
    names = (reference,) if reference else ("instruct", "instruct:0", "direct", method)
    return next((by_key[task, name] for name in names if (task, name) in by_key), None)


def _link(
    column: Column,
    judge: Column,
    pairs: Mapping[str, str],
    choices: npt.NDArray[np.int64],  # (draws, pairs)
    rng: np.random.Generator,
) -> tuple[Link, Floats] | None:
    base, base_error = column.at(tuple(pairs))
    instruct, instruct_error = judge.at(tuple(pairs.values()))
    scored = np.isfinite(base) & np.isfinite(instruct)
    if scored.sum() < 3:
        return None
    draws = len(choices)
    noisy_base, noisy_instruct = redraw(base, base_error, draws, rng), redraw(instruct, instruct_error, draws, rng)
    # Pairs without both scores are left out of the resample: their differences are NaN and count for nothing.
    spread = _tau_known(np.take_along_axis(noisy_base, choices, 1), np.take_along_axis(noisy_instruct, choices, 1))
    tau = float(tau_rows(base[scored], instruct[scored]))
    kept = tuple(pair for pair, keep in zip(pairs.items(), scored, strict=True) if keep)
    link = Link(
        task=column.task,
        method=column.method,
        reference=judge.method,
        pairs=kept,
        base=base[scored],
        instruct=instruct[scored],
        tau=tau_interval(tau, spread, bounds=(-1.0, 1.0)),
        gain=float(instruct[scored].mean() - base[scored].mean()),
    )
    return link, spread


def _tau_known(first: Floats, second: Floats) -> Floats:
    """Tau of each row over the entries that both rows have; a NaN takes part in no pair."""
    known = np.isfinite(first) & np.isfinite(second)
    if known.all():
        return tau_rows(first, second)
    return np.array([tau_rows(a[k], b[k]) for a, b, k in zip(first, second, known, strict=True)], dtype=np.float64)


def _improve(spreads: Mapping[str, tuple[Link, Floats]], baseline: str) -> list[Improvement]:
    origin, usual = spreads[baseline]
    found: list[Improvement] = []
    for method, (link, spread) in spreads.items():
        if method != baseline and link.pairs == origin.pairs:
            difference = tau_interval(link.tau.value - origin.tau.value, spread - usual, bounds=(-2.0, 2.0))
            found.append(Improvement("all pairs", link.task, method, baseline, difference))
    return found
