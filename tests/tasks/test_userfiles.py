"""A user's own benchmark in three schemas, and what is said of files that cannot be used."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from potentia import tasks
from potentia.errors import TaskError
from potentia.values.requests import Continuation, Document, Example, Generation


def jsonl(path: Path, records: list[Any]) -> str:
    path.write_text("\n".join(json.dumps(record) for record in records), "utf-8")
    return str(path)


def questions(n: int = 40) -> list[dict[str, Any]]:
    return [
        {"question": f"What is {i} + 1?", "choices": [str(i), str(i + 1), "no"], "answer": 1}
        for i in range(n)
    ]


def test_multiple_choice(tmp_path: Path) -> None:
    task = tasks.load(jsonl(tmp_path / "sums.jsonl", questions()))
    assert (task.name, task.kind, task.metric) == ("sums", "choice", "acc_norm")
    assert [len(task.documents(s)) for s in ("train", "validation", "test")] == [32, 4, 4]
    prompt = task.prompts(task.documents("test")[:1])[0]
    i = prompt.doc_id
    asked = f"Question: What is {i} + 1?\nAnswer:"
    assert prompt.requests == tuple(
        Continuation(asked, f" {c}") for c in (str(i), str(i + 1), "no")
    )
    assert prompt.gold == str(i + 1)
    right = task.grade([prompt], [[(-9.0, False), (-1.0, True), (-9.0, False)]])[0]
    assert (right.value, right.prediction) == (1.0, str(i + 1))
    wrong = task.grade([prompt], [[(-1.0, False), (-9.0, True), (-9.0, False)]])[0]
    assert (wrong.value, wrong.prediction) == (0.0, str(i))


@pytest.mark.parametrize("answer", ["yes", "B", "b", 1, "1", 1.0])
def test_an_answer_is_a_text_a_number_or_a_letter(tmp_path: Path, answer: Any) -> None:
    records = [{"question": f"q{i}", "choices": ["no", "yes"], "answer": answer} for i in range(10)]
    task = tasks.load(jsonl(tmp_path / "a.jsonl", records))
    assert task.prompts(task.documents("test"))[0].gold == "yes"


@pytest.mark.parametrize("mark", [";", "\t"])
def test_csv_as_excel_writes_it_in_many_countries(mark: str, tmp_path: Path) -> None:
    lines = [
        f"text{mark}label",
        *(f"a text, number {i}{mark}{'yes' if i % 2 else 'no'}" for i in range(20)),
    ]
    (tmp_path / "own.csv").write_text("\ufeff" + "\r\n".join(lines), "utf-8")
    task = tasks.load(str(tmp_path / "own.csv"))
    assert (list(task.labels), task.documents("test")[0]["text"][:6]) == (["no", "yes"], "a text")


def test_csv_and_parquet_are_the_same_benchmark(tmp_path: Path) -> None:
    import pandas as pd

    with (tmp_path / "quiz.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["question", "choices", "answer"])
        writer.writeheader()
        writer.writerows({**q, "choices": "|".join(q["choices"])} for q in questions())
    (tmp_path / "other").mkdir()
    pd.DataFrame(questions()).to_parquet(tmp_path / "other" / "quiz.parquet")
    first, second = (
        tasks.load(str(tmp_path / "quiz.csv")),
        tasks.load(str(tmp_path / "other" / "quiz.parquet")),
    )
    assert [d.data for d in first.documents("train")] == [d.data for d in second.documents("train")]
    assert first.fingerprint == second.fingerprint


def test_generation(tmp_path: Path) -> None:
    records = [
        {"prompt": f"The capital of land {i} is", "completion": f"City {i}"} for i in range(40)
    ]
    task = tasks.load(jsonl(tmp_path / "capitals.jsonl", records))
    assert (task.kind, task.metric) == ("generation", "token_f1")
    prompts = task.prompts(task.documents("test"))
    assert prompts[0].requests == (
        Generation(f"The capital of land {prompts[0].doc_id} is", ("\n",), 256),
    )
    sentences = [[f" City {prompts[0].doc_id}\n"], *([" nothing"] for _ in prompts[1:])]
    assert task.score(task.grade(prompts, sentences))["exact_match"].value == 1 / len(prompts)
    i = task.documents("train")[0].id
    assert task.examples(task.documents("train")[:1]) == [
        Example(f"The capital of land {i} is", f" City {i}", end=True)
    ]


def test_completions_of_several_lines_do_not_stop_at_a_line(tmp_path: Path) -> None:
    records = [{"prompt": f"{i}:\n", "completion": "a\nb"} for i in range(10)]
    task = tasks.load(jsonl(tmp_path / "lines.jsonl", records))
    request = task.prompts(task.documents("test"))[0].requests[0]
    assert isinstance(request, Generation)
    assert request.stop == ("\n\n",)
    assert task.examples(task.documents("test"))[0].continuation == "a\nb"


def test_a_text_file_is_a_corpus_of_paragraphs(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("\n\n".join(f"Paragraph {i}\nof the book." for i in range(30)), "utf-8")
    task = tasks.load(str(file))
    assert (task.kind, task.metric, task.higher_is_better) == ("corpus", "bits_per_byte", False)
    assert [len(task.documents(s)) for s in ("train", "validation", "test")] == [24, 3, 3]
    prompt = task.prompts(task.documents("test")[:1])[0]
    assert prompt.requests == (Document(f"Paragraph {prompt.doc_id}\nof the book."),)
    with pytest.raises(TaskError, match="no few-shot"):
        task.prompts(task.documents("test"), shots=1)


def test_a_folder_of_split_files(tmp_path: Path) -> None:
    for split, n in (("train", 50), ("dev", 10), ("test", 20)):
        records = [{**q, "question": f"{split}: {q['question']}"} for q in questions(n)]
        jsonl(tmp_path / f"{split}.jsonl", records)
    task = tasks.load(str(tmp_path))
    assert [len(task.documents(s)) for s in ("train", "validation", "test")] == [50, 10, 20]
    (tmp_path / "test.jsonl").unlink()
    task = tasks.load(str(tmp_path))
    assert [len(task.documents(s)) for s in ("train", "validation", "test")] == [40, 10, 10]
    assert task.split_plan.test.origin_label == "validation"


def test_dropping_overlap_is_recorded(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", questions(50))
    jsonl(tmp_path / "test.jsonl", questions(5))
    loaded = tasks.load(str(tmp_path), drop_overlap=False)
    clean = tasks.load(str(tmp_path), drop_overlap=True)
    repeated = {doc["question"] for doc in loaded.documents("test")}
    dropped = len(loaded.documents("train")) - len(clean.documents("train"))
    assert dropped == sum(doc["question"] in repeated for doc in loaded.documents("train")) > 0
    assert clean.split_plan.dropped_overlap == dropped
    assert clean.split_plan.train.used == len(clean.documents("train"))
    assert tasks.measure_overlap(clean).train_exact == 0
    assert clean.fingerprint != loaded.fingerprint


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"question": "a", "choices": ["x", "y"]}', "missing answer"),
        ('{"x": "a", "y": "b"}', "cannot tell which columns"),
        ('{"prompt": "a"}', "missing completion"),
        ("", "no example"),
        ("\n\n", "no example"),
        ('{"text": "a"}\n{"text": ', r"bad\.jsonl, line 2: not valid JSON"),
        ('{"text": "a"}\n[1]', r"line 2: a list, not an object"),
        (
            '{"question": "a", "choices": ["x", "y"], "answer": 2}',
            r"line 1: the answer 2 is out of range",
        ),
        (
            '{"question": "a", "choices": ["x", "y"], "answer": -1}',
            r"the answer -1 is out of range",
        ),
        ('{"question": "a", "choices": ["x", "y"], "answer": "z"}', "not one of the choices"),
        ('{"question": "a", "choices": ["x", "y"], "answer": null}', "not one of the choices"),
        ('{"question": "a", "choices": ["x"], "answer": 0}', "two or more"),
        ('{"question": "a", "choices": ["x", " "], "answer": 0}', "choice 1 is empty"),
        ('{"question": "a", "choices": ["x", null, "y"], "answer": 0}', "choice 1 is empty"),
        ('{"question": "a", "choices": "x", "answer": 0}', "not a list"),
        ('{"question": null, "choices": ["x", "y"], "answer": 0}', "question is missing"),
        ('{"prompt": "a", "completion": ""}', "completion is empty"),
        ('{"text": 3.5}\n{"text": {"a": 1}}', "line 2: text is"),
        ('{"text": "only one"}', "too few to divide"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(content, "utf-8")
    with pytest.raises(TaskError, match=says):
        tasks.load(str(file))


def test_other_bad_input(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,completion\na,b,c\n")
    (tmp_path / "bytes.jsonl").write_bytes(b'{"text": "\xff\xfe"}')
    (tmp_path / "no.parquet").write_bytes(b"PAR1 but not really")
    (tmp_path / "sheet.xlsx").write_bytes(b"")
    (tmp_path / "rows.odd").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for name, says in (
        ("rows.csv", "line 2"),
        ("bytes.jsonl", "not UTF-8 text"),
        ("no.parquet", "not a readable parquet"),
        ("sheet.xlsx", "is a spreadsheet, which is not read"),
        ("rows.odd", "unknown kind of file"),
        ("empty", "no file of examples"),
        ("absent.jsonl", "no file or folder"),
    ):
        with pytest.raises(TaskError, match=says):
            tasks.load(str(tmp_path / name))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.floats(allow_nan=True)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
columns = st.sampled_from(
    ["question", "choices", "answer", "prompt", "completion", "text", "other"]
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.dictionaries(columns, values, max_size=5), max_size=6))
def test_any_records_load_or_are_refused_in_words(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    file = tmp_path / "any.jsonl"
    file.write_text("\n".join(json.dumps(record) for record in records), "utf-8")
    try:
        task = tasks.load(str(file))
    except TaskError:
        return
    assert task.prompts(task.documents("test"))


def test_a_skipped_file_is_named_by_its_name_also_with_a_comma_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"some words of {number} " * 20, "utf-8")
    (folder / "notes, 2024.txt").write_text("  ", "utf-8")
    task = tasks.load(str(folder), drop_bad_rows=True)
    (note,) = [note for note in task.notes if "skipped" in note]
    assert "(notes, 2024.txt;" in note
