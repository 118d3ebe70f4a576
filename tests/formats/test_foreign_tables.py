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
    found = table(
        tmp_path, f"Model,arc_easy,boolq,{name}\na,61.2,70.1,10\nb,55.0,66.4,12\nc,50.3,61.0,15.5\n"
    )
    matrix = found.scores["direct"]
    assert len(matrix.corpora().tasks) == 1
    assert matrix.corpora().higher_is_better == (False,)
    assert matrix.corpora().values[:, 0].tolist() == [10, 12, 15.5]
    assert matrix.benchmarks().tasks == ("arc_easy", "boolq")
    assert column(found, "arc_easy") == pytest.approx([0.612, 0.55, 0.503])


def test_lower_is_better_tasks_stay_tasks(tmp_path: Path) -> None:
    found = table(
        tmp_path,
        "Model,arc_easy,WER,error_rate,toxicity ↓\na,61.2,12.5,0.2,3.5\nb,55.0,18.1,0.3,2.5\n",
    )
    matrix = found.scores["direct"].benchmarks()
    assert matrix.tasks == ("arc_easy", "WER", "error_rate", "toxicity")
    assert matrix.higher_is_better == (True, False, False, False)
    assert column(found, "WER") == [12.5, 18.1], "no per cent of a share"


def test_a_latency_is_a_fact_of_the_model_and_no_task(tmp_path: Path) -> None:
    found = table(tmp_path, "Model,arc_easy,Latency (ms)\na,61.2,95\nb,55.0,80\n")
    assert found.scores["direct"].tasks == ("arc_easy",)
    assert found.table_layout is not None
    assert "Latency (ms)" in found.table_layout.left_out


def test_each_column_has_its_own_scale(tmp_path: Path) -> None:
    found = table(
        tmp_path, "Model,arc_easy,boolq,MT-Bench,mine\na,61.2,0.71,8.5,0.3\nb,55.0,0.66,7.9,0.4\n"
    )
    assert column(found, "arc_easy") == pytest.approx([0.612, 0.55])
    assert column(found, "boolq") == [0.71, 0.66]
    assert column(found, "MT-Bench") == [8.5, 7.9]
    assert [m.scale for m in found.scores["direct"].metrics] == ["share", "share", "range", "share"]
    (shown,) = found.table_layout.tables()
    assert [row[0] for row in shown.rows] == ["arc_easy", "boolq", "MT-Bench", "mine"]
    assert all(row[-1] for row in shown.rows), "every decision has its reason"


def test_a_column_without_a_name_is_no_column_of_errors(tmp_path: Path) -> None:
    """pandas writes models as its index so; a gap among errors is unknown."""
    found = table(tmp_path, ",arc_easy,boolq,boolq_stderr\n13,0.612,0.71,0.01\nb,0.55,0.66,-\n")
    assert str(found.scores["direct"].stderr.tolist()) == "[[nan, 0.01], [nan, nan]]"


@pytest.mark.parametrize("first", ["Benchmark", "Task", "Dataset", ""])
def test_a_transposed_table(tmp_path: Path, first: str) -> None:
    found = table(
        tmp_path,
        f"{first},model one,model two\narc_easy,61.2,55\nboolq,70,60\nwikitext ppl,10,12\nAverage,65,57\n",
    )
    matrix = found.scores["direct"]
    assert matrix.models == ("model one", "model two")
    assert matrix.tasks == ("arc_easy", "boolq", "wikitext ppl")
    assert matrix.higher_is_better == (True, True, False)
    assert found.table_layout.left_out == ("the row Average",)


def test_what_excel_saves(tmp_path: Path) -> None:
    """Semicolons, decimal commas, a byte order mark, a footer, an average."""
    text = "\ufeffModel;arc_easy;boolq;Avg\nm1;61,2;70,1;65,7\nm2;55,0;66,4;60,7\n"
    text += "Average;58,1;68,2;63,2\nSource: our paper\n"
    found = table(tmp_path, text)
    assert found.scores["direct"].models == ("m1", "m2")
    assert column(found, "boolq") == pytest.approx([0.701, 0.664])
    assert found.table_layout.left_out == ("Avg", "the row Average")


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
    found = table(tmp_path, "Model,arc_easy,rating,news\na,61,8.5,2.1\nb,55,7.9,2.4\n")
    assert found.scores["direct"].corpora().tasks == ("news",)
    assert column(found, "rating") == [8.5, 7.9]


def test_a_line_that_is_cut_short_in_the_middle_is_no_footer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 3"):
        table(tmp_path, "Model,arc_easy,boolq\na,61,70\nb\nc,50,60\n")
