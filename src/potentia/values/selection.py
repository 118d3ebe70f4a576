"""What validation chose for a cell (model × task × protocol), how the search ended, and what a probe found.

A fine-tuning is searched over learning rates, epochs and prompt styles. The *state* that is best on validation is
chosen, which may be the untuned model, and tested once. A *probe* is a short fine-tuning, the same in every study: it
measures how much of a task is left to learn.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from potentia.values.plain import PlainRecord


class SearchEnd(StrEnum):
    """Where the chosen state lies in what was searched; the most doubtful first."""

    UNTUNED = "untuned"  # the model without fine-tuning is best
    AT_BOUND = "at_bound"  # the smallest or largest learning rate, and better than the next one
    STILL_RISING = "still_rising"  # the last epoch, and better than the one before
    ONE_RATE = "one_rate"  # only one learning rate was tried
    FLAT = "flat"  # the smallest or largest learning rate, and no better than the next one
    INSIDE = "inside"  # neither at an end of the learning rates nor at the last epoch
    PERFECT = "perfect"  # the validation score cannot be better

    @property
    def may_have_more(self) -> bool:
        """Whether a wider search might raise the score."""
        return self in DOUBTFUL_ENDS

    @property
    def label(self) -> str:
        """The end of a search as people read it."""
        return _LABELS.get(self) or self.value.replace("_", " ")


DOUBTFUL_ENDS = (SearchEnd.UNTUNED, SearchEnd.AT_BOUND, SearchEnd.STILL_RISING)
_LABELS = {
    SearchEnd.UNTUNED: "untuned model used",
    SearchEnd.AT_BOUND: "rate at the edge of the grid",
}


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
    """A tuned state that was tested beside the chosen one, to see what another choice would have given."""

    __test__ = False  # pytest is not to collect it as a test

    learning_rate: float
    style: str
    seed: int
    validation: float
    value: float
    stderr: float
    chosen: bool = False


@dataclass(frozen=True)
class CutPrompts(PlainRecord):
    """How many requests had their prompt cut to fit the model's context, of how many."""

    cut: int
    requests: int


@dataclass(frozen=True)
class CutExamples(PlainRecord):
    """How many training examples were cut because they are longer than a fine-tuning reads."""

    cut: int
    examples: int  # all training examples
    tokens: int  # so many of an example are read


@dataclass(frozen=True)
class Selection(PlainRecord):
    """The state that validation chose for a cell, and how the search for it ended.

    With several seeds a state is chosen for each; the fields of one state are those of the first seed. By which rule it
    was chosen is said by ``Study.selection``.
    """

    style: str | None = None
    learning_rate: float | None = None
    epoch: int | None = None
    step: int | None = None  # of a score that was taken during the fine-tuning
    validation: float | None = None  # its score on validation
    validation_by_style: Mapping[str, float] = field(default_factory=dict)  # of an untuned model
    validation_stderr: float | None = None
    validation_right: str = ""  # which validation documents were answered rightly, as packed bits
    seeds: tuple[SeedChoice, ...] = ()
    tuned: bool | None = None  # False for the untuned model; None if nothing was to be tuned
    kept_direct: bool = False  # by the paper's rule: the direct score was better, and is the result
    epochs_saved_by_race: int = 0  # that dropped fine-tunings did not train
    target_modules: tuple[str, ...] = ()
    failed_lanes: tuple[str, ...] = ()
    search: SearchEnd | None = None
    rates_tried: tuple[float, ...] = ()
    updates: int = 0
    tokens: int = 0
    trainable: int = 0  # parameters
    best_tuned: TestedState | None = None  # the best tuned state, if the untuned model was chosen
    rates: tuple[TestedState, ...] = ()  # one of every learning rate, if the study asks for it
    cut_prompts: CutPrompts | None = None
    cut_examples: CutExamples | None = None  # of the training data
    unknown_tokens: float = 0.0  # the share that the tokenizer does not know, where it is large

    @property
    def is_untuned(self) -> bool:
        """Whether the untuned model was chosen although there was a fine-tuning."""
        return self.tuned is False

    @property
    def may_have_more(self) -> bool:
        """Whether a wider search might raise the score."""
        return self.search is not None and self.search.may_have_more

    @property
    def seed_spread(self) -> float | None:
        """The standard deviation of the test scores over seeds; None with a single seed."""
        if len(self.seeds) < 2:
            return None
        return statistics.stdev(choice.value for choice in self.seeds)


NO_SELECTION = Selection()


@dataclass(frozen=True)
class SplitLosses(PlainRecord):
    """The losses of the untuned model on each document of one split, by kind of loss."""

    nats: Mapping[str, tuple[float, ...]]  # the loss of each document
    bytes: Mapping[str, tuple[int, ...]]  # the size of the text that it is the loss of
    clusters: tuple[str, ...] = ()  # the passage of each document; empty if no two share one


@dataclass(frozen=True)
class ProbeResult(PlainRecord):
    """What a short fine-tuning, the same in every study, found left to learn of a task.

    There are two kinds of loss: of the whole text (``text``) and of its answer alone (``answer``).
    """

    version: int
    learning_rate: float
    learned: int  # so many documents of a split are learned from
    data: str  # names the documents
    before: Mapping[str, SplitLosses] = field(default_factory=dict)  # by split, before any update
    # after every epoch, by split: the summed losses of the documents learned from, and of as many of validation
    after_epochs: tuple[Mapping[str, Mapping[str, float]], ...] = ()
    target_modules: tuple[str, ...] = ()
