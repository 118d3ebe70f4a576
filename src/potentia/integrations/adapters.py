"""An adapter to take away: exported with a model card and ``potentia.json``, which ``predict`` reads."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.analysis.stats import interval_of_score
from potentia.errors import InputError
from potentia.files import ADAPTER_NOTE, atomic_folder
from potentia.integrations.adapter_note import CLASSIFIER, EMBEDDING_CLASSIFIER
from potentia.store import name_exposed_copy
from potentia.values.baselines import Baseline
from potentia.values.protocol import Protocol, TaskName
from potentia.values.provenance import TaskProvenance

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store
    from potentia.tasks import EmbeddingClassifier, Task
    from potentia.values.scores import Score


@dataclass(frozen=True)
class ExportedAdapter:
    """Where an adapter was written, what it goes on, and the lines that load it."""

    folder: Path
    base: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class BaseFiles:
    """The model that an adapter goes on: its files, and the adapters that are merged into it first."""

    source: str
    revision: str | None
    gguf_file: str | None
    merged_first: tuple[str, ...]

    @classmethod
    def find(cls, store: Store, cell: CellRecord) -> BaseFiles:
        """Return the base of a result; that of an exposed copy is an adapter of its original, or a whole model."""
        model = cell.provenance.model
        base = cls(
            source=locate_model(model.source or cell.model),
            revision=model.revision,
            gguf_file=model.gguf_file,
            merged_first=(locate_model(model.adapter),) if model.adapter else (),
        )
        if not model.copy_of:
            return base
        copy_folder = store.adapters.find(name_exposed_copy(model.fingerprint))
        if copy_folder is None:
            command = f"potentia store discard {shlex.quote(store.where)} --model {shlex.quote(cell.model)}"
            raise InputError(
                f"{cell.model} is an exposed copy that is no longer kept",
                where=store.where,
                hint=f"to make it again: {command}, then run the study",
            )
        copy_source = locate_model(str(copy_folder))
        if (copy_folder / "adapter_config.json").is_file():
            return replace_fields(base, merged_first=(*base.merged_first, copy_source))
        return cls(copy_source, revision=None, gguf_file=None, merged_first=())

    def compute_fingerprint(self) -> str:
        """Return the fingerprint of the files, as the engine computes it when it loads them."""
        from potentia.engine import fingerprints

        files = (self.source, self.revision, self.gguf_file, self.merged_first)
        return fingerprints([files])[files].result()


@dataclass(frozen=True)
class Quantisation:
    """In how many bits a base was kept (``8bit``, ``4bit``), and the dtype that it computed in."""

    bits: str
    dtype: str


def export_adapter(
    store: Store,
    cell: CellRecord,
    folder: Path,
    *,
    replace: bool = False,
    temperature: float = 1.0,
    threshold: float | None = None,
    tested_folds: int = 0,
) -> ExportedAdapter:
    """Copy a kept adapter out of the store, with a model card and ``potentia.json``, which ``predict`` reads.

    Where validation kept the untuned model, or nothing was tuned, there is no adapter; the note and the card say so.
    The folder is there when all of it is written; with ``replace`` it takes the place of an earlier one. ``predict``
    divides the log-probabilities by ``temperature``; rows below ``threshold`` are marked unsure. Of an adapter that was
    trained on all rows, ``tested_folds`` says how many folds its scores are from.
    """
    stored = store.adapters.find(cell.key)
    if stored is None and _is_tuned(cell):
        raise InputError(f"no adapter of {cell.model} on {cell.task} is kept", where=store.where)
    model = cell.provenance.model
    base = BaseFiles.find(store, cell)
    quantisation = None
    if model.quantise:
        quantisation = Quantisation(model.quantise, str(model.dtype))
    lines = render_loading_lines(
        base, str(folder) if stored is not None else None, quantisation=quantisation
    )
    with atomic_folder(folder, replace=replace) as draft:
        for file in stored.iterdir() if stored is not None else ():
            shutil.copy2(file, draft / file.name)
        card_text = adapter_card(
            cell,
            base.source,
            lines,
            str(folder),
            tested_folds=tested_folds,
            threshold=threshold,
        )
        (draft / "README.md").write_text(card_text, encoding="utf-8")
        note_file = draft / ADAPTER_NOTE
        note = json.loads(note_file.read_text(encoding="utf-8")) if note_file.exists() else {}
        _name_base(draft / "adapter_config.json", base.source)
        if isinstance(note.get("base"), dict):
            note["base"]["source"] = base.source
        note["cell"] = cell.key
        note["task"] = TaskName(cell.task).whole
        note["protocol"] = cell.protocol
        note["selection"] = cell.selection.to_dict()
        note["model"] = {
            **model.to_dict(),
            "source": base.source,
            "revision": base.revision,
            "gguf_file": base.gguf_file,
            "before": list(base.merged_first),
        }
        if model.copy_of:
            _name_content(note, base.compute_fingerprint())
        note["asked"] = cell.provenance.task.to_dict()
        note["metric"] = cell.metric
        note["score"] = cell.score.value
        note["stderr"] = cell.score.stderr
        note["n"] = cell.score.n
        note["tested_folds"] = tested_folds
        note["temperature"] = temperature
        note["threshold"] = threshold
        note_file.write_text(json.dumps(note, indent=1, default=str), encoding="utf-8")
    return ExportedAdapter(folder, base.source, lines)


def locate_model(source: str) -> str:
    """Return the whole path of a model's folder or file, so that an export works anywhere; a hub name stays."""
    path = Path(source).expanduser()
    return str(path.absolute()) if path.exists() else source


