"""The ladder of proof: the steps in which a fast path shows that it computes what the reference computes.

A fast path is a training form (``training_check``, and ``engine.training.full`` for all weights) or a scoring route
(``scoring_check``). All climb the same steps:

1. **Few rows**, where the path was right for another model of the same structure: whether code is right follows from
   the structure (``models.proof_cache``), and a few rows show whether this model's weights make a difference.
2. **Float32**, for a model in 16 bits on an upcast copy (``models.float32_copy``): there a wrong factor or mask moves
   numbers a thousand times as far as rounding does.
3. **16 bits**, on the model itself where it has them: the path may be a small multiple of the reference's own rounding
   from float32's numbers.

A path that differs on the few rows climbs the other steps; one that differs there is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from potentia.engine.proof.refusal import Refusal

log = logging.getLogger(__name__)

DRAWS = 3  # of trial rows, or of adapters


class FastPath(Protocol):
    """A fast path of one model. Each method compares it with the reference: why it is refused, or None."""

    @property
    def is_in_16_bits(self) -> bool:
        """Whether the model is in 16 bits and has a float32 copy, so that it is compared twice."""

    def compare_few_rows(self) -> Refusal | None:
        """Compare on a few rows."""

    def compare_in_float32(self, draw_number: int) -> Refusal | None:
        """Compare in float32, or in the model's own precision where it has no float32 copy, on a draw of rows."""

    def compare_in_16_bits(self, draw_number: int) -> Refusal | None:
        """Compare the model itself, in 16 bits, on a draw of rows."""


def climb_ladder(fast_path: FastPath, *, was_proved: bool) -> Refusal | None:
    """Compare a fast path with the reference, step by step; return why it is refused, or None.

    ``was_proved`` says that it was right for another model of the same structure.
    """
    if was_proved:
        refusal = fast_path.compare_few_rows()
        if refusal is None:
            return None
        log.debug("%s: %s on a few rows, so it is tried in full", fast_path, refusal.reason)
    refusal = try_draws(fast_path.compare_in_float32)
    if refusal is None and fast_path.is_in_16_bits:
        refusal = try_draws(fast_path.compare_in_16_bits)
    return refusal


def try_draws(compare: Callable[[int], Refusal | None]) -> Refusal | None:
    """Compare on up to :data:`DRAWS` draws; return None where one agrees, or the last refusal.

    A router of experts decides near ties by rounding, so the numbers of a right path may differ on some rows; those of
    a wrong path differ on all. A refusal says whether another draw could make a difference.
    """
    refusal = compare(0)
    for draw_number in range(1, DRAWS):
        if refusal is None or not refusal.retry:
            break
        refusal = compare(draw_number)
    return refusal
