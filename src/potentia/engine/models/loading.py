"""Loading a model once: weights, tokenizer, where they live, how a text begins, and a name for their content."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.engine.models.admission import (
    check_loaded_weights,
    check_predictions,
    loading_error,
    refuse_encoder_decoder,
)
from potentia.engine.models.checks import ModelChecks
from potentia.engine.models.foreign_files import (
    check_model_folder,
    merge_adapter,
    names_its_base,
)
from potentia.engine.models.identity import (
    fingerprint,
    memory_fingerprint,
    quantised_fingerprint,
)
from potentia.engine.models.proof_cache import ProofCache, structure_fingerprint
from potentia.engine.models.tokenization import BosPolicy, Encoder
from potentia.errors import InputError, PotentiaError
from potentia.extras import Extra, require_extra
from potentia.files import PICKLE, is_allowed
from potentia.values.engine_records import EngineRecord, LoadRecord

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

DEFAULT_MAX_LENGTH = 2048
SPREAD = "spread"  # the device that means: over all of them
UNLIMITED = 10**9  # tokenizers without a limit report 1e30


@dataclass(eq=False)
class LoadedModel:
    """A causal language model ready for use, with everything about it that can change a score.

    ``fingerprint`` names their content (see ``identity``). ``checks`` remembers which scoring routes agreed with the
    reference on this model, and ``lanes`` which form of training, so that checks are made once; ``proof_cache`` what
    was found of models built alike. ``record`` says how it was loaded, checked and tuned; results carry it.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype
    max_length: int
    bos: BosPolicy
    fingerprint: str
    target_architecture: str
    checks: ModelChecks = field(default_factory=ModelChecks)
    lanes: dict[Any, Any] = field(default_factory=dict)
    record: EngineRecord = field(default_factory=EngineRecord)
    proof_cache: ProofCache = field(default_factory=ProofCache)

    @classmethod
    def of(
        cls, model: Any, tokenizer: PreTrainedTokenizerBase, *, fingerprint: str | None = None
    ) -> LoadedModel:
        """Wrap a model that is already in memory."""
        weight = next(model.parameters())
        config = model.config
        if not fingerprint:
            fingerprint = memory_fingerprint(model, tokenizer)
        return cls(
            model=model,
            tokenizer=tokenizer,
            device=weight.device,
            dtype=weight.dtype,
            max_length=context_length(config, tokenizer, model),
            bos=BosPolicy.of(tokenizer, config),
            fingerprint=fingerprint,
            target_architecture=str(getattr(config, "model_type", type(model).__name__)),
        )

    @cached_property
    def encoder(self) -> Encoder:
        """The model's encoder, shared by scoring and training so that every text is tokenised once."""
        return Encoder(self.tokenizer, self.bos, self.max_length)

    @cached_property
    def structure(self) -> str:
        """A name for how the model is built, whatever its weights."""
        return structure_fingerprint(self.model)

    @property
    def parameters(self) -> int:
        """How many weights the model has, however they are kept."""
        from potentia.engine.models.quantization import count_parameters

        return count_parameters(self.model)

    def close(self) -> None:
        """Let go of the weights and give the memory back."""
        import torch

        self.model = None
        self.checks.clear()
        self.lanes.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def load(
    name_or_path: str,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
    adapters: Sequence[str] = (),
    quantise: str | None = None,
) -> LoadedModel:
    """Load a causal LM from the Hub, a folder, or a GGUF file, with PEFT adapters merged into it one after another.

    ``auto`` means: the first CUDA device in bfloat16, or else the CPU in float32; a model that does not fit it is laid
    out over all of them. ``spread`` lays it out in any case, with the processor for what GPUs do not hold.
    ``quantise`` (``8bit``, ``4bit``) keeps what the adapters made of the weights in few bits.
    """
    from potentia.engine.models.quantization import compute_plainly, quantise_model

    home_device = pick_device(device)
    weight_dtype = pick_dtype(dtype, home_device)
    source = _find_source(name_or_path, revision, gguf_file)
    if source.gguf_file is not None:
        _check_gguf_installed()
    if adapters:  # before the weights are read: an adapter of another model is refused by its note
        source.compute_fingerprint(adapters)
    # bitsandbytes speaks when it is imported, and PEFT imports it
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    loading_device = _choose_loading_device(device, home_device)
    quantises_while_loading = quantise is not None and source.gguf_file is None and not adapters
    model, tokenizer, load_record = _read_model(
        source,
        trust_remote_code=trust_remote_code,
        dtype=weight_dtype,
        device=loading_device,
        quantise=quantise,
        quantises_while_loading=quantises_while_loading,
    )
    if source.gguf_file is not None:
        _forget_quantization(model)
        _declare_bos(tokenizer, source.name_or_path, source.gguf_file, revision)
    for adapter in adapters:
        model = merge_adapter(model, Path(adapter).expanduser())
    if quantise is not None and not quantises_while_loading:
        model = quantise_model(model, quantise, weight_dtype, {"": loading_device})
    compute_plainly(model)
    model.eval()
    model.requires_grad_(False)
    _place_model(model, device, home_device)
    check_predictions(model, tokenizer)
    content_fingerprint = quantised_fingerprint(source.compute_fingerprint(adapters), quantise)
    loaded = LoadedModel.of(model, tokenizer, fingerprint=content_fingerprint)
    loaded.checks.predictions = True
    unchecked_adapters = _find_unchecked_adapters(source.name_or_path, adapters)
    load_record = replace(load_record, unchecked_adapters=unchecked_adapters)
    loaded.record = EngineRecord(load=load_record)
    return loaded


