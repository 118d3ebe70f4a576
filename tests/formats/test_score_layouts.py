"""Tables and results as other tools and people write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from potentia.errors import DataError
from potentia.evidence import read
from potentia.formats import write_scores
from potentia.values.scores import ScoreMatrix

DATA = Path(__file__).parents[1] / "data"
# The header of the second Open LLM Leaderboard's export: averages, facts, normalised scores and the measured ones.
LEADERBOARD = (
    "eval_name,Precision,Type,T,Model,fullname,Average ⬆️,IFEval,IFEval Raw,BBH,BBH Raw,MATH Lvl 5,MATH Lvl 5 Raw,"
    "#Params (B),Hub ❤️,Submission Date,CO₂ cost (kg),Flagged\n"
    'a_x,bfloat16,base,🟢,"<a href=""https://h/o/a"">o/a</a>",o/a,20.1,30.5,0.305,10.2,0.41,5.5,0.055,1.1,3,2024-06-12,0.5,false\n'
    'b_x,float16,chat,💬,"<a href=""https://h/o/b"">o/b</a>",o/b,30.1,40.5,0.405,20.2,0.51,6.5,0.065,7.6,9,2024-06-12,0.9,true\n'
)


def save(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_wide_table_is_models_times_tasks(tmp_path: Path, mark: str) -> None:
    rows = ["Model,arc_easy,boolq,Average", "a,0.5,,0.5", "b,0.25,0.75,0.5"]
    evidence = read(save(tmp_path, "wide.csv", "\n".join(rows).replace(",", mark)))
    matrix = evidence.scores["direct"]
    assert (matrix.models, matrix.tasks) == (("a", "b"), ("arc_easy", "boolq"))
    assert matrix.values[1].tolist() == [0.25, 0.75]
    assert matrix.values[0, 1] != matrix.values[0, 1]
    assert [c.task for c in evidence.table_layout.columns] == ["arc_easy", "boolq"]
    assert evidence.table_layout.left_out == ("Average",)


def test_a_wide_table_in_per_cent_with_errors_and_shots(tmp_path: Path) -> None:
    text = "name\tshots\tmmlu\tmmlu_stderr\tgsm8k\na\t5\t46.1\t0.4\t12.0 ± 0.9\nb\t5\t52.3\t0.4\t33.1 ± 1.1\n"
    evidence = read(save(tmp_path, "wide.tsv", text))
    matrix = evidence.scores["few_shot:5"]
    assert matrix.tasks == ("mmlu", "gsm8k")
    assert matrix.values[0].tolist() == pytest.approx([0.461, 0.12])
    assert matrix.stderr[0].tolist() == pytest.approx([0.004, 0.009])
    assert matrix.origin(0, 0).shots == 5, "which stays with the score"
    assert all(column.is_divided for column in evidence.table_layout.columns)


def test_the_leaderboards_export_keeps_what_was_measured(tmp_path: Path) -> None:
    evidence = read(save(tmp_path, "leaderboard.csv", LEADERBOARD))
    matrix = evidence.scores["direct"]
    assert (matrix.models, matrix.tasks) == (("o/a", "o/b"), ("IFEval", "BBH", "MATH Lvl 5"))
    assert matrix.values.tolist() == [[0.305, 0.41, 0.055], [0.405, 0.51, 0.065]]
    assert any(name.startswith("Average") for name in evidence.table_layout.left_out)
    assert "#Params (B)" in evidence.table_layout.left_out


@pytest.mark.parametrize(
    "text",
    [
        "Model,Task,Accuracy\na,x,0.5\nb,x,0.25\n",
        "Model;Dataset;Accuracy\na;x;50\nb;x;25\n",
        "model_name\tbenchmark\tacc_norm\tacc_norm_stderr\na\tx\t0.5\t0.1\nb\tx\t0.25\t0.1\n",
        "| Model | Task | Accuracy |\n|:--|---|--:|\n| a | x | **0.5** |\n| b | x | 0.25 |\n",
    ],
)
def test_one_score_a_row_by_the_names_that_people_use(tmp_path: Path, text: str) -> None:
    matrix = read(save(tmp_path, "scores.csv", text)).scores["direct"]
    assert (matrix.models, matrix.tasks) == (("a", "b"), ("x",))
    assert matrix.values[:, 0].tolist() == [0.5, 0.25]
    assert matrix.metrics[0].name.startswith("acc")


def test_a_column_is_named_where_guessing_fails(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        "odd.csv",
        "who,what,how well,spread\na,x,0.5,0.1\nb,x,0.25,0.1\na,y,0.1,0.1\nb,y,0.2,0.1\n",
    )
    with pytest.raises(DataError, match="the file has: who, what, how well, spread") as error:
        read(path)
    assert "COLUMN: {is: score}" in str(error.value.hint)
    columns = {"model": "who", "benchmark": "what", "score": "how well", "stderr": "spread"}
    matrix = read(path, columns=columns).scores["direct"]
    assert matrix.values.tolist() == [[0.5, 0.1], [0.25, 0.2]]
    with pytest.raises(DataError, match="no column 'nope'"):
        read(path, columns={"score": "nope"})
    with pytest.raises(DataError, match="no field 'points'"):
        read(path, columns={"points": "who"})


def test_the_command_line_takes_the_same_map(tmp_path: Path) -> None:
    from potentia.cli.app import app

    rows = "\n".join(
        f"{m},{t},{0.1 * k + 0.2 * (t == 'y')}" for k, m in enumerate("abcd") for t in "xy"
    )
    path = save(tmp_path, "odd.csv", f"who,what,how well\n{rows}\n")
    columns = tmp_path / "columns.yaml"
    arguments = ["analyze", "rankings", str(path), "--columns", str(columns), "--json"]
    columns.write_text("who: {is: model}\nwhat: {is: benchmark}\nhow well: {is: score}\n")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout)["ranking direct"]["models"] == ["d", "c", "b", "a"]
    assert read(path, columns=columns).scores["direct"].models == ("a", "b", "c", "d")
    for text, trouble in (
        ("how well: {are: score}\n", "unknown word 'are' of how well"),
        ("how well: score\n", "unknown setting 'how well'"),
        ("metric: [acc]\n", "not text"),
    ):
        columns.write_text(text)
        wrong = CliRunner().invoke(app, arguments)
        assert wrong.exit_code != 0
        assert trouble in str(wrong.exception)


def test_a_markdown_leaderboard_of_our_own_is_read_back(tmp_path: Path) -> None:
    matrix = ScoreMatrix.build(
        ["o/a", "b|c"], ["x", "y"], [[0.5, 0.25], [0.125, 0.75]], stderr=[[0.01] * 2] * 2
    )
    write_scores(matrix, tmp_path / "board.md")
    again = read(tmp_path / "board.md").scores["direct"]
    assert dict(zip(again.models, again.values.tolist(), strict=True)) == {
        "o/a": [0.5, 0.25],
        "b|c": [0.125, 0.75],
    }
    assert again.stderr[0, 0] == 0.01


def test_a_summary_of_opencompass(tmp_path: Path) -> None:
    text = (
        "dataset,version,metric,mode,internlm-7b,qwen-7b\n"
        "race,-,naive_average,ppl,76.23,-\npiqa,0c33,accuracy,ppl,74.5,80.1\n"
    )
    matrix = read(save(tmp_path, "summary.csv", text)).scores["direct"]
    assert matrix.models == ("internlm-7b", "qwen-7b")
    assert matrix.values[:, 1].tolist() == pytest.approx([0.745, 0.801])
    assert matrix.values[1, 0] != matrix.values[1, 0]


def test_a_log_of_inspect(tmp_path: Path) -> None:
    """The log was written by Inspect 0.3.285 for a task of eight sums; its samples are left out."""
    matrix = read(DATA / "inspect-log.json").scores["direct"]
    assert (matrix.models, matrix.tasks, matrix.metrics[0].name) == (
        ("mockllm/model",),
        ("sums",),
        "accuracy",
    )
    assert matrix.values[0, 0] == 0.625
    assert matrix.stderr[0, 0] == pytest.approx(0.18298126)
    assert matrix.n[0, 0] == 8
    save(
        tmp_path,
        "log.json",
        (DATA / "inspect-log.json").read_text().replace('"results"', '"resultless"'),
    )
    with pytest.raises(DataError, match="has no scores: its status is 'success'"):
        read(tmp_path / "log.json")
    (tmp_path / "log.eval").write_bytes(b"PK\x03\x04rest")
    with pytest.raises(DataError, match="packed archive") as error:
        read(tmp_path / "log.eval")
    assert "inspect log convert" in str(error.value.hint)


def test_records_of_euroeval(tmp_path: Path) -> None:
    """Scores are per cent, and its error is the half-width of a 95 % interval."""
    total = {"test_mcc": 45.3, "test_mcc_se": 1.96, "test_macro_f1": 60.0, "test_macro_f1_se": 1.0}
    records = [
        {
            "dataset": "swerec",
            "task": "sentiment-classification",
            "model": m,
            "results": {"raw": [], "total": total},
        }
        for m in ("o/a", "o/b")
    ]
    path = save(tmp_path, "euroeval_benchmark_results.jsonl", "\n".join(map(json.dumps, records)))
    matrix = read(path).scores["direct"]
    assert (matrix.models, matrix.tasks, matrix.metrics[0].name) == (
        ("o/a", "o/b"),
        ("swerec",),
        "mcc",
    )
    assert matrix.values[0, 0] == pytest.approx(0.453)
    assert matrix.stderr[0, 0] == pytest.approx(0.01)
    assert read(path, metric="macro_f1").scores["direct"].values[0, 0] == pytest.approx(0.6)


def test_records_of_lighteval(tmp_path: Path) -> None:
    content = {
        "config_general": {"model_name": "o/a"},
        "results": {
            "leaderboard|arc:challenge|25": {"acc": 0.5, "acc_stderr": 0.01},
            "all": {"acc": 0.5},
        },
    }
    matrix = read(save(tmp_path, "results_1.json", json.dumps(content))).scores["few_shot:25"]
    assert (matrix.models, matrix.tasks) == (("o/a",), ("arc_challenge",))


@pytest.mark.parametrize("name", ["s.json", "s.jsonl"])
def test_plain_records(tmp_path: Path, name: str) -> None:
    records = [{"model": m, "task": "x", "score": s} for m, s in (("a", 0.5), ("b", 0.25))]
    text = json.dumps(records) if name == "s.json" else "\n".join(map(json.dumps, records))
    assert read(save(tmp_path, name, text)).scores["direct"].values[:, 0].tolist() == [0.5, 0.25]


def test_a_spreadsheets_unicode_text(tmp_path: Path) -> None:
    (tmp_path / "sheet.txt").write_bytes("Model\tarc_easy\na\t0.5\nb\t0.25\n".encode("utf-16"))
    assert read(tmp_path / "sheet.txt").scores["direct"].values[:, 0].tolist() == [0.5, 0.25]


def test_numbers_above_one_that_are_no_shares_stay(tmp_path: Path) -> None:
    text = "model,task,score,metric\na,wiki,2.5,bits_per_byte\nb,wiki,3.5,bits_per_byte\n"
    assert read(save(tmp_path, "s.csv", text)).scores["direct"].values[:, 0].tolist() == [2.5, 3.5]
