import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.papers import ProxyOptions, find_proxies
from potentia.papers.proxy_tasks.proxies import (
    PAPER_CONFIGURATIONS,
    Robustness,
    choose_proxies,
    ignore_robustness,
    log_ratio,
    predict,
    sigmoid,
    variance_ratio,
)
from potentia.papers.proxy_tasks.validation import (
    _halves,
    by_perplexity,
    make_forecast,
    reversed_pairs,
    validate,
)
from potentia.values.scores import ScoreMatrix


def world(models=24, *, informative=True, seed=0):
    """Models with two abilities; the target needs the second, half of the tasks show it, perplexity shows the first."""
    rng = np.random.default_rng(seed)
    ability = rng.normal(size=(models, 2))
    noise = rng.normal(scale=0.2, size=(models, 6))
    near = ability[:, 1:] if informative else rng.normal(size=(models, 1))
    values = np.column_stack([near + noise[:, :3], ability[:, :1] + noise[:, 3:5]])
    target = ability[:, 1] + noise[:, 5]
    corpus = 3 - 0.5 * ability[:, 0]
    tasks = ["target", "near1", "near2", "near3", "far1", "far2", "corpus"]
    return ScoreMatrix.build(
        [f"m{i}" for i in range(models)],
        tasks,
        np.column_stack([target, values, corpus]),
        higher_is_better=[True] * 6 + [False],
    )


CANDIDATES = ["near1", "near2", "near3", "far1", "far2"]


def test_relevant_tasks_are_chosen_and_weights_add_up_to_one():
    found = choose_proxies(world(), "target", CANDIDATES)
    assert set(found.weights) == {"near1", "near2", "near3"}
    assert sum(found.weights.values()) == pytest.approx(1.0)
    kept = [p for p in found.proxies if not p.dropped]
    assert [p.weight for p in kept] == pytest.approx(
        [p.score / sum(q.score for q in kept) for p in kept]
    )
    assert all("relevance" in p.dropped for p in found.proxies if p.task.startswith("far"))


def test_score_is_relevance_times_transformed_robustness_and_thresholds_drop():
    robust = Robustness(
        (
            variance_ratio([0, 5, 10, 20], [1, 2, 3], task="near1"),
            variance_ratio([0, 1, 2, 3], [1, 2, 4.5], task="near2"),
            variance_ratio([1, 2], [3, 3], task="near3"),
        )
    )
    found = choose_proxies(world(), "target", CANDIDATES, robust=robust, transform=sigmoid(0.1))
    by_task = {p.task: p for p in found.proxies}
    ratio = by_task["near1"].robustness.ratio.value
    assert by_task["near1"].score == pytest.approx(
        by_task["near1"].relevance / (1 + np.exp(-0.1 * ratio))
    )
    assert by_task["near2"].dropped == "robustness below 1"
    assert "score the same" in by_task["near3"].dropped
    assert found.weights == {"near1": 1.0}


def test_transformations_are_monotone():
    grid = [0.0, 0.5, 1.0, 5.0, 50.0]
    for f in (sigmoid(0.2), log_ratio):
        assert np.all(np.diff([f(x) for x in grid]) > 0)
    assert {ignore_robustness(x) for x in grid} == {1.0}


def test_too_few_tasks_for_normalising_models_are_pointed_out():
    assert (
        "pushes every correlation down"
        in choose_proxies(world(), "target", CANDIDATES).tables()[0].note
    )
    by_task = choose_proxies(world(), "target", ["near1", "far1"], how="feature")
    assert "pushes" not in by_task.tables()[0].note
    assert by_task.proxies[0].task == "near1"


def test_top_keeps_the_best_only():
    found = choose_proxies(world(), "target", CANDIDATES, top=2)
    assert len(found.weights) == 2
    assert any(p.dropped == "not among the top 2" for p in found.proxies)


def test_prediction_is_the_weighted_mean_and_missing_stays_missing():
    scores = ScoreMatrix.build(
        ["x", "y"],
        ["a", "b", "c"],
        [[1.0, 2.0, 9.0], [3.0, np.nan, 9.0]],
        higher_is_better=[True, False, True],
    )
    assert predict({"a": 0.25, "b": 0.75}, scores)[0] == pytest.approx(0.25 - 1.5)
    assert np.isnan(predict({"a": 0.25, "b": 0.75}, scores)[1])
    with pytest.raises(InputError, match="no proxy task passed"):
        predict({}, scores)


def test_reversed_pairs_are_counted_and_ties_are_not():
    truth = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    assert reversed_pairs(np.array([1.0, 3.0, 2.0, 2.0, 9.0]), truth) == (2, 6)
    assert reversed_pairs(truth, truth) == (0, 6)
    assert reversed_pairs(-truth, truth) == (6, 6)


