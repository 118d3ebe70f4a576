"""What stands beside the race of causal models: encoders with a head of their own, and classifiers on embeddings.

Both are tested on the same folds as the finalists. Encoders are ranked with them, as results of the last round's study.
Classifiers on frozen embeddings are baselines: their results are a study of their own, ``NAME-embeddings``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.analysis.benchmark import EMBEDDINGS
from potentia.analysis.stats import pack_correct
from potentia.engine import fingerprints
from potentia.errors import first_line
from potentia.run.encoders import (
    EncoderTuning,
    classify_embeddings,
    embed_task,
    grade_logprobs,
    is_encoder,
    make_cell,
)
from potentia.run.progress import open_store
from potentia.study import ModelSpec, Study, study_key
from potentia.values.selection import Selection

if TYPE_CHECKING:
    from potentia.tasks import Task

_EXPECTED_ERRORS = (OSError, ValueError, RuntimeError, KeyError, ImportError)


def fingerprint_model(row: ModelSpec) -> str:
    """Return the fingerprint of a model's files."""
    source = (row.source, row.revision, row.gguf_file, tuple(row.adapters))
    return str(fingerprints([source])[source].result())


def separate_encoders(study: Study) -> tuple[Study, tuple[ModelSpec, ...]]:
    """Return the study without its encoders, and the encoders."""
    encoders = tuple(row for row in study.models if is_encoder(row.source))
    others = tuple(row for row in study.models if row not in encoders)
    return study.model_copy(update={"models": others}), encoders


@dataclass
class EncoderEntrants:
    """The encoders among the candidates of a selection."""

    study: Study
    rows: Sequence[ModelSpec]
    stop: Callable[[], bool] = lambda: False
    problems: dict[str, str] = field(default_factory=dict)  # by model
    examples_per_second: dict[str, float] = field(default_factory=dict)  # by model

    def folder_of(self, model: str) -> Path:
        """Return where the encoder that was tuned on the first fold is kept."""
        return Path(self.study.store).parent / "encoders" / Path(model).name

    def run(self, final_study: str, folds: Mapping[str, Task]) -> None:
        """Fine-tune every encoder on these folds; its results go into the study of the last round."""
        first_fold = next(iter(folds))
        for row in self.rows:
            try:
                tuning = EncoderTuning(
                    row.source, self.study.device, seed=self.study.seed, stop=self.stop
                )
                for name, task in folds.items():
                    save_to = self.folder_of(row.name) if name == first_fold else None
                    self._run_fold(tuning, row, name, task, final_study, save_to)
            except _EXPECTED_ERRORS as error:
                self.problems[row.name] = first_line(error)

    def _run_fold(
        self,
        tuning: EncoderTuning,
        row: ModelSpec,
        name: str,
        task: Task,
        final_study: str,
        save_to: Path | None,
    ) -> None:
        """Fine-tune an encoder on one fold and store the result, unless the store has it."""
        with open_store(self.study.store, readonly=True) as store:
            cells = store.cells.read(study=final_study, model=row.name, task=name)
        if cells:
            return
        result = tuning.run(task, save_to)
        outcomes = grade_logprobs(task, result.logprobs)
        self.examples_per_second[row.name] = len(outcomes) / max(result.test_seconds, 1e-9)
        cell = make_cell(
            task,
            outcomes,
            name=name,
            study=final_study,
            model=row.name,
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
        with open_store(self.study.store) as store:
            store.cells.commit(cell, items=outcomes)


def run_embedding_baselines(
    study: Study, rows: Sequence[ModelSpec], folds: Mapping[str, Task]
) -> dict[str, float]:
    """Test logistic regression on the frozen embeddings of every candidate; return accuracies by model.

    A model that transformers does not load as it is has none.
    """
    named = study.model_copy(update={"name": f"{study.name}-{EMBEDDINGS}", "models": tuple(rows)})
    key = study_key(named)
    with open_store(study.store, create=True) as store:
        store.studies.open(named.name, key, named.model_dump(mode="json"))
    accuracies = {}
    for row in rows:
        try:
            accuracies[row.name] = _test_embeddings(study, row, folds, key)
        except _EXPECTED_ERRORS:
            continue
    return accuracies


def _test_embeddings(study: Study, row: ModelSpec, folds: Mapping[str, Task], key: str) -> float:
    """Return the accuracy over all folds; what the store has is not computed again."""
    with open_store(study.store, readonly=True) as store:
        cells = [cell for cell in store.cells.read(study=key, model=row.name) if cell.task in folds]
    if len(cells) < len(folds):
        began = time.monotonic()
        embeddings = embed_task(row.source, list(folds.values()), study.device)
        cells = []
        for name, task in folds.items():
            outcomes = grade_logprobs(task, classify_embeddings(task, embeddings))
            cell = make_cell(
                task,
                outcomes,
                name=name,
                study=key,
                model=row.name,
                fingerprint=fingerprint_model(row),
                recipe=EMBEDDINGS,
                seconds=(time.monotonic() - began) / len(folds),
                selection=Selection(),
                device=study.device,
            )
            with open_store(study.store) as store:
                store.cells.commit(cell, items=outcomes)
            cells.append(cell)
    examples = sum(cell.score.n for cell in cells)
    return sum(cell.scores["acc"].value * cell.score.n for cell in cells) / examples
