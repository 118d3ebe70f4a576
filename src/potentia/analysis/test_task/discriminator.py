"""Can newer models be told from older ones by compute and score? Before and after tuning the older (appendix D.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.analysis.test_task.cohort import Split
from potentia.analysis.test_task.pair import Pair
from potentia.errors import InputError
from potentia.findings import Finding, Table
from potentia.scores import Floats


@dataclass(frozen=True)
class Discrimination(Finding):
    """Leave-one-out balanced accuracy of telling a group from the others; 0.5 is chance."""

    task: str
    group: str
    n: int
    before: float  # the group against the others as they are
    after: float  # the group as it is against the others after tuning

    def tables(self) -> Sequence[Table]:
        """Return both accuracies."""
        rows = ((f"the others against {self.group}", self.before), (f"tuned others against {self.group}", self.after))
        note = (
            f"{self.n} models. Balanced accuracy of boosted trees on log compute and score, leave-one-out; chance 0.5."
        )
        return (Table(f"{self.task}: can the groups be told apart?", ("", "balanced accuracy"), rows, note),)


def discriminate(pair: Pair, split: Split, *, seed: int = 0) -> Discrimination:
    """Tell the split's members (as they are, ``pair.before``) from the others, untuned and tuned (``pair.after``)."""
    members = np.asarray(split.members)
    x = pair.cohort.log_compute
    mixed = np.where(members, pair.before, pair.after)
    before, after = (balanced_accuracy(np.column_stack([x, y]), members, seed=seed) for y in (pair.before, mixed))
    return Discrimination(pair.task, split.label, len(x), before, after)


def balanced_accuracy(features: Floats, labels: npt.NDArray[np.bool_], *, seed: int = 0) -> float:
    """Return the leave-one-out balanced accuracy of gradient-boosted trees.

    The trees have the settings that XGBoost has by default (depth 6, step 0.3, ridge penalty 1, 100 rounds).
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.model_selection import LeaveOneOut, cross_val_predict
    from threadpoolctl import threadpool_limits

    if min(labels.sum(), (~labels).sum()) < 2:
        raise InputError("both groups need two models at least to be told apart")
    trees = HistGradientBoostingClassifier(
        learning_rate=0.3,
        max_iter=100,
        max_depth=6,
        max_leaf_nodes=None,
        min_samples_leaf=1,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    )
    with threadpool_limits(1):  # the data are tiny; threads only wait for each other
        guesses = cross_val_predict(trees, features, labels, cv=LeaveOneOut())
    return float(balanced_accuracy_score(labels, guesses))
