"""Where a score comes from, and the one place that says whether two scores may be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from potentia.values.metric import Metric


@dataclass(frozen=True, slots=True)
class Origin:
    """What a score was computed from; None where its source does not say it. The protocol is its cell's."""

    data: str | None = None  # fingerprint of the documents, their splits and the prompt
    recipe: str | None = None  # fingerprint of the fine-tuning; None where there was none
    shots: int | None = None  # examples in the prompt
    model: str | None = None  # fingerprint of weights and tokenizer
    source: str | None = None  # the file that it was imported from
    path: str | None = None  # what computed it: how the model was loaded, scored and trained


UNKNOWN = Origin()


class Measured(Protocol):
    """A score, or whatever else has a metric and an origin."""

    @property
    def metric(self) -> Metric:
        """What was measured."""

    @property
    def origin(self) -> Origin:
        """Where it comes from."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Why two scores of a task cannot be compared: what differs, and what it is in each."""

    what: str
    one: str
    two: str

    def __str__(self) -> str:
        return f"{self.what} ({self.one} and {self.two})"


def comparable(one: Measured, two: Measured) -> tuple[Difference, ...]:
    """Return what forbids comparing two scores of one task and protocol; empty where they are alike.

    Every join, mean, pair and sentence asks here. What one side does not know forbids nothing.
    """
    found = [Difference(*parts) for parts in one.metric.differences(two.metric)]
    for what, name in (("data", "data"), ("recipe", "recipe"), ("shots", "examples in the prompt")):
        a, b = getattr(one.origin, what), getattr(two.origin, what)
        if a is not None and b is not None and a != b:
            found.append(Difference(name, str(a)[:12], str(b)[:12]))
    return tuple(found)


def recipe_fingerprint(settings: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of how a model is tuned; None where nothing is said."""
    if not any(settings.values()):
        return None
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:32]
