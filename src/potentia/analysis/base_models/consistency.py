"""Consistency: whether a base model that scores better becomes a better instruct model.

Consistency is Kendall's tau between the scores of base models, by some method, and the scores of their instruct
versions by the method commonly used for these (BOSE, section 4.3). The models are a small sample of all models, so
the intervals resample the pairs as well as the items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from potentia.analysis.base_models import ablation
from potentia.analysis.base_models.ablation import DRAWS, Columns, Improvement, columns
from potentia.analysis.left_out import left_out, noted, outside
from potentia.analysis.stats.bootstrap import redraw, tau_interval, tau_rows
from potentia.analysis.stats.correlation import nan_mean
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
        rows = [(k.task, k.method, k.reference, len(k.pairs), k.tau, k.gain) for k in self.links]
        taus = {method: [k.tau.value for k in self.links if k.method == method] for method in self.methods}
        means = [(method, np.isfinite(of).sum(), float(nan_mean(of))) for method, of in taus.items()]
        title = "Consistency: Kendall's tau between base models and their instruct versions"
        columns = ("task", "base models by", "instruct models by", "pairs", "tau", "low", "high", "gain")
        note = (
            "gain: mean score of the instruct versions less that of the base models. Intervals resample the pairs, and "
            f"the scores where their standard errors are known.{noted(self.left_out)}"
        )
        return (
            Table(title, columns, rows, note),
            Table("Mean consistency of each method", ("method", "tasks", "mean tau"), means),
            *ablation.improvement_tables("consistency", self.improvements, "pairs"),
        )

    def charts(self) -> Sequence[Chart]:
        """Return tau as a heat map, and base against instruct scores for each benchmark."""
        caption = "Kendall's tau between base models and their instruct versions; 1 means the same order."
        taus = {(k.task, k.method): k.tau.value for k in self.links}
        drawn = ablation.tau_charts("consistency", caption, taus, self.improvements)
        caption = "Each point is one pair. Points that rise from left to right are consistent."
        axes = "base model's score", "instruct version's score"
        for task in dict.fromkeys(k.task for k in self.links):
            links = [k for k in self.links if k.task == task]
            points = tuple(Points(k.method, k.base, k.instruct, tuple(dict(k.pairs))) for k in links)
            drawn.append(Plot(f"consistency-{task}", f"{task}: base and instruct", caption, points, (), *axes))
        return drawn


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
    methods = found.ordered(baseline)
    links: list[Link] = []
    improvements: list[Improvement] = []
    for task in found.tasks:
        rng = np.random.default_rng(0)
        choices = rng.integers(0, len(pairs), size=(draws, len(pairs)))
        judges = {method: _judge(found, task, method, reference) for method in methods}
        every = {m: _link(found, task, m, judge, pairs, choices, rng) for m, judge in judges.items() if judge}
        made = {method: link for method, link in every.items() if link is not None}
        links += [link for link, _ in made.values()]
        improvements += _improvements(made, baseline)
    if not links:
        hint = "score both sides of each pair, or name the pairs in a CSV file with the columns base and instruct"
        raise InputError("no benchmark has scores of three or more base models and their instruct versions", hint=hint)
    taken = {model for link in links for pair in link.pairs for model in pair}
    reasons = {
        "not scored on both sides of the pair": outside(pairs, taken),
        "in no pair of base and instruct": outside(found.models, {*pairs, *pairs.values()}),
    }
    shown = tuple(sorted({link.method for link in links}, key=methods.index))
    return Consistency(baseline, shown, tuple(links), tuple(improvements), left_out(reasons))


def _judge(found: Columns, task: str, method: str, reference: str | None) -> str | None:
    """Return the method that scores the instruct versions, where the benchmark has it and the method itself."""
    if (task, method) not in found.table:
        return None
    names = {None: ("instruct", "instruct:0", "direct", method), "same": (method,)}.get(reference, (reference,))
    return next((name for name in names if name and (task, name) in found.table), None)


def _link(
    found: Columns,
    task: str,
    method: str,
    judge: str,
    pairs: Mapping[str, str],
    choices: npt.NDArray[np.int64],  # (draws, pairs)
    rng: np.random.Generator,
) -> tuple[Link, Floats] | None:
    """Return the link and its tau in every resample; a pair without both scores counts for nothing."""
    base, instruct = found.at((task, method), pairs), found.at((task, judge), pairs.values())
    scored = np.isfinite(base[0]) & np.isfinite(instruct[0])
    if scored.sum() < 3:
        return None
    drawn = [np.take_along_axis(redraw(side[0], side[1], len(choices), rng), choices, 1) for side in (base, instruct)]
    spread = tau_rows(*drawn)
    first, second = base[0, scored], instruct[0, scored]
    tau = tau_interval(float(tau_rows(first, second)), spread, bounds=(-1.0, 1.0))
    kept = tuple(compress(pairs.items(), scored))
    return Link(task, method, judge, kept, first, second, tau, float(second.mean() - first.mean())), spread


def _improvements(made: Mapping[str, tuple[Link, Floats]], baseline: str | None) -> list[Improvement]:
    """Compare every method of a benchmark with the baseline, over the same pairs."""
    if baseline is None or baseline not in made:
        return []
    origin, usual = made[baseline]
    found = []
    for method, (link, spread) in made.items():
        if method != baseline and link.pairs == origin.pairs:
            difference = tau_interval(link.tau.value - origin.tau.value, spread - usual, bounds=(-2.0, 2.0))
            found.append(Improvement("all pairs", link.task, method, baseline, difference))
    return found
