"""What having been shown a test is worth: copies against their own originals, and models whose exposure is known.

Each pair of a model and its copy is one observation: the mean difference over the tasks that the copy was shown, and
over those it was not. If a protocol measures what models can become, the advantage on the shown tasks is there under
direct evaluation and gone after the same tuning of all (section 3.1 of "Training on the test task", on any models).
Two intervals answer two questions: over pairs, what models like these would show; by test noise, what these very
models do. The latter counts originals and copies as tested apart, though they answer the same documents: it is wide.

Among models, one task says little: it splits them into few families that saw it and few that did not. Over several
tasks every family is exposed to some and not to others. Equation 1 is fitted to all cells together, N being "this model
saw this task's form"; beside the usual errors stands an exact test that needs no model of the errors: θ is computed for
every way in which the forms could have been handed to the families (or to the models, where exposure differs within a
family).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from potentia.analysis.test_task import hinge as hinge_fit
from potentia.analysis.test_task.cohort import Cohort, Flags, Pair
from potentia.analysis.test_task.scaling import (
    EFFECT_COLUMNS,
    EFFECT_NOTE,
    Coefficient,
    HingeFit,
    fit_hinge,
    linear_coefficients,
)
from potentia.errors import InputError
from potentia.values.findings import Bars, Cell, Chart, Finding, Interval, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

LEVEL = 0.95


@dataclass(frozen=True)
class Advantage:
    """What copies score more than their originals under one protocol; intervals are over pairs of models."""

    protocol: Protocol
    pairs: tuple[tuple[str, str], ...]  # (original, copy)
    shown: Interval
    noise: float | None  # half-width of the interval of `shown` for these very models, by their standard errors
    other: Interval | None  # on tasks that the copies were not shown
    by_pair: tuple[float, ...]  # mean difference on the shown tasks
    by_task: dict[str, Interval]
    places: float  # how many places copies stand above their originals, by the mean score on the shown tasks


@dataclass(frozen=True)
class Copies(Finding):
    """The advantage of treated copies under every protocol."""

    tasks: tuple[str, ...]  # that the copies were shown
    advantages: tuple[Advantage, ...]

    def tables(self) -> Sequence[Table]:
        """Return the advantage by protocol, and by task."""
        rows: list[tuple[Cell, ...]] = []
        for one in self.advantages:
            other = _span(one.other) if one.other is not None else None
            rows.append((one.protocol.label, len(one.pairs), one.shown.value, _span(one.shown),
                         None if one.noise is None else f"± {one.noise:.3f}", one.places,
                         None if one.other is None else one.other.value, other))  # fmt: skip
        by_task: list[tuple[Cell, ...]] = [
            (task, *(x for one in self.advantages for x in _cells(one.by_task.get(task)))) for task in self.tasks
        ]
        heads = [f"{one.protocol.label}{suffix}" for one in self.advantages for suffix in ("", " 95 %")]
        return [
            Table(
                "What copies that were shown a test score more than their originals",
                ("protocol", "pairs", "shown tasks", "95 %", "these models", "places", "other tasks", "95 % "),
                tuple(rows),
                note="Mean difference copy − original; intervals over pairs of models (Student's t), and for "
                "these very models by test noise alone. Places: how far "
                f"copies stand above their originals among all models on the shown tasks ({', '.join(self.tasks)}).",
            ),
            Table("The same by shown task", ("task", *heads), tuple(by_task)),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the advantage by protocol with its interval, and every pair."""
        labels = tuple(one.protocol.label for one in self.advantages)
        bars: dict[str, list[Interval]] = {"shown tasks": [one.shown for one in self.advantages]}
        others = [one.other for one in self.advantages if one.other is not None]
        if len(others) == len(labels):
            bars["other tasks"] = others
        pairs = [
            Points(
                one.protocol.label,
                tuple(float(k + 1) for k in range(len(one.pairs))),
                one.by_pair,
                labels=tuple(original for original, _ in one.pairs),
            )
            for one in self.advantages
        ]
        difference = "score, copy − original"
        caption = (
            "Copy minus original, mean over pairs of models, 95 % interval; 0 means that having seen the test is worth "
            "nothing."
        )
        return [
            Bars.of("copies", "Advantage of copies that were shown the test", caption, labels, bars, difference),
            Plot(
                name="copies-by-model",
                title="Copies that were shown a test, against their originals",
                caption="On the shown tasks, a line for each model. 0: having seen the test is worth nothing.",
                points=tuple(pairs),
                y_label=difference,
                joined=True,
            ),
        ]


def measure_copies(
    scores: Mapping[Protocol, ScoreMatrix], copies: Mapping[str, str], shown: Mapping[str, Sequence[str]]
) -> Copies | None:
    """Compare copies with originals (``copies``: copy → original); ``shown`` says which tasks each copy was shown."""
    tasks = tuple(dict.fromkeys(task for names in shown.values() for task in names))
    found = []
    for protocol, matrix in scores.items():
        benchmarks = matrix.benchmarks()
        alike = benchmarks if set(tasks) & set(benchmarks.tasks) else matrix.corpora()  # copies that saw texts alone
        one = _advantage(alike, protocol, copies, shown)
        if one is not None:
            found.append(one)
    return Copies(tasks, tuple(found)) if found else None


