"""Writing in seats gives lm-eval's texts, whoever writes beside, with adapters, stops and too little memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from capture_audit import Audit
from lane_models import examples, spec
from potentia.engine import LoadedModel
from potentia.engine.layers.network import Network
from potentia.engine.scoring import Scorer, continuous, generate
from potentia.engine.scoring.decoding import Endings
from potentia.engine.training import LaneTrainer
from potentia.values.requests import Generation
from potentia.values.scoring_route import WritingRoute
from scoring_models import ARCHITECTURES, CORPUS, tiny

WORDS = " ".join(CORPUS[:3]).split()


def phrases(count: int, seed: int = 2) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(count)]


def written(loaded: LoadedModel, requests: list[Generation], **options) -> list[str]:
    scorer = Scorer(loaded, continuous=True, **options)
    texts = scorer.generate(requests)
    assert scorer.notes.writing == (WritingRoute.SEATS,)
    return texts


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_texts_are_lm_evals(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate.MOST_SEATS, "cpu", 5)
    loaded = tiny(kind)
    contexts = [*phrases(13), "very long " * 30]
    if loaded.bos.required:  # cut contexts keep their BOS here
        contexts = contexts[:-1]
    harness = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=8)
    scorer = Scorer(loaded, continuous=True)
    for stop in ((), ("\n",), ("e", " the"), ("zzz",)):
        ours = scorer.generate([Generation(context, stop, 20) for context in contexts])
        keywords = {"until": list(stop), "max_gen_toks": 20, "do_sample": False}
        requests = [
            Instance("generate_until", {}, (c, dict(keywords)), i, ("t", i, 1))
            for i, c in enumerate(contexts)
        ]
        assert ours == harness.generate_until(requests, disable_tqdm=True)
    reported = scorer.notes.writing, scorer.notes.fallbacks
    assert reported[0] == (WritingRoute.SEATS,) or any(
        "writing in seats" in reason for reason in reported[1]
    ), reported


def test_most_models_write_in_seats() -> None:
    seated = []
    for kind in ARCHITECTURES:
        scorer = Scorer(tiny(kind), continuous=True)
        scorer.generate([Generation("plants", (), 3)])
        seated += [kind] if scorer.notes.writing == (WritingRoute.SEATS,) else []
    assert {"llama", "gpt2", "gpt_neox"} & set(ARCHITECTURES) <= set(seated)


def test_a_step_in_seats_can_be_captured() -> None:
    """Nothing is sent from the host, and nothing read by it."""
    network = Network(tiny("llama"))
    side_by_side = continuous.Seats(network, 5, 40, capture=False)
    with network.evaluating():
        side_by_side.seat_prompts(range(5), [[3, 4, 5], [7], [9, 8], [5] * 20, [6, 7]], [-1] * 5)
        side_by_side.step(5)
        with Audit(1 << 40) as audit:
            side_by_side._compute_step(5, record_logprobs=False)
    assert audit.count > 50
    assert audit.found == []


def test_rooms_of_all_sizes_through_few_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny("llama")
    rng = random.Random(5)
    requests = [
        Generation(text, ("e",) if i % 3 else (), rng.randint(0, 25))
        for i, text in enumerate(phrases(60))
    ]
    expected = Scorer(loaded, continuous=False).generate(requests)
    counts: list[int] = []
    original_step = continuous.Seats.step

    def step(self, count, **options):
        counts.append(count)
        original_step(self, count, **options)

    monkeypatch.setattr(continuous.Seats, "step", step)
    monkeypatch.setattr(continuous, "FEWEST_SEATS", 2)
    for seat_count in (1, 3, 20):
        monkeypatch.setitem(generate.MOST_SEATS, "cpu", seat_count)
        result: list[int] = []
        scorer = Scorer(loaded, continuous=True)
        assert scorer.generate(requests, progress=result.append) == expected
        assert sum(result) == len(requests)
    assert {20, 2} <= set(counts)  # the last texts moved together
    assert 0 < len(counts) < 60 * 25


def test_a_text_gets_its_own_adapter(tmp_path: Path) -> None:
    loaded = tiny("llama")
    vocabulary = loaded.model.config.vocab_size
    specs = [
        spec(f"l{i}", seed=i, data=examples(16, seed=i), learning_rate=0.05, epochs=2)
        for i in range(3)
    ]
    assert vocabulary >= 96
    with LaneTrainer(loaded.model) as trainer:
        trainer.train(specs)
        owners = [trainer.restore(s.key, 2) for s in specs]
        requests = [Generation(text, (), 10) for text in phrases(12)]
        owner_of_text = [[*owners, -1][i % 4] for i in range(12)]
        texts = {
            way: Scorer(loaded, router=trainer.router, continuous=way).generate(
                requests, owners=owner_of_text
            )
            for way in (False, True)
        }
    assert texts[True] == texts[False]
    assert texts[True] != Scorer(loaded).generate(requests)


def test_too_little_memory_halves_the_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny("llama")
    requests = [Generation(text, (), 12) for text in phrases(20)]
    expected = Scorer(loaded, continuous=False).generate(requests)
    original_step, refused = continuous.Seats._compute_step, []

    def step(self, count, *, record_logprobs):
        if count > 4 and not record_logprobs:
            refused.append(count)
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        original_step(self, count, record_logprobs=record_logprobs)

    monkeypatch.setattr(continuous.Seats, "_compute_step", step)
    assert written(loaded, requests) == expected
    assert refused == [16, 8]


def test_logits_that_are_no_numbers_are_an_error() -> None:
    from potentia.errors import PotentiaError

    loaded = tiny("llama", seed=7)
    scorer = Scorer(loaded, continuous=True)
    scorer.generate([Generation("plants", (), 3)])
    with torch.no_grad():
        loaded.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(PotentiaError, match="number"):
        scorer.generate([Generation("plants", (), 3)])


def test_tables_mark_every_token_that_completes_a_stop() -> None:
    loaded = tiny("llama")
    tokenizer = loaded.tokenizer
    tables = Endings(loaded.model, tokenizer, loaded.model.config.vocab_size)
    rng = random.Random(1)
    for stop in ("e", " the", "\n", "ts t", "?", "é"):
        table = tables.table_of_last_tokens((stop,))
        found = 0
        for _ in range(300):
            ids = [rng.randrange(len(tokenizer)) for _ in range(6)]
            before, after = (tokenizer.decode(part).count(stop) for part in (ids[:-1], ids))
            if after > before:
                found += 1
                assert table[ids[-1]], (stop, tokenizer.decode(ids))
        assert found or stop in ("\n", "ts t", "é", " the", "?")
    assert not tables.table_of_last_tokens(()).any()
    assert tables.table_of_last_tokens(("e",)).mean() < 0.7
