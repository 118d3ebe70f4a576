"""Intervals over models count the models of one family as one witness."""

from __future__ import annotations

import numpy as np

from potentia.analysis.stats.bootstrap import ResamplingUnits, Sampling
from potentia.analysis.stats.intervals import mean_interval
from potentia.papers.base_models.ablation import average_ranks
from potentia.papers.base_models.consistency import draw_pairs
from potentia.papers.task_training.discrimination import bootstrap_accuracy

MODELS = [f"m{row}" for row in range(12)]
FAMILIES = {model: f"family {row // 3}" for row, model in enumerate(MODELS)}


def test_the_mean_of_families_has_the_interval_of_their_means() -> None:
    by_family = np.array([0.1, 0.2, 0.4, 0.5])
    repeated = np.repeat(by_family, 3)
    alone = mean_interval(by_family, list("abcd"))
    together = mean_interval(repeated, list(FAMILIES.values()))
    assert np.allclose([together.low, together.high], [alone.low, alone.high])
    of_one_family = mean_interval(by_family, ["one"] * 4)
    assert (of_one_family.low, of_one_family.high) == (alone.low, alone.high)
    assert np.isnan(mean_interval(by_family[:1], ["one"]).low)


def test_pairs_of_one_family_are_drawn_together() -> None:
    drawn = draw_pairs(MODELS, FAMILIES, 50, np.random.default_rng(0))
    for positions in drawn:
        counts = np.bincount(positions[positions >= 0], minlength=len(MODELS))
        assert (counts.reshape(4, 3) == counts.reshape(4, 3)[:, :1]).all()
    without_families = draw_pairs(MODELS, {}, 50, np.random.default_rng(0))
    assert without_families.shape == (50, len(MODELS))
    assert (without_families >= 0).all()


def test_ranks_and_guesses_that_families_share_have_wide_intervals() -> None:
    rng = np.random.default_rng(1)
    ranks = np.repeat(1.0 + rng.random((4, 2, 1)), 3, axis=0)
    widths = {}
    for unit, families in (("families", FAMILIES), ("models", {})):
        sampling = Sampling(units=ResamplingUnits("families", families), resamples=500)
        first = average_ranks(ranks, sampling.draw_models(MODELS))[0]
        is_member = np.arange(12) % 3 != 1
        is_right = np.repeat([True, False, True, False], 3)
        labels = [FAMILIES[model] for model in MODELS] if families else MODELS
        guessed = bootstrap_accuracy(is_right, is_member, labels, seed=0)
        widths[unit] = np.array([first.high - first.low, guessed.high - guessed.low])
    assert (widths["families"] > 1.15 * widths["models"]).all()
