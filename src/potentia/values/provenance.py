"""How a result was made: the versions, model, task, recipe and engine behind a cell's score.

A ``Provenance`` is stored with its cell (model × task × protocol) and read back with it. What does not apply to a cell
(the training of a direct score, everything of an imported one) holds its default. Facts that no decision looks at are
kept in ``details``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from potentia.values.baselines import Baseline
from potentia.values.engine_records import EngineRecord, ScorerNotes, TrainingFacts
from potentia.values.plain import PlainRecord
from potentia.values.splits import SplitPlan

Settings = Mapping[str, Any]
"""A part of a study, as the study file has it."""

Details = Mapping[str, Any]
"""Facts that are stored and shown; no decision looks at them."""


@dataclass(frozen=True)
class ModelProvenance(PlainRecord):
    """The model as it was loaded: its files, its adapters, its precision, and whether it is a base model."""

    source: str | None = None
    revision: str | None = None
    gguf_file: str | None = None
    adapter: str | None = None
    quantise: str | None = None
    trust_remote_code: bool = False
    copy_of: str | None = None  # of a copy that was trained on test tasks on purpose: its original
    exposed_tasks: tuple[str, ...] = ()  # of such a copy: the tasks that it was trained on
    fingerprint: str = ""  # of weights and tokenizer
    dtype: str | None = None
    device: str | None = None
    kind: str | None = None  # base or instruct
    kind_by: str | None = None  # by what that is known
    details: Details = field(default_factory=dict)


@dataclass(frozen=True)
class TaskProvenance(PlainRecord):
    """The task as it was asked: its examples and their splits, and for a user's own task how to ask it again."""

    fingerprint: str = ""
    splits: SplitPlan | None = None  # None for an imported result
    metric: str | None = None
    chance: float | None = None  # the accuracy of a uniform guess
    labels: Mapping[str, str] = field(default_factory=dict)
    baselines: Mapping[Baseline, Mapping[str, float]] = field(default_factory=dict)
    config: Settings = field(default_factory=dict)  # the definition of a user's own task
    columns: Settings = field(default_factory=dict)  # the columns of a user's own file, by field
    unknown_tokens: float = 0.0  # the share of tokens that the tokenizer does not know
    details: Details = field(default_factory=dict)

    @property
    def training_examples(self) -> int | None:
        """The number of examples that a fine-tuning learns from; None if it is not recorded."""
        return None if self.splits is None else self.splits.train.used

    def used_by_split(self) -> Mapping[str, int | None]:
        """Return the number of examples that were used of each split; None if it is not recorded."""
        if self.splits is None:
            return {"train": None, "validation": None, "test": None}
        return self.splits.used_by_split()


@dataclass(frozen=True)
class Provenance(PlainRecord):
    """Everything that produced a result, in enough detail to explain or repeat it."""

    scoring_version: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)  # of the packages that took part
    model: ModelProvenance = ModelProvenance()
    task: TaskProvenance = TaskProvenance()
    shots: int | None = None
    seed: int | None = None
    styles: tuple[str, ...] = ()
    scorer: ScorerNotes = field(default_factory=ScorerNotes)
    gpu_sharing: str | None = None
    engine: EngineRecord | None = None
    training: TrainingFacts | None = None
    tuning: Settings | None = None  # under train_before_test: the study's `tuning`
    selection: str | None = None  # the study's rule: validation, tuned, paper or last
    # under adjust: the study's section, with the tuning that it inherits, the same for all models of the study
    adjust: Settings | None = None
    # under adjust: the tuning of this model; its size or its entry may decide the learning rates
    adjusted_with: Settings | None = None
    imported_from: str | None = None
    details: Details = field(default_factory=dict)

    @property
    def was_measured(self) -> bool:
        """Whether Potentia computed the result, rather than read it from a file."""
        return bool(self.versions)

    @property
    def recipe(self) -> dict[str, Any]:
        """The study's rules for fine-tuning a model: results are compared only if they are the same.

        What the rules of ``adjust`` come to for one model, as by its size, is in ``adjusted_with``.
        """
        return {"tuning": self.tuning, "selection": self.selection, "adjust": self.adjust}

    @property
    def tuning_settings(self) -> Settings:
        """The settings of the fine-tuning, of whichever protocol; empty if there was none."""
        return self.tuning or self.adjusted_with or {}


NO_PROVENANCE = Provenance()
