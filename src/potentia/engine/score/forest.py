"""Packing: many token sequences into few rows, with every shared beginning computed once.

A row is a forest in preorder. A node is a token; its ancestors are what it may look at; ``ends[j]`` is one past the
last node of j's subtree, so that node i sees node j exactly when j <= i < ends[j]. The choices of a question are
branches of one stem, single-token choices are no branches at all, a few-shot prompt is a stem for many questions,
and unrelated questions stand side by side in a row without seeing each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

OVERHANG = 4  # branches of a stem that is already in a row may exceed the row's length by a quarter


@dataclass(frozen=True, slots=True)
class Strand:
    """One sequence to score: its last ``scored`` tokens are predicted, and the last of all is never fed in."""

    index: int
    ids: list[int]
    scored: int
    owner: int = -1


@dataclass(slots=True)
class Forest:
    """Tokens in preorder, their depths (positions), the ends of their subtrees, and who reads a prediction where."""

    owner: int
    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    reads: list[tuple[Strand, list[int]]] = field(default_factory=list)
    branches: bool = False

    def __len__(self) -> int:
        return len(self.tokens)


class _Planter:
    """Grow one row at a time from sequences in lexicographic order, so that neighbours share the most."""

    def __init__(self, row_tokens: int, *, share: bool, most: int | None = None) -> None:
        self.row_tokens = row_tokens
        self.most = most
        self.share = share
        self.rows: list[Forest] = []
        self.row: Forest | None = None
        self.path: list[int] = []  # nodes from the root to the tip
        self.inputs: list[int] = []  # their tokens

    def add(self, strand: Strand) -> None:
        inputs = strand.ids[:-1]
        row = self.row
        shared = common_prefix(self.inputs, inputs) if row is not None and row.owner == strand.owner else 0
        if row is None or not self._fits(row, strand.owner, len(inputs), shared):
            self._close()
            row = self.row = Forest(strand.owner)
            self.rows.append(row)
            shared = 0
        fresh = len(inputs) - shared
        self._seal(row, shared)
        if fresh:
            start = len(row.tokens)
            if start and (not self.path or self.path[-1] != start - 1):
                row.branches = True
            row.tokens.extend(inputs[shared:])
            row.depths.extend(range(shared, len(inputs)))
            row.ends.extend([0] * fresh)
            self.path.extend(range(start, start + fresh))
        self.inputs = inputs
        row.reads.append((strand, self.path[len(self.path) - strand.scored :]))

    def _fits(self, row: Forest, owner: int, length: int, shared: int) -> bool:
        if row.owner != owner:
            return False
        fresh = length - shared
        if fresh == 0:
            return True
        if not self.share:
            return shared == len(self.path) == len(row.tokens)  # a longer copy of the only sequence in the row
        limit = self.row_tokens
        if shared > fresh:
            limit = max(limit, 2 * length)
            limit += limit // OVERHANG
        if self.most is not None:
            limit = min(limit, self.most)
        return len(row.tokens) + fresh <= limit

    def _seal(self, row: Forest, keep: int) -> None:
        """End the subtrees of all nodes below the depth that the next sequence shares."""
        ends, end = row.ends, len(row.tokens)
        for node in self.path[keep:]:
            ends[node] = end
        del self.path[keep:]

    def _close(self) -> None:
        if self.row is not None:
            self._seal(self.row, 0)
        self.row = None
        self.path = []
        self.inputs = []

    def finish(self) -> list[Forest]:
        self._close()
        return self.rows


def plant(
    strands: Sequence[Strand],
    row_tokens: int,
    *,
    share: bool,
    longest_shared: int | None = None,
    most: int | None = None,
) -> list[Forest]:
    """Pack sequences into rows of about ``row_tokens`` tokens.

    Without ``share``, and for sequences longer than ``longest_shared``, a row holds a single sequence (and its
    duplicates), so that it needs no mask of its own. Rows that are shared hold ``most`` tokens at most. A row never
    mixes owners.
    """
    cut = longest_shared if share and longest_shared is not None else None
    together = [s for s in strands if cut is None or len(s.ids) <= cut]
    apart = [s for s in strands if cut is not None and len(s.ids) > cut]
    rows: list[Forest] = []
    for group, sharing in ((together, share), (apart, False)):
        planter = _Planter(row_tokens, share=sharing, most=most)
        for strand in sorted(group, key=lambda s: (s.owner, s.ids)):
            planter.add(strand)
        rows += planter.finish()
    return rows


def batches(rows: Sequence[Forest], budget: int, mask_cells: int) -> Iterator[list[Forest]]:
    """Group rows of similar length so that rows × longest stays within ``budget`` tokens; longest first.

    ``mask_cells`` bounds rows × longest² of batches that need a mask; they never mix with rows that need none.
    """
    for masked in (True, False):
        queue = sorted((row for row in rows if row.branches is masked), key=len, reverse=True)
        start = 0
        while start < len(queue):
            longest = max(len(queue[start]), 1)
            count = max(1, budget // longest)
            if masked:
                count = max(1, min(count, mask_cells // longest**2))
            yield queue[start : start + count]
            start += count


def common_prefix(one: list[int], other: list[int]) -> int:
    """Count the tokens on which two sequences agree from the start, by bisection over slices."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # one[:low] agrees, one[:high] does not
        middle = (low + high) // 2
        if middle == low:
            break
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
