"""Predictions: the rows of a file asked with an exported adapter as the test asked them; and the merged model.

An adapter that ``potentia select`` or ``potentia adapters export`` wrote carries a note: its base, the prompt, the
labels and the columns (see ``adapter_note``).
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError
from potentia.extras import Extra, require_extra
from potentia.files import atomic_folder, escape_formula, write_file
from potentia.integrations.adapter_note import (
    CLASSIFIER,
    EMBEDDING_CLASSIFIER,
    AdapterNote,
    make_definition,
    read_asked_task,
    read_note,
)
from potentia.values.choices import compute_choice_logits, soften_logits

if TYPE_CHECKING:
    import pandas as pd

    from potentia.engine import LoadedModel
    from potentia.tasks import ReadingLog, Record, RowError, Subtask
    from potentia.values.scores import Floats

Progress = Callable[[int], None]
Rows = Any
"""What to predict: a file, a DataFrame, texts, or records."""

_ANSWER_FIELDS = ("label", "answer", "completion")  # that a file to predict may lack
ENCODER_TOKENS = 256  # of a text, as in the fine-tuning
ENCODER_BATCH = 32
NAMED_BAD_ROWS = 5  # that a note lists
_BASE_HINT = "if it was made for this model, say so in Python: unchecked_base=True"


@dataclass(frozen=True)
class Predictions:
    """The answer of each row in its order: a label (or a written text) and, for choices, the probability of each."""

    rows: tuple[Mapping[str, Any], ...]  # the user's rows
    predicted: tuple[str | None, ...]  # None where a row could not be used
    probabilities: tuple[Mapping[str, float], ...]
    gold: tuple[str | None, ...]  # where the file has labels
    tested: float | None  # what the test gave, by `metric`
    metric: str
    notes: tuple[str, ...] = ()  # rows without an answer, and why
    threshold: float | None = None  # of the probability, below which a person should look
    labels: tuple[str, ...] = ()  # of labelled texts
    for_spreadsheet: bool = False  # whether CSV is marked as Unicode, as Excel wants it
    written: bool = False  # whether answers are texts that the model wrote

    @property
    def accuracy(self) -> float:
        """The share of right answers among rows with a known one; NaN where there is none."""
        matches = [answer == gold for answer, gold in self._answered_pairs()]
        return sum(matches) / len(matches) if matches else math.nan

    @property
    def score(self) -> float:
        """The accuracy; of written answers the mean of the metric that the test was scored by. NaN where unknown."""
        from potentia.tasks import FREE_TEXT_METRICS, grade_free_text

        if not self.written or self.metric not in FREE_TEXT_METRICS:
            return self.accuracy
        grades = []
        for answer, gold in self._answered_pairs():
            grades.append(grade_free_text({"completion": gold}, [answer])[self.metric])
        return sum(grades) / len(grades) if grades else math.nan

    def _answered_pairs(self) -> list[tuple[str, str]]:
        """Return the answer and the right answer of each row that has both."""
        pairs = []
        for answer, gold in zip(self.predicted, self.gold, strict=True):
            if answer is not None and gold is not None:
                pairs.append((answer, gold))
        return pairs

    def to_frame(self) -> pd.DataFrame:
        """Return the rows with ``predicted``, ``probability`` and, for labels, a column ``p(label)`` each."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def records(self) -> list[dict[str, Any]]:
        """Return the same as plain records."""
        records = []
        for row, answer, shares in zip(self.rows, self.predicted, self.probabilities, strict=True):
            probability = None if answer is None else shares.get(answer)
            record = {**row, "predicted": answer, "probability": _round_share(probability)}
            if self.threshold is not None:
                record["unsure"] = None if probability is None else probability < self.threshold
            for label in self.labels:
                record[f"p({label})"] = _round_share(shares.get(label))
            records.append(record)
        return records

    def write(self, path: Path) -> None:
        """Write them as CSV, JSON or JSON lines, by the file's name."""
        check_predictions_file(path)
        if path.suffix == ".csv":
            encoding = "utf-8-sig" if self.for_spreadsheet else "utf-8"
            write_file(path, self._csv().encode(encoding))
        else:
            lines = [json.dumps(record, ensure_ascii=False) for record in self.records()]
            if path.suffix == ".jsonl":
                text = "\n".join(lines)
            else:
                text = "[\n" + ",\n".join(lines) + "\n]"
            write_file(path, (text + "\n").encode())

    def _csv(self) -> str:
        """Return the rows as CSV in which a spreadsheet computes nothing, headers included."""
        import pandas as pd

        records = []
        for record in self.records():
            records.append(
                {escape_formula(column): escape_formula(v) for column, v in record.items()}
            )
        # as objects: a column with an empty cell would turn its whole numbers into 1.0
        return str(pd.DataFrame(records, dtype=object).to_csv(index=False))


