"""Models and adapters from strangers: what their files say is read with types and limits before a library sees it.

This is the one door for adapters: whoever hashes, merges or plans with an adapter reads it by ``read_adapter``. A
config may name sizes that nothing can be built of, regular expressions that take for ever on the name of a module,
and kinds of adapters that load other files or import modules by name. Each is refused here with a sentence, whatever
version of PEFT and transformers would do with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from potentia import limited
from potentia.errors import InputError, ModelError
from potentia.files import (
    ADAPTER_NOTE,
    LARGEST_FILE,
    PICKLE,
    check_plain_file,
    describe_invalid,
    is_allowed,
    read_json,
    read_json_object,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
PLAIN_WEIGHTS = (".safetensors", ".gguf")  # weights that are data alone
PICKLE_HINT = "take its safetensors or GGUF version; or, of a source you trust, --allow pickle"
NO_ADAPTER_HINT = (
    "an adapter folder holds adapter_config.json and adapter_model.safetensors, as PEFT writes them"
)

MOST_LAYERS = 10_000  # of a model, and modules that an adapter names
WIDEST = (
    2**22
)  # of a width, a vocabulary, a number of heads, a rank: several times what any model has
MOST_PATTERNS = 100
LARGEST_ADAPTER = 32 * 2**30  # bytes
# Names that regular expressions are tried on before a model is there: long ones of several architectures.
SAMPLE_MODULES = (
    "base_model.model.model.layers.10.self_attn.q_proj.weight_0",
    "model.layers.31.mlp.down_proj",
    "model.layers.31.mlp.experts.127.gate_up_proj",
    "model.layers.31.post_attention_layernorm",
    "transformer.h.11.attn.c_attn",
    "gpt_neox.layers.23.attention.query_key_value",
    "gpt_neox.layers.23.mlp.dense_4h_to_h",
    "model.decoder.layers.11.self_attn.out_proj",
    "transformer.h.29.self_attention.query_key_value",
    "backbone.layers.63.mixer.in_proj",
    "model.language_model.layers.33.linear_attn.in_proj_qkvz",
)

# Kinds whose weights can be merged, and that read nothing but their own files. Prompt tuning loads a tokenizer of the
# config's choice with the config's options, BOFT compiles code, others are no part of the weights.
MergeableKind = Literal[
    "LORA",
    "ADALORA",
    "IA3",
    "LOHA",
    "LOKR",
    "OFT",
    "VERA",
    "HRA",
    "FOURIERFT",
    "LN_TUNING",
]
Rank = Annotated[int, Field(ge=1, le=WIDEST)]
Names = Annotated[list[str], Field(max_length=MOST_LAYERS)]
LayerNumbers = Annotated[list[int], Field(max_length=MOST_LAYERS)]


class AdapterConfig(BaseModel):
    """What of PEFT's ``adapter_config.json`` decides what is built; other keys are left to PEFT."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    peft_type: MergeableKind
    base_model_name_or_path: str | None = None
    r: Rank = 8
    lora_alpha: float = 8
    target_modules: str | Names | None = None
    exclude_modules: str | Names | None = None
    modules_to_save: Names | None = None
    target_parameters: Names | None = None
    layers_to_transform: int | LayerNumbers | None = None
    layers_pattern: str | Names | None = None
    rank_pattern: dict[str, Rank] | None = Field(default=None, max_length=MOST_LAYERS)
    alpha_pattern: dict[str, float] | None = Field(default=None, max_length=MOST_LAYERS)
    layer_replication: list[tuple[int, int]] | None = Field(default=None, max_length=MOST_LAYERS)
    megatron_config: None = None  # PEFT would import the module that `megatron_core` names

    def patterns(self) -> list[str]:
        """Return the regular expressions that PEFT matches with names of modules."""
        patterns: list[str] = []
        for value in (self.target_modules, self.exclude_modules, self.layers_pattern):
            if isinstance(value, str):
                patterns.append(value)
        if isinstance(self.layers_pattern, list):
            patterns += self.layers_pattern
        for table in (self.rank_pattern, self.alpha_pattern):
            patterns += list(table or {})
        return list(dict.fromkeys(patterns))


