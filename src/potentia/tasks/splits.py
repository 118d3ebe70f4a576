"""Which documents a model trains on, is selected on, and is tested on: one seeded plan, the same for every model.

In: how many documents each public split of a task has. Out: the row numbers of each of Potentia's three splits, and
a ``SplitPlan`` (``values/splits.py``) that says how they came about. The words used here:

- *public split*: train, validation or test as the benchmark publishes it; a user's single file counts as train.
- *split*: the documents that Potentia trains on, selects on (validation) or tests on.
- *carve*: to take validation out of the public train split; ``carve`` is the fraction that is taken.
- *group*: rows that share a text or a passage. They stay in one split, so that the test repeats nothing of train.
- *cap*: the largest number of documents of a split that are used, as a seeded sample.
- *auxiliary data*: what the protocol ``adjust`` trains on in place of a task's own train split; it has no test.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from potentia.errors import TaskError
from potentia.study import Caps
from potentia.values.splits import (
    EMPTY_ORIGIN,
    PlannedSplit,
    SplitOrigin,
    SplitOriginKind,
    SplitPlan,
)

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, Split, Split] = ("train", "validation", "test")
USUAL_RATIOS = (8.0, 1.0, 1.0)  # of train, validation and test
# Carving and capping draw from separate streams of one seed: another cap leaves the carved rows as they are.
_CARVE_STREAM = 1
_CAP_STREAM = 2

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Row numbers in one public split of a subtask."""

    public_split: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """How a benchmark with one public split is divided: by ratios of train, validation and test, or into folds.

    Of K folds, fold k is the test, and validation is carved out of the others: over all K, every document is tested
    once.
    """

    ratios: tuple[float, float, float] | None = None  # USUAL_RATIOS where neither is given
    fold: tuple[int, int] | None = None  # (k from 1, K)


class DividedSubtask(NamedTuple):
    """The rows of one subtask in each split before any cap, and where each split came from."""

    rows: dict[Split, SplitRows]
    origins: dict[Split, SplitOrigin]


class DividedTask(NamedTuple):
    """The same for all subtasks of a task: the rows of each subtask, and the different origins of each split."""

    rows: dict[Split, list[SplitRows]]
    origins: dict[Split, tuple[SplitOrigin, ...]]


def plan_splits(
    subtask_sizes: Sequence[Mapping[str, int]],
    *,
    caps: Caps,
    seed: int,
    carve: float,
    division: Division | None,
    hold_out: int | None,
    groups: RowNumbers | None = None,
) -> tuple[SplitPlan, dict[Split, list[SplitRows]]]:
    """Return the plan of a task's splits, and the rows of each subtask in them.

    ``subtask_sizes`` has the sizes of each subtask's public splits. A number for ``hold_out`` marks auxiliary data: so
    many documents (perhaps none) become validation, and carve, division and groups play no part. ``groups`` has the
    group of each row of the public train split; only a task with one subtask can have them.
    """
    if hold_out is None:
        assert groups is None or len(subtask_sizes) == 1
        divided_subtasks = []
        for public_sizes in subtask_sizes:
            divided_subtasks.append(
                divide_documents(
                    public_sizes, seed=seed, carve=carve, division=division, groups=groups
                )
            )
        divided_task = _join_subtasks(divided_subtasks)
    else:
        divided_task = hold_out_documents(subtask_sizes, hold_out=hold_out, seed=seed)
    rows_by_split: dict[Split, list[SplitRows]] = {}
    planned: dict[Split, PlannedSplit] = {}
    for split in SPLITS:
        uncapped_rows = divided_task.rows[split]
        rows_by_split[split] = cap_rows(uncapped_rows, getattr(caps, split), seed=seed)
        planned[split] = PlannedSplit(
            origins=divided_task.origins[split],
            available=count_rows(uncapped_rows),
            used=count_rows(rows_by_split[split]),
        )
    split_plan = SplitPlan(
        train=planned["train"],
        validation=planned["validation"],
        test=planned["test"],
        caps=caps.model_dump(),
        seed=seed,
        carve=carve,
    )
    return split_plan, rows_by_split


def _join_subtasks(divided_subtasks: Sequence[DividedSubtask]) -> DividedTask:
    rows: dict[Split, list[SplitRows]] = {}
    origins: dict[Split, tuple[SplitOrigin, ...]] = {}
    for split in SPLITS:
        rows[split] = [subtask.rows[split] for subtask in divided_subtasks]
        different_origins = dict.fromkeys(subtask.origins[split] for subtask in divided_subtasks)
        origins[split] = tuple(different_origins)
    return DividedTask(rows, origins)


