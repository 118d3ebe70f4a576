"""What is refused before a run begins: a device that is not there, a missing package, a folder that is no model.

Each would fail every cell of its row, one after the other and perhaps after hours; said at once it is one sentence.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from potentia import limited
from potentia.errors import InputError
from potentia.files import LARGEST, plain_file

if TYPE_CHECKING:
    from potentia.study import ModelSpec, Study

TOKENIZER_FILES = (
    "tokenizer*", "vocab*", "*vocab.json", "merges.txt", "*.model", "*.spm", "*.tiktoken", "tekken.json", "dict.txt",
    "*.codes", "*.tokenizer", "spiece*", "bpe*",
)  # fmt: skip

# Packages that read the weights of a quantisation, any of which will do, and what to install.
QUANTISED: dict[str, tuple[tuple[str, ...], str]] = {
    "bitsandbytes": (("bitsandbytes",), "bitsandbytes"),
    "gptq": (("gptqmodel", "auto_gptq"), "gptqmodel"),
    "awq": (("gptqmodel", "awq"), "gptqmodel"),
    "compressed-tensors": (("compressed_tensors",), "compressed-tensors"),
    "hqq": (("hqq",), "hqq"),
    "quanto": (("optimum.quanto",), "optimum-quanto"),
    "torchao": (("torchao",), "torchao"),
    "aqlm": (("aqlm",), "aqlm"),
}

MOST_LAYERS = 10_000  # of a model, and modules that an adapter names
WIDEST = 2**22  # of a width, a vocabulary, a number of heads, a rank: several times what any model has


def check_machine(study: Study, executor: str) -> None:
    """Refuse a device or an executor that this machine does not have; of another executor the devices are elsewhere."""
    if executor != "local":
        if not executor.isidentifier() or find_spec(f"potentia.run.on_{executor}") is None:
            raise InputError(f"no executor {executor!r}", hint="use local or ray")
        if executor == "ray" and not _is_there("ray"):
            raise InputError("Ray is not installed", hint="pip install 'potentia[ray]', or drop --executor ray")
        return
    from potentia.engine import pick_device

    device = pick_device(study.device)
    if device.type == "cuda" and device.index is not None:
        import torch

        count = torch.cuda.device_count()
        if device.index >= count:
            raise InputError(f"there is no {study.device}: this machine has {count} CUDA devices",
                             hint=f"use {', '.join(f'cuda:{k}' for k in range(count))} or cuda")  # fmt: skip


def check_source(model: ModelSpec) -> None:
    """Refuse a model that is plainly a path but not there, lacks its tokenizer, or needs a package that is missing.

    A hub name is left to the hub, and a folder without a config to the loading, which says what it found.
    """
    source, name = model.source, f"model {model.name!r}"
    path = Path(source).expanduser()
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1 or source.endswith(".gguf")
    if looks_like_path and not path.exists():
        raise InputError(
            f"{name}: there is no {source}",
            hint="give a folder with config.json and weights, or a hub name such as org/model",
        )
    if model.quantise and not _is_there("bitsandbytes"):
        raise InputError(
            f"{name}: quantise: {model.quantise} needs bitsandbytes", hint="pip install 'potentia[quantise]'"
        )
    if source.endswith(".gguf") or model.gguf_file:
        if not _is_there("gguf"):
            raise InputError(f"{name}: reading a GGUF file needs gguf", hint="pip install 'potentia[gguf]'")
        return
    if not (path / "config.json").is_file():
        return
    _check_sizes(path / "config.json", name)
    _check_quantised(path / "config.json", name, model.quantise)
    for adapter in [model.adapter] if isinstance(model.adapter, str) else model.adapter or ():
        _check_adapter(Path(adapter).expanduser() / "adapter_config.json", name)
    if not model.trust_remote_code and not any(next(path.glob(kind), None) for kind in TOKENIZER_FILES):
        raise InputError(
            f"{name}: {source} has no tokenizer",
            hint="save it into the folder: AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)",
        )


def _check_sizes(config: Path, name: str) -> None:
    """Refuse a config that nothing could be built of: transformers would try for hours."""
    try:
        said = json.loads(plain_file(config, LARGEST).read_text(encoding="utf-8"))
    except RecursionError:
        raise InputError(f"{name}: its config.json is nested too deeply", where=str(config)) from None
    except (OSError, ValueError):
        return  # the loading says so
    for key, value in said.items() if isinstance(said, dict) else ():
        wide = key.endswith(("_size", "heads")) or key in ("n_embd", "d_model", "n_inner")
        most = MOST_LAYERS if "layers" in key else WIDEST if wide else None
        if most is not None and isinstance(value, int) and value > most:
            raise InputError(f"{name}: {key} is {value:,}, more than {most:,}", where=str(config))


def _check_adapter(config: Path, name: str) -> None:
    """Refuse an adapter whose lists have no end, or whose patterns take for ever on the name of a module."""
    try:
        said = json.loads(plain_file(config, LARGEST).read_text(encoding="utf-8"))
        patterns = [p for key in ("target_modules", "exclude_modules") if isinstance(p := said.get(key), str)]
        patterns += [p for key in ("rank_pattern", "alpha_pattern") for p in said.get(key) or ()]
        lists = [said.get(key) or () for key in ("target_modules", "layers_to_transform", "rank_pattern")]
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return  # the loading says so
    if any(isinstance(some, (list, dict)) and len(some) > MOST_LAYERS for some in lists):
        raise InputError(f"{name}: its adapter lists more than {MOST_LAYERS:,} modules", where=str(config))
    if isinstance(said.get("r"), int) and said["r"] > WIDEST:
        raise InputError(f"{name}: the rank of its adapter is {said['r']:,}, more than {WIDEST:,}", where=str(config))
    for pattern in patterns[:100]:
        try:
            limited.find_all(str(pattern), "base_model.model.model.layers.10.self_attn.q_proj.weight_0")
        except limited.LimitError as error:
            raise InputError(f"{name}: the pattern {str(pattern)[:80]!r} of its adapter: {error}") from None


def _check_quantised(config: Path, name: str, quantise: str | None) -> None:
    try:
        said = json.loads(config.read_text(encoding="utf-8")).get("quantization_config") or {}
        method = str(said.get("quant_method", ""))
    except (OSError, ValueError, AttributeError):
        return  # no config at all: the loading says so
    if said and quantise:
        raise InputError(
            f"{name}: its weights are quantised already ({method or 'as its config.json says'})",
            hint=f"drop `quantise: {quantise}`, or give the model unquantised",
        )
    packages, install = QUANTISED.get(method, ((), ""))
    if packages and not any(map(_is_there, packages)):
        raise InputError(f"{name}: its {method} weights need a package that is not installed",
                         hint=f"pip install {install}, or give the model unquantised")  # fmt: skip


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # its parent is not there
        return False
