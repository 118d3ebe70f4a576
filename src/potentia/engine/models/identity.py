"""The name of a model's content: everything that can change one of its scores, hashed without loading it.

A folder is named by its weights, settings and tokenizer files, a Hub model by its repository and commit, which fix
the content of every file, and a model made in memory by its tensors, configs and tokenizer. Digests of large files
are remembered by path, inode, size and both times of change, so that a study of many models resumes at once: a file
put over another can keep the modification time, never the time of its status change. A file that changed a moment ago
is not remembered: another change within the clock's step would leave no trace.

And the name of its structure: whether a mask, a routing or a hand-written layer is right follows from config, modules,
sizes, dtype, device and versions. A copy treated on other data, a checkpoint of the same training or a fine-tune of the
same shape need not be checked in full again (:class:`Verdicts`); a few rows of its own are enough, for its weights may
round otherwise, and where these are off it is checked in full. The processes of a run share a folder of verdicts.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from potentia.engine.models.admission import read_json_object
from potentia.engine.models.foreign_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    check_base,
    read_adapter,
    refuse_pickles,
)
from potentia.errors import ModelError
from potentia.files import write_file

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


def quantised_fingerprint(whole: str, quantise: str | None) -> str:
    """Name a model whose weights are kept in few bits, by the name of the whole one."""
    return whole if quantise is None else _join([whole, "quantise", quantise])


def fingerprint(
    source: str,
    *,
    revision: str | None = None,
    gguf_file: str | None = None,
    adapters: Sequence[str] = (),
) -> str:
    """Name the content of the model at ``source``: a folder, a GGUF file, or a Hub repository; with its adapters."""
    if adapters:
        *before, last = adapters
        folder = Path(last).expanduser()
        base = fingerprint(source, revision=revision, gguf_file=gguf_file, adapters=before)
        check_base(read_adapter(folder), base, source)
        weights = [folder / name for name in ADAPTER_WEIGHTS if (folder / name).is_file()]
        return _join([base, *map(_digest, [folder / ADAPTER_CONFIG, *weights])])
    path = Path(source).expanduser()
    if path.is_file():
        path, gguf_file = path.parent, path.name
    if path.is_dir():
        return _join(_folder_parts(path, gguf_file))
    return _join(["hub", source, _commit(source, revision, gguf_file), gguf_file or ""])


Named = tuple[str, str | None, str | None, tuple[str, ...]]  # source, revision, GGUF file, adapters
AT_ONCE = 8  # models that are hashed


def fingerprints(models: Iterable[Named]) -> Mapping[Named, Future[str]]:
    """Name the content of models side by side, and wait for nothing: neither here nor where the program ends."""
    found: dict[Named, Future[str]] = {model: Future() for model in models}
    left = iter(list(found.items()))

    def work() -> None:
        for (source, revision, gguf_file, adapters), future in left:
            try:
                future.set_result(
                    fingerprint(source, revision=revision, gguf_file=gguf_file, adapters=adapters)
                )
            except BaseException as error:  # told to who asks, who would wait for ever otherwise
                future.set_exception(error)

    for _ in range(min(AT_ONCE, len(found))):
        threading.Thread(target=work, daemon=True).start()
    return found


def may_have_template(source: str) -> bool:
    """Tell whether the tokenizer at ``source`` may have a chat template; False for a folder without one."""
    folder = Path(source).expanduser()
    if not folder.is_dir() or any(folder.glob("*.gguf")):
        return True
    beside = any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json"))
    return beside or bool(
        read_json_object(folder / "tokenizer_config.json").get("chat_template", False)
    )


def memory_fingerprint(model: Any, tokenizer: Any) -> str:
    """Name the content of a model that lies in no file."""
    import torch

    content = hashlib.blake2b()
    for name, tensor in sorted(model.state_dict().items()):
        content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        content.update(
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        )
    generation = getattr(model, "generation_config", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return _join(
        [
            content.hexdigest(),
            model.config.to_json_string(use_diff=False),
            generation.to_json_string() if generation is not None else "",
            backend.to_str()
            if backend is not None
            else json.dumps(tokenizer.get_vocab(), sort_keys=True),
            json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str),
            json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True),
        ]
    )


def _folder_parts(folder: Path, gguf_file: str | None) -> list[str]:
    groups = (sorted(folder.glob(pattern)) for pattern in WEIGHT_FILES)
    weights = (
        [folder / gguf_file]
        if gguf_file is not None
        else next((group for group in groups if group), [])
    )
    if not weights or not all(file.is_file() for file in weights):
        raise ModelError(
            f"no weights in {folder}",
            hint="a model folder holds config.json and *.safetensors (or one .gguf file)",
        )
    refuse_pickles(weights)
    own_code = any(
        "auto_map" in read_json_object(folder / name)
        for name in ("config.json", "tokenizer_config.json")
    )
    patterns = (*SETTING_FILES, *(CODE_FILES if own_code else ()))
    settings = sorted(
        {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    )
    settings = [file for file in settings if file not in weights]
    with ThreadPoolExecutor(max_workers=8) as pool:
        digests = list(pool.map(_digest, [*weights, *settings]))
    # Names of weight files carry no content; names of settings say what they are.
    named = [
        f"{file.name}:{digest}"
        for file, digest in zip(settings, digests[len(weights) :], strict=True)
    ]
    return digests[: len(weights)] + named + _adapted_base(folder)


def _adapted_base(folder: Path) -> list[str]:
    """Name the model that an adapter in this folder is put on."""
    base = read_json_object(folder / "adapter_config.json").get("base_model_name_or_path")
    return (
        [fingerprint(str(base))] if base and Path(str(base)).resolve() != folder.resolve() else []
    )


def _commit(repository: str, revision: str | None, gguf_file: str | None) -> str:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    names = [gguf_file] if gguf_file is not None else ["config.json", "adapter_config.json"]
    while True:
        try:
            parts = Path(hf_hub_download(repository, names.pop(0), revision=revision)).parts
            return parts[parts.index("snapshots") + 1]  # …/snapshots/<commit>/config.json
        except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
            if isinstance(error, EntryNotFoundError) and names:
                continue
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ModelError(
                f"cannot find {repository} on the hub or in its cache: {first}",
                hint="check the name and the network, log in for gated models, or give a folder",
            ) from error


def _digest(file: Path) -> str:
    state = file.stat()
    if state.st_size < REMEMBER_ABOVE:
        return _hash_file(file)
    facts = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    note = _cache_folder() / _join([str(file.resolve()), *map(str, facts)])
    try:
        return str(json.loads(note.read_text())["digest"])
    except (OSError, ValueError, KeyError):
        digest = _hash_file(file)
        after = file.stat()
        same = facts == (after.st_ino, after.st_size, after.st_mtime_ns, after.st_ctime_ns)
        if same and time.time_ns() - after.st_ctime_ns > SETTLED:
            with suppress(OSError):  # a cache that cannot be written costs time, nothing else
                write_file(note, json.dumps({"digest": digest}))
        return digest


def _cache_folder() -> Path:
    home = (
        os.environ.get("POTENTIA_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "potentia"
    )
    return Path(home).expanduser() / "digests"


def _hash_file(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def _join(parts: Iterable[str]) -> str:
    content = hashlib.blake2b(digest_size=16)
    for part in parts:
        content.update(part.encode())
        content.update(b"\0")
    return content.hexdigest()


# ---- structure ----

VERDICTS = "POTENTIA_VERDICTS"  # where the processes of a run share them
NO_STRUCTURE = (
    "_name_or_path",
    "name_or_path",
    "transformers_version",
)  # what a config says of its origin


class Verdicts:
    """What checks found, by what they were asked of: in memory, and in a folder where there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def get(self, *asked: str) -> dict[str, Any] | None:
        """Return what was found, or None; another process may have found more since."""
        key = _join(asked)
        if self.folder is not None:
            with suppress(OSError, ValueError):
                self._known[key] = json.loads((self.folder / key).read_text("utf-8"))
        return self._known.get(key)

    def put(self, found: dict[str, Any], *asked: str) -> None:
        """Keep what was found."""
        key = _join(asked)
        self._known[key] = found
        if self.folder is not None and self.folder.is_dir():
            write_file(self.folder / key, json.dumps(found))