def test_forecast_counts_reversals_for_proxies_and_perplexity():
    scores = world()
    truth = dict(zip(scores.models, scores.oriented()[:, 0], strict=True))
    weights = choose_proxies(scores, "target", CANDIDATES).weights
    found = make_forecast(weights, scores, "target", truth=truth, corpora=["corpus"])
    assert found.reversed_by_proxy < found.reversed_by_perplexity
    blind = make_forecast(weights, scores, "target")
    assert blind.reversed_by_proxy is None
    assert blind.charts() == ()
    assert json.dumps(blind.to_dict())
    assert by_perplexity(scores, ["corpus"]) == pytest.approx(-scores.values[:, -1])


def test_validation_says_when_proxies_win_and_when_they_do_not():
    good = validate(world(40), "target", CANDIDATES, corpora=["corpus"], splits=40)
    assert good.trials[0].tau.value > 0.6
    assert good.verdict.startswith("Proxy tasks beat perplexity")
    assert good.chosen["near1"] > 0.9
    bad_world = world(40, informative=False)
    columns = bad_world.values.copy()
    columns[:, -1] = 3 - columns[:, 0]  # perplexity that tells the target
    bad = ScoreMatrix.build(
        bad_world.models, bad_world.tasks, columns, higher_is_better=bad_world.higher_is_better
    )
    assert validate(bad, "target", CANDIDATES, corpora=["corpus"], splits=40).verdict.startswith(
        "Proxy tasks do not beat"
    )


def test_validation_never_predicts_models_that_chose_the_proxies():
    """With a target of pure noise nothing can be predicted, however many candidates there are to choose from."""
    rng = np.random.default_rng(0)
    scores = ScoreMatrix.build(
        [str(i) for i in range(24)], ["t", *(f"c{j}" for j in range(40))], rng.normal(size=(24, 41))
    )
    found = validate(scores, "t", splits=100, top=3)
    assert abs(found.trials[0].tau.value) < 0.12
    assert "No perplexity" in found.verdict


def test_halves_keep_families_together():
    labels = [*"aaabbbccdddeee"]
    for seed in range(20):
        first, second = _halves(labels, np.random.default_rng(seed))
        assert sorted(first + second) == list(range(len(labels)))
        assert not {labels[i] for i in first} & {labels[i] for i in second}
        assert abs(len(first) - len(second)) <= 4


def test_a_family_that_is_nearly_everything_cannot_be_split():
    groups = {f"m{i}": "big" if i < 22 else "small" for i in range(24)}
    with pytest.raises(InputError, match="a family holds 22 of the 24 models"):
        validate(world(24), "target", CANDIDATES, groups=groups)


def test_strategies_on_pairs_of_base_and_chat_models():
    base, chat = world(16, seed=3), world(16, seed=3)
    models = [f"base{i}" for i in range(16)] + [f"chat{i}" for i in range(16)]
    values = np.vstack([base.values, chat.values])
    values[:16, 0] = 0.0  # base models cannot do the target at all
    scores = ScoreMatrix.build(models, base.tasks, values, higher_is_better=base.higher_is_better)
    pairs = {f"base{i}": f"chat{i}" for i in range(16)}
    found = validate(scores, "target", CANDIDATES, corpora=["corpus"], pairs=pairs, splits=30)
    assert [t.name for t in found.trials] == [
        "proxies chosen and scored on base models",
        "proxies chosen and scored on chat models",
        "proxies chosen on chat, scored on base models",
        "perplexity of base models",
        "perplexity of chat models",
    ]
    assert all(t.tau.value > 0.4 for t in found.trials[:3])
    assert found.units == 16


def test_too_few_models_are_named():
    with pytest.raises(InputError, match="6 models have all scores"):
        validate(world(6), "target", CANDIDATES)


def chats(models=12, *, seed=0):
    """Base models with candidates and no target, chat versions with the target alone, as with tool use."""
    rng = np.random.default_rng(seed)
    ability = rng.normal(size=models)
    tasks = ["tool_use", "near", "far", "other", "corpus"]
    values = np.full((2 * models, 5), np.nan)
    values[:models, 1] = ability + rng.normal(scale=0.1, size=models)
    values[:models, 2] = -ability + rng.normal(scale=0.1, size=models)
    values[:models, 3] = rng.normal(size=models)
    values[:models, 4] = 2 - 0.1 * rng.normal(size=models)
    values[models:, 0] = ability
    names = [*(f"b{i}" for i in range(models)), *(f"c{i}" for i in range(models))]
    matrix = ScoreMatrix.build(names, tasks, values, higher_is_better=[True] * 4 + [False])
    return matrix, {f"b{i}": f"c{i}" for i in range(models)}


