"""The logistic curve of two balanced classes, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from potentia.analysis.stats import fit_balanced_logistic


@pytest.mark.parametrize(
    ("members", "others", "distance"), [(40, 40, 1.0), (7, 90, 2.0), (5, 6, 9.0)]
)
def test_the_curve_is_that_of_scikit_learn(members: int, others: int, distance: float) -> None:
    rng = np.random.default_rng(members)
    x = np.concatenate([rng.normal(distance, 1, members), rng.normal(0, 1, others)])
    is_member = np.arange(members + others) < members
    curve = fit_balanced_logistic(x, is_member)
    peer = LogisticRegression(C=100.0, class_weight="balanced", tol=1e-10).fit(
        x[:, None], is_member
    )
    assert curve.slope == pytest.approx(peer.coef_[0, 0], rel=1e-4)
    assert curve.intercept == pytest.approx(peer.intercept_[0], rel=1e-4)
