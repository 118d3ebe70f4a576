"""Prefix trees: sequences to score are packed into rows so that what several begin with is computed once.

A row holds one tree or several, as tokens in preorder. A token is a node, and may attend to itself and its ancestors
alone. ``subtree_ends[j]`` is one past the last node of j's subtree, so that node i sees node j exactly when
j <= i < subtree_ends[j]. The choices of a question are branches of one stem, single-token choices are no branches at
all, a few-shot prompt is a stem for many questions, and unrelated questions stand side by side without seeing each
other.

:func:`pack_sequences` makes the rows, :func:`group_rows` the batches that go through the model together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from potentia.engine.models.tokenization import count_common_prefix

BRANCH_ALLOWANCE = 0.25  # a row may grow beyond its limit by this share, for branches of a stem that is already in it
NO_OWNER = -2  # of a row that has no sequence yet; owner -1 is the model without an adapter


@dataclass(slots=True)
class ScoredSequence:
    """One sequence to score: its last ``scored`` tokens are predicted, from at least one token before them.

    The very last token is a prediction's target only, and never fed to the model.
    """

    index: int  # of the request that it belongs to
    ids: list[int]
    scored: int
    owner: int = -1  # the slot of the adapter that it is scored with; -1 for none


@dataclass(slots=True)
class PrefixTreeRow:
    """One row: the tokens of its trees in preorder, and at which nodes each sequence reads its predictions."""

    owner: int  # of all its sequences
    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)  # the tokens' positions in their sequences
    subtree_ends: list[int] = field(default_factory=list)  # one past each node's last descendant
    reads: list[tuple[ScoredSequence, list[int]]] = field(default_factory=list)
    needs_mask: bool = False  # whether some token must not see all that precede it in the row

    def __len__(self) -> int:
        return len(self.tokens)

    def end_subtrees(self, nodes: Sequence[int]) -> None:
        """Record that the subtrees of these nodes end with the last token of the row so far."""
        for node in nodes:
            self.subtree_ends[node] = len(self.tokens)

    def append_tokens(self, tokens: Sequence[int], first_depth: int) -> None:
        """Append a chain of tokens: each is the child of the one before it."""
        self.tokens += tokens
        self.depths += range(first_depth, first_depth + len(tokens))
        self.subtree_ends += [0] * len(tokens)


def pack_sequences(
    sequences: Sequence[ScoredSequence],
    row_tokens: int,
    *,
    share: bool,
    longest_shared: int | None = None,
    max_tokens: int | None = None,
) -> list[PrefixTreeRow]:
    """Pack sequences into rows of about ``row_tokens`` tokens, each row with sequences of one owner.

    Without ``share``, and for sequences of more than ``longest_shared`` tokens, a row holds one sequence, its
    duplicates and sequences that are a beginning of it: such rows need no mask. No shared row grows beyond
    ``max_tokens``; a sequence that is longer by itself still gets a row.
    """
    longest_to_share = sys.maxsize
    if share and longest_shared is not None:
        longest_to_share = longest_shared
    most_tokens = sys.maxsize if max_tokens is None else max_tokens
    shared_row_tokens = row_tokens if share else 0
    short = [sequence for sequence in sequences if len(sequence.ids) <= longest_to_share]
    long = [sequence for sequence in sequences if len(sequence.ids) > longest_to_share]
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
    path: list[int] = []  # the nodes of the last sequence, from its first token to its last
    path_tokens: list[int] = []
    for sequence in sorted(sequences, key=attrgetter("owner", "ids")):
        inputs = sequence.ids[:-1]
        shared = 0
        may_join = row.owner == sequence.owner
        if may_join:
            shared = count_common_prefix(path_tokens, inputs)
        new_tokens = len(inputs) - shared
        if may_join and new_tokens:
            if row_tokens:
                limit = _limit_row_length(row_tokens, shared, len(inputs))
                may_join = len(row) + new_tokens <= min(limit, most_tokens)
            else:
                may_join = shared == len(path) == len(row)  # it continues the row's only sequence
        if may_join:
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
            continues_last_node = bool(path) and path[-1] == first_new - 1
            row.needs_mask |= first_new > 0 and not continues_last_node
            row.append_tokens(inputs[shared:], shared)
            path += range(first_new, first_new + new_tokens)
        path_tokens = inputs
        assert sequence.scored <= len(path), "nothing predicts the first token of a sequence"
        row.reads.append((sequence, path[len(path) - sequence.scored :]))
    row.end_subtrees(path)
    return rows


def _limit_row_length(row_tokens: int, shared: int, length: int) -> int:
    """Return how long a row may become with a sequence of ``length`` tokens, ``shared`` of which it already has.

    That is ``row_tokens``, unless the row already has more than half of the sequence: a new row would compute that part
    again, so this one may grow to two such sequences (or ``row_tokens``, if that is more) and a quarter beyond.
    """
    if shared <= length - shared:
        return row_tokens
    limit = max(row_tokens, 2 * length)
    return limit + int(BRANCH_ALLOWANCE * limit)


def group_rows(
    rows: Sequence[PrefixTreeRow], budget: int, mask_cells: int
) -> Iterator[list[PrefixTreeRow]]:
    """Group rows of similar length into batches, longest first: each stays within ``budget`` tokens, padding included.

    Rows that need a mask and rows that need none never mix. ``mask_cells`` bounds rows × longest², the size of a
    batch's mask. A row that exceeds a bound by itself is a batch of its own.
    """
    for needs_mask in (True, False):
        rows_alike = [row for row in rows if row.needs_mask is needs_mask]
        longest_first = sorted(rows_alike, key=len, reverse=True)
        start = 0
        while start < len(longest_first):
            longest = max(len(longest_first[start]), 1)
            count = max(1, budget // longest)
            if needs_mask:
                count = max(1, min(count, mask_cells // longest**2))
            yield longest_first[start : start + count]
            start += count
