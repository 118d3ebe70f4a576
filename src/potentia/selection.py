"""``select``: find the model to fine-tune on one's own data, from Python as ``potentia select`` does.

The selection runs in ``potentia.run`` (``Race``). Here the data are described as a task, and what is to be used is
written: the adapter of the best candidate, and the cheap classifiers that it is compared with::

    selected = potentia.select("tickets.csv", ["HuggingFaceTB/SmolLM2-135M", "EleutherAI/pythia-160m"])
    selected.best                      # the model, or the cheap baseline that no model beats
    selected.table                     # a DataFrame of the candidates
    selected.report("selected.html")
    selected.predictor(["I was charged twice."]).to_frame()
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.analysis.benchmark import Classification
from potentia.analysis.planning import ModelChoice
from potentia.errors import InputError, PotentiaError, StudyError
from potentia.evidence import read
from potentia.extras import Extra, require_extra
from potentia.files import write_file
from potentia.hub import check_model_folders
from potentia.integrations import (
    ExportedAdapter,
    Predictions,
    export_adapter,
    export_classifier,
    export_embedding_classifier,
    export_encoder,
    predict,
    read_asked_task,
    read_note,
)
from potentia.run import NoCandidateError, Race, load_tasks, parse_budget
from potentia.show import make_report, save_report
from potentia.store import Store
from potentia.study import Study, read_study
from potentia.values.baselines import Baseline

if TYPE_CHECKING:
    import pandas as pd

    from potentia.analysis.planning import Trust
    from potentia.run.select import Report, Watch
    from potentia.store import CellRecord

ENOUGH_ROWS = 1_000  # with fewer, every row is tested once, in folds
USUAL_FOLDS = 5
MIN_ROWS_FOR_FOLDS = 7  # with fewer, folds would have too little to train on


@dataclass(frozen=True)
class Predictor:
    """A folder that ``potentia predict`` takes, as a function that predicts rows."""

    folder: Path

    @property
    def answers_rows(self) -> bool:
        """Whether rows can be predicted; they cannot by a model that was tuned on a corpus, which has no answers."""
        try:
            read_asked_task(read_note(self.folder), str(self.folder))
        except InputError:
            return False
        return True

    def __call__(self, rows: Any) -> Predictions:
        """Return predictions of the rows of a file or a DataFrame, of texts, or of records."""
        return predict(self.folder, rows)


@dataclass(frozen=True, eq=False)
class SelectedModel:
    """The answer of a selection, and the folders that it wrote; ``print(selected)`` says the answer in words."""

    choice: ModelChoice  # the answer with all its numbers
    study: Study  # of the whole selection
    final_study: str  # the key of the study whose results are the answer
    adapter: ExportedAdapter  # of the best candidate
    classifier: Path | None  # the folder of the cheap classifier on words, for labelled texts
    embedding_classifier: Path | None = (
        None  # the folder of the classifier on embeddings, if that is what to use
    )

    @property
    def best(self) -> str:
        """The name of what to use: the best candidate, or the cheap baseline that no candidate beats."""
        classification = self.choice.classification
        if self.choice.uses_baseline and classification is not None:
            return str(classification.best_baseline_label)
        return self.choice.best

    @property
    def table(self) -> pd.DataFrame:
        """One row per candidate, the best first: scores with intervals, P(best), size, speed."""
        import pandas as pd

        rows = []
        for standing in self.choice.standings:
            rows.append(
                {
                    "model": standing.model,
                    "before": None if standing.direct is None else standing.direct.value,
                    "after": None if standing.tuned is None else standing.tuned.value,
                    "stderr": None if standing.tuned is None else standing.tuned.stderr,
                    "p_best": standing.p_best,
                    "parameters": standing.parameters,
                    "examples_per_second": standing.examples_per_second,
                    "dropped_in_round": standing.dropped_in_round,
                    "problem": standing.problem,
                }
            )
        return pd.DataFrame(rows)

    @property
    def predictor(self) -> Predictor:
        """What predicts best: the fine-tuned model, or the cheap classifier if no model beats it."""
        classification = self.choice.classification
        if self.choice.uses_baseline and classification is not None:
            is_on_words = classification.best_baseline is Baseline.TFIDF
            if is_on_words and self.classifier is not None:
                return Predictor(self.classifier)
            if self.embedding_classifier is not None:
                return Predictor(self.embedding_classifier)
        return Predictor(self.adapter.folder)

    def report(self, path: str | Path = "selected.html") -> Path:
        """Write the report, one HTML file that needs no network."""
        evidence = read(self.study.store, study=self.final_study)
        return save_report(make_report(evidence), Path(path))

    def __str__(self) -> str:
        return self.choice.answer()

    def __repr__(self) -> str:
        candidates = len(self.choice.standings)
        return (
            f"SelectedModel(best={self.best!r}, task={self.choice.task!r}, candidates={candidates},"
            f" predictor={str(self.predictor.folder)!r})"
        )


def select(
    data: Any,
    models: Sequence[str | dict[str, Any]],
    *,
    output: str | Path = "selected",
    budget: str | float | None = None,
    folds: int | None = None,
    price: str | None = None,
    columns: Mapping[str, str] | None = None,
    metric: str | None = None,
    merge_spellings: bool = True,
    study: str | Path | None = None,
    fields: Mapping[str, Any] | None = None,
    workers: int = 0,
    report: Report = lambda _: None,
    report_note: Report = lambda _: None,
    watch: Watch | None = None,
) -> SelectedModel:
    """Find the best model for your data, as ``potentia select`` does; the same call again finds what is finished.

    Args:
        data: A csv, jsonl or parquet file, a folder of splits, a task of lm-eval, a DataFrame or a list of records.
        models: The candidates, two or more: hub names, folders, or records as in a study file.
        output: Folder of the store ``select.db``, of the winner's ``adapter`` and of the cheap ``classifier``
            (``embedding-classifier``, where frozen embeddings do best).
        budget: Wall time for all of it: ``"30min"``, or seconds.
        folds: Test every row once, in so many folds; by default five below a thousand rows, else one.
        price: Of an hour of the machine, ``"3.5 EUR/h"``: costs are told then.
        columns: Which column of the data is what: ``{"text": "Body", "label": "Queue"}``.
        metric: What answers are scored by, where not by the usual metric.
        merge_spellings: Take labels that differ by case or blanks alone for one.
        study: A study file whose tuning, caps and device are used.
        fields: Any field of a study file, over the file's: ``{"tuning": {"epochs": 3}}``.
        workers: Models at once; 0 fits them to the GPUs.
        report: Receives what is going on.
        report_note: Receives what is to be known of the data, the baselines, the estimate.
        watch: Gives a context manager that shows the progress of a plan.

    Returns:
        The answer: ``best``, ``table``, ``report()``, ``predictor``; as text it is the answer in words.

    Example:
        >>> chosen = potentia.select("tickets.csv", ["org/small", "org/smaller"], budget="30min")
        >>> print(chosen)
    """
    require_extra(Extra.RUN, "selecting a model")
    if len(models) < 2:
        raise StudyError(
            "one candidate leaves nothing to select", hint="give at least two --models"
        )
    seconds = None if isinstance(budget, str) else budget
    if isinstance(budget, str):
        if budget.strip().endswith("%"):
            raise StudyError(
                "a budget in per cent needs a known total", hint="give a time: --budget 30min"
            )
        seconds = parse_budget(budget, 0.0)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    source = write_rows(data, folder)
    entry = describe_data(
        source, columns=columns, metric=metric, merge_spellings=merge_spellings, folds=folds
    )
    settings = {
        "name": "select",
        "protocols": ["direct", "train_before_test"],
        "store": str(folder / "select.db"),
        "models": list(models),
        "tasks": [entry],
        "price": price,
        "probe": {"on": False},
        **(fields or {}),
    }
    whole_study = read_study(None if study is None else Path(study), settings)
    check_model_folders(row.path or row.name for row in whole_study.rows())
    race = Race(
        whole_study, seconds, report=report, report_note=report_note, watch=watch, workers=workers
    )
    try:
        choice = race.run()
    except NoCandidateError as error:
        classifier = _export_classifier_alone(race, folder)
        if classifier is None:
            raise
        raise ClassifierOnlyError(error, race, classifier) from error
    return _export(race, choice, folder)


class ClassifierOnlyError(PotentiaError):
    """No candidate could be scored or tuned, and a classifier on words is there to use in their place."""

    def __init__(self, error: NoCandidateError, race: Race, classifier: Path) -> None:
        accuracy = race.baselines[Baseline.TFIDF]
        self.answer = (
            f"Use {Baseline.TFIDF.label} (accuracy {accuracy:.3f}): no candidate gave a result."
        )
        super().__init__(f"{error.message}. {self.answer}", hint=error.hint)
        self.problems = error.problems  # by model
        self.classifier = classifier  # the folder that ``predict`` takes
        self.accuracy = accuracy


def _export_classifier_alone(race: Race, folder: Path) -> Path | None:
    """Write the classifier on words where no candidate gave a result; None where it is no better than one label."""
    accuracy = race.baselines.get(Baseline.TFIDF)
    if accuracy is None or accuracy <= race.baselines.get(Baseline.MAJORITY, 0.0):
        return None
    folds = load_tasks(race.study).by_name
    temperature, threshold = _calibration(race.measure_words_trust(folds))
    return export_classifier(
        next(iter(folds.values())),
        folder / "classifier",
        accuracy=accuracy,
        tested_folds=len(folds),
        replace=True,
        temperature=temperature,
        threshold=threshold,
    )


def _export(race: Race, choice: ModelChoice, folder: Path) -> SelectedModel:
    """Write the winner's adapter and, for labelled texts, the cheap classifiers; return the answer with their folders.

    They replace those of an earlier selection in the same folder.
    """
    temperature, threshold = _calibration(choice.trust)
    refitted = race.refitted
    location = race.study.store if refitted is None else refitted.store
    with Store.open(location, readonly=True) as store:
        if refitted is None:
            cell, tested_folds = race.read_best_cell(store, choice.best)
        else:
            cell, tested_folds = refitted.cell, refitted.folds
        cell = _replace_baselines(cell, choice.classification)
        if race.is_encoder(choice.best) and race.encoders is not None:
            adapter = export_encoder(
                cell,
                race.encoders.folder_of(choice.best),
                folder / "adapter",
                temperature=temperature,
                threshold=threshold,
                tested_folds=tested_folds,
            )
        else:
            adapter = export_adapter(
                store,
                cell,
                folder / "adapter",
                replace=True,
                temperature=temperature,
                threshold=threshold,
                tested_folds=tested_folds,
            )
    classifier = None
    classification = choice.classification
    if classification is not None and Baseline.TFIDF in classification.baselines:
        task = next(iter(load_tasks(race.study).by_name.values()))
        accuracy = classification.baselines[Baseline.TFIDF]["acc"]
        word_temperature, word_threshold = _calibration(choice.words_trust)
        classifier = export_classifier(
            task,
            folder / "classifier",
            accuracy=accuracy,
            tested_folds=classification.folds,
            replace=True,
            temperature=word_temperature,
            threshold=word_threshold,
        )
    embedding_classifier = None
    if classification is not None and choice.uses_baseline:
        embedding_classifier = _export_embedding_classifier(
            race, classification, folder, choice.classifier_trust
        )
    return SelectedModel(choice, race.study, race.last, adapter, classifier, embedding_classifier)


def _calibration(trust: Trust | None) -> tuple[float, float | None]:
    """Return the temperature and the threshold of probabilities; 1 and None where they are not known."""
    if trust is None:
        return 1.0, None
    return trust.temperature, trust.threshold


def _replace_baselines(cell: CellRecord, classification: Classification | None) -> CellRecord:
    """Return a cell with the baselines of the answer, so that the card of its adapter says the same of them.

    The cell's own baselines learned only from the training examples that the budget left to its fine-tuning.
    """
    if classification is None:
        return cell
    task = replace(cell.provenance.task, baselines=classification.baselines)
    return replace(cell, provenance=replace(cell.provenance, task=task))


def _export_embedding_classifier(
    race: Race, classification: Classification, folder: Path, trust: Trust | None
) -> Path | None:
    """Write the classifier on frozen embeddings, fitted on all rows, if it is best; return its folder, else None."""
    model = classification.best_embedding_model
    if model is None or race.cheap_classifiers is None:
        return None
    test = next(test for test in classification.models if test.model == model)
    temperature, threshold = _calibration(trust)
    classifier = race.cheap_classifiers.fit(model, load_tasks(race.study).by_name)
    return export_embedding_classifier(
        classifier,
        race.cheap_classifiers.read_cell(model),
        folder / "embedding-classifier",
        name=classification.best_baseline_label,
        accuracy=test.frozen["acc"],
        tested_folds=classification.folds,
        replace=True,
        temperature=temperature,
        threshold=threshold,
    )


def write_rows(data: Any, folder: Path) -> str:
    """Return the path or name of the data; records and data frames are written to a file in the folder first."""
    from potentia.tasks import list_rows

    if isinstance(data, (str, Path)):
        return str(data)
    rows = list_rows(data)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(
            "the rows to select by are not records",
            hint="give a file, a DataFrame or a list of dicts",
        )
    lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
    data_file = folder / "data.jsonl"
    write_file(data_file, "\n".join(lines) + "\n")
    return str(data_file)


def describe_data(
    data: str,
    *,
    columns: Mapping[str, str] | None = None,
    metric: str | None = None,
    merge_spellings: bool = True,
    folds: int | None = None,
) -> str | dict[str, Any]:
    """Return the data as an entry of a study's tasks: a file under its short name, in folds if it is small.

    Data that is no file is the name of a task, and returned as it is.
    """
    data_path = Path(data).expanduser()
    if not data_path.exists():
        return data
    entry: dict[str, Any] = {
        "name": data_path.stem if data_path.is_file() else data_path.resolve().name,
        "file": data,
        "merge_spellings": merge_spellings,
    }
    if columns:
        entry["columns"] = dict(columns)
    if metric:
        entry["metric"] = metric
    chosen_folds = _choose_folds(data) if folds is None else folds
    if chosen_folds > 1:
        entry["folds"] = chosen_folds
    return entry


def _choose_folds(data: str) -> int:
    """Return in how many folds data of this size should be tested; 1, without folds, if there are enough rows."""
    from potentia.tasks import UserData

    data_path = Path(data).expanduser()
    if data_path.suffix in (".yaml", ".yml"):
        return 1
    rows = UserData(files=(str(data_path),)).count_documents_of_one_split()
    if rows is None or rows >= ENOUGH_ROWS or rows < MIN_ROWS_FOR_FOLDS:
        return 1
    return USUAL_FOLDS