def _advantage(
    matrix: ScoreMatrix, protocol: Protocol, copies: Mapping[str, str], shown: Mapping[str, Sequence[str]]
) -> Advantage | None:
    values, place = matrix.oriented(), {m: k for k, m in enumerate(matrix.models)}
    pairs = [(original, copy) for copy, original in copies.items() if copy in place and original in place]
    if not pairs or not matrix.tasks:
        return None
    difference = np.array([values[place[copy]] - values[place[original]] for original, copy in pairs])
    seen = np.array([[task in shown.get(copy, ()) for task in matrix.tasks] for _, copy in pairs])
    by_pair, others = _means(difference, seen), _means(difference, ~seen)
    kept = np.isfinite(by_pair)
    if not kept.any():
        return None
    by_task = {
        task: _interval(difference[seen[:, j], j])
        for j, task in enumerate(matrix.tasks)
        if seen[:, j].any() and np.isfinite(difference[seen[:, j], j]).any()
    }
    variance = np.array([matrix.stderr[place[a]] ** 2 + matrix.stderr[place[b]] ** 2 for a, b in pairs])
    counted = seen & np.isfinite(difference)
    shares = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1) / int(kept.sum())
    reach = float(norm.ppf(0.5 + LEVEL / 2) * np.sqrt((np.where(counted, variance, 0.0) * shares**2).sum()))
    order = _order(_means(values, np.tile(seen.any(axis=0), (len(values), 1))))
    places = [order[place[original]] - order[place[copy]] for original, copy in pairs]
    return Advantage(
        protocol=protocol,
        pairs=tuple(pair for pair, there in zip(pairs, kept, strict=True) if there),
        shown=_interval(by_pair),
        noise=reach if np.isfinite(reach) else None,
        other=_interval(others) if np.isfinite(others).any() else None,
        by_pair=tuple(float(v) for v in by_pair[kept]),
        by_task=by_task,
        places=float(np.nanmean(places)),
    )


def _means(values: Floats, wanted: npt.NDArray[np.bool_]) -> Floats:
    """Return the mean of the wanted and known values of every row; NaN where there are none."""
    known = wanted & np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.asarray(np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0))


def _order(worth: Floats) -> Floats:
    """Return ranks, 1 for the best; NaN for those without a score."""
    ranks = np.full(len(worth), np.nan)
    known = np.isfinite(worth)
    ranks[known] = rankdata(-worth[known])
    return ranks


def _interval(values: Floats) -> Interval:
    """Return the mean of independent differences with Student's interval; of one alone there is none."""
    known = values[np.isfinite(values)]
    mean, n = float(known.mean()), len(known)
    if n < 2:
        return Interval(mean, float("nan"), float("nan"), LEVEL)
    reach = float(student.ppf(0.5 + LEVEL / 2, n - 1) * known.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - reach, mean + reach, LEVEL)


def _span(interval: Interval) -> str | None:
    return f"{interval.low:+.3f} to {interval.high:+.3f}" if np.isfinite(interval.low) else None


def _cells(interval: Interval | None) -> tuple[Cell, Cell]:
    return (None, None) if interval is None else (interval.value, _span(interval))


ASSIGNMENTS = 5_000  # up to so many are tried one by one; of more, so many are drawn


@dataclass(frozen=True)
class Worth:
    """θ of exposure at one stage: at equal compute (equation 1), and within models (each against its other tasks).

    ``assigned_p`` and ``within_p`` are the shares of assignments whose θ is as large. Within models, every model and
    every task has its own level, so that nothing a model is better at everywhere can pass for exposure; one task alone
    does not allow it.
    """

    stage: str
    fit: HingeFit
    assigned_p: float
    within: Coefficient
    within_p: float

    @property
    def effect(self) -> Coefficient:
        """θ at equal compute."""
        assert self.fit.effect is not None
        return self.fit.effect


@dataclass(frozen=True)
class ExposureEffect(Finding):
    """What exposure is worth over all tasks, before and after adjustment."""

    tasks: tuple[str, ...]
    before: Worth
    after: Worth
    assignments: int
    exact: bool

    def tables(self) -> Sequence[Table]:
        """Return θ at equal compute and θ within models, a row for each stage."""
        stages = (self.before, self.after)
        ways = f"all {self.assignments:,} ways" if self.exact else f"{self.assignments:,} random ways"
        share = f"Assigned p: share of {ways} to hand out the forms that give as large a θ."
        cells, families, *_ = self.before.fit.effect_row()
        counts = f"{cells} scores of {families} families in {', '.join(self.tasks)}."
        equal = Table(
            "What having seen a test's form is worth at equal compute",
            ("", *EFFECT_COLUMNS[2:], "plain p", "assigned p"),
            tuple((one.stage, *one.fit.effect_row()[2:], one.effect.p, one.assigned_p) for one in stages),
            f"{counts} {EFFECT_NOTE} {share}",
        )
        if len(self.tasks) == 1:
            return (equal,)
        own = tuple(
            (one.stage, c.value, c.stderr, c.p, c.clustered_stderr, c.clustered_p, one.within_p)
            for one in stages
            for c in (one.within,)
        )
        columns = ("", "θ", "s.e.", "plain p", "by family", "p", "assigned p")
        note = "Every model and every task has its own level: a model's exposed tasks against its other ones."
        return equal, Table("The same within models", columns, own, note)


