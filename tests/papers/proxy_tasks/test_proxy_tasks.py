import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.facts import Benchmark
from potentia.papers import ProxyOptions, find_proxies
from potentia.papers.proxy_tasks.capabilities import find_capability
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
    _draw_halves,
    by_perplexity,
    count_reversed_pairs,
    make_forecast,
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
    proxies = choose_proxies(world(), "target", CANDIDATES)
    assert set(proxies.weights) == {"near1", "near2", "near3"}
    assert sum(proxies.weights.values()) == pytest.approx(1.0)
    kept = [p for p in proxies.proxies if not p.dropped]
    assert [p.weight for p in kept] == pytest.approx(
        [p.score / sum(q.score for q in kept) for p in kept]
    )
    assert all("relevance" in p.dropped for p in proxies.proxies if p.task.startswith("far"))


def test_score_is_relevance_times_transformed_robustness_and_thresholds_drop():
    robust = Robustness(
        (
            variance_ratio([0, 5, 10, 20], [1, 2, 3], task="near1"),
            variance_ratio([0, 1, 2, 3], [1, 2, 4.5], task="near2"),
            variance_ratio([1, 2], [3, 3], task="near3"),
        )
    )
    proxies = choose_proxies(world(), "target", CANDIDATES, robust=robust, transform=sigmoid(0.1))
    by_task = {p.task: p for p in proxies.proxies}
    ratio = by_task["near1"].robustness.ratio.value
    assert by_task["near1"].score == pytest.approx(
        by_task["near1"].relevance / (1 + np.exp(-0.1 * ratio))
    )
    assert by_task["near2"].dropped == "robustness below 1"
    assert "score the same" in by_task["near3"].dropped
    assert proxies.weights == {"near1": 1.0}


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
    by_task = choose_proxies(world(), "target", ["near1", "far1"], normalisation="feature")
    assert "pushes" not in by_task.tables()[0].note
    assert by_task.proxies[0].task == "near1"


def test_top_keeps_the_best_only():
    proxies = choose_proxies(world(), "target", CANDIDATES, top_count=2)
    assert len(proxies.weights) == 2
    assert any(p.dropped == "not among the top 2" for p in proxies.proxies)


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
    assert count_reversed_pairs(np.array([1.0, 3.0, 2.0, 2.0, 9.0]), truth) == (2, 6)
    assert count_reversed_pairs(truth, truth) == (0, 6)
    assert count_reversed_pairs(-truth, truth) == (6, 6)


def test_forecast_counts_reversals_for_proxies_and_perplexity():
    scores = world()
    truth = dict(zip(scores.models, scores.oriented()[:, 0], strict=True))
    weights = choose_proxies(scores, "target", CANDIDATES).weights
    forecast = make_forecast(weights, scores, "target", truth=truth, corpora=["corpus"])
    assert forecast.reversed_by_proxy < forecast.reversed_by_perplexity
    blind = make_forecast(weights, scores, "target")
    assert blind.reversed_by_proxy is None
    assert blind.charts() == []
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
    result = validate(scores, "t", splits=100, top_count=3)
    assert abs(result.trials[0].tau.value) < 0.12
    assert "No perplexity" in result.verdict


