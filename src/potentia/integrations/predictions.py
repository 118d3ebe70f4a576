"""Predictions: the rows of a file asked with an exported adapter as the test asked them; and the merged model.

An adapter that ``potentia select`` or ``potentia adapters export`` wrote carries a note: its base, the prompt, the
labels and the columns (see ``adapter_note``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError
from potentia.files import atomic_folder, escape_formula, write_file
from potentia.integrations.adapter_note import (
    CLASSIFIER,
    AdapterNote,
    make_definition,
    read_asked_task,
    read_note,
)

if TYPE_CHECKING:
    import pandas as pd

    from potentia.engine import LoadedModel
    from potentia.tasks import ReadingLog, Record, Subtask

Progress = Callable[[int], None]
Rows = str | Path | Sequence[str | Mapping[str, Any]]
"""What to predict: a file, texts, or records."""

_ANSWER_FIELDS = ("label", "answer", "completion")  # that a file to predict may lack
ENCODER_TOKENS = 256  # of a text, as in the fine-tuning
ENCODER_BATCH = 32
NAMED_BAD_ROWS = 5  # that a note lists
_BASE_HINT = "if it was made for this model, say so: --unchecked-base"


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

    @property
    def accuracy(self) -> float:
        """The share of right answers among rows with a known label; NaN where there is none."""
        pairs = zip(self.predicted, self.gold, strict=True)
        matches = [answer == gold for answer, gold in pairs if None not in (answer, gold)]
        return sum(matches) / len(matches) if matches else math.nan

    def frame(self) -> pd.DataFrame:
        """Return the rows with ``predicted``, ``probability`` and, for labels, a column ``p(label)`` each."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def records(self) -> list[dict[str, Any]]:
        """Return the same as plain records."""
        records = []
        for row, answer, shares in zip(self.rows, self.predicted, self.probabilities, strict=True):
            probability = max(shares.values(), default=None)
            record = {**row, "predicted": answer, "probability": _round_share(probability)}
            if self.threshold is not None:
                record["unsure"] = probability is None or probability < self.threshold
            record |= {f"p({label})": _round_share(share) for label, share in shares.items()}
            records.append(record)
        return records

    def write(self, path: Path) -> None:
        """Write them as CSV, JSON or JSON lines, by the file's name."""
        if path.suffix == ".csv":
            write_file(path, self._csv().encode())
        elif path.suffix in (".json", ".jsonl"):
            lines = [json.dumps(record, ensure_ascii=False) for record in self.records()]
            if path.suffix == ".jsonl":
                text = "\n".join(lines)
            else:
                text = "[\n" + ",\n".join(lines) + "\n]"
            write_file(path, (text + "\n").encode())
        else:
            raise InputError(
                f"cannot write {path.suffix or path.name!r}",
                hint="name a .csv, .json or .jsonl file",
            )

    def _csv(self) -> str:
        """Return the rows as CSV in which a spreadsheet computes nothing, headers included."""
        import pandas as pd

        records = []
        for record in self.records():
            records.append({escape_formula(name): escape_formula(v) for name, v in record.items()})
        return str(pd.DataFrame(records).to_csv(index=False))


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

    ``base`` is where its base model is now, if not where it was. ``dtype`` is that of the test where absent.
    ``columns`` names columns that are called otherwise than in the data of the test.
    A row that cannot be used has no answer, and a note says so. An adapter that does not name its base's content is
    refused unless ``unchecked_base`` vouches for the base.
    """
    from potentia.tasks import ReadingLog, Subtask, dataset_from_records, make_unanswered_documents

    folder = Path(adapter)
    note = read_note(folder)
    task = read_asked_task(note, str(adapter))
    definition = make_definition(note, task)
    log = ReadingLog()
    rows, records = _read_rows(data, {**(task.columns or {}), **(columns or {})}, log)
    documents = make_unanswered_documents(definition, records, log.bad)
    usable = [document for document in documents if document is not None]
    if not usable:
        where = None if isinstance(data, (list, tuple)) else str(data)
        reason = f": {log.bad[0].message} ({log.bad[0].where})" if log.bad else ""
        raise InputError(f"there is no row to predict{reason}", where=where)
    subtask = Subtask(definition, {"test": dataset_from_records(usable, where=definition["task"])})
    if (folder / CLASSIFIER).is_file():
        answers = iter(_ask_classifier(subtask, usable, folder, note))
    elif note.encoder:
        answers = iter(_ask_encoder(subtask, usable, folder, note, device))
    else:
        loaded = load_adapted(
            folder, note, base=base, device=device, dtype=dtype, unchecked_base=unchecked_base
        )
        try:
            answers = iter(_ask_documents(subtask, usable, loaded, note, progress))
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
        gold=tuple(_find_gold(definition, record) for record in records),
        tested=note.score,
        metric=str(note.metric),
        notes=(*log.notes, *_describe_bad_rows(log.bad)),
        threshold=note.threshold,
    )


def _describe_bad_rows(bad: Sequence[InputError]) -> list[str]:
    """Say which rows have no answer."""
    if not bad:
        return []
    places = [(error.where or "").rpartition(", ")[2] for error in bad[:NAMED_BAD_ROWS]]
    listed = ", ".join(places) + (" …" if len(bad) > NAMED_BAD_ROWS else "")
    rows = "1 row has" if len(bad) == 1 else f"{len(bad)} rows have"
    return [f"{rows} no prediction ({listed}: {bad[0].message})."]


@dataclass(frozen=True)
class _Answer:
    """What the model answers to one document, and how likely it finds each label."""

    text: str | None
    probabilities: dict[str, float]


def _ask_documents(
    subtask: Subtask,
    documents: Sequence[dict[str, Any]],
    loaded: LoadedModel,
    note: AdapterNote,
    progress: Progress | None,
) -> Iterator[_Answer]:
    """Ask the model: the label (or text) of each document, chosen as the test chooses."""
    from potentia.engine import chat_template
    from potentia.engine.scoring import Scorer
    from potentia.tasks import choose_answer

    chat = chat_template(loaded.tokenizer) if note.is_asked_in_chat else None
    requests = [subtask.requests(document, shots=0, chat=chat) for document in documents]
    all_requests: list[Any] = []
    for document_requests in requests:
        all_requests += document_requests
    if subtask.kind == "generation":
        texts = Scorer(loaded).generate(all_requests, progress=progress)
        return iter([_Answer(str(text).strip(), {}) for text in texts])
    scored = iter(Scorer(loaded).loglikelihood(all_requests, progress=progress))
    labels = list(subtask.config.get("labels") or {})
    answers = []
    for document, document_requests in zip(documents, requests, strict=True):
        choices = labels or subtask.choices(document)
        logprobs = [next(scored).logprob for _ in document_requests]
        probabilities = _soften(logprobs, note.temperature)
        shares = dict(zip(choices, probabilities, strict=True))
        chosen = choose_answer(
            str(note.metric), choices, [(logprob, False) for logprob in logprobs]
        )
        answers.append(_Answer(choices[chosen], shares))
    return iter(answers)


def _ask_classifier(
    subtask: Subtask, documents: Sequence[dict[str, Any]], folder: Path, note: AdapterNote
) -> list[_Answer]:
    """Ask a classifier on words."""
    from potentia.tasks import LinearTextClassifier

    classifier = LinearTextClassifier.load(folder / CLASSIFIER)
    labels = list(subtask.config.get("labels") or {})
    if not classifier.classes or max(classifier.classes) >= len(labels):
        raise InputError("classifier and labels do not fit together", where=str(folder))
    texts = [subtask.question_text(document) for document in documents]
    answers = []
    for logprobs in classifier.log_probabilities(texts):
        shares = dict.fromkeys(labels, 0.0)
        probabilities = _soften([float(value) for value in logprobs], note.temperature)
        for place, probability in zip(classifier.classes, probabilities, strict=True):
            shares[labels[place]] = probability
        answers.append(_Answer(max(shares, key=lambda label: shares[label]), shares))
    return answers


def _ask_encoder(
    subtask: Subtask,
    documents: Sequence[dict[str, Any]],
    folder: Path,
    note: AdapterNote,
    device: str,
) -> list[_Answer]:
    """Ask an encoder with a classification head; its weights are safetensors, which hold no code."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from potentia.engine import load_text_encoder, load_tokenizer, pick_device
    from potentia.tasks import silence_libraries

    labels = list(subtask.config.get("labels") or {})
    place = pick_device(device)
    with silence_libraries():
        tokenizer = load_tokenizer(str(folder))
        model: Any = load_text_encoder(AutoModelForSequenceClassification, str(folder))
    if model.config.num_labels != len(labels):
        raise InputError("encoder and labels do not fit together", where=str(folder))
    model.to(place).eval()
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
        ).to(place)
        with torch.no_grad():
            logits = model(**batch).logits.float().cpu().tolist()
        for row in logits:
            shares = dict(zip(labels, _soften(row, note.temperature), strict=True))
            answers.append(_Answer(max(shares, key=lambda label: shares[label]), shares))
    return answers