def measure_exposure(pairs: Sequence[Pair], *, draws: int = 1999, seed: int = 0) -> ExposureEffect:
    """Fit equation 1 to the cells of all tasks, N being exposure of the model to the task's form."""
    if not pairs:
        raise InputError("no task has both models that saw its form and models that did not")
    splits = [pair.cohort.exposed(pair.task).members for pair in pairs]
    x = np.concatenate([pair.cohort.log_compute for pair in pairs])
    families = [family for pair in pairs for family in pair.cohort.family]
    group = np.concatenate(splits).astype(np.float64)
    others, exact = _assignments([pair.cohort for pair in pairs], splits, seed)
    levels = _levels(pairs)
    signs = [1.0 if pair.higher_is_better else -1.0 for pair in pairs]
    scores = [
        np.concatenate([sign * (getattr(p, stage) - p.chance) for p, sign in zip(pairs, signs, strict=True)])
        for stage in ("before", "after")
    ]
    drawn = np.array([hinge_fit.search(x, np.stack(scores), other).effect for other in others])  # (assignments, stages)
    stages = []
    for place, (stage, y) in enumerate(zip(("before", "after"), scores, strict=True)):
        fit = fit_hinge(x, y, group=group, families=families, draws=draws, seed=seed)
        within, within_p = Coefficient(math.nan, math.nan, math.nan), math.nan
        if len(pairs) > 1:
            within = linear_coefficients(np.column_stack([group, levels]), y, families)[0][0]
            within_p = _share(_within(others, y, levels), within.value, exact)
        assert fit.effect is not None
        stages.append(Worth(stage, fit, _share(drawn[:, place], fit.effect.value, exact), within, within_p))
    return ExposureEffect(tuple(pair.task for pair in pairs), stages[0], stages[1], len(others), exact)


def _levels(pairs: Sequence[Pair]) -> Floats:
    """Return one column per model and per task but the first, which the models' columns imply."""
    models = np.array([model for pair in pairs for model in pair.cohort.models])
    tasks = np.array([pair.task for pair in pairs for _ in pair.cohort.models])
    columns = [*(models == name for name in np.unique(models)), *(tasks == pair.task for pair in pairs[1:])]
    return np.column_stack(columns).astype(np.float64)


def _within(groups: Sequence[Floats], y: Floats, levels: Floats) -> Floats:
    """Return θ of each assignment with the levels taken out of it (Frisch–Waugh–Lovell)."""
    basis = np.linalg.qr(levels)[0]
    G = np.stack(groups)
    G = G - (G @ basis) @ basis.T
    power = np.einsum("an,an->a", G, G)
    return np.asarray(np.where(power > 1e-9, G @ y / np.maximum(power, 1e-9), 0.0))


def _share(drawn: Floats, observed: float, exact: bool) -> float:
    reached = int(np.sum(np.abs(drawn) >= abs(observed) - 1e-9))
    return reached / len(drawn) if exact else (1 + reached) / (1 + len(drawn))


def _assignments(cohorts: Sequence[Cohort], splits: Sequence[Flags], seed: int) -> tuple[list[Floats], bool]:
    """Return other ways in which each task's form could have been handed out, and whether these are all of them."""
    seen = [set(zip(c.family, members.tolist(), strict=True)) for c, members in zip(cohorts, splits, strict=True)]
    by_family = all(len(both) == len(dict(both)) for both in seen)  # a family's models are all exposed or all not
    units = [np.unique(c.family if by_family else c.models, return_inverse=True)[1] for c in cohorts]
    counts = [int(unit.max()) + 1 for unit in units]
    taken = [len(np.unique(unit[members])) for unit, members in zip(units, splits, strict=True)]
    exact = math.prod(map(math.comb, counts, taken)) <= ASSIGNMENTS
    chosen: Iterable[Sequence[Sequence[int]]]
    if exact:
        chosen = product(*(list(combinations(range(n), k)) for n, k in zip(counts, taken, strict=True)))
    else:
        draw = np.random.default_rng(seed).permutation
        chosen = ([draw(n)[:k].tolist() for n, k in zip(counts, taken, strict=True)] for _ in range(ASSIGNMENTS))
    made = [np.concatenate([np.isin(unit, who) for unit, who in zip(units, way, strict=True)]) for way in chosen]
    return [way.astype(np.float64) for way in made], exact
