"""What other tests of training take for the truth: tokens, the order of examples, and how an adapter begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import PretrainedConfig, PreTrainedTokenizerFast

from lane_models import tiny
from potentia.engine import BosPolicy, Encoder
from potentia.engine.lane_spec import TokenisedExamples, data_order
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.training import encode_examples
from potentia.errors import TuningError
from potentia.values.recipe import LoraConfig
from potentia.values.requests import Example

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


BOS, END, A, B, AB, SPACE, SPACE_A, SPACE_B = range(8)


def toy_encoder(*, with_bos: bool) -> Encoder:
    """An encoder of eight tokens: "ab", " a" and " b" are one token each, wherever they stand."""
    vocabulary = {"<bos>": BOS, "<end>": END, "a": A, "b": B, "ab": AB}
    vocabulary |= {" ": SPACE, " a": SPACE_A, " b": SPACE_B}
    merges = [("a", "b"), (" ", "a"), (" ", "b")]
    raw = Tokenizer(models.BPE(vocabulary, merges))
    if with_bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", BOS)]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<bos>", eos_token="<end>")
    policy = BosPolicy.of(tokenizer, PretrainedConfig())
    return Encoder(tokenizer, policy, 64)


# context, continuation, whether an end is asked for; all ids without BOS, and how many of them are the prompt's
ENCODED = [
    ("a", " b", False, [A, SPACE_B], 1),
    ("a", " b", True, [A, SPACE_B, END], 1),
    ("a ", "b", True, [A, SPACE_B, END], 1),  # a space at the end of a prompt is the answer's
    ("a ", "b a", True, [A, SPACE_B, SPACE_A, END], 1),
    # both together are " ", "ab": lm-eval's answer is what follows as many tokens as the prompt has alone
    ("b a", "b", True, [B, SPACE_A, AB, END], 2),
    ("ba", "b a", False, [B, A, SPACE_A], 2),
    ("a" * 20, " a" * 15, True, [*[A] * 20, *[SPACE_A] * 15, END], 20),
]


@pytest.mark.parametrize("with_bos", [False, True])
@pytest.mark.parametrize(("context", "continuation", "end", "ids", "prompt"), ENCODED)
def test_examples_become_these_tokens(
    context: str, continuation: str, end: bool, ids: list[int], prompt: int, with_bos: bool
) -> None:
    """Literal ids: training reads what scoring reads, closed by the end token where an example asks for it."""
    example = Example(context, continuation, end=end)
    encoded = encode_examples(toy_encoder(with_bos=with_bos), [example], end_id=END)
    start = [BOS] if with_bos else []
    assert encoded.token_ids.tolist() == [*start, *ids]
    assert encoded.prompt_lengths.tolist() == [prompt + len(start)]
    assert encoded.start_id == (BOS if with_bos else None)


@pytest.mark.parametrize("with_bos", [False, True])
def test_an_example_without_a_prompt_follows_the_start_token(with_bos: bool) -> None:
    example = Example("", "ab a", end=True)
    encoded = encode_examples(toy_encoder(with_bos=with_bos), [example], end_id=END)
    assert encoded.token_ids.tolist() == [BOS, AB, SPACE_A, END]
    assert encoded.prompt_lengths.tolist() == [1]


def lose_end(ids: list[int], prompt: int) -> tuple[list[int], int]:
    return (ids[:-1] if ids[-1] == END else ids), prompt


def replace_last_token(ids: list[int], prompt: int) -> tuple[list[int], int]:
    return ([*ids[:-2], END] if ids[-1] == END else ids), prompt


def lose_start(ids: list[int], prompt: int) -> tuple[list[int], int]:
    return ids[1:], max(0, prompt - 1)


def move_boundary(ids: list[int], prompt: int) -> tuple[list[int], int]:
    return ids, prompt - 1


@pytest.mark.parametrize("fault", [lose_end, replace_last_token, lose_start, move_boundary])
def test_examples_with_other_tokens_are_not_trained_on(
    fault: Callable[[list[int], int], tuple[list[int], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tests find here, a run finds too: a few examples of every task are tokenised again."""
    right = TokenisedExamples.from_lists
    examples = [Example(context, text, end=end) for context, text, end, _, _ in ENCODED]

    def wrong(ids: Any, prompts: Any, start_id: Any) -> TokenisedExamples:
        pairs = [fault(*pair) for pair in zip(ids, prompts, strict=True)]
        return right([ids for ids, _ in pairs], [prompt for _, prompt in pairs], start_id)

    monkeypatch.setattr(TokenisedExamples, "from_lists", wrong)
    with pytest.raises(TuningError, match="harness's rule gives"):
        encode_examples(toy_encoder(with_bos=True), examples, end_id=END)
