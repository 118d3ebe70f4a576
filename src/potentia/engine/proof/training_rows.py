"""The trial rows of a training form: real examples of the lanes to train, long beside short."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.proof.constants import TRIAL_SLOTS


def choose_training_rows(
    specs: Sequence[LaneSpec], limit: int | None, draw_number: int = 0
) -> list[TrainingRow]:
    """Choose two rows of real examples for each of three lanes: one whole, and one cut to a half or less.

    The first lane has the longest example of all; the others are drawn. ``limit`` is the longest text, in tokens.
    """
    stream = np.random.default_rng(draw_number)
    longest_lane = max(range(len(specs)), key=lambda number: specs[number].longest_text)
    rows: list[TrainingRow] = []
    for slot in range(TRIAL_SLOTS):
        lane_spec = specs[(longest_lane + slot) % len(specs)]
        example_count = len(lane_spec.examples)
        if slot == 0:
            whole_example = int(lane_spec.examples.lengths.argmax())
        else:
            whole_example = int(stream.integers(example_count))
        cut_example = int(stream.integers(example_count))
        token_ids, first_target = lane_spec.text_of_example(cut_example, limit)
        cut_length = max(2, len(token_ids) // (2 + slot))
        texts = [
            lane_spec.text_of_example(whole_example, limit),
            (token_ids[:cut_length], min(first_target, cut_length - 1)),
        ]
        target_count = sum(len(token_ids) - first_target for token_ids, first_target in texts)
        for batch_index, (token_ids, first_target) in enumerate(texts):
            row = TrainingRow(
                ids=token_ids,
                first_target=first_target,
                slot=slot,
                seed=lane_spec.seed + slot,
                step=1 + draw_number,
                batch_index=batch_index,
                weight=1 / max(1, target_count),
            )
            rows.append(row)
    return rows