def _name_base(config_file: Path, base_model: str) -> None:
    """Put the base into PEFT's configuration of an adapter, where there is one."""
    if not config_file.is_file():
        return
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base_model
    config_file.write_text(json.dumps(config, indent=2), encoding="utf-8")


def _name_content(note: dict[str, Any], fingerprint: str) -> None:
    """Name the base of an exposed copy by its files, which loading compares; a study names it by how it was made."""
    from potentia.engine import quantised_fingerprint

    noted_model = note["model"]
    noted_model["fingerprint"] = quantised_fingerprint(fingerprint, noted_model.get("quantise"))
    if isinstance(note.get("base"), dict):
        note["base"]["fingerprint"] = fingerprint


def _is_tuned(cell: CellRecord) -> bool:
    """Whether a result is of a fine-tuned model."""
    return Protocol(cell.protocol).tuned and not cell.selection.is_untuned


def export_encoder(
    cell: CellRecord,
    saved: Path,
    folder: Path,
    *,
    temperature: float = 1.0,
    threshold: float | None = None,
    tested_folds: int = 0,
) -> ExportedAdapter:
    """Copy a fine-tuned encoder, with a model card and ``potentia.json``, which ``predict`` reads.

    An earlier export is replaced. ``predict`` divides the log-probabilities by ``temperature``; rows below
    ``threshold`` are marked unsure. Of an encoder that was fine-tuned on all rows, ``tested_folds`` says how many folds
    its scores are from.
    """
    lines = (
        "from transformers import pipeline",
        f"classify = pipeline('text-classification', model={str(folder)!r})",
    )
    note = {
        "task": TaskName(cell.task).whole,
        "encoder": True,
        "model": {"source": str(cell.provenance.model.source)},
        "asked": cell.provenance.task.to_dict(),
        "metric": cell.metric,
        "score": cell.score.value,
        "stderr": cell.score.stderr,
        "n": cell.score.n,
        "tested_folds": tested_folds,
        "selection": cell.selection.to_dict(),
        "temperature": temperature,
        "threshold": threshold,
    }
    base = str(cell.provenance.model.source)
    card = _render_classifier_card(
        cell.provenance.task,
        TaskName(cell.task).whole,
        f"The encoder `{base}` with a classification head, fine-tuned",
        folder,
        metric=cell.metric,
        score=cell.score.value,
        tested_folds=tested_folds,
        threshold=threshold,
        lines=lines,
    )
    with atomic_folder(folder, replace=True) as draft:
        for file in saved.iterdir():
            shutil.copy2(file, draft / file.name)
        (draft / "README.md").write_text(card, encoding="utf-8")
        note_text = json.dumps(note, indent=1, default=str, ensure_ascii=False)
        (draft / ADAPTER_NOTE).write_text(note_text, encoding="utf-8")
    return ExportedAdapter(folder, str(cell.provenance.model.source), lines)


def _render_classifier_card(
    task: TaskProvenance,
    task_name: str,
    what: str,
    folder: Path,
    *,
    metric: str,
    score: float,
    tested_folds: int,
    threshold: float | None = None,
    lines: Sequence[str] = (),
) -> str:
    """Return the model card of an encoder or a classical classifier: what it is, its training data, its score."""
    used = task.used_by_split()
    data = f"{used['train']} training, {used['validation']} validation and {used['test']} test examples."
    tested = f"{used['test']} test examples"
    if tested_folds:
        data = "all rows, with what cross-validation chose."
        folds = "1 fold" if tested_folds == 1 else f"{tested_folds} folds"
        tested = f"the same in {folds}, on rows that it had not seen"
    baseline_scores = {
        baseline.label: scores.get("acc", math.nan) for baseline, scores in task.baselines.items()
    }
    return str(
        _templates()
        .get_template("classifier.md")
        .render(
            name=task_name,
            what=what,
            task=task_name,
            data=data,
            metric=metric,
            score=score,
            tested=tested,
            beside=baseline_scores,
            threshold=threshold,
            folder=shlex.quote(str(folder)),
            lines=lines,
            labels=task.labels,
        )
    )


