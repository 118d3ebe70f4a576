"""pass@k: the published estimator on the samples of a real run, with seeds and temperature in the key."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import tiny
from potentia.analysis.answers import find_pass_at_k
from potentia.errors import InputError
from potentia.evidence import read
from potentia.run import load_tasks, plan_study, run_study
from potentia.store import Store
from potentia.study import Study, make_study
from potentia.values.metric import Metric
from potentia.values.sampling import (
    estimate_generation_error,
    estimate_pass_at_k,
    estimate_sampling_variance,
    list_default_ks,
)


def lighteval_pass_at_k(scores: list[int], k: int) -> float:
    """lighteval's ``PassAtK.pass_at_k``, with n the number of samples."""
    n = len(scores)
    c = scores.count(1)
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


@pytest.mark.parametrize("n", [1, 2, 5, 16, 100])
def test_the_estimate_is_the_published_one(n: int) -> None:
    for c in range(n + 1):
        for k in {1, 2, n // 2, n} - {0}:
            if k > n:
                continue
            exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
            assert estimate_pass_at_k(n, c, k) == pytest.approx(float(exact), abs=1e-12)
            scores = [1] * c + [0] * (n - c)
            assert estimate_pass_at_k(n, c, k) == pytest.approx(
                lighteval_pass_at_k(scores, k), abs=1e-12
            )
    with pytest.raises(ValueError, match="samples"):
        estimate_pass_at_k(4, 2, 5)


def test_the_noise_of_samples_is_what_drawing_again_gives() -> None:
    """Problems of known difficulty, sampled many times: the jackknife's error is the spread over the repetitions."""
    stream = np.random.default_rng(0)
    difficulty = stream.beta(0.7, 1.5, size=60)
    for k in (1, 2, 4):
        means, errors = [], []
        for _ in range(400):
            right = stream.binomial(16, difficulty)
            means.append(np.mean([estimate_pass_at_k(16, int(c), k) for c in right]))
            errors.append(estimate_generation_error([(16, int(c)) for c in right], k))
        truth = np.mean(1 - (1 - difficulty) ** k)
        assert np.mean(means) == pytest.approx(truth, abs=4 * np.std(means) / 20), "unbiased"
        assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)
    assert estimate_sampling_variance(16, 4, 1) == pytest.approx(0.25 * 0.75 / 15), "of a share"
    assert math.isnan(estimate_sampling_variance(4, 2, 4)), "one group of four has no spread"


def test_names_and_defaults() -> None:
    assert list_default_ks(16) == (1, 2, 4, 8, 16)
    assert list_default_ks(5) == (1, 2, 4)
    metric = Metric.of("pass@8")
    assert (metric.kind, metric.scale, metric.higher_is_better) == ("task", "share", True)
    assert Metric.of("pass_at_8").canonical_name == "pass@8"


