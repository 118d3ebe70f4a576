"""Pretraining runs followed through their checkpoints: means, the step from which on their order is final, words."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau

from potentia.analysis.checkpoints import find_training
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.show import make_report
from potentia.show.sections import build_sections
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
    found = find_training(evidence())
    assert found.tasks == ("x", "y"), "bits have no part in a mean of scores"
    assert [run.series for run in found.runs] == ["one", "two"]
    for run in found.runs:
        assert run.steps.tolist() == list(STEPS[run.series])
        for protocol, values in (("direct", DIRECT), ("train_before_test", TUNED)):
            np.testing.assert_allclose(run.scores[protocol], values[run.series])
            np.testing.assert_allclose(run.errors[protocol], 0.01 / np.sqrt(2))
            expected = kendalltau(values[run.series], STEPS[run.series]).statistic
            assert run.measure_tau(protocol) == pytest.approx(expected)
    assert found.finals == ("one@800", "two@900")
    assert found.whole


def test_the_order_is_settled_where_it_is_final_ever_after():
    found = find_training(evidence())
    direct, tuned = found.protocols
    # tuned: at 150 one has .30 (its 100) and two .40; at 200 .50 and .40; then one stays ahead to the end
    assert found.find_settled_step(tuned) == 200
    # direct: two is ahead at 300 (.30 against .29), behind at 400 (.30 against .31), ahead from 600 on
    assert found.find_settled_step(direct) == 600
    assert found.headline() == (
        "one is the best of 2 runs at the last checkpoints: 0.100 ± 0.020 ahead of two"
        " (train-before-test, over 2 tasks)."
    )
    told = found.sentences()
    assert told[0] == "The runs are in their final order (two, one) from step 600 on (direct)."
    assert "(one, two) from step 200 on" in told[1]
    assert "it is still improving (+0.100 since step 400)" in told[2]


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
    found = find_training(Evidence.of(scores))
    assert found.find_settled_step(found.protocols[0]) is None
    assert "only at the last checkpoint" in found.sentences()[0]


def test_one_run_has_a_course_and_no_order():
    found = find_training(evidence(models=[m for m in MODELS if m.startswith("two")]))
    assert (
        found.headline()
        == "two improved over 4 checkpoints (0.400 → 0.700, ± 0.020; train-before-test, over 2 tasks)."
    )
    assert len(found.sentences()) == 1
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
    told = {id: html for id, _, html in build_sections(mixed)}
    assert 'id="fig-training"' not in told["answer"]
    assert 'id="fig-training"' in told["stability"]
    assert "ranks" in told