def export_classifier(
    task: Task,
    folder: Path,
    *,
    accuracy: float,
    tested_folds: int = 1,
    replace: bool = False,
    temperature: float = 1.0,
    threshold: float | None = None,
) -> Path:
    """Write a TF-IDF classifier, fitted on all rows, with a card and ``potentia.json``, which ``predict`` reads.

    ``predict`` divides its log-probabilities by ``temperature``; rows below ``threshold`` are marked unsure.
    """
    from potentia.tasks import fit_linear_classifier

    classifier = fit_linear_classifier(task, on_all=True)
    description = replace_fields(task.describe(), fingerprint=task.fingerprint)
    note = {
        "task": TaskName(task.name).whole,
        "classifier": Baseline.TFIDF.value,
        "asked": description.to_dict(),
        "metric": "acc",
        "score": accuracy,
        "temperature": temperature,
        "threshold": threshold,
    }
    card = _render_classifier_card(
        replace_fields(description, baselines={}),
        TaskName(task.name).whole,
        "TF-IDF with logistic regression",
        folder,
        metric="acc",
        score=accuracy,
        tested_folds=tested_folds,
        threshold=threshold,
    )
    with atomic_folder(folder, replace=replace) as draft:
        (draft / "README.md").write_text(card, encoding="utf-8")
        classifier.save(draft / CLASSIFIER)
        note_text = json.dumps(note, indent=1, default=str, ensure_ascii=False)
        (draft / ADAPTER_NOTE).write_text(note_text, encoding="utf-8")
    return folder


def export_embedding_classifier(
    classifier: EmbeddingClassifier,
    cell: CellRecord,
    folder: Path,
    *,
    name: str,
    accuracy: float,
    tested_folds: int = 1,
    replace: bool = False,
    temperature: float = 1.0,
    threshold: float | None = None,
) -> Path:
    """Write a classifier on the embeddings of a model, with a card and ``potentia.json``, which ``predict`` reads.

    ``cell`` is its result on a fold: it says which model the embeddings are of, and how the task is asked. ``predict``
    divides its log-probabilities by ``temperature``; rows below ``threshold`` are marked unsure.
    """
    model = cell.provenance.model
    source = locate_model(str(model.source))
    note = {
        "task": TaskName(cell.task).whole,
        "classifier": name,
        "model": {"source": source, "fingerprint": model.fingerprint},
        "asked": cell.provenance.task.to_dict(),
        "metric": "acc",
        "score": accuracy,
        "temperature": temperature,
        "threshold": threshold,
    }
    card = _render_classifier_card(
        cell.provenance.task,
        TaskName(cell.task).whole,
        f"Logistic regression on frozen embeddings of `{model.source}`",
        folder,
        metric="acc",
        score=accuracy,
        tested_folds=tested_folds,
        threshold=threshold,
    )
    with atomic_folder(folder, replace=replace) as draft:
        (draft / "README.md").write_text(card, encoding="utf-8")
        classifier.save(draft / EMBEDDING_CLASSIFIER)
        note_text = json.dumps(note, indent=1, default=str, ensure_ascii=False)
        (draft / ADAPTER_NOTE).write_text(note_text, encoding="utf-8")
    return folder


def render_loading_lines(
    base: BaseFiles, folder: str | None, *, quantisation: Quantisation | None
) -> tuple[str, ...]:
    """Return Python that loads the adapted model with transformers and PEFT alone."""
    model_name = base.source
    gguf_file = base.gguf_file
    if base.source.endswith(".gguf"):
        model_name = str(Path(base.source).parent)
        gguf_file = Path(base.source).name
    model_argument = f"{model_name!r}"
    if gguf_file is not None:
        model_argument += f", gguf_file={gguf_file!r}"
    bits_argument = ""
    if quantisation is not None:
        dtype = f"torch.{quantisation.dtype}"
        options = "load_in_8bit=True"
        if quantisation.bits == "4bit":
            options = (
                "load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True,"
                f" bnb_4bit_compute_dtype={dtype}"
            )
        bits_argument = f", dtype={dtype}, quantization_config=BitsAndBytesConfig({options})"
    # what is merged or read from GGUF is whole first, then kept in few bits
    quantises_last = bool(base.merged_first) or gguf_file is not None
    return _render_lines(
        "loading.py.txt",
        place=model_argument,
        bits=bits_argument,
        late=quantises_last,
        merged_first=base.merged_first,
        folder=folder,
    )


