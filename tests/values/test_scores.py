"""The ScoreMatrix: shapes, directions, selection, gaps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potentia.errors import InputError
from potentia.values.metric import Metric, Origin, find_differences
from potentia.values.protocol import TaskName
from potentia.values.scores import ItemOutcome, Score, ScoreMatrix, seed_error


def matrix() -> ScoreMatrix:
    return ScoreMatrix.build(
        ["a", "b", "c"],
        ["x", "y"],
        [[1, 2], [3, math.nan], [5, 6]],
        stderr=[[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]],
        n=[[10, 20], [30, 40], [50, 60]],
        higher_is_better=[True, False],
        protocol="train_before_test",
    )


def test_unknown_parts_are_nan() -> None:
    plain = ScoreMatrix.build(["a"], ["x", "y"], [[1, 2]])
    assert plain.protocol == "direct"
    assert np.isnan(plain.stderr).all()
    assert np.isnan(plain.n).all()
    assert plain.stderr is not plain.n
    assert plain.higher_is_better == (True, True)
    assert plain.shape == (1, 2)


def test_orientation_makes_higher_better() -> None:
    assert matrix().oriented()[[0, 2]].tolist() == [[1, -2], [5, -6]]


def test_a_frame_is_a_copy() -> None:
    scores = matrix()
    frame = scores.to_frame()
    frame.loc["a", "x"] = 100.0
    assert scores.values[0, 0] == 1


def test_what_is_unknown_of_a_metric_is_filled_in() -> None:
    written = Metric("exact_match", kind="task", chance=0.0)
    fallback = Metric("acc", scale="share", chance=0.25)
    filled = written.fill_gaps_from(fallback)
    assert filled == Metric("exact_match", kind="task", scale="share", chance=0.0)
    assert Metric("acc").fill_gaps_from(fallback).chance == 0.25


def test_selection_keeps_the_order_given() -> None:
    part = matrix().select(models=["c", "a"], tasks=["y"])
    assert (part.models, part.tasks, part.higher_is_better, part.protocol) == (
        ("c", "a"),
        ("y",),
        (False,),
        "train_before_test",
    )
    assert part.values.tolist() == [[6], [2]]
    assert part.stderr.tolist() == [[0.6], [0.2]]
    assert part.n.tolist() == [[60], [20]]


def test_complete_drops_models_with_gaps() -> None:
    assert matrix().drop_incomplete_models().models == ("a", "c")
    assert matrix().select(tasks=["x"]).drop_incomplete_models().models == ("a", "b", "c")


def test_unknown_names_are_said() -> None:
    with pytest.raises(InputError, match=r"no model 'z'.*\n.*a, b, c"):
        matrix().select(models=["z"])
    with pytest.raises(InputError, match="no task 'z'"):
        matrix().select(tasks=["z"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": ("a", "b")}, "shape"),
        ({"stderr": np.zeros((3, 1))}, "stderr has shape"),
        ({"n": np.zeros((1, 2))}, "n has shape"),
        ({"metrics": (Metric("acc"),)}, "one entry per task"),
        ({"models": ("a", "b", "a")}, "model named twice: a"),
        ({"tasks": ("x", "x")}, "task named twice: x"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused(change: dict[str, object], words: str) -> None:
    good = matrix()
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    with pytest.raises(InputError, match=words):
        ScoreMatrix(**{**fields, **change})


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(3)), st.permutations(range(2)))
def test_selecting_back_and_forth_changes_nothing(rows: list[int], columns: list[int]) -> None:
    whole = matrix()
    mixed = whole.select(
        models=[whole.models[i] for i in rows], tasks=[whole.tasks[j] for j in columns]
    )
    back = mixed.select(models=whole.models, tasks=whole.tasks)
    assert back.models == whole.models
    assert back.higher_is_better == whole.higher_is_better
    np.testing.assert_array_equal(back.values, whole.values)
    np.testing.assert_array_equal(back.n, whole.n)


def test_seeds_enter_the_standard_error() -> None:
    """Three seeds of one cell: the stored error was 0.0249, as if there were one."""
    parts = [Score(value, 0.0249, 300, Metric.of("acc")) for value in (0.263, 0.207, 0.277)]
    mean = Score.mean(parts)
    assert mean.value == pytest.approx(0.249)
    assert mean.seeds == (0.263, 0.207, 0.277)
    assert mean.stderr == pytest.approx(0.0328, abs=1e-4)
    assert seed_error(mean.seeds) == pytest.approx(0.0214, abs=1e-4)


def test_items_of_several_seeds_are_their_means() -> None:
    """The items were the first seed's: a pair differed by 0.2256 in scores and by 0.2333 in the paired table."""
    from potentia.run.ask import Evaluation

    def once(values: list[float]) -> Evaluation:
        score = Score(sum(values) / len(values), 0.1, len(values), Metric.of("acc"))
        return Evaluation(
            [ItemOutcome(k, v, str(v), "1", {}) for k, v in enumerate(values)],
            {"acc": score},
            "acc",
        )

    mean = Evaluation.mean([once([1, 0, 0]), once([1, 1, 0])])
    assert [item.value for item in mean.outcomes] == [1, 0.5, 0]
    assert sum(item.value for item in mean.outcomes) / 3 == pytest.approx(mean.main.value)
    assert Evaluation.from_json(mean.to_json()).main == mean.main


def test_a_task_name_knows_its_parts() -> None:
    name = TaskName("mmlu:choice:4#2/5")
    assert (name.base, name.form, name.fold, name.whole, name.choices) == (
        "mmlu",
        "choice:4",
        (2, 5),
        "mmlu:choice:4",
        4,
    )
    assert (TaskName("arc").form, TaskName("arc").fold, TaskName("arc").whole) == ("", None, "arc")
    assert TaskName("a:choice:4:7").choices == 4
    assert TaskName("a:cloze").choices is None


def test_only_what_is_known_on_both_sides_forbids_comparing() -> None:
    first = Score(0.5, 0.1, 10, Metric.of("acc"), Origin(data="d", recipe="r", shots=0))
    assert (
        find_differences(
            first, replace(first, metric=Metric.of("accuracy"), origin=Origin(data="d"))
        )
        == ()
    )
    second = replace(
        first, metric=Metric.of("acc_norm"), origin=Origin(data="e", recipe="s", shots=5)
    )
    assert [d.property_name for d in find_differences(first, second)] == [
        "metric",
        "data",
        "recipe",
        "examples in the prompt",
    ]
    wer, bits = (replace(first, metric=Metric.of(name)) for name in ("wer", "bits_per_byte"))
    assert {d.property_name for d in find_differences(wer, bits)} == {"metric", "kind"}
