"""The name of a model's content: its weights, config and tokenizer files, hashed without loading them.

A Hub model is named by its repository and commit, which fix the content of every file. Digests of large files are
remembered by path, inode, size and time of change, so that a study of many models resumes at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from potentia.errors import ModelError

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf")
SETTING_FILES = (
    "config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "*.py",
)
REMEMBER_ABOVE = 8 * 2**20  # smaller files are hashed faster than they are looked up


def fingerprint(source: str, *, revision: str | None = None, gguf_file: str | None = None) -> str:
    """Name the content of the model at ``source``: a folder, a GGUF file, or a Hub repository."""
    path = Path(source).expanduser()
    if path.is_file():
        return _join([_digest(path)])
    if path.is_dir():
        return _join(_folder_parts(path, gguf_file))
    return _join(["hub", source, _commit(source, revision), gguf_file or ""])


def _folder_parts(folder: Path, gguf_file: str | None) -> list[str]:
    if gguf_file is not None:
        weights = [folder / gguf_file]
    else:
        groups = (sorted(folder.glob(pattern)) for pattern in WEIGHT_FILES)
        weights = next((group for group in groups if group), [])
    if not weights or not all(file.is_file() for file in weights):
        raise ModelError(
            f"no weights in {folder}", hint="a model folder holds config.json and *.safetensors (or one .gguf file)"
        )
    settings = sorted({file for pattern in SETTING_FILES for file in folder.glob(pattern)})
    with ThreadPoolExecutor(max_workers=8) as pool:
        digests = list(pool.map(_digest, [*weights, *settings]))
    # Names of weight files carry no content; names of settings say what they are.
    return digests[: len(weights)] + [
        f"{file.name}:{digest}" for file, digest in zip(settings, digests[len(weights) :], strict=True)
    ]


def _commit(repository: str, revision: str | None) -> str:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        file = Path(hf_hub_download(repository, "config.json", revision=revision))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"cannot find {repository} on the hub or in its cache: {first}",
            hint="check the name and the network, log in for gated models, or give a folder",
        ) from error
    return file.parent.name  # …/snapshots/<commit>/config.json


def _digest(file: Path) -> str:
    state = file.stat()
    if state.st_size < REMEMBER_ABOVE:
        return _hash_file(file)
    identity = _join([str(file.resolve()), str(state.st_ino), str(state.st_size), str(state.st_mtime_ns)])
    note = _cache_folder() / identity
    try:
        return str(json.loads(note.read_text())["digest"])
    except (OSError, ValueError, KeyError):
        digest = _hash_file(file)
        _remember(note, digest)
        return digest


def _remember(note: Path, digest: str) -> None:
    aside = note.with_name(f".{note.name}.{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps({"digest": digest}))
        aside.replace(note)
    except OSError:
        return  # a cache that cannot be written costs time, nothing else


def _cache_folder() -> Path:
    home = os.environ.get("POTENTIA_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "potentia"
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
