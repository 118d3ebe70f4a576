"""Stability: whether a benchmark's score grows with pretraining, and how fine a step it can tell apart.

Stability is Kendall's tau between the scores of a model's checkpoints and their pretraining steps or tokens (BOSE,
section 4.1.3). A benchmark *resolves* a gap when most pairs of checkpoints at least that far apart differ
significantly and in the right direction; the smallest such gap says how often checkpoints are worth comparing.

Consistency: whether a base model that scores better becomes a better instruct model.

Consistency is Kendall's tau between the scores of base models, by some method, and the scores of their instruct
versions by the method commonly used for these (BOSE, section 4.3). The models are a small sample of all models, so
the intervals resample the pairs as well as the items.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from potentia.analysis.base_models import ablation
from potentia.analysis.base_models.ablation import DRAWS, Columns, Improvement, columns
from potentia.analysis.left_out import describe_left_out, drop_names_in, format_notes
from potentia.analysis.stats.bootstrap import add_score_noise, kendall_by_row, noise_interval
from potentia.analysis.stats.correlation import nan_mean
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Interval, Line, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

Places = npt.NDArray[np.intp]
_NAMED = re.compile(r"(?P<series>.+)@(?:step)?(?P<step>\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """Where a model stands in a pretraining run: the run's name, and its steps or tokens so far."""

    series: str
    step: float


def named_checkpoints(models: Iterable[str]) -> dict[str, Checkpoint]:
    """Find the models named ``run@step`` (or ``run@step1000``), as a study names the checkpoints of a series."""
    named = {model: match for model in models if (match := _NAMED.fullmatch(model))}
    return {
        model: Checkpoint(match["series"], float(match["step"])) for model, match in named.items()
    }


def by_series(checkpoints: Mapping[str, Checkpoint]) -> dict[str, dict[str, float]]:
    """Return the models of every series with their steps, the earliest first."""
    series: dict[str, dict[str, float]] = {place.series: {} for place in checkpoints.values()}
    for model, place in sorted(checkpoints.items(), key=lambda item: (item[1].step, item[0])):
        series[place.series][model] = place.step
    return series


@dataclass(frozen=True, eq=False)
class Curve:
    """One benchmark by one method over one series of checkpoints, and how stably it grows."""

    series: str
    task: str
    method: str
    models: tuple[str, ...]
    steps: Floats  # (checkpoints,) ascending
    scores: Floats
    stderr: Floats
    tau: Interval
    gap: (
        float | None
    )  # the smallest gap resolved, None where none is or where no standard error is known
    neighbours: float | None  # the share of neighbouring checkpoints told apart in the right order

    def at(self, places: Places) -> tuple[Floats, Floats]:
        """Return scores and standard errors of some checkpoints."""
        return self.scores[places], self.stderr[places]

    def line(self) -> Line:
        """Return scores against steps, with 95 % intervals where they are known."""
        known = bool(np.isfinite(self.stderr).all())
        ends = (self.scores + s * 1.96 * self.stderr for s in (-1, 1)) if known else ()
        return Line(self.method, self.steps, self.scores, *ends)


