"""Files as companies bring them are read on the first try, and what was inferred is told."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import company_files
from potentia import tasks
from potentia.errors import TaskError
from potentia.tasks.free_text import grade_free_text
from potentia.values.requests import Generation


def test_messy_tickets_have_five_labels_and_no_blank_rows(tmp_path: Path) -> None:
    file = company_files.write_messy_tickets(tmp_path / "tickets.csv")
    task = tasks.load(str(file))
    assert len(task.labels) == 5
    sizes = [len(task.documents(split)) for split in ("train", "validation", "test")]
    assert sum(sizes) + task.plan.dropped_overlap == 203
    notes = " ".join(task.notes)
    assert "3 blank rows skipped" in notes
    assert "Merged 3 spellings of the label Billing" in notes or "spellings of the label" in notes
    assert any("Grüße" in document["text"] for document in task.documents("train"))


def test_spellings_are_kept_apart_where_the_user_wants_that(tmp_path: Path) -> None:
    file = company_files.write_messy_tickets(tmp_path / "tickets.csv")
    own = tasks.UserData((str(file),), merge_spellings=False)
    task = tasks.load("tickets", own=own)
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
    own = tasks.UserData((file,), metric="exact_match")
    assert tasks.load("faq", own=own).metric == "exact_match"
    with pytest.raises(TaskError, match="not scored by 'bleu'") as error:
        tasks.load("faq", own=tasks.UserData((file,), metric="bleu"))
    assert "rouge_l" in str(error.value.hint)


def test_an_exam_with_options_and_letters(tmp_path: Path) -> None:
    task = tasks.load(str(company_files.write_exam(tmp_path / "exam.jsonl")))
    prompt = task.prompts(task.documents("test")[:1])[0]
    number = int(prompt.text.split("What is ")[1].split()[0])
    assert len(prompt.choices) == 4
    assert prompt.gold == str(number + 1)


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


def test_answers_that_are_few_are_labels_and_that_is_told(tmp_path: Path) -> None:
    rows = [{"question": f"Ticket {i}: who?", "answer": ("a", "b")[i % 2]} for i in range(40)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    task = tasks.load(str(file))
    assert list(task.labels) == ["a", "b"]
    assert "--map prompt=question completion=answer" in " ".join(task.notes)
    own = tasks.UserData((str(file),), columns={"prompt": "question", "completion": "answer"})
    assert tasks.load("rows", own=own).kind == "generation"


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
    ],
)
def test_scores_of_written_answers(
    written: str, right: str, scores: tuple[float, float, float, float]
) -> None:
    graded = grade_free_text({"completion": right}, [written])
    assert tuple(graded.values()) == pytest.approx(scores)


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