def check_predictions_file(path: Path) -> None:
    """Refuse a file of a kind that predictions are not written to."""
    if path.suffix not in (".csv", ".json", ".jsonl"):
        raise InputError(
            f"cannot write {path.suffix or path.name!r}", hint="name a .csv, .json or .jsonl file"
        )


def _round_share(share: float | None) -> float | None:
    """Return a probability with four decimals: no more of them mean anything."""
    return None if share is None else round(share, 4)


def predict(
    adapter: str | Path,
    data: Rows,
    *,
    base: str | None = None,
    device: str = "auto",
    dtype: str | None = None,
    columns: Mapping[str, str] | None = None,
    unchecked_base: bool = False,
    progress: Progress | None = None,
) -> Predictions:
    """Predict the rows of a file (or texts, or records) with an adapter that Potentia tuned on your own data.

    A row that cannot be used has no answer, and a note says so.

    Args:
        adapter: A folder that ``potentia select`` or ``potentia adapters export`` wrote.
        data: A file, a DataFrame, texts, or records.
        base: Where its base model is now, if not where it was.
        device: ``auto``, ``cpu``, ``cuda`` …
        dtype: Of the weights; that of the test where absent.
        columns: Columns that have other names than in the data of the test.
        unchecked_base: Use the base although the adapter has no fingerprint of it; else such an adapter is
            refused.
        progress: Receives how many rows are done, of how many.

    Example:
        >>> potentia.predict("selected/adapter", "new-tickets.csv").to_frame()
    """
    require_extra(Extra.RUN, "predicting")
    from potentia.tasks import (
        ReadingLog,
        Subtask,
        dataset_from_records,
        list_asked_fields,
        make_unanswered_documents,
    )

    folder = Path(adapter)
    adapter_note = read_note(folder)
    task = read_asked_task(adapter_note, str(adapter))
    definition = make_definition(adapter_note, task)
    reading_log = ReadingLog()
    rows, records = _read_rows(data, {**(task.columns or {}), **(columns or {})}, reading_log)
    documents = make_unanswered_documents(definition, records, reading_log.bad_rows)
    usable = [document for document in documents if document is not None]
    if not usable:
        source = str(data) if isinstance(data, (str, Path)) else None
        reason = (
            f": {reading_log.bad_rows[0].message} ({reading_log.bad_rows[0].where})"
            if reading_log.bad_rows
            else ""
        )
        hint = _suggest_columns(list_asked_fields(definition), records)
        raise InputError(f"there is no row to predict{reason}", where=source, hint=hint)
    subtask = Subtask(definition, {"test": dataset_from_records(usable, source=definition["task"])})
    if (folder / CLASSIFIER).is_file():
        answers = iter(_ask_classifier(subtask, usable, folder, adapter_note))
    elif (folder / EMBEDDING_CLASSIFIER).is_file():
        answers = iter(
            _ask_embedding_classifier(
                subtask,
                usable,
                folder,
                adapter_note,
                base=base,
                device=device,
                unchecked=unchecked_base,
            )
        )
    elif adapter_note.encoder:
        answers = iter(_ask_encoder(subtask, usable, folder, adapter_note, device))
    else:
        loaded = load_adapted(
            folder,
            adapter_note,
            base=base,
            device=device,
            dtype=dtype,
            unchecked_base=unchecked_base,
        )
        try:
            answers = iter(_ask_documents(subtask, usable, loaded, adapter_note, progress))
        finally:
            loaded.close()
    predicted: list[str | None] = []
    probabilities: list[dict[str, float]] = []
    for document in documents:
        answer = _Answer(None, {}) if document is None else next(answers)
        predicted.append(answer.text)
        probabilities.append(answer.probabilities)
    return Predictions(
        rows=tuple(map(dict, rows)),
        predicted=tuple(predicted),
        probabilities=tuple(probabilities),
        gold=tuple(_find_gold(definition, records)),
        tested=adapter_note.score,
        metric=str(adapter_note.metric),
        notes=(*reading_log.notes, *_describe_bad_rows(reading_log.bad_rows)),
        threshold=adapter_note.threshold,
        labels=tuple(definition.get("labels") or ()),
        for_spreadsheet=reading_log.is_from_spreadsheet,
        written=definition["output_type"] == "generate_until",
    )


