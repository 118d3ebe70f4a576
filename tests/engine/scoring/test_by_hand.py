"""Scoring by hand-written layers: the model's own numbers, or the model's own layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from architectures.tiny import WORDS, build, words
from lane_models import GEMMA4_KINDS, tiny
from potentia.engine import LoadedModel
from potentia.engine.layers.row_layout import AdapterGroup, LaneRoute
from potentia.engine.operations import TILE, plain
from potentia.engine.scoring import Scorer
from potentia.engine.training import LaneTrainer, LoraConfig
from potentia.values.scoring_route import ScoringLayers


def pairs_of(count: int, length: int) -> list[tuple[list[int], list[int]]]:
    """Questions whose choices branch, and texts that branch nowhere, of many lengths."""
    stream = np.random.default_rng(0)
    stems = [stream.integers(3, 90, length - 7 * (n % 5)).tolist() for n in range(count)]
    return [
        (stem, stream.integers(3, 90, 1 + n).tolist())
        for k, stem in enumerate(stems)
        for n in range(1 + 2 * (k % 2))
    ]


def made(case: str, dtype: torch.dtype = torch.float32) -> LoadedModel:
    model = tiny(case, vocabulary=WORDS) if case in GEMMA4_KINDS else build(case)
    return LoadedModel.of(model.to(dtype), words())


def told(loaded: LoadedModel, **options) -> tuple[float, Scorer]:
    """How far scoring by hand is from the reference, at most."""
    pairs, router = pairs_of(6, 60), options.get("router")
    owners = options.get("owners") and [
        options["owners"][n % len(options["owners"])] for n in range(len(pairs))
    ]
    fast = Scorer(loaded, fused=True, router=router)
    result = fast.loglikelihood_ids(pairs, owners=owners)
    expected = Scorer(loaded, reference=True, router=router).loglikelihood_ids(pairs, owners=owners)
    return max(
        abs(first.logprob - second.logprob) for first, second in zip(result, expected, strict=True)
    ), fast


@pytest.mark.parametrize(
    "case",
    [
        "llama",
        "qwen2",
        "mistral",
        "qwen3",
        "gemma3",
        "olmo2",
        "olmo3",
        "smollm3",
        "phi3",
        "gemma4",
        "gemma4_one_key",
        "gemma4_inputs",
        "gemma4_shared",
    ],
)
def test_the_numbers_are_the_models_own(case: str) -> None:
    loaded = made(case)
    before = {name: weight.data_ptr() for name, weight in loaded.model.named_parameters()}
    apart, scorer = told(loaded)
    assert apart < 1e-4
    assert scorer.notes.layers == ScoringLayers.FUSED
    assert {"tree", "plain"} == set(scorer.notes.rows_by_route)
    assert {record.layers for record in loaded.record.scoring} == {ScoringLayers.FUSED}
    assert {
        name: weight.data_ptr() for name, weight in loaded.model.named_parameters()
    } == before, "weights moved"
    assert not any("forward" in module.__dict__ for module in loaded.model.modules())


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("llama", torch.float32),
        ("qwen2", torch.bfloat16),
        ("phi3", torch.float32),
        ("gemma4_inputs", torch.float32),
        ("gemma4_shared", torch.float32),
    ],
)
def test_requests_of_several_adapters_and_of_none(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, lengths = plain.add_adapter_outputs, set()

    def tiled(
        x: torch.Tensor, y: torch.Tensor, group: AdapterGroup, route: LaneRoute
    ) -> torch.Tensor:
        """Tiles, which kernels alone read, hold every token once, and none holds those of two owners."""
        owners = route.owners.repeat_interleave(route.stretch).tolist()
        tiles = [range(start, min(start + TILE, stop)) for start, stop in route.tiles.tolist()]
        assert sorted(token for tokens in tiles for token in tokens) == list(range(x.shape[0]))
        assert all(len({owners[token] for token in tokens}) == 1 for tokens in tiles)
        lengths.update(map(len, tiles))
        return original(x, y, group, route)

    monkeypatch.setattr(plain, "add_adapter_outputs", tiled)
    loaded = made(case, dtype)
    with LaneTrainer(loaded) as trainer:
        trainer.install_bank(LoraConfig(targets=("all-linear",), dropout=0.1), 3).make_up_adapters()
        apart, scorer = told(loaded, router=trainer.router, owners=[2, -1, 0, 1])
    assert scorer.notes.layers == ScoringLayers.FUSED
    assert apart < (1e-4 if dtype is torch.float32 else 0.5)
    assert all(record.adapters for record in loaded.record.scoring)
    assert {TILE} < lengths  # rows of several tiles, the last of them shorter


def test_weights_that_change_are_read_anew() -> None:
    """Full tuning moves weights, and puts others in their place."""
    loaded = made("qwen2")
    assert told(loaded)[0] < 1e-4
    with torch.no_grad():
        for number, weight in enumerate(loaded.model.parameters()):
            if number % 2:
                weight.mul_(1.3)
            else:
                weight.data = weight.data * 0.8
    apart, scorer = told(loaded)
    assert (apart < 1e-4, scorer.notes.layers) == (True, ScoringLayers.FUSED)


@pytest.mark.parametrize("case", ["granite+factors", "helium", "gemma2", "gpt2"])
def test_layers_of_another_kind_run_by_themselves(case: str) -> None:
    """Granite scales its residuals, Helium rotates neighbours: only trying tells. Others have other parts."""
    apart, scorer = told(made(case))
    assert apart < 1e-4
    assert scorer.notes.layers == ScoringLayers.OWN


def test_hooks_run_by_the_models_own_layers() -> None:
    loaded = made("llama")
    scorer = Scorer(loaded, fused=True)
    loaded.model.model.layers[1].mlp.register_forward_hook(lambda _, __, out: out * 2)
    result = scorer.loglikelihood_ids(pairs_of(4, 40))
    expected = Scorer(loaded, reference=True).loglikelihood_ids(pairs_of(4, 40))
    assert [likelihood.logprob for likelihood in result] == pytest.approx(
        [likelihood.logprob for likelihood in expected], abs=1e-4
    )


BREAKS: dict[str, Callable] = {
    "norm": lambda own: lambda x, gain: own(x, gain._replace(epsilon=1e-2)),
    "add_norm": lambda own: lambda x, add, gain: own(x, add * 0.98, gain),
    "rotate_": lambda own: lambda x, heads, head, cos, sin: own(x, heads - 1, head, cos, sin),
    "gate": lambda own: lambda both, gelu: own(both.roll(both.shape[1] // 2, 1), gelu),
    "add_adapter_outputs": lambda own: lambda x, y, group, route: own(x * 0.9, y, group, route),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(BREAKS))
def test_a_broken_operation_is_noticed(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, name, BREAKS[name](getattr(plain, name)))
    loaded = made("llama", dtype)
    with LaneTrainer(loaded) as trainer:
        trainer.install_bank(LoraConfig(targets=("all-linear",), dropout=0.0), 3).make_up_adapters()
        apart, scorer = told(loaded, router=trainer.router, owners=[0, 1, 2])
    assert scorer.notes.layers == ScoringLayers.OWN
    assert any("hand-written layers" in message for message in scorer.notes.fallbacks)
    assert apart < (1e-4 if dtype is torch.float32 else 0.5)