def _soften(logprobs: Sequence[float], temperature: float) -> list[float]:
    """Return the probabilities of the choices, with their log-probabilities divided by a temperature."""
    highest = max(logprobs)
    weights = [math.exp((logprob - highest) / temperature) for logprob in logprobs]
    total = sum(weights)
    return [weight / total for weight in weights]


def _find_gold(definition: Mapping[str, Any], record: Record) -> str | None:
    """Return the right answer of a row, where it has one."""
    from potentia.tasks import find_label

    if definition["output_type"] == "generate_until":
        completion = record.get("completion")
        return str(completion).strip() if completion not in (None, "") else None
    return find_label(record.get("label"), definition.get("labels") or ())


def _read_rows(
    data: Rows, columns: Mapping[str, Any], log: ReadingLog
) -> tuple[list[Record], list[Record]]:
    """Return the user's rows, and the same with the fields of the task; answers may be absent."""
    from potentia.tasks import Record, map_columns, read_records

    if isinstance(data, (str, Path)):
        path = Path(data).expanduser()
        if not path.is_file():
            raise InputError(
                f"there is no file {data}", hint="give a csv, jsonl, json or parquet file"
            )
        rows = read_records(path, log, skip_blank=False)
    else:
        text_column = columns.get("text", "text")
        rows = []
        for number, row in enumerate(data, start=1):
            fields: dict[str, Any] = {text_column: row} if isinstance(row, str) else {**row}
            rows.append(Record(f"row {number}", fields))
    present: set[str] = set()
    for record in rows:
        present |= set(record)
    needed = {}
    for field, column in columns.items():
        is_present = isinstance(column, str) and column in present
        if field not in _ANSWER_FIELDS or is_present:
            needed[field] = column
    return rows, map_columns(rows, needed)