def _suggest_columns(asked_fields: Sequence[str], records: Sequence[Record]) -> str | None:
    """Say how to name the columns of fields that no row has; None where all are there."""
    columns: dict[str, int] = {}  # with the letters in it
    for record in records:
        for column, value in record.items():
            columns[column] = columns.get(column, 0) + len(str(value or ""))
    absent_fields = [name for name in asked_fields if name not in columns]
    if not absent_fields or not columns:
        return None
    field_name = absent_fields[0]
    longest_column = max(columns, key=lambda column: columns[column])
    mapping = shlex.quote(f"{field_name}={longest_column}")
    return f"its columns are {', '.join(columns)}; say which is the {field_name}: --map {mapping}"


def _describe_bad_rows(bad_rows: Sequence[RowError]) -> list[str]:
    """Say which rows have no answer."""
    if not bad_rows:
        return []
    locations = [bad_row.place.row_or_file for bad_row in bad_rows[:NAMED_BAD_ROWS]]
    listed = ", ".join(locations) + (" …" if len(bad_rows) > NAMED_BAD_ROWS else "")
    rows = "1 row has" if len(bad_rows) == 1 else f"{len(bad_rows)} rows have"
    return [f"{rows} no prediction ({listed}: {bad_rows[0].message})."]


@dataclass(frozen=True)
class _Answer:
    """What the model answers to one document, and how likely it finds each label."""

    text: str | None
    probabilities: dict[str, float]


def _ask_documents(
    subtask: Subtask,
    documents: Sequence[dict[str, Any]],
    loaded: LoadedModel,
    adapter_note: AdapterNote,
    progress: Progress | None,
) -> Iterator[_Answer]:
    """Ask the model: the label (or text) of each document, chosen as the test chooses."""
    from potentia.engine import chat_template
    from potentia.engine.scoring import Scorer

    chat = chat_template(loaded.tokenizer) if adapter_note.is_asked_in_chat else None
    requests = [subtask.requests(document, shots=0, chat_template=chat) for document in documents]
    all_requests: list[Any] = []
    for document_requests in requests:
        all_requests += document_requests
    if subtask.kind == "generation":
        texts = Scorer(loaded).generate(all_requests, progress=progress)
        return iter([_Answer(str(answer_text).strip(), {}) for answer_text in texts])
    scored = iter(Scorer(loaded).loglikelihood(all_requests, progress=progress))
    labels = list(subtask.definition.get("labels") or {})
    answers = []
    for document, document_requests in zip(documents, requests, strict=True):
        choices = subtask.choices(document)
        logprobs = [next(scored).logprob for _ in document_requests]
        logits = compute_choice_logits(str(adapter_note.metric), choices, logprobs)
        probabilities = soften_logits(logits, adapter_note.temperature)
        chosen = logits.index(max(logits))
        answer_names = labels or choices
        shares = dict(zip(answer_names, probabilities, strict=True))
        answers.append(_Answer(answer_names[chosen], shares))
    return iter(answers)


def _ask_classifier(
    subtask: Subtask, documents: Sequence[dict[str, Any]], folder: Path, adapter_note: AdapterNote
) -> list[_Answer]:
    """Ask a TF-IDF classifier."""
    from potentia.tasks import LinearTextClassifier

    classifier = LinearTextClassifier.load(folder / CLASSIFIER)
    labels = _read_class_labels(subtask, classifier.classes, folder)
    texts = [subtask.question_text(document) for document in documents]
    logprobs = classifier.log_probabilities(texts)
    return _answer_by_classes(labels, classifier.classes, logprobs, adapter_note.temperature)


