"""Reading scores: each layout is recognised, and each fault names its file and place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from potentia.errors import DataError, StoreError
from potentia.formats.read import read_score_files
from potentia.store import CellRecord, Store
from score_files import read_scores

HEAD = "protocol,model,benchmark,score,stderr\n"


def write(folder: Path, name: str, content: object) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


# --- tidy tables ----------------------------------------------------------------------------------------------------


def test_a_tidy_table_becomes_matrices(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "scores.csv",
        "\ufeff"
        + HEAD
        + "direct,a,x,0.5,0.1\ndirect,b,x,0.25,\n\ntrain_before_test,a,x,0.75,N/A\ndirect,a,wiki_2025,0.9,\n",
    )
    scores = read_scores(path)
    direct = scores["direct"]
    assert list(scores) == ["direct", "train_before_test"]
    assert (direct.models, direct.tasks, direct.higher_is_better) == (
        ("a", "b"),
        ("x", "wiki_2025"),
        (True, False),
    )
    assert direct.values[:, 0].tolist() == [0.5, 0.25]
    assert direct.stderr[0, 0] == 0.1
    assert math.isnan(direct.stderr[1, 0])
    assert math.isnan(direct.values[1, 1])


def test_columns_may_be_fewer_more_and_renamed(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "scores.csv",
        "Model,Task,Value,n,higher_is_better,comment\na,x,1.5,200,False,hello\n",
    )
    matrix = read_scores(str(path))["direct"]
    assert (matrix.n.tolist(), matrix.higher_is_better) == ([[200.0]], (False,))


def test_of_several_metrics_one_is_taken(tmp_path: Path) -> None:
    rows = "direct,a,arc_easy,0.5,,acc\ndirect,a,arc_easy,0.6,,acc_norm\ndirect,a,mmlu,0.4,,brier_score\n"
    path = write(tmp_path, "scores.csv", "protocol,model,benchmark,score,stderr,metric\n" + rows)
    main = read_scores(path)["direct"]
    assert main.values.tolist() == [[0.6, 0.4]]
    assert main.higher_is_better == (True, False)
    assert read_scores(path, metric="acc")["direct"].values.tolist() == [[0.5]]
    with pytest.raises(DataError, match="no scores"):
        read_scores(path, metric="f1")


@pytest.mark.shared
def test_the_published_scores_are_read(shared_data: Path) -> None:
    scores = read_scores(shared_data / "published" / "train_before_test_scores.csv")
    assert {name: matrix.shape for name, matrix in scores.items()} == {
        "direct": (61, 27),
        "train_before_test": (61, 27),
    }
    matrix = scores["train_before_test"]
    lower = {task for task, up in zip(matrix.tasks, matrix.higher_is_better, strict=True) if not up}
    assert lower == {"arxiv_2025", "stackexchange_2025", "wiki_2025"}
    i, j = matrix.models.index("google/gemma-2-2b"), matrix.tasks.index("mnli")
    assert matrix.values[i, j] == 0.8758023433520122
    assert matrix.select(
        tasks=[t for t in matrix.tasks if t not in lower]
    ).drop_incomplete_models().shape == (
        61,
        24,
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("direct,a,x,NaN,0.1\n", "line 2, column score: the score is missing or NaN"),
        ("direct,a,x,,0.1\n", "line 2, column score"),
        (
            "direct,a,x,0.5,0.1\ndirect,a,x,0.6,0.1\n",
            "two direct scores of a on x (line 2 and line 3)",
        ),
        ("direct,a,x,high,0.1\n", "line 2, column score: 'high' is not a number"),
        ("direct,a,x,inf,0.1\n", "line 2, column score: the number is infinite"),
        ("direct,a,x,0.5,-0.1\n", "line 2, column stderr: -0.1 is negative"),
        ("direct,,x,0.5,0.1\n", "line 2, column model"),
        ("direct,a, ,0.5,0.1\n", "line 2, column benchmark"),
        ("direct,a,x,0.5\n", "line 2: 4 fields where the header has 5"),
        ('direct,a,"x,0.5,0.1\n', "not valid CSV"),
        ("", "there are no scores in it"),
    ],
)
def test_a_faulty_row_is_named(tmp_path: Path, body: str, words: str) -> None:
    path = write(tmp_path, "scores.csv", HEAD + body)
    with pytest.raises(DataError) as caught:
        read_scores(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("model,benchmark\na,x\n", "the column score is missing"),
        ("model,benchmark,score,value\na,x,1,2\n", "score and value could each be the score"),
        ("model,benchmark,score,higher_is_better\na,x,1,maybe\n", "neither true nor false"),
        (
            "model,benchmark,score,higher_is_better\na,x,1,true\nb,x,2,false\n",
            "different direction (higher is better and lower is better) (line 2 and line 3)",
        ),
    ],
)
def test_a_faulty_table_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, "scores.csv", text)
    with pytest.raises(DataError) as caught:
        read_scores(path)
    assert words in str(caught.value)


def test_metrics_and_directions_must_agree_across_protocols(tmp_path: Path) -> None:
    text = "protocol,model,benchmark,score,metric\ndirect,a,x,1,acc\ntrain_before_test,a,x,2,bits_per_byte\n"
    path = write(tmp_path, "scores.csv", text)
    with pytest.raises(
        DataError, match=r"line 3, column metric: a has bits_per_byte on x, where others have acc"
    ):
        read_scores(path)
    assert list(read_scores(path, metric="acc")) == ["direct"]
    write(
        tmp_path,
        "scores.csv",
        text.replace("metric", "higher_is_better")
        .replace("acc", "1")
        .replace("bits_per_byte", "0"),
    )
    with pytest.raises(DataError, match="higher is better and lower is better"):
        read_scores(path)


# --- the paper's layout ---------------------------------------------------------------------------------------------


def test_the_papers_layout_is_read(tmp_path: Path) -> None:
    content = {
        "train_before_test": {"mnli": {"a": 0.9, "b": 0.8}, "wiki_2025": {"a": 0.7}},
        "train_before_test_stderr": {"mnli": {"a": 0.01, "b": None}, "wiki_2025": {"a": "N/A"}},
        "direct_eval": {"mnli": {"a": 0.5}},
        "direct_eval_stderr": {},
    }
    scores = read_scores(write(tmp_path, "all.json", content))
    assert list(scores) == ["direct", "train_before_test"]
    matrix = scores["train_before_test"]
    assert matrix.higher_is_better == (True, False)
    assert matrix.values[:, 0].tolist() == [0.9, 0.8]
    assert matrix.stderr[0, 0] == 0.01
    assert math.isnan(matrix.stderr[1, 0])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"direct_eval": {"mnli": {"a": "0.5"}}},
            "direct_eval.mnli.a: the text '0.5' stands where a number should",
        ),
        ({"direct_eval": {"mnli": {"a": None}}}, "direct_eval.mnli.a: the score is missing or NaN"),
        ({"direct_eval": {"mnli": {"a": True}}}, "direct_eval.mnli.a: True is not a number"),
        ({"direct_eval": {"mnli": [0.5]}}, "direct_eval: mnli is not an object"),
        ({"direct_eval": 3}, "direct_eval is not an object"),
        ({"x_stderr": {}}, "not a score file"),
        ({}, "not a score file"),
        ([1, 2], "not a list of objects"),
        ({"direct_eval": {}, "other_stderr": {}}, "'other_stderr' without scores"),
        ({"direct_eval": {}}, "there are no scores in it"),
        ('{"direct_eval": {"mnli": {"a": 0.5, "a": 0.6}}}', "the key 'a' appears twice"),
        ('{"direct_eval": {"mnli": {"a": 0.5', "line 1, column 35: this is not valid JSON"),
        ('{"direct_eval": {"mnli": {"a": NaN}}}', "the score is missing or NaN"),
        ('{"direct_eval": {"mnli": {"a": 1e999}}}', "infinite"),
        ("[" * 100_000, "cannot be read|no JSON"),
        ('{"direct_eval": {"mnli": {"a": ' + "9" * 5000 + "}}}", "cannot be read"),
    ],
)
def test_a_faulty_json_is_named(tmp_path: Path, content: object, words: str) -> None:
    path = write(tmp_path, "all.json", content)
    with pytest.raises(DataError) as caught:
        read_scores(path)
    assert str(path) in str(caught.value)
    assert any(word in str(caught.value) for word in words.split("|"))


def test_truncated_json_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="ends too early"):
        read_scores(write(tmp_path, "all.json", '{"results": {"arc_easy": '))


# --- other sources --------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_scores(tmp_path / "absent.csv")
    with pytest.raises(DataError, match=r"no \.json results"):
        read_scores(tmp_path)
    (tmp_path / "latin.csv").write_bytes(b"model,benchmark,score\n\xe9,x,1\n")
    with pytest.raises(DataError, match="byte 22 is not UTF-8"):
        read_scores(tmp_path / "latin.csv")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="not a whole Parquet"):
        read_scores(tmp_path / "cut.parquet")
    with pytest.raises(StoreError, match="SQLite or PostgreSQL"):
        read_scores("mysql://host/name")


def test_a_store_is_read_and_not_touched(
    tmp_path: Path, make_cell: Callable[..., CellRecord]
) -> None:
    path = tmp_path / "scores.sqlite"
    with Store.open(path) as store:
        store.studies.open("first", "s1", {})
        with pytest.raises(DataError, match="no scores yet"):
            read_scores(path)
        store.cells.commit(make_cell("k1"))
        store.cells.commit(make_cell("k2", protocol="train_before_test", value=0.75))
    before = path.read_bytes()
    for source in (path, str(path), f"sqlite:///{path}"):
        scores = read_scores(source)
        assert {name: matrix.values.tolist() for name, matrix in scores.items()} == {
            "direct": [[0.5]],
            "train_before_test": [[0.75]],
        }
    assert read_scores(path, metric="acc_norm")["direct"].values.tolist() == [[0.25]]
    with pytest.raises(DataError, match="no study 'other'"):
        read_scores(path, study="other")
    assert path.read_bytes() == before


def test_a_small_file_that_unpacks_without_end_is_refused(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "bomb.parquet"
    rows = pa.table({"model": pa.array(["m"] * 1_000_000).dictionary_encode()})
    with pq.ParquetWriter(file, rows.schema, compression="zstd") as writer:
        for _ in range(11):
            writer.write_table(rows)
    assert file.stat().st_size < 1e6
    with pytest.raises(DataError, match=r"too large for scores|rows in so small a file"):
        read_score_files(file)


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path):
    import os

    os.mkfifo(tmp_path / "scores.csv")
    with pytest.raises(DataError, match="not a plain file"):
        read_score_files(tmp_path / "scores.csv")


def test_a_link_that_leads_out_of_a_folder_is_passed_over(tmp_path: Path):
    body = '{"results": {"arc_easy": {"acc,none": 0.5}}, "model_name": "m"}'
    (tmp_path / "secret.json").write_text("a secret")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results_1.json").write_text(body)
    (tmp_path / "out" / "results_2.json").symlink_to(tmp_path / "secret.json")
    read = read_score_files(tmp_path / "out")
    assert read.scores["direct"].models == ("m",)
    assert any("lead out of" in note for note in read.notes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("half.json", '{"direct_eval": {"arc": {"m\\ud800": 0.5}}}'),  # half of a character
        ("huge.json", '[{"model": "a", "task": "t", "score": 1' + "0" * 400 + "}]"),
        (
            "staged.csv",
            "stage,step,model,benchmark,metric,value,stderr\nbase,,m,arc,acc,x,0.1,9,9\n",
        ),  # more fields
        (
            "staged.csv",
            "stage,step,model,benchmark,metric,value,stderr\nbase,inf,m,arc,acc,0.5,0.1\n",
        ),
    ],
)
def test_what_fuzzing_found_is_told_in_a_sentence(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError):
        read_score_files(tmp_path / name)


def test_a_folder_of_models_is_no_folder_of_scores(tmp_path: Path) -> None:
    model = tmp_path / "lab" / "models" / "aster"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (model / "tokenizer.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(DataError, match="holds models and no scores") as raised:
            read_scores(tmp_path / "lab")
        assert "run a study first" in str(raised.value)
        (tmp_path / "lab" / "ask.jsonl").write_text('{"question": "what", "answer": 3}\n')
