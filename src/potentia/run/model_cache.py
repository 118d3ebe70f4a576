"""Models that stay loaded between the runs of one process: the waves of an adaptive run, the rounds of a selection.

So a row is loaded, and its passes proven, once. A model on a GPU waits in the memory of the machine: what is free on
the GPU decides how many lanes share a pass, and with that the last bits of a score, so a model that waits must not be
seen there. A model for which there is no room, that was tuned as a whole, or that lies over several devices is let go
and loaded again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from potentia.engine import LoadedModel

if TYPE_CHECKING:
    from potentia.run.plan import Row

MEMORY_SHARE = 0.5  # of the memory that is free now, over all processes that keep models


class ModelCache:
    """The models that one process keeps; ``processes`` share the machine's memory."""

    def __init__(self, *, processes: int = 1) -> None:
        self._processes = processes
        self._models: dict[tuple[str, ...], LoadedModel] = {}

    def __len__(self) -> int:
        return len(self._models)

    def take(self, row: Row, device: str) -> LoadedModel | None:
        """Return the row's model where it was kept, on its device again."""
        loaded = self._models.pop(_identify_model(row, device), None)
        if loaded is not None and loaded.device.type != "cpu":
            loaded.model.to(loaded.device)
        return loaded

    def put(self, row: Row, device: str, loaded: LoadedModel) -> None:
        """Keep a model for its next run, or let it go."""
        if not self._has_room(row, loaded):
            loaded.close()
            return
        if loaded.device.type != "cpu":
            import torch

            loaded.model.to("cpu")
            torch.cuda.empty_cache()
        self._models[_identify_model(row, device)] = loaded

    def clear(self) -> None:
        """Let all models go."""
        while self._models:
            _, loaded = self._models.popitem()
            loaded.close()

    def _has_room(self, row: Row, loaded: LoadedModel) -> bool:
        if row.model.quantise or _may_change_weights(row):
            return False
        tensors = [*loaded.model.parameters(), *loaded.model.buffers()]
        if {tensor.device for tensor in tensors} != {loaded.device}:
            return False
        # on a CPU it is there already: as much is to stay free for the next
        cache_bytes = read_free_bytes() * MEMORY_SHARE / self._processes
        return bool(cache_bytes > sum(tensor.nbytes for tensor in tensors))


def _may_change_weights(row: Row) -> bool:
    """Whether the study tunes all weights of a model, so that they may differ from its files."""
    adjust = row.study.adjust
    if adjust is not None and adjust.recipe is not None:
        return True
    tunings = [row.study.tuning]
    if adjust is not None and adjust.tuning is not None:
        tunings.append(adjust.tuning)
    return any(tuning.method == "full" for tuning in tunings)


def _identify_model(row: Row, device: str) -> tuple[str, ...]:
    return row.model.name, row.model_fingerprint, row.study.dtype, device


def read_free_bytes() -> float:
    """Return the bytes of memory that a program may still take; none where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
        return 1024 * float(line.split()[1])
    except (OSError, StopIteration, ValueError):
        return 0.0
