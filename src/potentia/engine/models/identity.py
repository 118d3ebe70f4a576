"""The name of a model's content: everything that can change one of its scores, hashed without loading it.

A folder is named by its weights, settings and tokenizer files, a Hub model by its repository and commit, which fix
the content of every file, and a model made in memory by its tensors, configs and tokenizer. Digests of large files
are remembered by path, inode, size and both times of change, so that a study of many models resumes at once: a file
put over another can keep the modification time, never the time of its status change. A file that changed a moment ago
is not remembered: another change within the clock's step would leave no trace.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.engine.models.admission import read_json_object
from potentia.engine.models.foreign_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    check_base,
    read_adapter,
    refuse_pickles,
)
from potentia.errors import ModelError, first_line
from potentia.files import write_file
from potentia.hub import hub_answers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf")
SETTING_FILES = (  # generation_config names the tokens that end a text, and penalties
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "*.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "*vocab.json",
    "merges.txt",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "*.codes",
    "*.tokenizer",
    "dict.txt",
    "emoji.json",
    "normalizer.json",
    "word_*.json",
    "tekken.json",
    "chat_template*",
    "additional_chat_templates/*",
)
CODE_FILES = ("*.py",)  # where the config says that the model brings its own
REMEMBER_ABOVE = 8 * 2**20  # smaller files are hashed faster than they are looked up
SETTLED = 2 * 10**9  # nanoseconds since the last change, beyond the step of any file system's clock


def quantised_fingerprint(fingerprint: str, quantise: str | None) -> str:
    """Name a model whose weights are kept in few bits, by the name of the whole one."""
    if quantise is None:
        return fingerprint
    return hash_parts([fingerprint, "quantise", quantise])


def fingerprint(
    source: str,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    adapters: Sequence[str] = (),
) -> str:
    """Name the content of the model at ``source``: a folder, a GGUF file, or a Hub repository; with its adapters."""
    if adapters:
        *other_adapters, last_adapter = adapters
        folder = Path(last_adapter).expanduser()
        base_fingerprint = fingerprint(
            source, revision=revision, gguf_file=gguf_file, adapters=other_adapters
        )
        check_base(read_adapter(folder), base_fingerprint, source)
        weights = [
            folder / file_name for file_name in ADAPTER_WEIGHTS if (folder / file_name).is_file()
        ]
        files = [folder / ADAPTER_CONFIG, *weights]
        return hash_parts([base_fingerprint, *map(_digest, files)])
    source_folder = Path(source).expanduser()
    if source_folder.is_file():
        gguf_file = source_folder.name
        source_folder = source_folder.parent
    if source_folder.is_dir():
        return hash_parts(_folder_parts(source_folder, gguf_file))
    commit = _find_commit(source, revision, gguf_file)
    return hash_parts(["hub", source, commit, gguf_file or ""])


ModelFiles = tuple[str, str | None, str | None, tuple[str, ...]]
"""The source of a model, its revision, its GGUF file, and its adapters."""
AT_ONCE = 8  # models that are hashed


def fingerprints(models: Iterable[ModelFiles]) -> Mapping[ModelFiles, Future[str]]:
    """Name the content of models side by side, and wait for nothing: neither here nor where the program ends."""
    futures: dict[ModelFiles, Future[str]] = {model: Future() for model in models}
    queue = iter(list(futures.items()))

    def hash_queue() -> None:
        for (source, revision, gguf_file, adapters), future in queue:
            try:
                content = fingerprint(
                    source, revision=revision, gguf_file=gguf_file, adapters=adapters
                )
            except BaseException as error:  # told to who asks, who would wait for ever otherwise
                future.set_exception(error)
            else:
                future.set_result(content)

    for _ in range(min(AT_ONCE, len(futures))):
        threading.Thread(target=hash_queue, daemon=True).start()
    return futures


def may_have_template(source: str) -> bool:
    """Tell whether the tokenizer at ``source`` may have a chat template; False for a folder without one."""
    folder = Path(source).expanduser()
    if not folder.is_dir() or any(folder.glob("*.gguf")):
        return True
    template_files = ("chat_template.jinja", "chat_template.json")
    if any((folder / file_name).exists() for file_name in template_files):
        return True
    settings = read_json_object(folder / "tokenizer_config.json")
    return bool(settings.get("chat_template", False))


def memory_fingerprint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Name the content of a model that lies in no file."""
    import torch

    weights = hashlib.blake2b()
    for tensor_name, tensor in sorted(model.state_dict().items()):
        weights.update(f"{tensor_name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat_tensor = tensor.detach().cpu().contiguous().reshape(-1)
        weights.update(flat_tensor.view(torch.uint8).numpy().data)
    generation_settings = ""
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation_settings = generation.to_json_string()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        vocabulary = json.dumps(tokenizer.get_vocab(), sort_keys=True)
    else:
        vocabulary = backend.to_str()
    return hash_parts(
        [
            weights.hexdigest(),
            model.config.to_json_string(use_diff=False),
            generation_settings,
            vocabulary,
            json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str),
            json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True),
        ]
    )


