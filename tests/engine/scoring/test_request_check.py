"""Real requests are computed again from their texts, by the harness's rule and plain transformers calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from potentia.engine.models.tokenization import Encoder
from potentia.engine.proof.request_check import (
    HarnessRule,
    RequestCheck,
    RequestTraits,
    choose_prompts,
)
from potentia.engine.scoring import Network, Scorer
from potentia.engine.scoring import scorer as scorer_module
from potentia.errors import ModelError
from potentia.values.requests import Continuation, Document, Generation
from scoring_models import ARCHITECTURES, tiny

REQUESTS = [
    Continuation("Question: Which gas do plants take in? Answer:", f" {answer}")
    for answer in ("carbon dioxide", "oxygen", "A", "naïve 🙂", "yes, it is long")
] + [Continuation("", "The river is long."), Continuation("Sarah was  ", "better")]
TEXTS = [Document("The river is long."), Document("Sarah was a surgeon. " * 2)]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_right_numbers_pass_and_are_recorded(kind: str) -> None:
    loaded = tiny(kind, positions=128)
    scorer = Scorer(loaded)
    scorer.loglikelihood(REQUESTS)
    scorer.rolling(TEXTS)
    scorer.generate([Generation("The river", max_tokens=2)])
    recorded = loaded.record.requests
    assert recorded["continuations"].compared == 5
    assert recorded["documents"].compared == 2
    assert recorded["prompts"].compared == 1
    assert recorded["continuations"].off_by < 1e-3


def test_the_rule_is_the_harness_own() -> None:
    """The rule gives the tokens of lm-eval's ``HFLM`` itself."""
    from lm_eval.models.huggingface import HFLM

    for kind in ("llama", "gpt2", "qwen2"):
        loaded = tiny(kind, positions=128)
        harness: Any = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=1)
        rule = HarnessRule(loaded)
        for request in REQUESTS:
            encoded = rule.encode_continuation(request.context, request.continuation)
            assert encoded is not None
            if request.context:
                context, continuation = harness._encode_pair(request.context, request.continuation)
            else:
                continuation = harness.tok_encode(request.continuation, add_special_tokens=False)
                context = [harness.prefix_token_id]
            assert encoded.ids == context + continuation
            assert encoded.scored == len(continuation)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_boundary_in_the_wrong_place_is_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Encoder.continuations

    def wrong(self: Encoder, pairs: Any) -> Any:
        encoded_pairs = right(self, pairs)
        return [(context[:-1], [*context[-1:], *rest]) for context, rest in encoded_pairs]

    monkeypatch.setattr(Encoder, "continuations", wrong)
    with pytest.raises(ModelError, match="harness's rule gives"):
        Scorer(tiny(kind, positions=128)).loglikelihood(REQUESTS[:5])


def test_a_lost_start_token_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Encoder._encode
    loaded = tiny("llama", positions=128)

    def wrong(self: Encoder, texts: Any, *, special: bool) -> Any:
        return right(self, texts, special=False)

    monkeypatch.setattr(Encoder, "_encode", wrong)
    with pytest.raises(ModelError, match="harness's rule gives"):
        Scorer(loaded).loglikelihood(REQUESTS)
    with pytest.raises(ModelError, match="harness's rule gives"):
        Scorer(loaded).generate([Generation("The river is", max_tokens=2)])


def test_numbers_of_another_request_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Network.score_rows

    def wrong(self: Network, rows: Any) -> Any:
        results = right(self, rows)
        results.logprobs = results.logprobs + torch.where(results.logprobs < -2, 0.05, 0.0)
        return results

    scorer = Scorer(tiny("llama", positions=128))
    scorer.loglikelihood(REQUESTS[:1])
    scorer.loaded.checks.requests.clear()
    monkeypatch.setattr(Network, "score_rows", wrong)
    with pytest.raises(ModelError, match="log-likelihood"):
        scorer.loglikelihood(REQUESTS)
    with pytest.raises(ModelError, match="log-likelihood"):
        scorer.rolling(TEXTS)


def traits(
    lengths: list[int],
    *,
    tokens: list[int] | None = None,
    contexts: list[bool] | None = None,
    owners: list[int] | None = None,
    portion: int = 1000,
) -> dict[str, list[int]]:
    count = len(lengths)
    return RequestTraits(
        lengths=lengths,
        tokens=tokens or [1] * count,
        has_context=contexts or [True] * count,
        owners=owners,
        portion=portion,
        max_length=10,
    ).choose_requests()


