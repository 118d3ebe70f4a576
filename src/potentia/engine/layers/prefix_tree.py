"""Rows that share beginnings: sequences to score are packed into prefix trees, one tree or several in a row.

A row holds its trees in preorder. A node is a token; its ancestors are what it may look at; ``ends[j]`` is one past the
last node of j's subtree, so that node i sees node j exactly when j <= i < ends[j]. The choices of a question are
branches of one stem, single-token choices are no branches at all, a few-shot prompt is a stem for many questions,
and unrelated questions stand side by side in a row without seeing each other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from potentia.engine.models.tokenization import count_common_prefix

OVERHANG = 4  # branches of a stem that is already in a row may exceed the row's length by a quarter
NO_OWNER = -2  # of a row that is still empty; -1 is the bare model


@dataclass(slots=True)
class ScoredSequence:
    """One sequence to score: its last ``scored`` tokens are predicted, and the last of all is never fed in."""

    index: int  # of the request that it belongs to
    ids: list[int]
    scored: int
    owner: int = -1  # the adapter that it is scored with


@dataclass(slots=True)
class PrefixTreeRow:
    """Tokens in preorder, their depths (positions), the ends of their subtrees, and who reads a prediction where."""

    owner: int
    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    reads: list[tuple[ScoredSequence, list[int]]] = field(default_factory=list)
    has_branches: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def end_subtrees(self, nodes: Sequence[int]) -> None:
        """Note that the subtrees of these nodes end with what the row holds now."""
        for node in nodes:
            self.ends[node] = len(self.tokens)

    def append_tokens(self, tokens: Sequence[int], first_depth: int) -> None:
        """Append tokens of which each is the child of the one before it."""
        self.tokens += tokens
        self.depths += range(first_depth, first_depth + len(tokens))
        self.ends += [0] * len(tokens)


def pack_sequences(
    sequences: Sequence[ScoredSequence],
    row_tokens: int,
    *,
    share: bool,
    longest_shared: int | None = None,
    max_tokens: int | None = None,
) -> list[PrefixTreeRow]:
    """Pack sequences into rows of about ``row_tokens`` tokens.

    Without ``share``, and for sequences longer than ``longest_shared``, a row holds a single sequence (and its
    duplicates), so that it needs no mask of its own. Rows that are shared hold ``most`` tokens at most. A row never
    mixes owners.
    """
    longest = sys.maxsize
    if share and longest_shared is not None:
        longest = longest_shared
    most_tokens = sys.maxsize if max_tokens is None else max_tokens
    shared_row_tokens = row_tokens if share else 0
    short = [sequence for sequence in sequences if len(sequence.ids) <= longest]
    long = [sequence for sequence in sequences if len(sequence.ids) > longest]
    rows = _grow_rows(short, shared_row_tokens, most_tokens)
    return rows + _grow_rows(long, 0, most_tokens)


def _grow_rows(
    sequences: list[ScoredSequence], row_tokens: int, most_tokens: int
) -> list[PrefixTreeRow]:
    """Grow one row at a time from sequences in lexicographic order, so that neighbours share the most.

    With ``row_tokens`` 0, sequences share a row only where one is the beginning of the other.
    """
    rows: list[PrefixTreeRow] = []
    row = PrefixTreeRow(NO_OWNER)
    path: list[int] = []  # nodes from the root to the last one
    path_tokens: list[int] = []
    for sequence in sorted(sequences, key=attrgetter("owner", "ids")):
        inputs = sequence.ids[:-1]
        shared = 0
        fits = row.owner == sequence.owner
        if fits:
            shared = count_common_prefix(path_tokens, inputs)
        new_tokens = len(inputs) - shared
        if fits and new_tokens:
            if row_tokens:
                limit = _row_limit(row_tokens, shared, len(inputs))
                fits = len(row) + new_tokens <= min(limit, most_tokens)
            else:
                fits = shared == len(path) == len(row)  # a longer copy of the only sequence
        if fits:
            row.end_subtrees(path[shared:])
        else:
            row.end_subtrees(path)
            row = PrefixTreeRow(sequence.owner)
            rows.append(row)
            path = []
            shared = 0
            new_tokens = len(inputs)
        del path[shared:]
        if new_tokens:
            first_new = len(row)
            follows_last = bool(path) and path[-1] == first_new - 1
            row.has_branches |= first_new > 0 and not follows_last
            row.append_tokens(inputs[shared:], shared)
            path += range(first_new, first_new + new_tokens)
        path_tokens = inputs
        row.reads.append((sequence, path[len(path) - sequence.scored :]))
    row.end_subtrees(path)
    return rows


def _row_limit(row_tokens: int, shared: int, length: int) -> int:
    """Return how long a row may become by a sequence of which so many tokens are in it."""
    if shared <= length - shared:
        return row_tokens
    limit = max(row_tokens, 2 * length)
    return limit + limit // OVERHANG


def group_rows(
    rows: Sequence[PrefixTreeRow], budget: int, mask_cells: int
) -> Iterator[list[PrefixTreeRow]]:
    """Group rows of similar length so that rows × longest stays within ``budget`` tokens; longest first.

    ``mask_cells`` bounds rows × longest² of groups that need a mask; they never mix with rows that need none.
    """
    for masked in (True, False):
        alike = [row for row in rows if row.has_branches is masked]
        queue = sorted(alike, key=len, reverse=True)
        start = 0
        while start < len(queue):
            longest = max(len(queue[start]), 1)
            count = max(1, budget // longest)
            if masked:
                count = max(1, min(count, mask_cells // longest**2))
            yield queue[start : start + count]
            start += count
