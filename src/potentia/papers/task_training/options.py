"""What ``potentia papers test-task`` and ``potentia analyze exposure`` can be asked."""

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

    before: str | None = None  # the protocol or stage before adjustment
    after: str | None = None  # and after it
    since: str | None = (
        None  # models of this month or later are the newer ones; else FIRST_NEW_MONTH
    )
    column: str | None = None  # divide by this column of the facts instead of by date
    value: str | None = None  # where it has this value
    exposed: bool = False  # divide each task by who saw its form: the facts' column exposure
    families: tuple[str, ...] | None = None  # else all with three models
    chance: Mapping[str, float] | float | None = None  # of guessing: by task, or of all others
    steps: str | None = (
        None  # the stage of intermediate steps; else those of ``after``: adjust@STEP
    )
    batch: int | None = None  # examples per step of the adjustment; the study's, else 64
    best: bool = False  # take the better of both scores after adjustment, as the paper does
    draws: int = 1999  # bootstrap resamples; 0 for none
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.column is None) != (self.value is None):
            raise InputError(
                "column and value go together", hint='such as column="language", value="en+cn"'
            )


@dataclass(frozen=True)
class TestTaskCommandOptions:
    """What the command can be asked; everything else is asked in Python."""

    __test__ = False  # no test of ours

    protocols: tuple[str, ...] = command_option(
        "Two protocols or stages: before and after the adjustment.", (), "--protocols", "--protocol"
    )
    group: str | None = command_option(
        f"What divides the models: a month (by default {FIRST_NEW_MONTH}), a fact as language=en+cn, or exposed."
    )
    chance: float | None = command_option("Score of a guess, for tasks where it is not known.")

    def analysis_options(self) -> TestTaskOptions:
        """Return the options of the analysis."""
        if self.protocols and len(self.protocols) != 2:
            raise InputError(
                f"--protocols takes two here, before and after, not {len(self.protocols)}",
                hint="such as --protocols direct adjust",
            )
        before, after = self.protocols or (None, None)
        column, separator, value = (self.group or "").partition("=")
        is_exposed = self.group == "exposed"
        is_month = not separator and not is_exposed
        return TestTaskOptions(
            before=before,
            after=after,
            since=self.group if is_month else None,
            column=column if separator else None,
            value=value if separator else None,
            exposed=is_exposed,
            chance=self.chance,
        )


@dataclass(frozen=True)
class ExposureOptions:
    """Which models are known not to have seen the tests."""

    clean: tuple[str, ...] = command_option(
        "Models that did not see these tests; of four other families or more.", ()
    )
