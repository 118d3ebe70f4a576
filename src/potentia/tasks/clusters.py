"""Which examples of a task share a passage: their outcomes are not independent, and errors must know it.

A study names the column (``cluster: passage``). Where it does not, the columns that hold a passage in public tasks
and in most people's files are looked at: examples with the same text there are one cluster.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from potentia.errors import TaskError

# Of boolq, drop and record; of race; of squad, social_iqa and most people's files; of multirc; of coqa.
PASSAGE_COLUMNS = ("passage", "article", "context", "paragraph", "story")
LONGEST_LABEL = 40  # characters; a longer value is named by its hash
LEAST_CLUSTERS = 10  # that a column must make to be taken unasked
LARGEST_SHARE = (
    0.5  # of the examples that one value may have: more is an instruction, and no passage
)


def label_cluster(value: Any) -> str:
    """Return the name of the cluster of an example with this value; none where it is empty."""
    text = "" if value is None else str(value).strip()
    if len(text) <= LONGEST_LABEL:
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def find_cluster_column(
    examples: Sequence[Mapping[str, Any]], stated: str | None, task: str
) -> str | None:
    """Return the column that holds the passage of these examples; None where no two share one.

    ``stated`` is the column that a study names: it must be there.
    """
    if not examples:
        return None
    if stated is not None:
        if stated not in examples[0]:
            columns = ", ".join(map(str, examples[0]))
            raise TaskError(
                f"{task} has no column {stated!r} to make clusters of",
                hint=f"its columns are: {columns}",
            )
        return stated
    for column in PASSAGE_COLUMNS:
        if _holds_passages([example.get(column) for example in examples]):
            return column
    return None


def _holds_passages(values: Sequence[Any]) -> bool:
    """Whether these are passages of which some come more than once, and none nearly always."""
    if not all(isinstance(value, str) for value in values):
        return False
    counts = Counter(value for value in values if value.strip())
    if len(counts) < LEAST_CLUSTERS:
        return False
    most = counts.most_common(1)[0][1]
    return 1 < most <= LARGEST_SHARE * len(values)
