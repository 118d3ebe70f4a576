"""What adjustment changes: gains (figure 2), families (figure 6), ranks (figure 17), mediation (C), who can be told.

The document tells newer models from older ones by XGBoost classifiers (appendix D.3). Where the package is installed
(``pip install 'potentia[trees]'``) it is taken, with its defaults; else scikit-learn's boosted trees with settings as
near as they come, and the finding says which. Some fifty models make either unstable: a single model weighs two to
three points, so each accuracy has an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
from scipy import stats

from potentia.errors import InputError
from potentia.papers.task_training.cohort import Cohort, Pair, Split, against_compute
from potentia.papers.task_training.scaling import (
    Coefficient,
    LogLinearFit,
    fit_log_linear,
    linear_coefficients,
)
from potentia.values.findings import Bump, Chart, Finding, Interval, Line, Points, Table, picked
from potentia.values.scores import Floats

KNOTS = (22.0, 23.0)  # log₁₀ FLOPs: 10²² and 10²³ (after equation 2)


@dataclass(frozen=True)
class Gain(Finding):
    """Gain after tuning, model by model, and its mean in the group and among the others."""

    task: str
    cohort: Cohort
    split: Split
    gains: Floats

    @property
    def means(self) -> tuple[float, float]:
        """Mean gain of the group and of the others."""
        inside = self.split.members
        return float(self.gains[inside].mean()), float(self.gains[~inside].mean())

    def tables(self) -> Sequence[Table]:
        """Return mean, median and largest gain of both sides."""
        sides = [
            (name, self.gains[mask], self.cohort.named(mask))
            for name, mask in reversed(self.split.sides())
        ]
        rows = [
            (name, len(g), g.mean(), np.median(g), g.max(), who[int(np.argmax(g))])
            for name, g, who in sides
        ]
        columns = ("models", "n", "mean gain", "median", "largest", "which")
        return (Table(f"{self.task}: gain by tuning on task data", columns, rows),)

    def charts(self) -> Sequence[Chart]:
        """Return gain against compute."""
        title = f"{self.task}: gain by tuning on task data"
        caption = "Models that had not met the task before gain most."
        points = self.split.points(self.cohort, self.gains)
        return (
            against_compute(
                f"{self.task}-gain", title, caption, points, what="score after − before"
            ),
        )


def measure_gain(pair: Pair, split: Split | None = None) -> Gain:
    """Subtract the score before from the score after, oriented so that a gain is positive."""
    before, after = pair.oriented()
    parts = split or Split("", np.zeros(len(before), dtype=bool), "all models")
    return Gain(pair.task, pair.cohort, parts, after - before)


@dataclass(frozen=True)
class RankShift(Finding):
    """Ranks of the same models before and after (1 is best), and by how many places they move."""

    task: str
    cohort: Cohort
    ranks: Floats  # (models, 2)
    tau: float

    @property
    def shifts(self) -> Floats:
        """Places gained (positive) or lost by adjustment."""
        return np.asarray(self.ranks[:, 0] - self.ranks[:, 1])

    @property
    def mean(self) -> float:
        """Mean absolute shift."""
        return float(np.abs(self.shifts).mean())

    @property
    def largest(self) -> float:
        """Largest absolute shift."""
        return float(np.abs(self.shifts).max())

    def tables(self) -> Sequence[Table]:
        """Return the summary and the models that move most."""
        summary = ("models", "mean shift", "largest shift", "Kendall's τ")
        whole = ((len(self.ranks), self.mean, self.largest, self.tau),)
        order = np.argsort(-np.abs(self.shifts), kind="stable")[:10]
        rows = picked(list(zip(self.cohort.models, *self.ranks.T, self.shifts, strict=True)), order)
        halves = int(bool((self.ranks[order] % 1).any()))  # models that tie share their places
        columns = ("model", "before", "after", "places gained")
        return (
            Table(f"{self.task}: change of ranks by adjustment", summary, whole, digits=2),
            Table("The ten largest shifts", columns, rows, digits=halves),
        )

    def charts(self) -> Sequence[Chart]:
        """Return the ranks in two columns joined by lines."""
        title = f"{self.task}: ranks before and after adjustment"
        caption = f"Models move by {self.mean:.1f} places on average, {self.largest:.0f} at most."
        ranked = self.cohort.models, ("before", "after"), self.ranks, self.cohort.family
        return (Bump(f"{self.task}-ranks", title, caption, *ranked),)


def shift_of_ranks(pair: Pair) -> RankShift:
    """Rank the models before and after adjustment; models with equal scores share the mean of their places."""
    scores = pair.oriented()
    ranks = np.column_stack([stats.rankdata(-score) for score in scores])
    tau = float(stats.kendalltau(*scores).statistic)
    return RankShift(pair.task, pair.cohort, ranks, tau)


@dataclass(frozen=True)
class Mediation(Finding):
    """The indirect effect φ′ (N → T → A, equation 6) and the direct effect ψ (N → A, equation 5) of a group N."""

    task: str
    group: str
    n: int
    mediated: Coefficient
    mediated_r2: float
    direct: Coefficient
    direct_r2: float

    def tables(self) -> Sequence[Table]:
        """Return both effects, a row each."""
        effects = (
            ("mediated φ (before − after)", self.mediated, self.mediated_r2),
            ("direct ψ (after)", self.direct, self.direct_r2),
        )
        rows = [(name, *c.row(), r2) for name, c, r2 in effects]
        columns = ("effect", "value", "s.e.", "p", "s.e. by family", "p by family", "R²")
        note = f"{self.n} models; compute enters piecewise log-linearly with knots at 10²² and 10²³ FLOPs."
        return (
            Table(
                f"{self.task}: mediation by test-task training, models {self.group}",
                columns,
                rows,
                note,
            ),
        )


def mediate(pair: Pair, split: Split) -> Mediation:
    """Regress the adjusted score (ψ) and the change by adjustment (φ′) on f(C) and N.

    f(C) is the continuous piecewise log-linear function with ``KNOTS``: its slope changes there, its value does
    not jump. This reading of equation 2 is the one that gives the published tables 3 and 4.
    """
    x = pair.cohort.log_compute
    columns = [np.ones_like(x), x - x.mean()]
    for bend in (np.maximum(0.0, x - knot) for knot in KNOTS):
        if np.linalg.matrix_rank(np.column_stack([*columns, bend])) > len(
            columns
        ):  # else no models lie on one side
            columns.append(bend)
    design = np.column_stack([*columns, np.asarray(split.members, dtype=np.float64)])
    before, after = pair.oriented()
    families = pair.cohort.family
    change, change_r2 = linear_coefficients(design, before - after, families)
    adjusted, adjusted_r2 = linear_coefficients(design, after, families)
    return Mediation(
        pair.task, split.label, len(x), change[-1], change_r2, adjusted[-1], adjusted_r2
    )


# --- families side by side --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FamilyCurve:
    """One family's scores by compute, in ascending compute."""

    family: str
    models: tuple[str, ...]
    log_compute: Floats
    before: Floats
    after: Floats


