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
from itertools import combinations, compress, product

import numpy as np
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from potentia.analysis.stats.correlation import nan_mean
from potentia.errors import InputError
from potentia.papers.task_training import scaling
from potentia.papers.task_training.cohort import Cohort, Flags, Pair
from potentia.papers.task_training.scaling import EFFECT_COLUMNS, EFFECT_NOTE, Coefficient, HingeFit
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
    noise: (
        float | None
    )  # half-width of the interval of `shown` for these very models, by their standard errors
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
        rows = []
        for one in self.advantages:
            noise = None if one.noise is None else f"± {one.noise:.3f}"
            shown, other = _cells(one.shown), _cells(one.other)
            rows.append((one.protocol.label, len(one.pairs), *shown, noise, one.places, *other))
        by_task = [
            (task, *(cell for one in self.advantages for cell in _cells(one.by_task.get(task))))
            for task in self.tasks
        ]
        heads = [
            f"{one.protocol.label}{suffix}" for one in self.advantages for suffix in ("", " 95 %")
        ]
        columns = (
            "protocol",
            "pairs",
            "shown tasks",
            "95 %",
            "these models",
            "places",
            "other tasks",
            "95 % ",
        )
        note = (
            "Mean difference copy − original; intervals over pairs of models (Student's t), and for these very models "
            "by test noise alone. Places: how far copies stand above their originals among all models on the shown "
            f"tasks ({', '.join(self.tasks)})."
        )
        return [
            Table(
                "What copies that were shown a test score more than their originals",
                columns,
                rows,
                note,
            ),
            Table("The same by shown task", ("task", *heads), by_task),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the advantage by protocol with its interval, and every pair."""
        labels = tuple(one.protocol.label for one in self.advantages)
        bars: dict[str, list[Interval]] = {"shown tasks": [one.shown for one in self.advantages]}
        others = [one.other for one in self.advantages if one.other is not None]
        if len(others) == len(labels):
            bars["other tasks"] = others
        points = []
        for one in self.advantages:
            places, originals = (
                np.arange(1.0, len(one.pairs) + 1),
                tuple(original for original, _ in one.pairs),
            )
            points.append(Points(one.protocol.label, places, one.by_pair, originals))
        title, difference = "Advantage of copies that were shown the test", "score, copy − original"
        caption = (
            "Copy minus original, mean over pairs of models, 95 % interval; 0 means that having seen the test is worth "
            "nothing."
        )
        single = "Copies that were shown a test, against their originals"
        why = "On the shown tasks, a line for each model. 0: having seen the test is worth nothing."
        return [
            Bars("copies", title, caption, labels, bars, y_label=difference),
            Plot("copies-by-model", single, why, tuple(points), y_label=difference, joined=True),
        ]


def measure_copies(
    scores: Mapping[Protocol, ScoreMatrix],
    copies: Mapping[str, str],
    shown: Mapping[str, Sequence[str]],
) -> Copies | None:
    """Compare copies with originals (``copies``: copy → original); ``shown`` says which tasks each copy was shown."""
    tasks = tuple(dict.fromkeys(task for names in shown.values() for task in names))
    found = []
    for protocol, matrix in scores.items():
        benchmarks = matrix.benchmarks()
        alike = (
            benchmarks if set(tasks) & set(benchmarks.tasks) else matrix.corpora()
        )  # copies that saw texts alone
        found.append(_advantage(alike, protocol, copies, shown))
    advantages = tuple(one for one in found if one is not None)
    return Copies(tasks, advantages) if advantages else None


def _advantage(
    matrix: ScoreMatrix,
    protocol: Protocol,
    copies: Mapping[str, str],
    shown: Mapping[str, Sequence[str]],
) -> Advantage | None:
    values, place = matrix.oriented(), {m: k for k, m in enumerate(matrix.models)}
    pairs = [
        (original, copy) for copy, original in copies.items() if copy in place and original in place
    ]
    if not pairs or not matrix.tasks:
        return None
    of, to = np.array([(place[original], place[copy]) for original, copy in pairs]).T
    difference = values[to] - values[of]  # (pairs, tasks)
    seen = np.array([[task in shown.get(copy, ()) for task in matrix.tasks] for _, copy in pairs])
    on_shown, on_others = np.where(seen, difference, np.nan), np.where(seen, np.nan, difference)
    by_pair, others = nan_mean(on_shown), nan_mean(on_others)
    kept = np.isfinite(by_pair)
    if not kept.any():
        return None
    counted = np.isfinite(on_shown)
    variance = np.where(counted, matrix.stderr[of] ** 2 + matrix.stderr[to] ** 2, 0.0)
    shares = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1) / int(kept.sum())
    reach = float(norm.ppf(0.5 + LEVEL / 2) * np.sqrt((variance * shares**2).sum()))
    order = rankdata(-nan_mean(values[:, seen.any(axis=0)]), nan_policy="omit")
    return Advantage(
        protocol=protocol,
        pairs=tuple(compress(pairs, kept)),
        shown=_interval(by_pair),
        noise=reach if np.isfinite(reach) else None,
        other=_interval(others) if np.isfinite(others).any() else None,
        by_pair=tuple(by_pair[kept].tolist()),
        by_task={
            task: _interval(on_shown[:, j])
            for j, task in enumerate(matrix.tasks)
            if counted[:, j].any()
        },
        places=float(np.nanmean(order[of] - order[to])),
    )


def _interval(values: Floats) -> Interval:
    """Return the mean of independent differences with Student's interval; of one alone there is none."""
    known = values[np.isfinite(values)]
    mean, n = float(known.mean()), len(known)
    if n < 2:
        return Interval(mean, float("nan"), float("nan"), LEVEL)
    return Interval.around(
        mean, student.ppf(0.5 + LEVEL / 2, n - 1) * known.std(ddof=1) / np.sqrt(n), LEVEL
    )


def _cells(interval: Interval | None) -> tuple[Cell, Cell]:
    """Return value and interval as a table shows them."""
    if interval is None:
        return None, None
    known = np.isfinite(interval.low)
    return interval.value, f"{interval.low:+.3f} to {interval.high:+.3f}" if known else None


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
        ways = (
            f"all {self.assignments:,} ways" if self.exact else f"{self.assignments:,} random ways"
        )
        share = f"Assigned p: share of {ways} to hand out the forms that give as large a θ."
        cells, families, *_ = self.before.fit.effect_row()
        counts = f"{cells} scores of {families} families in {', '.join(self.tasks)}."
        title = "What having seen a test's form is worth at equal compute"
        thetas = [
            (one.stage, *one.fit.effect_row()[2:], one.fit.theta.p, one.assigned_p)
            for one in stages
        ]
        heads = ("", *EFFECT_COLUMNS[2:], "plain p", "assigned p")
        equal = Table(title, heads, thetas, f"{counts} {EFFECT_NOTE} {share}")
        if len(self.tasks) == 1:
            return (equal,)
        own = [(one.stage, *one.within.row(), one.within_p) for one in stages]
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
    scores = []
    guess = [pair.chance if pair.higher_is_better else -pair.chance for pair in pairs]
    for k in (0, 1):  # before and after
        scores.append(
            np.concatenate([p.oriented()[k] - at for p, at in zip(pairs, guess, strict=True)])
        )
    drawn = np.array(
        [scaling.search(x, np.stack(scores), other).effect for other in others]
    )  # (assignments, stages)
    stages = []
    for stage, y, by_chance in zip(("before", "after"), scores, drawn.T, strict=True):
        fit = scaling.fit_hinge(x, y, group=group, families=families, draws=draws, seed=seed)
        within, within_p = Coefficient(math.nan, math.nan, math.nan), math.nan
        if len(pairs) > 1:
            within = scaling.linear_coefficients(np.column_stack([group, levels]), y, families)[0][
                0
            ]
            within_p = _share(_within(others, y, levels), within.value, exact)
        stages.append(
            Worth(stage, fit, _share(by_chance, fit.theta.value, exact), within, within_p)
        )
    return ExposureEffect(
        tuple(pair.task for pair in pairs), stages[0], stages[1], len(others), exact
    )


def _levels(pairs: Sequence[Pair]) -> Floats:
    """Return one column per model and per task but the first, which the models' columns imply."""
    models = np.array([model for pair in pairs for model in pair.cohort.models])
    tasks = np.array([pair.task for pair in pairs for _ in pair.cohort.models])
    columns = [
        *(models == name for name in np.unique(models)),
        *(tasks == pair.task for pair in pairs[1:]),
    ]
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


def _assignments(
    cohorts: Sequence[Cohort], splits: Sequence[Flags], seed: int
) -> tuple[list[Floats], bool]:
    """Return other ways in which each task's form could have been handed out, and whether these are all of them."""
    seen = [
        set(zip(c.family, members.tolist(), strict=True))
        for c, members in zip(cohorts, splits, strict=True)
    ]
    by_family = all(
        len(both) == len(dict(both)) for both in seen
    )  # a family's models are all exposed or all not
    units = [
        np.unique(c.family if by_family else c.models, return_inverse=True)[1] for c in cohorts
    ]
    counts = [int(unit.max()) + 1 for unit in units]
    taken = [len(np.unique(unit[members])) for unit, members in zip(units, splits, strict=True)]
    exact = math.prod(map(math.comb, counts, taken)) <= ASSIGNMENTS
    chosen: Iterable[Sequence[Sequence[int]]]
    if exact:
        chosen = product(
            *(list(combinations(range(n), k)) for n, k in zip(counts, taken, strict=True))
        )
    else:
        draw = np.random.default_rng(seed).permutation
        chosen = (
            [draw(n)[:k].tolist() for n, k in zip(counts, taken, strict=True)]
            for _ in range(ASSIGNMENTS)
        )
    made = [
        np.concatenate([np.isin(unit, who) for unit, who in zip(units, way, strict=True)])
        for way in chosen
    ]
    return [way.astype(np.float64) for way in made], exact
