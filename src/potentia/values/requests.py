"""What a task asks of a model. Plain values, so that tasks need no torch and the engine no tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    """Continue ``context`` until one of the ``stop`` strings, the end token, or ``max_tokens``.

    Greedily, or with a ``temperature`` by sampling; the ``seed`` decides the sample, whatever is written beside it.
    ``options`` are further settings of the choice, by transformers' names: ``(("repetition_penalty", 1.1),)``.
    """

    context: str
    stop: tuple[str, ...] = ()
    max_tokens: int = 256
    options: tuple[tuple[str, Any], ...] = ()
    temperature: float = 0.0
    seed: int = 0


_ELSEWHERE = {"until", "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"}
_SAMPLING = {
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "top_h",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "use_cache",
}


def decoding_options(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return those of a task's generation settings that change a text written without sampling."""
    option_names = settings.keys() - _ELSEWHERE - _SAMPLING
    return tuple(
        (name, _frozen(settings[name]))
        for name in sorted(option_names)
        if settings[name] is not None
    )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


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


class Likelihood(tuple[float, bool]):
    """The answer to a Continuation as lm-eval takes it, (log-likelihood, greedy?), and the number of its tokens."""

    tokens: int  # set by whoever makes it