def test_requests_far_from_each_other_are_chosen() -> None:
    assert traits([]) == {}
    assert traits([3]) == {"all": [0]}
    assert len(traits(list(range(100)))["all"]) == 5
    assert 50 in traits([1] * 100, owners=[0] * 50 + [7] + [2] * 49)["all"]
    assert choose_prompts([]) == []
    assert set(choose_prompts([5, 9, 1, 4])) == {0, 1, 2, 3}


def test_every_trait_has_a_request() -> None:
    assert traits([5, 3, 9], contexts=[True, False, True])["empty context"] == [1]
    assert traits([5, 3, 9], tokens=[1, 12, 30])["windows"] == [2]
    assert "windows" not in traits([5, 3, 9], tokens=[1, 10, 300])  # 30 windows take long
    assert traits([5, 30, 40, 50], tokens=[1, 1, 1, 12])["long context"] == [2]
    assert traits([1] * 7, portion=4)["portions"] == [6]
    assert traits([1] * 7, owners=[0, 1, 2, 3, 0, 5, 2], portion=4)["portions"] == [5]
    assert traits([1] * 4, owners=[-1, 0, -1, 0])["adapters"] == [2, 3]
    assert "adapters" not in traits([1] * 4, owners=[2, 2, 2, 2])


LONG = [
    Continuation("Question: which gas?", " carbon dioxide" * 30),
    Continuation("", "The river is long. " * 12),
    Continuation("too long " * 40, " carbon dioxide"),
]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_texts_of_several_windows_are_computed_again(kind: str) -> None:
    loaded = tiny(kind)
    scorer = Scorer(loaded)
    scorer.loglikelihood([*REQUESTS, *LONG])
    scorer.rolling([*TEXTS, Document("Sarah was a surgeon. " * 9)])
    recorded = loaded.record.requests
    for name in ("continuations, windows", "continuations, empty context", "documents, windows"):
        assert recorded[name].compared == 1
        assert recorded[name].off_by < 1e-3


def test_windows_that_begin_with_another_token_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = scorer_module.make_rolling_windows

    def wrong(ids: Any, bos: Any, most: int, *, first_context: Any = None) -> Any:
        return right(ids, bos, most, first_context=[5] if first_context else [6])

    monkeypatch.setattr(scorer_module, "make_rolling_windows", wrong)
    with pytest.raises(ModelError, match="log-likelihood"):
        Scorer(tiny("gpt2")).loglikelihood([*REQUESTS, *LONG[:1]])
    with pytest.raises(ModelError, match="log-likelihood"):
        Scorer(tiny("gpt2")).rolling([*TEXTS, Document("Sarah was a surgeon. " * 9)])


def test_a_context_that_is_cut_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Encoder.fit

    def wrong(self: Encoder, context: Any, continuation: Any) -> Any:
        ids, was_cut = right(self, context, continuation)
        return (ids[1:] if was_cut else ids), was_cut

    monkeypatch.setattr(Encoder, "fit", wrong)
    with pytest.raises(ModelError, match="log-likelihood"):
        Scorer(tiny("gpt2")).loglikelihood([*REQUESTS, *LONG])


def test_a_wrong_count_of_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = scorer_module.RequestSums.totals

    def wrong(self: Any) -> Any:
        return [(logprob, greedy, tokens + 1) for logprob, greedy, tokens in right(self)]

    monkeypatch.setattr(scorer_module.RequestSums, "totals", wrong)
    with pytest.raises(ModelError, match="tokens of a request were scored"):
        Scorer(tiny("gpt2", positions=128)).loglikelihood(REQUESTS)


def test_a_trait_is_compared_where_it_first_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny("gpt2")
    Scorer(loaded).loglikelihood(REQUESTS[:5])
    compared: list[int] = []
    right = HarnessRule.encode_continuation
    monkeypatch.setattr(
        HarnessRule,
        "encode_continuation",
        lambda self, *texts: compared.append(1) or right(self, *texts),
    )
    Scorer(loaded).loglikelihood(REQUESTS[:5])
    assert not compared
    Scorer(loaded).loglikelihood(REQUESTS[:6])  # an empty context is new
    assert len(compared) == 1
    Scorer(loaded).loglikelihood(REQUESTS[:6])
    assert len(compared) == 1


def test_without_memory_for_a_request_alone_the_scores_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    monkeypatch.setattr(RequestCheck, "_window_logprob", refuse)
    loaded = tiny("gpt2", positions=128)
    assert len(Scorer(loaded).loglikelihood(REQUESTS)) == len(REQUESTS)
    assert not loaded.record.requests
