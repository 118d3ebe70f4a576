"""What the engine records of its work: how a model was loaded, and how far its fast paths are from the reference.

The engine fills these values in as it loads, checks, trains and scores; results carry them in their provenance. The
reference is the model's own code on one text at a time. Distances have two or three digits: they are read by people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from potentia.values.plain import PlainRecord
from potentia.values.scoring_route import ScoringLayers, ScoringRoute, WritingRoute
from potentia.values.training_form import TrainingForm


class LoadedWeights(StrEnum):
    """Whether a model's files had all its weights; the values are what results record."""

    IN_PLACE = "in_place"
    PARTLY_RANDOM = "partly_random"  # missing weights are random numbers, as the user allowed

    @property
    def label(self) -> str:
        """What was loaded, as people read it."""
        return _WEIGHTS_LABELS[self]


_WEIGHTS_LABELS = {
    LoadedWeights.IN_PLACE: "all in place",
    LoadedWeights.PARTLY_RANDOM: "partly random (--allow missing-weights)",
}


@dataclass(frozen=True)
class LoadRecord(PlainRecord):
    """How a model's files fitted the model."""

    weights: LoadedWeights | None = None  # None where nothing was read from files
    # of tensors that are missing, unexpected or mismatched: how many, and the first names
    misfits: Mapping[str, int] = field(default_factory=dict)
    misfit_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unchecked_adapters: tuple[str, ...] = ()  # that do not say which model they were made for


@dataclass(frozen=True)
class GradientDistance(PlainRecord):
    """How far losses and gradients are from the reference's, each as a share of the reference's size."""

    loss: float  # of the worst fine-tuning
    lane: float  # of the worst fine-tuning's gradient
    layer: float  # of the worst layer's gradient in any fine-tuning


@dataclass(frozen=True)
class FormRecord(PlainRecord):
    """What a training form was compared on with the reference, and how far it is from it."""

    few_rows: bool = False  # a few rows alone, as it was right for a model of the same structure
    rows: tuple[int, ...] = ()  # tokens of each trial row
    dtype: str | None = None  # of the first comparison: float32 for the copy of a model in 16 bits
    blocks: int | None = None  # of that copy, where it does not have all of the model's
    gradients: GradientDistance | None = None
    gradients_in_16_bits: GradientDistance | None = None
    reference_rounding: GradientDistance | None = None  # of the reference in 16 bits, from float32
    # how far the reference in float32 moves when its input moves by the last bit; where it was needed
    reference_noise: GradientDistance | None = None
    update: float | None = None  # of two updates, from AdamW's, as a share of their size
    kernels: Mapping[str, float] = field(default_factory=dict)  # of each, from the plain operation


@dataclass(frozen=True)
class RehearsalFacts(PlainRecord):
    """How far the first step of a run was from the reference, before it was made for good."""

    lanes: int | None = None
    passes: int | None = None
    slots: tuple[int, ...] = ()  # of the lanes that were compared
    gradients: GradientDistance | None = None
    update: float | None = None
    lacked_memory: bool = False  # memory did not hold a row of the reference: nothing was compared
    seconds: float | None = None


@dataclass(frozen=True)
class TrainingFacts(PlainRecord):
    """How the engine trained: the form it used, those it refused, and how far the form is from the reference."""

    form: TrainingForm | None = None
    not_taken: Mapping[TrainingForm, str] = field(default_factory=dict)  # with the reason for each
    distances: FormRecord = FormRecord()
    # where a few rows were enough: the record of the model that was checked in full
    full_check: FormRecord | None = None
    recomputation_refused: str | None = None  # why activations may not be recomputed
    check_seconds: float | None = None
    targets: tuple[str, ...] = ()  # the modules that have an adapter
    layers: Mapping[str, int] = field(default_factory=dict)  # how many of each name have one
    rehearsal: RehearsalFacts | None = None

    @property
    def gradient_error(self) -> float | None:
        """The largest distance of a fine-tuning's gradient from the reference, in the precision of the training."""
        distance = self.distances.gradients_in_16_bits or self.distances.gradients
        return None if distance is None else distance.lane

    @property
    def update_error(self) -> float | None:
        """How far updates were from AdamW's, in the check that compared them."""
        if self.distances.update is None and self.full_check is not None:
            return self.full_check.update
        return self.distances.update

    @property
    def reference_rounding(self) -> GradientDistance | None:
        """How far the reference in 16 bits is from float32, by the check in full; None where unknown."""
        full_check = self.full_check or self.distances
        return full_check.reference_rounding


@dataclass(frozen=True)
class RouteRecord(PlainRecord):
    """How far a route of scoring or writing is from the reference, in one case that was checked by itself.

    Distances are of log-probabilities, in nats.
    """

    route: str = ""  # a ScoringRoute or a WritingRoute
    beyond: int = 0  # the rows of the case are longer than so many tokens
    adapters: bool = False
    layers: ScoringLayers = ScoringLayers.OWN
    few_rows: bool = False  # a few rows alone, as it was right for a model of the same structure
    dtype: str | None = None  # of the first comparison: float32 for the copy of a model in 16 bits
    off_by: float | None = None  # the largest difference of a token in float32
    off_by_in_16_bits: float | None = None
    reference_off_by: float | None = None  # the reference in 16 bits, from float32

    def is_same_case(self, other: RouteRecord) -> bool:
        """Whether two records are of the same route in the same case, by whichever layers."""
        ours = (self.route, self.beyond, self.adapters)
        return ours == (other.route, other.beyond, other.adapters)


@dataclass(frozen=True)
class RequestRecord(PlainRecord):
    """How far requests that were computed again from their texts were off, in nats."""

    compared: int
    off_by: float


@dataclass(frozen=True)
class EngineRecord(PlainRecord):
    """What the engine checked of a model: its weights, its routes of scoring, some requests, and its training."""

    load: LoadRecord = LoadRecord()
    scoring: tuple[RouteRecord, ...] = ()
    requests: Mapping[str, RequestRecord] = field(
        default_factory=dict
    )  # by what they have in common
    training: TrainingFacts | None = None

    def with_route(self, route_record: RouteRecord) -> EngineRecord:
        """Return the record with one more route, in place of an earlier record of the same case."""
        others = [known for known in self.scoring if not known.is_same_case(route_record)]
        return replace(self, scoring=(*others, route_record))

    def with_requests(self, trait: str, request_record: RequestRecord) -> EngineRecord:
        """Return the record with requests that were compared for a trait."""
        return replace(self, requests={**self.requests, trait: request_record})

    @property
    def largest_scoring_error(self) -> float | None:
        """The largest deviation of a checked route from the reference; None if no route was checked."""
        errors = [known.off_by or 0.0 for known in self.scoring]
        return max(errors, default=None)


@dataclass(frozen=True)
class ScorerNotes(PlainRecord):
    """How a scorer computed: how many rows took which route, what it cut, and where it fell back to a slower route."""

    bos: Mapping[str, object] = field(default_factory=dict)  # how texts begin
    max_length: int | None = None
    truncated: int = 0  # contexts that were cut
    windowed: int = 0  # texts that were read in several windows
    token_budget: int | None = None  # tokens of a batch
    tokens_requested: int = 0
    tokens_processed: int = 0
    rows_by_route: Mapping[ScoringRoute, int] = field(default_factory=dict)
    layers: ScoringLayers | None = None
    writing: tuple[WritingRoute, ...] = ()
    fallbacks: tuple[str, ...] = ()
    prompt_samples: tuple[tuple[int, ...], ...] = ()  # token ids
