"""Loading a model once: weights, tokenizer, where they live, how a text begins, and a name for their content."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from potentia.errors import InputError, MissingExtraError, PotentiaError
from potentia.files import PICKLE, is_allowed

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

DEFAULT_MAX_LENGTH = 2048
SPREAD = "spread"  # the device that means: over all of them
UNLIMITED = 10**9  # tokenizers without a limit report 1e30


@dataclass(eq=False)
class LoadedModel:
    """A causal language model ready for use, with everything about it that can change a score.

    ``fingerprint`` names their content (see ``identity``). ``checks`` remembers which scoring routes agreed with the
    reference on this model, and ``lanes`` which form of training, so that checks are made once; ``proof_cache`` what
    was found of models built alike. ``record`` says how it was loaded, tuned and checked, in plain values, for
    manifests.
    """

    model: Any
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    max_length: int
    bos: BosPolicy
    fingerprint: str
    target_architecture: str
    checks: ModelChecks = field(default_factory=ModelChecks)
    lanes: dict[Any, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    proof_cache: ProofCache = field(default_factory=ProofCache)

    @classmethod
    def of(cls, model: Any, tokenizer: Any, *, fingerprint: str | None = None) -> LoadedModel:
        """Wrap a model that is already in memory."""
        weight = next(model.parameters())
        config = model.config
        return cls(
            model=model,
            tokenizer=tokenizer,
            device=weight.device,
            dtype=weight.dtype,
            max_length=context_length(config, tokenizer, model),
            bos=BosPolicy.of(tokenizer, config),
            fingerprint=fingerprint or memory_fingerprint(model, tokenizer),
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
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from potentia.engine.models.device_layout import out_of_memory
    from potentia.engine.models.quantization import (
        compute_plainly,
        quantise_model,
        quantization_settings,
        refuse_quantised_weights,
    )

    place = pick_device(device)
    first = (
        torch.device("cpu") if device == SPREAD or _may_use_several_gpus(device) else place
    )  # of weights that are to be divided
    kind = pick_dtype(dtype, place)
    path = Path(name_or_path).expanduser()
    if path.exists():
        name_or_path = str(path)
    if name_or_path.endswith(".gguf"):
        name_or_path, gguf_file = str(path.parent), path.name
    if path.is_dir() and gguf_file is None:
        check_model_folder(path)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if revision is not None:
        options["revision"] = revision
    if gguf_file is not None:
        _need_gguf()
        options["gguf_file"] = gguf_file
    elif not is_allowed(PICKLE):
        options["use_safetensors"] = True
    if adapters:  # before the weights are read: an adapter of another model is refused by its note
        fingerprint(name_or_path, revision=revision, gguf_file=gguf_file, adapters=adapters)
    plain = {name: value for name, value in options.items() if name != "use_safetensors"}
    logging.getLogger("bitsandbytes").setLevel(
        logging.ERROR
    )  # it speaks when it is imported, and PEFT imports it
    at_once = quantise is not None and gguf_file is None and not adapters
    if quantise is not None:
        options |= (
            {
                "quantization_config": quantization_settings(quantise, kind),
                "device_map": {"": first},
            }
            if at_once
            else {}
        )
    try:
        if gguf_file is None:
            config = AutoConfig.from_pretrained(name_or_path, **plain)
            refuse_encoder_decoder(config)
            if quantise is not None:
                refuse_quantised_weights(config, quantise)
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **plain)
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        with torch.random.fork_rng(
            devices=[]
        ):  # what is missing, where that is allowed, is filled alike every time
            torch.manual_seed(0)
            answer: Any = AutoModelForCausalLM.from_pretrained(name_or_path, dtype=kind, **options)
        model, info = answer
        report = check_loaded_weights(name_or_path, info)
    except Exception as error:  # libraries raise anything on files that are cut, or of other types
        if isinstance(error, PotentiaError) or out_of_memory(error):
            raise
        raise loading_error(name_or_path, error) from error
    if gguf_file is not None:
        _plain_weights(model)
        _declare_bos(tokenizer, name_or_path, gguf_file, revision)
    for adapter in adapters:
        model = merge_adapter(model, Path(adapter).expanduser())
    if quantise is not None and not at_once:
        model = quantise_model(model, quantise, kind, {"": first})
    compute_plainly(model)
    model.eval()
    model.requires_grad_(False)
    _place_model(model, device, place)
    check_predictions(model, tokenizer)
    content = fingerprint(name_or_path, revision=revision, gguf_file=gguf_file, adapters=adapters)
    content = quantised_fingerprint(content, quantise)
    loaded = LoadedModel.of(model, tokenizer, fingerprint=content)
    loaded.checks.predictions = True
    loaded.record["load"] = report
    unchecked = [adapter for adapter in adapters if not names_its_base(Path(adapter).expanduser())]
    if unchecked:
        loaded.record["load"] |= {"unchecked_adapters": [Path(name).name for name in unchecked]}
        log.warning(
            "the adapter %s does not say by a fingerprint which model it was made for: that %s is its base "
            "is taken on trust",
            unchecked[0],
            name_or_path,
        )
    return loaded


def _may_use_several_gpus(device: str) -> bool:
    """Tell whether more than one GPU may be used."""
    import torch

    return (
        device in ("auto", "cuda") and torch.cuda.is_available() and torch.cuda.device_count() > 1
    )


def _place_model(model: Any, device: str, place: torch.device) -> None:
    """Bring a model to its device, or lay it out over several."""
    import torch
    from torch import nn

    from potentia.engine.models.device_layout import all_devices, fits, lay_out, spread

    if place.type == "cuda" and place.index is not None:
        torch.cuda.set_device(place)  # kernels and graphs start on the device that is current
    devices = all_devices()
    if device == SPREAD and len(devices) > 1:
        spread(model, lay_out(model, devices))
    elif _may_use_several_gpus(device) and not fits(model, place):
        spread(model, lay_out(model, devices[:-1]))
    elif any(
        p.device.type != place.type or place.index not in (None, p.device.index)
        for p in model.parameters()
    ):
        nn.Module.to(model, place)  # transformers' own refuses weights of 8 bits


def pick_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``spread`` (its first) into a device that is there."""
    import torch

    if name in ("auto", SPREAD):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(
            f"no such device: {name!r}", hint="use auto, cpu, cuda, cuda:N or spread"
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device on this machine", hint="use --device cpu")
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


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Turn ``auto`` into float32 on a CPU and bfloat16 (float16 where the card lacks it) on a GPU."""
    import torch

    if name == "auto":
        if device.type != "cuda":
            return torch.float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    kind = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise InputError(f"no such dtype: {name!r}", hint="use auto, float32, bfloat16 or float16")
    return kind


def planned_dtype(name: str, device: str) -> str:
    """Return the dtype that a model will be loaded in; a GPU that is named but not here is taken to have bfloat16."""
    if name != "auto" or device == "cpu":
        return name if name != "auto" else "float32"
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        return "bfloat16"
    return str(pick_dtype(name, pick_device(device))).removeprefix("torch.")


def context_length(config: Any, tokenizer: Any, model: Any = None) -> int:
    """Find how many tokens the model reads at once, from the same sources and in the same order as lm-eval.

    Of RoBERTa-type models' positions, those up to the padding token's are never used: these fit fewer.
    """
    config = getattr(config, "text_config", None) or config
    for name in ("n_positions", "max_position_embeddings", "n_ctx"):
        value = getattr(config, name, None)
        if value is not None:
            return int(value) - _unused_positions(model, int(value))
    limit = getattr(tokenizer, "model_max_length", None)
    return int(limit) if limit is not None and limit < UNLIMITED else DEFAULT_MAX_LENGTH


def _unused_positions(model: Any, positions: int) -> int:
    from torch import nn

    for name, module in model.named_modules() if model is not None else ():
        if (
            isinstance(module, nn.Embedding)
            and module.num_embeddings == positions
            and "position" in name
        ):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _need_gguf() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "reading GGUF files needs the gguf package", hint="pip install 'potentia[gguf]'"
        ) from error


def _plain_weights(model: Any) -> None:
    """Forget that the weights came quantised: they are plain tensors now, and can be saved and tuned as such."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _declare_bos(tokenizer: Any, name_or_path: str, gguf_file: str, revision: str | None) -> None:
    """Let the tokenizer add BOS where the GGUF file says that it must; its conversion loses that."""
    from gguf import GGUFReader
    from transformers.utils.hub import cached_file

    file = cached_file(name_or_path, gguf_file, revision=revision)
    if file is None:
        return
    entry = GGUFReader(file).get_field("tokenizer.ggml.add_bos_token")
    if entry is None or not bool(entry.contents()) or tokenizer.bos_token_id is None:
        return
    if list(tokenizer("a")["input_ids"])[:1] != [tokenizer.bos_token_id]:
        tokenizer.add_bos_token = True
