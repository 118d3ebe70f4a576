"""Overlap: planted twins are found, shared wording of the prompt is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from potentia import tasks


def words(rng: np.random.Generator, n: int) -> str:
    return " ".join(f"w{int(i)}" for i in rng.integers(0, 5_000, size=n))


def test_planted_twins_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    train = [{"question": words(rng, 30), "choices": ["a", "b"], "answer": 0} for _ in range(200)]
    test = [{"question": words(rng, 30), "choices": ["a", "b"], "answer": 0} for _ in range(100)]
    for i in range(7):  # the same question, with other case and punctuation
        test[i]["question"] = train[i]["question"].upper().replace(" ", ", ", 3) + "?"
    run = train[50]["question"].split()
    test[20]["question"] = " ".join(["new", *run[5:18], "end"])  # thirteen words
    test[21]["question"] = " ".join(["new", *run[5:17], "end"])  # twelve words
    for split, rows in (("train", train), ("validation", test[:1]), ("test", test)):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = tasks.load(str(tmp_path), drop_overlap=False)
    overlap = tasks.measure_overlap(task)
    assert (overlap.train, overlap.test) == (200, 100)
    assert (overlap.train_exact, overlap.test_exact) == (7, 7)
    assert overlap.test_ngram == 8
    assert overlap.train_ids == {*range(7), 50}


def test_a_question_that_all_share_is_no_leak(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    order = "Which of the two claims below is true of the person that it names, by all you know?"

    def claims(count: int) -> list[dict]:
        return [
            {"question": order, "choices": [words(rng, 3), words(rng, 3)], "answer": 0}
            for _ in range(count)
        ]

    train, test = claims(60), claims(30)
    test[0]["choices"] = train[0]["choices"][::-1]  # what is shown is the same in another order
    for split, rows in (("train", train), ("validation", test[:1]), ("test", test)):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    overlap = tasks.measure_overlap(tasks.load(str(tmp_path), drop_overlap=False))
    assert (overlap.train_exact, overlap.test_exact) == (1, 1)
    assert (overlap.train_ngram, overlap.test_ngram) == (0, 0)


def test_short_documents_have_no_runs(tmp_path: Path) -> None:
    rows = [
        {"question": f"what is {i} plus one?", "choices": ["a", "b"], "answer": 0}
        for i in range(50)
    ]
    file = tmp_path / "short.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    overlap = tasks.measure_overlap(tasks.load(str(file)))
    assert overlap.train_exact == overlap.train_ngram == overlap.test_ngram == 0


def test_published_overlap(shared_data: Path) -> None:
    """Seven questions of arc_easy occur in both splits; one of them is asked twice there, with other choices."""
    task = tasks.load("arc_easy", data_dir=shared_data / "benchmarks", carve=0.001)
    assert tasks.measure_overlap(task).train_exact == 6
