"""What checks found of models of one structure: whether code is right follows from structure, not from weights.

A mask, a routing or a fused layer is right for a config, modules, sizes, dtype, device and versions. A copy exposed to
other data, a checkpoint of the same training or a fine-tune of the same shape need not be checked in full again; a few
rows of its own are enough, for its weights may round otherwise, and where these are off it is checked in full. The
processes of a run share a folder of proofs.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.engine.models.identity import hash_parts
from potentia.files import write_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROOF_FOLDER_VARIABLE = "POTENTIA_PROOFS"  # the variable that names the folder of a run's proofs
# what a config says of its origin
NO_STRUCTURE = ("_name_or_path", "name_or_path", "transformers_version")


class ProofCache:
    """What checks found, by what they were asked of: in memory, and in a folder where there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._proofs: dict[str, dict[str, object]] = {}

    def get(self, *key_parts: str) -> dict[str, Any] | None:
        """Return what was found, or None; another process may have found more since."""
        key = hash_parts(key_parts)
        if self.folder is not None:
            with suppress(OSError, ValueError):
                self._proofs[key] = json.loads((self.folder / key).read_text("utf-8"))
        return self._proofs.get(key)

    def put(self, proof: Mapping[str, object], *key_parts: str) -> None:
        """Keep what was found."""
        key = hash_parts(key_parts)
        self._proofs[key] = dict(proof)
        if self.folder is not None and self.folder.is_dir():
            write_file(self.folder / key, json.dumps(proof))


@lru_cache
def open_run_proof_cache() -> ProofCache:
    """Return the proofs that this process shares with the others of its run."""
    folder = os.environ.get(PROOF_FOLDER_VARIABLE)
    return ProofCache(Path(folder) if folder else None)


def structure_fingerprint(model: PreTrainedModel) -> str:
    """Name all that decides whether code is right for a model, but for its weights' values.

    A model of remote code (``trust_remote_code``) gets a random name, so its proofs are shared with no other load: the
    same class may be other code.
    """
    import torch
    import transformers

    from potentia.engine.models.float32_copy import block_kind

    if type(model).__module__.startswith("transformers_modules"):
        return uuid.uuid4().hex
    settings: dict[str, object] = {}
    for setting_name, value in model.config.to_dict().items():
        if setting_name not in NO_STRUCTURE:
            settings[setting_name] = value
    weight = next(weight for weight in model.parameters() if weight.is_floating_point())
    device_name = weight.device.type
    if weight.device.type == "cuda":
        device_name = torch.cuda.get_device_name(weight.device)
    # of attention and experts, which a config does not write down
    implementations: set[str] = set()
    for module in model.modules():
        for setting_name, value in _config_values(module).items():
            if setting_name.endswith("_implementation_internal"):
                implementations.add(f"{setting_name} {value}")
    return hash_parts(
        [
            str(type(model)),
            json.dumps(settings, sort_keys=True, default=str),
            repr(block_kind(model)),
            *sorted(implementations),
            *(str(weight.dtype) for weight in model.parameters()),
            device_name,
            torch.__version__,
            transformers.__version__,
            _engine_code_fingerprint(),
        ]
    )


def _config_values(module: object) -> Mapping[str, object]:
    config = getattr(module, "config", None)
    values: Mapping[str, object] = getattr(config, "__dict__", {})
    return values


@lru_cache
def _engine_code_fingerprint() -> str:
    """Name the engine's own code: what another version proved holds for that version."""
    engine_folder = Path(__file__).parents[1]
    files = sorted(engine_folder.rglob("*.py"))
    return hash_parts(file.read_text("utf-8") for file in files)
