"""A company asks which model to fine-tune: the answer in the order it is needed, from real commands on small models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import company_files
import potentia
import ticket_files
import tiny_encoder
from potentia.cli.app import app
from potentia.store import Store
from potentia.zoo import write_model_folders

ROWS = 150
RECIPE = """
models: [any]
tasks: [any]
tuning: {learning_rates: [1.0e-2], epochs: 4, targets: [all-linear], dropout: 0.0, loss: completion}
device: cpu
"""


def select(folder: Path, *arguments: object, data: str = "tickets.csv") -> Result:
    models = sorted(str(path) for path in (folder / "zoo").iterdir())
    words: list[object] = ["select", "--data", folder / data]
    for model in models:
        words += ["--models", model]
    words += ["--study", folder / "recipe.yaml", *arguments]
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("company")
    ticket_files.write(folder / "tickets.csv", ticket_files.of_the_zoo(ROWS))
    (folder / "recipe.yaml").write_text(RECIPE)
    write_model_folders(folder / "zoo", ["birch-71k", "birch-159k"])
    return folder


@pytest.fixture(scope="module")
def answered(world: Path) -> Result:
    result = select(world, "-o", world / "selected", "--price", "3.6 EUR/h")
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_the_first_line_says_whether_a_model_is_worth_it(answered: Result) -> None:
    lines = [line for line in answered.stdout.splitlines() if line.strip()]
    assert "TF-IDF + logistic regression" in lines[0]
    assert lines[0].startswith(("None of the candidates beats", "birch"))
    if lines[0].startswith("None"):
        assert lines[0].endswith("Use that.")


def test_every_row_is_tested_once(world: Path, answered: Result) -> None:
    with Store.open(world / "selected" / "select.db", readonly=True) as store:
        study = next(study for study in store.studies.read() if study.name == "select-final")
        cells = store.cells.read(study=study.key, model=str(world / "zoo" / "birch-71k"))
        documents = [item.doc_id for cell in cells for item in store.cells.read_items(cell.key)]
    assert len(cells) == 5
    assert sorted(documents) == list(range(ROWS))
    assert f"{ROWS} tested" in answered.stdout


def test_what_happens_is_told_on_the_way(answered: Result) -> None:
    told = answered.stderr
    assert "cross-validation in 5 folds" in told
    assert "Without a language model (accuracy): majority class" in told
    assert "Estimate: about" in told
    assert "EUR) on this machine" in told
    assert "[1/10]" in told  # the progress of `potentia run`
    assert told.index("Without a language model") < told.index("Estimate") < told.index("[1/10]")


def test_more_labels_and_money_and_trust(answered: Result) -> None:
    assert "With 4 times the labels" in answered.stdout
    assert "More labels" in answered.stdout
    assert "This selection cost" in answered.stdout
    assert "1,000 predictions of birch" in answered.stdout


def test_the_same_again_finds_everything_and_json_has_it_all(world: Path, answered: Result) -> None:
    again = select(world, "-o", world / "selected", "--json")
    assert again.exit_code == 0, (again.output, again.exception)
    value = json.loads(again.stdout)
    assert value["answer"].split(".")[0] in answered.stdout
    assert value["trust"]["temperature"] > 0
    assert value["curve"]["sizes"][1] == value["train_examples"]
    assert value["test_examples"] == ROWS
    assert 0 <= value["classes"]["baselines"]["TF-IDF + logistic regression"]["acc"] <= 1
    note = json.loads((world / "selected" / "adapter" / "potentia.json").read_text())
    assert note["temperature"] == pytest.approx(value["trust"]["temperature"])


def test_the_report_opens_with_the_same_verdict(
    world: Path, answered: Result, tmp_path: Path
) -> None:
    first = next(line for line in answered.stdout.splitlines() if line.strip())
    store = world / "selected" / "select.db"
    result = CliRunner().invoke(app, ["report", str(store), "-o", str(tmp_path / "r.html")])
    assert result.exit_code == 0, (result.output, result.exception)
    page = (tmp_path / "r.html").read_text()
    verdict = first.split(" (")[0]
    assert verdict in page
    assert page.index(verdict) < page.index("Where each model stands")
    assert "With 4 times the labels" in page.replace("\u00a0", " ")


def test_the_classifier_can_be_taken_away(world: Path, answered: Result, tmp_path: Path) -> None:
    file = world / "tickets.csv"
    written = tmp_path / "p.csv"
    words = ["predict", world / "selected" / "classifier", file, "-o", written]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    assert f"on {ROWS} labelled rows" in result.stdout
    lines = written.read_text().splitlines()
    assert len(lines) == ROWS + 1
    assert "e-" not in lines[1]


def test_a_selection_from_python(world: Path, answered: Result) -> None:
    models = sorted(str(path) for path in (world / "zoo").iterdir())
    recipe = world / "recipe.yaml"
    chosen = potentia.select(world / "tickets.csv", models, output=world / "selected", study=recipe)
    assert chosen.best in (*models, "TF-IDF + logistic regression")
    assert list(chosen.table["model"]) == [s.model for s in chosen.choice.standings]
    text = ticket_files.of_the_zoo(ROWS)[0][0]
    assert chosen.predictor([text]).predicted[0] in chosen.choice.classification.labels
    assert chosen.report(world / "r.html").exists()
    assert str(chosen) == chosen.choice.answer()


def test_a_budget_that_holds_too_little_is_told_before_the_start(
    world: Path, tmp_path: Path
) -> None:
    result = select(world, "-o", tmp_path / "s", "--budget", "6s")
    told = result.stderr
    assert "The budget of 6.0 s holds" in told
    assert "all of it would take about" in told
    if result.exit_code:
        assert result.exit_code == 1 or "ended before a model was fine-tuned" in str(
            result.exception
        )
    else:
        assert "budget" in result.stdout.lower()


def test_interrupting_says_how_to_go_on(world: Path, tmp_path: Path) -> None:
    models = sorted(str(path) for path in (world / "zoo").iterdir())
    words = ["select", "--data", world / "tickets.csv", "--models", *models]
    words += ["--study", world / "recipe.yaml", "-o", tmp_path / "s"]
    line = [sys.executable, "-m", "potentia", *map(str, words)]
    process = subprocess.Popen(
        line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    told = []
    assert process.stderr is not None
    for text in process.stderr:
        told.append(text)
        if text.startswith("[1/10]"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read()
    assert process.wait(timeout=120) == 130, (told, rest)
    assert "Stopped. Everything finished is saved in" in rest
    assert "To go on: potentia select" in rest
    assert "Warning" not in "".join(told) + rest  # of libraries


def test_an_encoder_competes_on_equal_terms(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an encoder without pretraining needs larger steps than a real one
    monkeypatch.setattr("potentia.run.encoders.LEARNING_RATES", (5e-3,))
    rows = ticket_files.of_the_zoo(ROWS)
    encoder = tiny_encoder.write_encoder(tmp_path / "encoder", [text for text, _ in rows])
    models = [str(world / "zoo" / "birch-71k"), str(encoder)]
    told: list[str] = []
    chosen = potentia.select(
        world / "tickets.csv",
        models,
        output=tmp_path / "s",
        study=world / "recipe.yaml",
        folds=2,
        note=told.append,
    )
    table = chosen.table.set_index("model")
    assert set(chosen.choice.ranking.models) == set(models)
    assert table.loc[str(encoder), "after"] > 0.7  # words that stand for a label are learned
    assert table["examples_per_second"].notna().all()
    assert any("Frozen embeddings + logistic regression" in text for text in told)
    classification = chosen.choice.classification
    assert classification is not None
    assert all(0 <= test.frozen["acc"] <= 1 for test in classification.models)
    with Store.open(tmp_path / "s" / "select.db", readonly=True) as store:
        cells = store.cells.read(study=chosen.final_study, model=str(encoder))
        tested = [item.doc_id for cell in cells for item in store.cells.read_items(cell.key)]
    assert sorted(tested) == list(range(ROWS))
    texts = [text for text, _ in rows[:5]]
    predictions = chosen.predictor(texts)
    assert set(predictions.predicted) <= set(classification.labels)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("faq.csv", company_files.write_faq),
        ("exam.jsonl", company_files.write_exam),
        ("chat.jsonl", company_files.write_chat),
        ("alt.csv", company_files.write_windows_tickets),
        ("messy.csv", company_files.write_messy_tickets),
    ],
)
def test_the_five_files_give_an_answer_on_the_first_try(
    world: Path, tmp_path: Path, name: str, write: object
) -> None:
    write(world / name)  # type: ignore[operator]
    result = select(
        world, "-o", tmp_path / "s", "--folds", 2, "--set", "tuning.epochs=1", data=name
    )
    assert result.exit_code == 0, (result.output, result.exception)
    assert "tested" in result.stdout
    assert "P(best)" in result.stdout
