"""How a result was made: the versions, model, task, recipe and engine behind a cell's score.

A ``Provenance`` is written when a cell is committed and read back with it. What does not apply to a cell (the training
of a direct score, everything of an imported one) holds its default. Facts that only the engine knows about travel in
``details``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from potentia.values.plain import PlainRecord

Settings = Mapping[str, Any]  # a part of a study, as the study writes it
Details = Mapping[str, Any]  # facts that are kept, and that no decision looks at


@dataclass(frozen=True)
class ModelProvenance(PlainRecord):
    """The model as it was loaded: its files, its adapters, its precision, and whether it is a base model."""

    source: str | None = None
    revision: str | None = None
    gguf_file: str | None = None
    adapter: str | None = None
    quantise: str | None = None
    trust_remote_code: bool = False
    copy_of: str | None = None  # the original, of a copy that was exposed to tasks on purpose
    exposed_tasks: tuple[str, ...] = ()  # the tasks that the copy was exposed to
    fingerprint: str = ""
    dtype: str | None = None
    device: str | None = None
    kind: str | None = None  # base or instruct
    kind_by: str | None = None  # what says so
    details: Details = field(default_factory=dict)


@dataclass(frozen=True)
class SplitProvenance(PlainRecord):
    """One split: the public split it came from, and its size before and after the cap."""

    origin: str | None = None
    available: int | None = None
    used: int | None = None


@dataclass(frozen=True)
class SplitsProvenance(PlainRecord):
    """How a task's documents were divided."""

    train: SplitProvenance = SplitProvenance()
    validation: SplitProvenance = SplitProvenance()
    test: SplitProvenance = SplitProvenance()
    caps: Settings = field(default_factory=dict)
    seed: int | None = None
    carve: float | None = None
    dropped_overlap: int = 0

    def used_by_split(self) -> dict[str, int | None]:
        """Return the number of documents that were used of each split; None where nobody says it."""
        return {
            "train": self.train.used,
            "validation": self.validation.used,
            "test": self.test.used,
        }


@dataclass(frozen=True)
class TaskProvenance(PlainRecord):
    """The task as it was asked: its documents, their splits, and of a user's own task how to ask it again."""

    fingerprint: str = ""
    splits: SplitsProvenance = SplitsProvenance()
    metric: str | None = None
    chance: float | None = None  # the accuracy of a guess
    labels: Mapping[str, str] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    config: Settings = field(default_factory=dict)  # of a user's own task, as lm-eval reads it
    columns: Settings = field(default_factory=dict)  # of a user's own file
    unknown_tokens: float = 0.0  # the share of tokens that the tokenizer does not know
    details: Details = field(default_factory=dict)


@dataclass(frozen=True)
class ScorerProvenance(PlainRecord):
    """How the scorer computed: which rows took which path, and where it fell back to a slower one."""

    rows_by_path: Mapping[str, int] = field(default_factory=dict)
    layers: str | None = None
    fallbacks: tuple[str, ...] = ()
    prompt_samples: tuple[tuple[int, ...], ...] = ()  # token ids
    details: Details = field(default_factory=dict)


@dataclass(frozen=True)
class EngineProvenance(PlainRecord):
    """What the engine checked before it computed: the weights that it loaded, and its ways of scoring."""

    load: Details = field(default_factory=dict)
    scoring: Details = field(default_factory=dict)  # by way of scoring
    details: Details = field(default_factory=dict)

    @property
    def weights(self) -> str | None:
        """What is odd about the weights, or that all are in place; None where it was not looked at."""
        weights = self.load.get("weights")
        return str(weights) if weights else None

    @property
    def largest_scoring_error(self) -> float | None:
        """How far the checked ways of scoring are from the model's own; None where none was checked."""
        trials = [trial for trial in self.scoring.values() if isinstance(trial, Mapping)]
        errors = [float(trial.get("off_by") or 0.0) for trial in trials]
        return max(errors, default=None)


@dataclass(frozen=True)
class TrainingProvenance(PlainRecord):
    """How the engine trained: the form it used, those it refused, and how far the form is from the reference."""

    targets: tuple[str, ...] = ()
    form: str | None = None
    not_taken: Mapping[str, str] = field(default_factory=dict)  # forms, each with the reason
    distance: Mapping[str, float] = field(default_factory=dict)
    distance_in_few_bits: Mapping[str, float] = field(default_factory=dict)
    update: float | None = None
    details: Details = field(default_factory=dict)

    @property
    def gradient_error(self) -> float | None:
        """The largest distance of a lane's gradient from the reference, in the precision that was trained in."""
        distance = self.distance_in_few_bits or self.distance
        return distance.get("lane")


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
    scorer: ScorerProvenance = ScorerProvenance()
    gpu_sharing: str | None = None
    engine: EngineProvenance | None = None
    training: TrainingProvenance | None = None
    tuning: Settings | None = None
    selection: str | None = None  # the study's rule: validation, tuned or paper
    adjust: Settings | None = None
    adjusted_with: Settings | None = None
    imported_from: str | None = None
    details: Details = field(default_factory=dict)

    @property
    def was_measured(self) -> bool:
        """Whether Potentia computed the result, rather than read it from a file."""
        return bool(self.versions)

    @property
    def recipe(self) -> dict[str, Any]:
        """What decides how a model is tuned: results are compared only where it is the same."""
        return {"tuning": self.tuning, "selection": self.selection, "adjust": self.adjust}

    @property
    def tuning_settings(self) -> Settings:
        """The recipe of the fine-tuning, whichever protocol it belongs to; empty where there was none."""
        if self.tuning:
            return self.tuning
        adjustment = self.adjust or {}
        return adjustment.get("tuning") or {}


NO_PROVENANCE = Provenance()