@dataclass(frozen=True)
class FamilyComparison(Finding):
    """How far each family lies above one common line in log compute: an advantage that adjustment should remove."""

    task: str
    curves: tuple[FamilyCurve, ...]
    common: tuple[LogLinearFit, LogLinearFit]  # of all these families together, before and after

    def residuals(self) -> dict[str, tuple[float, float]]:
        """Return each family's mean distance from the common line, before and after."""
        found = {}
        for curve in self.curves:
            stages = zip((curve.before, curve.after), self.common, strict=True)
            before, after = (
                float(np.mean(scores - line.predict(curve.log_compute))) for scores, line in stages
            )
            found[curve.family] = before, after
        return found

    def tables(self) -> Sequence[Table]:
        """Return one row per family, and how well one line describes all of them."""
        distance, rows = self.residuals(), []
        for curve in self.curves:
            ranges = (
                f"{scores.min():.3f} – {scores.max():.3f}" for scores in (curve.before, curve.after)
            )
            rows.append((curve.family, len(curve.models), *ranges, *distance[curve.family]))
        columns = (
            "family",
            "models",
            "scores before",
            "scores after",
            "off the line before",
            "after",
        )
        note = f"R² of one line for all: {self.common[0].r2:.3f} before, {self.common[1].r2:.3f} after adjustment."
        return (Table(f"{self.task}: families at equal compute", columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return a curve per family, before and after."""
        caption, drawn = (
            "Families that looked superior fall onto one common trend after adjustment.",
            [],
        )
        for stage in ("before", "after"):
            points = tuple(
                Points(c.family, 10**c.log_compute, getattr(c, stage), c.models)
                for c in self.curves
            )
            lines = tuple(Line(c.name, c.x, c.y) for c in points)
            name, title = f"{self.task}-families-{stage}", f"{self.task} {stage} adjustment"
            drawn.append(against_compute(name, title, caption, points, lines))
        return drawn


def compare_families(
    pair: Pair, families: Sequence[str] | Mapping[str, Sequence[str]] | None = None
) -> FamilyComparison:
    """Compare families on one task: names of the facts' family column, or a mapping from a name to its models.

    Without a choice, every family with at least three models is taken.
    """
    cohort = pair.cohort
    if not isinstance(families, Mapping):
        own: dict[str, list[str]] = {}
        for model, family in zip(cohort.models, cohort.family, strict=True):
            own.setdefault(family, []).append(model)
        wanted = families or [name for name, models in own.items() if len(models) >= 3]
        families = {name: own.get(name, []) for name in wanted}
    curves = []
    for name, members in families.items():
        places = np.flatnonzero(np.isin(cohort.models, list(members)))
        if not len(places):
            raise InputError(
                f"no model of family {name!r} here",
                hint=f"there are: {', '.join(set(cohort.family))}",
            )
        places = places[np.argsort(cohort.compute[places], kind="stable")]
        by_compute = (array[places] for array in (cohort.log_compute, pair.before, pair.after))
        curves.append(FamilyCurve(name, picked(cohort.models, places), *by_compute))
    if not curves:
        raise InputError("no family has three models", hint="name the families to compare")
    x = np.concatenate([curve.log_compute for curve in curves])
    before, after = ([getattr(curve, stage) for curve in curves] for stage in ("before", "after"))
    common = fit_log_linear(x, np.concatenate(before)), fit_log_linear(x, np.concatenate(after))
    return FamilyComparison(pair.task, tuple(curves), common)


Flags = npt.NDArray[np.bool_]
TREES = {
    "xgboost": "XGBoost's defaults",
    "scikit-learn": "scikit-learn's trees, set like XGBoost's",
}
DRAWS = 2_000


@dataclass(frozen=True)
class Discrimination(Finding):
    """Leave-one-out balanced accuracy of telling a group from the others; 0.5 is chance."""

    task: str
    group: str
    n: int
    members: int
    trees: str  # xgboost or scikit-learn
    before: float  # the group against the others as they are
    after: float  # the group as it is against the others after tuning
    before_interval: Interval  # over models
    after_interval: Interval
    tuned: int  # models of the row after tuning

    def tables(self) -> Sequence[Table]:
        """Return both accuracies."""
        sides = {"the others": self.before_interval, "tuned others": self.after_interval}
        rows = [(f"{name} against models {self.group}", one) for name, one in sides.items()]
        weight = 0.5 / min(self.members, self.n - self.members)
        note = (
            f"{self.n} models, {self.tuned} with the others tuned. "
            f"Balanced accuracy on log compute and score, leave-one-out, by {TREES[self.trees]}; "
            f"chance 0.5. Unstable: one model of the smaller group weighs {weight:.3f}; intervals draw models anew."
        )
        columns = ("", "balanced accuracy", "low", "high")
        return (Table(f"{self.task}: can the groups be told apart?", columns, rows, note),)


def discriminate(
    pair: Pair, split: Split, *, seed: int = 0, trees: str | None = None
) -> Discrimination:
    """Tell the split's members (as they are, ``pair.before``) from the others, untuned and tuned (``pair.after``)."""
    members = np.asarray(split.members)
    chosen = trees or ("xgboost" if find_spec("xgboost") else "scikit-learn")
    x = pair.cohort.log_compute
    mixed = np.where(members, pair.before, pair.after)
    found = []
    for y in (pair.before, mixed):
        known = np.isfinite(y)  # a model without a tuned score is missing in that row alone
        inside = members[known]
        right = (
            guess_each(np.column_stack([x, y])[known], inside, trees=chosen, seed=seed) == inside
        )
        found.append(_interval(right, inside, seed))
    before, after = found
    group = pair.task, split.label, len(x), split.size, chosen
    return Discrimination(
        *group, before.value, after.value, before, after, int(np.isfinite(mixed).sum())
    )


def guess_each(features: Floats, labels: Flags, *, trees: str, seed: int = 0) -> Flags:
    """Guess the label of every model from all the others (leave-one-out)."""
    from sklearn.model_selection import LeaveOneOut, cross_val_predict
    from threadpoolctl import threadpool_limits

    if min(labels.sum(), (~labels).sum()) < 2:
        raise InputError("both groups need two models at least to be told apart")
    with threadpool_limits(1):  # the data are tiny; threads only wait for each other
        guessed = cross_val_predict(
            _classifier(trees, seed), features, labels.astype(int), cv=LeaveOneOut()
        )
    return np.asarray(guessed, dtype=bool)


def _classifier(trees: str, seed: int) -> object:
    if trees == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(n_jobs=1, random_state=seed)
    from sklearn.ensemble import HistGradientBoostingClassifier

    tree = {"max_depth": 6, "max_leaf_nodes": None, "min_samples_leaf": 1, "l2_regularization": 1.0}
    steps = {"learning_rate": 0.3, "max_iter": 100, "early_stopping": False}
    return HistGradientBoostingClassifier(**tree, **steps, random_state=seed)


def _balanced(right: Flags, labels: Flags) -> Floats:
    """Return the mean of the two groups' shares of right guesses, row by row."""
    sides = [
        np.where(side, right, 0).sum(axis=1) / np.maximum(side.sum(axis=1), 1)
        for side in (labels, ~labels)
    ]
    return np.asarray((sides[0] + sides[1]) / 2)


def _interval(right: Flags, labels: Flags, seed: int) -> Interval:
    """Draw the models of both groups anew, their guesses as they were."""
    rng = np.random.default_rng(seed)
    places = [np.flatnonzero(labels), np.flatnonzero(~labels)]
    drawn = np.concatenate([rng.choice(side, size=(DRAWS, len(side))) for side in places], axis=1)
    low, high = np.percentile(_balanced(right[drawn], labels[drawn]), [2.5, 97.5])
    return Interval(float(_balanced(right[None], labels[None])[0]), float(low), float(high))
