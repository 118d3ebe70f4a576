"""Five real requests are computed again from their texts, by the harness's rule and plain transformers calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from potentia.engine.models.tokenization import Encoder
from potentia.engine.proof.request_check import HarnessRule, choose_requests
from potentia.engine.scoring import Network, Scorer
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
    recorded = loaded.record["requests"]
    assert recorded["continuations"]["compared"] == 5
    assert recorded["documents"]["compared"] == 2
    assert recorded["prompts"]["compared"] == 1
    assert recorded["continuations"]["off_by"] < 1e-3


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
        made = right(self, pairs)
        return [(context[:-1], [*context[-1:], *rest]) for context, rest in made]

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
        made = right(self, rows)
        made.logprobs = made.logprobs + torch.where(made.logprobs < -2, 0.05, 0.0)
        return made

    scorer = Scorer(tiny("llama", positions=128))
    scorer.loglikelihood(REQUESTS[:1])
    scorer.loaded.checks.requests.clear()
    monkeypatch.setattr(Network, "score_rows", wrong)
    with pytest.raises(ModelError, match="log-likelihood"):
        scorer.loglikelihood(REQUESTS)
    with pytest.raises(ModelError, match="log-likelihood"):
        scorer.rolling(TEXTS)


def test_requests_far_from_each_other_are_chosen() -> None:
    assert choose_requests([], None) == []
    assert choose_requests([3], None) == [0]
    assert len(choose_requests(list(range(100)), None)) == 5
    assert 50 in choose_requests([1] * 100, [0] * 50 + [7] + [2] * 49)
