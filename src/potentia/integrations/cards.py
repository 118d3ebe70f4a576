"""Results for the Hugging Face hub: a tuned adapter with its card, and scores as a card's ``model-index``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.store import CellRecord, Store


@dataclass(frozen=True)
class ExportedAdapter:
    """Where an adapter was written, what it goes on, and the lines that load it."""

    folder: Path
    base: str
    lines: tuple[str, ...]


def export_adapter(store: Store, cell: CellRecord, folder: Path) -> ExportedAdapter:
    """Copy a kept adapter out of the store and write its card."""
    kept = store.adapter(cell.key)
    if kept is None:
        raise InputError(f"no adapter of {cell.model} on {cell.task} is kept", where=store.where)
    if folder.exists() and any(folder.iterdir()):
        raise InputError("the folder is not empty", where=str(folder), hint="give a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for file in kept.iterdir():
        shutil.copy2(file, folder / file.name)
    model = cell.manifest.get("model") or {}
    base = str(model.get("source") or cell.model)
    before = [str(model["adapter"])] if model.get("adapter") else []
    if model.get("copy_of"):  # a treated copy: what it was shown comes first
        before += [str(store.adapter(f"treated-{model.get('fingerprint')}"))]
    few = (str(model["quantise"]), str(model.get("dtype"))) if model.get("quantise") else None
    lines = loading_lines(base, str(folder), gguf=model.get("gguf_file"), before=before, few=few)
    (folder / "README.md").write_text(adapter_card(cell, base, lines), encoding="utf-8")
    note = json.loads((folder / "potentia.json").read_text(encoding="utf-8"))
    note |= {"cell": cell.key, "task": cell.task, "protocol": cell.protocol, "selection": dict(cell.selection)}
    (folder / "potentia.json").write_text(json.dumps(note, indent=1, default=str), encoding="utf-8")
    return ExportedAdapter(folder, base, lines)


def loading_lines(
    base: str,
    folder: str,
    *,
    gguf: str | None = None,
    before: Sequence[str] = (),
    few: tuple[str, str] | None = None,
) -> tuple[str, ...]:
    """Return Python that loads the adapted model with transformers and PEFT alone; ``few``: bits of the base, dtype."""
    place = f"{base!r}" if gguf is None else f"{base!r}, gguf_file={gguf!r}"
    if base.endswith(".gguf"):
        path = Path(base)
        place = f"{str(path.parent)!r}, gguf_file={path.name!r}"
    first = ["from peft import PeftModel", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    late = bool(before) or ", gguf_file=" in place  # first whole, then in few bits
    kept = _kept(few) if few is not None else ""
    loads = [
        f"tokenizer = AutoTokenizer.from_pretrained({place})",
        f"base = AutoModelForCausalLM.from_pretrained({place}{'' if late else kept})",
    ]
    loads += [f"base = PeftModel.from_pretrained(base, {other!r}).merge_and_unload()" for other in before]
    if few is not None:
        first.insert(2, "import torch")
        first[1] = first[1].replace("AutoTokenizer", "AutoTokenizer, BitsAndBytesConfig")
    if few is not None and late:
        loads.append(f"base = type(base).from_pretrained(None, config=base.config, state_dict=base.state_dict(){kept})")
    return (*first, *loads, f"model = PeftModel.from_pretrained(base, {folder!r})")


def _kept(few: tuple[str, str]) -> str:
    """Say how a base was kept in few bits, as arguments of ``from_pretrained``."""
    bits, dtype = few
    told = "load_in_8bit=True"
    if bits == "4bit":
        told = (
            "load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True,"
            f" bnb_4bit_compute_dtype=torch.{dtype}"
        )
    return f", dtype=torch.{dtype}, quantization_config=BitsAndBytesConfig({told})"


def adapter_card(cell: CellRecord, base: str, lines: tuple[str, ...]) -> str:
    """Return the card of an adapter: what it goes on, what it was tuned on and how, and what it scores."""
    from huggingface_hub import ModelCard, ModelCardData

    tuning = cell.manifest.get("tuning") or (cell.manifest.get("adjust") or {}).get("tuning") or {}
    splits = (cell.manifest.get("task") or {}).get("splits") or {}
    used = {name: (splits.get(name) or {}).get("used") for name in ("train", "validation", "test")}
    chosen, score = cell.selection, cell.score
    name = f"{cell.model.rpartition('/')[2]}-{cell.task}"
    data = ModelCardData(
        base_model=base if base.count("/") == 1 and not base.startswith((".", "/", "~")) else None,
        library_name="peft",
        tags=["potentia", "train-before-test", "lora"],
        model_name=name,
        eval_results=_results({cell.task: cell}),
    )
    recipe = "\n".join(f"| {key.replace('_', ' ')} | {_plain(value)} |" for key, value in tuning.items())
    direct = "" if cell.direct_value is None else f" (untuned: {cell.direct_value:.4f})"
    body = f"""
# {name}

A LoRA adapter of `{base}`, fine-tuned on {cell.task} by Potentia ({cell.protocol}).

- Data: {used["train"]} training, {used["validation"]} validation and {used["test"]} test documents of {cell.task}.
- Chosen on validation: learning rate {chosen.get("learning_rate")}, epoch {chosen.get("epoch")},
  validation {cell.metric} {_number(chosen.get("validation"))}.
- Test {cell.metric}: {score.value:.4f}, standard error {_number(score.stderr)}, {score.n} documents{direct}.

## Use

```python
{chr(10).join(lines)}
```

## Recipe

| setting | value |
|---|---|
{recipe}
"""
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n{body}"))


def model_index(evidence: Evidence, model: str, *, protocol: str | None = None) -> str:
    """Return the scores of a model as the YAML of a card's ``model-index``."""
    from huggingface_hub import ModelCardData

    wanted = protocol or evidence.main
    matrix = next((m for p, m in evidence.scores.items() if p == wanted), None)
    if matrix is None or model not in matrix.models:
        there = ", ".join(evidence.models[:8])
        raise InputError(f"no {wanted} scores of {model} in {evidence.source}", hint=f"models: {there}")
    row = matrix.select(models=[model])
    results = [
        _result(task, row.metrics[j] or "score", float(row.values[0, j]), float(row.stderr[0, j]), str(wanted))
        for j, task in enumerate(row.tasks)
        if row.values[0, j] == row.values[0, j]
    ]
    text: str = ModelCardData(model_name=model.rpartition("/")[2], eval_results=results).to_yaml()
    return text


def _results(cells: dict[str, CellRecord]) -> list[Any]:
    return [_result(t, c.metric, c.score.value, c.score.stderr, c.protocol) for t, c in cells.items()]


def _result(task: str, metric: str, value: float, stderr: float, protocol: str) -> Any:
    from huggingface_hub import EvalResult

    spread = {"stderr": round(stderr, 6)} if stderr == stderr else {}
    return EvalResult(
        task_type="text-generation",
        dataset_type=task,
        dataset_name=task,
        metric_type=metric,
        metric_name=f"{metric} ({protocol})",
        metric_value=round(value, 6),
        metric_args=spread or None,
    )


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) and value == value else "unknown"