def divide_documents(
    public_sizes: Mapping[str, int],
    *,
    seed: int,
    carve: float,
    division: Division | None = None,
    groups: RowNumbers | None = None,
) -> DividedSubtask:
    """Decide which rows of one subtask train, validate and test, before any cap.

    - With a public validation and a labelled public test, both are used as they are.
    - Without a labelled public test, the public validation split is the test.
    - Where no public validation split is left, validation is carved out of train (20 % in the paper).
    - With one public split only, ``division`` says how it is divided.

    Rows of train that belong together (``groups``) stay in one split.
    """
    division = division or Division()
    train_size = public_sizes.get("train") or 0
    validation_size = public_sizes.get("validation") or 0
    test_size = public_sizes.get("test") or 0
    if not 0 < carve < 1:
        raise TaskError(
            f"the fraction of train carved out as validation is {carve}; it must lie between 0 and 1"
        )
    if not train_size + validation_size + test_size:
        raise TaskError("no split has any example")
    shuffled_rows = np.random.default_rng([seed, _CARVE_STREAM]).permutation(train_size)
    if not validation_size and not test_size:
        return _divide_one_split(shuffled_rows, division, carve, groups)
    if division != Division():
        raise TaskError(
            "ratios and folds are for data in one split; this has its own",
            hint="leave them out, or give one file",
        )
    tested_split: Split = "test" if test_size else "validation"
    no_rows = shuffled_rows[:0]
    rows: dict[Split, SplitRows] = {
        "train": _take_from_train(shuffled_rows),
        "validation": _take_from_train(no_rows),
        "test": _take_all_rows(tested_split, test_size or validation_size),
    }
    origins: dict[Split, SplitOrigin] = {
        "train": _public_origin("train") if train_size else EMPTY_ORIGIN,
        "validation": EMPTY_ORIGIN,
        "test": _public_origin(tested_split),
    }
    if validation_size and test_size:
        rows["validation"] = _take_all_rows("validation", validation_size)
        origins["validation"] = _public_origin("validation")
    elif train_size > 1:
        validation, train = _carve_validation(shuffled_rows, carve, groups)
        rows["train"] = _take_from_train(train)
        rows["validation"] = _take_from_train(validation)
        origins["validation"] = SplitOrigin(SplitOriginKind.CARVED, "train", rule=f"{carve:.0%}")
    return DividedSubtask(rows, origins)


def _public_origin(public_split: Split) -> SplitOrigin:
    return SplitOrigin(SplitOriginKind.PUBLIC, public_split)


def _divide_one_split(
    shuffled_rows: RowNumbers, division: Division, carve: float, groups: RowNumbers | None
) -> DividedSubtask:
    """Divide a benchmark that has one public split, into folds or by ratios."""
    if division.fold:
        row_numbers = _divide_into_folds(shuffled_rows, division.fold, carve, groups)
        division_rule = f"fold {division.fold[0]} of {division.fold[1]}"
    else:
        ratios = division.ratios or USUAL_RATIOS
        row_numbers = _divide_by_ratios(shuffled_rows, ratios, groups)
        division_rule = ":".join(f"{ratio:g}" for ratio in ratios)
    rows = {split: _take_from_train(row_numbers[split]) for split in SPLITS}
    origin = SplitOrigin(SplitOriginKind.DIVIDED, "train", rule=division_rule)
    return DividedSubtask(rows, dict.fromkeys(SPLITS, origin))


def _divide_by_ratios(
    shuffled_rows: RowNumbers, ratios: tuple[float, float, float], groups: RowNumbers | None
) -> dict[Split, RowNumbers]:
    """Divide rows in these ratios of train, validation and test; every split gets at least one row."""
    example_count = len(shuffled_rows)
    if example_count < 3:
        raise TaskError(
            f"only {example_count} example(s), too few to divide into train, validation and test"
        )
    test_size = max(1, round(example_count * ratios[2] / sum(ratios)))
    validation_size = max(1, round(example_count * ratios[1] / sum(ratios)))
    train_size = example_count - test_size - validation_size
    if train_size < 1:
        raise TaskError(
            f"the shares {ratios} leave nothing to train on of {example_count} examples"
        )
    # the test comes first in the shuffled order: another order would change every stored split
    part_sizes = [test_size, validation_size, train_size]
    test, validation, train = divide_rows(shuffled_rows, part_sizes, groups)
    return {"train": train, "validation": validation, "test": test}


def _divide_into_folds(
    shuffled_rows: RowNumbers, fold: tuple[int, int], carve: float, groups: RowNumbers | None
) -> dict[Split, RowNumbers]:
    """Divide rows into K folds: fold k is the test, and validation is carved out of the others."""
    fold_number, fold_count = fold
    if len(shuffled_rows) < 2 * fold_count:
        raise TaskError(f"only {len(shuffled_rows)} example(s), too few for {fold_count} folds")
    fold_sizes = [len(piece) for piece in np.array_split(shuffled_rows, fold_count)]
    folds = divide_rows(shuffled_rows, fold_sizes, groups)
    test = folds.pop(fold_number - 1)
    validation, train = _carve_validation(np.concatenate(folds), carve, groups)
    return {"train": train, "validation": validation, "test": test}


def _carve_validation(
    rows: RowNumbers, carve: float, groups: RowNumbers | None
) -> tuple[RowNumbers, RowNumbers]:
    """Divide rows into validation and train: at least one row is carved out, and never all of them."""
    validation_size = min(len(rows) - 1, max(1, round(len(rows) * carve)))
    validation, train = divide_rows(rows, [validation_size, len(rows) - validation_size], groups)
    return validation, train


