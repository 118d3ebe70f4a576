"""The code that trains a model, from fast to slow."""

from __future__ import annotations

from enum import Enum


class TrainingForm(Enum):
    """The code that trains a model; the fastest is taken that computes what the model's own code computes."""

    FUSED = "fused"  # packed rows of all lanes through fused layers
    PACKED = "packed"  # packed rows of all lanes through the model's own layers
    PADDED = "padded"  # padded rows of all lanes through the model's own layers
    ONE_LANE = "one_lane"  # padded rows of one lane a pass
    ONE_ROW = "one_row"  # one row a pass: the reference itself

    @property
    def words(self) -> str:
        """What people read."""
        return _WORDS[self]

    @property
    def is_packed(self) -> bool:
        """Whether rows are laid end to end."""
        return self in (TrainingForm.FUSED, TrainingForm.PACKED)


_WORDS = {
    TrainingForm.FUSED: "hand-written layers",
    TrainingForm.PACKED: "long rows",
    TrainingForm.PADDED: "shared passes",
    TrainingForm.ONE_LANE: "one lane a pass",
    TrainingForm.ONE_ROW: "one row a pass",
}
