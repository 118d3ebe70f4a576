"""An adapter to take away: exported with its card and a note from which ``predict`` asks it again."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError
from potentia.files import atomic_folder
from potentia.integrations.adapter_note import CLASSIFIER, NOTE
from potentia.values.protocol import TaskName
from potentia.values.provenance import TaskProvenance

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store
    from potentia.tasks import Task


@dataclass(frozen=True)
class ExportedAdapter:
    """Where an adapter was written, what it goes on, and the lines that load it."""

    folder: Path
    base: str
    lines: tuple[str, ...]


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
) -> ExportedAdapter:
    """Copy a kept adapter out of the store and write its card and a note from which ``predict`` asks it again.

    Where validation kept the untuned model there is no adapter; the note and the card say so. The folder is there when
    all of it is written; with ``replace`` it takes the place of an earlier one. ``temperature`` makes the probabilities
    of ``predict`` mean what they say; below ``threshold`` it marks a row as unsure.
    """
    stored = store.adapters.find(cell.key)
    if stored is None and not cell.selection.is_untuned:
        raise InputError(f"no adapter of {cell.model} on {cell.task} is kept", where=store.where)
    model = cell.provenance.model
    base = model.source or cell.model
    before = [model.adapter] if model.adapter else []
    if model.copy_of:  # an exposed copy: what it was exposed to comes first
        before.append(str(store.adapters.find(f"treated-{model.fingerprint}")))
    quantisation = None
    if model.quantise:
        quantisation = Quantisation(model.quantise, str(model.dtype))
    lines = loading_lines(
        base,
        str(folder) if stored is not None else None,
        gguf=model.gguf_file,
        before=before,
        quantisation=quantisation,
    )
    with atomic_folder(folder, replace=replace) as draft:
        for file in stored.iterdir() if stored is not None else ():
            shutil.copy2(file, draft / file.name)
        card = adapter_card(cell, base, lines, str(folder))
        (draft / "README.md").write_text(card, encoding="utf-8")
        note_file = draft / NOTE
        note = json.loads(note_file.read_text(encoding="utf-8")) if note_file.exists() else {}
        note["cell"] = cell.key
        note["task"] = TaskName(cell.task).whole
        note["protocol"] = cell.protocol
        note["selection"] = cell.selection.to_dict()
        note["model"] = {**model.to_dict(), "source": base, "before": before}
        note["asked"] = cell.provenance.task.to_dict()
        note["metric"] = cell.metric
        note["score"] = cell.score.value
        note["stderr"] = cell.score.stderr
        note["n"] = cell.score.n
        note["temperature"] = temperature
        note["threshold"] = threshold
        note_file.write_text(json.dumps(note, indent=1, default=str), encoding="utf-8")
    return ExportedAdapter(folder, base, lines)


def export_encoder(
    cell: CellRecord,
    saved: Path,
    folder: Path,
    *,
    temperature: float = 1.0,
    threshold: float | None = None,
) -> ExportedAdapter:
    """Copy a fine-tuned encoder, with a note from which ``predict`` asks it; an earlier one is replaced."""
    note = {
        "task": TaskName(cell.task).whole,
        "encoder": True,
        "model": {"source": str(cell.provenance.model.source)},
        "asked": cell.provenance.task.to_dict(),
        "metric": cell.metric,
        "score": cell.score.value,
        "temperature": temperature,
        "threshold": threshold,
    }
    with atomic_folder(folder, replace=True) as draft:
        for file in saved.iterdir():
            shutil.copy2(file, draft / file.name)
        text = json.dumps(note, indent=1, default=str, ensure_ascii=False)
        (draft / NOTE).write_text(text, encoding="utf-8")
    lines = (
        "from transformers import pipeline",
        f"classify = pipeline('text-classification', model={str(folder)!r})",
    )
    return ExportedAdapter(folder, str(cell.provenance.model.source), lines)


def export_classifier(task: Task, folder: Path, *, accuracy: float, replace: bool = False) -> Path:
    """Write a classifier on words, taught all rows, with a note from which ``predict`` asks it."""
    from potentia.tasks import TFIDF, fit_linear_classifier

    classifier = fit_linear_classifier(task, on_all=True)
    note = {
        "task": TaskName(task.name).whole,
        "classifier": TFIDF,
        "asked": task.describe(),
        "metric": "acc",
        "score": accuracy,
    }
    with atomic_folder(folder, replace=replace) as draft:
        classifier.save(draft / CLASSIFIER)
        text = json.dumps(note, indent=1, default=str, ensure_ascii=False)
        (draft / NOTE).write_text(text, encoding="utf-8")
    return folder


def loading_lines(
    base: str,
    folder: str | None,
    *,
    gguf: str | None,
    before: Sequence[str],
    quantisation: Quantisation | None,
) -> tuple[str, ...]:
    """Return Python that loads the adapted model with transformers and PEFT alone."""
    model_argument = f"{base!r}" if gguf is None else f"{base!r}, gguf_file={gguf!r}"
    if base.endswith(".gguf"):
        model_argument = f"{str(Path(base).parent)!r}, gguf_file={Path(base).name!r}"
    bits = ""
    if quantisation is not None:
        dtype = f"torch.{quantisation.dtype}"
        options = "load_in_8bit=True"
        if quantisation.bits == "4bit":
            options = (
                "load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True,"
                f" bnb_4bit_compute_dtype={dtype}"
            )
        bits = f", dtype={dtype}, quantization_config=BitsAndBytesConfig({options})"
    late = bool(before) or ", gguf_file=" in model_argument  # first whole, then in few bits
    return _render_lines(
        "loading.py.txt", place=model_argument, bits=bits, late=late, before=before, folder=folder
    )


def adapter_card(cell: CellRecord, base: str, lines: tuple[str, ...], folder: str) -> str:
    """Return the card of an adapter: its base, what it was tuned on and how, what it scores, how to ask it."""
    from huggingface_hub import ModelCard

    settings = cell.provenance.tuning_settings
    task = cell.provenance.task
    seed = task.splits.seed
    name = f"{cell.model.rpartition('/')[2]}-{cell.task}"
    other_scores = {}
    for metric in ("macro_f1", "balanced_accuracy"):
        if metric in cell.scores:
            other_scores[metric] = cell.scores[metric].value
    for baseline, scores in task.baselines.items():
        other_scores[baseline] = scores.get("acc", math.nan)
    template = _templates().get_template("card.md")
    body = template.render(
        name=name,
        base=base,
        cell=cell,
        score=cell.score,
        chosen=cell.selection,
        used=task.splits.used_by_split(),
        beside=other_scores,
        lines=lines,
        tuned=not cell.selection.is_untuned,
        origin=task.splits.test.origin or "unknown",
        seed="unknown" if seed is None else seed,
        asking=asking_lines(task),
        config=task.config,
        labels=task.labels,
        folder=shlex.quote(folder),
        recipe={key: value for key, value in settings.items() if value is not None},
    )
    return str(ModelCard(f"---\n{_render_card_head(cell, base, name)}\n---\n{body}"))


def _render_card_head(cell: CellRecord, base: str, name: str) -> str:
    """Return what the hub reads of a card: the base and the score."""
    from huggingface_hub import EvalResult, ModelCardData

    error = None
    if not math.isnan(cell.score.stderr):
        error = {"stderr": round(cell.score.stderr, 6)}
    result = EvalResult(
        task_type="text-generation",
        dataset_type=cell.task,
        dataset_name=cell.task,
        metric_type=cell.metric,
        metric_name=f"{cell.metric} ({cell.protocol})",
        metric_value=round(cell.score.value, 6),
        metric_args=error,
    )
    on_hub = base.count("/") == 1 and not base.startswith((".", "/", "~"))
    return ModelCardData(
        base_model=base if on_hub else None,
        library_name="peft",
        tags=["potentia", "train-before-test", "lora"],
        model_name=name,
        eval_results=[result],
    ).to_yaml()


def asking_lines(task: TaskProvenance) -> tuple[str, ...]:
    """Return Python that classifies a text with the loaded model and no Potentia; none for other kinds of tasks."""
    labels = task.labels
    prompt = str(task.config.get("doc_to_text", ""))
    fields = [name for name in ("text", "text_pair") if "{{" + name + "}}" in prompt]
    if not labels or not fields or prompt.count("{{") != len(fields):
        return ()
    for name in fields:
        prompt = prompt.replace("{{" + name + "}}", f"<{name}>")
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
