"""Which code trains a model, from fast to slow.

Several fine-tunings of one model (*lanes*) usually go through it together, in common passes.
"""

from __future__ import annotations

from enum import Enum


class TrainingForm(Enum):
    """The code that trains a model: the fastest one that was checked to compute what the model's own code computes.

    *Packed* rows of tokens lie end to end without padding; *padded* rows are padded to one length.
    """

    FUSED = "fused"  # packed rows of all lanes, through layers that Potentia wrote
    PACKED = "packed"  # packed rows of all lanes, through the model's own layers
    PADDED = "padded"  # padded rows of all lanes, through the model's own layers
    ONE_LANE = "one_lane"  # padded rows of one lane in each pass
    ONE_ROW = "one_row"  # one row in each pass: the reference that the others are compared with

    @property
    def words(self) -> str:
        """The form as people read it."""
        return _WORDS[self]

    @property
    def is_packed(self) -> bool:
        """Whether rows lie end to end, without padding."""
        return self in (TrainingForm.FUSED, TrainingForm.PACKED)


_WORDS = {
    TrainingForm.FUSED: "hand-written layers",
    TrainingForm.PACKED: "long rows",
    TrainingForm.PADDED: "shared passes",
    TrainingForm.ONE_LANE: "one fine-tuning a pass",
    TrainingForm.ONE_ROW: "one row a pass",
}
