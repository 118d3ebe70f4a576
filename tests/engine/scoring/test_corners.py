"""The corners that hurt: boundaries, empty texts, long texts, special tokens, memory, adapters, wrong paths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from potentia.engine import BosPolicy, Encoder, LoadedModel
from potentia.engine.layers.network import Network
from potentia.engine.layers.prefix_tree import ScoredSequence, group_rows, pack_sequences
from potentia.engine.models.tokenization import count_common_prefix
from potentia.engine.proof.request_check import RequestCheck
from potentia.engine.scoring import Scorer
from potentia.engine.scoring import scorer as scorer_module
from potentia.errors import InputError, ModelError
from potentia.values.requests import Continuation, Document, Generation
from scoring_models import ARCHITECTURES, CORPUS, tiny, tokenizer

TEXTS = st.text(max_size=24) | st.sampled_from(
    ["", " ", "\n", "yes", " carbon dioxide", "🙂🙃", "naïve ", "<eos>", "<bos>"]
)


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return tiny("llama")


@pytest.fixture(scope="module")
def qwen() -> LoadedModel:
    return tiny("qwen2")


def _same(scorer: Scorer, requests: Sequence[Continuation]) -> None:
    slow = Scorer(scorer.loaded, reference=True).loglikelihood(requests)
    fast = scorer.loglikelihood(requests)
    assert [(entry.greedy, entry.tokens) for entry in fast] == [
        (entry.greedy, entry.tokens) for entry in slow
    ]
    assert [entry.logprob for entry in fast] == pytest.approx(
        [entry.logprob for entry in slow], abs=2e-4, rel=1e-5
    )


MODELS: dict[str, LoadedModel] = {}


@pytest.mark.parametrize("kind", ARCHITECTURES)
@settings(max_examples=25, deadline=None)
@given(pairs=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=40))
def test_any_text(kind: str, pairs: list[tuple[str, str]]) -> None:
    loaded = MODELS.setdefault(kind, tiny(kind, layers=1))
    _same(Scorer(loaded, token_budget=300), [Continuation(*pair) for pair in pairs])


def test_empty_continuation_costs_nothing(llama: LoadedModel) -> None:
    lengths_seen: list[int] = []
    results = Scorer(llama).loglikelihood(
        [Continuation("a", ""), Continuation("", "")], progress=lengths_seen.append
    )
    assert [(entry.logprob, entry.greedy, entry.tokens) for entry in results] == [
        (0.0, True, 0)
    ] * 2
    assert sum(lengths_seen) == 2
    assert Scorer(llama).loglikelihood([]) == []
    assert Scorer(llama).generate([]) == []
    (nothing,) = Scorer(llama).rolling([Document("")])
    assert (nothing.logprob, nothing.tokens) == (0.0, 0)


def test_a_token_across_the_boundary(qwen: LoadedModel) -> None:
    """Cut inside a word that is one token: the whole word is scored after what comes before it."""
    encoder = qwen.encoder
    word = max(
        (text for text in qwen.tokenizer.get_vocab() if text.isalpha() and text.isascii()), key=len
    )
    whole_ids = qwen.tokenizer(word)["input_ids"]
    assert len(whole_ids) == 1
    assert len(word) > 2
    context, continuation = encoder.continuations([(word[:-1], word[-1])])[0]
    assert continuation == whole_ids
    assert context == [qwen.bos.prefix_id]
    before = encoder.prompt("Question:\n")
    assert encoder.continuations([("Question:\n" + word[:-1], word[-1])])[0] == (before, whole_ids)
    _same(
        Scorer(qwen),
        [Continuation(word[:-1], word[-1]), Continuation("Question:\n" + word[:-1], word[-1])],
    )


def test_no_second_bos(llama: LoadedModel) -> None:
    """A chat template writes BOS itself."""
    bos = llama.tokenizer.bos_token_id
    for ids in (
        llama.encoder.prompt("<bos>hello"),
        llama.encoder.prompt("hello"),
        [*chain(*llama.encoder.continuations([("<bos>hello", " plants")])[0])],
        [*chain(*llama.encoder.continuations([("", "<bos>hello")])[0])],
    ):
        assert ids[0] == bos
        assert ids.count(bos) == 1
    assert bos not in llama.encoder.documents(["hello"])[0]


def test_declared_bos_is_added(qwen: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer whose files ask for BOS but which does not add it (a GGUF conversion) is helped."""
    words = tokenizer("gpt2")
    monkeypatch.setitem(words.init_kwargs, "add_bos_token", True)
    policy = BosPolicy.of(words)
    assert policy.required
    assert not policy.tokenizer_adds
    encoder = Encoder(words, policy, 64)
    assert encoder.prompt("hello")[0] == words.bos_token_id
    context, continuation = encoder.continuations([("hello", " plants")])[0]
    assert context[0] == words.bos_token_id
    assert words.bos_token_id not in continuation


