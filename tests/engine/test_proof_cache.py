"""What was found of one model holds for others built alike, where a few rows of their own agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from architectures.odd import ODD
from architectures.tiny import build, words
from lane_models import examples, spec, tiny
from potentia.engine import LoadedModel
from potentia.engine.models.proof_cache import ProofCache, structure_fingerprint
from potentia.engine.proof.scoring_check import RouteCase
from potentia.engine.scoring import Scorer
from potentia.engine.training import LaneTrainer, LoraConfig
from potentia.errors import TuningError
from potentia.values.scoring_route import ScoringRoute
from potentia.values.training_form import TrainingForm


def pairs(count: int = 4, length: int = 40) -> list[tuple[list[int], list[int]]]:
    stream = np.random.default_rng(0)
    stems = [stream.integers(3, 90, length).tolist() for _ in range(count)]
    return [(stem, stream.integers(3, 90, 1 + n).tolist()) for stem in stems for n in range(3)]


def other_weights(model: nn.Module, scale: float = 1.0) -> nn.Module:
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            stream = torch.Generator().manual_seed(number)
            parameter.add_(
                0.02 * scale * torch.randn(parameter.shape, generator=stream).to(parameter.dtype)
            )
    return model


def passes(kind: type[nn.Module], work: Callable[[], object]) -> int:
    """Count the passes of models of a kind, whatever copy of them."""
    seen: list[bool] = []
    hook = register_module_forward_pre_hook(lambda module, _: seen.append(isinstance(module, kind)))
    try:
        work()
    finally:
        hook.remove()
    return sum(seen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_built_alike_is_tried_on_a_few_rows(dtype: torch.dtype, tmp_path: Path) -> None:
    one, other = build("llama").to(dtype), other_weights(build("llama").to(dtype))
    assert structure_fingerprint(one) == structure_fingerprint(other)
    assert structure_fingerprint(one) != structure_fingerprint(build("llama").to(torch.float16))
    first = replace(LoadedModel.of(one, words()), proof_cache=ProofCache(tmp_path))
    second = replace(LoadedModel.of(other, words()), proof_cache=ProofCache(tmp_path))
    whole = passes(type(one.model), lambda: Scorer(first).loglikelihood_ids(pairs()))
    few = passes(type(one.model), lambda: Scorer(second).loglikelihood_ids(pairs()))
    assert few < whole / 2
    assert set(second.checks.routes.values()) == {None}
    assert {record.few_rows for record in second.record.scoring} == {True}


def test_models_that_compute_otherwise_are_not_built_alike() -> None:
    """A config does not say how a model attends, and a first layer not what the others are kept in."""
    plain = build("llama")
    names = {structure_fingerprint(plain)}
    before = plain.config._attn_implementation
    for attention in {"eager", "sdpa"} - {before}:
        plain.set_attn_implementation(attention)
        names.add(structure_fingerprint(plain))
    plain.set_attn_implementation(before)
    plain.model.layers[-1].mlp.to(torch.bfloat16)
    names.add(structure_fingerprint(plain))
    assert len(names) == 3


def test_a_known_structure_is_not_believed_where_a_few_rows_differ() -> None:
    """The proof is a wrong one on purpose: shared beginnings are wrong in this model."""
    loaded = LoadedModel.of(ODD["a look-back by another name"](), words())
    slow = Scorer(loaded, reference=True).loglikelihood_ids(pairs(length=90))
    scorer = Scorer(loaded)
    for begin, _ in scorer.check.ranges:
        for route in (ScoringRoute.TREE, ScoringRoute.PADDED):
            key = scorer.check._cache_key(RouteCase(route, begin))
            loaded.proof_cache.put({"agrees": True, "rounding": 0.0}, *key)
    fast = scorer.loglikelihood_ids(pairs(length=90))
    assert max(abs(a.logprob - b.logprob) for a, b in zip(fast, slow, strict=True)) < 1e-3
    refusals = [refusal for refusal in loaded.checks.routes.values() if refusal is not None]
    assert refusals
    assert not any("KeyError" in refusal.reason for refusal in refusals)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lanes_of_a_model_built_alike_are_checked_by_a_row_each(dtype: torch.dtype) -> None:
    shared = ProofCache()
    specs = [spec(f"l{i}", seed=i) for i in range(3)]
    for number, model in enumerate(
        (tiny("llama").to(dtype), other_weights(tiny("llama").to(dtype)))
    ):
        loaded = replace(LoadedModel.of(model, words()), proof_cache=shared)
        with LaneTrainer(loaded, may_pack=True) as trainer:
            trainer._check_lanes(specs[0].lora, specs)
            result = trainer.form_check(specs[0].lora)
            assert result.form == TrainingForm.FUSED
            assert result.was_full == (not number)
            whole = (
                result.facts.full_check if number else result.facts.distances
            )  # what the whole check found is not lost
            assert (whole.reference_rounding is not None) == (dtype is torch.bfloat16)
            assert whole.gradients is not None
            trainer._check_lanes(replace(specs[0].lora, r=3), specs)  # another rank, the same ways
            assert not trainer.form_check(replace(specs[0].lora, r=3)).was_full


def test_a_known_form_is_not_believed_where_a_row_differs() -> None:
    """Granite's layers have the parts of Llama's, and a factor; the proof is Llama's on purpose."""
    loaded = LoadedModel.of(build("granite"), words())
    for layer in loaded.model.model.layers:
        layer.residual_multiplier = 0.9
    lora = LoraConfig(targets=("q_proj", "v_proj"), dropout=0.0)
    specs = [replace(spec(f"l{i}", seed=i), lora=lora) for i in range(3)]
    with LaneTrainer(loaded, may_pack=True) as trainer:
        loaded.proof_cache.put(
            {"form": TrainingForm.FUSED.value, "may_recompute": True}, *trainer._cache_key(lora)
        )
        trainer._check_lanes(lora, specs)
        assert trainer.form_check(lora).form == TrainingForm.PACKED


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_no_numbers_are_not_trained_for_a_known_structure(
    dtype: torch.dtype,
) -> None:
    """In 16 bits they were as far off as the model's own rounding: infinitely."""
    shared, broken = ProofCache(), tiny("llama").to(dtype)
    with torch.no_grad():
        broken.model.layers[-1].mlp.down_proj.weight[0, 0] = float("nan")
    specs = [spec(f"l{i}", seed=i) for i in range(3)]
    with LaneTrainer(
        replace(LoadedModel.of(tiny("llama").to(dtype), words()), proof_cache=shared)
    ) as trainer:
        trainer._check_lanes(specs[0].lora, specs)
    with (
        LaneTrainer(replace(LoadedModel.of(broken, words()), proof_cache=shared)) as trainer,
        pytest.raises(TuningError, match="cannot be tuned"),
    ):
        trainer._check_lanes(specs[0].lora, specs)


