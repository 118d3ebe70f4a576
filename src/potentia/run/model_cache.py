"""Models that stay loaded between the waves of an adaptive run, so that a row is loaded, and its passes proven, once.

A model on a GPU waits in the memory of the machine: what is free on the GPU decides how many lanes share a pass, and
with that the last bits of a score, so a model that waits must not be seen there. Whatever there is no room for, that
was tuned as a whole, or that lies over several devices is let go and loaded again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.run.plan import RowPlan

SHARE = 0.5  # of the memory that is free now, over all processes that keep models


class ModelCache:
    """The models that one process keeps; ``among`` processes share the machine's memory."""

    def __init__(self, *, among: int = 1) -> None:
        self._among = among
        self._kept: dict[tuple[str, ...], LoadedModel] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, row: RowPlan, device: str) -> LoadedModel | None:
        """Return the row's model where it was kept, on its device again."""
        loaded = self._kept.pop(_place(row, device), None)
        if loaded is not None and loaded.device.type != "cpu":
            loaded.model.to(loaded.device)
        return loaded

    def put(self, row: RowPlan, device: str, loaded: LoadedModel) -> None:
        """Keep a model for its next wave, or let it go."""
        if not self._may_stay(row, loaded):
            loaded.close()
            return
        if loaded.device.type != "cpu":
            import torch

            loaded.model.to("cpu")
            torch.cuda.empty_cache()
        self._kept[_place(row, device)] = loaded

    def clear(self) -> None:
        """Let all of them go."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _may_stay(self, row: RowPlan, loaded: LoadedModel) -> bool:
        study = row.study
        tunings = [study.tuning, *([study.adjust.tuning] if study.adjust else [])]
        whole = any(tuning is not None and tuning.method == "full" for tuning in tunings)
        if whole or (study.adjust is not None and study.adjust.recipe is not None) or row.model.quantise:
            return False
        weights = [*loaded.model.parameters(), *loaded.model.buffers()]
        if {weight.device for weight in weights} != {loaded.device}:
            return False
        # on a CPU it is there already: as much is to stay free for the next
        return bool(_free() * SHARE / self._among > sum(weight.nbytes for weight in weights))


def _place(row: RowPlan, device: str) -> tuple[str, ...]:
    return row.model.name, row.weights, row.study.dtype, device


def _free() -> float:
    """Bytes of memory that a program may still take; none where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return 1024 * float(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration, ValueError):
        return 0.0
