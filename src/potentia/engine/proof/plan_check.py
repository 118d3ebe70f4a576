"""The plan of every training step, compared with what the recipe says: which texts, where cut, which weights and rates.

Losses and gradients are compared in the first step (``rehearsal``). What changes from step to step is plain numbers,
and is compared in every step, of lanes and of full fine-tuning alike: the order of examples with numpy's own
permutation, the last batch of an epoch with the examples that remain, weights with the targets that they share,
learning rates with transformers' schedule, and the number of steps with epochs × batches. Nothing waits for a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from potentia.engine.lane_spec import LaneSpec, Schedule, TrainingRow
from potentia.engine.proof.reference import reference_learning_rate
from potentia.errors import TuningError

SAME_RATE = 1e-6  # how far a learning rate may be off, of its size
SAME_NUMBER = 1e-6  # how far float32 may be off, of a number's size
REPORT = (
    "this is an error in Potentia, not in the model: please report it with the model and the task"
)


class PlannedLane(Protocol):
    """A lane as the check of its plan needs it: what it learns, how far it is, and its slot."""

    @property
    def spec(self) -> LaneSpec:
        """What it learns."""

    @property
    def step(self) -> int:
        """The updates that it has behind it."""

    @property
    def slot(self) -> int | None:
        """Where its adapter lies."""


def check_step_plan(
    lanes: Sequence[PlannedLane],
    rows: Sequence[TrainingRow],
    table: npt.NDArray[np.float32],
    limit: int | None,
) -> None:
    """Raise an error where the next step of lanes is not what their recipes say."""
    fault = find_row_fault(lanes, rows, limit)
    if fault is None:
        fault = find_table_fault(lanes, table)
    if fault is not None:
        raise TuningError(f"a training step differs from its recipe: {fault}", hint=REPORT)


def check_full_step_plan(
    spec: LaneSpec, step: int, rows: Sequence[TrainingRow], rate: float, limit: int | None
) -> None:
    """Raise an error where the next update of a full fine-tuning is not what its recipe says."""
    fault = find_batch_fault(spec, step, rows, limit)
    if fault is None:
        fault = find_rate_fault(spec.schedule, step, count_steps(spec), rate)
    if fault is not None:
        raise TuningError(f"a training step differs from its recipe: {fault}", hint=REPORT)


def check_lane_is_complete(spec: LaneSpec, steps: int) -> None:
    """Raise an error where a lane that is called done has not made all updates of its recipe."""
    if steps != count_steps(spec):
        raise TuningError(
            f"a fine-tuning ended after {steps} of its {count_steps(spec)} steps", hint=REPORT
        )


# ---- rows ----------------------------------------------------------------------------------------


def find_row_fault(
    lanes: Sequence[PlannedLane], rows: Sequence[TrainingRow], limit: int | None
) -> str | None:
    """Return what is wrong with the rows of a step, given the lanes' examples, or None."""
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
        return "it has rows of no lane"
    return None


def find_batch_fault(
    spec: LaneSpec, step: int, rows: Sequence[TrainingRow], limit: int | None
) -> str | None:
    """Return what is wrong with the rows of one lane's step, or None: which texts, where cut, where the loss is."""
    count = len(spec.examples)
    batch = spec.schedule.batch
    total_steps = count_steps(spec)
    if spec.total_steps != total_steps or step >= total_steps:
        return f"step {step + 1} of {spec.total_steps}, where the recipe has {total_steps}"
    epoch, place_in_epoch = divmod(step, math.ceil(count / batch))
    first = place_in_epoch * batch
    chosen = reference_order(spec.seed, epoch, count)[first : first + batch]
    if len(chosen) != len(rows):
        return f"a batch has {len(rows)} examples, not {len(chosen)}"
    most = spec.schedule.max_tokens
    if limit:
        most = min(most, limit)
    targets = 0
    for number, (index, row) in enumerate(zip(chosen.tolist(), rows, strict=True)):
        if not _is_text_of_example(spec, index, row, most):
            return f"row {number} of a batch is not its example's text"
        wanted = _count_targets(spec, index, most)
        if len(row.ids) - row.first_target != wanted:
            return f"row {number} of a batch has {len(row.ids) - row.first_target} targets, not {wanted}"
        if (row.seed, row.step, row.batch_index) != (spec.seed, step, number):
            return f"row {number} of a batch is taken for another"
        targets += wanted
    return _find_weight_fault(rows, targets)


