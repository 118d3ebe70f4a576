"""Tables of others: direction, scale, orientation and kind are decided by column and shown, or asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from potentia.errors import InputError
from potentia.evidence import Evidence, read


def table(tmp_path: Path, text: str, **says: object) -> Evidence:
    path = tmp_path / "scores.csv"
    path.write_text(text, encoding="utf-8")
    return read(path, **says)  # type: ignore[arg-type]


def column(evidence: Evidence, task: str) -> list[float]:
    matrix = evidence.scores["direct"]
    return matrix.values[:, matrix.tasks.index(task)].tolist()


@pytest.mark.parametrize(
    "name", ["perplexity", "wikitext", "WikiText ppl", "wikitext-103", "lambada (ppl) ↓"]
)
def test_a_perplexity_is_a_text_that_is_better_when_lower(tmp_path: Path, name: str) -> None:
    result = table(
        tmp_path, f"Model,arc_easy,boolq,{name}\na,61.2,70.1,10\nb,55.0,66.4,12\nc,50.3,61.0,15.5\n"
    )
    matrix = result.scores["direct"]
    assert len(matrix.corpora().tasks) == 1
    assert matrix.corpora().higher_is_better == (False,)
    assert matrix.corpora().values[:, 0].tolist() == [10, 12, 15.5]
    assert matrix.benchmarks().tasks == ("arc_easy", "boolq")
    assert column(result, "arc_easy") == pytest.approx([0.612, 0.55, 0.503])


def test_lower_is_better_tasks_stay_tasks(tmp_path: Path) -> None:
    result = table(
        tmp_path,
        "Model,arc_easy,WER,error_rate,toxicity ↓\na,61.2,12.5,0.2,3.5\nb,55.0,18.1,0.3,2.5\n",
    )
    matrix = result.scores["direct"].benchmarks()
    assert matrix.tasks == ("arc_easy", "WER", "error_rate", "toxicity")
    assert matrix.higher_is_better == (True, False, False, False)
    assert column(result, "WER") == [12.5, 18.1], "no per cent of a share"


def test_a_latency_is_a_fact_of_the_model_and_no_task(tmp_path: Path) -> None:
    result = table(tmp_path, "Model,arc_easy,Latency (ms)\na,61.2,95\nb,55.0,80\n")
    assert result.scores["direct"].tasks == ("arc_easy",)
    assert result.table_layout is not None
    assert "Latency (ms)" in result.table_layout.left_out


def test_a_latency_is_no_task_as_a_row_either(tmp_path: Path) -> None:
    one_score_a_row = """model,task,score
