"""Names that have parts, as types of text: a ``Protocol`` (how a result is obtained) and a ``TaskName``.

A study plans the protocols ``direct`` (zero-shot), ``few_shot:K``, ``train_before_test`` and ``adjust``. A score that
is taken *on the way*, during a fine-tuning, has the optimizer step after its protocol: ``adjust@100``. A task's name
may have a prompt form (``arc_easy:cloze``) and a fold (``arc_easy#2/5``) after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


ProtocolKind = Literal["direct", "few_shot", "train_before_test", "adjust", "other"]
# the least preparation of the model first
PROTOCOL_KINDS: tuple[ProtocolKind, ...] = get_args(ProtocolKind)
_PROTOCOL_NAME = re.compile(r"direct|train_before_test|adjust|few_shot:([1-9][0-9]{0,3})")
_INTERMEDIATE_NAME = re.compile(r"(.+)@([1-9][0-9]{0,11})")
_AFTER_EVERY_STEP = 10**12  # by it the end of a fine-tuning sorts after all its steps
_LABELS = {
    "direct": "before fine-tuning",
    "train_before_test": "after fine-tuning",
    "adjust": "adjusted",
}
EXPECTED = "use direct, few_shot:K (as few_shot:5), train_before_test or adjust"


class UnknownProtocolError(ValueError):
    """A text is not a protocol; the message names it."""


class Protocol(str):
    """How a result is obtained: ``direct``, ``few_shot:5``, ``train_before_test``, ``adjust``, or ``adjust@100``."""

    __slots__ = ()

    @property
    def kind(self) -> ProtocolKind:
        """The protocol without its numbers; ``other`` for a name that Potentia does not know."""
        if _PROTOCOL_NAME.fullmatch(self.base) is None:
            return "other"
        return next(
            (known_kind for known_kind in PROTOCOL_KINDS if self.startswith(known_kind)), "other"
        )

    @property
    def shots(self) -> int:
        """The number of examples before the question; 0 except for ``few_shot``."""
        match = _PROTOCOL_NAME.fullmatch(self.base)
        if match is None or match[1] is None:
            return 0
        return int(match[1])

    @property
    def step(self) -> int | None:
        """The optimizer step after which a score on the way was taken; None for any other protocol."""
        match = _INTERMEDIATE_NAME.fullmatch(self)
        return int(match[2]) if match else None

    @property
    def base(self) -> Protocol:
        """The protocol without the step of a score on the way: of ``adjust@100`` it is ``adjust``."""
        match = _INTERMEDIATE_NAME.fullmatch(self)
        return Protocol(match[1]) if match else self

    @property
    def tuned(self) -> bool:
        """Whether the model is fine-tuned before the test."""
        return self.kind in ("train_before_test", "adjust")

    @property
    def label(self) -> str:
        """The protocol as people say it: before fine-tuning, 5-shot, after fine-tuning, adjusted."""
        if self.step is not None:
            return f"{self.base.label} after {self.step:,} steps"
        if self.kind == "few_shot":
            return f"{self.shots}-shot"
        return _LABELS.get(self, str(self).replace("_", "-"))

    @property
    def phrase(self) -> str:
        """The protocol as it follows a noun: (scores) before fine-tuning, with 5-shot prompts, after fine-tuning."""
        if self.step is not None:
            return f"after {self.step:,} steps"
        if self.kind == "other":
            return f"by {self.label}"
        if self.kind == "few_shot":
            return f"with {self.label} prompts"
        return "after the adjustment" if self.kind == "adjust" else self.label

    @property
    def order(self) -> tuple[int, int, int]:
        """A key to sort by: the least preparation first, scores on the way before the end of their fine-tuning."""
        step = _AFTER_EVERY_STEP if self.step is None else self.step
        return PROTOCOL_KINDS.index(self.kind), self.shots, step

    def at_step(self, step: int) -> Protocol:
        """Return the protocol of a score taken after so many optimizer steps of this one."""
        return Protocol(f"{self}@{step}")

    @classmethod
    def few_shot(cls, shots: int) -> Protocol:
        """Return ``few_shot:K``, or ``direct`` where there are no examples."""
        if shots <= 0:
            return DIRECT
        return cls(f"few_shot:{shots}")

    @classmethod
    def parse(cls, text: str) -> Protocol:
        """Return the protocol that a text names, if a study may ask for it; else raise."""
        protocol = cls(text)
        if protocol.kind == "other" or protocol.step is not None:
            raise UnknownProtocolError(f"{text!r} is not a protocol; {EXPECTED}")
        return protocol

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        write_as_text = core_schema.plain_serializer_function_ser_schema(
            str, return_schema=core_schema.str_schema()
        )
        return core_schema.no_info_after_validator_function(
            cls.parse, core_schema.str_schema(), serialization=write_as_text
        )


DIRECT = Protocol("direct")
TRAIN_BEFORE_TEST = Protocol("train_before_test")
ADJUST = Protocol("adjust")


def choose_main_protocol(protocols: Iterable[str]) -> Protocol | None:
    """Return the protocol to rank by: train-before-test, else adjust, else the one with the least preparation."""
    planned = [protocol for protocol in sort_protocols(protocols) if protocol.step is None]
    by_preference = (TRAIN_BEFORE_TEST, ADJUST, *planned)
    return next((protocol for protocol in by_preference if protocol in planned), None)


def sort_protocols(protocols: Iterable[str]) -> list[Protocol]:
    """Return the protocols in order, from the least to the most preparation of the model."""
    parsed = [Protocol(protocol_name) for protocol_name in protocols]
    return sorted(parsed, key=lambda protocol: protocol.order)


BLIND = "blind"  # the prompt form that removes the questions
_BLIND_NAME = re.compile(r"(.+):blind(?::(?:removed|swapped))?", re.DOTALL)
_FOLD_NAME = re.compile(r"(.+)#(\d+)/(\d+)", re.DOTALL)


class TaskName(str):
    """A task's name: ``arc_easy``, ``arc_easy:cloze`` (a prompt form), ``arc_easy#2/5`` (the second of five folds)."""

    __slots__ = ()

    @property
    def whole(self) -> TaskName:
        """The name without the fold, under which scores of all folds are joined."""
        match = _FOLD_NAME.fullmatch(self)
        return TaskName(match[1]) if match else self

    @property
    def fold(self) -> tuple[int, int] | None:
        """The number of the fold, from 1, and how many there are; None if the task is no fold."""
        match = _FOLD_NAME.fullmatch(self)
        if match is None:
            return None
        return int(match[2]), int(match[3])

    @property
    def label(self) -> str:
        """The name as people say it: of a fold ``tickets (fold 1 of 5)``."""
        if self.fold is None:
            return str(self)
        number, count = self.fold
        return f"{self.whole} (fold {number} of {count})"

    @property
    def base(self) -> str:
        """The name without prompt form and fold."""
        return self.whole.partition(":")[0]

    @property
    def form(self) -> str:
        """The prompt form with its arguments (``choice:4``); empty for the task's own prompt."""
        return self.whole.partition(":")[2]

    @property
    def sighted(self) -> TaskName | None:
        """Of a blind twin (``arc_easy:blind``) the task with its questions (``arc_easy``); None of other tasks."""
        match = _BLIND_NAME.fullmatch(self.whole)
        return TaskName(match[1]) if match else None

    @property
    def choices(self) -> int | None:
        """The number of options that the prompt form ``choice:K`` leaves; None for any other form."""
        form_name, _, arguments = self.form.partition(":")
        option_count = arguments.partition(":")[0]
        if form_name != "choice" or not option_count.isdigit() or int(option_count) == 0:
            return None
        return int(option_count)