def divide_rows(
    rows: RowNumbers, part_sizes: Sequence[int], groups: RowNumbers | None
) -> list[RowNumbers]:
    """Divide rows, in their order, into parts of about these sizes; rows of one group stay in one part.

    ``groups`` has the group of every row of the public split. Where no two of the rows belong together, the parts are
    cut off one after the other, and their sizes are exact.
    """
    if groups is None or len(np.unique(groups[rows])) == len(rows):
        return np.split(rows, np.cumsum(part_sizes)[:-1])
    group_sizes = Counter(groups[rows].tolist())
    if len(group_sizes) < len(part_sizes):
        raise TaskError(
            f"the rows make {len(group_sizes)} group(s) of the same text or passage,"
            f" too few for {len(part_sizes)} splits",
            hint="give more rows, fewer folds, or files of your own for train, validation and test;"
            " drop_overlap: false allows the same text in several splits",
        )
    part_by_group = _assign_groups(group_sizes, part_sizes)
    part_by_row = np.array([part_by_group[group] for group in groups[rows].tolist()])
    return [rows[part_by_row == part] for part in range(len(part_sizes))]


def _assign_groups(group_sizes: Counter[int], part_sizes: Sequence[int]) -> dict[int, int]:
    """Return the number of the part that each group goes to: parts of about these sizes, none of them empty.

    The largest groups are placed first. Each goes to the part that is emptiest in proportion to its size, among the
    parts that still have room for the whole group; where none has room, to the part that lacks most rows. So every
    part gets large and small groups.
    """
    part_by_group: dict[int, int] = {}
    missing_rows = list(part_sizes)
    empty_parts = set(range(len(part_sizes)))
    # equally large groups stay in the order of the shuffled rows
    for group, group_size in group_sizes.most_common():
        groups_to_place = len(group_sizes) - len(part_by_group)
        candidates: Iterable[int] = range(len(part_sizes))
        if groups_to_place <= len(empty_parts):  # each group that is left fills an empty part
            candidates = sorted(empty_parts)
        roomy_parts = [part for part in candidates if missing_rows[part] >= group_size]
        if roomy_parts:
            part = max(roomy_parts, key=lambda number: missing_rows[number] / part_sizes[number])
        else:
            part = max(candidates, key=lambda number: missing_rows[number])
        part_by_group[group] = part
        missing_rows[part] -= group_size
        empty_parts.discard(part)
    return part_by_group


def hold_out_documents(
    subtask_sizes: Sequence[Mapping[str, int]], *, hold_out: int, seed: int
) -> DividedTask:
    """Divide auxiliary data: ``hold_out`` documents of train become validation, all others are trained on."""
    available = [_take_all_rows("train", sizes.get("train") or 0) for sizes in subtask_sizes]
    total = count_rows(available)
    if hold_out and hold_out >= total:
        raise TaskError(f"{hold_out} examples to hold out of {total} leave none to train on")
    held_out = cap_rows(available, hold_out, seed=seed)
    train = []
    for subtask_rows, held_rows in zip(available, held_out, strict=True):
        trained_rows = set(subtask_rows.rows) - set(held_rows.rows)
        train.append(SplitRows("train", tuple(sorted(trained_rows))))
    rows: dict[Split, list[SplitRows]] = {
        "train": train,
        "validation": held_out,
        "test": [SplitRows("test", ()) for _ in available],
    }
    held_out_origin = SplitOrigin(SplitOriginKind.HELD_OUT, "train") if hold_out else EMPTY_ORIGIN
    origins: dict[Split, tuple[SplitOrigin, ...]] = {
        "train": (_public_origin("train"),),
        "validation": (held_out_origin,),
        "test": (EMPTY_ORIGIN,),
    }
    return DividedTask(rows, origins)


def cap_rows(subtask_rows: Sequence[SplitRows], cap: int | None, *, seed: int) -> list[SplitRows]:
    """Keep at most ``cap`` rows of a split over all its subtasks: a seeded sample, in the public order."""
    total = count_rows(subtask_rows)
    if cap is None or total <= cap:
        return list(subtask_rows)
    is_kept = np.zeros(total, dtype=bool)
    is_kept[np.random.default_rng([seed, _CAP_STREAM]).permutation(total)[:cap]] = True
    capped = []
    start = 0
    for split_rows in subtask_rows:
        end = start + len(split_rows.rows)
        kept_rows = tuple(itertools.compress(split_rows.rows, is_kept[start:end]))
        capped.append(replace(split_rows, rows=kept_rows))
        start = end
    return capped


def count_rows(subtask_rows: Sequence[SplitRows]) -> int:
    """Return how many rows the subtasks have together."""
    return sum(len(split_rows.rows) for split_rows in subtask_rows)


def _take_from_train(rows: RowNumbers) -> SplitRows:
    return SplitRows("train", tuple(np.sort(rows).tolist()))


def _take_all_rows(public_split: str, row_count: int) -> SplitRows:
    return SplitRows(public_split, tuple(range(row_count)))
