"""What a task asks of a model (requests), and what it is trained on (examples).

They are plain values, so that tasks need no torch and the engine knows no tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Continuation:
    """Asks for the likelihood of ``continuation`` after ``context``; an empty context means the start of a text."""

    context: str
    continuation: str


@dataclass(frozen=True, slots=True)
class Document:
    """Asks for the likelihood of this whole text, read in windows of the model's context length."""

    text: str


@dataclass(frozen=True, slots=True)
class Generation:
    """Asks for a text that continues ``context``, up to a ``stop`` string, the end token, or ``max_tokens``."""

    context: str
    stop: tuple[str, ...] = ()
    max_tokens: int = 256
    # further settings that change the choice of tokens, by transformers' names: (("repetition_penalty", 1.1),)
    options: tuple[tuple[str, object], ...] = ()
    temperature: float = 0.0  # 0 is greedy; else tokens are sampled
    seed: int = 0  # decides the sample, whatever is generated beside it


# what ``stop`` and ``max_tokens`` of a Generation hold already
_STOP_AND_LENGTH_SETTINGS = {
    "until",
    "max_gen_toks",
    "max_new_tokens",
    "max_tokens",
    "max_completion_tokens",
}
# settings without effect on greedy decoding
_SAMPLING_SETTINGS = {
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


def decoding_options(settings: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Return the generation settings of a task that change the text even in greedy decoding, sorted by name."""
    option_names = settings.keys() - _STOP_AND_LENGTH_SETTINGS - _SAMPLING_SETTINGS
    return tuple(
        (option_name, _freeze_lists(settings[option_name]))
        for option_name in sorted(option_names)
        if settings[option_name] is not None
    )


def _freeze_lists(value: object) -> object:
    return tuple(map(_freeze_lists, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Example:
    """One training text: a prompt and its answer, divided and tokenised as a ``Continuation`` is in scoring."""

    context: str  # empty for a document of a corpus
    continuation: str
    end: bool = False  # whether the end-of-text token follows, so that a model learns where to stop


Request = Continuation | Document | Generation


class Likelihood(tuple[float, bool]):
    """The answer to a ``Continuation`` as lm-eval takes it, (log-likelihood, greedy?), with its number of tokens."""

    tokens: int  # of the continuation; set after the tuple is made