def study(folder: Path, store: str, samples: object) -> Study:
    written = {"name": "written", "file": str(folder / "written.jsonl"), "answer_tokens": 3}
    if samples is not None:
        written["samples"] = samples
    return make_study(
        {
            "name": "sampled",
            "models": [{"name": name, "path": str(folder / name)} for name in ("one", "two")],
            "tasks": [written, {"name": "colours", "file": str(folder / "colours.jsonl")}],
            "tuning": {"learning_rates": [1e-2], "epochs": 4, "dropout": 0.0},
            "selection": "tuned",
            "device": "cpu",
            "store": str(folder / store),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    for seed, name in enumerate(("one", "two")):
        tiny.save_model(folder / name, seed=seed)
    tiny.save_questions(folder / "colours.jsonl", n=60)
    colours = {"cat": "red", "dog": "blue", "bird": "green"}
    rows = [
        {"prompt": f"{filler} {animal} is", "completion": colour}
        for animal, colour in colours.items()
        for filler in ("the", "a", "old", "new", "the old", "a new", "the new", "a old", "who ?")
        for _ in range(2)
    ]
    rows = [{**row, "prompt": f"{row['prompt']} :" * (1 + n % 2)} for n, row in enumerate(rows)]
    (folder / "written.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def finished(folder: Path) -> Study:
    new_study = study(folder, "potentia.db", {"count": 8, "temperature": 1.0, "k": [1, 4]})
    result = run_study(new_study)
    with Store.open(new_study.store) as store:
        assert not store.failures.read()
    assert result.exit_code == 0
    return new_study


def test_scores_are_those_of_lighteval_on_the_same_samples(finished: Study) -> None:
    with Store.open(finished.store) as store:
        for protocol in ("direct", "train_before_test"):
            (cell,) = store.cells.read(protocol=protocol, task="written", model="one")
            items = store.cells.read_items(cell.key)
            for k in (1, 4):
                right = [list(map(int, item.detail["samples"]["right"])) for item in items]
                assert all(len(scores) == 8 for scores in right)
                expected = [lighteval_pass_at_k(scores, k) for scores in right]
                stored = [item.detail["metrics"][f"pass@{k}"] for item in items]
                assert stored == pytest.approx(expected, abs=1e-12)
                score = cell.scores[f"pass@{k}"]
                assert score.value == pytest.approx(np.mean(expected), abs=1e-12)
                spread = np.std(expected, ddof=1) / math.sqrt(len(expected))
                assert score.stderr == pytest.approx(spread, abs=1e-9)
            assert cell.metric != "pass@1", "the greedy answer is the main score"
            texts = {text for item in items for text in item.detail["samples"]["texts"]}
            assert len(texts) > 1
            graded = [
                text.strip() == item.gold
                for item in items
                for text in item.detail["samples"]["texts"]
            ]
            assert graded == [r for item in items for r in item.detail["samples"]["right"]]
        assert "pass@1" not in store.cells.read(protocol="direct", task="colours")[0].scores


def test_the_finding_has_both_kinds_of_noise(finished: Study) -> None:
    evidence = read(finished.store)
    finding = find_pass_at_k(evidence)
    assert finding.ks == (1, 4)
    for row in finding.rows:
        assert row.stderr >= 0
        if row.k == 1:
            assert row.sampling_error <= row.stderr + 0.05
    assert "times" in " ".join(finding.sentences()) or "%" in " ".join(finding.sentences())
    by_metric = read(finished.store, metric="pass@4")
    assert by_metric.scores["direct"].tasks == ("written",)
    assert len(by_metric.outcomes["direct"]["written"]["one"]) > 1


def test_samples_seed_and_temperature_are_in_the_key(folder: Path) -> None:
    def key(samples: object, **changes: object) -> str:
        model_copy_made = study(folder, "keys.db", samples).model_copy(update=changes)
        row = plan_study(model_copy_made).rows[0]
        return next(cell.key for cell in row.cells if cell.task == "written")

    base = key({"count": 8, "temperature": 1.0})
    keys = {
        base,
        key(None),
        key({"count": 16, "temperature": 1.0}),
        key({"count": 8, "temperature": 0.5}),
        key({"count": 8, "temperature": 1.0, "k": [2]}),
        key({"count": 8, "temperature": 1.0}, seed=1),
    }
    assert len(keys) == 6
    assert key({"count": 8, "temperature": 1.0}) == base
    assert key(8) == key({"count": 8})


def test_what_cannot_be_sampled_is_refused(folder: Path) -> None:
    new_study = make_study(
        {
            "models": [{"name": "one", "path": str(folder / "one")}],
            "tasks": [
                {"name": "colours", "file": str(folder / "colours.jsonl"), "samples": 4},
            ],
        }
    )
    with pytest.raises(InputError, match="not answered by writing"):
        load_tasks(new_study)
    with pytest.raises(InputError, match="pass@8 needs 8 samples"):
        make_study(
            {
                "models": ["one"],
                "tasks": [{"name": "gsm8k", "samples": {"count": 4, "k": [8]}}],
            }
        )
