"""What a task asks of a model. Plain values, so that tasks need no torch and the engine no tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Continuation:
    """The likelihood of ``continuation`` after ``context``; an empty context means the start of a text."""

    context: str
    continuation: str


@dataclass(frozen=True, slots=True)
class Document:
    """The likelihood of this whole text, read in windows of the model's context length."""

    text: str


@dataclass(frozen=True, slots=True)
class Generation:
    """Continue ``context`` greedily until one of the ``stop`` strings, the end token, or ``max_tokens``."""

    context: str
    stop: tuple[str, ...] = ()
    max_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Example:
    """One training text. Tokenised like a ``Continuation``, so that the prompt/answer boundary is the same.

    ``end`` appends the end-of-text token, so that a model tuned for generation learns where to stop.
    A document of a corpus has an empty context.
    """

    context: str
    continuation: str
    end: bool = False


Request = Continuation | Document | Generation
