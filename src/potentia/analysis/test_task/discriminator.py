"""Can newer models be told from older ones by compute and score? Before and after tuning the older (appendix D.3).

The document trains XGBoost classifiers. Where the package is installed (``pip install 'potentia[trees]'``) it is taken,
with its defaults; else scikit-learn's boosted trees with settings as near as they come, and the finding says which.
Some fifty models make either unstable: a single model weighs two to three points, so each accuracy has an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from potentia.analysis.test_task.cohort import Pair, Split
from potentia.errors import InputError
from potentia.values.findings import Finding, Interval, Table
from potentia.values.scores import Floats

Flags = npt.NDArray[np.bool_]
TREES = {"xgboost": "XGBoost's defaults", "scikit-learn": "scikit-learn's trees, set like XGBoost's"}
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
        rows = tuple(
            (f"{name} against {self.group}", value, interval.low, interval.high)
            for name, value, interval in (
                ("the others", self.before, self.before_interval),
                ("tuned others", self.after, self.after_interval),
            )
        )
        weight = 0.5 / min(self.members, self.n - self.members)
        note = (
            f"{self.n} models, {self.tuned} with the others tuned. "
            f"Balanced accuracy on log compute and score, leave-one-out, by {TREES[self.trees]}; "
            f"chance 0.5. Unstable: one model of the smaller group weighs {weight:.3f}; intervals draw models anew."
        )
        columns = ("", "balanced accuracy", "low", "high")
        return (Table(f"{self.task}: can the groups be told apart?", columns, rows, note),)


def discriminate(pair: Pair, split: Split, *, seed: int = 0, trees: str | None = None) -> Discrimination:
    """Tell the split's members (as they are, ``pair.before``) from the others, untuned and tuned (``pair.after``)."""
    members = np.asarray(split.members)
    chosen = trees or ("xgboost" if find_spec("xgboost") else "scikit-learn")
    x = pair.cohort.log_compute
    mixed = np.where(members, pair.before, pair.after)
    found = []
    for y in (pair.before, mixed):
        known = np.isfinite(y)  # a model without a tuned score is missing in that row alone
        inside = members[known]
        right = guess_each(np.column_stack([x, y])[known], inside, trees=chosen, seed=seed) == inside
        found.append((_balanced(right[None], inside[None])[0], _interval(right, inside, seed)))
    (before, around_before), (after, around_after) = found
    return Discrimination(
        pair.task,
        split.label,
        len(x),
        int(members.sum()),
        chosen,
        float(before),
        float(after),
        around_before,
        around_after,
        int(np.isfinite(mixed).sum()),
    )


def guess_each(features: Floats, labels: Flags, *, trees: str, seed: int = 0) -> Flags:
    """Guess the label of every model from all the others (leave-one-out)."""
    from sklearn.model_selection import LeaveOneOut, cross_val_predict
    from threadpoolctl import threadpool_limits

    if min(labels.sum(), (~labels).sum()) < 2:
        raise InputError("both groups need two models at least to be told apart")
    with threadpool_limits(1):  # the data are tiny; threads only wait for each other
        guessed = cross_val_predict(_classifier(trees, seed), features, labels.astype(int), cv=LeaveOneOut())
    return np.asarray(guessed, dtype=bool)


def _classifier(trees: str, seed: int) -> object:
    if trees == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(n_jobs=1, random_state=seed)
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        learning_rate=0.3,
        max_iter=100,
        max_depth=6,
        max_leaf_nodes=None,
        min_samples_leaf=1,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    )


def _balanced(right: Flags, labels: Flags) -> Floats:
    """Return the mean of the two groups' shares of right guesses, row by row."""
    sides = [np.where(side, right, 0).sum(axis=1) / np.maximum(side.sum(axis=1), 1) for side in (labels, ~labels)]
    return np.asarray((sides[0] + sides[1]) / 2)


def _interval(right: Flags, labels: Flags, seed: int) -> Interval:
    """Draw the models of both groups anew, their guesses as they were."""
    rng = np.random.default_rng(seed)
    places = [np.flatnonzero(labels), np.flatnonzero(~labels)]
    drawn = np.concatenate([rng.choice(side, size=(DRAWS, len(side))) for side in places], axis=1)
    low, high = np.percentile(_balanced(right[drawn], labels[drawn]), [2.5, 97.5])
    return Interval(float(_balanced(right[None], labels[None])[0]), float(low), float(high))
