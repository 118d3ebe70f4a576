"""What stands beside the race of causal models: encoders with a head of their own, and classifiers on embeddings.

Both are tested on the same folds as the finalists. Encoders are ranked with them, as results of the last round's study.
Classifiers on frozen embeddings are baselines: their results are a study of their own, ``NAME-embeddings``.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.analysis.stats import interval_of_score, pack_correct
from potentia.engine import fingerprints
from potentia.errors import first_line
from potentia.run.encoders import (
    VERSION,
    EncoderTuning,
    classify_embeddings,
    classify_words,
    count_epochs,
    embed_task,
    fit_embedding_classifier,
    grade_logprobs,
    is_encoder,
    make_cell,
)
from potentia.run.progress import open_store
from potentia.study import ModelSpec, Study, content_key, study_key
from potentia.values.baselines import Baseline
from potentia.values.findings import short_names
from potentia.values.selection import Selection
from potentia.values.selection_studies import SelectionPart, SelectionStudy

if TYPE_CHECKING:
    from potentia.store import CellRecord
    from potentia.tasks import EmbeddingClassifier, Task
    from potentia.values.scores import Floats

_EXPECTED_ERRORS = (OSError, ValueError, RuntimeError, KeyError, ImportError)


def fingerprint_model(row: ModelSpec) -> str:
    """Return the fingerprint of a model's files."""
    source = (row.source, row.revision, row.gguf_file, tuple(row.adapters))
    return str(fingerprints([source])[source].result())


def separate_encoders(study: Study) -> tuple[Study, tuple[ModelSpec, ...]]:
    """Return the study without its encoders, and the encoders."""
    encoders = tuple(row for row in study.models if is_encoder(row.source))
    language_models = tuple(row for row in study.models if row not in encoders)
    return study.model_copy(update={"models": language_models}), encoders


