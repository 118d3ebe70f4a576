"""What was compared with a model's own code, remembered with the model, so that each comparison is made once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potentia.engine.proof.refusal import Refusal
    from potentia.engine.proof.scoring_check import RouteCase


@dataclass(eq=False)
class ModelChecks:
    """The checks that one loaded model has passed or failed."""

    predictions: bool = False  # it is causal and computes numbers
    requests: set[str] = field(default_factory=set)  # kinds that went from text to number
    # for each case that was tried: None where the route agrees with the reference, or why it is not used
    routes: dict[RouteCase, Refusal | None] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything: the model is gone."""
        self.predictions = False
        self.requests.clear()
        self.routes.clear()
