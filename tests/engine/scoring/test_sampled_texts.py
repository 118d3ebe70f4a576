"""Sampled texts: drawn from the model's own probabilities, the same whatever is written beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from architectures.tiny import build, words
from potentia.engine import LoadedModel
from potentia.engine.layers.draft import Draft, draw_uniforms
from potentia.engine.scoring import Scorer
from potentia.engine.scoring.decoding import SampleDraws
from potentia.values.requests import Generation


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return LoadedModel.of(build("llama"), words())


def requests_of(count: int, temperature: float = 1.0) -> list[Generation]:
    contexts = ["the cat is", "who was in the house ?", "a"]
    return [
        Generation(contexts[n % 3], max_tokens=6, temperature=temperature, seed=n)
        for n in range(count)
    ]


@pytest.mark.parametrize("continuous", [False, True])
def test_a_sample_depends_on_its_seed_alone(loaded: LoadedModel, continuous: bool) -> None:
    requests = requests_of(24)
    scorer = Scorer(loaded, continuous=continuous)
    together = scorer.generate(requests)
    alone = [scorer.generate([request])[0] for request in requests]
    assert together == alone
    assert scorer.generate(requests[::-1])[::-1] == together
    by_other_seeds = scorer.generate(
        [replace(request, seed=request.seed + 100) for request in requests]
    )
    assert sum(first != second for first, second in zip(together, by_other_seeds, strict=True)) > 12


def test_all_ways_of_writing_draw_the_same_texts(loaded: LoadedModel) -> None:
    requests = requests_of(12)
    loop = Scorer(loaded, continuous=False).generate(requests)
    seats = Scorer(loaded, continuous=True).generate(requests)
    # a setting that does nothing sends the texts through the model's own generate
    by_model = [replace(r, options=(("no_repeat_ngram_size", 30),)) for r in requests]
    by_own_loop = Scorer(loaded, continuous=False).generate(by_model)
    assert loop == seats == by_own_loop


def test_greedy_texts_beside_sampled_ones_stay_greedy(loaded: LoadedModel) -> None:
    greedy = [Generation("the cat is", max_tokens=6), Generation("a", max_tokens=6)]
    for continuous in (False, True):
        scorer = Scorer(loaded, continuous=continuous)
        mixed = scorer.generate([*greedy, *requests_of(6)])
        assert mixed[:2] == scorer.generate(greedy)


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    draws = 20_000
    for temperature in (0.5, 1.0, 2.0):
        expected = torch.softmax(logits / temperature, 0).numpy()
        uniforms = torch.from_numpy(draw_uniforms(7, draws))
        chosen = SampleDraws(torch.full((draws,), temperature), uniforms).choose(
            logits.expand(draws, 4)
        )
        counts = Counter(chosen.tolist())
        shares = np.array([counts[token] / draws for token in range(4)])
        errors = np.sqrt(expected * (1 - expected) / draws)
        assert (np.abs(shares - expected) < 4 * errors).all()


def test_a_temperature_near_zero_is_greedy() -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    draft = Draft(0, [1], (), 4, -1, 1, temperature=1e-4, uniforms=draw_uniforms(3, 4))
    draws = SampleDraws.of_next_tokens([draft] * 8, torch.device("cpu"))
    assert draws is not None
    assert draws.choose(logits).tolist() == logits.argmax(-1).tolist()