def load_adapted(
    folder: Path,
    note: AdapterNote,
    *,
    base: str | None,
    device: str = "auto",
    dtype: str | None = None,
    quantise: bool = True,
    unchecked_base: bool = False,
) -> LoadedModel:
    """Load the base of an exported adapter with the adapter merged into it."""
    from potentia.engine import load

    model = note.model
    if model is None:
        raise InputError(
            "this folder holds a classifier on words: there is no model in it", where=str(folder)
        )
    has_adapter = (folder / "adapter_config.json").is_file()
    if has_adapter and note.base_fingerprint is None and not unchecked_base:
        raise InputError(
            "the adapter does not say by a fingerprint which model it was made for, and another of "
            f"the same shape would predict as well as {base or model.source}",
            where=str(folder),
            hint=_BASE_HINT,
        )
    bits = model.quantise if quantise else None
    loaded = load(
        base or model.source,
        device=device,
        dtype=dtype or model.dtype or "auto",
        revision=None if base else model.revision,
        gguf_file=None if base else model.gguf_file,
        adapters=(*model.before, *([str(folder)] if has_adapter else [])),
        quantise=bits,
    )
    is_other = model.fingerprint not in (None, loaded.fingerprint)
    if not has_adapter and is_other and bits == model.quantise and not unchecked_base:
        loaded.close()
        raise InputError(
            f"validation kept {model.source} untuned, and {base or model.source} is another model",
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
        note = read_note(folder)
        loaded = load_adapted(
            folder,
            note,
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
