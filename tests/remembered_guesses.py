"""The leave-one-out guesses of table 5, made once: nine tenths of a reproduction, of the same models in every test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from potentia.papers.task_training import discrimination
from potentia.papers.task_training.cohort import Mask
from potentia.values.scores import Floats


@contextmanager
def remember_guesses() -> Iterator[None]:
    """Let reproductions share the guesses that classifiers of the same trees and seed make of the same data."""
    guess = discrimination.predict_leave_one_out
    remembered: dict[tuple[object, ...], Mask] = {}

    def guess_once(features: Floats, labels: Mask, *, trees: str, seed: int = 0) -> Mask:
        data = (features.tobytes(), features.shape, labels.tobytes(), trees, seed)
        if data not in remembered:
            remembered[data] = guess(features, labels, trees=trees, seed=seed)
        return remembered[data].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discrimination, "predict_leave_one_out", guess_once)
        yield
