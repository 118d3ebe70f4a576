"""The parts of lanes that exist on a GPU alone; skipped elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lane_models import examples, gap, spec, tiny
from potentia.engine import going_first
from potentia.engine.models.device_layout import on_stream
from potentia.engine.operations.dropout import Dropout, token_keys
from potentia.engine.training.lanes import LaneTrainer
from potentia.values.training_form import TrainingForm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def lanes() -> list:
    return [
        spec(f"l{i}", seed=i, data=examples(32 + 8 * i, seed=i), dropout=0.1, epochs=2)
        for i in range(6)
    ]


def train(model, specs):
    with LaneTrainer(model) as trainer:
        results = trainer.train(specs)
        assert all(result.status == "done" for result in results.values())
        return trainer.training_facts.form, {s.key: trainer.adapter_state(s.key) for s in specs}


def test_the_kernel_draws_the_same_masks() -> None:
    row = np.arange(6)[:, None]
    keys = torch.from_numpy(token_keys(row, 3 * row, row, np.arange(33)))
    x = torch.randn(6, 33, 64)
    for layer in (0, 1, 5, 47):
        here, there = Dropout(keys, layer, 0.1), Dropout(keys.cuda(), layer, 0.1)
        assert torch.equal(here(x), there(x.cuda()).cpu())
        assert torch.allclose(here(x, add=x), there(x.cuda(), add=x.cuda()).cpu(), atol=1e-6)


def test_float32_equals_the_cpu() -> None:
    form, there = train(tiny("llama").cuda(), lanes())
    assert form == TrainingForm.FUSED
    _, here = train(tiny("llama"), lanes())
    assert max(gap(here[key], there[key]) for key in here) < 5e-5


def test_bf16_learns_the_same_direction() -> None:
    model = tiny("llama").to("cuda", torch.bfloat16)
    form, there = train(model, lanes())
    assert form == TrainingForm.FUSED
    _, here = train(tiny("llama"), lanes())
    for key, wanted in here.items():
        for name, value in wanted.items():
            if "lora_B" in name:
                assert (
                    torch.cosine_similarity(there[key][name].flatten(), value.flatten(), dim=0)
                    > 0.9
                )


def test_a_lane_alone_is_the_lane_among_others_in_bf16() -> None:
    specs = lanes()
    _, among = train(tiny("llama").to("cuda", torch.bfloat16), specs)
    _, alone = train(tiny("llama").to("cuda", torch.bfloat16), specs[:1])
    name = next(iter(alone["l0"]))
    assert (
        torch.cosine_similarity(among["l0"][name].flatten(), alone["l0"][name].flatten(), dim=0)
        > 0.999
    )


def test_a_row_that_goes_first_trains_as_others_do() -> None:
    device = torch.device("cuda", 0)
    _, alone = train(tiny("llama").cuda(), lanes())
    with going_first("cuda:0"):
        assert torch.cuda.current_stream(device).priority < 0
        with on_stream(device, 0):
            assert torch.cuda.current_stream(device).priority == 0
        _, there = train(tiny("llama").cuda(), lanes())
    assert torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    assert max(gap(alone[key], there[key]) for key in alone) < 1e-6
