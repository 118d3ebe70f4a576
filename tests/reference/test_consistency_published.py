"""Base models and their instruct versions in the published matrix: 24 pairs, 24 benchmarks and 3 corpora."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.checkpoints import pair_models
from potentia.facts import models
from potentia.papers.base_models.consistency import measure_consistency
from score_files import read_scores


@pytest.mark.shared
def test_after_the_same_training_base_models_foretell_their_instruct_versions_better(shared_data):
    scores = read_scores(shared_data / "published" / "train_before_test_scores.csv")
    pairs = pair_models(scores["direct"].models, models())
    assert len(pairs) == 24
    consistency = measure_consistency(scores, pairs, reference="same", draws=20)
    mean = {
        method: float(
            np.mean([link.tau.value for link in consistency.links if link.method == method])
        )
        for method in consistency.methods
    }
    assert mean["direct"] == pytest.approx(0.615, abs=0.005)
    assert mean["train_before_test"] == pytest.approx(0.802, abs=0.005)
