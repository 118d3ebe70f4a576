"""Potentia from Python: one call that runs, tables for pandas, findings that show themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import potentia
import tiny


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> potentia.Result:
    folder = tmp_path_factory.mktemp("notebook")
    for k in range(3):
        tiny.save_model(folder / f"m{k}", seed=k)
    tiny.save_questions(folder / "colours.jsonl", n=80)
    tiny.save_questions(folder / "plants.jsonl", n=80, seed=1)
    return potentia.evaluate(
        models=[str(folder / f"m{k}") for k in range(3)],
        tasks=[{"name": n, "file": str(folder / f"{n}.jsonl")} for n in ("colours", "plants")],
        protocols=["direct", "train_before_test"],
        tuning={"learning_rates": [3e-3], "epochs": 1, "dropout": 0.0},
        device="cpu",
        store=str(folder / "s.db"),
    )


def test_one_call_runs_a_study_and_holds_what_it_found(
    result: potentia.Result, tmp_path: Path
) -> None:
    assert (result.run.computed, result.run.failed) == (12, 0)
    scores = result.scores
    assert {
        "protocol",
        "model",
        "task",
        "metric",
        "score",
        "stderr",
        "n",
        "higher_is_better",
        "kind",
    } <= {*scores}
    assert len(scores) == 12
    assert set(scores.protocol) == {"direct", "train_before_test"}
    matrix = result.evidence.scores["direct"]
    row = scores[
        (scores.protocol == "direct")
        & (scores.model == matrix.models[0])
        & (scores.task == "plants")
    ]
    assert (
        row.score.item() == matrix.select(models=[matrix.models[0]], tasks=["plants"]).values[0, 0]
    )
    assert result.rankings.overall["train_before_test"].models
    assert result.report(tmp_path / "r.html").stat().st_size > 100_000
    again = potentia.evaluate(result.study, progress=False)
    assert (again.run.computed, again.run.reused) == (0, 12)


def test_findings_show_and_plot_themselves(result: potentia.Result, tmp_path: Path) -> None:
    html = result._repr_html_()
    assert html.count("<table") >= 1
    assert result.evidence.models[0].rpartition("/")[2] in html
    aggregate = result.rankings.aggregate["direct"]
    figure = aggregate.plot()
    assert figure._repr_svg_().startswith("<svg")
    named = aggregate.plot(aggregate.charts()[-1].name)
    assert aggregate.charts()[-1].title in named.svg
    assert named.save(tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(LookupError, match="there are: aggregate-methods-direct"):
        aggregate.plot("nope")


def test_tables_escape_what_they_show() -> None:
    from potentia.values.findings import Table

    html = Table(
        "<b>", ("a", "b"), (("<script>", None), (0.12345, True)), note="x & y"
    )._repr_html_()
    assert "<script>" not in html
    assert "&lt;b&gt;" in html
    assert "<td>–</td>" in html
    assert "<td>0.123</td><td>yes</td>" in html


def test_matrices_go_to_pandas_and_back() -> None:
    matrix = potentia.ScoreMatrix.build(
        ["a", "b"], ["x", "y"], [[0.1, np.nan], [0.3, 0.4]], protocol="few_shot:5"
    )
    frame = matrix.to_frame()
    assert frame.loc["b", "y"] == 0.4
    again = potentia.read(frame).scores["direct"]
    np.testing.assert_array_equal(again.values, matrix.values)
    assert (again.models, again.tasks) == (matrix.models, matrix.tasks)
    tidy = frame.reset_index().melt("model", var_name="task", value_name="score").dropna()
    assert potentia.read(tidy).scores["direct"].to_frame().loc["b", "y"] == 0.4
    assert "few" not in matrix._repr_html_()


def test_a_failed_cell_is_a_warning_with_the_reason(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "m")
    tiny.save_questions(tmp_path / "q.jsonl", n=30)
    weights = tiny.save_model(tmp_path / "broken") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.warns(UserWarning, match="broken"):
        potentia.evaluate(
            models=[str(tmp_path / "m"), str(tmp_path / "broken")],
            tasks=[str(tmp_path / "q.jsonl")],
            protocols=["direct"],
            device="cpu",
            store=str(tmp_path / "s.db"),
            progress=False,
        )
