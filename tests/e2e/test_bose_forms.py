"""BOSE's forms through the engine: a base model that has only seen problems one after another."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

SUMS = [(2, 3), (10, 4), (7, 8), (1, 1), (20, 22), (5, 6), (30, 3), (9, 9)]
QUESTION = "Ann has {} pens and buys {} more. How many has she?"


def row(a: int, b: int) -> dict[str, str]:
    return {"question": QUESTION.format(a, b), "answer": f"{a}+{b}={a + b}.\n#### {a + b}"}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    from datasets import Dataset

    folder = tmp_path_factory.mktemp("benchmarks") / "openai--gsm8k" / "main"
    folder.mkdir(parents=True)
    for split, pairs in (("train", SUMS), ("test", SUMS[:4])):
        Dataset.from_list([row(*pair) for pair in pairs]).to_parquet(folder / f"{split}.parquet")
    return folder.parents[1]


@pytest.fixture(scope="module")
def base_model():
    """A tiny model pretrained on an endless stream of worked problems, with no end-of-text between them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from potentia.engine import LoadedModel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    order = random.Random(0)
    texts = [
        f"Problem: {QUESTION.format(a, b)}\nSolution: let's think step by step. {a}+{b}={a + b}.\n"
        f"The final answer is \\boxed{{{a + b}}}\n\n"
        for a, b in SUMS
    ]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    words = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", bos_token="<eos>")
    stream = torch.tensor(words("".join(order.choice(texts) for _ in range(600)))["input_ids"])
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(160):
        starts = [order.randrange(len(stream) - 129) for _ in range(8)]
        batch = torch.stack([stream[s : s + 128] for s in starts])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return LoadedModel.of(model.eval(), words)


def generated(base_model, task, stop: tuple[str, ...] | None = None) -> list[str]:
    from dataclasses import replace

    from potentia.engine.scoring import Scorer

    requests = [prompt.requests[0] for prompt in task.prompts(task.documents("test"))]
    if stop is not None:
        requests = [replace(request, stop=stop) for request in requests]
    return list(
        Scorer(base_model).generate([replace(request, max_tokens=80) for request in requests])
    )


def test_the_stop_text_ends_an_answer_where_the_next_problem_would_begin(base_model, data_dir):
    from potentia.tasks import load

    task = load("gsm8k:iclip:1", data_dir=data_dir)
    without = generated(base_model, task, stop=())
    assert all("Problem:" in text for text in without)  # a base model goes on with another problem
    stopped = generated(base_model, task)
    assert all("Problem:" not in text for text in stopped)
    assert stopped == [text.split("Problem:")[0] for text in without]


def test_forms_are_scored_end_to_end_with_both_judges(base_model, data_dir):
    from potentia.engine.scoring import Scorer
    from potentia.run.ask import Ask, evaluate
    from potentia.tasks import load

    names = ("gsm8k:light", "gsm8k:iclip:1", "gsm8k:instruct")
    tasks = [load(name, data_dir=data_dir) for name in names]
    result = evaluate(Scorer(base_model), [Ask(task, "test") for task in tasks])
    scores = {name: evaluation.scores for name, evaluation in zip(names, result, strict=True)}
    for name in names:
        assert {"exact_match|flexible-extract", "math_verify|generated"} <= set(scores[name])
    # What it was trained on, it answers; the instruction it has never seen helps it less.
    assert scores["gsm8k:light"]["math_verify|generated"].value >= 0.75
    assert (
        scores["gsm8k:instruct"]["math_verify|generated"].value
        <= scores["gsm8k:light"]["math_verify|generated"].value
    )
