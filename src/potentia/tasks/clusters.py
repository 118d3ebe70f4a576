"""Which examples of a task share a passage: they are a cluster, and their outcomes are not independent.

Standard errors and tests allow for clusters. A study names the column whose equal values make clusters (``cluster:
passage``). Where it does not, Potentia looks at the columns that usually hold a passage.

When a user's file is divided into splits, rows of one cluster stay in one split, as do rows with the same text
(``group_rows``).
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

import numpy as np

from potentia.errors import TaskError
from potentia.tasks.splits import RowNumbers
from potentia.values.clusters import find_passage_column

_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))


def normalise_words(text: str) -> str:
    """Return a text without case and punctuation."""
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def group_rows(labels_by_row: Sequence[Sequence[str]]) -> RowNumbers | None:
    """Return the number of each row's group: rows that share a label, such as a passage or a text, are in one group.

    So are rows that are linked through others: a row that shares its passage with a second row and its text with a
    third is in one group with both. None if no two rows share a label.
    """
    from scipy.cluster.hierarchy import DisjointSet

    groups = DisjointSet(range(len(labels_by_row)))
    first_row_by_label: dict[str, int] = {}
    for row, labels in enumerate(labels_by_row):
        for label in labels:
            groups.merge(first_row_by_label.setdefault(label, row), row)
    if groups.n_subsets == len(labels_by_row):
        return None
    return np.array([groups[row] for row in range(len(labels_by_row))])


def find_cluster_column(
    examples: Sequence[Mapping[str, object]], stated_column: str | None, task_name: str
) -> str | None:
    """Return the column that holds the passage of these examples; None if no two of them share a passage.

    That is the column that a study states, which must exist, else the first usual column that holds passages.
    """
    if not examples:
        return None
    if stated_column is not None:
        if stated_column not in examples[0]:
            columns = ", ".join(map(str, examples[0]))
            raise TaskError(
                f"{task_name} has no column {stated_column!r} to make clusters of",
                hint=f"its columns are: {columns}",
            )
        return stated_column
    return find_passage_column(examples)
