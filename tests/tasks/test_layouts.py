"""Definitions with layouts of their own: the paper's benchmarks that are not beside the checkout, on made-up rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from potentia import tasks

ROWS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "hellaswag": (
        "Rowan--hellaswag/default",
        {
            "activity_label": "Cooking",
            "ctx_a": "A cook stirs.",
            "ctx_b": "he",
            "ctx": "A cook stirs. he",
            "endings": ["eats.", "sleeps [title] now.", "runs.", "sings."],
            "label": "1",
        },
        {"train": 30, "validation": 12},
    ),
    "mnli": (
        "nyu-mll--glue/mnli",
        {"premise": "It rains.", "hypothesis": "It is wet", "label": 0},
        {"train": 30, "validation_matched": 12, "validation_mismatched": 12},
    ),
    "qnli": (
        "nyu-mll--glue/qnli",
        {"question": "Why?", "sentence": "Because.", "label": 1},
        {"train": 30, "validation": 12},
    ),
    "qqp": (
        "nyu-mll--glue/qqp",
        {"question1": "Why?", "question2": "How?", "label": 0},
        {"train": 30, "validation": 12},
    ),
    "anli_r1": (
        "facebook--anli/default",
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": 2, "uid": "x", "reason": ""},
        {"train_r1": 30, "dev_r1": 11, "test_r1": 12},
    ),
    "medmcqa": (
        "openlifescienceai--medmcqa/default",
        {"question": "Which?", "opa": "a", "opb": "b", "opc": "c", "opd": "d", "cop": 3},
        {"train": 30, "validation": 11, "test": 12},
    ),
}
WANTED = {
    "hellaswag": ("acc_norm", "sleeps. now.", (24, 6, 12)),
    "mnli": ("acc", "True", (24, 6, 12)),
    "qnli": ("acc", "no", (24, 6, 12)),
    "qqp": ("acc", "no", (24, 6, 12)),
    "anli_r1": ("acc", "False", (30, 11, 12)),
    "medmcqa": ("acc_norm", "D", (24, 6, 11)),
}


def write(folder: Path, row: dict[str, Any], sizes: dict[str, int], **changes: Any) -> None:
    folder.mkdir(parents=True)
    for split, n in sizes.items():
        lines = [json.dumps({**row, **changes, "n": i}) for i in range(n)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize("name", [name for name in ROWS if name != "medmcqa"])
def test_the_other_benchmarks_of_the_paper(name: str, tmp_path: Path) -> None:
    dataset_folder, row, sizes = ROWS[name]
    write(tmp_path / dataset_folder, row, sizes)
    task = tasks.load(name, data_dir=tmp_path)
    metric, gold, used = WANTED[name]
    assert task.metric == metric
    prompt = task.prompts(task.documents("test")[:1])[0]
    assert prompt.gold == gold
    assert tuple(len(task.documents(s)) for s in ("train", "validation", "test")) == used


def test_a_split_named_twice_is_the_test_alone(tmp_path: Path) -> None:
    """The definition of medmcqa names its validation split as test too: none of it may serve for selection."""
    dataset_folder, row, sizes = ROWS["medmcqa"]
    write(tmp_path / dataset_folder, row, sizes)
    task = tasks.load("medmcqa", data_dir=tmp_path)
    metric, gold, used = WANTED["medmcqa"]
    assert (task.metric, task.split_plan.validation.origin_label) == (metric, "20% of train")
    assert task.prompts(task.documents("test")[:1])[0].gold == gold
    assert tuple(len(task.documents(s)) for s in ("train", "validation", "test")) == used


def test_a_test_split_without_labels_counts_as_absent(tmp_path: Path) -> None:
    dataset_folder, row, sizes = ROWS["anli_r1"]
    write(tmp_path / dataset_folder, row, sizes)
    (tmp_path / dataset_folder / "test_r1.jsonl").write_text(
        "\n".join(json.dumps({**row, "label": -1, "n": i}) for i in range(12))
    )
    task = tasks.load("anli_r1", data_dir=tmp_path)
    assert task.split_plan.test.origin_label == "validation"
    assert tuple(len(task.documents(s)) for s in ("train", "validation", "test")) == (24, 6, 11)


def test_likelihood_of_one_target(tmp_path: Path) -> None:
    """``output_type: loglikelihood`` (lambada): one continuation, right when it is the greedy one."""
    write(
        tmp_path / "EleutherAI--lambada_openai" / "default",
        {"text": "a sentence that ends in rain"},
        {"test": 12},
    )
    task = tasks.load("lambada_openai", data_dir=tmp_path)
    prompts = task.prompts(task.documents("test"))
    assert prompts[0].gold == " rain"
    assert prompts[0].requests[0].continuation == " rain"  # type: ignore[union-attr]
    scores = task.score(task.grade(prompts, [[(-2.0, i % 4 == 0)] for i in range(12)]))
    assert scores["acc"].value == 0.25
    assert scores["perplexity"].value == pytest.approx(2.718281828**2)


def test_a_corpus_of_the_harness(tmp_path: Path) -> None:
    write(
        tmp_path / "EleutherAI--wikitext_document_level" / "wikitext-2-raw-v1",
        {"page": " = Title = \n Some text . \n"},
        {"train": 20, "validation": 10, "test": 10},
    )
    task = tasks.load("wikitext", data_dir=tmp_path)
    assert (task.kind, task.metric) == ("corpus", "bits_per_byte")
    prompts = task.prompts(task.documents("test"))
    assert task.score(task.grade(prompts, [[-10.0]] * 10))["bits_per_byte"].value > 0
