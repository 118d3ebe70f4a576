"""As good within a margin: said of two models, of the smallest model beside the best, and seldom wrongly."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.rankings.findings import build_scoreboard
from potentia.analysis.rankings.margin import find_smallest_as_good
from potentia.analysis.rankings.pair import find_pair
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.non_inferiority import MarginVerdict
from potentia.errors import InputError
from potentia.evidence import Evidence, read
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix


def build_matrix(
    scores: list[float], *, stderr: float, models: list[str] | None = None, tasks: int = 3
) -> ScoreMatrix:
    names = models or [f"model{k}" for k in range(len(scores))]
    return ScoreMatrix.build(
        names,
        [f"task{k}" for k in range(tasks)],
        np.repeat(np.array(scores)[:, None], tasks, axis=1),
        stderr=np.full((len(scores), tasks), stderr),
        n=np.full((len(scores), tasks), 100_000),
        metrics=["acc"] * tasks,
    )


def test_two_models_within_a_margin() -> None:
    evidence = Evidence.of(build_matrix([0.700, 0.699], stderr=0.002))
    pair = find_pair(evidence, "model0", "model1", margin=0.01)
    (within,) = pair.margins.values()
    assert within.is_as_good
    assert (within.candidate, within.reference) == ("model1", "model0")
    assert "model1 is not worse than model0 by more than 0.01 on these 3 tasks" in str(
        pair.sentences()
    )
    (table,) = pair.tables()
    assert [list(row)[-1] for row in table.rows] == ["yes"] * 3


def test_a_small_test_leaves_it_open_and_says_what_would_decide() -> None:
    evidence = Evidence.of(build_matrix([0.700, 0.699], stderr=0.02))
    pair = find_pair(evidence, "model0", "model1", margin=0.01)
    (within,) = pair.margins.values()
    assert within.verdict is MarginVerdict.UNDECIDED
    # (2.80 · 0.02 · √2 / √3 / 0.01)² = 20.9
    assert within.examples_needed == pytest.approx(20.9, rel=0.01)
    assert "21 times as many test examples" in within.sentence()


def test_a_margin_that_is_none_is_refused() -> None:
    evidence = Evidence.of(build_matrix([0.7, 0.6], stderr=0.01))
    with pytest.raises(InputError, match="margin"):
        find_pair(evidence, "model0", "model1", margin=-0.01)


def test_the_scoreboard_names_the_smallest_model_that_is_as_good() -> None:
    models = ["Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-0.5B"]
    matrix = build_matrix([0.700, 0.699, 0.5], stderr=0.002, models=models)
    scoreboard = build_scoreboard(Evidence.of(matrix))
    smallest = scoreboard.smallest_as_good
    assert smallest is not None
    assert smallest.candidate == "Qwen/Qwen2.5-3B"
    assert any("Qwen2.5-3B is not worse than" in s for s in scoreboard.certainty())


def test_of_nine_models_that_are_worse_by_the_margin_few_are_called_as_good() -> None:
    rng = np.random.default_rng(0)
    sizes = {f"model{k}": 10.0 - k for k in range(10)}
    tasks = [f"task{k}" for k in range(3)]
    claims = 0
    studies = 400
    for _ in range(studies):
        true = np.array([0.7] + [0.69] * 9)[:, None]
        measured = rng.normal(true, 0.005, (10, 3))
        matrix = ScoreMatrix.build(
            list(sizes),
            tasks,
            measured,
            stderr=np.full((10, 3), 0.005),
            n=np.full((10, 3), 100_000),
            metrics=["acc"] * 3,
        )
        smallest_as_good = find_smallest_as_good(
            matrix, None, "model0", sizes, TaskGroups.find(tasks)
        )
        claims += smallest_as_good is not None
    assert claims / studies <= 0.05


def test_a_margin_over_tasks_of_different_scales_is_answered_task_by_task() -> None:
    values = np.array([[0.70, 7.0], [0.699, 6.9]])
    matrix = ScoreMatrix.build(
        ["model0", "model1"],
        ["task0", "mt_bench"],
        values,
        stderr=np.array([[0.001, 0.1], [0.001, 0.1]]),
        metrics=["acc", "mt_bench"],
    )
    pair = find_pair(Evidence.of(matrix), "model0", "model1", margin=0.01)
    assert not pair.margins
    said = pair.sentences()[-1]
    assert said.startswith("Whether model1 is as good as model0 within 0.01 over all tasks cannot")
    assert "different scales" in said
    (table,) = pair.tables()
    assert [list(row)[-1] for row in table.rows] == ["yes", "open"]


def test_the_difference_within_a_margin_has_the_sign_of_the_table(tmp_path):
    """ "−0.044 to −0.009" stood under a table of +0.034 and +0.044, and "if the two are equally good" beside it."""
    rows = "m1,0.74,0.014,0.82,0.012\nm2,0.71,0.014,0.79,0.012\n"
    path = tmp_path / "scores.csv"
    path.write_text(f"model,one,one_stderr,two,two_stderr\n{rows}")
    compared = find_pair(read(path), "m1", "m2", margin=0.01)
    assert compared.leads[Protocol("direct")].is_certain
    (said,) = [sentence for sentence in compared.sentences() if "within 0.01" in sentence]
    assert "is open" in said
    assert "+0.004 to +0.056" in said
    assert "equally good" not in said
    turned = find_pair(read(path), "m2", "m1", margin=0.01).sentences()
    assert any("-0.056 to -0.004" in sentence for sentence in turned)