def _ask_embedding_classifier(
    subtask: Subtask,
    documents: Sequence[dict[str, Any]],
    folder: Path,
    adapter_note: AdapterNote,
    *,
    base: str | None,
    device: str,
    unchecked: bool,
) -> list[_Answer]:
    """Ask a classifier on the frozen embeddings of a model."""
    from potentia.engine import embed_texts, fingerprints
    from potentia.tasks import EmbeddingClassifier, silence_libraries

    classifier = EmbeddingClassifier.load(folder / EMBEDDING_CLASSIFIER)
    labels = _read_class_labels(subtask, classifier.classes, folder)
    if adapter_note.model is None:
        raise InputError("the note does not say whose embeddings these are", where=str(folder))
    source = base or adapter_note.model.source
    model_files = (source, None, None, ())
    if (
        not unchecked
        and adapter_note.model.fingerprint != fingerprints([model_files])[model_files].result()
    ):
        raise InputError(
            f"the classifier was fitted on embeddings of {adapter_note.model.source}, and {source} is another model",
            where=str(folder),
            hint=_BASE_HINT,
        )
    texts = [subtask.question_text(document) for document in documents]
    with silence_libraries():
        embeddings = embed_texts(source, texts, device)
    logprobs = classifier.log_probabilities(embeddings)
    return _answer_by_classes(labels, classifier.classes, logprobs, adapter_note.temperature)


def _read_class_labels(subtask: Subtask, classes: Sequence[int], folder: Path) -> list[str]:
    """Return the labels that the classes of a classifier are numbers of."""
    labels = list(subtask.definition.get("labels") or {})
    if not classes or min(classes) < 0 or max(classes) >= len(labels):
        raise InputError("classifier and labels do not fit together", where=str(folder))
    return labels


def _answer_by_classes(
    labels: Sequence[str], classes: Sequence[int], logprobs: Floats, temperature: float
) -> list[_Answer]:
    """Return the likeliest label of each text, and the probability of every label."""
    answers = []
    for row in logprobs:
        shares = dict.fromkeys(labels, 0.0)
        probabilities = soften_logits([float(value) for value in row], temperature)
        for class_number, probability in zip(classes, probabilities, strict=True):
            shares[labels[class_number]] = probability
        answers.append(_Answer(max(shares, key=lambda label: shares[label]), shares))
    return answers


def _ask_encoder(
    subtask: Subtask,
    documents: Sequence[dict[str, Any]],
    folder: Path,
    adapter_note: AdapterNote,
    device: str,
) -> list[_Answer]:
    """Ask an encoder with a classification head; its weights are safetensors, which hold no code."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from potentia.engine import load_text_encoder, load_tokenizer, pick_device
    from potentia.tasks import silence_libraries

    labels = list(subtask.definition.get("labels") or {})
    torch_device = pick_device(device)
    with silence_libraries():
        tokenizer = load_tokenizer(str(folder))
        model: Any = load_text_encoder(AutoModelForSequenceClassification, str(folder))
    if model.config.num_labels != len(labels):
        raise InputError("encoder and labels do not fit together", where=str(folder))
    model.to(torch_device).eval()
    limit = min(ENCODER_TOKENS, int(tokenizer.model_max_length))
    texts = [subtask.question_text(document) for document in documents]
    answers = []
    for start in range(0, len(texts), ENCODER_BATCH):
        batch = tokenizer(
            texts[start : start + ENCODER_BATCH],
            padding=True,
            truncation=True,
            max_length=limit,
            return_tensors="pt",
        ).to(torch_device)
        with torch.no_grad():
            logits = model(**batch).logits.float().cpu().tolist()
        for row in logits:
            shares = dict(zip(labels, soften_logits(row, adapter_note.temperature), strict=True))
            answers.append(_Answer(max(shares, key=lambda label: shares[label]), shares))
    return answers


def _find_gold(definition: Mapping[str, Any], records: Sequence[Record]) -> list[str | None]:
    """Return the right answer of each row, where it has one."""
    from potentia.tasks import find_label, find_right_choices

    if definition["output_type"] == "generate_until":
        completions = [record.get("completion") for record in records]
        return [
            str(completion).strip() if completion not in (None, "") else None
            for completion in completions
        ]
    labels = definition.get("labels")
    if not labels:
        return find_right_choices(records)
    return [find_label(record.get("label"), labels) for record in records]


def _read_rows(
    data: Rows, columns: Mapping[str, Any], reading_log: ReadingLog
) -> tuple[list[Record], list[Record]]:
    """Return the user's rows, and the same with the fields of the task; answers may be absent."""
    from potentia.tasks import (
        Record,
        RowPlace,
        as_list,
        list_rows,
        map_columns,
        read_records,
        split_joined_columns,
    )

    if isinstance(data, (str, Path)):
        path = Path(data).expanduser()
        if not path.is_file():
            raise InputError(
                f"there is no file {data}", hint="give a csv, jsonl, json or parquet file"
            )
        rows = read_records(path, reading_log, skip_blank=False)
    else:
        *other_columns, text_column = as_list(columns.get("text", "text"))
        rows = []
        for row_number, row in enumerate(list_rows(data), start=1):
            fields: dict[str, Any] = {}
            if isinstance(row, str):
                fields = {**dict.fromkeys(other_columns, ""), text_column: row}
            else:
                fields = {**row}
            rows.append(Record(RowPlace(row=f"row {row_number}"), fields))
    present: set[str] = set()
    for record in rows:
        present |= set(record)
    needed = {}
    for field, column in split_joined_columns(columns, present).items():
        is_present = isinstance(column, str) and column in present
        if field not in _ANSWER_FIELDS or is_present:
            needed[field] = column
    return rows, map_columns(rows, needed)


