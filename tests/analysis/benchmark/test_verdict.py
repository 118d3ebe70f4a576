"""What a benchmark is worth: noise is dropped, a real one is kept, and what is wrong is named."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.benchmark import find_benchmark, judge_benchmark
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.values.scores import ScoreMatrix

MODELS = [f"m{i}" for i in range(10)]


def answers(rng: np.random.Generator, shares: np.ndarray, n: int) -> np.ndarray:
    """Right and wrong answers to items of unequal difficulty, by models of these mean shares."""
    hard = rng.normal(size=n)
    logits = np.log(shares / (1 - shares))[:, None] + hard[None, :]
    return (rng.random((len(shares), n)) < 1 / (1 + np.exp(-logits))).astype(float)


def world(rng: np.random.Generator, mine: np.ndarray) -> tuple[ScoreMatrix, dict]:
    """Six other tasks that rank models alike, and a task with these answers (models, items)."""
    skill = np.linspace(0.35, 0.75, len(mine))
    columns = [mine.mean(axis=1), *(answers(rng, skill, 400).mean(axis=1) for _ in range(6))]
    values = np.stack(columns, axis=1)
    n = np.full(values.shape, 400.0)
    n[:, 0] = mine.shape[1]
    errors = np.sqrt(values * (1 - values) / n)
    tasks = ["mine", *(f"t{k}" for k in range(6))]
    matrix = ScoreMatrix.build(MODELS, tasks, values, stderr=errors, n=n)
    return matrix, {m: dict(enumerate(row.tolist())) for m, row in zip(MODELS, mine, strict=True)}


def noise(rng: np.random.Generator) -> np.ndarray:
    return (rng.random((len(MODELS), 200)) < 0.25).astype(float)


def test_noise_is_dropped_with_the_reason() -> None:
    rng = np.random.default_rng(0)
    matrix, items = world(rng, noise(rng))
    found = judge_benchmark(matrix, "mine", items=items, chance=0.25)
    assert found.verdict == "drop"
    assert "differ no more than chance" in found.reasons[0]
    assert "agrees with no other" in found.reasons[0]
    assert abs(found.reliability) < 0.6
    assert found.at_floor > 0.5
    assert found.headline().startswith("Drop mine: its scores")
    assert not [s for s in found.suspects if s.reason == "negative discrimination"]


@pytest.mark.parametrize("with_items", [True, False])
def test_noise_is_rarely_taken_for_more(with_items: bool) -> None:
    verdicts = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        matrix, items = world(rng, noise(rng))
        verdicts.append(
            judge_benchmark(matrix, "mine", items=items if with_items else None, seed=seed).verdict
        )
    assert verdicts.count("drop") >= 55
    assert "keep" not in verdicts


def test_a_real_benchmark_is_kept() -> None:
    rng = np.random.default_rng(1)
    matrix, items = world(rng, answers(rng, np.linspace(0.3, 0.8, 10), 500))
    found = judge_benchmark(matrix, "mine", items=items, chance=0.25)
    assert (found.verdict, found.at_floor) == ("keep", 0.0)
    assert found.reliability > 0.8
    assert found.agreement.low > 0.3
    assert found.resolved > 0.5
    assert 500 < found.needed < 50_000


def test_what_is_wrong_is_named() -> None:
    rng = np.random.default_rng(2)
    matrix, items = world(rng, answers(rng, np.linspace(0.48, 0.56, 10), 40))
    small = judge_benchmark(matrix, "mine", items=items)
    assert small.verdict in ("fix", "drop")
    against, turned = world(rng, answers(rng, np.linspace(0.8, 0.3, 10), 500))
    assert judge_benchmark(against, "mine", items=turned).verdict == "drop"
    ceiling, solved = world(rng, answers(rng, np.linspace(0.99, 0.999, 10), 500))
    assert "nothing left to tell apart" in " ".join(
        judge_benchmark(ceiling, "mine", items=solved).reasons
    )
    mislabelled = answers(rng, np.linspace(0.2, 0.9, 10), 300)
    mislabelled[:, :20] = np.arange(10)[:, None] < 5
    matrix, items = world(rng, mislabelled)
    found = judge_benchmark(matrix, "mine", items=items)
    assert found.verdict == "fix"
    assert "answered better by worse models" in " ".join(found.reasons)
    assert {s.document for s in found.suspects if s.reason.startswith("neg")} <= set(range(20))
    fine, _ = world(rng, answers(rng, np.linspace(0.3, 0.8, 10), 500))
    shared = judge_benchmark(fine, "mine", in_train=7)
    assert "7 test documents are also in the training split" in " ".join(shared.reasons)


def test_the_level_of_a_guess_follows_the_metric() -> None:
    """A guess has an MCC of 0 on CoLA, not the accuracy of a coin."""
    rng = np.random.default_rng(4)
    matrix, _ = world(rng, answers(rng, np.linspace(0.1, 0.4, 10), 500))
    tasks = ["cola", *matrix.tasks[1:]]
    for metric, guess in (("mcc", 0.0), ("acc", 0.5), ("", 0.0)):
        scores = ScoreMatrix.build(
            MODELS, tasks, matrix.values, stderr=matrix.stderr, metrics=[metric] * len(tasks)
        )
        found = find_benchmark(Evidence.of(scores), "cola")
        assert (found.chance, found.at_floor == 1.0) == (guess, guess == 0.5)
        assert ("level of a guess" in " ".join(found.reasons)) == (guess == 0.5)
        assert ("documents it has", None, None, None) in found.tables()[1].rows


def test_direct_beside_tuned_and_what_cannot_be_judged() -> None:
    rng = np.random.default_rng(3)
    matrix, _ = world(rng, answers(rng, np.linspace(0.3, 0.8, 10), 500))
    low = ScoreMatrix.build(
        MODELS, matrix.tasks, matrix.values - 0.1, stderr=matrix.stderr, n=matrix.n
    )
    tuned = ScoreMatrix.build(
        MODELS,
        matrix.tasks,
        matrix.values,
        stderr=matrix.stderr,
        n=matrix.n,
        protocol="train_before_test",
    )
    found = find_benchmark(Evidence.of({"direct": low, "train_before_test": tuned}), "mine")
    assert found.gain is not None
    assert found.gain.value == pytest.approx(0.1)
    assert found.direct_tuned == pytest.approx(1.0)
    assert found.protocol == "train_before_test"
    with pytest.raises(InputError, match="no scores of other"):
        find_benchmark(Evidence.of(matrix), "other")
    with pytest.raises(InputError, match="scores of 3 models"):
        judge_benchmark(matrix.select(models=MODELS[:3]), "mine")