@dataclass(frozen=True)
class Stability(Finding):
    """Stability of every benchmark and method over every series of checkpoints."""

    unit: str  # "steps" or "tokens"
    baseline: str | None
    methods: tuple[str, ...]
    curves: tuple[Curve, ...]
    improvements: tuple[Improvement, ...]
    power: float
    left_out: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return tau per curve, the mean per method, and the improvements over the baseline (table 1's layout)."""
        rows = [
            (c.series, c.task, c.method, len(c.steps), c.tau, c.gap, c.neighbours)
            for c in self.curves
        ]
        by = {method: [c for c in self.curves if c.method == method] for method in self.methods}
        taus = {method: float(nan_mean([c.tau.value for c in own])) for method, own in by.items()}
        means = [
            (m, len(own), taus[m], sum(c.gap is not None for c in own)) for m, own in by.items()
        ]
        title = f"Stability: Kendall's tau between scores and {self.unit}"
        start = ("series", "task", "method", "checkpoints", "tau", "low", "high")
        columns = (*start, f"gap ({self.unit})", "neighbours")
        note = (
            f"gap: the smallest distance at which at least {self.power:.0%} of the pairs of checkpoints that far apart "
            "or farther are significantly in the right order (one-sided, 5 %); – where none is. neighbours: the share "
            f"of adjacent checkpoints so told apart.{format_notes(self.left_out)}"
        )
        mean_columns = ("method", "curves", "mean tau", "resolved")
        mean_note = (
            "resolved: curves that resolve some gap. Compare methods on the same curves only."
        )
        return (
            Table(title, columns, rows, note),
            Table("Mean stability of each method", mean_columns, means, mean_note),
            *ablation.improvement_tables("stability", self.improvements, "series"),
        )

    def charts(self) -> Sequence[Chart]:
        """Return tau as a heat map, and scores against steps for each benchmark and series."""
        caption = f"Kendall's tau between scores and {self.unit}; 1 means that every later checkpoint scores higher."
        taus = {(f"{c.task} ({c.series})", c.method): c.tau.value for c in self.curves}
        drawn = ablation.tau_charts("stability", caption, taus, self.improvements)
        caption = (
            "Scores at each checkpoint, one curve per method, with 95 % intervals where known. "
            "A stable method rises throughout."
        )
        for series, task in dict.fromkeys((c.series, c.task) for c in self.curves):
            chosen = [c for c in self.curves if (c.series, c.task) == (series, task)]
            lines = tuple(c.line() for c in chosen)
            points = tuple(
                Points(line.name, line.x, line.y, c.models)
                for line, c in zip(lines, chosen, strict=True)
            )
            name, title = f"stability-{series}-{task}", f"{task} over the pretraining of {series}"
            drawn.append(Plot(name, title, caption, points, lines, self.unit, "score"))
        return drawn


def measure_stability(
    scores: Mapping[Protocol, ScoreMatrix],
    checkpoints: Mapping[str, Checkpoint],
    *,
    unit: str = "steps",
    baseline: str | None = None,
    power: float = 0.8,
) -> Stability:
    """Measure each benchmark and method over each series of checkpoints.

    ``scores`` maps protocols to matrices, ``checkpoints`` models to their place in a series. Intervals come from a
    parametric bootstrap over the scores' standard errors; where these are unknown the interval is unknown too. With a
    ``baseline`` method the finding also says how much every other method improves on it, on the checkpoints that both
    scored.
    """
    found = columns(scores)
    methods = found.ordered(baseline)
    rng = np.random.default_rng(0)
    curves: list[Curve] = []
    for series, members in by_series(checkpoints).items():
        made = (_curve(series, members, found, key, power, rng) for key in found.table)
        curves += [curve for curve in made if curve is not None]
    if not curves:
        hint = "name each checkpoint as the scores do, with its series and step; tau needs at least three"
        raise InputError("no series has three or more scored checkpoints", hint=hint)
    curves.sort(key=lambda c: (c.series, c.task, methods.index(c.method)))
    improvements = _improvements(curves, baseline, rng) if baseline else ()
    taken = {model for curve in curves for model in curve.models}
    blank = drop_names_in(checkpoints, found.models)
    reasons = {
        "no score": blank,
        "of a series of fewer than three scored checkpoints": drop_names_in(
            checkpoints, {*taken, *blank}
        ),
        "no checkpoint of a series": drop_names_in(found.models, checkpoints),
    }
    shown = tuple(sorted({curve.method for curve in curves}, key=methods.index))
    return Stability(
        unit, baseline, shown, tuple(curves), improvements, power, describe_left_out(reasons)
    )


def resolvable_gap(
    steps: Floats, scores: Floats, stderr: Floats, *, power: float = 0.8
) -> tuple[float | None, float | None]:
    """Return the smallest gap resolved, and the share of neighbouring checkpoints told apart.

    A pair is told apart when the later checkpoint's score is higher by more than 1.645 standard errors of the
    difference. A gap g is resolved when at least ``power`` of the pairs with a distance of g or more are. Checkpoints
    share their items, which makes the true error of a difference smaller than this one: the gap errs on the large side.
    """
    if not np.isfinite(stderr).all() or len(steps) < 2:
        return None, None
    early, late = np.triu_indices(len(steps), k=1)
    distance = steps[late] - steps[early]
    told = scores[late] - scores[early] > 1.645 * np.hypot(stderr[late], stderr[early])
    adjacent = told[(late - early == 1) & (distance > 0)]
    neighbours = float(adjacent.mean()) if len(adjacent) else None
    gaps = np.unique(distance[distance > 0]).tolist()
    return next((gap for gap in gaps if told[distance >= gap].mean() >= power), None), neighbours


def _curve(
    series: str,
    members: Mapping[str, float],
    found: Columns,
    key: tuple[str, str],
    power: float,
    rng: Generator,
) -> Curve | None:
    values, stderr = found.at(key, members)
    scored = np.isfinite(values)
    if scored.sum() < 3:
        return None
    steps, values, stderr = np.array(list(members.values()))[scored], values[scored], stderr[scored]
    tau = noise_interval(
        float(kendall_by_row(steps, values)),
        _tau_draws(steps, values, stderr, rng),
        bounds=(-1.0, 1.0),
    )
    models = tuple(compress(members, scored))
    return Curve(
        series,
        *key,
        models,
        steps,
        values,
        stderr,
        tau,
        *resolvable_gap(steps, values, stderr, power=power),
    )


def _tau_draws(steps: Floats, values: Floats, stderr: Floats, rng: np.random.Generator) -> Floats:
    """Return tau of scores drawn again; none where a standard error is unknown."""
    return (
        kendall_by_row(steps, add_score_noise(values, stderr, DRAWS, rng))
        if np.isfinite(stderr).all()
        else np.array([])
    )


def _improvements(
    curves: Sequence[Curve], baseline: str, rng: np.random.Generator
) -> tuple[Improvement, ...]:
    """Compare every curve with the baseline's, on the checkpoints that both have."""
    origins = {(c.series, c.task): c for c in curves if c.method == baseline}
    found: list[Improvement] = []
    for curve in curves:
        origin = origins.get((curve.series, curve.task), curve)
        common, at, at_origin = np.intersect1d(curve.models, origin.models, return_indices=True)
        if origin is curve or len(common) < 3:
            continue
        order = np.argsort(curve.steps[at], kind="stable")
        steps, new, old = curve.steps[at[order]], curve.at(at[order]), origin.at(at_origin[order])
        spread = np.array([])
        if np.isfinite([new[1], old[1]]).all():
            spread = _tau_draws(steps, *new, rng) - _tau_draws(steps, *old, rng)
        value = float(kendall_by_row(steps, new[0]) - kendall_by_row(steps, old[0]))
        difference = noise_interval(value, spread, bounds=(-2.0, 2.0))
        found.append(Improvement(curve.series, curve.task, curve.method, baseline, difference))
    return tuple(found)


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
        taus = {
            method: [k.tau.value for k in self.links if k.method == method]
            for method in self.methods
        }
        means = [
            (method, np.isfinite(of).sum(), float(nan_mean(of))) for method, of in taus.items()
        ]
        title = "Consistency: Kendall's tau between base models and their instruct versions"
        columns = (
            "task",
            "base models by",
            "instruct models by",
            "pairs",
            "tau",
            "low",
            "high",
            "gain",
        )
        note = (
            "gain: mean score of the instruct versions less that of the base models. Intervals resample the pairs, and "
            f"the scores where their standard errors are known.{format_notes(self.left_out)}"
        )
        return (
            Table(title, columns, rows, note),
            Table("Mean consistency of each method", ("method", "tasks", "mean tau"), means),
            *ablation.improvement_tables("consistency", self.improvements, "pairs"),
        )

    def charts(self) -> Sequence[Chart]:
        """Return tau as a heat map, and base against instruct scores for each benchmark."""
        caption = (
            "Kendall's tau between base models and their instruct versions; 1 means the same order."
        )
        taus = {(k.task, k.method): k.tau.value for k in self.links}
        drawn = ablation.tau_charts("consistency", caption, taus, self.improvements)
        caption = "Each point is one pair. Points that rise from left to right are consistent."
        axes = "base model's score", "instruct version's score"
        for task in dict.fromkeys(k.task for k in self.links):
            links = [k for k in self.links if k.task == task]
            points = tuple(
                Points(k.method, k.base, k.instruct, tuple(dict(k.pairs))) for k in links
            )
            drawn.append(
                Plot(
                    f"consistency-{task}", f"{task}: base and instruct", caption, points, (), *axes
                )
            )
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
        raise InputError(
            f"{len(pairs)} pairs of base and instruct models; tau needs three",
            hint="name more pairs",
        )
    found = columns(scores)
    methods = found.ordered(baseline)
    links: list[Link] = []
    improvements: list[Improvement] = []
    for task in found.tasks:
        rng = np.random.default_rng(0)
        choices = rng.integers(0, len(pairs), size=(draws, len(pairs)))
        judges = {method: _judge(found, task, method, reference) for method in methods}
        every = {
            m: _link(found, task, m, judge, pairs, choices, rng)
            for m, judge in judges.items()
            if judge
        }
        made = {method: link for method, link in every.items() if link is not None}
        links += [link for link, _ in made.values()]
        improvements += _paired_improvements(made, baseline)
    if not links:
        hint = "score both sides of each pair, or name the pairs in a CSV file with the columns base and instruct"
        raise InputError(
            "no benchmark has scores of three or more base models and their instruct versions",
            hint=hint,
        )
    taken = {model for link in links for pair in link.pairs for model in pair}
    reasons = {
        "not scored on both sides of the pair": drop_names_in(pairs, taken),
        "in no pair of base and instruct": drop_names_in(found.models, {*pairs, *pairs.values()}),
    }
    shown = tuple(sorted({link.method for link in links}, key=methods.index))
    return Consistency(
        baseline, shown, tuple(links), tuple(improvements), describe_left_out(reasons)
    )


def _judge(found: Columns, task: str, method: str, reference: str | None) -> str | None:
    """Return the method that scores the instruct versions, where the benchmark has it and the method itself."""
    if (task, method) not in found.table:
        return None
    names = {None: ("instruct", "instruct:0", "direct", method), "same": (method,)}.get(
        reference, (reference,)
    )
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
    drawn = [
        np.take_along_axis(add_score_noise(side[0], side[1], len(choices), rng), choices, 1)
        for side in (base, instruct)
    ]
    spread = kendall_by_row(*drawn)
    first, second = base[0, scored], instruct[0, scored]
    tau = noise_interval(float(kendall_by_row(first, second)), spread, bounds=(-1.0, 1.0))
    kept = tuple(compress(pairs.items(), scored))
    return Link(
        task, method, judge, kept, first, second, tau, float(second.mean() - first.mean())
    ), spread


def _paired_improvements(
    made: Mapping[str, tuple[Link, Floats]], baseline: str | None
) -> list[Improvement]:
    """Compare every method of a benchmark with the baseline, over the same pairs."""
    if baseline is None or baseline not in made:
        return []
    origin, usual = made[baseline]
    found = []
    for method, (link, spread) in made.items():
        if method != baseline and link.pairs == origin.pairs:
            difference = noise_interval(
                link.tau.value - origin.tau.value, spread - usual, bounds=(-2.0, 2.0)
            )
            found.append(Improvement("all pairs", link.task, method, baseline, difference))
    return found
