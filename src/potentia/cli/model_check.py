"""``doctor MODEL``: whether a model computes here what plain transformers and PEFT compute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import potentia
from potentia.cli.output import error_console, print_answer
from potentia.errors import InputError
from potentia.values.findings import Table
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from potentia.facts import ModelFacts


def check_model(
    model: str, *, device: str | None, dtype: str | None, trust_remote_code: bool, as_json: bool
) -> bool:
    """Compare a model's scores, texts, gradients and updates here with plain transformers' and PEFT's; print both.

    Returns whether nothing is off by more than rounding.
    """
    from potentia.engine.comparison import compare_with_peft
    from potentia.engine.training import LoraConfig

    is_path = model.startswith((".", "/", "~"))
    if is_path and not Path(model).expanduser().exists():
        raise InputError(
            f"there is no folder or file {model}",
            hint="give a folder, a GGUF file or a Hub name",
        )
    with error_console.status(f"loading {model} …"):
        loaded = potentia.engine.load(
            model,
            trust_remote_code=trust_remote_code,
            device=device or "auto",
            dtype=dtype or "auto",
        )
    with error_console.status("comparing with transformers and PEFT …"):
        comparisons = compare_with_peft(loaded, LoraConfig(4, 8, 0.0, None, "lora"))
    loaded_dtype = str(loaded.dtype).removeprefix("torch.")
    description = f"{type(loaded.model).__name__} in {loaded_dtype} on {loaded.device}"
    rows = [
        (
            comparison.quantity,
            f"{comparison.off:.2g}",
            f"{comparison.limit:.2g}",
            "right" if comparison.right else "WRONG",
            comparison.computed_by,
            comparison.note,
        )
        for comparison in comparisons
    ]
    columns = ("compared", "off by", "right up to", "verdict", "computed as", "unit")
    refusals = loaded.record.get("training", {}).get("not_taken", {})
    all_right = all(comparison.right for comparison in comparisons)
    value = {
        "model": model,
        "as": description,
        "right": all_right,
        "compared": [{**vars(comparison), "right": comparison.right} for comparison in comparisons],
        "record": loaded.record,
    }
    facts = potentia.facts.models().find(model)
    known_facts = [] if facts is None else [_describe_facts(facts)]
    print_answer(
        as_json,
        value,
        *known_facts,
        Table(description, columns, rows),
        *(f"Not taken: {TrainingForm(form).words}: {reason}" for form, reason in refusals.items()),
    )
    return all_right


def _describe_facts(facts: ModelFacts) -> str:
    """Say in one line what is known of a model."""
    parts = [facts.repository or facts.name]
    if facts.family:
        parts.append(f"family {facts.family}")
    if facts.parameters is not None:
        parts.append(f"{facts.parameters / 1e9:g} B parameters")
    if facts.tokens is not None:
        parts.append(f"{facts.tokens / 1e9:g} B training tokens")
    if facts.date:
        parts.append(str(facts.date))
    return "Known: " + ", ".join(parts)