def test_longer_rows_are_checked_by_two_of_them_and_processes_of_a_run_hear_of_forms(
    tmp_path: Path,
) -> None:
    """Found on a GPU: a probe's rows were checked in full, and the longer ones of its row in full again."""
    short, long = (
        [spec(f"l{i}", data=examples(12, seed=i, high=high)) for i in range(3)] for high in (24, 60)
    )
    first, second = ProofCache(tmp_path), ProofCache(tmp_path)
    kind = type(tiny("llama").model)
    with LaneTrainer(replace(LoadedModel.of(tiny("llama"), words()), proof_cache=first)) as trainer:
        whole = passes(kind, lambda: trainer._check_lanes(short[0].lora, short))
        assert passes(kind, lambda: trainer._check_lanes(long[0].lora, long)) < whole / 2
        result = trainer.form_check(long[0].lora)
        assert (result.form, result.may_recompute, result.longest) == (
            TrainingForm.PADDED,
            True,
            max(first.longest_text for first in long),
        )
        assert not result.was_full
        assert result.facts.full_check.update is not None
        assert passes(kind, lambda: trainer._check_lanes(short[0].lora, short)) == 0
        assert second.get(*trainer._cache_key(short[0].lora))["form"] == TrainingForm.PADDED.value


def test_adapters_are_tried_on_a_few_rows_where_the_bare_model_is_right() -> None:
    loaded = LoadedModel.of(build("llama").to(torch.bfloat16), words())
    kind, asked = type(loaded.model.model), pairs(length=70)
    bare = passes(kind, lambda: Scorer(loaded).loglikelihood_ids(asked))
    with LaneTrainer(loaded) as trainer:
        trainer.install_bank(LoraConfig(dropout=0.0, targets=None), 3).make_up_adapters()
        owners = [number % 3 for number in range(len(asked))]
        scorer = Scorer(loaded, router=trainer.router)
        tuned = passes(kind, lambda: scorer.loglikelihood_ids(asked, owners=owners))
    assert tuned < bare
    assert loaded.checks.routes[RouteCase(ScoringRoute.TREE, adapters=True)] is None
    assert loaded.record.largest_scoring_error < 1e-4  # in float32
