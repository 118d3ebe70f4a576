"""A model that is a base and a PEFT adapter: merged when it is loaded, and only onto the base it was made for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from potentia.errors import ModelError

NOTE = "potentia.json"  # what an adapter of ours says of itself: its base's fingerprint, data, recipe, scores
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def check_adapter(folder: Path, base: str, source: str) -> None:
    """Refuse a folder that holds no adapter, or one that says it was made for another base.

    ``base`` is the fingerprint of the model at ``source``. An adapter of ours names its base's content; another one
    names its base's place, which counts where both are names of the hub.
    """
    if not (folder / "adapter_config.json").is_file() or not any((folder / name).is_file() for name in WEIGHTS):
        hint = "an adapter folder holds adapter_config.json and adapter_model.safetensors, as PEFT writes them"
        raise ModelError(f"no adapter in {folder}", hint=hint)
    note = _read(folder / NOTE).get("base")
    made_for = note.get("fingerprint") if isinstance(note, dict) else None
    if made_for is not None and made_for != base:
        named = note.get("source", "another model") if isinstance(note, dict) else "another model"
        raise ModelError(
            f"the adapter in {folder} was made for {named}, not for {source}", hint="give the base that it was made for"
        )
    given = _read(folder / "adapter_config.json").get("base_model_name_or_path")
    if made_for is None and _hub_name(given) and _hub_name(source) and str(given).casefold() != source.casefold():
        raise ModelError(
            f"the adapter in {folder} was made for {given}, not for {source}", hint="give the base that it was made for"
        )


def merge_adapter(model: Any, folder: Path) -> Any:
    """Put the adapter into the model's weights; what does not fit is refused."""
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    config = PeftConfig.from_pretrained(str(folder))
    config.inference_mode = False  # the weights are asked for below; merging freezes nothing
    try:
        adapted = get_peft_model(model, config)
        told: Any = set_peft_model_state_dict(adapted, load_peft_weights(str(folder), device="cpu"))
    except (ValueError, KeyError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"the adapter in {folder} does not fit the model: {first}", hint="give the base that it was made for"
        ) from error
    left = [key for key in told.missing_keys if ".lora_" in key or ".modules_to_save." in key]
    if told.unexpected_keys or left:
        odd = (told.unexpected_keys or left)[0]
        raise ModelError(
            f"the adapter in {folder} does not fit the model: {odd} has no match",
            hint="give the base that it was made for",
        )
    return adapted.merge_and_unload()


def _hub_name(name: Any) -> bool:
    return (
        isinstance(name, str)
        and name.count("/") == 1
        and not name.startswith((".", "/", "~"))
        and not Path(name).exists()
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
