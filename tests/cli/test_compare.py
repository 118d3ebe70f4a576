"""Two models side by side: paired where items are stored, and the documents that tell them apart."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import t as student_t

from made_store import MODELS, N, make_store
from potentia.analysis.rankings import find_pair
from potentia.errors import InputError
from potentia.evidence import Evidence, read
from potentia.values.scores import ScoreMatrix

ALPHA, GAMMA = MODELS[0], MODELS[2]


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "made.db")


def test_the_numbers_are_those_of_the_items(store):
    evidence = read(store)
    pair = find_pair(evidence, "alpha-7b", "gamma")
    assert (pair.first, pair.second) == (ALPHA, GAMMA)
    assert len(pair.tasks) == 6
    for part in pair.tasks:
        items = evidence.outcomes[part.protocol][part.task]
        x, y = (np.array([items[m][d] for d in range(N)]) for m in (ALPHA, GAMMA))
        assert part.first_only == tuple(np.flatnonzero(x > y))
        assert part.second_only == tuple(np.flatnonzero(y > x))
        apart = len(part.first_only) + len(part.second_only)
        assert part.p_value == pytest.approx(binomtest(len(part.first_only), apart, 0.5).pvalue)
        assert part.difference.value == pytest.approx((x - y).mean())
        half = student_t.ppf(0.975, N - 1) * np.std(x - y, ddof=1) / np.sqrt(N)
        assert part.difference.high - part.difference.value == pytest.approx(half, rel=1e-5)


def test_without_items_the_errors_count_and_a_loss_is_turned():
    matrix = ScoreMatrix.build(
        ["a", "b"],
        ["t", "text"],
        [[0.6, 0.9], [0.5, 1.1]],
        stderr=[[0.03, 0.01], [0.04, 0.01]],
        higher_is_better=[True, False],
        metrics=["acc", "bits_per_byte"],
        protocol="direct",
    )
    pair = find_pair(Evidence.of(matrix), "a", "b")
    task, text = pair.tasks
    assert task.p_value == pytest.approx(0.0455, abs=1e-3)
    assert (task.test, task.documents) == ("z", None)
    assert text.difference.value == pytest.approx(0.2), "fewer bits are better"
    assert pair.leads[task.protocol].difference.value == pytest.approx(0.1), (
        "bits have no part in a mean of scores"
    )
    assert "alone" not in " ".join(pair.tables()[0].columns), "no columns of dashes"


def test_an_undecided_pair_is_told_what_would_decide():
    matrix = ScoreMatrix.build(
        ["a", "b"], ["t"], [[0.52], [0.50]], stderr=[[0.02], [0.02]], protocol="direct"
    )
    (sentence,) = find_pair(Evidence.of(matrix), "a", "b").sentences()
    assert "not sure" in sentence
    assert (
        "about 9,300 more test examples" in sentence
    )  # 625, by the errors, times (2.8 × 0.0283 / 0.02)² less one


def test_the_command_shows_documents(potentia, store):
    done = potentia(
        "compare", "alpha-7b", "beta", store, "--tasks", "piqa", "--items", "2", "--json"
    )
    printed = json.loads(done.stdout)
    pair = printed["tasks"]
    assert {part["task"] for part in pair} == {"piqa"}
    printed_items = printed["items"]
    assert len(printed_items) == sum(
        min(2, len(p[side])) for p in pair for side in ("first_only", "second_only")
    )
    for document in printed_items:
        right_answer = document["first"] if document["right"] == ALPHA else document["second"]
        wrong_answer = document["second"] if document["right"] == ALPHA else document["first"]
        assert right_answer == document["gold"] != wrong_answer
    assert (
        "only one of the two gets right"
        in potentia("compare", "alpha", "beta", store, "--items", "1").stdout
    )


@pytest.mark.parametrize(("name", "said"), [("7b", "may be 2 models"), ("omega", "there are: ")])
def test_a_model_that_is_not_clear_is_asked_for(potentia, store, name, said):
    done = potentia("compare", name, "gamma", store)
    assert done.returncode == 2
    assert said in done.stderr
    with pytest.raises(InputError, match="the same model"):
        find_pair(read(store), "gamma", "gamma-1b")