def load_adapted(
    folder: Path,
    adapter_note: AdapterNote,
    *,
    base: str | None,
    device: str = "auto",
    dtype: str | None = None,
    quantise: bool = True,
    unchecked_base: bool = False,
) -> LoadedModel:
    """Load the base of an exported adapter with the adapter merged into it; alone where validation kept it untuned."""
    from potentia.engine import load

    noted_model = adapter_note.model
    if noted_model is None:
        raise InputError(
            "this folder holds a TF-IDF classifier: there is no model in it", where=str(folder)
        )
    has_adapter = (folder / "adapter_config.json").is_file()
    if has_adapter and adapter_note.base_fingerprint is None and not unchecked_base:
        raise InputError(
            "the adapter does not say by a fingerprint which model it was made for, and any other "
            f"model of the same shape would load in the place of {base or noted_model.source} without an "
            "error",
            where=str(folder),
            hint=_BASE_HINT,
        )
    quantise_bits = noted_model.quantise if quantise else None
    loaded = load(
        base or noted_model.source,
        device=device,
        dtype=dtype or noted_model.dtype or "auto",
        revision=None if base else noted_model.revision,
        gguf_file=None if base else noted_model.gguf_file,
        adapters=(*noted_model.before, *([str(folder)] if has_adapter else [])),
        quantise=quantise_bits,
    )
    is_other = noted_model.fingerprint not in (None, loaded.fingerprint)
    if (
        not has_adapter
        and is_other
        and quantise_bits == noted_model.quantise
        and not unchecked_base
    ):
        loaded.close()
        raise InputError(
            f"validation kept {noted_model.source} untuned, and {base or noted_model.source} is another model",
            where=str(folder),
            hint=_BASE_HINT,
        )
    return loaded


def merge_adapter_into_base(
    adapter: str | Path,
    output: str | Path,
    *,
    base: str | None = None,
    dtype: str | None = None,
    unchecked_base: bool = False,
) -> Path:
    """Write the base with the adapter merged into it: a model like any other, with its tokenizer."""
    folder = Path(adapter)
    output = Path(output)
    with atomic_folder(output) as draft:
        adapter_note = read_note(folder)
        loaded = load_adapted(
            folder,
            adapter_note,
            base=base,
            device="cpu",
            dtype=dtype,
            quantise=False,  # few bits cannot be merged into
            unchecked_base=unchecked_base,
        )
        try:
            loaded.model.save_pretrained(draft)
            loaded.tokenizer.save_pretrained(draft)
        finally:
            loaded.close()
    return output