def _find_weight_fault(rows: Sequence[TrainingRow], targets: int) -> str | None:
    """Return how the weights of a batch differ from one part for each target, or None."""
    for row in rows:
        if not math.isclose(row.weight * max(1, targets), 1.0, rel_tol=1e-9):
            return f"a target weighs {row.weight:.3g}, where {targets} share a loss"
    return None


def count_steps(spec: LaneSpec) -> int:
    """Count the updates of a lane: epochs × batches, the last of which may be smaller."""
    return spec.schedule.epochs * math.ceil(len(spec.examples) / spec.schedule.batch)


@lru_cache(maxsize=256)
def reference_order(seed: int, epoch: int, examples: int) -> npt.NDArray[np.int64]:
    """Return the order of a lane's examples in an epoch by numpy's default generator."""
    return np.random.default_rng([seed & 0xFFFFFFFF, epoch]).permutation(examples)


def _is_text_of_example(spec: LaneSpec, index: int, row: TrainingRow, most: int) -> bool:
    """Return whether a row has its example's tokens: all, or those that the cut leaves."""
    examples = spec.examples
    text = examples.flat[examples.starts[index] : examples.starts[index + 1]]
    if len(text) <= most:
        return np.array_equal(row.ids, text)
    if int(examples.prompts[index]) <= 1:
        return np.array_equal(row.ids, text[:most])
    if examples.start_id is not None and text[0] == examples.start_id:
        is_start = int(row.ids[0]) == examples.start_id
        return is_start and np.array_equal(row.ids[1:], text[len(text) - most + 1 :])
    return np.array_equal(row.ids, text[len(text) - most :])


def _count_targets(spec: LaneSpec, index: int, most: int) -> int:
    """Count the tokens with a loss: all but the first, or all after the prompt, the end of text included."""
    length = int(spec.examples.starts[index + 1] - spec.examples.starts[index])
    if spec.schedule.loss == "text":
        return min(length, most) - 1
    prompt = max(1, int(spec.examples.prompts[index]))
    return min(length - prompt, most - 1)


# ---- rates ---------------------------------------------------------------------------------------


def find_rate_fault(schedule: Schedule, step: int, total_steps: int, rate: float) -> str | None:
    """Return how the learning rate of a step differs from that of transformers' schedule, or None."""
    wanted = reference_learning_rate(schedule, total_steps)(step)
    if not abs(rate - wanted) > SAME_RATE * schedule.learning_rate:  # no number: the loss tells
        return None
    return f"the learning rate of step {step + 1} is {rate:.3g}, not {wanted:.3g}"


def find_table_fault(lanes: Sequence[PlannedLane], table: npt.NDArray[np.float32]) -> str | None:
    """Return how the settings of an update differ from AdamW's at the rates of transformers' schedule, or None."""
    wanted = np.zeros_like(table)
    allowed = np.zeros(
        (len(table), 1)
    )  # the end of a decay is a difference of almost equal numbers
    with np.errstate(over="ignore"):
        for lane in lanes:
            wanted[lane.slot] = _reference_settings(lane.spec, lane.step)
            allowed[lane.slot] = np.nan_to_num(SAME_RATE * lane.spec.schedule.learning_rate)
    is_same = np.isclose(table, wanted, rtol=SAME_NUMBER, atol=allowed, equal_nan=True)
    if is_same.all():
        return None
    slot, column = np.argwhere(~is_same)[0]
    return (
        f"number {column + 1} of an update is {table[slot, column]:.6g}, "
        f"not {wanted[slot, column]:.6g}"
    )


def _reference_settings(spec: LaneSpec, step: int) -> list[float]:
    """Return the numbers of a lane's next update in the order of :class:`UpdateSettings`, and its two marks."""
    schedule = spec.schedule
    rate = reference_learning_rate(schedule, count_steps(spec))(step)
    beta1, beta2 = schedule.betas
    updates = step + 1
    return [
        rate,
        1.0 - rate * schedule.weight_decay,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        rate / (1.0 - beta1**updates),
        math.sqrt(1.0 - beta2**updates),
        schedule.eps,
        schedule.clip if schedule.clip > 0 else math.inf,
        1.0,
        float(step == 0),
    ]
