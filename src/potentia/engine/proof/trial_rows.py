"""Made-up sequences for the check of scoring routes (``scoring_check``): long beside short, branching, several owners.

An owner is the slot of the adapter that a sequence is scored with, or −1 for the bare model. A *stem* is the beginning
that several sequences share; their *branches* are what is scored after it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from potentia.engine.layers.prefix_tree import PrefixTreeRow, ScoredSequence
from potentia.engine.models.tokenization import Ids

TOKEN_KINDS = 64  # different tokens that trial sequences are made of, at most
FEWEST_TOKEN_KINDS = 8  # where requests have fewer, others are drawn from the vocabulary
DRAWN_TOKENS = 16  # that are drawn then
# lengths of branches, in tokens
DEEP_STEM_ROOM = 8  # tokens that a deep stem leaves for its branches
DEEP_BRANCHES = (1, 2, 5)
FLAT_BRANCHES = (1, 3)
NESTED_BRANCHES = (2, 4, 4)
WIDE_BRANCH = 4
# last tokens of a long sequence that are scored: they depend on all that comes before
COMPARED_TAIL = 64


@dataclass(frozen=True)
class TrialLengths:
    """How long trial sequences are, and the seed that they are drawn by."""

    seed: int
    longest: int  # tokens of the longest row
    range_ends: tuple[int, ...]  # ends of the ranges of lengths: some sequences end at each
    max_length: int  # tokens that the model reads


class TrialRowMaker:
    """Makes trial sequences from the tokens of real requests; the same ones for the same seed."""

    def __init__(self, lengths: TrialLengths, request_ids: Sequence[Ids], vocabulary: int) -> None:
        self.lengths = lengths
        self.generator = random.Random(lengths.seed)
        self.tokens = choose_tokens(request_ids, vocabulary, self.generator)
        self.deepest = min(lengths.longest, lengths.max_length)  # tokens of the longest sequence

    def make_plain_sequences(
        self, owners: Sequence[int], first_index: int = 0
    ) -> list[ScoredSequence]:
        """Make sequences of many lengths that share no beginnings; ``first_index`` numbers the first one."""
        deepest = self.deepest
        range_ends = {end for end in self.lengths.range_ends if 3 < end < deepest}
        lengths = sorted({3, 5, max(3, deepest // 2), deepest - 1, deepest, *range_ends})
        groups: list[list[tuple[Ids, Ids]]] = []
        for length in lengths:
            stem = self._draw_tokens(1 + max(0, length - COMPARED_TAIL))
            tail = self._draw_tokens(min(length, COMPARED_TAIL))
            groups.append([(stem, tail)])
        return self._sequences_from(groups, owners, first_index)

    def make_branching_sequences(
        self, owners: Sequence[int], first_index: int = 0
    ) -> list[ScoredSequence]:
        """Make groups of sequences with shared beginnings; ``first_index`` numbers the first sequence.

        One group has a stem as deep as the range of lengths goes, another so many branches that its row is as long.
        """
        deepest = self.deepest
        deep_stem = self._draw_tokens(deepest - DEEP_STEM_ROOM)
        flat_stem = self._draw_tokens(max(2, deepest // 6))
        nested_stem = [*flat_stem, *self._draw_tokens(2)]
        deep_group = [(deep_stem, self._draw_tokens(count)) for count in DEEP_BRANCHES]
        nested_group = [(flat_stem, self._draw_tokens(count)) for count in FLAT_BRANCHES]
        nested_group += [(nested_stem, self._draw_tokens(count)) for count in NESTED_BRANCHES]
        # branches of a short stem, side by side until the row is as long as the range goes
        branch_count = max(2, self.lengths.longest // 3)
        wide_group = [(flat_stem, self._draw_tokens(WIDE_BRANCH)) for _ in range(branch_count)]
        short_pair = (self._draw_tokens(3), self._draw_tokens(2))
        long_pair = (self._draw_tokens(deepest // 2), self._draw_tokens(3))
        groups = [deep_group, nested_group, wide_group, [short_pair, long_pair]]
        return self._sequences_from(groups, owners, first_index)

    def _draw_tokens(self, count: int) -> Ids:
        return [self.generator.choice(self.tokens) for _ in range(max(1, count))]

    def _sequences_from(
        self, groups: list[list[tuple[Ids, Ids]]], owners: Sequence[int], first_index: int
    ) -> list[ScoredSequence]:
        """Join pairs of a stem and a scored tail into sequences; groups of them belong to the owners in turn."""
        sequences: list[ScoredSequence] = []
        for number, group in enumerate(groups):
            owner = owners[number % len(owners)]
            for stem, tail in group:
                # the model does not read the last token, so a sequence may be longer by one
                fitting_tail = tail[: max(1, self.lengths.max_length + 1 - len(stem))]
                sequence = ScoredSequence(
                    index=first_index + len(sequences),
                    ids=stem + fitting_tail,
                    scored=len(fitting_tail),
                    owner=owner,
                )
                sequences.append(sequence)
        return sequences


def choose_tokens(
    request_ids: Sequence[Ids], vocabulary: int, generator: random.Random
) -> list[int]:
    """Choose the tokens that sequences are made of: those of the requests, and others where these are few."""
    tokens = list(dict.fromkeys(chain.from_iterable(request_ids)))
    if len(tokens) > TOKEN_KINDS:
        tokens = generator.sample(tokens, TOKEN_KINDS)
    if len(tokens) >= FEWEST_TOKEN_KINDS:
        return tokens
    return [*tokens, *(generator.randrange(vocabulary) for _ in range(DRAWN_TOKENS))]


@dataclass(frozen=True)
class _PlacedSequence:
    """Where a sequence ends in its row."""

    sequence: ScoredSequence
    depth: int  # of its last node: tokens before it in the sequence
    shift: int  # tokens of other sequences that lie before its last node in the row


def choose_compared_sequences(rows: Sequence[PrefixTreeRow], count: int) -> list[ScoredSequence]:
    """Choose up to ``count`` sequences to compare, and one more of every owner.

    First come the deepest one and the one with the most tokens of others before it.
    """
    placed: list[_PlacedSequence] = []
    for row in rows:
        for sequence, nodes in row.reads:
            depth = row.depths[nodes[-1]]
            placed.append(_PlacedSequence(sequence, depth, shift=nodes[-1] - depth))
    by_depth = sorted(placed, key=lambda entry: entry.depth)
    by_shift = sorted(placed, key=lambda entry: entry.shift)
    middle = by_shift[len(by_shift) // 2]
    chosen = [by_depth[-1], by_shift[-1], by_depth[0], middle][:count]
    chosen += {entry.sequence.owner: entry for entry in by_shift}.values()
    return list({entry.sequence.index: entry.sequence for entry in chosen}.values())
