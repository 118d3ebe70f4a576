"""What validation chose for a cell, how the search for it ended, and what a probe found left to learn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from potentia.values.plain import PlainRecord


class SearchEnd(StrEnum):
    """Where the chosen state lies in what was searched, the most doubtful first."""

    UNTUNED = "untuned"  # validation prefers the model without fine-tuning
    AT_BOUND = "at_bound"  # at an end of the learning rates that leads its neighbour
    STILL_RISING = "still_rising"  # at the last epoch, better than the one before
    ONE_RATE = "one_rate"
    FLAT = "flat"  # at an end of the learning rates that ties with its neighbour
    INSIDE = "inside"
    PERFECT = "perfect"  # validation cannot be better

    @property
    def may_have_more(self) -> bool:
        """Whether a wider search might raise the score."""
        return self in DOUBTFUL_ENDS

    @property
    def label(self) -> str:
        """The end of a search as people read it."""
        return _LABELS.get(self) or self.value.replace("_", " ")


DOUBTFUL_ENDS = (SearchEnd.UNTUNED, SearchEnd.AT_BOUND, SearchEnd.STILL_RISING)
_LABELS = {SearchEnd.UNTUNED: "untuned model used", SearchEnd.AT_BOUND: "at the bound"}


@dataclass(frozen=True)
class SeedChoice(PlainRecord):
    """The state that was chosen for one seed, and its score on the test split."""

    value: float
    learning_rate: float | None = None
    epoch: int | None = None
    style: str | None = None
    validation: float | None = None


@dataclass(frozen=True)
class TestedState(PlainRecord):
    """A tuned state that was tested beside the chosen one: what a larger search would give."""

    __test__ = False  # no class of tests

    learning_rate: float
    style: str
    seed: int
    validation: float
    value: float
    stderr: float
    chosen: bool = False


@dataclass(frozen=True)
class CutPrompts(PlainRecord):
    """How many prompts were cut to fit the model, of how many requests."""

    cut: int
    requests: int


@dataclass(frozen=True)
class CutExamples(PlainRecord):
    """How many training examples were longer than a fine-tuning reads, of how many, and how many tokens it reads."""

    cut: int
    examples: int
    tokens: int


@dataclass(frozen=True)
class Selection(PlainRecord):
    """What validation chose for a cell, for each seed, and how the search ended; the scores are the first seed's."""

    style: str | None = None
    learning_rate: float | None = None
    epoch: int | None = None
    step: int | None = None  # of a score on the way
    validation: float | None = None
    validation_by_style: Mapping[str, float] = field(default_factory=dict)  # of an untuned model
    validation_stderr: float | None = None
    validation_right: str = ""  # which validation documents were answered rightly, packed
    seeds: tuple[SeedChoice, ...] = ()
    tuned: bool | None = None  # None where nothing was to be tuned
    kept_direct: bool = False
    epochs_saved_by_race: int = 0
    target_modules: tuple[str, ...] = ()
    failed_lanes: tuple[str, ...] = ()
    search: SearchEnd | None = None
    rates_tried: tuple[float, ...] = ()
    updates: int = 0
    tokens: int = 0
    trainable: int = 0
    best_tuned: TestedState | None = None  # where the untuned model was kept
    rates: tuple[TestedState, ...] = ()  # of every learning rate, where the study asks for it
    cut_prompts: CutPrompts | None = None
    cut_examples: CutExamples | None = None  # of the data it was tuned on
    unknown_tokens: float = 0.0  # the share that the tokenizer does not know, where it is large

    @property
    def is_untuned(self) -> bool:
        """Whether the untuned model was kept where a fine-tuning was made."""
        return self.tuned is False

    @property
    def may_have_more(self) -> bool:
        """Whether a wider search might raise the score."""
        return self.search is not None and self.search.may_have_more

    @property
    def seed_spread(self) -> float | None:
        """The standard deviation of the test scores between seeds; None where there is one seed."""
        if len(self.seeds) < 2:
            return None
        return statistics.stdev(choice.value for choice in self.seeds)


NO_SELECTION = Selection()


@dataclass(frozen=True)
class SplitLosses(PlainRecord):
    """The documents of one split before any update: by kind of loss the nats and the bytes of each."""

    nats: Mapping[str, tuple[float, ...]]
    bytes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ProbeResult(PlainRecord):
    """What a short fine-tuning of fixed settings found left to learn of a task.

    Losses are of the whole text (``text``) and of its answer alone (``answer``). ``before`` has those of every document
    by split; ``after_epochs`` their sums over the documents that were learned from, and over as many of validation.
    """

    version: int
    learning_rate: float
    learned: int  # documents of a split that are learned from
    data: str  # names the documents
    before: Mapping[str, SplitLosses] = field(default_factory=dict)
    after_epochs: tuple[Mapping[str, Mapping[str, float]], ...] = ()
    target_modules: tuple[str, ...] = ()
