"""Copies that were trained on a test, against their originals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from potentia.evidence import read
from potentia.formats import write_scores
from potentia.papers.task_training.analysis import find_test_task
from potentia.papers.task_training.copies import measure_copies
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

MODELS = [f"m{k}" for k in range(6)]
COPIES = {f"{m}+exposed": m for m in MODELS}
TASKS = ["arc_easy", "boolq", "piqa"]
SHOWN = dict.fromkeys(COPIES, ("arc_easy", "boolq"))


def scores(protocol: str, advantage: float, seed: int = 0) -> ScoreMatrix:
    stream = np.random.default_rng(seed)
    skill = np.linspace(0.3, 0.7, 6)[:, None] + stream.normal(0, 0.01, (6, 3))
    copies = skill + stream.normal(0, 0.01, (6, 3)) + advantage * np.array([1.0, 1.0, 0.0])
    return ScoreMatrix.build(
        [*MODELS, *COPIES], TASKS, np.vstack([skill, copies]), protocol=protocol
    )


def test_the_advantage_is_found_where_it_was_planted_and_nowhere_else() -> None:
    both = {
        Protocol("direct"): scores("direct", 0.2),
        Protocol("train_before_test"): scores("train_before_test", 0.0, 1),
    }
    copies = measure_copies(both, COPIES, SHOWN)
    assert copies is not None
    direct, tuned = copies.advantages
    assert direct.shown.low > 0.15
    assert direct.shown.value == pytest.approx(0.2, abs=0.02)
    assert direct.other is not None
    assert direct.other.low < 0 < direct.other.high
    assert tuned.shown.low < 0 < tuned.shown.high
    assert direct.places > tuned.places
    assert set(direct.by_task) == {"arc_easy", "boolq"}
    assert len(copies.charts()[0].series) == 2


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    matrix = scores("direct", 0.1)
    copies = measure_copies({Protocol("direct"): matrix}, COPIES, SHOWN)
    assert copies is not None
    copy, original = matrix.values[6:, :2].mean(axis=1), matrix.values[:6, :2].mean(axis=1)
    interval = ttest_rel(copy, original).confidence_interval(0.95)
    shown = copies.advantages[0].shown
    assert (shown.low, shown.high) == pytest.approx((interval.low, interval.high))


def test_the_noise_of_these_very_models_is_that_of_their_standard_errors() -> None:
    matrix = scores("direct", 0.1)
    assert (
        measure_copies({Protocol("direct"): matrix}, COPIES, SHOWN).advantages[0].noise is None
    ), "none are known"
    matrix.stderr[:] = 0.02
    noise = measure_copies({Protocol("direct"): matrix}, COPIES, SHOWN).advantages[0].noise
    assert noise == pytest.approx(1.96 * np.sqrt(2) * 0.02 / np.sqrt(6 * 2), rel=1e-3)


def test_copies_that_were_shown_texts_alone_are_compared_on_them() -> None:
    values = np.column_stack([np.full(12, 0.5), np.r_[np.full(6, 2.0), np.full(6, 1.5)]])
    models = [*MODELS, *COPIES]
    matrix = ScoreMatrix.build(
        models, ["piqa", "books"], values, higher_is_better=[True, False], protocol="direct"
    )
    score_matrix = ScoreMatrix.build(
        models, ["piqa"], values[:, :1], protocol="few_shot:5"
    )  # texts have no examples
    both = {Protocol("direct"): matrix, Protocol("few_shot:5"): score_matrix}
    copies = measure_copies(both, COPIES, dict.fromkeys(COPIES, ("books",)))
    (one,) = copies.advantages
    assert (one.protocol, one.shown.value) == ("direct", 0.5), (
        "half a bit less is half a bit better"
    )


def test_gaps_and_lone_copies_are_left_out() -> None:
    matrix = scores("direct", 0.1)
    matrix.values[0, :2] = np.nan  # the first original was not scored on what its copy was shown
    copies = measure_copies({Protocol("direct"): matrix}, COPIES | {"x+exposed": "x"}, SHOWN)
    assert copies is not None
    assert len(copies.advantages[0].pairs) == 5
    assert measure_copies({Protocol("direct"): matrix}, {}, SHOWN) is None
    assert measure_copies({Protocol("direct"): matrix}, COPIES, {}) is None


def test_a_table_with_its_facts_beside_it_tells_copies_by_their_names(tmp_path) -> None:
    both = {p: scores(p, a) for p, a in (("direct", 0.2), ("train_before_test", 0.0))}
    write_scores(both, tmp_path / "s.csv")
    rows = "\n".join(f"{copy},arc_easy;boolq" for copy in COPIES)
    (tmp_path / "s.facts.csv").write_text(f"model,exposure\n{rows}\n")
    evidence = read(tmp_path / "s.csv")
    assert evidence.exposed_copies == COPIES
    assert any("s.facts.csv" in note for note in evidence.notes)
    test_task = find_test_task(evidence)
    assert test_task.copies is not None
    assert test_task.copies.advantages[0].shown.low > 0
    assert "copies" in test_task.findings_by_name()


def test_pairs_of_one_family_are_not_independent() -> None:
    """Three families of four pairs whose advantage is the family's own: there are three observations."""
    covered = {False: 0, True: 0}
    studies = 100
    originals = [f"m{k}" for k in range(12)]
    copies_of = {f"{model}+exposed": model for model in originals}
    families = {model: f"family {k // 4}" for k, model in enumerate(originals)}
    for seed in range(studies):
        stream = np.random.default_rng(seed)
        advantage = np.repeat(0.1 + 0.05 * stream.normal(size=3), 4)[:, None]
        skill = stream.uniform(0.3, 0.6, (12, 1))
        values = np.vstack([skill, skill + advantage + stream.normal(0, 0.01, (12, 1))])
        matrix = ScoreMatrix.build([*originals, *copies_of], ["boolq"], values)
        for knows_families in covered:
            advantages = measure_copies(
                {Protocol("direct"): matrix},
                copies_of,
                dict.fromkeys(copies_of, ("boolq",)),
                families if knows_families else {},
            )
            assert advantages is not None
            shown_advantage = advantages.advantages[0].shown
            covered[knows_families] += shown_advantage.low <= 0.1 <= shown_advantage.high
    assert covered[True] >= 88
    assert covered[False] < 75


def test_an_advantage_is_averaged_over_the_tasks_of_one_scale() -> None:
    skill = np.linspace(0.3, 0.6, 6)[:, None]
    ratings = np.linspace(2.0, 7.0, 6)[:, None]
    originals = np.hstack([skill, skill, ratings, skill])
    matrix = ScoreMatrix.build(
        [*MODELS, *COPIES],
        ["arc_easy", "boolq", "mt_bench", "piqa"],
        np.vstack([originals, originals + np.array([0.1, 0.1, 2.0, 0.0])]),
        metrics=["acc", "acc", "mt_bench", "acc"],
    )
    exposed_tasks = dict.fromkeys(COPIES, ("arc_easy", "boolq", "mt_bench"))
    found = measure_copies({Protocol("direct"): matrix}, COPIES, exposed_tasks)
    assert found is not None
    (advantage,) = found.advantages
    assert advantage.shown.value == pytest.approx(0.1)
    assert advantage.by_task["mt_bench"].value == pytest.approx(2.0)
    assert advantage.other is not None
    assert advantage.other.value == pytest.approx(0.0)