def test_tokenizer_without_any_special_token() -> None:
    loaded = tiny("gpt2")
    bare = type(loaded.tokenizer)(tokenizer_object=loaded.tokenizer.backend_tokenizer)
    assert bare.bos_token_id is None
    assert bare.pad_token_id is None
    loaded.model.config.bos_token_id = loaded.model.config.eos_token_id = None
    lonely = LoadedModel.of(loaded.model, bare)
    assert lonely.bos.prefix_id is None
    results = Scorer(lonely).loglikelihood(
        [Continuation("", "carbon dioxide"), Continuation("plants", " take")]
    )
    assert all(entry.tokens for entry in results)
    assert (
        Scorer(lonely).rolling([Document("carbon dioxide")])[0].tokens
        == len(bare("carbon dioxide")["input_ids"]) - 1
    )
    assert Scorer(lonely).generate([Generation("plants", (), 3)])
    with pytest.raises(ModelError, match="empty text"):
        Scorer(lonely).generate([Generation("", (), 3)])


def test_continuation_longer_than_the_model(llama: LoadedModel) -> None:
    text = " ".join(CORPUS[:3])
    scorer = Scorer(llama)
    (entry,) = scorer.loglikelihood([Continuation("Question:", " " + text)])
    assert entry.tokens > llama.max_length
    assert scorer.notes.windowed == 1
    assert entry.logprob < -entry.tokens / 10


def test_lone_surrogates_are_read(llama: LoadedModel) -> None:
    assert Scorer(llama).loglikelihood([Continuation("a\ud800", " b\udfff")])[0].tokens > 0


def test_results_do_not_depend_on_the_budget(llama: LoadedModel) -> None:
    rng = random.Random(0)
    words = CORPUS[0].split()
    stems = [" ".join(rng.choices(words, k=rng.randint(1, 20))) for _ in range(12)]
    requests = [Continuation(stem, " " + word) for stem in stems for word in rng.sample(words, 3)]
    wide = Scorer(llama, token_budget=100_000).loglikelihood(requests)
    narrow = Scorer(llama, token_budget=1).loglikelihood(requests)
    assert [entry.logprob for entry in wide] == pytest.approx(
        [entry.logprob for entry in narrow], abs=1e-4
    )


def test_memory_that_runs_out_halves_the_budget(
    llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stems = [f"{stem} {i} {CORPUS[0][: i % 30]}" for i in range(60) for stem in ("a", "b")]
    requests = [Continuation(stem, choice) for stem in stems for choice in (" yes", " no")]
    expected = Scorer(llama).loglikelihood(requests)
    real = Network.score_rows

    def score(self: Network, rows: list[Any]) -> Any:
        if len(rows) * max(len(row) for row in rows) > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, rows)

    monkeypatch.setattr(Network, "score_rows", score)
    scorer = Scorer(llama, token_budget=4000)
    result = scorer.loglikelihood(requests)
    assert scorer.token_budget <= 500
    assert [entry.logprob for entry in result] == pytest.approx(
        [entry.logprob for entry in expected], abs=1e-4
    )
    monkeypatch.setattr(
        Network,
        "score_rows",
        lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")),
    )
    with pytest.raises(ModelError, match="out of memory"):
        Scorer(llama).loglikelihood(requests)


def test_a_path_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny("llama", seed=3)
    requests = [
        Continuation("Question: plants?", choice)
        for choice in (" carbon dioxide", " oxygen", " the river", " A")
    ]
    expected = Scorer(tiny("llama", seed=3), reference=True).loglikelihood(requests)
    real = Network._tree_inputs

    def wrong(self: Network, rows: list[Any], length: int) -> dict[str, Any]:
        inputs = real(self, rows, length)
        inputs["position_ids"] = torch.arange(length).expand(
            len(rows), -1
        )  # positions not reset at a branch
        return inputs

    monkeypatch.setattr(Network, "_tree_inputs", wrong)
    scorer = Scorer(loaded)
    result = scorer.loglikelihood(requests)
    assert [entry.logprob for entry in result] == pytest.approx(
        [entry.logprob for entry in expected], abs=1e-4
    )
    assert "tree" not in scorer.notes.rows_by_route
    assert "scoring by shared beginnings is not used" in scorer.notes.fallbacks[0]


