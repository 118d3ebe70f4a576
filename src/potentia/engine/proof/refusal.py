"""Refusals: why a fast path (a training form or a scoring route) is not used."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum, auto

from torch import nn

from potentia.engine.models.device_layout import is_out_of_memory
from potentia.errors import TuningError

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 200  # characters of an error's message


class RefusalCause(Enum):
    """What kind of reason a refusal has."""

    WRONG = auto()  # the path computes something else than the reference, or raises an error
    ABSENT = auto()  # there is no such path for the model's layers
    NO_MEMORY = auto()  # memory ran out in the check: other machines may use the path


@dataclass(frozen=True)
class Refusal:
    """Why a fast path is not used."""

    reason: str
    # whether to try it again on other rows: a router of experts decides near ties by rounding, so that numbers of a
    # right path may differ on some rows; those of a wrong path differ on all
    retry: bool = False
    cause: RefusalCause = RefusalCause.WRONG

    @classmethod
    def from_error(cls, error: Exception) -> Refusal:
        """Return the refusal of a path that raised an error when it was tried."""
        log.debug("a fast path raised an error and is refused", exc_info=error)
        if is_out_of_memory(error):
            return NO_MEMORY
        message = str(error).strip()[:LONGEST_MESSAGE]
        return cls(f"the model refuses it ({type(error).__name__}: {message})")


ABSENT = Refusal("its layers are of another kind", cause=RefusalCause.ABSENT)
NO_MEMORY = Refusal("no memory to try it", cause=RefusalCause.NO_MEMORY)


def cannot_tune_error(model: nn.Module, refusal: Refusal) -> TuningError:
    """Make the error for a model that no training form is right for."""
    return TuningError(
        f"{type(model).__name__} cannot be tuned here: {refusal.reason}",
        hint="potentia doctor MODEL shows the distances; name other layers with `targets`",
    )
