"""The model to use is fine-tuned on all rows as the folds' models were: as long, and at the same learning rates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from potentia.run.refit import RefitSettings
from potentia.study import Tuning
from potentia.values.selection import Selection


def fold(epoch: int | None, rate: float | None = 1e-3, style: str = "plain") -> Any:
    selection = Selection(learning_rate=rate, epoch=epoch, style=style, tuned=epoch is not None)
    return SimpleNamespace(selection=selection)


@pytest.mark.parametrize("decay", ["linear", "cosine", "constant", "late"])
@pytest.mark.parametrize("epoch", [1, 4, 10])
def test_the_learning_rate_falls_as_far_as_it_had_at_the_chosen_state(
    decay: str, epoch: int
) -> None:
    tuning = Tuning(decay=decay, floor=0.1)
    examples = 80  # 200 updates are 20 passes: ten epochs of two
    settings = RefitSettings.from_folds([fold(epoch)] * 5, tuning, examples)
    assert settings is not None
    assert settings.passes == 2 * epoch
    whole = tuning.make_schedule(1e-3, examples)
    refit = settings.make_tuning(tuning).make_schedule(1e-3)
    steps_to_choice = epoch * 2 * 10
    last = whole.rate_share(steps_to_choice, 200)
    assert refit.rate_share(200, 200) == pytest.approx(last)
    if decay in ("linear", "constant"):  # on the way too
        for step in range(0, steps_to_choice, 5):
            expected = whole.rate_share(step, 200)
            assert refit.rate_share(step, steps_to_choice) == pytest.approx(expected)


def test_the_middle_of_the_folds_is_taken_and_most_must_have_been_tuned() -> None:
    tuning = Tuning()
    folds = [fold(2), fold(4, 3e-3, "chat"), fold(6, 3e-3, "chat"), fold(None)]
    settings = RefitSettings.from_folds(folds, tuning, 80)
    assert settings is not None
    assert (settings.learning_rate, settings.passes, settings.style) == (3e-3, 8, "chat")
    assert settings.share == pytest.approx(0.4)
    assert RefitSettings.from_folds([fold(2), fold(None)], tuning, 80) is None