a,arc_easy,0.61
a,Latency (ms),95
a,energy_quiz,0.4
b,arc_easy,0.55
b,Latency (ms),80
b,energy_quiz,0.5
"""
    evidence = table(tmp_path, one_score_a_row)
    assert evidence.scores["direct"].tasks == ("arc_easy", "energy_quiz")
    assert evidence.table_layout is not None
    assert "Latency (ms)" in evidence.table_layout.left_out
    tasks_down = table(tmp_path, "task,a,b\narc_easy,0.61,0.55\ncost_usd,3.5,0.2\n")
    assert tasks_down.scores["direct"].tasks == ("arc_easy",)
    assert tasks_down.table_layout is not None
    assert "the row cost_usd" in tasks_down.table_layout.left_out


def test_a_task_about_dates_is_a_task(tmp_path: Path) -> None:
    evidence = table(tmp_path, "Model,date_understanding,Date\na,0.61,2024\nb,0.55,2025\n")
    assert evidence.scores["direct"].tasks == ("date_understanding",)


def test_each_column_has_its_own_scale(tmp_path: Path) -> None:
    result = table(
        tmp_path, "Model,arc_easy,boolq,MT-Bench,mine\na,61.2,0.71,8.5,0.3\nb,55.0,0.66,7.9,0.4\n"
    )
    assert column(result, "arc_easy") == pytest.approx([0.612, 0.55])
    assert column(result, "boolq") == [0.71, 0.66]
    assert column(result, "MT-Bench") == [8.5, 7.9]
    assert [m.scale for m in result.scores["direct"].metrics] == [
        "share",
        "share",
        "range",
        "share",
    ]
    (shown,) = result.table_layout.tables()
    assert [row[0] for row in shown.rows] == ["arc_easy", "boolq", "MT-Bench", "mine"]
    assert all(row[-1] for row in shown.rows), "every decision has its reason"


def test_a_column_without_a_name_is_no_column_of_errors(tmp_path: Path) -> None:
    """pandas writes models as its index so; a gap among errors is unknown."""
    result = table(tmp_path, ",arc_easy,boolq,boolq_stderr\n13,0.612,0.71,0.01\nb,0.55,0.66,-\n")
    assert str(result.scores["direct"].stderr.tolist()) == "[[nan, 0.01], [nan, nan]]"


@pytest.mark.parametrize("first", ["Benchmark", "Task", "Dataset", ""])
def test_a_transposed_table(tmp_path: Path, first: str) -> None:
    result = table(
        tmp_path,
        f"{first},model one,model two\narc_easy,61.2,55\nboolq,70,60\nwikitext ppl,10,12\nAverage,65,57\n",
    )
    matrix = result.scores["direct"]
    assert matrix.models == ("model one", "model two")
    assert matrix.tasks == ("arc_easy", "boolq", "wikitext ppl")
    assert matrix.higher_is_better == (True, True, False)
    assert result.table_layout.left_out == ("the row Average",)


def test_what_excel_saves(tmp_path: Path) -> None:
    """Semicolons, decimal commas, a byte order mark, a footer, an average."""
    text = "\ufeffModel;arc_easy;boolq;Avg\nm1;61,2;70,1;65,7\nm2;55,0;66,4;60,7\n"
    text += "Average;58,1;68,2;63,2\nSource: our paper\n"
    result = table(tmp_path, text)
    assert result.scores["direct"].models == ("m1", "m2")
    assert column(result, "boolq") == pytest.approx([0.701, 0.664])
    assert result.table_layout.left_out == ("Avg", "the row Average")


def test_what_is_not_certain_is_asked_and_said(tmp_path: Path) -> None:
    text = "Model,arc_easy,rating\na,61,8.5\nb,55,7.9\n"
    with pytest.raises(InputError, match=r"rating.*may be per cent or a rating") as asked:
        table(tmp_path, text)
    assert "rating: {scale: range}" in str(asked.value.hint)
    assert column(table(tmp_path, text, scale={"rating": "range"}), "rating") == [8.5, 7.9]
    assert column(table(tmp_path, text, scale={"rating": "percent"}), "rating") == pytest.approx(
        [0.085, 0.079]
    )
    odd = "Model,arc_easy,milliseconds\na,61,850\nb,55,790\n"
    with pytest.raises(InputError, match="which way is better") as asked:
        table(tmp_path, odd)
    assert "{lower: true}" in str(asked.value.hint)
    assert table(tmp_path, odd, lower=["milliseconds"]).scores["direct"].higher_is_better == (
        True,
        False,
    )
    with pytest.raises(InputError, match="no column 'other'"):
        table(tmp_path, odd, lower=["milliseconds", "other"])


def test_a_few_lines_beside_the_file_decide(tmp_path: Path) -> None:
    (tmp_path / "scores.columns.yaml").write_text(
        "rating: {scale: range}\nnews: {lower: true, kind: text}\n"
    )
    result = table(tmp_path, "Model,arc_easy,rating,news\na,61,8.5,2.1\nb,55,7.9,2.4\n")
    assert result.scores["direct"].corpora().tasks == ("news",)
    assert column(result, "rating") == [8.5, 7.9]


def test_higher_is_better_where_a_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "scores.columns.yaml").write_text(
        "delay: {lower: false, scale: unbounded}\nppl: {lower: false}\n"
    )
    result = table(tmp_path, "Model,arc_easy,delay,ppl\na,61,850,12\nb,55,790,14\n")
    assert result.scores["direct"].higher_is_better == (True, True, True)
    reasons = {layout.column: layout.reason for layout in result.table_layout.columns}
    assert "higher is better as said" in reasons["ppl"]


@pytest.mark.parametrize("word", ["lower", "skip"])
@pytest.mark.parametrize("value", ['"yes"', "1", "null"])
def test_what_is_neither_true_nor_false_is_refused(tmp_path: Path, word: str, value: str) -> None:
    (tmp_path / "scores.columns.yaml").write_text(f"delay: {{{word}: {value}}}\n")
    with pytest.raises(InputError, match=f"{word} of delay is .*, not true or false") as refused:
        table(tmp_path, "Model,arc_easy,delay\na,61,850\nb,55,790\n")
    assert f"delay: {{{word}: true}}" in str(refused.value.hint)


def test_an_average_is_read_where_a_line_says_that_it_is_no_average(tmp_path: Path) -> None:
    (tmp_path / "scores.columns.yaml").write_text("Avg: {skip: false}\n")
    result = table(tmp_path, "Model,arc_easy,Avg\na,61,85\nb,55,79\n")
    assert result.scores["direct"].tasks == ("arc_easy", "Avg")


def test_a_line_that_is_cut_short_in_the_middle_is_no_footer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 3"):
        table(tmp_path, "Model,arc_easy,boolq\na,61,70\nb\nc,50,60\n")
