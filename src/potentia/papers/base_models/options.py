"""What the commands on base models can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potentia.analysis.registration import command_option
from potentia.errors import InputError

BASELINE_HELP = "Compare every method with this one, such as direct or instruct."
UNITS = ("steps", "tokens")


@dataclass(frozen=True)
class StabilityOptions:
    """Which checkpoints, and which method to compare with."""

    steps: Path | None = command_option(
        "CSV with the columns model, series, step and/or tokens; models named run@step need none."
    )
    unit: str | None = command_option("steps or tokens, where both are known.")
    baseline: str | None = command_option(BASELINE_HELP)
    power: float = command_option(
        "Share of pairs that a resolved gap tells apart.", 0.8, minimum=0.5, maximum=1.0
    )

    def __post_init__(self) -> None:
        if self.unit is not None and self.unit not in UNITS:
            raise InputError(f"no unit {self.unit!r}", hint="--unit steps or --unit tokens")


@dataclass(frozen=True)
class ConsistencyOptions:
    """Which pairs of models, and which methods score them."""

    pairs: Path | None = command_option("CSV with the columns base and instruct; else known facts.")
    instruct_by: str | None = command_option(
        "Method that scores the instruct versions, or 'same'; else instruct, else direct."
    )
    baseline: str | None = command_option(BASELINE_HELP)


@dataclass(frozen=True)
class AblationOptions:
    """Which models the methods are compared on."""

    models: tuple[str, ...] | None = command_option(
        "The models to compare on; else all but instruct ones."
    )
