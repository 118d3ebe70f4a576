"""What follows from adjustment, on small data whose answers are known by hand or by construction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import potentia
from potentia.errors import DataError, InputError
from potentia.facts import benchmarks, compute_chance_score, models, read_facts
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
    groups = compare_groups(pair, split, draws=199)
    assert groups.before.effect.value == pytest.approx(0.1, abs=0.015)
    assert groups.before.effect.clustered_p < 0.001
    assert abs(groups.after.effect.value) < 0.015
    assert groups.after.fit.emergence.value == pytest.approx(20.5, abs=0.2)
    assert len(groups.charts()) == 2
    assert groups.to_dict()["before"]["fit"]["n"] == 40


def test_mediation_finds_direct_and_indirect_effects() -> None:
    cohort = _cohort(80)
    split = cohort.split_by_month("2023-11")
    x, new = cohort.log_compute, split.members.astype(float)
    bend = np.maximum(0, x - 22) * 0.05 + np.maximum(0, x - 23) * 0.1
    after = 0.3 + 0.02 * x + bend + 0.04 * new
    before = after - 0.2 + 0.07 * new + 0.01 * x
    mediation = measure_mediation(ScorePair("t", cohort, before, after), split)
    assert mediation.direct.value == pytest.approx(0.04, abs=1e-9)
    assert mediation.mediated.value == pytest.approx(0.07, abs=1e-9)
    assert mediation.direct_r2 == pytest.approx(1.0)


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
    frontier_shift = measure_frontier_shift(pair, cohort.split_by_month("2023-11"))
    # before: b lifts 0.3 to 0.6 from 21 to 22, and 0.5 to 0.6 from 22 to 23; d stands at the end
    assert frontier_shift.areas == pytest.approx((0.3 + 0.1, 0.1))
    assert frontier_shift.ratio == pytest.approx(4.0)
    assert "shrinks 4.0-fold" in frontier_shift.tables()[0].note
    level = ScorePair("t", cohort, pair.before, np.array([0.6, 0.4, 0.7, 0.5]), chance=0.25)
    assert (
        "It vanishes by adjustment."
        in measure_frontier_shift(level, cohort.split_by_month("2023-11")).tables()[0].note
    )
    tied = ScorePair("t", cohort, np.array([0.3, 0.3, 0.5, 0.9]), pair.after, chance=0.25)
    moved = measure_rank_shift(tied).tables()[1]
    assert "3.5" in str(moved), "shared places are not rounded"
    assert frontier_shift.frontiers_of_all[0].models == ("a", "b", "d")
    assert frontier_shift.frontiers_of_all[1].models == ("a", "b", "c")


def test_frontier_does_not_depend_on_the_order_of_models() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(20, 24, 30), rng.random(30)
    names = [f"m{i}" for i in range(30)]
    order = rng.permutation(30)
    first = pareto_frontier(names, x, y)
    second = pareto_frontier([names[i] for i in order], x[order], y[order])
    assert first.models == second.models
    assert np.all(np.diff(first.scores) > 0)
    assert np.all(np.diff(first.log_compute) > 0)


def test_rank_shift_by_hand() -> None:
    cohort = _cohort(4)
    rank_shift = measure_rank_shift(
        ScorePair("t", cohort, np.array([4.0, 3, 2, 1]), np.array([1.0, 4, 3, 2]))
    )
    assert rank_shift.shifts.tolist() == [-3, 1, 1, 1]
    assert (rank_shift.mean, rank_shift.largest) == (1.5, 3)
    flipped = measure_rank_shift(
        ScorePair(
            "t", cohort, -rank_shift.ranks[:, 0], rank_shift.ranks[:, 1], higher_is_better=False
        )
    )
    assert flipped.ranks[0, 1] == 4


def test_families_fall_onto_one_line_after_adjustment() -> None:
    pair, _ = _planted()
    families = compare_families(pair, ["f0", "f1", "f4", "f5"])
    distance = families.residuals()
    assert distance["f4"][0] - distance["f0"][0] > 0.05
    assert abs(distance["f4"][1] - distance["f0"][1]) < 0.04
    assert [len(curve.models) for curve in families.curves] == [5, 5, 5, 5]
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
    emergence = trace_emergence("t", stages, cohort, chance=0.25)
    assert emergence.examples == (0, 1000, 64000)
    assert [h.emergence.value for h in emergence.hinges] == pytest.approx(
        [22.5, 21.5, 20.2], abs=1e-6
    )
    assert emergence.lines[0].r2 < emergence.lines[1].r2 < emergence.lines[2].r2


def test_treatment_copies_show_an_effect_that_adjustment_removes() -> None:
    cohort = _cohort()
    rng = np.random.default_rng(7)
    base = 0.25 + 0.12 * np.maximum(0, cohort.log_compute - 21.5) + rng.normal(scale=0.01, size=40)
    control = dict(zip(cohort.models, base, strict=True))
    treated = {name: score + 0.08 for name, score in control.items()}
    adjusted = {name: score + 0.1 for name, score in control.items()}
    treated_copies = compare_treated_copies(
        "t",
        control,
        treated,
        cohort,
        control_adjusted=adjusted,
        treated_adjusted=adjusted,
        chance=0.25,
        draws=99,
    )
    assert treated_copies.before.effect is not None
    assert treated_copies.after is not None
    assert treated_copies.after.effect is not None
    assert treated_copies.before.effect.value == pytest.approx(0.08, abs=0.02)
    assert abs(treated_copies.after.effect.value) < 0.01
    assert all(cohort.compute[cohort.models.index(name)] >= 7e21 for name in treated_copies.treated)
    assert len(treated_copies.treated) < len(treated_copies.control)


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
        discrimination = measure_discrimination(mixed, ModelSplit("even", labels), trees=trees)
        assert discrimination.before > 0.9
        assert discrimination.after < 0.75
        assert discrimination.trees == trees
        assert (
            discrimination.before_interval.low
            <= discrimination.before
            <= discrimination.before_interval.high
        )
        # fifteen on each side: one model weighs a thirtieth, and the interval is at least that wide
        assert discrimination.after_interval.high - discrimination.after_interval.low > 1 / 30
        assert "0.033" in discrimination.tables()[0].note
    assert discrimination.after_interval.low < 0.5 < discrimination.after_interval.high


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
    discrimination = measure_discrimination(pair, split)
    assert discrimination.trees == "xgboost"
    assert discrimination.before == pytest.approx(balanced_accuracy_score(y, guesses))


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
    assert explain_unpaired(before, after, cohort, "t") == {
        "no score after the adjustment": ("b", "c")
    }
    known = Cohort.from_records([{"model": "b", "compute": 1e21}])
    named = explain_unpaired(after, before, known, "t")
    assert named["no score after the adjustment"] == ("b", "c")
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
    assert (
        compute_chance_score("mmlu")
        == compute_chance_score("mmlu:cloze")
        == compute_chance_score("mmlu_cloze")
        == 0.25
    )
    assert compute_chance_score("mmlu_pro") == 0.1
    assert compute_chance_score("mmlu_pro:choice:4") == 0.25
    assert compute_chance_score("mmlu_pro_biology") == 0.1  # no subject of MMLU
    assert compute_chance_score("mmlu_prox_en_biology") == 0.1
    assert compute_chance_score("mmlu", higher_is_better=False) == 0.75
    assert compute_chance_score("gsm8k") == 0.0
    with pytest.raises(InputError, match="task_facts"):
        compute_chance_score("my_own_task")


def test_chance_goes_by_the_metric() -> None:
    assert (
        compute_chance_score("cola") == compute_chance_score("cola", metric="mcc") == 0.0
    )  # its scores are Matthews correlations
    assert compute_chance_score("cola", metric="acc") == 0.5
    assert compute_chance_score("mmlu", metric="brier_score", higher_is_better=False) == 0.75
    assert compute_chance_score("mmlu", metric="brier_score") == 0.75
    with pytest.raises(InputError, match="mrpc by f1 is not known"):
        compute_chance_score("mrpc", metric="f1")
    assert (
        compute_chance_score("own", guess_accuracies={"own": 0.2})
        == compute_chance_score("own:cloze", guess_accuracies={"own": 0.2})
        == 0.2
    )
    assert (
        compute_chance_score(
            "own", metric="brier_score", higher_is_better=False, guess_accuracies={"own": 0.2}
        )
        == 0.8
    )


def test_chance_of_every_benchmark_that_the_facts_ship() -> None:
    """The five of the leaderboard's second version too; their options are those of the harness's own files."""
    known = {b.task: compute_chance_score(b.task) for b in benchmarks()}
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
    assert compute_chance_score("leaderboard_bbh") == pytest.approx(
        np.mean([1 / k for k in options])
    )


def test_whole_analysis_answers_every_question() -> None:
    pair, _ = _planted()
    score_pair = analyze_score_pair(
        pair, pair.cohort.split_by_column("language", "en+cn"), draws=49
    )
    assert set(score_pair) == {
        "adjustment",
        "mediation",
        "gain",
        "frontier",
        "ranks",
        "families",
        "discrimination",
    }
    for finding in score_pair.values():
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
    result = compare_rates(
        "mmlu", rates, pair, parts, chosen=dict(zip(names, after.tolist(), strict=True)), draws=0
    )
    assert result.rates == (2e-6, 2e-5)
    assert result.values.shape == (24, 2)
    gained = result.favoured.effect.value - result.usual.effect.value
    assert gained == pytest.approx(0.03, abs=0.01), (
        "half of the models rise by what the better rate is worth"
    )
    assert "θ by search budget" in result.tables()[1].title
    alone = compare_rates("mmlu", rates)
    assert len(alone.tables()) == 1


def test_without_scores_on_the_way_the_emergence_curve_says_what_gives_them(
    tmp_path: Path,
) -> None:
    lines = ["protocol,model,benchmark,score,stderr"]
    facts = ["model,family,params_b,tokens_b,trained"]
    for number in range(12):
        facts.append(f"model-{number},family-{number % 4},{0.1 * 2**number},300,2022-01")
        for protocol in ("direct", "adjust"):
            for task in ("arc_easy", "boolq"):
                lines.append(f"{protocol},model-{number},{task},{0.3 + 0.04 * number},0.01")
    (tmp_path / "scores.csv").write_text("\n".join(lines))
    (tmp_path / "facts.csv").write_text("\n".join(facts))
    evidence = potentia.read(str(tmp_path / "scores.csv"), facts=str(tmp_path / "facts.csv"))
    problems = find_test_task(evidence, TestTaskOptions(draws=0)).problems
    assert (
        "arc_easy and boolq: no emergence curve: at_steps in the study's adjust gives scores on the way"
        in problems
    )
    named = find_test_task(evidence, TestTaskOptions(draws=0, steps="inter_mc")).problems
    assert (
        "arc_easy and boolq: no emergence curve: there are no scores at steps of inter_mc" in named
    )


def test_a_point_of_emergence_below_all_models_is_called_so() -> None:
    """Scores far above chance that rise no more: c_e is −∞, and no FLOPs can be given."""
    cohort = _cohort()
    level = dict.fromkeys(cohort.models, 0.6)
    rising = {
        model: 0.25 + 0.1 * max(0.0, compute - 21.5)
        for model, compute in zip(cohort.models, cohort.log_compute.tolist(), strict=True)
    }
    flat = dict.fromkeys(cohort.models, 0.25)
    curve = trace_emergence("t", {0: rising, 10: level, 20: flat}, cohort, chance=0.25)
    assert curve.hinges[1].emergence.value == -np.inf
    (table,) = curve.tables()
    columns = list(table.columns)
    values = {
        name: [row[columns.index(name)] for row in table.rows]
        for name in ("c_e", "c_e 95 %", "FLOPs")
    }
    assert values["c_e"] == [pytest.approx(21.5), "below all models", None]
    assert values["FLOPs"] == [f"{10**21.5:.1e}", None, None]
    assert values["c_e 95 %"][1:] == [None, None]
    assert "inf" not in str(table.rows)
    (c_e_chart,) = [chart for chart in curve.charts() if chart.name == "t-emergence"]
    assert not np.isinf(c_e_chart.lines[0].y).any()


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
    test_task = find_test_task(evidence, TestTaskOptions(since="2023-11", draws=0))
    assert "emergence" not in test_task.tasks["arc_easy"]
    assert any("needs 8 models outside the group, here: 3" in text for text in test_task.problems)
    few_lines = [line for line in lines if ",model-0," in line or ",model-11," in line]
    (tmp_path / "few.csv").write_text("\n".join([lines[0], *few_lines]))
    few = potentia.read(str(tmp_path / "few.csv"), facts=str(tmp_path / "facts.csv"))
    too_few = find_test_task(few, TestTaskOptions(since="2023-11", draws=0))  # for a fit, too
    assert any("outside the group, here: 1" in text for text in too_few.problems)
    enough = find_test_task(evidence, TestTaskOptions(since="2024-06", draws=0))
    assert "emergence" in enough.tasks["arc_easy"]
