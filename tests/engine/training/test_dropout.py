"""The dropout stream: a pure function of seed, step, row, layer and element, with the right rate."""

from __future__ import annotations

import numpy as np
import torch

from potentia.engine.operations.dropout import Dropout, keep_mask, token_keys


def keys(seed: int = 1, step: int = 0, rows: int = 64, tokens: int = 16) -> torch.Tensor:
    row = np.arange(rows)[:, None]
    return torch.from_numpy(
        token_keys(np.full_like(row, seed), np.full_like(row, step), row, np.arange(tokens))
    )


def test_rate_and_scale() -> None:
    x = torch.ones(64, 16, 64)
    out = Dropout(keys(), 3, 0.1)(x)
    assert set(out.unique().tolist()) == {0.0, float(torch.tensor(1.0) * torch.tensor(1 / 0.9))}
    assert abs(float((out == 0).float().mean()) - 0.1) < 0.005
    by_place = (out == 0).float().mean(dim=0)  # no position or feature is favoured
    assert 0.0 < by_place.mean(dim=0).min() < by_place.mean(dim=0).max() < 0.2


def test_a_rows_mask_ignores_other_rows_and_padding() -> None:
    all_rows = keys()
    mask = keep_mask(all_rows, 3, 64, 0.1)
    alone = keep_mask(keys(rows=41, tokens=9)[[7, 40]], 3, 64, 0.1)
    assert torch.equal(mask[[7, 40], :9], alone)


def test_streams_differ_by_seed_step_row_and_layer() -> None:
    base = keep_mask(keys(), 3, 64, 0.5)
    for other in (
        keep_mask(keys(seed=2), 3, 64, 0.5),
        keep_mask(keys(step=1), 3, 64, 0.5),
        keep_mask(keys(), 4, 64, 0.5),
        base.roll(1, dims=0),
        base.roll(1, dims=2),
        base.roll(1, dims=1),
    ):
        assert abs(float((base == other).float().mean()) - 0.5) < 0.01


def test_odd_widths_and_the_way_back() -> None:
    dropout = Dropout(keys(rows=5, tokens=4), 0, 0.3)
    x = torch.randn(5, 4, 7)
    out = dropout(x)
    assert torch.allclose(dropout(torch.ones_like(x), add=torch.ones_like(x)), out / x + 1)


def test_every_token_of_a_long_text_has_a_mask_of_its_own() -> None:
    """A mask that repeats beyond some place would drop the same elements of all later tokens."""
    masks = keep_mask(keys(rows=2, tokens=300), 3, 64, 0.5).float()
    for row in masks:
        agreement = (row @ row.t() + (1 - row) @ (1 - row).t()) / row.shape[1]
        agreement.fill_diagonal_(0.5)
        assert float(agreement.min()) > 0.05
        assert float(agreement.max()) < 0.95
        assert abs(float(agreement.mean()) - 0.5) < 0.01
    assert len(masks.flatten(0, 1).unique(dim=0)) == 600
