"""What ``potentia analyze test-task`` and ``potentia analyze exposure`` can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from potentia.analysis.registration import command_option
from potentia.errors import InputError

FIRST_NEW_MONTH = "2023-11"  # models trained in this month or later are the newer ones


@dataclass(frozen=True)
class TestTaskOptions:
    """What to compare: the two protocols, and what divides the models."""

    __test__ = False  # no test of ours

    before: str | None = command_option("Protocol or stage before adjustment.")
    after: str | None = command_option("Protocol or stage after adjustment.")
    since: str | None = command_option(
        f"Models trained in this month or later are the newer ones; else {FIRST_NEW_MONTH}."
    )
    column: str | None = command_option("Divide by this column of the facts instead of by date …")
    value: str | None = command_option("… where it has this value.")
    exposed: bool = command_option(
        "Divide each task by who saw its form: the facts' column exposure.",
        False,
        "--exposed",
        shows_default=False,
    )
    families: tuple[str, ...] | None = command_option(
        "Families to compare; else all with three models."
    )
    chance: Mapping[str, float] | float | None = command_option(  # by task, or of all others
        "Score of guessing on the tasks for which nothing else tells it."
    )
    steps: str | None = command_option(
        "Stage of intermediate steps; else those of --after (adjust@STEP)."
    )
    batch: int | None = command_option(
        "Examples per step of the adjustment; the study's own, else 64.", minimum=1
    )
    best: bool = command_option(
        "Take the better of both scores after adjustment, as the paper does.", False, "--best"
    )
    draws: int = command_option(
        "Bootstrap resamples, 0 for none; else 1,999.",
        1999,
        "--resamples",
        minimum=0,
        shows_default=False,
    )
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.column is None) != (self.value is None):
            raise InputError(
                "--column and --value go together", hint="such as --column language --value en+cn"
            )


@dataclass(frozen=True)
class ExposureOptions:
    """Which models are known not to have seen the tests."""

    clean: tuple[str, ...] = command_option(
        "Models that did not see these tests; of four other families or more.", ()
    )
