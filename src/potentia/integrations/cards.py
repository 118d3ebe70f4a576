"""A tuned adapter to take away: its files, its card, and the note that says how it is asked."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError
from potentia.files import whole_folder

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store

NOTE = "potentia.json"


@dataclass(frozen=True)
class ExportedAdapter:
    """Where an adapter was written, what it goes on, and the lines that load it."""

    folder: Path
    base: str
    lines: tuple[str, ...]


def export_adapter(store: Store, cell: CellRecord, folder: Path, *, replace: bool = False) -> ExportedAdapter:
    """Copy a kept adapter out of the store and write its card and a note from which ``predict`` asks it again.

    Where validation kept the untuned model there is no adapter; the note and the card say so. The folder is there when
    all of it is written; with ``replace`` it takes the place of an earlier one.
    """
    kept = store.adapter(cell.key)
    if kept is None and cell.selection.get("tuned", True):
        raise InputError(f"no adapter of {cell.model} on {cell.task} is kept", where=store.where)
    model = cell.manifest.get("model") or {}
    base = str(model.get("source") or cell.model)
    before = [str(model["adapter"])] if model.get("adapter") else []
    if model.get("copy_of"):  # a treated copy: what it was shown comes first
        before += [str(store.adapter(f"treated-{model.get('fingerprint')}"))]
    few = (str(model["quantise"]), str(model.get("dtype"))) if model.get("quantise") else None
    last = str(folder) if kept is not None else None
    lines = loading_lines(base, last, gguf=model.get("gguf_file"), before=before, few=few)
    with whole_folder(folder, replace=replace) as draft:
        for file in kept.iterdir() if kept is not None else ():
            shutil.copy2(file, draft / file.name)
        (draft / "README.md").write_text(adapter_card(cell, base, lines, str(folder)), encoding="utf-8")
        place = draft / NOTE
        note = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
        note |= {"cell": cell.key, "task": cell.task, "protocol": cell.protocol, "selection": dict(cell.selection)}
        note |= {"model": {**model, "source": base, "before": before}, "asked": dict(cell.manifest.get("task") or {})}
        note |= {"metric": cell.metric, "score": cell.score.value, "stderr": cell.score.stderr, "n": cell.score.n}
        place.write_text(json.dumps(note, indent=1, default=str), encoding="utf-8")
    return ExportedAdapter(folder, base, lines)


def loading_lines(
    base: str, folder: str | None, *, gguf: str | None, before: Sequence[str], few: tuple[str, str] | None
) -> tuple[str, ...]:
    """Return Python that loads the adapted model with transformers and PEFT alone; ``few``: bits of the base, dtype."""
    place = f"{base!r}" if gguf is None else f"{base!r}, gguf_file={gguf!r}"
    if base.endswith(".gguf"):
        place = f"{str(Path(base).parent)!r}, gguf_file={Path(base).name!r}"
    bits = ""
    if few is not None:
        kind = f"torch.{few[1]}"
        four = "load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True,"
        kept = f"{four} bnb_4bit_compute_dtype={kind}" if few[0] == "4bit" else "load_in_8bit=True"
        bits = f", dtype={kind}, quantization_config=BitsAndBytesConfig({kept})"
    late = bool(before) or ", gguf_file=" in place  # first whole, then in few bits
    return _lines("loading.py.txt", place=place, bits=bits, late=late, before=before, folder=folder)


def adapter_card(cell: CellRecord, base: str, lines: tuple[str, ...], folder: str) -> str:
    """Return the card of an adapter: its base, what it was tuned on and how, what it scores, how to ask it."""
    from huggingface_hub import ModelCard

    tuning = cell.manifest.get("tuning") or (cell.manifest.get("adjust") or {}).get("tuning") or {}
    task = cell.manifest.get("task") or {}
    splits = task.get("splits") or {}
    used = {name: (splits.get(name) or {}).get("used") for name in ("train", "validation", "test")}
    name = f"{cell.model.rpartition('/')[2]}-{cell.task}"
    beside = {m: cell.scores[m].value for m in ("macro_f1", "balanced_accuracy") if m in cell.scores}
    beside |= {what: given.get("acc", math.nan) for what, given in (task.get("baselines") or {}).items()}
    body = _templates().get_template("card.md").render(
        name=name, base=base, cell=cell, score=cell.score, chosen=cell.selection, used=used, beside=beside, lines=lines,
        tuned=cell.selection.get("tuned", True), origin=(splits.get("test") or {}).get("origin", "unknown"),
        seed=splits.get("seed", "unknown"), asking=asking_lines(task), config=task.get("config") or {},
        labels=task.get("labels") or {}, folder=shlex.quote(folder),
        recipe={key: value for key, value in tuning.items() if value is not None},
    )  # fmt: skip
    return str(ModelCard(f"---\n{_card_head(cell, base, name)}\n---\n{body}"))


def _card_head(cell: CellRecord, base: str, name: str) -> str:
    """Return what the hub reads of a card: the base and the score."""
    from huggingface_hub import EvalResult, ModelCardData

    result = EvalResult(
        task_type="text-generation",
        dataset_type=cell.task,
        dataset_name=cell.task,
        metric_type=cell.metric,
        metric_name=f"{cell.metric} ({cell.protocol})",
        metric_value=round(cell.score.value, 6),
        metric_args=None if math.isnan(cell.score.stderr) else {"stderr": round(cell.score.stderr, 6)},
    )
    on_hub = base.count("/") == 1 and not base.startswith((".", "/", "~"))
    return ModelCardData(
        base_model=base if on_hub else None,
        library_name="peft",
        tags=["potentia", "train-before-test", "lora"],
        model_name=name,
        eval_results=[result],
    ).to_yaml()


def asking_lines(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return Python that classifies a text with the loaded model and no Potentia; none for other kinds of tasks."""
    labels, config = task.get("labels"), task.get("config") or {}
    template = str(config.get("doc_to_text", ""))
    fields = [name for name in ("text", "text_pair") if "{{" + name + "}}" in template]
    if not labels or not fields or template.count("{{") != len(fields):
        return ()
    for name in fields:
        template = template.replace("{{" + name + "}}", f"<{name}>")
    return _lines("asking.py.txt", labels=json.dumps(labels, ensure_ascii=False), fields=fields, prompt=template)


@cache
def _templates() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    how: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    made = Environment(loader=PackageLoader("potentia.integrations"), undefined=StrictUndefined, **how)
    made.filters.update(repr=repr, plain=_plain)
    return made


def _lines(template: str, **context: Any) -> tuple[str, ...]:
    return tuple(_templates().get_template(template).render(**context).splitlines())


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    if value is None or value != value:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
