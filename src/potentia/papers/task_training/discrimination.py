"""Whether newer models can be told from older ones by their scores (appendix D.3).

The paper does so by XGBoost classifiers. Where the package is installed (``pip install 'potentia[trees]'``) it is
taken, set as by default when the paper was written: exact trees, and 0.5 as the score to start from. (XGBoost 2 takes
histograms and the share of the group instead, which gives other accuracies.) Else scikit-learn's boosted trees are
taken, with settings as near as they come, and the finding says which. Some fifty models make either unstable: a single
model weighs two to three points, so each accuracy has an interval, over families of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from potentia.analysis.stats.bootstrap import draw_row_counts
from potentia.errors import InputError
from potentia.extras import Extra, is_installed, require_extra
from potentia.papers.task_training.cohort import (
    Mask,
    ModelSplit,
    ScorePair,
    plot_against_compute,
)
from potentia.values.findings import Chart, Finding, Interval, Points, Table
from potentia.values.scores import Floats

XGBOOST = "xgboost"
SCIKIT_LEARN = "scikit-learn"
TREES = {
    XGBOOST: "XGBoost with exact trees",
    SCIKIT_LEARN: "scikit-learn's trees, set like XGBoost's",
}
RESAMPLES = 2_000


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
    before_interval: Interval  # by a bootstrap over families
    after_interval: Interval
    # models that ``after`` is of: those of the group, and the others that have a score after tuning
    scored_after: int
    points: tuple[Points, ...] = ()  # the group as it is, and the others after tuning

    def charts(self) -> Sequence[Chart]:
        """Return the group as it is beside the others after tuning (figure 14)."""
        if not self.points:
            return ()
        chart = plot_against_compute(
            f"{self.task}-resemblance",
            f"{self.task}: models {self.group}, and the others after tuning",
            "Where the two sets of points overlap, the group scores as others do after tuning on the task.",
            points=self.points,
        )
        return (chart,)

    def tables(self) -> Sequence[Table]:
        """Return both accuracies."""
        table_rows = [
            (f"the others against models {self.group}", self.before_interval),
            (f"tuned others against models {self.group}", self.after_interval),
        ]
        smaller_group = min(self.members, self.n - self.members)
        note = (
            f"{self.n} models, {self.scored_after} with the others tuned. "
            f"Balanced accuracy on log compute and score, leave-one-out, by {TREES[self.trees]}; "
            f"chance 0.5. Unstable: one model of the smaller group weighs {0.5 / smaller_group:.3f}; "
            "intervals: bootstrap over families."
        )
        column_names = ("", "balanced accuracy", "low", "high")
        return (
            Table(
                f"{self.task}: can a classifier tell the groups apart?",
                column_names,
                table_rows,
                note,
            ),
        )


def require_classifiers() -> None:
    """Refuse to go on without scikit-learn, which both kinds of trees need."""
    require_extra(Extra.TREES, "telling groups of models apart", modules=("sklearn",))


def measure_discrimination(
    score_pair: ScorePair, split: ModelSplit, *, seed: int = 0, trees: str | None = None
) -> Discrimination:
    """Tell the members of a split from the others by their scores, and return how often that succeeds.

    The members are taken with their scores before tuning (``score_pair.before``); the others first with theirs, then
    with their scores after tuning (``score_pair.after``).
    """
    require_classifiers()
    members = np.asarray(split.members)
    if trees is None:
        trees = XGBOOST if is_installed("xgboost") else SCIKIT_LEARN
    scores_with_others_tuned = np.where(members, score_pair.before, score_pair.after)
    before = _measure_accuracy(score_pair, score_pair.before, members, trees=trees, seed=seed)
    after = _measure_accuracy(score_pair, scores_with_others_tuned, members, trees=trees, seed=seed)
    return Discrimination(
        task=score_pair.task,
        group=split.label,
        n=len(score_pair.cohort.models),
        members=split.size,
        trees=trees,
        before=before.value,
        after=after.value,
        before_interval=before,
        after_interval=after,
        scored_after=int(np.isfinite(scores_with_others_tuned).sum()),
        points=_mark_groups(score_pair, scores_with_others_tuned, split),
    )


def _mark_groups(score_pair: ScorePair, scores: Floats, split: ModelSplit) -> tuple[Points, ...]:
    """Return the models with a score against compute, a set of points for each side."""
    is_known = np.isfinite(scores)
    cohort = score_pair.cohort.select(score_pair.cohort.select_names(is_known))
    members = np.asarray(split.members)[is_known]
    sides = ModelSplit(split.label, members, f"{split.others}, tuned")
    return sides.to_points(cohort, scores[is_known])


def _measure_accuracy(
    score_pair: ScorePair, scores: Floats, members: Mask, *, trees: str, seed: int
) -> Interval:
    """Return the balanced accuracy by compute and score; a model without a score takes no part."""
    is_known = np.isfinite(scores)
    features = np.column_stack([score_pair.cohort.log_compute, scores])[is_known]
    labels = members[is_known]
    predicted = predict_leave_one_out(features, labels, trees=trees, seed=seed)
    is_right = predicted == labels
    families = list(compress(score_pair.cohort.family, is_known))
    return bootstrap_accuracy(is_right, labels, families, seed)


def predict_leave_one_out(features: Floats, labels: Mask, *, trees: str, seed: int = 0) -> Mask:
    """Predict the label of every model by a classifier that is fitted on all the others (leave-one-out)."""
    from sklearn.model_selection import LeaveOneOut, cross_val_predict
    from threadpoolctl import threadpool_limits

    if min(labels.sum(), (~labels).sum()) < 2:
        raise InputError("a classifier of the two groups needs two models of each at least")
    classifier = _make_classifier(trees, seed)
    with threadpool_limits(1):  # the data are tiny; threads only wait for each other
        predicted = cross_val_predict(classifier, features, labels.astype(int), cv=LeaveOneOut())
    return np.asarray(predicted, dtype=bool)


def _make_classifier(trees: str, seed: int) -> object:
    if trees == XGBOOST:
        from xgboost import XGBClassifier

        return XGBClassifier(tree_method="exact", base_score=0.5, n_jobs=1, random_state=seed)
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        max_depth=6,
        max_leaf_nodes=None,
        min_samples_leaf=1,
        l2_regularization=1.0,
        learning_rate=0.3,
        max_iter=100,
        early_stopping=False,
        random_state=seed,
    )


def _compute_balanced_accuracy(is_right: Mask, labels: Mask) -> Floats:
    """Return the mean of the two groups' shares of right predictions, row by row."""
    of_members = np.where(labels, is_right, 0).sum(axis=1) / np.maximum(labels.sum(axis=1), 1)
    of_others = np.where(~labels, is_right, 0).sum(axis=1) / np.maximum((~labels).sum(axis=1), 1)
    return np.asarray((of_members + of_others) / 2)


def bootstrap_accuracy(
    is_right: Mask, labels: Mask, families: Sequence[str], seed: int
) -> Interval:
    """Return the balanced accuracy with its 95 % interval: families of both groups are drawn, predictions are kept."""
    rng = np.random.default_rng(seed)
    names = np.array(families)
    hits = {}
    sizes = {}
    for is_member in (True, False):
        of_group = np.flatnonzero(labels == is_member)
        units, unit_of_model = np.unique(names[of_group], return_inverse=True)
        right_by_unit = np.bincount(unit_of_model, is_right[of_group], minlength=len(units))
        models_by_unit = np.bincount(unit_of_model, minlength=len(units))
        counts = draw_row_counts(len(units), RESAMPLES, rng)
        hits[is_member] = counts @ right_by_unit
        sizes[is_member] = counts @ models_by_unit
    accuracies = (hits[True] / sizes[True] + hits[False] / sizes[False]) / 2
    low, high = np.percentile(accuracies, [2.5, 97.5])
    accuracy = _compute_balanced_accuracy(is_right[None], labels[None])[0]
    return Interval(float(accuracy), float(low), float(high))
