"""The company's story: labelled tickets → the best model → predictions on another file, with real commands."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import potentia
import ticket_files as tickets
from potentia.cli.app import app
from potentia.zoo import write_model_folders

RECIPE = """
models: [any]
tasks: [any]
tuning: {learning_rates: [1.0e-2], epochs: 6, targets: [all-linear], dropout: 0.0, loss: completion}
"""


def command(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("tickets")
    rows = tickets.of_the_zoo(420)
    data = folder / "support"
    data.mkdir()
    tickets.write(
        data / "train.csv", [*rows[:260], *rows[380:390]]
    )  # ten of them are also in the test
    tickets.write(data / "dev.csv", rows[260:320])
    tickets.write(data / "test.csv", rows[320:])
    (folder / "recipe.yaml").write_text(RECIPE)
    models = write_model_folders(folder / "zoo", ["birch-71k", "birch-159k"])
    result = command(
        "select",
        "--data",
        data,
        "--models",
        models["birch-71k"],
        "--models",
        models["birch-159k"],
        "--study",
        folder / "recipe.yaml",
        "-o",
        folder / "selected",
        "--device",
        "cpu",
        "--json",
    )
    return folder, json.loads(result)


def test_a_model_is_chosen_beside_what_needs_no_model(story: tuple[Path, dict]) -> None:
    _, output = story
    classes = output["classes"]
    assert (output["task"], output["metric"]) == ("support", "acc")
    best = classes["models"][0]
    assert best["model"] == output["best"]
    assert best["scores"][0] >= 0.8
    assert set(classes["baselines"]) == {"majority", "tfidf"}
    assert classes["baselines"]["majority"]["acc"] < best["scores"][0]
    assert any("TF-IDF" in sentence for sentence in classes["sentences"])
    assert sum(map(sum, classes["confusion"])) == classes["documents"] == 100


def test_predictions_are_those_of_the_test(story: tuple[Path, dict], tmp_path: Path) -> None:
    folder, output = story
    adapter, file = folder / "selected" / "adapter", folder / "support" / "test.csv"
    printed = command("predict", adapter, file, "-o", tmp_path / "p.csv", "--device", "cpu")
    tested = json.loads((adapter / "potentia.json").read_text())["score"]
    assert f"Accuracy {tested:.3f} on 100 labelled rows" in printed
    prediction = potentia.predict(adapter, file, device="cpu")
    assert prediction.accuracy == pytest.approx(tested)
    frame = prediction.to_frame()
    labels = output["classes"]["labels"]
    assert list(frame.columns) == [
        "text",
        "category",
        "predicted",
        "probability",
        *(f"p({label})" for label in labels),
    ]
    assert frame[[f"p({label})" for label in labels]].sum(axis=1).to_numpy() == pytest.approx(
        1.0, abs=1e-3
    )
    unlabelled = [{"text": row["text"]} for row in prediction.rows[:5]]
    assert potentia.predict(adapter, unlabelled, device="cpu").predicted == prediction.predicted[:5]
    assert (tmp_path / "p.csv").read_text().count("\n") == 101
    with_blank = potentia.predict(adapter, ["", prediction.rows[0]["text"]], device="cpu")
    assert with_blank.predicted == (None, prediction.predicted[0])
    assert with_blank.notes == ("1 row has no prediction (row 1: text is empty).",)
    with pytest.raises(potentia.InputError, match="no row to predict: text is empty"):
        potentia.predict(adapter, [""], device="cpu")


def test_the_lines_of_the_card_give_the_same_answer(story: tuple[Path, dict]) -> None:
    folder, _ = story
    adapter = folder / "selected" / "adapter"
    card = (adapter / "README.md").read_text()
    assert "majority class" in card
    assert "Text: {{text}}" in card
    text = tickets.of_the_zoo(420)[330][0]
    code = card.partition("```python\n")[2].partition("```")[0].replace("'Your text'", repr(text))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {"__name__": "__main__"})
    (share,) = potentia.predict(adapter, [text], device="cpu").probabilities
    assert eval(printed.getvalue().splitlines()[-1]) == pytest.approx(share, abs=1e-4)


def test_a_merged_model_stands_alone(story: tuple[Path, dict], tmp_path: Path) -> None:
    folder, _ = story
    adapter = folder / "selected" / "adapter"
    command("adapters", "export", "--merge", adapter, "-o", tmp_path / "whole")
    note = json.loads((adapter / "potentia.json").read_text())
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "potentia.json").write_text(
        json.dumps(note | {"model": {"source": str(tmp_path / "whole")}})
    )
    texts = [text for text, _ in tickets.of_the_zoo(420)[320:340]]
    merged, adapted = (potentia.predict(a, texts, device="cpu") for a in (bare, adapter))
    assert merged.predicted == adapted.predicted


def test_duplicates_and_bad_rows_are_told(story: tuple[Path, dict], tmp_path: Path) -> None:
    folder, _ = story
    shown = command("tasks", folder / "support")
    assert "Duplicates across splits are dropped: 10 of train" in shown
    file = tickets.write(
        tmp_path / "bad.csv", [*tickets.english(60), ("no label", ""), ("", "billing")]
    )
    assert "2 of 62 rows cannot be used and are skipped" in command("tasks", file)
    dry_run = ["run", "--models", "m", "--tasks", str(file), "--dry-run"]
    result = CliRunner().invoke(app, dry_run)
    assert isinstance(result.exception, potentia.InputError)
    assert "2 of 62 rows cannot be used" in str(result.exception)
