"""A company asks which model to fine-tune: the answer in the order it is needed, from real commands on small models."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import company_files
import potentia
import ticket_files
import tiny_encoder
from potentia.analysis.planning import find_smaller_model
from potentia.cli.app import app
from potentia.errors import InputError
from potentia.evidence import read
from potentia.integrations import export_adapter
from potentia.show import make_answer, make_report
from potentia.store import Store
from potentia.values.baselines import Baseline
from potentia.zoo import write_model_folders
from speed import PATIENCE

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


def test_the_report_advises_what_its_headline_says(world: Path, answered: Result) -> None:
    data = make_report(read(str(world / "selected" / "select.db"), study="select-final"), items=0)
    (measured,) = data.labelled
    perfect = {"acc": 1.0, "stderr": 0.0, "macro_f1": 1.0, "balanced_accuracy": 1.0}
    outdone = replace(measured, baselines={Baseline.TFIDF: perfect})
    vars(data)["labelled"] = (outdone,)  # as if that had been measured
    answer = make_answer(data)
    assert "Use that." in answer.headline
    assert answer.advice == ("Use TF-IDF + logistic regression: no candidate does better.",)
    assert not any("Send the unsure" in sentence for sentence in answer.sentences)
    (tile,) = [tile for tile in answer.tiles if tile["note"] == "needs no fine-tuning"]
    assert (tile["value"], tile["label"]) == ("1.00", "TF-IDF + logistic regression")


def test_every_row_is_tested_once(world: Path, answered: Result) -> None:
    with Store.open(world / "selected" / "select.db", readonly=True) as store:
        study = next(study for study in store.studies.read() if study.name == "select-final")
        cells = store.cells.read(study=study.key, model=str(world / "zoo" / "birch-71k"))
        documents = [item.doc_id for cell in cells for item in store.cells.read_items(cell.key)]
    assert len(cells) == 5
    assert sorted(documents) == list(range(ROWS))
    assert f"{ROWS} tested" in answered.stdout


def test_every_fold_trains_on_all_of_its_rows(world: Path, tmp_path: Path) -> None:
    rows = ticket_files.of_the_zoo(ROWS - 8)  # three folds of it differ by a row
    file = ticket_files.write(world / "uneven.csv", rows)
    arguments = ("-o", tmp_path / "s", "--folds", 3, "--set", "tuning.epochs=1")
    result = select(world, *arguments, data=file.name)
    assert result.exit_code == 0, (result.output, result.exception)
    with Store.open(tmp_path / "s" / "select.db", readonly=True) as store:
        study = next(study for study in store.studies.read() if study.name == "select-final")
        splits = [cell.provenance.task.splits for cell in store.cells.read(study=study.key)]
    assert len({split.test.used for split in splits}) > 1
    for split in splits:
        assert sum(split.used_by_split().values()) == len(rows)


def test_what_happens_is_told_on_the_way(answered: Result) -> None:
    result = answered.stderr
    assert "cross-validation in 5 folds" in result
    assert "Without a language model (accuracy): majority class" in result
    assert "Estimate: about" in result
    assert "EUR) on this machine" in result
    assert "[1/10]" in result  # the progress of `potentia run`
    assert (
        result.index("Without a language model") < result.index("Estimate") < result.index("[1/10]")
    )


def test_more_labels_and_money_and_trust(answered: Result) -> None:
    # one fold of 150 rows
    assert (
        "30 test examples of fold 1 are too few to say what they would change." in answered.stdout
    )
    assert "More training examples, by 30 test examples of fold 1" in answered.stdout
    assert "labels (" not in answered.stdout
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
    assert 0 <= value["classes"]["baselines"]["tfidf"]["acc"] <= 1
    note = json.loads((world / "selected" / "adapter" / "potentia.json").read_text())
    assert note["temperature"] == pytest.approx(value["trust"]["temperature"])


def test_the_model_to_use_is_fine_tuned_on_all_rows(world: Path, answered: Result) -> None:
    adapter = world / "selected" / "adapter"
    note = json.loads((adapter / "potentia.json").read_text())
    assert "on all rows, for use" in answered.stderr
    assert (adapter / "adapter_config.json").exists()
    assert note["tested_folds"] == 5
    assert note["n"] == ROWS  # the folds' score is its estimate
    assert note["asked"]["splits"]["train"]["used"] == ROWS - 2
    with Store.open(world / "selected" / "select.db", readonly=True) as store:
        study = next(study for study in store.studies.read() if study.name == "select-final")
        cells = store.cells.read(study=study.key, model=note["model"]["source"])
    rates = [cell.selection.learning_rate for cell in cells]
    assert note["selection"]["learning_rate"] in rates
    assert note["score"] == pytest.approx(sum(cell.score.value for cell in cells) / 5)
    card = (adapter / "README.md").read_text()
    assert "tested on rows that it had not seen" in card
    assert f"{note['score']:.4f} (95 % interval " in card
    # it has learned the rows: better on them than the folds' models are on rows they had not seen
    rows = ticket_files.of_the_zoo(ROWS)
    predictions = potentia.predict(adapter, [text for text, _ in rows], device="cpu")
    right = sum(said == label for said, (_, label) in zip(predictions.predicted, rows, strict=True))
    assert right / ROWS >= note["score"]


def test_what_is_exported_works_in_any_folder(
    world: Path, answered: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    with Store.open("selected/select.db", readonly=True) as store:
        study = next(study for study in store.studies.read() if study.name == "select-final")
        cell = store.cells.read(study=study.key, model=str(world / "zoo" / "birch-71k"))[0]
        model = replace(cell.provenance.model, source="zoo/birch-71k")  # as the user gave it
        provenance = replace(cell.provenance, model=model)
        exported = export_adapter(store, replace(cell, provenance=provenance), tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    base = str(world / "zoo" / "birch-71k")
    assert exported.base == base
    config_file = tmp_path / "a" / "adapter_config.json"
    if config_file.exists():
        assert json.loads(config_file.read_text())["base_model_name_or_path"] == base
    texts = [text for text, _ in ticket_files.of_the_zoo(ROWS)[:2]]
    assert None not in potentia.predict("a", texts, device="cpu").predicted


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
    assert "With 4 times the training examples" in page.replace("\u00a0", " ")


def test_the_classifier_can_be_taken_away(world: Path, answered: Result, tmp_path: Path) -> None:
    file = world / "tickets.csv"
    written = tmp_path / "p.csv"
    words = ["predict", world / "selected" / "classifier", file, "-o", written]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    assert f"on {ROWS} labelled rows" in result.stdout
    accuracy = json.loads((world / "selected" / "classifier" / "potentia.json").read_text())[
        "score"
    ]
    adapter_card = (world / "selected" / "adapter" / "README.md").read_text("utf-8")
    assert f"TF-IDF + logistic regression: {accuracy:.4f}" in adapter_card
    lines = written.read_text().splitlines()
    assert len(lines) == ROWS + 1
    assert "e-" not in lines[1]


def test_what_is_to_be_used_has_a_threshold(world: Path, answered: Result, tmp_path: Path) -> None:
    file = world / "tickets.csv"
    for folder in ("classifier", "adapter"):
        note = json.loads((world / "selected" / folder / "potentia.json").read_text())
        card = (world / "selected" / folder / "README.md").read_text("utf-8")
        has_threshold = note["threshold"] is not None
        assert ("a person should look" in card) is has_threshold
        predictions = potentia.predict(world / "selected" / folder, file, device="cpu")
        assert ("unsure" in predictions.records()[0]) is has_threshold
    value = json.loads(select(world, "-o", world / "selected", "--json").stdout)
    assert value["words_trust"]["rows"] == ROWS
    classifier_note = json.loads((world / "selected" / "classifier" / "potentia.json").read_text())
    assert classifier_note["temperature"] == pytest.approx(value["words_trust"]["temperature"])
    assert (value["classifier_trust"] is not None) is value["answer"].startswith("None of")
    if value["classifier_trust"] is not None:
        told = (
            "Send predictions of TF-IDF",
            "a wrong answer from TF-IDF",
            "probabilities of TF-IDF",
        )
        assert any(words in answered.stdout for words in told)


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
    assert type(chosen.best) is str  # whose repr is no name of a class here
    assert repr(chosen).startswith(f"SelectedModel(best={chosen.best!r}, task='tickets'")
    assert len(repr(chosen)) < 400


def test_a_short_budget_gives_an_answer_and_says_what_is_left_out(
    world: Path, tmp_path: Path
) -> None:
    result = select(world, "-o", tmp_path / "s", "--budget", "3s")
    assert result.exit_code == 0, (result.output, result.exception)
    told = result.stderr
    assert "budget of 3.0 s" in told
    estimates = ("A first guess:", "Estimate:")  # a quick machine has time for everything
    (estimate,) = [words for words in estimates if words in told]
    assert told.index(estimate) < told.index("Scores of 2 models before fine-tuning")
    assert "TF-IDF + logistic regression" in result.stdout.split("\n\n")[0]
    assert "before" in result.stdout
    assert (tmp_path / "s" / "adapter" / "potentia.json").exists()
    report = CliRunner().invoke(
        app, ["report", str(tmp_path / "s" / "select.db"), "-o", str(tmp_path / "r.html")]
    )
    assert report.exit_code == 0, (report.output, report.exception)


def test_a_budget_without_time_for_fine_tuning_answers_by_the_models_as_they_are(
    world: Path, tmp_path: Path
) -> None:
    # less than reading the data takes, on any machine
    result = select(world, "-o", tmp_path / "s", "--budget", "0.01s")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "The budget of " in result.stderr
    assert "is too short to fine-tune: these are scores before fine-tuning." in result.stderr
    assert (
        "No candidate was fine-tuned: scores before fine-tuning do not say which is best"
        in result.stdout
    )
    assert "before fine-tuning, 30 tested" in result.stdout
    rows = ticket_files.of_the_zoo(ROWS)[:3]
    predictions = potentia.predict(tmp_path / "s" / "adapter", [text for text, _ in rows])
    assert all(label is not None for label in predictions.predicted)


def test_interrupting_says_how_to_go_on(world: Path, tmp_path: Path) -> None:
    models = sorted(str(path) for path in (world / "zoo").iterdir())
    words = ["select", "--data", world / "tickets.csv", "--models", *models]
    words += ["--study", world / "recipe.yaml", "-o", tmp_path / "s"]
    line = [sys.executable, "-m", "potentia", *map(str, words)]
    process = subprocess.Popen(
        line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    result = []
    assert process.stderr is not None
    for text in process.stderr:
        result.append(text)
        if text.startswith("[1/10]"):
            process.send_signal(signal.SIGINT)
            break
    content = process.stderr.read()
    assert process.wait(timeout=PATIENCE) == 130, (result, content)
    assert "Stopped. Everything finished is saved in" in content
    assert "To go on: potentia select" in content
    assert "Warning" not in "".join(result) + content  # of libraries


def test_an_encoder_competes_on_equal_terms(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an encoder without pretraining needs larger steps than a real one
    monkeypatch.setattr("potentia.run.encoders.LEARNING_RATES", (5e-3,))
    rows = ticket_files.of_the_zoo(ROWS)
    encoder = tiny_encoder.write_encoder(tmp_path / "encoder", [text for text, _ in rows])
    models = [str(world / "zoo" / "birch-71k"), str(encoder)]
    result: list[str] = []
    chosen = potentia.select(
        world / "tickets.csv",
        models,
        output=tmp_path / "s",
        study=world / "recipe.yaml",
        folds=2,
        report_note=result.append,
    )
    table = chosen.table.set_index("model")
    assert set(chosen.choice.ranking.models) == set(models)
    assert table.loc[str(encoder), "after"] > 0.7  # words that stand for a label are learned
    assert table["examples_per_second"].notna().all()
    assert any("Frozen embeddings + logistic regression" in text for text in result)
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
    # progress by fold, and the encoder to use has seen all rows
    assert sum(text.startswith(("[1/2] encoder", "[2/2] encoder")) for text in result) == 2
    assert chosen.choice.best == str(encoder)
    note = json.loads((tmp_path / "s" / "adapter" / "potentia.json").read_text())
    assert (note["tested_folds"], note["n"]) == (2, ROWS)
    assert note["asked"]["splits"]["train"]["used"] == ROWS - 2
    card = (tmp_path / "s" / "adapter" / "README.md").read_text()
    assert "all rows, with what cross-validation chose" in card
    assert "the same in 2 folds" in card


def test_encoders_alone_are_compared(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("potentia.run.encoders.LEARNING_RATES", (5e-3,))
    texts = [text for text, _ in ticket_files.of_the_zoo(ROWS)]
    encoders = [str(tiny_encoder.write_encoder(tmp_path / f"e{n}", texts, n)) for n in (0, 1)]
    capfd.readouterr()  # making them has bars
    notes: list[str] = []
    select_encoders = partial(
        potentia.select,
        world / "tickets.csv",
        encoders,
        output=tmp_path / "s",
        folds=2,
        fields={"device": "cpu"},
        report_note=notes.append,
    )
    chosen = select_encoders()
    assert capfd.readouterr().err == ""  # no bars of libraries
    assert set(chosen.choice.ranking.models) == set(encoders)
    assert chosen.choice.test_examples == ROWS
    assert any(note.startswith("Estimate: about") for note in notes)
    assert sum(note.startswith(("[1/2]", "[2/2]")) for note in notes) == 4
    assert len(chosen.predictor(texts[:3]).predicted) == 3
    sizes = read(str(tmp_path / "s" / "select.db"), study=chosen.final_study).background.billions
    assert sizes == {name: pytest.approx(22_694 / 1e9) for name in encoders}
    assert chosen.report(tmp_path / "r.html").exists()
    notes.clear()
    again = select_encoders(budget=PATIENCE)
    assert not any(note.startswith("[") for note in notes)  # everything is stored
    assert again.table["after"].tolist() == chosen.table["after"].tolist()


def test_an_edited_file_has_results_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potentia.run.encoders.LEARNING_RATES", (5e-3,))
    rows = ticket_files.of_the_zoo(ROWS)
    texts = [text for text, _ in rows]
    encoders = [str(tiny_encoder.write_encoder(tmp_path / f"e{n}", texts, n)) for n in (0, 1)]
    file = tmp_path / "tickets.csv"
    for count in (90, 60):
        ticket_files.write(file, rows[:count])
        chosen = potentia.select(
            file, encoders, output=tmp_path / "s", folds=2, fields={"device": "cpu"}
        )
        assert chosen.choice.test_examples == count
        assert set(chosen.choice.ranking.models) == set(encoders)
        assert chosen.choice.classification is not None
        frozen = [test.frozen["acc"] * count for test in chosen.choice.classification.models]
        assert frozen == pytest.approx([round(right) for right in frozen])


def test_written_answers_are_judged_beside_what_needs_no_model(world: Path, tmp_path: Path) -> None:
    company_files.write_faq(world / "help.csv")
    arguments = ("-o", tmp_path / "s", "--folds", 2, "--set", "tuning.epochs=1")
    result = select(world, *arguments, data="help.csv")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "always writing the most frequent answer 0." in result.stderr
    first = next(line for line in result.stdout.splitlines() if line.strip())
    assert first.startswith("No candidate is of use yet: birch")
    assert "the answer of the most similar question" in first
    assert "of the tokens of help as unknown" in result.stdout
    assert "best candidate" in result.stdout
    page = tmp_path / "r.html"
    store = str(tmp_path / "s" / "select.db")
    report = CliRunner().invoke(app, ["report", store, "-o", str(page)])
    assert report.exit_code == 0, (report.output, report.exception)
    assert "No candidate is of use yet: birch" in page.read_text().replace("\u00a0", " ")
    card = (tmp_path / "s" / "adapter" / "README.md").read_text()
    assert "the answer of the most similar question: " in card


def test_where_no_candidate_knows_the_words_the_classifier_is_the_answer(
    world: Path, tmp_path: Path
) -> None:
    rows = [(f"Rechnung{k} Zahlung doppelt", "Kasse") for k in range(40)]
    rows += [(f"Paket{k} Versand fehlt", "Lager") for k in range(30)]
    file = ticket_files.write(world / "german.csv", rows)
    result = select(world, "-o", tmp_path / "s", "--folds", 3, data=file.name)
    assert result.exit_code == 1
    first = next(line for line in result.stdout.splitlines() if line.strip())
    assert first.startswith("Use TF-IDF + logistic regression (accuracy 1.000)")
    assert "hardly any of the words" in result.stdout
    assert result.stderr.count("failed:") == 2  # once a model
    written = tmp_path / "p.csv"
    words = ("predict", tmp_path / "s" / "classifier", file, "-o", written)
    predicted = CliRunner().invoke(app, [str(word) for word in words])
    assert predicted.exit_code == 0, (predicted.output, predicted.exception)
    assert "Accuracy 1.000 on 70 labelled rows" in predicted.stdout
    as_json = json.loads(select(world, "-o", tmp_path / "s", "--json", data=file.name).stdout)
    assert as_json["predictor"].endswith("classifier")
    assert len(as_json["problems"]) == 2


def test_encoders_alone_need_labels(world: Path, tmp_path: Path) -> None:
    encoders = [str(tiny_encoder.write_encoder(tmp_path / f"e{n}", ["a b"], n)) for n in (0, 1)]
    faq = company_files.write_faq(tmp_path / "faq.csv")
    with pytest.raises(InputError, match="this data has no labels"):
        potentia.select(faq, encoders, output=tmp_path / "s", fields={"device": "cpu"})


FINE_TUNED = ("--folds", 2, "--set", "tuning.epochs=1")
NOT_FINE_TUNED = (
    "--budget",
    "1s",
)  # of the kind of another file, so that reading it is what matters


@pytest.mark.parametrize(
    ("name", "write", "arguments"),
    [
        ("faq.csv", company_files.write_faq, FINE_TUNED),
        ("exam.jsonl", company_files.write_exam, FINE_TUNED),
        ("chat.jsonl", company_files.write_chat, NOT_FINE_TUNED),
        ("alt.csv", company_files.write_windows_tickets, NOT_FINE_TUNED),
        ("messy.csv", company_files.write_messy_tickets, FINE_TUNED),
    ],
)
def test_the_five_files_give_an_answer_on_the_first_try(
    world: Path,
    tmp_path: Path,
    name: str,
    write: Callable[[Path], Path],
    arguments: tuple[object, ...],
) -> None:
    write(world / name)
    result = select(world, "-o", tmp_path / "s", *arguments, data=name)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "tested" in result.stdout
    assert "P(best)" in result.stdout


def test_the_probability_of_an_exam_answer_is_that_of_the_answer(
    world: Path, tmp_path: Path
) -> None:
    lines = []
    words = ("ask", "map", "often", "craft", "deer")
    for row in range(60):
        options = [" ".join(words[: 1 + (row + step) % 5]) for step in range(4)]
        lines.append(
            {"question": f"which ask {row} ?", "options": options, "correct": "ABCD"[row % 4]}
        )
    file = world / "lengths.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    result = select(world, "-o", tmp_path / "s", *NOT_FINE_TUNED, data=file.name)
    assert result.exit_code == 0, (result.output, result.exception)
    predictions = potentia.predict(tmp_path / "s" / "adapter", file, device="cpu")
    assert predictions.metric == "acc_norm"
    shown = [record["probability"] for record in predictions.records()]
    for answer, shares, probability in zip(
        predictions.predicted, predictions.probabilities, shown, strict=True
    ):
        assert answer is not None
        assert shares[answer] == max(shares.values())
        assert probability == pytest.approx(shares[answer], abs=1e-4)


def test_the_users_price_of_a_device_is_used_by_every_command(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "potentia").mkdir()
    prices = "prices: {cpu: 3.6 EUR/h, cuda: 3.6 EUR/h}"
    (tmp_path / "potentia" / "config.yaml").write_text(prices)
    result = select(world, "-o", tmp_path / "s", "--device", "auto", *NOT_FINE_TUNED)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "This selection cost 0" in result.stdout
    assert "(cost 0" in result.stderr  # the estimate
    store = str(tmp_path / "s" / "select.db")
    status = CliRunner().invoke(app, ["status", store])
    assert " EUR" in status.output
    page = tmp_path / "r.html"
    report = CliRunner().invoke(app, ["report", store, "-o", str(page)])
    assert report.exit_code == 0, (report.output, report.exception)
    assert "cost at 3.6 EUR/h" in page.read_text()
    for command in ("status", "report"):
        refused = CliRunner().invoke(app, [command, store, "--price", "1/h"])
        assert isinstance(refused.exception, InputError)
        assert "potentia/config.yaml" in str(refused.exception)


def test_a_smaller_model_that_is_as_good_is_named(
    world: Path, answered: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 150 rows show no difference of two points, so that the user's margin is wide here
    is_as_good = partial(find_smaller_model, margin=0.5)
    monkeypatch.setattr("potentia.run.select.find_smaller_model", is_as_good)
    again = select(world, "-o", world / "selected")
    assert again.exit_code == 0, (again.output, again.exception)
    assert "birch-71k is as good within 50.0 points (difference " in again.stdout
    assert "2.3 times smaller than birch-159k" in again.stdout
    assert "as good within" not in answered.stdout


def test_blank_and_unsure_rows_are_marked(world: Path, answered: Result, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    shutil.copytree(world / "selected" / "adapter", adapter)
    note = json.loads((adapter / "potentia.json").read_text())
    note["threshold"] = 1.0  # nobody is so sure
    (adapter / "potentia.json").write_text(json.dumps(note))
    (first, _), (second, _) = ticket_files.of_the_zoo(2)
    file = tmp_path / "new.csv"
    file.write_text(f"id,text\n1,{first}\n2,\n,\n3,{second}\n")
    written = tmp_path / "p.csv"
    result = CliRunner().invoke(
        app, [str(word) for word in ("predict", adapter, file, "-o", written)]
    )
    assert result.exit_code == 0, (result.output, result.exception)
    assert "2 rows have no prediction (line 3, line 4: text is empty)." in result.stderr
    with written.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == ["1", "2", "", "3"]  # whole numbers stay so
    assert [bool(row["predicted"]) for row in rows] == [True, False, False, True]
    assert [row["unsure"] for row in rows] == ["True", "", "", "True"]
    assert "unsure" in result.stdout
    marked = tmp_path / "marked.csv"
    marked.write_bytes(file.read_text().encode("utf-8-sig"))
    for source, mark in ((file, b"id"), (marked, b"\xef\xbb\xbfid")):
        words = [str(word) for word in ("predict", adapter, source, "-o", written)]
        assert CliRunner().invoke(app, words).exit_code == 0
        assert written.read_bytes().startswith(mark)
    words = [str(word) for word in ("predict", adapter, file, "-o", tmp_path / "p.xlsx")]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, InputError)
    assert "Warning" not in refused.output
    shares = [float(value) for name, value in rows[0].items() if name.startswith("p(")]
    assert sum(shares) == pytest.approx(1.0, abs=0.001)
