"""``select``: which model to fine-tune on one's own data, from a script as from the command line.

chosen = potentia.select("tickets.csv", ["HuggingFaceTB/SmolLM2-135M", "EleutherAI/pythia-160m"])
chosen.best                      # the model, or the cheap baseline that no model beats
chosen.table                     # a DataFrame of the candidates
chosen.report("selected.html")
chosen.predictor(["I was charged twice."]).frame()
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.analysis.benchmark import TFIDF
from potentia.analysis.planning import ModelChoice
from potentia.errors import InputError, StudyError
from potentia.evidence import read
from potentia.files import write_file
from potentia.integrations import (
    ExportedAdapter,
    Predictions,
    export_adapter,
    export_classifier,
    export_encoder,
    predict,
)
from potentia.run import Race, load_tasks, parse_budget
from potentia.show import make_report, save_report
from potentia.store import Store
from potentia.study import Study, read_study

if TYPE_CHECKING:
    import pandas as pd

    from potentia.run.select import Report, Watch

ENOUGH_ROWS = 1_000  # below, every row is tested once, in folds
USUAL_FOLDS = 5
FEWEST_ROWS_IN_FOLDS = 10


@dataclass(frozen=True)
class Predictor:
    """What to predict with: the folder that ``potentia predict`` takes, as a function."""

    folder: Path

    def __call__(self, rows: str | Path | Sequence[str | Mapping[str, Any]]) -> Predictions:
        """Predict the rows of a file, texts, or records."""
        return predict(self.folder, rows)


@dataclass(frozen=True, eq=False)
class SelectedModel:
    """The answer of a selection, with what can be taken away."""

    choice: ModelChoice
    study: Study  # of the whole selection
    final_study: str  # the key of the study whose results are the answer
    adapter: ExportedAdapter  # of the best candidate
    classifier: Path | None  # the folder of the cheap classifier, for labelled texts

    @property
    def best(self) -> str:
        """What to use: the best candidate, or the cheap baseline that no candidate beats."""
        classification = self.choice.classification
        if self.choice.uses_baseline and classification is not None:
            return str(classification.best_baseline)
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
        """What predicts best: the fine-tuned model, or the cheap classifier where no model beats it."""
        if self.best == TFIDF and self.classifier is not None:
            return Predictor(self.classifier)
        return Predictor(self.adapter.folder)

    def report(self, path: str | Path = "selected.html") -> Path:
        """Write the report, one HTML file that needs no network."""
        evidence = read(self.study.store, study=self.final_study)
        return save_report(make_report(evidence), Path(path))

    def __str__(self) -> str:
        return self.choice.answer()


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
    tell: Report = lambda _: None,
    note: Report = lambda _: None,
    watch: Watch | None = None,
) -> SelectedModel:
    """Find the best model for your data, as ``potentia select`` does; the same call again finds what is finished.

    Args:
        data: A csv, jsonl or parquet file, a folder of splits, a task of lm-eval, a DataFrame or a list of records.
        models: The candidates, two or more: hub names, folders, or records as in a study file.
        output: Folder of the store ``select.db``, of the winner's ``adapter`` and of the cheap ``classifier``.
        budget: Wall time for all of it: ``"30min"``, or seconds.
        folds: Test every row once, in so many folds; by default five below a thousand rows, else one.
        price: Of an hour of the machine, ``"3.5 EUR/h"``: costs are told then.
        columns: Which column of the data is what: ``{"text": "Body", "label": "Queue"}``.
        metric: What answers are scored by, where not by the usual metric.
        merge_spellings: Take labels that differ by case or blanks alone for one.
        study: A study file whose tuning, caps and device are used.
        fields: Any field of a study file, over the file's: ``{"tuning": {"epochs": 3}}``.
        workers: Models at once; 0 fits them to the GPUs.
        tell: Receives what is going on.
        note: Receives what is to be known of the data, the baselines, the estimate.
        watch: Gives a context manager that shows the progress of a plan.

    Returns:
        The answer: ``best``, ``table``, ``report()``, ``predictor``; as text it is the answer in words.

    Example:
        >>> chosen = potentia.select("tickets.csv", ["org/small", "org/smaller"], budget="30min")
        >>> print(chosen)
    """
    if len(models) < 2:
        raise StudyError(
            "one candidate leaves nothing to select", hint="give at least two --models"
        )
    seconds = None if isinstance(budget, str) else budget
    if isinstance(budget, str):
        if budget.strip().endswith("%"):
            raise StudyError(
                "a budget in per cent of an unknown time", hint="give a time: --budget 30min"
            )
        seconds = parse_budget(budget, 0.0)
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    source = _write_rows(data, folder)
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
    race = Race(whole_study, seconds, tell=tell, note=note, watch=watch, workers=workers)
    choice = race.run()
    return _export(race, choice, folder)


def _export(race: Race, choice: ModelChoice, folder: Path) -> SelectedModel:
    """Write what can be taken away: the winner's adapter, and of labelled texts the cheap classifier."""
    temperature = 1.0
    threshold = None
    if choice.trust is not None:
        temperature = choice.trust.temperature
        threshold = choice.trust.threshold
    with Store.open(race.study.store, readonly=True) as store:
        cell = race.final(store, choice.best)
        # An earlier selection's adapter in this folder is replaced.
        if race.is_encoder(choice.best) and race.encoders is not None:
            adapter = export_encoder(
                cell,
                race.encoders.folder_of(choice.best),
                folder / "adapter",
                temperature=temperature,
                threshold=threshold,
            )
        else:
            adapter = export_adapter(
                store,
                cell,
                folder / "adapter",
                replace=True,
                temperature=temperature,
                threshold=threshold,
            )
    classifier = None
    classification = choice.classification
    if classification is not None and TFIDF in classification.baselines:
        task = next(iter(load_tasks(race.study).by_name.values()))
        accuracy = classification.baselines[TFIDF]["acc"]
        classifier = export_classifier(task, folder / "classifier", accuracy=accuracy, replace=True)
    return SelectedModel(choice, race.study, race.last, adapter, classifier)


def _write_rows(data: Any, folder: Path) -> str:
    """Return where the data is; rows that are no file yet are written into the folder."""
    if isinstance(data, (str, Path)):
        return str(data)
    if hasattr(data, "to_dict"):
        data = data.to_dict("records")
    rows = list(data)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(
            "the rows to select by are no records",
            hint="give a file, a DataFrame or a list of dicts",
        )
    lines = [json.dumps(dict(row), ensure_ascii=False, default=str) for row in rows]
    file = folder / "data.jsonl"
    write_file(file, "\n".join(lines) + "\n")
    return str(file)


def describe_data(
    data: str,
    *,
    columns: Mapping[str, str] | None = None,
    metric: str | None = None,
    merge_spellings: bool = True,
    folds: int | None = None,
) -> str | dict[str, Any]:
    """Describe the data as a study does: a file by its short name, in folds where it is small; a task by its own."""
    path = Path(data).expanduser()
    if not path.exists():
        return data
    entry: dict[str, Any] = {
        "name": path.stem if path.is_file() else path.resolve().name,
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
    """Return the folds that data of this size should be tested in: one where there is enough to test on."""
    from potentia.tasks import UserData

    path = Path(data).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return 1
    rows = UserData(files=(str(path),)).documents_in_one_split()
    if rows is None or rows >= ENOUGH_ROWS or rows < FEWEST_ROWS_IN_FOLDS:
        return 1
    return USUAL_FOLDS
