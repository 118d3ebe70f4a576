"""The classifier on frozen embeddings: what scikit-learn fits, as plain arrays, to take away and to predict with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import potentia
import ticket_files
import tiny_encoder
from potentia import tasks
from potentia.errors import InputError
from potentia.integrations import export_embedding_classifier
from potentia.run import encoder_entrants
from potentia.run.encoder_entrants import CheapClassifiers
from potentia.run.encoders import fit_embedding_classifier
from potentia.study import read_study
from potentia.tasks import EmbeddingClassifier
from potentia.values.baselines import Baseline


@pytest.mark.parametrize("classes", [2, 4])
def test_it_computes_what_scikit_learn_does(classes: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = [number % classes for number in range(60)]
    features = rng.normal(size=(60, 8)) * 7 + 3 + np.array(labels)[:, None]
    features[:, 0] = 5.0  # one that tells nothing
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=1000))
    pipeline.fit(features, labels)
    classifier = EmbeddingClassifier.fit(features, labels)
    expected = pipeline.predict_log_proba(features)
    np.testing.assert_allclose(classifier.log_probabilities(features), expected, atol=1e-6)
    classifier.save(tmp_path / "c.npz")
    loaded = EmbeddingClassifier.load(tmp_path / "c.npz")
    np.testing.assert_allclose(loaded.log_probabilities(features), expected, atol=1e-6)
    with pytest.raises(InputError, match="fitted on 8 features"):
        loaded.log_probabilities(features[:, :5])


def test_the_one_to_hand_out_keeps_the_regularisation_that_validation_chose(
    tmp_path: Path,
) -> None:
    file = ticket_files.write(tmp_path / "tickets.csv", ticket_files.of_the_zoo(90))
    task = tasks.load(str(file))
    rng = np.random.default_rng(0)
    embeddings: dict[str, np.ndarray] = {}
    features_by_split: dict[str, np.ndarray] = {}
    labels_by_split: dict[str, list[int]] = {}
    for split in ("train", "validation", "test"):
        documents = task.documents(split)
        texts = task.question_texts(documents)
        labels_by_split[split] = [int(document["label"]) for document in documents]
        for text, label in zip(texts, labels_by_split[split], strict=True):
            # most features tell nothing, so that much regularisation does best
            embeddings.setdefault(text, 3 * np.eye(24)[label] + 3 * rng.normal(size=24))
        features_by_split[split] = np.array([embeddings[text] for text in texts])
    tested = fit_embedding_classifier(task, embeddings)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    pipeline.fit(features_by_split["train"], labels_by_split["train"])
    test_features = features_by_split["test"]
    expected = pipeline.predict_log_proba(test_features)
    np.testing.assert_allclose(tested.log_probabilities(test_features), expected, atol=1e-6)
    handed_out = fit_embedding_classifier(task, embeddings, on_all=True)
    all_labels = [label for labels in labels_by_split.values() for label in labels]
    pipeline.fit(np.concatenate(list(features_by_split.values())), all_labels)
    expected = pipeline.predict_log_proba(test_features)
    np.testing.assert_allclose(handed_out.log_probabilities(test_features), expected, atol=1e-6)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    file = tmp_path / "c.npz"
    file.write_bytes(b"PK nothing")
    with pytest.raises(InputError, match="not a classifier that Potentia wrote"):
        EmbeddingClassifier.load(file)
    np.savez(file, coefficients=np.zeros((3, 4)), intercepts=np.zeros(2), classes=np.arange(3))
    with pytest.raises(InputError, match="do not fit together"):
        EmbeddingClassifier.load(file)
    np.savez(file, coefficients=np.array(["a"]), intercepts=np.zeros(1), classes=np.arange(2))
    with pytest.raises(InputError, match="not a classifier that Potentia wrote"):
        EmbeddingClassifier.load(file)


def test_why_a_model_has_no_embeddings_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ticket_files.write(tmp_path / "tickets.csv", ticket_files.of_the_zoo(40))
    settings = {
        "models": ["nobody/nothing"],
        "tasks": [{"name": "tickets", "file": str(file)}],
        "store": str(tmp_path / "s.db"),
        "device": "cpu",
    }
    study = read_study(None, settings)
    task = tasks.load(str(file))

    def refuse(*_: object) -> None:
        raise OSError("no such model\nand more")

    monkeypatch.setattr(encoder_entrants, "embed_task", refuse)
    cheap = CheapClassifiers(study, study.rows(), task.fingerprint)
    assert cheap.measure_embedding_accuracies({"tickets": task}) == {}
    (problem,) = cheap.problems.values()
    assert problem == "no such model"


def test_what_is_taken_away_predicts_and_goes_with_its_model_alone(tmp_path: Path) -> None:
    rows = ticket_files.of_the_zoo(90)
    file = ticket_files.write(tmp_path / "tickets.csv", rows)
    texts = [text for text, _ in rows]
    encoder = tiny_encoder.write_encoder(tmp_path / "encoder", texts)
    other = tiny_encoder.write_encoder(tmp_path / "other", texts, seed=1)
    settings = {
        "models": [str(encoder)],
        "tasks": [{"name": "tickets", "file": str(file)}],
        "store": str(tmp_path / "s.db"),
        "device": "cpu",
    }
    study = read_study(None, settings)
    task = tasks.load(str(file))
    cheap = CheapClassifiers(study, study.rows(), task.fingerprint)
    cheap.test_words({"tickets": task})
    accuracies = cheap.measure_embedding_accuracies({"tickets": task})
    again = CheapClassifiers(study, study.rows(), task.fingerprint)
    assert again.measure_embedding_accuracies({"tickets": task}) == accuracies  # from the store
    changed_file = ticket_files.write(tmp_path / "changed.csv", rows[:60])
    changed = tasks.load(str(changed_file))
    afterwards = CheapClassifiers(study, study.rows(), changed.fingerprint)
    afterwards.test_words({"tickets": changed})
    assert afterwards.read_cell(Baseline.TFIDF).score.n == len(changed.documents("test"))
    words = again.read_cell(Baseline.TFIDF).scores
    expected = tasks.compute_baselines(task)[Baseline.TFIDF]
    for metric in ("acc", "macro_f1"):
        assert words[metric].value == pytest.approx(expected[metric])
    (model,) = accuracies
    folder = export_embedding_classifier(
        again.fit(model, {"tickets": task}),
        again.read_cell(model),
        tmp_path / "embedding-classifier",
        name="frozen embeddings",
        accuracy=accuracies[model],
    )
    predictions = potentia.predict(folder, file, device="cpu")
    assert set(predictions.predicted) <= set(task.labels)
    assert predictions.accuracy > 0.6  # it has learned these rows
    assert predictions.tested == pytest.approx(accuracies[model])
    with pytest.raises(InputError, match="is another model"):
        potentia.predict(folder, texts, base=str(other), device="cpu")
    vouched = potentia.predict(folder, texts, base=str(other), unchecked_base=True, device="cpu")
    assert len(vouched.predicted) == len(texts)
    note = json.loads((folder / "potentia.json").read_text())
    assert note["model"]["source"] == str(encoder)