def adapter_card(
    cell: CellRecord,
    base_model: str,
    lines: tuple[str, ...],
    folder: str,
    *,
    tested_folds: int = 0,
    threshold: float | None = None,
) -> str:
    """Return the card of an adapter: its base, what it was tuned on and how, what it scores, how to ask it."""
    from huggingface_hub import ModelCard

    settings = cell.provenance.tuning_settings
    task = cell.provenance.task
    splits = task.splits
    task_name = str(TaskName(cell.task).whole)
    adapter_name = f"{cell.model.rpartition('/')[2]}-{task_name}"
    other_scores = {}
    for metric in ("macro_f1", "balanced_accuracy"):
        if metric in cell.scores:
            other_scores[metric] = cell.scores[metric].value
    for baseline, scores in task.baselines.items():
        other_scores[baseline.label] = scores.get("acc", scores.get(cell.metric, math.nan))
    template = _templates().get_template("card.md")
    card_text = template.render(
        name=adapter_name,
        base=base_model,
        cell=cell,
        task=task_name,
        score=cell.score,
        interval=_describe_interval(cell.score),
        tested_folds=tested_folds,
        threshold=threshold,
        chosen=cell.selection,
        used=task.used_by_split(),
        beside=other_scores,
        lines=lines,
        tuned=_is_tuned(cell),
        origin="unknown" if splits is None else splits.test.origin_label,
        seed="unknown" if splits is None else splits.seed,
        asking=render_usage_lines(task),
        config=task.config,
        labels=task.labels,
        folder=shlex.quote(folder),
        recipe={setting: value for setting, value in settings.items() if value is not None},
    )
    return str(
        ModelCard(f"---\n{_render_card_head(cell, base_model, adapter_name)}\n---\n{card_text}")
    )


def _describe_interval(score: Score) -> str:
    """Say in which range a score is known; nothing where its error is not known."""
    interval = interval_of_score(score)
    if not math.isfinite(interval.low):
        return ""
    return f" ({100 * interval.level:g} % interval {interval.low:.3f} to {interval.high:.3f})"


def _render_card_head(cell: CellRecord, base_model: str, adapter_name: str) -> str:
    """Return what the hub reads of a card: the base and the score."""
    from huggingface_hub import EvalResult, ModelCardData

    error = None
    if not math.isnan(cell.score.stderr):
        error = {"stderr": round(cell.score.stderr, 6)}
    result = EvalResult(
        task_type="text-generation",
        dataset_type=str(TaskName(cell.task).whole),
        dataset_name=str(TaskName(cell.task).whole),
        metric_type=cell.metric,
        metric_name=f"{cell.metric} ({cell.protocol})",
        metric_value=round(cell.score.value, 6),
        metric_args=error,
    )
    on_hub = base_model.count("/") == 1 and not base_model.startswith((".", "/", "~"))
    return ModelCardData(
        base_model=base_model if on_hub else None,
        library_name="peft",
        tags=["potentia", "train-before-test", "lora"],
        model_name=adapter_name,
        eval_results=[result],
    ).to_yaml()


def render_usage_lines(task: TaskProvenance) -> tuple[str, ...]:
    """Return Python that classifies a text with the loaded model and no Potentia; none for other kinds of tasks."""
    labels = task.labels
    prompt = str(task.config.get("doc_to_text", ""))
    fields = [
        field_name for field_name in ("text", "text_pair") if "{{" + field_name + "}}" in prompt
    ]
    if not labels or not fields or prompt.count("{{") != len(fields):
        return ()
    for field_name in fields:
        prompt = prompt.replace("{{" + field_name + "}}", f"<{field_name}>")
    return _render_lines(
        "asking.py.txt",
        labels=json.dumps(dict(labels), ensure_ascii=False),
        fields=fields,
        prompt=prompt,
    )


@cache
def _templates() -> Any:
    """Return our own templates of cards and lines; what is put into them is data."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("potentia.integrations"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(repr=repr, plain=_format_plain)
    return environment


def _render_lines(template: str, **context: Any) -> tuple[str, ...]:
    return tuple(_templates().get_template(template).render(**context).splitlines())


def _format_plain(value: Any) -> str:
    """Write a value of a card: numbers in four digits, lists with commas, what is unknown as such."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_format_plain, value))
    if value is None or value != value:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