def test_draw_halves_keep_families_together():
    labels = [*"aaabbbccdddeee"]
    for seed in range(20):
        first, second = _draw_halves(labels, np.random.default_rng(seed))
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
    result = validate(scores, "target", CANDIDATES, corpora=["corpus"], pairs=pairs, splits=30)
    assert [t.name for t in result.trials] == [
        "proxies chosen and scored on base models",
        "proxies chosen and scored on chat models",
        "proxies chosen on chat, scored on base models",
        "perplexity of base models",
        "perplexity of chat models",
    ]
    assert all(t.tau.value > 0.4 for t in result.trials[:3])
    assert result.units == 16


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
    proxies = find_proxies(evidence, options)
    assert proxies.proxies.models == 12
    best = proxies.proxies.proxies[0]
    base, chat = (
        matrix.select(models=list(pairs), tasks=["near"]),
        matrix.select(models=list(pairs.values())),
    )
    assert best.task == "near"
    assert best.relevance == pytest.approx(
        kendalltau(base.values[:, 0], chat.values[:, 0]).statistic
    )
    assert proxies.sampling is not None
    assert proxies.validation.unit == "pairs"
    assert proxies.validation.trials[0].name == "proxies chosen and scored on base models"
    assert proxies.validation.trials[0].tau.value > 0.7
    assert not any(
        "chat" in t.name for t in proxies.validation.trials
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
    proxies = find_proxies(Evidence.of(matrix), options)
    assert proxies.robustness is not None
    assert "near3" not in proxies.proxies.weights
    assert proxies.validation.chosen["near3"] == 0.0
    assert proxies.validation.chosen["near1"] == 1.0
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
    proxy_options = ProxyOptions(
        "target", candidates=CANDIDATES, top=3, sampled=(5, 7), rounds=(4,)
    )
    result = find_proxies(evidence, proxy_options).sampling
    assert (result.top, [(i.n, i.k) for i in result.indices][::3]) == (3, [(5, 4), (7, 4)])
    with pytest.raises(InputError, match="cannot draw 25 samples of 99 models"):
        find_proxies(evidence, ProxyOptions("target", candidates=CANDIDATES, sampled=(99,)))


def test_the_best_tasks_are_counted_by_capability():
    """Section 4.1: "5 reasoning tasks, 3 problem-solving tasks, and 2 comprehension tasks rank among the top 10"."""
    evidence = Evidence.of(world(24))
    kinds = {"near1": "Reasoning", "near2": "Reasoning", "near3": "Language", "far1": "Language"}
    task_facts = tuple(Benchmark(task, category=kind) for task, kind in kinds.items())
    options = ProxyOptions("target", candidates=CANDIDATES, normalise="feature", splits=5)
    result = find_proxies(replace(evidence, task_facts=task_facts), options).proxies
    _, table = result.tables()
    by_kind = {row[0]: row[1:] for row in table.rows}
    assert {kind: row[0] for kind, row in by_kind.items()} == {
        "Reasoning": 2,
        "Language": 2,
        "unknown": 1,
    }
    for position, metric in enumerate(("pearson", "spearman", "kendall"), start=1):
        best = sorted(result.proxies, key=lambda proxy: -proxy.by_metric[metric])[:2]
        counted = {kind: row[position] for kind, row in by_kind.items()}
        for kind in by_kind:
            expected = sum(kinds.get(proxy.task, "unknown") == kind for proxy in best)
            assert counted[kind] == expected
        assert sum(counted.values()) == 2
    (only,) = find_proxies(evidence, options).proxies.tables()
    assert "capability" not in only.columns


def test_tasks_of_no_other_category_have_that_of_table_1():
    """A user's category goes first, then that of the facts; RACE, CHID and HumanEval have only the paper's."""
    names = {
        "near1": "race",
        "near2": "chid",
        "near3": "humaneval",
        "far1": "rte",
        "far2": "triviaqa",
    }
    matrix = world(24)
    tasks = [names.get(task, task) for task in matrix.tasks]
    evidence = Evidence.of(replace(matrix, tasks=tuple(tasks)))
    evidence = replace(evidence, task_facts=(Benchmark("triviaqa", category="trivia"),))
    candidates = [names.get(task, task) for task in CANDIDATES]
    options = ProxyOptions("target", candidates=candidates, normalise="feature", splits=5)
    capabilities = find_proxies(evidence, options).proxies.capabilities
    assert capabilities == {
        "race": "Comprehension",
        "chid": "Language",
        "humaneval": "Reasoning",
        "rte": "language understanding",
        "triviaqa": "trivia",
    }


@pytest.mark.parametrize(
    ("task", "capability"),
    [
        ("arc_challenge", "Problem-solving"),
        ("commonsense_qa", "Knowledge"),
        ("nq_open", "Knowledge"),
        ("ceval-valid", "Problem-solving"),
        ("leaderboard_bbh", "Reasoning"),
        ("gsm8k:light", "Reasoning"),
        ("winogrande", None),
        ("mnli", None),
        ("capitals", None),
    ],
)
def test_the_names_of_table_1_are_known_by_those_of_lm_eval(task, capability):
    assert find_capability(task) == capability


def test_spreads_are_not_called_intervals():
    result = validate(world(), "target", CANDIDATES, corpora=["corpus"], splits=20)
    (table,) = result.tables()
    assert "2.5 % of halves" in table.columns
    assert not {"low", "tau low", "gain low"} & set(table.columns)
    assert "not a confidence interval" in table.note
    assert result.to_dict()["trials"][0]["tau"].keys() == {"value", "low", "high", "share"}