def test_bloom_takes_the_plain_path() -> None:
    loaded = tiny("bloom")
    requests = [
        Continuation("Question: plants?", choice)
        for choice in (" carbon dioxide", " oxygen", " A", " B")
    ]
    scorer = Scorer(loaded)
    _same(scorer, requests)
    assert set(scorer.notes.rows_by_route) == {"plain"}


class _Doubling:
    """A router whose owner k multiplies the hidden states by k + 1: enough to see who was routed where."""

    def __init__(self, model: Any) -> None:
        self.owners: torch.Tensor | None = None
        model.model.norm.register_forward_hook(self._scale)

    def route(self, row_owners: torch.Tensor | None) -> None:
        self.owners = row_owners

    def _scale(self, _: Any, __: Any, output: torch.Tensor) -> torch.Tensor | None:
        if self.owners is None:
            return None
        assert len(self.owners) == len(output)
        return output * (self.owners + 1)[:, None, None]


def test_every_row_has_one_owner() -> None:
    loaded = tiny("llama", seed=5)
    plain = Scorer(loaded)
    router = _Doubling(loaded.model)
    requests = [
        Continuation("Question: plants?", choice)
        for choice in (" carbon dioxide", " oxygen", " A", " B")
    ] * 3
    owners = [i % 3 for i in range(len(requests))]
    scorer = Scorer(loaded, router=router, token_budget=64)
    mixed = scorer.loglikelihood(requests, owners=owners)
    assert router.owners is None  # whoever uses the model next has it without adapters
    texts = scorer.generate([Generation("plants take", (), 6)] * 3, owners=[0, 1, 2])
    assert router.owners is None
    scorer.rolling([Document("plants take")] * 2, owners=[0, 2])
    assert router.owners is None
    for owner in range(3):
        alone = scorer.loglikelihood(requests, owners=[owner] * len(requests))
        for i, entry in enumerate(mixed):
            if owners[i] == owner:
                assert entry.logprob == pytest.approx(alone[i].logprob, abs=1e-4)
    router.owners = None
    base = plain.loglikelihood(requests)
    assert mixed[0].logprob == pytest.approx(base[0].logprob, abs=1e-4)
    assert mixed[1].logprob != pytest.approx(base[1].logprob, abs=1e-3)
    assert len(texts) == 3


