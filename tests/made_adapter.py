"""An adapter folder made in a moment: a tiny base, PEFT's files, and a note as an export writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny
from potentia.engine.models.identity import fingerprint

CONFIG: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "Text: {{text}}\nLabel:",
    "doc_to_choice": ["good", "bad"],
    "doc_to_target": "label",
    "labels": {"good": "good", "bad": "bad"},
}


def make_base(folder: Path, seed: int = 0) -> Path:
    """Save a tiny model."""
    tiny.save_model(folder, seed=seed)
    return folder


def make_adapter(folder: Path, base: Path, *, config: dict[str, Any] | None = None) -> Path:
    """Write PEFT's files and a note for an adapter of a base."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(base))
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"]))
    adapted.save_pretrained(str(folder))
    note = {
        "base": {"fingerprint": fingerprint(str(base)), "source": str(base)},
        "task": "mine",
        "metric": "acc",
        "score": 0.5,
        "selection": {"style": "plain"},
        "model": {"source": str(base), "before": [], "dtype": "float32"},
        "asked": {"config": config or CONFIG, "columns": {"text": "text", "label": "label"}},
    }
    (folder / "potentia.json").write_text(json.dumps(note))
    return folder


def change_json(file: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
