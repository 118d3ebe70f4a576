"""The check of every training step's plan: its texts, their cuts and weights, and the learning rates are the recipe's.

The rehearsal (``rehearsal``) compares losses and gradients in the first step alone. What changes from step to step is
plain numbers, and these are compared in every step, of lanes and of full fine-tuning alike: the order of examples with
numpy's own permutation, the last batch of an epoch with the examples that are left, the weights with the number of
targets, the learning rates with transformers' schedule, and the number of steps with epochs × batches. Nothing here
waits for a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.proof.constants import REPORT_HINT
from potentia.engine.proof.reference import reference_learning_rate
from potentia.errors import TuningError
from potentia.values.recipe import Schedule

RATE_TOLERANCE = 1e-6  # how far a learning rate may be off, as a share of the peak rate
NUMBER_TOLERANCE = 1e-6  # how far a number in float32 may be off, as a share of it


class PlannedLane(Protocol):
    """A lane (a fine-tuning) as the check needs it: what it learns, how far it is, and its slot."""

    @property
    def spec(self) -> LaneSpec:
        """What it learns."""

    @property
    def step(self) -> int:
        """The number of its updates so far."""

    @property
    def slot(self) -> int | None:
        """Where its adapter lies."""


def check_step_plan(
    lanes: Sequence[PlannedLane],
    rows: Sequence[TrainingRow],
    table: npt.NDArray[np.float32],
    limit: int | None,
) -> None:
    """Raise an error where the next step of all lanes is not what their recipes say.

    ``rows`` are the step's examples, ``table`` the settings of its updates by slot (``steps.lane_states``), and
    ``limit`` is the longest text that the model reads.
    """
    fault = find_row_fault(lanes, rows, limit)
    if fault is None:
        fault = find_table_fault(lanes, table)
    if fault is not None:
        raise TuningError(f"a training step differs from its recipe: {fault}", hint=REPORT_HINT)


def check_full_step_plan(
    lane_spec: LaneSpec,
    step: int,
    rows: Sequence[TrainingRow],
    learning_rate: float,
    limit: int | None,
) -> None:
    """Raise an error where the next update of a full fine-tuning is not what its recipe says."""
    fault = find_batch_fault(lane_spec, step, rows, limit)
    if fault is None:
        fault = find_rate_fault(lane_spec.schedule, step, count_steps(lane_spec), learning_rate)
    if fault is not None:
        raise TuningError(f"a training step differs from its recipe: {fault}", hint=REPORT_HINT)


def check_lane_is_complete(lane_spec: LaneSpec, steps: int) -> None:
    """Raise an error where a lane ends as done after fewer or more updates than its recipe has."""
    if steps != count_steps(lane_spec):
        raise TuningError(
            f"a fine-tuning ended after {steps} of its {count_steps(lane_spec)} steps",
            hint=REPORT_HINT,
        )


# ---- rows ----------------------------------------------------------------------------------------


def find_row_fault(
    lanes: Sequence[PlannedLane], rows: Sequence[TrainingRow], limit: int | None
) -> str | None:
    """Return what is wrong with the rows of a step of all lanes, or None."""
    slots = [row.slot for row in rows]
    if slots != sorted(slots):
        return "its rows do not come slot by slot"
    rows_by_slot: dict[int, list[TrainingRow]] = {}
    for row in rows:
        rows_by_slot.setdefault(row.slot, []).append(row)
    for lane in lanes:
        assert lane.slot is not None
        lane_rows = rows_by_slot.pop(lane.slot, [])
        fault = find_batch_fault(lane.spec, lane.step, lane_rows, limit)
        if fault is not None:
            return fault
    if rows_by_slot:
        return "it has rows of no fine-tuning"
    return None


def find_batch_fault(
    lane_spec: LaneSpec, step: int, rows: Sequence[TrainingRow], limit: int | None
) -> str | None:
    """Return what is wrong with one lane's rows of the step number ``step`` (from 0), or None."""
    example_count = len(lane_spec.examples)
    batch_size = lane_spec.schedule.batch
    total_steps = count_steps(lane_spec)
    if lane_spec.total_steps != total_steps or step >= total_steps:
        return f"step {step + 1} of {lane_spec.total_steps}, where the recipe has {total_steps}"
    epoch, step_in_epoch = divmod(step, math.ceil(example_count / batch_size))
    first = step_in_epoch * batch_size
    batch = reference_order(lane_spec.seed, epoch, example_count)[first : first + batch_size]
    if len(batch) != len(rows):
        return f"a batch has {len(rows)} examples, not {len(batch)}"
    max_tokens = lane_spec.schedule.max_tokens
    if limit:
        max_tokens = min(max_tokens, limit)
    total_targets = 0
    for number, (index, row) in enumerate(zip(batch.tolist(), rows, strict=True)):
        if not _is_text_of_example(lane_spec, index, row, max_tokens):
            return f"row {number} of a batch is not its example's text"
        row_targets = len(row.ids) - row.first_target
        expected_targets = _count_targets(lane_spec, index, max_tokens)
        if row_targets != expected_targets:
            return f"row {number} of a batch has {row_targets} targets, not {expected_targets}"
        if (row.seed, row.step, row.batch_index) != (lane_spec.seed, step, number):
            return f"row {number} of a batch is taken for another"
        total_targets += expected_targets
    return _find_weight_fault(rows, total_targets)


