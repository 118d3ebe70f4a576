"""What follows from adjustment, on small data whose answers are known by hand or by construction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import potentia
from potentia.errors import DataError, InputError
from potentia.facts import benchmarks, chance, models, read_facts
from potentia.papers.task_training.adjustment import compare_groups, compare_treated_copies
from potentia.papers.task_training.analysis import analyze_score_pair, find_test_task
from potentia.papers.task_training.changes import (
    measure_gain,
    measure_mediation,
    measure_rank_shift,
)
from potentia.papers.task_training.cohort import (
    Cohort,
    ModelSplit,
    ScorePair,
    explain_unpaired,
    pair_scores,
    take_better_scores,
)
from potentia.papers.task_training.discrimination import measure_discrimination
from potentia.papers.task_training.emergence import trace_emergence
from potentia.papers.task_training.families import compare_families
from potentia.papers.task_training.frontier import measure_frontier_shift, pareto_frontier
from potentia.papers.task_training.learning_rates import give_group_best_rate
from potentia.papers.task_training.options import TestTaskOptions
from potentia.values.scores import ScoreMatrix


def _cohort(n: int = 40, seed: int = 0) -> Cohort:
    """Models of eight families over four orders of magnitude; families 4 to 7 are newer."""
    rng = np.random.default_rng(seed)
    return Cohort.from_records(
        {
            "model": f"m{i}",
            "family": f"f{i % 8}",
            "compute": 10 ** rng.uniform(20, 24),
            "trained": "2024-02" if i % 8 >= 4 else "2022-05",
            "language": "en+cn" if i % 2 else "en",
        }
        for i in range(n)
    )


def _planted(seed: int = 0) -> tuple[ScorePair, ModelSplit]:
    """Newer models score 0.1 more before adjustment (and emerge earlier for it), nothing more after it."""
    cohort = _cohort(seed=seed)
    split = cohort.split_by_month("2023-11")
    rng = np.random.default_rng(seed + 1)
    x = cohort.log_compute
    after = 0.25 + 0.12 * np.maximum(0, x - 20.5) + rng.normal(scale=0.01, size=len(x))
    before = (
        0.25
        + 0.12 * np.maximum(0, x - 21.5)
        + 0.1 * split.members
        + rng.normal(scale=0.01, size=len(x))
    )
    return ScorePair("mmlu", cohort, before, after, chance=0.25), split


def test_planted_advantage_appears_and_vanishes() -> None:
    pair, split = _planted()
    found = compare_groups(pair, split, draws=199)
    assert found.before.effect.value == pytest.approx(0.1, abs=0.015)
    assert found.before.effect.clustered_p < 0.001
    assert abs(found.after.effect.value) < 0.015
    assert found.after.fit.emergence.value == pytest.approx(20.5, abs=0.2)
    assert len(found.charts()) == 2
    assert found.to_dict()["before"]["fit"]["n"] == 40


def test_mediation_finds_direct_and_indirect_effects() -> None:
    cohort = _cohort(80)
    split = cohort.split_by_month("2023-11")
    x, new = cohort.log_compute, split.members.astype(float)
    bend = np.maximum(0, x - 22) * 0.05 + np.maximum(0, x - 23) * 0.1
    after = 0.3 + 0.02 * x + bend + 0.04 * new
    before = after - 0.2 + 0.07 * new + 0.01 * x
    found = measure_mediation(ScorePair("t", cohort, before, after), split)
    assert found.direct.value == pytest.approx(0.04, abs=1e-9)
    assert found.mediated.value == pytest.approx(0.07, abs=1e-9)
    assert found.direct_r2 == pytest.approx(1.0)


def test_gain_is_larger_for_models_that_had_not_met_the_task() -> None:
    pair, split = _planted()
    newer, older = measure_gain(pair, split).means
    assert older > newer


def test_frontier_area_by_hand() -> None:
    cohort = Cohort.from_records(
        {"model": name, "family": name, "compute": 10.0**c, "trained": date}
        for name, c, date in (
            ("a", 20, "2020-01"),
            ("b", 21, "2024-01"),
            ("c", 22, "2020-01"),
            ("d", 23, "2024-01"),
        )
    )
    pair = ScorePair(
        "t", cohort, np.array([0.3, 0.6, 0.5, 0.9]), np.array([0.3, 0.4, 0.5, 0.5]), chance=0.25
    )
    found = measure_frontier_shift(pair, cohort.split_by_month("2023-11"))
    # before: b lifts 0.3 to 0.6 from 21 to 22, and 0.5 to 0.6 from 22 to 23; d stands at the end
    assert found.areas == pytest.approx((0.3 + 0.1, 0.1))
    assert found.ratio == pytest.approx(4.0)
    assert "shrinks 4.0-fold" in found.tables()[0].note
    level = ScorePair("t", cohort, pair.before, np.array([0.6, 0.4, 0.7, 0.5]), chance=0.25)
    assert (
        "It vanishes by adjustment."
        in measure_frontier_shift(level, cohort.split_by_month("2023-11")).tables()[0].note
    )
    tied = ScorePair("t", cohort, np.array([0.3, 0.3, 0.5, 0.9]), pair.after, chance=0.25)
    moved = measure_rank_shift(tied).tables()[1]
    assert "3.5" in str(moved), "shared places are not rounded"
    assert found.every[0].models == ("a", "b", "d")
    assert found.every[1].models == ("a", "b", "c")


def test_frontier_does_not_depend_on_the_order_of_models() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(20, 24, 30), rng.random(30)
    names = [f"m{i}" for i in range(30)]
    order = rng.permutation(30)
    one = pareto_frontier(names, x, y)
    other = pareto_frontier([names[i] for i in order], x[order], y[order])
    assert one.models == other.models
    assert np.all(np.diff(one.scores) > 0)
    assert np.all(np.diff(one.log_compute) > 0)


def test_rank_shift_by_hand() -> None:
    cohort = _cohort(4)
    found = measure_rank_shift(
        ScorePair("t", cohort, np.array([4.0, 3, 2, 1]), np.array([1.0, 4, 3, 2]))
    )
    assert found.shifts.tolist() == [-3, 1, 1, 1]
    assert (found.mean, found.largest) == (1.5, 3)
    flipped = measure_rank_shift(
        ScorePair("t", cohort, -found.ranks[:, 0], found.ranks[:, 1], higher_is_better=False)
    )
    assert flipped.ranks[0, 1] == 4


def test_families_fall_onto_one_line_after_adjustment() -> None:
    pair, _ = _planted()
    found = compare_families(pair, ["f0", "f1", "f4", "f5"])
    distance = found.residuals()
    assert distance["f4"][0] - distance["f0"][0] > 0.05
    assert abs(distance["f4"][1] - distance["f0"][1]) < 0.04
    assert [len(curve.models) for curve in found.curves] == [5, 5, 5, 5]
    with pytest.raises(InputError, match="no model of family"):
        compare_families(pair, {"none": ["who"]})


def test_emergence_moves_with_training() -> None:
    cohort = _cohort()
    points = {0: 22.5, 1000: 21.5, 64000: 20.2}
    stages = {
        amount: dict(
            zip(cohort.models, 0.25 + 0.1 * np.maximum(0, cohort.log_compute - c), strict=True)
        )
        for amount, c in points.items()
    }
    stages[5] = dict(list(stages[0].items())[:3])  # too few models: left out
    found = trace_emergence("t", stages, cohort, chance=0.25)
    assert found.examples == (0, 1000, 64000)
    assert [h.emergence.value for h in found.hinges] == pytest.approx([22.5, 21.5, 20.2], abs=1e-6)
    assert found.lines[0].r2 < found.lines[1].r2 < found.lines[2].r2


def test_treatment_copies_show_an_effect_that_adjustment_removes() -> None:
    cohort = _cohort()
    rng = np.random.default_rng(7)
    base = 0.25 + 0.12 * np.maximum(0, cohort.log_compute - 21.5) + rng.normal(scale=0.01, size=40)
    control = dict(zip(cohort.models, base, strict=True))
    treated = {name: score + 0.08 for name, score in control.items()}
    adjusted = {name: score + 0.1 for name, score in control.items()}
    found = compare_treated_copies(
        "t",
        control,
        treated,
        cohort,
        control_adjusted=adjusted,
        treated_adjusted=adjusted,
        chance=0.25,
        draws=99,
    )
    assert found.before.effect is not None
    assert found.after is not None
    assert found.after.effect is not None
    assert found.before.effect.value == pytest.approx(0.08, abs=0.02)
    assert abs(found.after.effect.value) < 0.01
    assert all(cohort.compute[cohort.models.index(name)] >= 7e21 for name in found.treated)
    assert len(found.treated) < len(found.control)


def test_favouring_a_group_gives_it_the_best_of_the_sweep() -> None:
    pair, split = _planted()
    sweep = [pair.after + 0.03, np.full(40, np.nan)]
    favoured = give_group_best_rate(pair, split, sweep)
    assert favoured.after[split.members] == pytest.approx(pair.after[split.members] + 0.03)
    assert favoured.after[~split.members] == pytest.approx(pair.after[~split.members])
    with pytest.raises(InputError, match="one score per model"):
        give_group_best_rate(pair, split, [np.zeros(3)])


def test_discriminator_tells_separable_groups_apart_and_others_not() -> None:
    rng = np.random.default_rng(0)
    cohort = _cohort(30)
    labels = np.arange(30) % 2 == 0
    pair = ScorePair(
        "t", cohort, labels + rng.normal(scale=0.1, size=30), rng.normal(size=30), chance=0.25
    )
    mixed = replace(
        pair, after=np.where(labels, pair.before, labels[::-1] + rng.normal(scale=0.1, size=30))
    )
    for trees in ("xgboost", "scikit-learn"):
        found = measure_discrimination(mixed, ModelSplit("even", labels), trees=trees)
        assert found.before > 0.9
        assert found.after < 0.75
        assert found.trees == trees
        assert found.before_interval.low <= found.before <= found.before_interval.high
        # fifteen on each side: one model weighs a thirtieth, and the interval is at least that wide
        assert found.after_interval.high - found.after_interval.low > 1 / 30
        assert "0.033" in found.tables()[0].note
    assert found.after_interval.low < 0.5 < found.after_interval.high


def test_the_trees_are_those_of_xgboost_as_it_was_when_the_paper_was_written() -> None:
    from sklearn.metrics import balanced_accuracy_score
    from xgboost import XGBClassifier

    pair, split = _planted(3)
    x, y = np.column_stack([pair.cohort.log_compute, pair.before]), split.members.astype(int)
    others = [np.arange(len(y)) != i for i in range(len(y))]
    guesses = []
    for keep in others:
        classifier = XGBClassifier(tree_method="exact", base_score=0.5)
        guesses.append(int(classifier.fit(x[keep], y[keep]).predict(x[~keep])[0]))
    found = measure_discrimination(pair, split)
    assert found.trees == "xgboost"
    assert found.before == pytest.approx(balanced_accuracy_score(y, guesses))


def test_pairs_keep_models_with_both_scores_and_known_compute() -> None:
    cohort = Cohort.from_records(
        {"model": m, "family": "f", "compute": 1e21} for m in ("a", "b", "c")
    )
    before = ScoreMatrix.build(["a", "b", "d"], ["t", "u"], [[0.1, 0.5], [0.2, np.nan], [0.3, 0.5]])
    after = ScoreMatrix.build(["b", "a"], ["u", "t"], [[0.6, 0.7], [0.8, 0.05]], protocol="adjust")
    t, u = pair_scores(before, after, cohort, chance={"t": 0.25})
    assert (t.cohort.models, t.before.tolist(), t.after.tolist()) == (
        ("a", "b"),
        [0.1, 0.2],
        [0.05, 0.7],
    )
    assert (u.cohort.models, u.chance, t.chance) == (("a",), 0.0, 0.25)
    better = take_better_scores(before, after)
    assert better.select(models=["a"], tasks=["t"]).values[0, 0] == 0.1
    assert (
        better.select(models=["b"], tasks=["u"]).values[0, 0] == 0.6
    )  # missing before: the other's
    with pytest.raises(InputError, match="no task was scored both"):
        pair_scores(before, ScoreMatrix.build(["a"], ["z"], [[1.0]]), cohort)
    with pytest.raises(InputError, match="known compute"):
        pair_scores(before, after, Cohort.from_records([{"model": "zz", "compute": 1e20}]))


def test_best_of_leaves_out_a_model_without_an_adjusted_score() -> None:
    before = ScoreMatrix.build(["a", "b", "c"], ["t"], [[0.1], [0.9], [0.3]])
    after = ScoreMatrix.build(["a", "b"], ["t"], [[0.4], [np.nan]], protocol="adjust")
    cohort = Cohort.from_records(
        {"model": m, "family": "f", "compute": 1e21} for m in ("a", "b", "c")
    )
    (pair,) = pair_scores(before, take_better_scores(before, after), cohort)
    assert (pair.cohort.models, pair.after.tolist()) == (("a",), [0.4])
    assert explain_unpaired(before, after, cohort, "t") == {"no score by adjust": ("b", "c")}
    known = Cohort.from_records([{"model": "b", "compute": 1e21}])
    named = explain_unpaired(after, before, known, "t")
    assert named["no score by adjust"] == ("b", "c")
    assert [names for why, names in named.items() if "no compute known" in why] == [("a",)]


def test_best_of_takes_the_lower_brier_score() -> None:
    before = ScoreMatrix.build(["a"], ["t"], [[0.6]], higher_is_better=False)
    after = ScoreMatrix.build(["a"], ["t"], [[0.7]], higher_is_better=False)
    assert take_better_scores(before, after).values[0, 0] == 0.6


def test_cohort_from_files_and_facts(tmp_path: Path) -> None:
    path = tmp_path / "models.csv"
    path.write_text(
        "model,family,params_b,tokens_b,trained,size\na,x,1,300,2023-11,s\nb,,2,,2020-01,l\n"
    )
    cohort = Cohort.from_facts(table=read_facts(path))
    assert cohort.models == ("a",)  # b's tokens are not known
    assert cohort.compute[0] == pytest.approx(6 * 1e9 * 300e9)
    with pytest.raises(InputError, match="does not split"):
        cohort.split_by_column("size", "l")
    with pytest.raises(InputError, match="no column"):
        cohort.split_by_column("colour", "l")
    known = Cohort.from_facts(["EleutherAI/pythia-70m", "nobody/knows-this"])
    assert known.models == ("EleutherAI/pythia-70m",)
    both = Cohort.from_facts(["EleutherAI/pythia-70m", "a"], models(path))
    assert both.models == ("EleutherAI/pythia-70m", "a")
    with pytest.raises(InputError, match="no pretraining compute"):
        both.select(["who"])
    with pytest.raises(InputError, match="no training date"):
        Cohort.from_records([{"model": "q", "compute": 1e20}]).split_by_month("2023-11")
    path.write_text("nom\nx\n")
    with pytest.raises(DataError, match="no column names the models"):
        read_facts(path)


def test_chance_of_known_tasks() -> None:
    assert chance("mmlu") == chance("mmlu:cloze") == chance("mmlu_cloze") == 0.25
    assert chance("mmlu_pro") == 0.1
    assert chance("mmlu_pro:choice:4") == 0.25
    assert chance("mmlu", higher_is_better=False) == 0.75
    assert chance("gsm8k") == 0.0
    with pytest.raises(InputError, match="task_facts"):
        chance("my_own_task")


def test_chance_goes_by_the_metric() -> None:
    assert (
        chance("cola") == chance("cola", metric="mcc") == 0.0
    )  # its scores are Matthews correlations
    assert chance("cola", metric="acc") == 0.5
    assert chance("mmlu", metric="brier_score", higher_is_better=False) == 0.75
    with pytest.raises(InputError, match="mrpc by f1 is not known"):
        chance("mrpc", metric="f1")
    assert chance("own", chances={"own": 0.2}) == chance("own:cloze", chances={"own": 0.2}) == 0.2
    assert chance("own", metric="brier_score", higher_is_better=False, chances={"own": 0.2}) == 0.8


def test_chance_of_every_benchmark_that_the_facts_ship() -> None:
    """The five of the leaderboard's second version too; their options are those of the harness's own files."""
    known = {b.task: chance(b.task) for b in benchmarks()}
    v2 = {task: share for task, share in known.items() if task.startswith("leaderboard_")}
    assert v2.pop("leaderboard_bbh") == pytest.approx(0.2917, abs=1e-4)
    assert v2.pop("leaderboard_musr") == pytest.approx((1 / 2 + 1 / 5 + 1 / 3) / 3)
    assert v2 == {
        "leaderboard_mmlu_pro": 0.1,
        "leaderboard_gpqa": 0.25,
        "leaderboard_math_hard": 0.0,
    }


def test_the_options_of_bbh_are_those_of_its_members() -> None:
    import lm_eval
    import yaml

    folder = Path(lm_eval.__file__).parent / "tasks" / "leaderboard" / "bbh_mc"
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_multi_constructor("!", lambda loader, suffix, node: None)
    configs = [yaml.load(path.read_text(), loader) for path in sorted(folder.glob("*.yaml"))]
    options = [len(c["doc_to_choice"]) for c in configs if "doc_to_choice" in c]
    assert len(options) == 24
    assert chance("leaderboard_bbh") == pytest.approx(np.mean([1 / k for k in options]))


def test_whole_analysis_answers_every_question() -> None:
    pair, _ = _planted()
    found = analyze_score_pair(pair, pair.cohort.split_by_column("language", "en+cn"), draws=49)
    assert set(found) == {
        "adjustment",
        "mediation",
        "gain",
        "frontier",
        "ranks",
        "families",
        "discrimination",
    }
    for finding in found.values():
        assert finding.tables()
        assert finding.to_dict()


def test_every_rate_is_shown_and_a_favoured_group_gains_what_its_best_rate_gives():
    """Appendix B.3: the newer models get their best rate by the test, the others keep theirs."""
    from potentia.papers.task_training.learning_rates import compare_rates

    rng = np.random.default_rng(0)
    names = tuple(f"m{k}" for k in range(24))
    compute = np.linspace(20, 24, 24)
    cohort = Cohort(names, 10**compute, tuple(f"f{k % 8}" for k in range(24)))
    after = 0.2 + 0.1 * (compute - 20) + rng.normal(size=24) * 0.01
    pair = ScorePair("mmlu", cohort, after - 0.05, after, 0.25)
    parts = ModelSplit("newer", np.arange(24) % 2 == 1)
    rates = {
        m: {2e-6: float(a) - 0.02, 2e-5: float(a) + 0.03} for m, a in zip(names, after, strict=True)
    }
    found = compare_rates(
        "mmlu", rates, pair, parts, chosen=dict(zip(names, after.tolist(), strict=True)), draws=0
    )
    assert found.rates == (2e-6, 2e-5)
    assert found.values.shape == (24, 2)
    gained = found.favoured.effect.value - found.usual.effect.value
    assert gained == pytest.approx(0.03, abs=0.01), (
        "half of the models rise by what the better rate is worth"
    )
    assert "θ by search budget" in found.tables()[1].title
    alone = compare_rates("mmlu", rates)
    assert len(alone.tables()) == 1


def test_too_few_models_for_an_emergence_curve_are_told(tmp_path: Path) -> None:
    """Steps of the adjustment are there, but three models lie outside the group."""
    lines = ["protocol,model,benchmark,score,stderr"]
    facts = ["model,family,params_b,tokens_b,trained"]
    for number in range(12):
        model = f"model-{number}"
        month = "2022-01" if number < 3 else "2024-05"
        facts.append(f"{model},family-{number % 4},{0.1 * 2**number},300,{month}")
        for protocol in ("direct", "adjust", "adjust@10"):
            lines.append(f"{protocol},{model},arc_easy,{0.3 + 0.04 * number},0.01")
    (tmp_path / "scores.csv").write_text("\n".join(lines))
    (tmp_path / "facts.csv").write_text("\n".join(facts))
    evidence = potentia.read(str(tmp_path / "scores.csv"), facts=str(tmp_path / "facts.csv"))
    few = find_test_task(evidence, TestTaskOptions(since="2023-11", draws=0))
    assert "emergence" not in few.tasks["arc_easy"]
    assert any("3 models are outside the group and 8 are needed" in text for text in few.problems)
    enough = find_test_task(evidence, TestTaskOptions(since="2024-06", draws=0))
    assert "emergence" in enough.tasks["arc_easy"]
