"""Names that have parts: a protocol (how a cell is scored) and a task (its form, its fold)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


Kind = Literal["direct", "few_shot", "train_before_test", "adjust", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # from the least preparation to the most
_PROTOCOL_NAME = re.compile(r"direct|train_before_test|adjust|few_shot:([1-9][0-9]{0,3})")
_INTERMEDIATE_NAME = re.compile(r"(.+)@([1-9][0-9]{0,11})")
_AFTER_EVERY_STEP = 10**12  # the end of a training sorts behind its steps
EXPECTED = "use direct, few_shot:K (as few_shot:5), train_before_test or adjust"


class UnknownProtocolError(ValueError):
    """A text that is no protocol; the message names it."""


class Protocol(str):
    """``direct``, ``few_shot:5``, ``train_before_test``, ``adjust``, or ``adjust@100``: adjust after 100 steps."""

    __slots__ = ()

    @property
    def kind(self) -> Kind:
        """What is done to the model; ``other`` for a name that Potentia does not know."""
        if _PROTOCOL_NAME.fullmatch(self.base) is None:
            return "other"
        return next((kind for kind in KINDS if self.startswith(kind)), "other")

    @property
    def shots(self) -> int:
        """The number of examples before the question."""
        match = _PROTOCOL_NAME.fullmatch(self.base)
        if match is None or match[1] is None:
            return 0
        return int(match[1])

    @property
    def step(self) -> int | None:
        """The optimizer step of a score on the way; None for a score that a study plans."""
        match = _INTERMEDIATE_NAME.fullmatch(self)
        return int(match[2]) if match else None

    @property
    def base(self) -> Protocol:
        """The protocol itself, where this is a score on the way."""
        match = _INTERMEDIATE_NAME.fullmatch(self)
        return Protocol(match[1]) if match else self

    @property
    def tuned(self) -> bool:
        """Whether the model is fine-tuned before the test."""
        return self.kind in ("train_before_test", "adjust")

    @property
    def label(self) -> str:
        """The protocol as people say it: train-before-test, 5-shot."""
        if self.step is not None:
            return f"{self.base.label} after {self.step:,} steps"
        if self.kind == "few_shot":
            return f"{self.shots}-shot"
        return self.replace("_", "-")

    @property
    def order(self) -> tuple[int, int, int]:
        """What to sort by: the least preparation first, scores on the way before the end."""
        step = _AFTER_EVERY_STEP if self.step is None else self.step
        return KINDS.index(self.kind), self.shots, step

    def at(self, step: int) -> Protocol:
        """Return the protocol of a score taken on the way, after so many optimizer steps."""
        return Protocol(f"{self}@{step}")

    @classmethod
    def few_shot(cls, shots: int) -> Protocol:
        """Return ``few_shot:K``, or ``direct`` where there are no examples."""
        if shots <= 0:
            return DIRECT
        return cls(f"few_shot:{shots}")

    @classmethod
    def parse(cls, text: str) -> Protocol:
        """Read a protocol that a study may ask for; any other text is refused."""
        protocol = cls(text)
        if protocol.kind == "other" or protocol.step is not None:
            raise UnknownProtocolError(f"{text!r} is no protocol; {EXPECTED}")
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


def main_protocol(protocols: Iterable[str]) -> Protocol | None:
    """Return the protocol to rank by: train-before-test, else adjust, else the one with the least preparation."""
    planned = [protocol for protocol in in_order(protocols) if protocol.step is None]
    by_preference = (TRAIN_BEFORE_TEST, ADJUST, *planned)
    return next((protocol for protocol in by_preference if protocol in planned), None)


def in_order(protocols: Iterable[str]) -> list[Protocol]:
    """Return the protocols from the least to the most preparation."""
    parsed = [Protocol(name) for name in protocols]
    return sorted(parsed, key=lambda protocol: protocol.order)


BLIND = "blind"  # the form of a task without its questions
_BLIND_NAME = re.compile(r"(.+):blind(?::(?:removed|swapped))?", re.DOTALL)
_FOLD_NAME = re.compile(r"(.+)#(\d+)/(\d+)", re.DOTALL)


class TaskName(str):
    """``arc_easy``, ``arc_easy:cloze`` (a prompt form), ``arc_easy#2/5`` (the second of five folds)."""

    __slots__ = ()

    @property
    def whole(self) -> TaskName:
        """The task that a fold is of, as scores call it; the name itself where it is no fold."""
        match = _FOLD_NAME.fullmatch(self)
        return TaskName(match[1]) if match else self

    @property
    def fold(self) -> tuple[int, int] | None:
        """Which fold of how many; None where it is no fold."""
        match = _FOLD_NAME.fullmatch(self)
        if match is None:
            return None
        return int(match[2]), int(match[3])

    @property
    def base(self) -> str:
        """The benchmark without form and fold."""
        return self.whole.partition(":")[0]

    @property
    def form(self) -> str:
        """The prompt form with its arguments (``choice:4``); empty for the benchmark's own."""
        return self.whole.partition(":")[2]

    @property
    def sighted(self) -> TaskName | None:
        """The task that this is the blind twin of (``arc_easy`` of ``arc_easy:blind``); None where it is none."""
        match = _BLIND_NAME.fullmatch(self.whole)
        return TaskName(match[1]) if match else None

    @property
    def choices(self) -> int | None:
        """The number of options that a form ``choice:K`` leaves; None for every other."""
        form, _, arguments = self.form.partition(":")
        count = arguments.partition(":")[0]
        if form != "choice" or not count.isdigit() or int(count) == 0:
            return None
        return int(count)