@dataclass(frozen=True)
class AdapterBase:
    """The model that an adapter says it was made for, as far as it says so."""

    fingerprint: str | None
    source: str | None


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter folder that was read and found to be data of a bounded size."""

    folder: Path
    config: AdapterConfig
    weights: Path
    base: AdapterBase


def read_adapter(folder: Path) -> AdapterFiles:
    """Read the config, note and weights' header of an adapter; refuse a folder that holds none, or a harmful one."""
    weight_files = [
        folder / file_name for file_name in ADAPTER_WEIGHTS if (folder / file_name).is_file()
    ]
    if not (folder / ADAPTER_CONFIG).is_file() or not weight_files:
        raise ModelError(f"no adapter in {folder}", hint=NO_ADAPTER_HINT)
    config = read_adapter_config(folder)
    weights = weight_files[0]
    refuse_pickles([weights])
    _check_weights(weights)
    return AdapterFiles(folder, config, weights, _read_base(folder, config))


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read and check ``adapter_config.json``, its patterns on sample names included."""
    config_file = folder / ADAPTER_CONFIG
    content = read_json_object(config_file, LARGEST_FILE, error=ModelError)
    try:
        config = AdapterConfig.model_validate(content)
    except ValidationError as error:
        raise ModelError(
            f"the adapter's config cannot be used: {describe_invalid(error)}",
            where=str(config_file),
        ) from None
    _check_numbers(content, str(config_file))
    replicated = sum(abs(end - start) for start, end in config.layer_replication or ())
    if replicated > MOST_LAYERS:
        raise ModelError(f"layer_replication makes {replicated:,} layers", where=str(config_file))
    check_patterns(config, SAMPLE_MODULES, str(config_file))
    return config


def check_patterns(config: AdapterConfig, module_names: Sequence[str], source: str) -> None:
    """Refuse regular expressions that take too long on the names of modules, or cannot be read."""
    patterns = config.patterns()
    if len(patterns) > MOST_PATTERNS:
        raise ModelError(
            f"the adapter has {len(patterns):,} patterns, more than {MOST_PATTERNS}", where=source
        )
    for pattern in patterns:
        try:
            limited.match_names(pattern, list(module_names))
        except limited.LimitError as error:
            raise ModelError(
                f"the pattern {pattern[:80]!r} of the adapter: {error}", where=source
            ) from None


def _check_numbers(content: object, source: str) -> None:
    """Refuse a number that would build something without bound, wherever it stands."""
    for setting_name, value in _walk_numbers(content, ""):
        if abs(value) > WIDEST and setting_name != "alora_invocation_tokens":
            raise ModelError(f"{setting_name} is {value:,}, more than {WIDEST:,}", where=source)


def _walk_numbers(value: object, key: str) -> Iterator[tuple[str, int]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield key, value
    elif isinstance(value, Mapping):
        for setting_name, inner in value.items():
            yield from _walk_numbers(inner, str(setting_name))
    elif isinstance(value, list):
        for inner in value:
            yield from _walk_numbers(inner, key)


def _check_weights(weight_file: Path) -> None:
    """Refuse weights that are cut or say sizes that the file does not have; pickles are for PEFT to read."""
    check_plain_file(weight_file, LARGEST_ADAPTER, ModelError)
    if weight_file.suffix != ".safetensors":
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(weight_file), framework="np") as tensors:
            tensors.keys()
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"the adapter's weights cannot be read: {error}",
            where=str(weight_file),
            hint="the file may be cut: copy it again",
        ) from None


def _read_base(folder: Path, config: AdapterConfig) -> AdapterBase:
    """Return the base that an adapter's note names, or that PEFT's config does."""
    note_file = folder / ADAPTER_NOTE
    adapter_note = (
        read_json_object(note_file, LARGEST_FILE, error=ModelError) if note_file.is_file() else {}
    )
    base_name = adapter_note.get("base")
    if base_name is None:
        return AdapterBase(None, config.base_model_name_or_path)
    if not isinstance(base_name, dict):
        raise ModelError("`base` holds a fingerprint and a source", where=str(note_file))
    fingerprint = base_name.get("fingerprint")
    source = base_name.get("source", "another model")
    if fingerprint is None:
        return AdapterBase(None, config.base_model_name_or_path)
    return AdapterBase(str(fingerprint)[:200], str(source)[:200])


def check_base(adapter: AdapterFiles, fingerprint: str, source: str) -> None:
    """Refuse an adapter that says it was made for another base than the model at ``source``.

    An adapter of ours names its base's content; another one names its base's place, which counts where both are names
    of the hub.
    """
    base_name = adapter.base
    if base_name.fingerprint is not None:
        is_same = base_name.fingerprint == fingerprint
    elif _is_hub_name(base_name.source) and _is_hub_name(source):
        is_same = str(base_name.source).casefold() == source.casefold()
    else:
        is_same = True
    if not is_same:
        raise wrong_base(adapter.folder, f"was made for {base_name.source}, not for {source}")


def names_its_base(folder: Path) -> bool:
    """Whether an adapter says which model it was made for, by that model's content or by a name of the hub."""
    base_name = read_adapter(folder).base
    return base_name.fingerprint is not None or _is_hub_name(base_name.source)