@pytest.mark.parametrize("is_checked", [True, False])
def test_later_portions_keep_their_owners(
    is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are tokenised in portions; an owner is found by the number of its request among all of them."""
    monkeypatch.setattr(scorer_module, "PORTION", 7)
    if not is_checked:  # the check at run time would notice it too
        monkeypatch.setattr(RequestCheck, "check_continuations", lambda *_, **__: None)
    loaded = tiny("llama", seed=5)
    router = _Doubling(loaded.model)
    words = " ".join(CORPUS[:2]).split()
    requests = [Continuation(f"Question: {word}?", " carbon dioxide") for word in words[:24]]
    owners = [i % 3 for i in range(len(requests))]
    scored = Scorer(loaded, router=router).loglikelihood(requests, owners=owners)
    for owner in range(3):
        alone = Scorer(loaded, router=router).loglikelihood(requests, owners=[owner] * 24)
        ours = [entry.logprob for entry in scored[owner::3]]
        assert ours == pytest.approx([entry.logprob for entry in alone[owner::3]], abs=1e-4)


def test_owners_that_are_counted_anew_are_noticed_at_run_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scorer_module, "PORTION", 7)
    make_sequences = Scorer._make_sequences

    def count_anew(self: Scorer, start: int, pairs: Any, owners: Any) -> Any:
        return make_sequences(self, start, pairs, [0] * start + list(owners) if start else owners)

    monkeypatch.setattr(Scorer, "_make_sequences", count_anew)
    loaded = tiny("llama", seed=5)
    requests = [Continuation(f"Question: {n}?", " carbon dioxide") for n in range(24)]
    scorer = Scorer(loaded, router=_Doubling(loaded.model))
    with pytest.raises(ModelError, match="harness's rule gives"):
        scorer.loglikelihood(requests, owners=[i % 3 for i in range(24)])


def test_the_model_returns_to_training_mode(llama: LoadedModel) -> None:
    llama.model.train()
    Scorer(llama).loglikelihood([Continuation("a", " b")])
    assert llama.model.training
    llama.model.eval()


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_a_context_that_has_no_tokens_is_an_empty_one(kind: str) -> None:
    loaded = tiny(kind, layers=1)
    invisible = "\u200b"
    backend = Tokenizer.from_str(loaded.tokenizer.backend_tokenizer.to_str())
    backend.normalizer = normalizers.Replace(invisible, "")
    special = dict(loaded.tokenizer.special_tokens_map)
    loaded = replace(loaded, tokenizer=PreTrainedTokenizerFast(tokenizer_object=backend, **special))
    pairs = [Continuation(context, " a better surgeon") for context in (invisible, "")]
    _same(Scorer(loaded), pairs)
    after_invisible, after_nothing = Scorer(loaded).loglikelihood(pairs)
    assert after_invisible == after_nothing


@pytest.mark.parametrize("reference", [True, False])
def test_token_ids_without_a_context_are_refused(llama: LoadedModel, reference: bool) -> None:
    scorer = Scorer(llama, reference=reference)
    with pytest.raises(InputError, match="request 1 has no context"):
        scorer.loglikelihood_ids([([5], [6, 7]), ([], [5, 6, 7])])


def test_notes_tell_how_scores_were_made(llama: LoadedModel) -> None:
    scorer = Scorer(llama)
    scorer.loglikelihood(
        [Continuation("Question: plants?", choice) for choice in (" yes", " no", " oxygen")]
    )
    notes = scorer.notes
    assert notes.tokens_processed < notes.tokens_requested
    assert notes.bos["required"] is True
    assert all(ids[0] == llama.bos.prefix_id for ids in notes.prompt_samples)


@given(
    sequences=st.lists(
        st.lists(st.integers(0, 3), min_size=2, max_size=9), min_size=1, max_size=25
    ),
    row_tokens=st.integers(4, 30),
    share=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_prefix_tree_is_its_sequences(
    sequences: list[list[int]], row_tokens: int, share: bool
) -> None:
    """What a node sees, read in order, is exactly the beginning of its sequence; positions are its depth."""
    scored = [
        ScoredSequence(i, ids, 1 + i % (len(ids) - 1), i % 2) for i, ids in enumerate(sequences)
    ]
    rows = pack_sequences(scored, row_tokens, share=share)
    result: set[int] = set()
    for row in rows:
        for sequence, nodes in row.reads:
            result.add(sequence.index)
            assert sequence.owner == row.owner
            assert len(nodes) == sequence.scored
            for offset, node in enumerate(nodes):
                seen = [j for j in range(node + 1) if node < row.subtree_ends[j]]
                assert [row.tokens[j] for j in seen] == sequence.ids[
                    : len(sequence.ids) - sequence.scored + offset
                ]
                assert [row.depths[j] for j in seen] == list(range(len(seen)))
        if not row.needs_mask:
            assert row.depths == list(range(len(row)))
    assert result == set(range(len(sequences)))
    packed = [id(row) for batch in group_rows(rows, 40, 10_000) for row in batch]
    assert sorted(packed) == sorted(id(row) for row in rows)


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix(one: list[int], other: list[int]) -> None:
    expected = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    assert count_common_prefix(one, other) == expected


def test_generation_stops_and_shrinks(llama: LoadedModel) -> None:
    free = Scorer(llama).generate([Generation("plants take", (), 12)])[0]
    stop = free[len(free) // 2]
    together = Scorer(llama).generate(
        [Generation("plants take", (stop,), 12), Generation("plants take", (), 12)]
    )
    assert together == [free.split(stop)[0], free]
    assert Scorer(llama).generate([Generation("plants", (), 0)]) == [""]


def test_bad_devices_and_dtypes_name_the_fix() -> None:
    from potentia.engine.models.loading import load, pick_device, pick_dtype

    with pytest.raises(InputError, match="no such device"):
        pick_device("gpu9x")
    with pytest.raises(InputError, match="no such dtype"):
        pick_dtype("float31", torch.device("cpu"))
    with pytest.raises(ModelError, match="cannot load"):
        load("/nowhere/at/all")


def test_saved_and_loaded_models_are_the_same(tmp_path: Any) -> None:
    from potentia.engine import load

    tiny_model = tiny("llama", seed=7)
    tiny_model.model.save_pretrained(tmp_path)
    tiny_model.tokenizer.save_pretrained(tmp_path)
    loaded = load(str(tmp_path), device="cpu")
    again = load(str(tmp_path), device="cpu")
    assert loaded.fingerprint == again.fingerprint
    assert loaded.max_length == tiny_model.max_length
    assert loaded.bos == tiny_model.bos
    requests = [Continuation("plants", " take"), Continuation("plants", " give")]
    assert Scorer(loaded).loglikelihood(requests) == Scorer(tiny_model).loglikelihood(requests)
    tiny("llama", seed=8).model.save_pretrained(tmp_path)
    assert load(str(tmp_path), device="cpu").fingerprint != loaded.fingerprint
    loaded.close()
    assert loaded.model is None
