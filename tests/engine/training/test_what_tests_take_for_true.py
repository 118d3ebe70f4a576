"""What other tests of training take for the truth: the order of examples, and how an adapter begins."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lane_models import tiny
from potentia.engine.lane_spec import LoraConfig, data_order
from potentia.engine.layers.adapter_bank import AdapterBank

ORDER_OF_EPOCH_0 = [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]
ORDER_OF_EPOCH_1 = [9, 1, 3, 8, 7, 6, 0, 4, 2, 5]


def test_examples_are_read_in_an_order_of_their_own_in_every_epoch() -> None:
    """Literal numbers: an order that changed with a version would give other scores under the same key."""
    assert data_order(0, 0, 10).tolist() == ORDER_OF_EPOCH_0
    assert data_order(0, 1, 10).tolist() == ORDER_OF_EPOCH_1
    for epoch in range(4):
        order = data_order(3, epoch, 50)
        assert sorted(order.tolist()) == list(range(50))
        assert not np.array_equal(order, np.arange(50))
        assert not np.array_equal(order, data_order(3, epoch + 1, 50))
        assert not np.array_equal(order, data_order(4, epoch, 50))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_adapter_begins_as_wide_as_pefts(kind: str) -> None:
    """PEFT draws A by Kaiming's rule with a = √5, uniform between ±1/√(width of the input), and B as zeros."""
    bank = AdapterBank(tiny(kind), LoraConfig(r=64, dropout=0.0, targets=("all-linear",)), 1)
    state = bank.peft_state(bank.fresh_row(0))
    for name, weights in state.items():
        if "lora_B" in name:
            assert not weights.any()
            continue
        bound = 1 / math.sqrt(weights.shape[1])
        assert float(weights.abs().max()) <= bound
        assert float(weights.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert any(torch.is_nonzero(weights.abs().sum()) for weights in state.values())