def _folder_parts(folder: Path, gguf_file: str | None) -> list[str]:
    """Return the digests of all files of a folder that can change a score."""
    weights = find_weights(folder, gguf_file)
    refuse_pickles(weights)
    settings = [file for file in _find_settings(folder) if file not in weights]
    with ThreadPoolExecutor(max_workers=8) as pool:
        weight_digests = list(pool.map(_digest, weights))
        setting_digests = list(pool.map(_digest, settings))
    # Names of weight files carry no content; names of settings say what they are.
    named_digests = [
        f"{file.name}:{digest}" for file, digest in zip(settings, setting_digests, strict=True)
    ]
    return weight_digests + named_digests + _adapted_base(folder)


def find_weights(folder: Path, gguf_file: str | None) -> list[Path]:
    """Return the weight files of a folder, of the first kind that it has."""
    weights: list[Path] = []
    if gguf_file is not None:
        weights = [folder / gguf_file]
    else:
        for pattern in WEIGHT_FILES:
            weights = weights or sorted(folder.glob(pattern))
    if not weights or not all(file.is_file() for file in weights):
        raise ModelError(
            f"no weights in {folder}",
            hint="a model folder holds config.json and *.safetensors (or one .gguf file)",
        )
    return weights


def _find_settings(folder: Path) -> list[Path]:
    """Return the files of a folder, beside weights, that can change a score."""
    configs = [
        read_json_object(folder / file_name)
        for file_name in ("config.json", "tokenizer_config.json")
    ]
    patterns = list(SETTING_FILES)
    if any("auto_map" in config for config in configs):
        patterns += CODE_FILES
    files: set[Path] = set()
    for pattern in patterns:
        files.update(file for file in folder.glob(pattern) if file.is_file())
    return sorted(files)


def _adapted_base(folder: Path) -> list[str]:
    """Name the model that an adapter in this folder is put on."""
    base_name = read_json_object(folder / "adapter_config.json").get("base_model_name_or_path")
    if not base_name or Path(str(base_name)).resolve() == folder.resolve():
        return []
    return [fingerprint(str(base_name))]


def _find_commit(repository: str, revision: str | None, gguf_file: str | None) -> str:
    """Return the commit of a repository on the Hub, or in its cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    names = ["config.json", "adapter_config.json"]
    if gguf_file is not None:
        names = [gguf_file]
    answers = hub_answers()
    while True:
        try:
            downloaded_file = hf_hub_download(
                repository, names.pop(0), revision=revision, local_files_only=not answers
            )
            parts = Path(downloaded_file).parts
            return parts[parts.index("snapshots") + 1]  # …/snapshots/<commit>/config.json
        except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
            if isinstance(error, EntryNotFoundError) and names:
                continue
            problem = f"cannot find {repository} on the hub or in its cache: {first_line(error)}"
            if not answers:
                problem = (
                    f"{repository} is no folder and not in the hub's cache, "
                    "and the hub does not answer"
                )
            raise ModelError(
                problem,
                hint="check the name and the network, log in for gated models, or give a folder",
            ) from error


FileState = tuple[int, int, int, int]


def _file_state(hashed_file: Path) -> FileState:
    """Return what changes whenever a file changes: inode, size and both times of change."""
    status = hashed_file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _digest(hashed_file: Path) -> str:
    """Return the hash of a file; that of a large one is remembered."""
    state = _file_state(hashed_file)
    _, file_size, _, _ = state
    if file_size < REMEMBER_ABOVE:
        return _hash_file(hashed_file)
    cached_digest = _cache_folder() / hash_parts([str(hashed_file.resolve()), *map(str, state)])
    try:
        return str(json.loads(cached_digest.read_text())["digest"])
    except (OSError, ValueError, KeyError):
        digest = _hash_file(hashed_file)
    state_after = _file_state(hashed_file)
    _, _, _, changed = state_after
    if state == state_after and time.time_ns() - changed > SETTLED:
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            write_file(cached_digest, json.dumps({"digest": digest}))
    return digest


def _cache_folder() -> Path:
    cache = os.environ.get("POTENTIA_CACHE")
    if not cache:
        cache = str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "potentia")
    return Path(cache).expanduser() / "digests"


def _hash_file(hashed_file: Path) -> str:
    with hashed_file.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def hash_parts(parts: Iterable[str]) -> str:
    """Return one short hash of several texts."""
    content = hashlib.blake2b(digest_size=16)
    for part in parts:
        content.update(part.encode())
        content.update(b"\0")
    return content.hexdigest()
