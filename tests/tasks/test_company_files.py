"""Files as companies bring them are read on the first try, and what was inferred is told."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import company_files
import ticket_files
from potentia import tasks
from potentia.errors import TaskError
from potentia.tasks.data import ReadingLog, read_records
from potentia.tasks.free_text import grade_free_text
from potentia.tasks.harness import describe_definition
from potentia.values.requests import Generation


def test_messy_tickets_have_five_labels_and_no_blank_rows(tmp_path: Path) -> None:
    file = company_files.write_messy_tickets(tmp_path / "tickets.csv")
    task = tasks.load(str(file))
    assert len(task.labels) == 5
    sizes = [len(task.documents(split)) for split in ("train", "validation", "test")]
    assert sum(sizes) + task.split_plan.dropped_overlap == 203
    notes = " ".join(task.notes)
    assert "3 blank rows skipped" in notes
    assert "Merged 3 spellings of the label Billing" in notes or "spellings of the label" in notes
    assert any("Grüße" in document["text"] for document in task.documents("train"))


def test_spellings_are_kept_apart_where_the_user_wants_that(tmp_path: Path) -> None:
    file = company_files.write_messy_tickets(tmp_path / "tickets.csv")
    user_data = tasks.UserData((str(file),), merge_spellings=False)
    task = tasks.load("tickets", user_data=user_data)
    assert {"Billing", "BILLING", "billing"} <= set(task.labels)
    assert not any("Merged" in note for note in task.notes)


def test_an_faq_is_text_to_write(tmp_path: Path) -> None:
    task = tasks.load(str(company_files.write_faq(tmp_path / "faq.csv")))
    assert (task.kind, task.metric) == ("generation", "token_f1")
    assert set(task.metrics) == {"exact_match", "token_f1", "contains", "rouge_l"}
    notes = " ".join(task.notes)
    assert "prompt = Question, completion = Answer" in notes
    assert "scored by token_f1" in notes


def test_the_metric_of_written_answers_can_be_set(tmp_path: Path) -> None:
    file = str(company_files.write_faq(tmp_path / "faq.csv"))
    user_data = tasks.UserData((file,), metric="exact_match")
    assert tasks.load("faq", user_data=user_data).metric == "exact_match"
    with pytest.raises(TaskError, match="'bleu' is no metric of") as error:
        tasks.load("faq", user_data=tasks.UserData((file,), metric="bleu"))
    assert "rouge_l" in str(error.value.hint)


def test_an_exam_with_options_and_letters(tmp_path: Path) -> None:
    task = tasks.load(str(company_files.write_exam(tmp_path / "exam.jsonl")))
    prompt = task.prompts(task.documents("test")[:1])[0]
    number = int(prompt.text.split("What is ")[1].split()[0])
    assert len(prompt.choices) == 4
    assert prompt.gold == str(number + 1)


@pytest.mark.parametrize("first", [0, 1])
def test_answers_that_are_numbers_say_where_they_count_from(tmp_path: Path, first: int) -> None:
    lines = company_files.write_exam(tmp_path / "exam.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    numbered = [{**row, "correct": "ABCD".index(row["correct"]) + first} for row in rows]
    file = tmp_path / "numbers.jsonl"
    file.write_text("\n".join(map(json.dumps, numbered)))
    assert f"The answers are numbers that count from {first}." in tasks.load(str(file)).notes
    assert not any("count from" in note for note in tasks.load(str(tmp_path / "exam.jsonl")).notes)


def test_options_by_letter_and_in_columns_are_the_same_exam(tmp_path: Path) -> None:
    lines = (company_files.write_exam(tmp_path / "list.jsonl")).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    letters = [{**row, "options": dict(zip("ABCD", row["options"], strict=True))} for row in rows]
    columns = [
        {"question": row["question"], "answer": row["correct"], **by_letter["options"]}
        for row, by_letter in zip(rows, letters, strict=True)
    ]
    for name, other in (("letters", letters), ("columns", columns)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("\n".join(map(json.dumps, other)))
        first = tasks.load(str(tmp_path / "list.jsonl")).documents("test")[0].data
        second = tasks.load(str(file)).documents("test")[0].data
        assert first == second


def test_the_last_answer_of_a_conversation_is_to_be_written(tmp_path: Path) -> None:
    task = tasks.load(str(company_files.write_chat(tmp_path / "chat.jsonl")))
    document = task.documents("test")[0]
    request = task.prompts([document])[0].requests[0]
    assert isinstance(request, Generation)
    assert request.context.startswith("You answer in one word.\n\nWhich number comes after")
    assert document["completion"].isdigit()
    turns = [
        {"from": "human", "value": "Hello"},
        {"from": "gpt", "value": "Hi"},
        {"from": "human", "value": "And now?"},
        {"from": "gpt", "value": "Later"},
    ]
    file = tmp_path / "share.jsonl"
    file.write_text("\n".join([json.dumps({"conversations": turns})] * 9))
    task = tasks.load(str(file), drop_overlap=False)
    data = task.documents("test")[0].data
    assert data["prompt"] == "User: Hello\nAssistant: Hi\nUser: And now?\nAssistant:"
    assert data["completion"] == "Later"


def test_a_file_of_windows_is_read_and_told(tmp_path: Path) -> None:
    task = tasks.load(str(company_files.write_windows_tickets(tmp_path / "alt.csv")))
    assert task.documents("test")[0]["text"].endswith("Mit freundlichen Grüßen")
    assert "read as Windows-1252" in task.notes[0]
    assert "Grüßen" in task.notes[0]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        (("instruction", "output"), "generation"),
        (("input", "target"), "generation"),
        (("prompt", "response"), "generation"),
        (("Body", "Intent"), "choice"),
        (("Question", "Answer"), "generation"),
    ],
)
def test_usual_names_are_known(tmp_path: Path, columns: tuple[str, str], kind: str) -> None:
    values = [f"value {i}" for i in range(40)]
    if kind == "choice":
        values = [("yes", "no")[i % 2] for i in range(40)]
    rows = [{columns[0]: f"text number {i}", columns[1]: values[i]} for i in range(40)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert tasks.load(str(file)).kind == kind


def write_columns(
    path: Path, names: Sequence[str], rows: Sequence[Sequence[object]], delimiter: str = ","
) -> str:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter=delimiter).writerows([names, *rows])
    return str(path)


@pytest.mark.parametrize(
    "names",
    [
        ("Ticket text", "Category"),
        ("Beschreibung", "Kategorie"),
        ("customer message", "ticket category"),
        ("Vorgang", "Label"),
    ],
)
def test_names_of_two_words_and_of_other_languages_are_known(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    rows = [(number, *row) for number, row in enumerate(ticket_files.english(60))]
    task = tasks.load(write_columns(tmp_path / "rows.csv", ("Nr", *names), rows))
    assert len(task.labels) == 5
    notes = " ".join(task.notes)
    assert (
        f"Classification of the column {names[0]} into 5 labels of the column {names[1]}" in notes
    )
    assert "Not used: Nr." in notes  # numbers are nothing to read


def test_names_that_tell_nothing_are_asked_for_with_what_they_probably_are(tmp_path: Path) -> None:
    rows = [(number, *row) for number, row in enumerate(ticket_files.english(60))]
    file = write_columns(tmp_path / "rows.csv", ("Nr", "Vor gang", "Zuordnung"), rows)
    with pytest.raises(TaskError, match="cannot tell which columns") as error:
        tasks.load(file)
    assert "perhaps --map 'text=Vor gang' label=Zuordnung" in str(error.value.hint)


def test_a_file_without_names_of_columns_is_told_so(tmp_path: Path) -> None:
    first, *rows = ticket_files.english(60)
    with pytest.raises(TaskError, match="cannot tell which columns") as error:
        tasks.load(write_columns(tmp_path / "rows.csv", first, rows))
    assert "the first line seems to be an example" in str(error.value.hint)


def test_tabs_between_columns_and_a_spreadsheet_that_is_none(tmp_path: Path) -> None:
    rows = ticket_files.english(60)
    task = tasks.load(write_columns(tmp_path / "rows.tsv", ("text", "label"), rows, "\t"))
    assert len(task.labels) == 5
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    with pytest.raises(TaskError, match="is a spreadsheet") as error:
        tasks.load(str(tmp_path / "rows.xlsx"))
    assert "save its sheet as CSV" in str(error.value.hint)


@pytest.mark.parametrize("first_line", ["sep=;\n", "sep=;\r\n", '"sep=;"\n'])
def test_the_line_that_tells_excel_the_delimiter_is_no_header(
    tmp_path: Path, first_line: str
) -> None:
    rows = ticket_files.english(40)
    lines = ["Anfrage;Abteilung", *(f"{text};{label}" for text, label in rows), "one;two;three"]
    file = tmp_path / "excel.csv"
    file.write_bytes((first_line + "\n".join(lines)).encode("utf-8-sig"))
    with pytest.raises(TaskError, match="another number") as error:
        tasks.load(str(file))
    assert "line 43" in str(error.value)  # as an editor counts it
    task = tasks.load("excel", user_data=tasks.UserData((str(file),), drop_bad_rows=True))
    assert len(task.labels) == len({label for _, label in rows})


def test_bars_between_columns(tmp_path: Path) -> None:
    file = tmp_path / "bars.csv"
    lines = [f"{text}|{label}" for text, label in ticket_files.english(40)]
    file.write_text("\n".join(["Message|Department", *lines]))
    task = tasks.load(str(file))
    assert task.kind == "choice"
    assert len(task.labels) > 1


def test_rows_under_a_name_of_a_json_object_are_found_and_told(tmp_path: Path) -> None:
    lines = company_files.write_exam(tmp_path / "exam.jsonl").read_text().splitlines()
    export = {"version": 2, "exported": "2026-01-01", "items": list(map(json.loads, lines))}
    file = tmp_path / "exam.json"
    file.write_text(json.dumps(export, indent=2))
    task = tasks.load(str(file))
    assert any("the rows are the list under 'items'" in note for note in task.notes)
    as_lines = tasks.load(str(tmp_path / "exam.jsonl"))
    assert task.documents("test")[0].data == as_lines.documents("test")[0].data


def test_one_conversation_is_one_row(tmp_path: Path) -> None:
    line = company_files.write_chat(tmp_path / "chat.jsonl").read_text().splitlines()[0]
    file = tmp_path / "one.json"
    file.write_text(line)
    (record,) = read_records(file, ReadingLog())
    assert set(record) == {"messages"}


def test_a_text_may_be_of_two_columns(tmp_path: Path) -> None:
    rows = [(f"Subject {text[-25:]}", text, label) for text, label in ticket_files.english(60)]
    file = write_columns(tmp_path / "rows.csv", ("Subject", "Body", "Queue"), rows)
    alone = tasks.load(file)
    assert (
        "Not used: Subject (--map text=Subject+Body label=Queue would put Subject before the text)."
        in " ".join(alone.notes)
    )
    user_data = tasks.UserData((file,), columns={"text": "Subject+Body", "label": "Queue"})
    task = tasks.load("rows", user_data=user_data)
    assert task.documents("test")[0]["text"].startswith("Subject ")
    assert "\n" in task.documents("test")[0]["text"]
    assert not any("Not used" in note for note in task.notes)


def test_a_label_of_a_usual_name_is_found_beside_a_text_that_is_named(tmp_path: Path) -> None:
    rows = ticket_files.english(60)
    file = write_columns(tmp_path / "rows.csv", ("What they wrote", "Category"), rows)
    user_data = tasks.UserData((file,), columns={"text": "What they wrote"})
    assert tasks.load("rows", user_data=user_data).kind == "choice"


def test_one_text_with_two_labels_is_told(tmp_path: Path) -> None:
    rows = ticket_files.english(60)
    rows += [(text.upper(), "other") for text, _ in rows[:7]]
    task = tasks.load(write_columns(tmp_path / "rows.csv", ("text", "label"), rows))
    notes = " ".join(task.notes)
    assert "7 texts have different labels in different rows (first: line 2, line 62: " in notes


def test_every_spelling_of_a_label_is_listed(tmp_path: Path) -> None:
    rows = ticket_files.english(60)
    label = rows[0][1]
    rows += [(f"{text} again", label.upper()) for text, name in rows[:9] if name == label]
    task = tasks.load(write_columns(tmp_path / "rows.csv", ("text", "label"), rows))
    (note,) = [note for note in task.notes if note.startswith("Merged 2 spellings")]
    spelled = sum(name == label for _, name in rows)
    assert f"{label} ({spelled}), {label.upper()} (" in note


def test_a_corpus_that_is_inferred_is_told(tmp_path: Path) -> None:
    rows = [(text, f"note {number}") for number, (text, _) in enumerate(ticket_files.english(40))]
    task = tasks.load(write_columns(tmp_path / "rows.csv", ("text", "remark"), rows))
    assert task.kind == "corpus"
    notes = " ".join(task.notes)
    assert "No column of labels or answers: the column text is read as a corpus." in notes
    assert "Not used: remark." in notes


def test_answers_that_are_few_are_labels_and_that_is_told(tmp_path: Path) -> None:
    rows = [{"question": f"Ticket {i}: who?", "answer": ("a", "b")[i % 2]} for i in range(40)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    task = tasks.load(str(file))
    assert list(task.labels) == ["a", "b"]
    assert "--map prompt=question completion=answer" in " ".join(task.notes)
    user_data = tasks.UserData((str(file),), columns={"prompt": "question", "completion": "answer"})
    assert tasks.load("rows", user_data=user_data).kind == "generation"


def test_the_input_of_an_instruction_belongs_to_the_prompt(tmp_path: Path) -> None:
    rows = [
        {"instruction": f"Add {i}.", "input": "to 7" if i % 2 else "", "output": f"is {i}"}
        for i in range(40)
    ]
    file = tmp_path / "alpaca.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    task = tasks.load(str(file))
    prompts = {document["prompt"] for document in task.documents("train")}
    assert all(prompt.endswith((".", ".\nto 7")) for prompt in prompts)
    assert any(prompt.endswith(".\nto 7") for prompt in prompts)


@pytest.mark.parametrize(
    ("written", "right", "scores"),
    [
        ("It is Oslo.", "Oslo", (0.0, 0.5, 1.0, 0.5)),
        ("oslo", "Oslo.", (1.0, 1.0, 1.0, 1.0)),
        ("the big city", "a city", (0.0, 2 / 3, 1.0, 2 / 3)),
        ("y x", "x y", (0.0, 1.0, 0.0, 0.5)),
        ("Grüße", "GRÜSSE", (1.0, 1.0, 1.0, 1.0)),
        ("", "Oslo", (0.0, 0.0, 0.0, 0.0)),
        ("!?", "!?", (1.0, 1.0, 1.0, 1.0)),
        ("दिन", "दान", (0.0, 0.0, 0.0, 0.0)),  # they differ in a vowel sign alone
        ("यह हिन्दी है", "हिन्दी", (0.0, 0.5, 1.0, 0.5)),
        ("yes", "Yes ❤️", (1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_scores_of_written_answers(
    written: str, right: str, scores: tuple[float, float, float, float]
) -> None:
    graded = grade_free_text({"completion": right}, [written])
    assert tuple(graded.values()) == pytest.approx(scores)


def test_only_answers_with_vowel_signs_make_another_task(tmp_path: Path) -> None:
    graders = {}
    for name, answer in (("latin", "Straße"), ("hindi", "हिन्दी")):
        file = tmp_path / f"{name}.jsonl"
        rows = [{"prompt": f"{i}?", "completion": f"{answer} {i}"} for i in range(40)]
        file.write_text("\n".join(map(json.dumps, rows)))
        graders[name] = describe_definition(tasks.load(str(file))._subtasks[0].definition)
    plain = "exact match, token F1, contains and ROUGE-L of words in lower case, without articles"
    assert graders["latin"]["process_results"] == plain  # results of earlier versions stay
    assert graders["hindi"]["process_results"] != plain


def test_token_f1_and_exact_match_are_those_of_squad() -> None:
    """lm-eval carries SQuAD's own functions; here they agree on texts of words that stand alone."""
    from lm_eval.tasks.tydiqa.utils import exact_match_score, f1_score

    words = ["the", "a", "Oslo", "is", "city,", "in", "Norway", "north."]
    stream = random.Random(0)
    for _ in range(300):
        written = " ".join(stream.choices(words, k=stream.randrange(1, 7)))
        right = " ".join(stream.choices(words[2:], k=stream.randrange(1, 4)))
        graded = grade_free_text({"completion": right}, [written])
        assert graded["token_f1"] == pytest.approx(f1_score(written, right, "en")), (written, right)
        assert graded["exact_match"] == float(exact_match_score(written, right, "en")), (
            written,
            right,
        )
