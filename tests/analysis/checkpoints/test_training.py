"""Pretraining runs followed through their checkpoints: means, the step from which on their order is final, words."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from potentia.analysis.checkpoints import find_training
from potentia.analysis.checkpoints.training_runs import Training, follow_training
from potentia.analysis.lineage import find_checkpoints
from potentia.analysis.rankings import find_pair
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.show import make_report
from potentia.show.charts import draw_chart
from potentia.show.sections import build_sections
from potentia.values.protocol import DIRECT as DIRECT_PROTOCOL
from potentia.values.scores import ScoreMatrix

STEPS = {"one": (100, 200, 400, 800), "two": (150, 300, 600, 900)}
DIRECT = {"one": (0.30, 0.29, 0.31, 0.30), "two": (0.25, 0.30, 0.40, 0.45)}
TUNED = {"one": (0.30, 0.50, 0.70, 0.80), "two": (0.40, 0.45, 0.60, 0.70)}
MODELS = [f"{run}@{step}" for run, steps in STEPS.items() for step in steps]


def evidence(*, models: list[str] = MODELS, text: bool = True) -> Evidence:
    scores = {}
    for protocol, values in (("direct", DIRECT), ("train_before_test", TUNED)):
        known = {
            f"{run}@{s}": v for run in STEPS for s, v in zip(STEPS[run], values[run], strict=True)
        }
        column = np.array([known.get(model, 0.5) for model in models])
        table = np.stack([column - 0.1, column + 0.1, np.full(len(models), 2.0)], axis=1)
        scores[protocol] = ScoreMatrix.build(
            models,
            ["x", "y", "text"],
            table,
            stderr=np.full(table.shape, 0.01),
            protocol=protocol,
            higher_is_better=[True, True, False],
            metrics=["acc", "acc", "bits_per_byte"],
        )
    return Evidence.of(scores)


def test_means_are_over_the_tasks_and_runs_are_in_their_final_order():
    training = find_training(evidence())
    assert training.tasks == ("x", "y"), "bits have no part in a mean of scores"
    assert [run.series for run in training.runs] == ["one", "two"]
    for run in training.runs:
        assert run.steps.tolist() == list(STEPS[run.series])
        for protocol, values in (("direct", DIRECT), ("train_before_test", TUNED)):
            np.testing.assert_allclose(run.scores[protocol], values[run.series])
            np.testing.assert_allclose(run.errors[protocol], 0.01 / np.sqrt(2))
            expected = kendalltau(values[run.series], STEPS[run.series]).statistic
            assert run.measure_tau(protocol) == pytest.approx(expected)
    assert training.finals == ("one@800", "two@900")
    assert training.whole


def test_the_order_is_settled_where_it_is_final_ever_after():
    training = find_training(evidence())
    direct, tuned = training.protocols
    # tuned: at 150 one has .30 (its 100) and two .40; at 200 .50 and .40; then one stays ahead to the end
    assert training.find_settled_step(tuned) == 200
    # direct: two is ahead at 300 (.30 against .29), behind at 400 (.30 against .31), ahead from 600 on
    assert training.find_settled_step(direct) == 600
    assert training.headline() == (
        "one is the best of 2 runs at the last checkpoints: 0.100 ahead of two"
        " (± 0.020 by test noise alone; after fine-tuning, over 2 tasks)."
    )
    sentences = training.sentences()
    improved = (
        "improved over 4 checkpoints (0.300 → 0.800, ± 0.020; after fine-tuning, over 2 tasks)"
    )
    assert sentences[0].startswith(f"one {improved}; it is still improving: "), "one line per run"
    assert "better than the one before (+0.100 since step 400, over 99 % sure)" in sentences[0]
    assert sentences[1].startswith("two improved over 4 checkpoints (0.400 → 0.700")
    assert (
        sentences[2]
        == "The runs are in their final order (two, one) from step 600 on (before fine-tuning)."
    )
    assert "(one, two) from step 200 on" in sentences[3]


def test_an_order_that_turns_at_the_end_is_not_settled_before():
    turned = evidence()
    values = turned.scores["direct"].values.copy()
    values[7, :2] = 0.1  # the last checkpoint of two falls below one
    scores = {
        **turned.scores,
        "direct": ScoreMatrix.build(
            MODELS,
            ["x", "y", "text"],
            values,
            stderr=np.full(values.shape, 0.01),
            higher_is_better=[True, True, False],
            metrics=["acc", "acc", "bits_per_byte"],
            protocol="direct",
        ),
    }
    training = find_training(Evidence.of(scores))
    assert training.find_settled_step(training.protocols[0]) is None
    assert "only at the last checkpoint" in training.sentences()[2]


def test_one_run_has_a_course_and_no_order():
    training = find_training(evidence(models=[m for m in MODELS if m.startswith("two")]))
    assert (
        training.headline()
        == "two improved over 4 checkpoints (0.400 → 0.700, ± 0.020; after fine-tuning, over 2 tasks)."
    )
    assert len(training.sentences()) == 1
    with pytest.raises(InputError, match="three or more checkpoints"):
        find_training(evidence(models=["one@100", "one@200", "other", "third"]))


def test_the_report_leads_with_curves_instead_of_many_models():
    data = make_report(evidence())
    sections = {id: html for id, _, html in build_sections(data)}
    assert data.training is not None
    assert "one is the best of 2 runs" in sections["answer"].replace(
        '<span class="whole">', ""
    ).replace("</span>", "")
    assert 'id="fig-training"' in sections["answer"]
    assert "Where the runs end" in sections["answer"]
    assert sections["answer"].count('class="rung') == 2
    assert "most likely the best" not in sections["answer"]
    assert "ranks" not in sections, "checkpoints of a run are no rivals"
    mixed = make_report(evidence(models=[*MODELS, "another"]))
    html_by_section = {id: html for id, _, html in build_sections(mixed)}
    assert 'id="fig-training"' not in html_by_section["answer"]
    assert 'id="fig-training"' in html_by_section["stability"]
    assert "ranks" in html_by_section


def equal_runs(rng: np.random.Generator, checkpoints: int) -> Evidence:
    """Two runs that never change and do not differ, tested with noise."""
    models = [f"{run}@{100 * step}" for run in ("one", "two") for step in range(1, checkpoints + 1)]
    values = 0.5 + 0.01 * rng.normal(size=(len(models), 3))
    matrix = ScoreMatrix.build(
        models,
        ["x", "y", "z"],
        values,
        stderr=np.full(values.shape, 0.01),
        metrics=["acc"] * 3,
        protocol="direct",
    )
    return Evidence.of(matrix)


def test_equal_runs_have_no_final_order_and_no_checkpoint_is_the_best():
    """An order of luck was "final", and the best of twelve equal checkpoints beyond test noise in a quarter of runs."""
    rng = np.random.default_rng(0)
    orders = courses = steps = 0
    for _ in range(60):
        text = find_training(equal_runs(rng, 12)).sentences()
        orders += "final order (" in text[-1]
        courses += any("above the last, beyond test noise" in sentence for sentence in text[:-1])
        steps += sum("better than the one before" in sentence for sentence in text[:-1])
        steps -= sum("not measurably better" in sentence for sentence in text[:-1])
        steps += sum("worse than the one before" in sentence for sentence in text[:-1])
    assert orders <= 8  # 5 % and three standard errors
    assert courses <= 12  # of two runs each
    assert steps <= 13  # of two runs each: 5 % and three standard errors


def test_pairs_within_test_noise_have_no_part_in_the_order():
    training = find_training(equal_runs(np.random.default_rng(1), 4))
    assert training.count_separate_pairs(training.main) == 0
    assert training.sentences()[-1].startswith("No two runs differ beyond test noise")


def made_runs(
    values: np.ndarray, tasks: list[str], *, stderr: float = 0.01, metrics: list[str] | None = None
) -> Evidence:
    """Two runs of three checkpoints each, with these scores (checkpoints, tasks)."""
    models = [f"{run}@{100 * step}" for run in ("one", "two") for step in (1, 2, 3)]
    matrix = ScoreMatrix.build(
        models,
        tasks,
        values,
        stderr=np.full(values.shape, stderr),
        metrics=metrics or ["acc"] * len(tasks),
        protocol="direct",
    )
    return Evidence.of(matrix)


def test_scores_of_different_scales_are_never_averaged():
    ratings = np.array([5.0, 6.0, 7.0, 5.5, 6.5, 7.5])[:, None]
    shares = np.array([0.3, 0.4, 0.6, 0.3, 0.4, 0.5])[:, None]
    training = find_training(
        made_runs(
            np.hstack([ratings, shares, shares - 0.1]),
            ["mt_bench", "arc_easy", "piqa"],
            metrics=["mt_bench", "acc", "acc"],
        )
    )
    assert training.tasks == ("arc_easy", "piqa")
    np.testing.assert_allclose(training.runs[0].scores[training.main], [0.25, 0.35, 0.55])
    assert any("mt_bench" in note for note in training.left_out)


def test_subsets_of_one_benchmark_count_as_one_task():
    subset = np.array([0.3, 0.4, 0.5, 0.4, 0.5, 0.6])[:, None]
    other = np.array([0.3, 0.4, 0.9, 0.4, 0.5, 0.6])[:, None]
    values = np.hstack([*[subset] * 8, other])
    tasks = [f"mmlu_{name}" for name in "abcdefgh"] + ["piqa"]
    training = find_training(made_runs(values, tasks))
    (one, two) = training.runs
    assert (one.series, two.series) == ("one", "two")
    assert one.scores[training.main][-1] == pytest.approx((0.5 + 0.9) / 2)
    assert one.errors[training.main][-1] == pytest.approx(0.01 / 2 * np.sqrt(1 + 1 / 8))
    assert "9 tasks in 2 groups" in training.headline()


def test_without_standard_errors_no_runs_are_said_to_be_alike():
    shares = np.array([0.3, 0.4, 0.9, 0.3, 0.4, 0.5])[:, None]
    headline = find_training(made_runs(shares, ["piqa"], stderr=np.nan)).headline()
    assert "not significantly different" not in headline
    assert headline.startswith("one has the best score of 2 runs at the last checkpoints")
    assert "nan" not in headline


def test_runs_that_are_equal_over_tasks_like_these_are_rarely_told_apart():
    """Each is better on some of twelve tasks: by test noise alone one was "the best" in most studies."""
    claims = 0
    studies = 100
    for seed in range(studies):
        rng = np.random.default_rng(seed)
        ends = 0.5 + 0.05 * rng.normal(size=(2, 1, 12))
        growth = np.array([-0.2, -0.1, 0.0])[None, :, None]
        values = (ends + growth).reshape(6, 12) + 0.01 * rng.normal(size=(6, 12))
        tasks = [f"{letter * 3}" for letter in "abcdefghijkl"]
        claims += "is the best of" in find_training(made_runs(values, tasks)).headline()
    assert claims <= 11  # 5 % and three standard errors


def test_a_run_whose_last_checkpoint_ties_with_an_earlier_one_is_not_said_to_be_below_it():
    """ "Its best checkpoint is step 100, 0.000 above the last" was said of two checkpoints at 0.9."""
    scores = np.array([[0.9, 0.6], [0.8, 0.7], [0.9, 0.6]])
    names = [f"run@{step}" for step in (100, 200, 300)]
    matrix = ScoreMatrix.build(names, ["a", "b"], scores, stderr=np.full((3, 2), 0.05))
    (course,) = find_training(Evidence.of(matrix)).sentences()
    assert "above the last" not in course
    assert (
        "the last checkpoint is the best, but not measurably better than the one before" in course
    )


def test_the_curves_of_runs_are_over_the_whole_page_and_shares_end_at_one():
    """The axis went up to 1.2 for an accuracy of 0.9 ± 0.11, on half of the page."""
    scores = np.array([[0.9], [0.87], [0.9]])
    names = [f"run@{step}" for step in (100, 200, 300)]
    matrix = ScoreMatrix.build(names, ["arc_easy"], scores, stderr=np.full((3, 1), 0.06))
    (plot,) = find_training(Evidence.of(matrix)).charts()
    assert plot.wide
    line, guessing = plot.lines
    assert guessing.name == "guessing"
    assert max(line.high) == 1.0


def matrix_of_answers(right: np.ndarray) -> ScoreMatrix:
    """Return the scores of the checkpoints of one run by their answers (checkpoints, examples) to one task."""
    models = [f"run@{100 * (k + 1)}" for k in range(len(right))]
    examples = right.shape[1]
    return ScoreMatrix.build(
        models,
        ["x"],
        right.mean(axis=1)[:, None],
        stderr=(right.std(axis=1, ddof=1) / np.sqrt(examples))[:, None],
        n=np.full((len(models), 1), examples),
        metrics=["acc"],
        protocol=DIRECT_PROTOCOL,
    )


def answers_of(right: np.ndarray) -> dict[str, dict[int, float]]:
    """Return the answers of the checkpoints of one run by document."""
    return {f"run@{100 * (k + 1)}": dict(enumerate(row)) for k, row in enumerate(right.tolist())}


def follow_answers(right: np.ndarray) -> Training:
    """Follow the checkpoints of one run by their answers (checkpoints, examples) to one task."""
    matrix = matrix_of_answers(right)
    return follow_training(
        {DIRECT_PROTOCOL: matrix},
        find_checkpoints(Evidence.of(matrix)),
        DIRECT_PROTOCOL,
        outcomes={DIRECT_PROTOCOL: {"x": answers_of(right)}},
    )


def test_checkpoints_are_compared_on_the_examples_that_both_answered():
    """The last one answers what the first does and 12 of 200 examples more: p < 0.001, and 0.23 by standard errors."""
    right = np.zeros((3, 200))
    right[:, :100] = 1.0
    right[2, 100:112] = 1.0
    training = follow_answers(right)
    assert training.headline().startswith("run improved over 3 checkpoints (0.500 → 0.560, ± 0.03")
    assert "it is still improving" in training.sentences()[0]


def test_a_run_that_stands_still_hardly_ever_improves():
    improved = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        chances = 1 / (1 + np.exp(2.0 * rng.normal(size=200)))
        training = follow_answers((rng.random((4, 200)) < chances).astype(float))
        improved += " improved " in training.headline()
    assert improved <= 8


def test_without_standard_errors_nothing_is_within_test_noise():
    models = [f"{run}@{step}" for run in ("one", "two") for step in (100, 200, 300)]
    values = np.array([[0.3], [0.5], [0.4], [0.3], [0.4], [0.6]])
    training = find_training(Evidence.of(ScoreMatrix.build(models, ["x"], values)))
    text = " ".join(training.sentences())
    assert "within test noise" not in text
    assert text.count("without standard errors nothing says") == 3


def test_the_last_checkpoint_is_compared_with_the_one_before_as_any_two_models():
    """`run` said "within test noise of the one before" where `compare` said "better (99 % sure)"."""
    right = np.zeros((7, 400))
    for checkpoint, count in enumerate((95, 118, 149, 217, 256)):
        right[checkpoint, :count] = 1.0
    right[5, :289] = 1.0
    right[6, 22:330] = (
        1.0  # 41 answers of its own against 22: z = 2.4, of six rivals 2.6 would be asked
    )
    training = follow_answers(right)
    course = training.sentences()[0]
    assert "better than the one before (+0.047 since step 600, 99 % sure)" in course
    chance = training.runs[0].chance_last_is_better[DIRECT_PROTOCOL]
    evidence_of_answers = Evidence.of(matrix_of_answers(right))
    evidence_of_answers = replace(
        evidence_of_answers, items_read={DIRECT_PROTOCOL: {"x": answers_of(right)}}
    )
    comparison = find_pair(evidence_of_answers, "run@700", "run@600")
    assert comparison.leads[DIRECT_PROTOCOL].chance == pytest.approx(chance)


def test_what_the_last_checkpoint_is_is_said_by_protocol_with_the_level_of_guessing():
    """A run that fell to guessing before fine-tuning was said to be best at its last checkpoint, and no more."""
    falling = np.array([0.29, 0.26, 0.24, 0.21])
    rising = np.array([0.29, 0.40, 0.60, 0.80])
    models = [f"run@{step}" for step in (100, 200, 400, 800)]
    scores = {
        protocol: ScoreMatrix.build(
            models,
            ["arc_easy"],
            column[:, None],
            stderr=np.full((4, 1), 0.02),
            protocol=protocol,
            metrics=["acc"],
        )
        for protocol, column in (("direct", falling), ("train_before_test", rising))
    }
    training = find_training(Evidence.of(scores))
    (course,) = training.sentences()
    assert course.startswith("run: after fine-tuning it is still improving")
    assert (
        "before fine-tuning scores fell (0.290 → 0.210) and are at the level of guessing (0.250)."
        in course
    )
    (plot,) = training.charts()
    guessing = next(line for line in plot.lines if line.name == "guessing")
    assert (guessing.x, guessing.y) == ((100.0, 800.0), (0.25, 0.25))


def test_the_ends_of_a_curve_are_named_and_no_name_stands_twice():
    """ "aster@390" stood twice on top of each other, and the first dots had no name."""
    (plot,) = find_training(evidence()).charts()
    drawing = str(draw_chart(plot).sheet.parts)
    for model in MODELS:
        assert drawing.count(f">{model}<") <= 1, model
    for end in ("one@800", "two@900"):
        assert drawing.count(f">{end}<") == 1, end


def test_every_run_stands_above_the_figure_and_its_checkpoints_are_no_models():
    sections = {id: html for id, _, html in build_sections(make_report(evidence()))}
    above, _, below = sections["answer"].partition('id="fig-training"')
    text_above = re.sub(r"</?span.*?>", "", above)
    assert "one improved over 4 checkpoints" in text_above
    assert "two improved over 4 checkpoints" in text_above
    assert "final order" in below
    assert "pairs of models" not in sections["answer"]