@dataclass(frozen=True)
class _ModelSource:
    """Where a model's files are: a Hub name or a folder, its revision, and the GGUF file in it."""

    name_or_path: str
    revision: str | None
    gguf_file: str | None

    def compute_fingerprint(self, adapters: Sequence[str]) -> str:
        """Return the name of the content of the files and of the adapters merged into them."""
        return fingerprint(
            self.name_or_path,
            revision=self.revision,
            gguf_file=self.gguf_file,
            adapters=adapters,
        )


def _find_source(name_or_path: str, revision: str | None, gguf_file: str | None) -> _ModelSource:
    """Return where a model's files are, and refuse a folder that cannot hold a model."""
    source_folder = Path(name_or_path).expanduser()
    if source_folder.exists():
        name_or_path = str(source_folder)
    if name_or_path.endswith(".gguf"):
        name_or_path = str(source_folder.parent)
        gguf_file = source_folder.name
    if source_folder.is_dir() and gguf_file is None:
        check_model_folder(source_folder)
    return _ModelSource(name_or_path, revision, gguf_file)


def _read_model(
    source: _ModelSource,
    *,
    trust_remote_code: bool,
    dtype: torch.dtype,
    device: torch.device,
    quantise: str | None,
    quantises_while_loading: bool,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, LoadRecord]:
    """Read the model and its tokenizer, and return them with a record of how the weights fitted."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from potentia.engine.models.device_layout import is_out_of_memory
    from potentia.engine.models.quantization import quantization_settings, refuse_quantised_weights

    file_options: dict[str, object] = {"trust_remote_code": trust_remote_code}
    if source.revision is not None:
        file_options["revision"] = source.revision
    if source.gguf_file is not None:
        file_options["gguf_file"] = source.gguf_file
    weight_options = dict(file_options)
    if source.gguf_file is None and not is_allowed(PICKLE):
        weight_options["use_safetensors"] = True
    if quantise is not None and quantises_while_loading:
        weight_options["quantization_config"] = quantization_settings(quantise, dtype)
        weight_options["device_map"] = {"": device}
    weight_options["output_loading_info"] = True
    weight_options["ignore_mismatched_sizes"] = True
    try:
        if source.gguf_file is None:
            config = AutoConfig.from_pretrained(source.name_or_path, **file_options)
            refuse_encoder_decoder(config)
            if quantise is not None:
                refuse_quantised_weights(config, quantise)
        tokenizer = AutoTokenizer.from_pretrained(source.name_or_path, **file_options)
        # what is missing, where that is allowed, is filled alike every time
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            answer: Any = AutoModelForCausalLM.from_pretrained(
                source.name_or_path, dtype=dtype, **weight_options
            )
        model, loading_info = answer
        load_record = check_loaded_weights(source.name_or_path, loading_info)
    except Exception as error:  # libraries raise anything on files that are cut, or of other types
        if isinstance(error, PotentiaError) or is_out_of_memory(error):
            raise
        raise loading_error(source.name_or_path, error) from error
    return model, tokenizer, load_record


def _find_unchecked_adapters(name_or_path: str, adapters: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the adapters that do not say which model they were made for, and warn of them."""
    unchecked = [adapter for adapter in adapters if not names_its_base(Path(adapter).expanduser())]
    if unchecked:
        log.warning(
            "the adapter %s does not say by a fingerprint which model it was made for: that %s is its base "
            "is taken on trust",
            unchecked[0],
            name_or_path,
        )
    return tuple(Path(adapter).name for adapter in unchecked)


def _choose_loading_device(device: str, home_device: torch.device) -> torch.device:
    """Return where weights are quantised first: on the processor, where they may be divided among devices later."""
    import torch

    if device == SPREAD or _may_use_several_gpus(device):
        return torch.device("cpu")
    return home_device


def _may_use_several_gpus(device: str) -> bool:
    """Tell whether more than one GPU may be used."""
    import torch

    return (
        device in ("auto", "cuda") and torch.cuda.is_available() and torch.cuda.device_count() > 1
    )