@dataclass
class EncoderEntrants:
    """The encoders among the candidates of a selection."""

    study: Study
    rows: Sequence[ModelSpec]
    stop: Callable[[], bool] = lambda: False
    report: Callable[[str], object] = lambda _: None  # receives a line for each result
    problems: dict[str, str] = field(default_factory=dict)  # by model
    examples_per_second: dict[str, float] = field(default_factory=dict)  # by model
    _fingerprints: dict[str, str] = field(init=False, default_factory=dict)  # by model

    def folder_of(self, model: str) -> Path:
        """Return where the encoder to use is kept: that of the first fold, or the one that was tuned on all rows.

        Two models of one name, of different owners, have folders of their own.
        """
        source = hashlib.sha256(model.encode()).hexdigest()[:8]
        return Path(self.study.store).parent / "encoders" / f"{Path(model).name}-{source}"

    def run(self, final_study: str, folds: Mapping[str, Task], planned_folds: int = 0) -> None:
        """Fine-tune every encoder on these folds; its results go into the study of the last round.

        What the store has of them is not computed again. Progress counts to the ``planned_folds`` where these are more.
        """
        first_fold = next(iter(folds))
        total = max(planned_folds, len(folds))
        for row in self.rows:
            try:
                self._release_outdated(row, folds, final_study)
                tuning = EncoderTuning(
                    row.source, self.study.device, seed=self.study.seed, should_stop=self.stop
                )
                for number, (fold_name, task) in enumerate(folds.items(), start=1):
                    save_to = self.folder_of(row.name) if fold_name == first_fold else None
                    if self._take_stored(row, task, final_study):
                        continue
                    cell = self._run_fold(tuning, row, fold_name, task, final_study, save_to)
                    (name,) = short_names([row.name])
                    score = interval_of_score(cell.score).format() or f"{cell.score.value:.3f}"
                    self.report(f"[{number}/{total}] {name}: {score}")
            except _EXPECTED_ERRORS as error:
                self.problems[row.name] = first_line(error)

    def _make_key(self, row: ModelSpec, task: Task) -> str:
        """Return the key of an encoder's result on a fold: everything that can change its score."""
        if row.name not in self._fingerprints:
            self._fingerprints[row.name] = fingerprint_model(row)
        return content_key(
            model=self._fingerprints[row.name],
            task=task.fingerprint,
            splits=task.split_plan.to_dict(),
            seed=self.study.seed,
            recipe="encoder",
            version=VERSION,
        )

    def _release_outdated(
        self, row: ModelSpec, folds: Mapping[str, Task], final_study: str
    ) -> None:
        """Take results of a file or a model that has changed since out of the study of the last round."""
        asked = {self._make_key(row, task) for task in folds.values()}
        with open_store(self.study.store) as store:
            stored = store.cells.read(study=final_study, model=row.name)
            outdated = [cell.key for cell in stored if cell.key not in asked]
            if outdated:
                store.cells.release(final_study, outdated)

    def _take_stored(self, row: ModelSpec, task: Task, final_study: str) -> bool:
        """Add a result that the store has to the study of the last round; False where it has none."""
        with open_store(self.study.store) as store:
            cell = store.cells.get(self._make_key(row, task))
            if cell is None:
                return False
            store.cells.commit(replace(cell, study=final_study))
        return True

    def _run_fold(
        self,
        tuning: EncoderTuning,
        row: ModelSpec,
        fold_name: str,
        task: Task,
        final_study: str,
        save_to: Path | None,
    ) -> CellRecord:
        """Fine-tune an encoder on one fold and store the result."""
        result = tuning.run(task, save_to)
        outcomes = grade_logprobs(task, result.logprobs)
        self.examples_per_second[row.name] = len(outcomes) / max(result.test_seconds, 1e-9)
        cell = make_cell(
            task,
            outcomes,
            metric_name=fold_name,
            study=final_study,
            model_name=row.name,
            fingerprint=fingerprint_model(row),
            recipe="encoder",
            seconds=result.seconds,
            selection=Selection(
                learning_rate=result.learning_rate,
                epoch=result.epoch,
                validation=result.validation,
                validation_right=pack_correct(result.validation_right),
                tuned=True,
                updates=result.updates,
            ),
            device=str(tuning.device),
        )
        cell = replace(cell, key=self._make_key(row, task))
        with open_store(self.study.store) as store:
            store.cells.commit(cell, items=outcomes)
        return cell

    def refit(self, model: str, task: Task, fold_cells: Sequence[CellRecord]) -> CellRecord:
        """Fine-tune an encoder on all rows with the middle of what the folds chose; return the result to export.

        It cannot be tested: its scores are still those of the first fold.
        """
        (row,) = [row for row in self.rows if row.name == model]
        chosen = [cell.selection for cell in fold_cells]
        rates = [selection.learning_rate for selection in chosen if selection.learning_rate]
        epochs = [selection.epoch for selection in chosen if selection.epoch]
        rate = statistics.median_low(rates)
        epoch = statistics.median_high(epochs)
        tuning = EncoderTuning(
            row.source, self.study.device, seed=self.study.seed, should_stop=self.stop
        )
        trained_rows = fold_cells[0].provenance.task.training_examples
        planned_epochs = epoch if trained_rows is None else count_epochs(trained_rows)
        updates = tuning.refit(task, rate, epoch, planned_epochs, self.folder_of(model))
        selection = Selection(learning_rate=rate, epoch=epoch, tuned=True, updates=updates)
        first_cell = fold_cells[0]
        described = replace(
            first_cell.provenance.task,
            fingerprint=task.fingerprint,
            splits=task.split_plan,
        )
        provenance = replace(first_cell.provenance, task=described)
        return replace(first_cell, selection=selection, provenance=provenance)