def test_relevance_choice_and_forecast_join_base_and_chat_models(tmp_path):
    """Once only the validation did, and only where base models had the target too, which is what they cannot have."""
    matrix, pairs = chats()
    evidence = Evidence.of(matrix)
    with pytest.raises(InputError, match="only 0 models have a score"):
        find_proxies(evidence, ProxyOptions("tool_use", normalise="feature"))
    options = ProxyOptions(
        "tool_use", normalise="feature", on="base", pairs=pairs, top=1, min_relevance=0.5
    )
    found = find_proxies(evidence, options)
    assert found.proxies.models == 12
    best = found.proxies.proxies[0]
    base, chat = (
        matrix.select(models=list(pairs), tasks=["near"]),
        matrix.select(models=list(pairs.values())),
    )
    assert best.task == "near"
    assert best.relevance == pytest.approx(
        kendalltau(base.values[:, 0], chat.values[:, 0]).statistic
    )
    assert found.sampling is not None
    assert found.validation.unit == "pairs"
    assert found.validation.trials[0].name == "proxies chosen and scored on base models"
    assert found.validation.trials[0].tau.value > 0.7
    assert not any(
        "chat" in t.name for t in found.validation.trials
    )  # chat models have no candidates here
    with pytest.raises(InputError, match="lack a score on some candidate"):
        find_proxies(evidence, replace(options, on="chat"))
    # early base models are judged by what their chat versions score later
    early = replace(options, early=("b0", "b1", "b2"))
    forecast = find_proxies(evidence, early, evidence).forecast
    assert forecast.truth.tolist() == chat.values[:3, 0].tolist()
    assert forecast.reversed_by_proxy == 0


def test_robustness_goes_through_the_validation_end_to_end():
    """S = C · f(R): the task that seeds move more than data is left out of every half, and so is its weight."""
    rng = np.random.default_rng(3)
    plain = world(20)
    small = rng.normal(scale=0.01, size=(9, 7))
    small[:5, 1:4] += np.array([[3.0], [-3.0], [2.0], [-2.0], [0.5]])  # data moves near1 to near3 …
    small[5:, 3] += np.array([20.0, -20.0, 30.0, -30.0])  # … but seeds move near3 more
    names = [*plain.models, *(f"d{i}" for i in range(5)), *(f"s{i}" for i in range(4))]
    values = np.vstack([plain.values, small])
    matrix = ScoreMatrix.build(names, plain.tasks, values, higher_is_better=plain.higher_is_better)
    options = ProxyOptions(
        "target",
        candidates=CANDIDATES,
        data_group=[f"d{i}" for i in range(5)],
        seed_group=[f"s{i}" for i in range(4)],
        normalise="feature",
        splits=20,
    )
    found = find_proxies(Evidence.of(matrix), options)
    assert found.robustness is not None
    assert "near3" not in found.proxies.weights
    assert found.validation.chosen["near3"] == 0.0
    assert found.validation.chosen["near1"] == 1.0
    without = find_proxies(Evidence.of(matrix), replace(options, min_robustness=0.0, weigh="none"))
    assert without.validation.chosen["near3"] == 1.0
    steep = find_proxies(Evidence.of(matrix), replace(options, min_robustness=0.0, weigh="log"))
    assert steep.validation.trials[0].tau.value != without.validation.trials[0].tau.value
    nothing = find_proxies(Evidence.of(matrix), replace(options, min_robustness=1e9))
    assert "In no half did a task pass" in nothing.validation.verdict
    assert nothing.validation.trials[0].wins is None


def test_n_k_and_t_of_algorithm_1_can_be_set():
    evidence = Evidence.of(world(24))
    usual = find_proxies(evidence, ProxyOptions("target", candidates=CANDIDATES)).sampling
    assert (usual.top, [(i.n, i.k) for i in usual.indices][::3]) == (2, list(PAPER_CONFIGURATIONS))
    asked = ProxyOptions("target", candidates=CANDIDATES, top=3, sampled=(5, 7), rounds=(4,))
    found = find_proxies(evidence, asked).sampling
    assert (found.top, [(i.n, i.k) for i in found.indices][::3]) == (3, [(5, 4), (7, 4)])
    with pytest.raises(InputError, match="cannot draw 25 samples of 99 models"):
        find_proxies(evidence, ProxyOptions("target", candidates=CANDIDATES, sampled=(99,)))


def test_spreads_are_not_called_intervals():
    found = validate(world(), "target", CANDIDATES, corpora=["corpus"], splits=20)
    (table,) = found.tables()
    assert "2.5 % of halves" in table.columns
    assert not {"low", "tau low", "gain low"} & set(table.columns)
    assert "no confidence interval" in table.note
    assert found.to_dict()["trials"][0]["tau"].keys() == {"value", "low", "high", "share"}
