"""``doctor MODEL``: whether a model computes here what plain transformers and PEFT compute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import potentia
from potentia.cli.output import error_console, print_answer
from potentia.errors import InputError
from potentia.values.findings import Table

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
    lora = LoraConfig(r=4, alpha=8, dropout=0.0, targets=None, kind="lora")
    with error_console.status("comparing with transformers and PEFT …"):
        comparisons = compare_with_peft(loaded, lora)
    loaded_dtype = str(loaded.dtype).removeprefix("torch.")
    description = f"{type(loaded.model).__name__} in {loaded_dtype} on {loaded.device}"
    table_rows = []
    for comparison in comparisons:
        outcome = "right" if comparison.right else "WRONG"
        distance = (f"{comparison.off:.2g}", f"{comparison.limit:.2g}")
        unit = comparison.note  # what "off by" counts or is a share of
        table_rows.append((comparison.quantity, *distance, outcome, comparison.computed_by, unit))
    column_names = ("compared", "off by", "right up to", "result", "computed as", "unit")
    training = loaded.record.training
    refusals = {} if training is None else training.not_taken
    all_right = all(comparison.right for comparison in comparisons)
    answer = {
        "model": model,
        "as": description,
        "right": all_right,
        "compared": [{**vars(comparison), "right": comparison.right} for comparison in comparisons],
        "record": loaded.record.to_dict(),
    }
    facts = potentia.facts.models().find(model)
    known_facts = [] if facts is None else [_describe_facts(facts)]
    print_answer(
        as_json,
        answer,
        *known_facts,
        Table(description, column_names, table_rows),
        *(f"Not taken: {form.words}: {reason}" for form, reason in refusals.items()),
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