@dataclass
class CheapClassifiers:
    """What needs no fine-tuning, tested on the folds: logistic regression on embeddings, and on words.

    It learns from all training examples, however few a budget leaves to the candidates: it costs next to nothing.
    """

    study: Study
    rows: Sequence[ModelSpec]  # the candidates
    data: str  # the fingerprint of the first fold: a file that was changed has results of its own
    embeddings: dict[str, Mapping[str, Floats]] = field(
        default_factory=dict
    )  # by model, of each that was the best so far
    problems: dict[str, str] = field(default_factory=dict)  # by model without results
    key: str = field(init=False)  # of the study of their results

    def __post_init__(self) -> None:
        name = SelectionStudy(self.study.name, SelectionPart.EMBEDDINGS).name
        named = self.study.model_copy(update={"name": name, "models": tuple(self.rows)})
        self.key = content_key(study=study_key(named), data=self.data)
        with open_store(self.study.store, create=True) as store:
            store.studies.open(named.name, self.key, named.model_dump(mode="json"))

    def test_words(self, folds: Mapping[str, Task]) -> None:
        """Test TF-IDF with logistic regression, and store its probabilities: a threshold is chosen by them."""
        stored = {cell.task for cell in self._read_cells(Baseline.TFIDF, folds)}
        for fold_name, task in folds.items():
            if fold_name not in stored:
                logprobs = classify_words(task)
                self._commit(Baseline.TFIDF, Baseline.TFIDF, fold_name, task, logprobs, 0.0)

    def has_embedding_results(self, folds: Mapping[str, Task]) -> bool:
        """Whether the store has the results on embeddings of any candidate on all these folds."""
        return any(self._has_results(row.name, folds) for row in self.rows)

    def _has_results(self, model: str, folds: Mapping[str, Task]) -> bool:
        return len(self._read_cells(model, folds)) >= len(folds)

    def measure_embedding_accuracies(
        self, folds: Mapping[str, Task], *, only_stored: bool = False
    ) -> dict[str, float]:
        """Return the accuracies on embeddings by model; why a model has none goes to the problems.

        With ``only_stored`` nothing is computed: the results that the store has count. The embeddings of every model
        that was the best so far stay in memory, for ``fit``.
        """
        accuracies: dict[str, float] = {}
        for row in self.rows:
            if only_stored and not self._has_results(row.name, folds):
                continue
            try:
                accuracies[row.name] = self._test_row(row, folds)
            except _EXPECTED_ERRORS as error:
                self.problems[row.name] = first_line(error)
                self.embeddings.pop(row.name, None)
                continue
            if accuracies[row.name] < max(accuracies.values()):
                self.embeddings.pop(row.name, None)
        return accuracies

    def fit(self, model: str, folds: Mapping[str, Task]) -> EmbeddingClassifier:
        """Return the classifier on embeddings of a candidate that is taught all rows, to be used."""
        (row,) = [row for row in self.rows if row.name == model]
        embeddings = self.embeddings.get(model)
        if embeddings is None:
            embeddings = embed_task(row.source, list(folds.values()), self.study.device)
        return fit_embedding_classifier(next(iter(folds.values())), embeddings, on_all=True)

    def read_cell(self, model: str) -> CellRecord:
        """Return a result of the classifier on embeddings of a candidate."""
        with open_store(self.study.store, readonly=True) as store:
            return store.cells.read(study=self.key, model=model)[0]

    def _test_row(self, row: ModelSpec, folds: Mapping[str, Task]) -> float:
        """Return the accuracy over all folds; what the store has is not computed again."""
        cells = self._read_cells(row.name, folds)
        if len(cells) < len(folds):
            began = time.monotonic()
            embeddings = embed_task(row.source, list(folds.values()), self.study.device)
            self.embeddings[row.name] = embeddings
            cells = []
            for fold_name, task in folds.items():
                logprobs = classify_embeddings(task, embeddings)
                seconds = (time.monotonic() - began) / len(folds)
                fingerprint = fingerprint_model(row)
                cell = self._commit(row.name, fingerprint, fold_name, task, logprobs, seconds)
                cells.append(cell)
        examples = sum(cell.score.n for cell in cells)
        return sum(cell.scores["acc"].value * cell.score.n for cell in cells) / examples

    def _read_cells(self, model: str, folds: Mapping[str, Task]) -> list[CellRecord]:
        with open_store(self.study.store, readonly=True) as store:
            cells = store.cells.read(study=self.key, model=model)
        return [cell for cell in cells if cell.task in folds]

    def _commit(
        self,
        model: str,
        fingerprint: str,
        fold_name: str,
        task: Task,
        logprobs: Floats,
        seconds: float,
    ) -> CellRecord:
        outcomes = grade_logprobs(task, logprobs)
        cell = make_cell(
            task,
            outcomes,
            metric_name=fold_name,
            study=self.key,
            model_name=model,
            fingerprint=fingerprint,
            recipe=SelectionPart.EMBEDDINGS,
            seconds=seconds,
            selection=Selection(),
            device=self.study.device,
        )
        with open_store(self.study.store) as store:
            store.cells.commit(cell, items=outcomes)
        return cell