def _place_model(model: PreTrainedModel, device: str, home_device: torch.device) -> None:
    """Bring a model to its device, or lay it out over several."""
    import torch
    from torch import nn

    from potentia.engine.models.device_layout import all_devices, fits_on, lay_out, spread

    if home_device.type == "cuda" and home_device.index is not None:
        torch.cuda.set_device(home_device)  # kernels and graphs start on the device that is current
    devices = all_devices()
    if device == SPREAD and len(devices) > 1:
        spread(model, lay_out(model, devices))
    elif _may_use_several_gpus(device) and not fits_on(model, home_device):
        spread(model, lay_out(model, devices[:-1]))
    elif not all(_is_on(parameter.device, home_device) for parameter in model.parameters()):
        nn.Module.to(model, home_device)  # transformers' own refuses weights of 8 bits


def _is_on(device: torch.device, expected: torch.device) -> bool:
    """Tell whether a device is the expected one, which may name any GPU."""
    return device.type == expected.type and expected.index in (None, device.index)


def pick_device(device_name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``spread`` (its first) into a device that is there."""
    import torch

    if device_name in ("auto", SPREAD):
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("cpu")
    try:
        device = torch.device(device_name)
    except RuntimeError as error:
        raise InputError(
            f"no such device: {device_name!r}", hint="use auto, cpu, cuda, cuda:N, mps or spread"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device on this machine", hint="use --device cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("there is no Apple GPU on this machine", hint="use --device cpu")
    return device


@contextmanager
def going_first(device: str) -> Iterator[None]:
    """Let what is queued inside the block go before the training of whoever shares the GPU; training is not hurried.

    Loading, checks and scoring are chains of short kernels: behind the long ones of three other rows each waited for a
    millisecond, and 40 us so (H200, under MPS). Training fills what they leave.
    """
    from potentia.engine.models.device_layout import on_stream

    with on_stream(pick_device(device), -1):
        yield


def pick_dtype(dtype_name: str, device: torch.device) -> torch.dtype:
    """Turn ``auto`` into float32 on a CPU and bfloat16 (float16 where the card lacks it) on a GPU."""
    import torch

    if dtype_name == "auto":
        if device.type != "cuda":
            return torch.float32
        if torch.cuda.is_bf16_supported():
            return torch.bfloat16
        return torch.float16
    dtype = getattr(torch, dtype_name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(
            f"no such dtype: {dtype_name!r}", hint="use auto, float32, bfloat16 or float16"
        )
    return dtype


def planned_dtype(dtype_name: str, device: str) -> str:
    """Return the dtype that a model will be loaded in; a GPU that is named but not here is taken to have bfloat16."""
    if dtype_name != "auto":
        return dtype_name
    if device == "cpu":
        return "float32"
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return "bfloat16"
    return str(pick_dtype(dtype_name, pick_device(device))).removeprefix("torch.")


def context_length(
    config: object, tokenizer: PreTrainedTokenizerBase | None, model: nn.Module | None = None
) -> int:
    """Find how many tokens the model reads at once, from the same sources and in the same order as lm-eval.

    Of RoBERTa-type models' positions, those up to the padding token's are never used: these fit fewer.
    """
    config = getattr(config, "text_config", None) or config
    for setting_name in ("n_positions", "max_position_embeddings", "n_ctx"):
        positions = getattr(config, setting_name, None)
        if positions is not None:
            return int(positions) - _count_unused_positions(model, int(positions))
    limit = getattr(tokenizer, "model_max_length", None)
    if limit is not None and limit < UNLIMITED:
        return int(limit)
    return DEFAULT_MAX_LENGTH


def _count_unused_positions(model: nn.Module | None, positions: int) -> int:
    """Count the positions that no token gets: in RoBERTa-type models, those up to the padding token's."""
    from torch import nn

    if model is None:
        return 0
    for module_name, module in model.named_modules():
        if not isinstance(module, nn.Embedding) or "position" not in module_name:
            continue
        if module.num_embeddings != positions:
            continue
        if module.padding_idx is None:
            return 0
        roberta_offset = module.padding_idx + 1  # position of the first token of a text
        return roberta_offset
    return 0


def _check_gguf_installed() -> None:
    """Refuse a GGUF file where the package that reads it is missing."""
    require_extra(Extra.GGUF, "reading a GGUF file")


def _forget_quantization(model: Any) -> None:
    """Forget that the weights came quantised: they are plain tensors now, and can be saved and tuned as such."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _declare_bos(
    tokenizer: PreTrainedTokenizerBase, name_or_path: str, gguf_file: str, revision: str | None
) -> None:
    """Let the tokenizer add BOS where the GGUF file says that it must; its conversion loses that."""
    from gguf import GGUFReader
    from transformers.utils.hub import cached_file

    gguf_path = cached_file(name_or_path, gguf_file, revision=revision)
    if gguf_path is None:
        return
    entry = GGUFReader(gguf_path).get_field("tokenizer.ggml.add_bos_token")
    if entry is None or not bool(entry.contents()) or tokenizer.bos_token_id is None:
        return
    token_ids = list(tokenizer("a")["input_ids"])
    if token_ids[:1] != [tokenizer.bos_token_id]:
        tokenizer.add_bos_token = True
