"""The rivals of the bench: their numbers on made-up models, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from exposure_rivals import (
    RIVALS,
    TextMeasures,
    infer_dataset,
    measure_text,
    tabulate_rivals,
)


class TwoTokens(torch.nn.Module):
    """Gives token 1 the probability 0.8 and token 0 the rest, everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.logprobs = torch.nn.Parameter(torch.log(torch.tensor([0.2, 0.8])))

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logprobs.expand(*input_ids.shape, 2))


def read_bits(text: str, **options: object) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor([[int(letter) for letter in text]])}


def test_min_k_plus_plus_by_hand() -> None:
    measured = measure_text(TwoTokens(), read_bits, "111110")
    expected = 0.2 * np.log(0.2) + 0.8 * np.log(0.8)
    deviation = np.sqrt(0.2 * np.log(0.2) ** 2 + 0.8 * np.log(0.8) ** 2 - expected**2)
    # The lowest fifth of five tokens is the last one.
    assert measured.lowest_logprob == pytest.approx(np.log(0.2), rel=1e-4)
    assert measured.lowest_standardised == pytest.approx(
        (np.log(0.2) - expected) / deviation, rel=1e-4
    )


def test_dataset_inference_finds_texts_that_are_better_known_and_no_others() -> None:
    rng = np.random.default_rng(0)

    def draw(mean: float) -> list[TextMeasures]:
        return [TextMeasures(*rng.normal(mean, 1.0, 4)) for _ in range(40)]

    assert infer_dataset(draw(1.0), draw(0.0)) > 3
    assert infer_dataset(draw(0.0), draw(0.0)) < 2


def test_areas_are_beside_the_clean_cells_of_each_task() -> None:
    lines = []
    for task, level in (("easy", 5.0), ("hard", 0.0)):
        for number in range(4):
            value = level + 0.1 * number
            lines.append({"task": task, "seen": "", "rivals": dict.fromkeys(RIVALS, value)})
        lines.append({"task": task, "seen": "same", "rivals": dict.fromkeys(RIVALS, level + 1.0)})
    rows = tabulate_rivals(lines)
    assert [(row[1], row[2], row[3]) for row in rows] == [("same", 2, 1.0)] * 3