def _find_weight_fault(rows: Sequence[TrainingRow], total_targets: int) -> str | None:
    """Return a fault if a target's weight is not one part in all targets of the batch, or None."""
    for row in rows:
        if not math.isclose(row.weight * max(1, total_targets), 1.0, rel_tol=1e-9):
            return f"a target weighs {row.weight:.3g}, where {total_targets} share a loss"
    return None


def count_steps(lane_spec: LaneSpec) -> int:
    """Count the updates of a lane: epochs × batches, the last of which may be smaller."""
    return lane_spec.schedule.epochs * math.ceil(len(lane_spec.examples) / lane_spec.schedule.batch)


@lru_cache(maxsize=256)
def reference_order(seed: int, epoch: int, examples: int) -> npt.NDArray[np.int64]:
    """Return the order of a lane's examples in an epoch (from 0), by numpy's default generator."""
    return np.random.default_rng([seed & 0xFFFFFFFF, epoch]).permutation(examples)


def _is_text_of_example(lane_spec: LaneSpec, index: int, row: TrainingRow, max_tokens: int) -> bool:
    """Whether a row has its example's tokens, or those that the cut to ``max_tokens`` leaves.

    An example with a prompt loses the prompt's beginning, but keeps the start token; others lose their end.
    """
    examples = lane_spec.examples
    text = examples.token_ids[examples.starts[index] : examples.starts[index + 1]]
    if len(text) <= max_tokens:
        return np.array_equal(row.ids, text)
    if int(examples.prompt_lengths[index]) <= 1:
        return np.array_equal(row.ids, text[:max_tokens])
    if examples.start_id is not None and text[0] == examples.start_id:
        is_start = int(row.ids[0]) == examples.start_id
        return is_start and np.array_equal(row.ids[1:], text[len(text) - max_tokens + 1 :])
    return np.array_equal(row.ids, text[len(text) - max_tokens :])


def _count_targets(lane_spec: LaneSpec, index: int, max_tokens: int) -> int:
    """Return how many tokens of an example have a loss: all but the first, or all after the prompt."""
    length = int(lane_spec.examples.starts[index + 1] - lane_spec.examples.starts[index])
    if lane_spec.schedule.loss == "text":
        return min(length, max_tokens) - 1
    prompt_length = max(1, int(lane_spec.examples.prompt_lengths[index]))
    return min(length - prompt_length, max_tokens - 1)


# ---- rates ---------------------------------------------------------------------------------------


def find_rate_fault(
    schedule: Schedule, step: int, total_steps: int, learning_rate: float
) -> str | None:
    """Return how a step's learning rate differs from transformers' schedule, or None."""
    expected = reference_learning_rate(schedule, total_steps)(step)
    # a rate that is not a number passes here: the loss of the next step shows it
    if not abs(learning_rate - expected) > RATE_TOLERANCE * schedule.learning_rate:
        return None
    return f"the learning rate of step {step + 1} is {learning_rate:.3g}, not {expected:.3g}"


def find_table_fault(lanes: Sequence[PlannedLane], table: npt.NDArray[np.float32]) -> str | None:
    """Return how the settings of an update differ from AdamW's at the rates of transformers' schedule, or None."""
    expected = np.zeros_like(table)
    # absolute, by slot: at the end of a decay the rate is a difference of almost equal numbers
    allowed = np.zeros((len(table), 1))
    with np.errstate(over="ignore"):
        for lane in lanes:
            expected[lane.slot] = _reference_settings(lane.spec, lane.step)
            allowed[lane.slot] = np.nan_to_num(RATE_TOLERANCE * lane.spec.schedule.learning_rate)
    is_same = np.isclose(table, expected, rtol=NUMBER_TOLERANCE, atol=allowed, equal_nan=True)
    if is_same.all():
        return None
    slot, column = np.argwhere(~is_same)[0]
    return (
        f"number {column + 1} of an update is {table[slot, column]:.6g}, "
        f"not {expected[slot, column]:.6g}"
    )


def _reference_settings(lane_spec: LaneSpec, step: int) -> list[float]:
    """Return what a lane's row of the table must be, from AdamW's formulas.

    These are the numbers of ``UpdateSettings``, that the lane takes a step, and whether it is its first.
    """
    schedule = lane_spec.schedule
    learning_rate = reference_learning_rate(schedule, count_steps(lane_spec))(step)
    beta1, beta2 = schedule.betas
    updates = step + 1
    return [
        learning_rate,
        1.0 - learning_rate * schedule.weight_decay,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        learning_rate / (1.0 - beta1**updates),
        math.sqrt(1.0 - beta2**updates),
        schedule.eps,
        schedule.clip if schedule.clip > 0 else math.inf,
        1.0,
        float(step == 0),
    ]
