"""Bits per byte of the right answer: equal to raw logits, the same from old stores, usable as a metric everywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from potentia.evidence import read
from potentia.run import run_study
from potentia.store import Store, schema
from potentia.study import Study, make_study
from potentia.values.answer_bits import (
    ANSWER_BITS,
    ANSWER_MARGIN,
    compute_answer_bits,
    read_answer_bits,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("answers")
    for seed, name in enumerate(("one", "two", "three")):
        tiny.save_model(folder / name, seed=seed)
    tiny.save_questions(folder / "colours.jsonl", n=80)
    written = [
        {
            "prompt": f"question : what is the {animal} ? answer :",
            "completion": f"the {colour} {animal}",
        }
        for animal in ("cat", "dog", "bird", "tree", "house")
        for colour in ("red", "blue", "green", "old", "new")
    ]
    (folder / "written.jsonl").write_text("\n".join(map(json.dumps, written)))
    study = make_study(
        {
            "name": "answers",
            "models": [
                {"name": name, "path": str(folder / name)} for name in ("one", "two", "three")
            ],
            "tasks": [
                {"name": "colours", "file": str(folder / "colours.jsonl")},
                {"name": "written", "file": str(folder / "written.jsonl"), "answer_tokens": 4},
            ],
            "tuning": {"learning_rates": [1e-2], "epochs": 2, "dropout": 0.0},
            "selection": "tuned",
            "device": "cpu",
            "store": str(folder / "potentia.db"),
        }
    )
    assert run_study(study).exit_code == 0
    return study


def raw_logprob(folder: Path, context: str, continuation: str) -> float:
    """The log-likelihood of a continuation, from nothing but the logits of transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    context_ids = tokenizer(context, add_special_tokens=False)["input_ids"]
    ids = tokenizer(context + continuation, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    places = range(len(context_ids), len(ids))
    return float(sum(logprobs[place - 1, ids[place]] for place in places))


def test_bits_per_byte_are_those_of_raw_logits(finished: Study) -> None:
    folder = Path(finished.models[0].source)
    with Store.open(finished.store) as store:
        cell = store.cells.read(protocol="direct", task="colours", model="one")[0]
        items = store.cells.read_items(cell.key)
        expected, margins = [], []
        for item in items:
            bits = {}
            for choice in item.detail["choices"]:
                logprob = raw_logprob(folder, item.detail["prompt"], f" {choice}")
                bits[choice] = -logprob / math.log(2) / len(choice.encode())
            expected.append(bits.pop(item.gold))
            margins.append(min(bits.values()) - expected[-1])
        stored = [item.detail["metrics"][ANSWER_BITS] for item in items]
        assert stored == pytest.approx(expected, abs=1e-4)
        assert cell.scores[ANSWER_BITS].value == pytest.approx(np.mean(expected), abs=1e-4)
        assert cell.scores[ANSWER_MARGIN].value == pytest.approx(np.mean(margins), abs=1e-4)
        assert cell.scores[ANSWER_BITS].stderr == pytest.approx(
            np.std(expected, ddof=1) / math.sqrt(len(expected)), rel=1e-4
        )
        assert not cell.scores[ANSWER_BITS].higher_is_better
        assert cell.scores[ANSWER_MARGIN].higher_is_better


def test_written_answers_have_bits_too(finished: Study) -> None:
    folder = Path(finished.models[1].source)
    with Store.open(finished.store) as store:
        cell = store.cells.read(protocol="direct", task="written", model="two")[0]
        items = store.cells.read_items(cell.key)
        expected = []
        for item in items:
            logprob = raw_logprob(folder, item.detail["prompt"], f" {item.gold}")
            expected.append(-logprob / math.log(2) / len(item.gold.encode()))
        assert [item.detail["metrics"][ANSWER_BITS] for item in items] == pytest.approx(
            expected, abs=1e-4
        )
        assert ANSWER_MARGIN not in cell.scores
        tuned = store.cells.read(protocol="train_before_test", task="written", model="two")[0]
        assert tuned.scores[ANSWER_BITS].value < cell.scores[ANSWER_BITS].value


def test_an_old_store_is_read_again_from_its_log_likelihoods(finished: Study) -> None:
    """Earlier versions stored no such score, but the log-likelihoods of the choices."""
    new = read(finished.store, metric=ANSWER_BITS, tasks=["colours"])
    outcomes = new.outcomes["direct"]["colours"]
    with Store.open(finished.store) as store:
        folder = store.database.items_folder
        for path in folder.rglob("*.parquet"):
            strip_metrics(path)
        with store.database.engine.begin() as connection:
            connection.execute(schema.scores.delete().where(schema.scores.c.name == ANSWER_BITS))
    old = read(finished.store, metric=ANSWER_BITS)
    assert old.scores["direct"].tasks == ("colours",), "written answers have no likelihoods there"
    for protocol, matrix in old.scores.items():
        np.testing.assert_allclose(matrix.values, new.scores[protocol].values, atol=1e-9)
        np.testing.assert_allclose(matrix.stderr, new.scores[protocol].stderr, atol=1e-9)
        assert not matrix.metrics[0].higher_is_better
        assert matrix.metrics[0].kind == "task"
    for model, values in outcomes.items():
        assert old.outcomes["direct"]["colours"][model] == pytest.approx(values)


def strip_metrics(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None)
    details = [json.loads(text) for text in table["detail"].to_pylist()]
    for detail in details:
        for name in (ANSWER_BITS, ANSWER_MARGIN):
            detail["metrics"].pop(name, None)
    column = pa.array([json.dumps(detail) for detail in details], pa.string())
    pq.write_table(table.set_column(table.schema.get_field_index("detail"), "detail", column), path)


def test_by_hand() -> None:
    bits = compute_answer_bits(["ab", "abcd"], [-2 * math.log(2), -8 * math.log(2)], [0])
    assert bits is not None
    assert (bits.bits_per_byte, bits.margin) == (pytest.approx(1.0), pytest.approx(1.0))
    accent = compute_answer_bits(["é"], [-2 * math.log(2)], [0])
    assert accent is not None
    assert accent.bits_per_byte == pytest.approx(1.0), "bytes, not letters"
    assert accent.margin is None
    assert compute_answer_bits(["a", "b"], [-math.inf, -1.0], [0]) is None
    assert compute_answer_bits(["a", "b"], [-2.0, -1.0], []) is None


def test_choices_that_are_contexts_are_not_taken_for_answers() -> None:
    contexts = ["The cup held more than the box because the cup", "The cup … because the box"]
    detail = {"logprobs": [-3.0, -4.0], "choices": contexts, "prompt": "\n".join(contexts)}
    assert read_answer_bits(contexts[0], detail) is None
    listed = {"logprobs": [-3.0, -4.0], "choices": ["A", "B"], "prompt": "Q\nA. x\nB. y\nAnswer:"}
    assert read_answer_bits("B", listed) is not None
