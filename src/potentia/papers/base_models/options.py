"""What the commands on base models can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potentia.analysis.registration import command_option

BASELINE_HELP = "Compare every method with this one, such as direct or instruct."


@dataclass(frozen=True)
class CheckpointOptions:
    """Which checkpoints, which pairs of base and instruct models, and which method to compare with."""

    steps: Path | None = command_option(
        "CSV with the columns model, series, step and/or tokens; models named run@step need none."
    )
    pairs: Path | None = command_option(
        "CSV with the columns base and instruct: do better base models become better instruct models?"
    )
    instruct_by: str | None = command_option(
        "Method that scores the instruct versions, or same; by default instruct, then direct."
    )
    baseline: str | None = command_option(BASELINE_HELP)