@lru_cache
def verdicts_of_run() -> Verdicts:
    """Return the verdicts that this process shares with the others of its run."""
    folder = os.environ.get(VERDICTS)
    return Verdicts(Path(folder) if folder else None)


def structure(model: Any) -> str:
    """Name all that decides whether code is right for a model, but for its weights' values.

    A model whose code came with it has a name of its own: the same class may be other code.
    """
    import torch
    import transformers

    from potentia.engine.models.float32_copy import kind

    if type(model).__module__.startswith("transformers_modules"):
        return uuid.uuid4().hex
    config = {
        name: value for name, value in model.config.to_dict().items() if name not in NO_STRUCTURE
    }
    first = next(p for p in model.parameters() if p.is_floating_point())
    device = (
        torch.cuda.get_device_name(first.device)
        if first.device.type == "cuda"
        else first.device.type
    )
    versions = (torch.__version__, transformers.__version__, _own_code())
    settings = json.dumps(config, sort_keys=True, default=str)
    ways = {  # of attention and experts, which a config does not write down
        f"{name} {value}"
        for part in model.modules()
        for name, value in getattr(getattr(part, "config", None), "__dict__", {}).items()
        if name.endswith("_implementation_internal")
    }
    dtypes = (str(p.dtype) for p in model.parameters())
    return _join(
        [str(type(model)), settings, repr(kind(model)), *sorted(ways), *dtypes, device, *versions]
    )


@lru_cache
def _own_code() -> str:
    return _join(path.read_text("utf-8") for path in sorted(Path(__file__).parent.rglob("*.py")))