def wrong_base(folder: Path, difference: str) -> ModelError:
    """Make the error for an adapter that belongs to another model."""
    return ModelError(
        f"the adapter in {folder} {difference}", hint="give the base that it was made for"
    )


def _is_hub_name(base_name: object) -> bool:
    if (
        not isinstance(base_name, str)
        or base_name.count("/") != 1
        or base_name.startswith((".", "/", "~"))
    ):
        return False
    return not Path(base_name).exists()


def merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Put the adapter into the model's weights; what does not fit is refused."""
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    adapter = read_adapter(folder)
    module_names = [name for name, _ in model.named_modules() if name]
    check_patterns(adapter.config, module_names, str(folder / ADAPTER_CONFIG))
    try:
        config = PeftConfig.from_pretrained(str(folder))
        config.inference_mode = False  # the weights are asked for below; merging freezes nothing
        adapted = get_peft_model(model, config)
        weights = load_peft_weights(str(folder), device="cpu")
        result: Any = set_peft_model_state_dict(adapted, weights)
    except (ValueError, KeyError, RuntimeError, TypeError, AttributeError, ImportError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise wrong_base(folder, f"does not fit the model: {first}") from error
    missing = [key for key in result.missing_keys if ".lora_" in key or ".modules_to_save." in key]
    unmatched = [*result.unexpected_keys, *missing]
    if unmatched:
        raise wrong_base(folder, f"does not fit the model: {unmatched[0]} has no match")
    merged_model: PreTrainedModel = adapted.merge_and_unload()
    return merged_model


# --- models ----------------------------------------------------------------------------------------------------------


def check_model_folder(folder: Path, label: str = "") -> dict[str, object]:
    """Refuse a model's folder whose config nothing could be built of; return the config, empty where there is none.

    transformers would try for hours. A config that is no JSON is left to the loading, which says so.
    """
    prefix = f"{label}: " if label else ""
    if (
        folder / ADAPTER_CONFIG
    ).is_file():  # transformers loads the base and puts the adapter on it
        check_adapter_config(folder, label)
    config_file = folder / "config.json"
    if not config_file.is_file():
        return {}
    try:
        config = read_json(config_file, LARGEST_FILE)
    except InputError as error:
        raise InputError(f"{prefix}{error.message}", where=str(config_file)) from None
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    for key, value in _walk_numbers(config, ""):
        is_wide = key.endswith(("_size", "heads")) or key in ("n_embd", "d_model", "n_inner")
        widest = WIDEST if is_wide else None
        if "layers" in key:
            widest = MOST_LAYERS
        if widest is not None and value > widest:
            raise InputError(
                f"{prefix}{key} is {value:,}, more than {widest:,}", where=str(config_file)
            )
    return config


def check_adapter_config(folder: Path, label: str = "") -> None:
    """Refuse an adapter whose config is harmful; one that is not there is left to the loading, which says so."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return
    prefix = f"{label}: " if label else ""
    try:
        read_adapter_config(folder)
    except ModelError as error:
        raise InputError(f"{prefix}{error.message}", where=error.where, hint=error.hint) from None


def refuse_pickles(files: Sequence[Path]) -> None:
    """Refuse weights that run code when they are read, unless they were allowed."""
    pickled = next(
        (weight_file for weight_file in files if weight_file.suffix not in PLAIN_WEIGHTS), None
    )
    if pickled is not None and not is_allowed(PICKLE):
        raise ModelError(
            f"{pickled.name} in {pickled.parent} is a pickle, which can run code", hint=PICKLE_HINT
        )
