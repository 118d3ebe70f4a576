"""Made-up sequences that scoring routes are tried on: long beside short, branching, of several adapters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from potentia.engine.layers.prefix_tree import PrefixTreeRow, ScoredSequence
from potentia.engine.models.tokenization import Ids

TOKEN_KINDS = 64  # that trial rows are made of
FEWEST_TOKEN_KINDS = 8
COMPARED_TAIL = 64  # last tokens of a long text that are compared: what lies before them is in them


@dataclass(frozen=True)
class TrialLengths:
    """How long trial sequences are: up to ``longest`` tokens, with some at the end of each of the shorter ranges."""

    seed: int
    longest: int
    range_ends: tuple[int, ...]
    max_length: int  # of the model


class TrialRowMaker:
    """Make trial sequences from the tokens of real requests; the same ones for the same seed."""

    def __init__(self, lengths: TrialLengths, texts: Sequence[Ids], vocabulary: int) -> None:
        self.lengths = lengths
        self.draw = random.Random(lengths.seed)
        self.tokens = choose_tokens(texts, vocabulary, self.draw)
        self.deepest = min(lengths.longest, lengths.max_length)

    def make_plain_sequences(
        self, owners: Sequence[int], first_index: int = 0
    ) -> list[ScoredSequence]:
        """Make single sequences of many lengths."""
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
        """Make sequences whose rows are both as deep and as wide as the range goes."""
        deepest = self.deepest
        deep_stem = self._draw_tokens(deepest - 8)
        flat_stem = self._draw_tokens(max(2, deepest // 6))
        nested_stem = [*flat_stem, *self._draw_tokens(2)]
        deep_group = [(deep_stem, self._draw_tokens(count)) for count in (1, 2, 5)]
        nested_group = [(flat_stem, self._draw_tokens(count)) for count in (1, 3)]
        nested_group += [(nested_stem, self._draw_tokens(count)) for count in (2, 4, 4)]
        # branches of a short stem, side by side until the row is as long as the range goes
        branches = max(2, self.lengths.longest // 3)
        wide_group = [(flat_stem, self._draw_tokens(4)) for _ in range(branches)]
        short_pair = (self._draw_tokens(3), self._draw_tokens(2))
        long_pair = (self._draw_tokens(deepest // 2), self._draw_tokens(3))
        groups = [deep_group, nested_group, wide_group, [short_pair, long_pair]]
        return self._sequences_from(groups, owners, first_index)

    def _draw_tokens(self, count: int) -> Ids:
        return [self.draw.choice(self.tokens) for _ in range(max(1, count))]

    def _sequences_from(
        self, groups: list[list[tuple[Ids, Ids]]], owners: Sequence[int], first_index: int
    ) -> list[ScoredSequence]:
        """Join stems and what is scored after them; groups belong to the owners in turn."""
        sequences: list[ScoredSequence] = []
        for number, group in enumerate(groups):
            owner = owners[number % len(owners)]
            for stem, tail in group:
                fitting_rest = tail[: max(1, self.lengths.max_length + 1 - len(stem))]
                sequence = ScoredSequence(
                    index=first_index + len(sequences),
                    ids=stem + fitting_rest,
                    scored=len(fitting_rest),
                    owner=owner,
                )
                sequences.append(sequence)
        return sequences


def choose_tokens(texts: Sequence[Ids], vocabulary: int, draw: random.Random) -> list[int]:
    """Choose tokens to make rows from: those of the requests, and others where these are few."""
    tokens = list(dict.fromkeys(chain.from_iterable(texts)))
    if len(tokens) > TOKEN_KINDS:
        tokens = draw.sample(tokens, TOKEN_KINDS)
    if len(tokens) >= FEWEST_TOKEN_KINDS:
        return tokens
    return [*tokens, *(draw.randrange(vocabulary) for _ in range(16))]


@dataclass(frozen=True)
class _ReadSpot:
    """A sequence of a row, its depth, and how far its last node is from where it would be alone."""

    sequence: ScoredSequence
    depth: int
    shift: int


def choose_compared(rows: Sequence[PrefixTreeRow], count: int) -> list[ScoredSequence]:
    """Choose the sequences to compare: the deepest, the one farthest from its stem, others between, and all owners."""
    spots: list[_ReadSpot] = []
    for row in rows:
        for sequence, nodes in row.reads:
            depth = row.depths[nodes[-1]]
            spots.append(_ReadSpot(sequence, depth, nodes[-1] - depth))
    by_depth = sorted(spots, key=lambda spot: spot.depth)
    by_shift = sorted(spots, key=lambda spot: spot.shift)
    chosen = [by_depth[-1], by_shift[-1], by_depth[0], by_shift[len(by_shift) // 2]][:count]
    chosen += {spot.sequence.owner: spot for spot in by_shift}.values()
    return list({spot.sequence.index: spot.sequence for spot in chosen}.values())
