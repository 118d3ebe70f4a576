"""Sums over pairs of models, from which Kendall's tau-b follows: concordance, and pairs untied on either side.

Three ways to them, one answer. Unweighted, a sign is a bit or two: signs of 64 pairs fill a word, and the concordant
pairs of two tasks are counted in words, not multiplied. Weighted, a resample is a product with each pair (a, b)
weighted by w_a·w_b. And where models are drawn together, as families are, the weight of a pair hangs on its two units
only: pairs are summed by units once, and a resample costs as many products as there are pairs of units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from potentia.values.scores import Floats

Signs = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]
Sums = npt.NDArray[np.floating]
Index = npt.NDArray[np.intp]
Row = tuple[Signs, Signs | None, Signs | None, Signs | None]  # the signs on both sides, and which are known


class Pairs(Protocol):
    """Where signs of pairs come from; each side is (tasks, pairs). Which of a pair is first does not matter."""

    def block(self, start: int, stop: int) -> Row:
        """The models from start to stop, each with those after it."""

    def between(self, some: Index, others: Index) -> Row:
        """Some models, each with each of the others; a model with itself is a tie."""


class Totals:
    """Running sums over blocks of pairs: concordance, and pairs untied on one side among those known on both."""

    def __init__(self, left: int, right: int | None, resamples: int, *, gaps: bool) -> None:
        self.symmetric = right is None
        self.left, self.right = left, left if right is None else right
        self.gaps = gaps
        self.shape = (resamples, self.left, self.right)
        self.concordance = np.zeros(self.shape)
        self.untied_left, self.untied_right = np.zeros(self.shape), np.zeros(self.shape)

    def tau(self) -> Floats:
        """Tau-b of every two tasks; NaN where one of them ties all its pairs."""
        if self.symmetric and not self.gaps:  # then the diagonal of SᵀS counts the untied pairs
            untied = np.diagonal(self.concordance, axis1=1, axis2=2)
            self.untied_left, self.untied_right = untied[:, :, None], untied[:, None, :]
        with np.errstate(invalid="ignore", divide="ignore"):
            tau = self.concordance / np.sqrt(self.untied_left)
            tau /= np.sqrt(self.untied_right)
        return np.clip(tau, -1.0, 1.0, out=tau)

    # --- weighted ------------------------------------------------------------------------------------------------

    def add_weighted(self, pairs: Pairs, draws: npt.NDArray[np.floating], *, block: int, first_order: bool) -> None:
        """Add all pairs under every draw of models, in blocks of about ``block`` entries."""
        members = _units(draws)
        if draws.shape[1] < 2:
            return
        if 2 * len(members) <= draws.shape[1]:
            self._spread(self._by_units(pairs, members, draws))
        elif first_order:
            self._spread(self._by_models(pairs, draws))
        else:
            self._spread(self._by_pairs(pairs, draws, block))

    def _by_units(self, pairs: Pairs, members: list[Index], draws: npt.NDArray[np.floating]) -> list[Floats]:
        """Sum all pairs by the units of their models, then weigh these sums."""
        found: list[list[Sums]] = []
        for u, some in enumerate(members):
            found.append([part / 2 for part in self._summed(pairs.between(some, some))])  # every pair twice
            found += [self._summed(pairs.between(some, others)) for others in members[u + 1 :]]
        first = np.array([some[0] for some in members])
        a, b = np.triu_indices(len(members))
        pair = (draws[:, first[a]] * draws[:, first[b]]).T  # (pairs of units, resamples)
        return [np.stack(parts, axis=1).astype(draws.dtype) @ pair for parts in zip(*found, strict=True)]

    def _by_pairs(self, pairs: Pairs, draws: npt.NDArray[np.floating], block: int) -> list[Floats]:
        """Weigh every pair of models."""
        width = max(2 * self._products_of_one()[0].size, draws.shape[0], 1)
        columns = np.ascontiguousarray(draws.T)
        sums: list[Floats] = []
        for start, stop in model_blocks(draws.shape[1], max(1, block // width)):
            pair = np.concatenate([columns[m] * columns[m + 1 :] for m in range(start, stop)])  # (pairs, resamples)
            parts = [(found @ pair).astype(np.float64) for found in self._products(pairs.block(start, stop))]
            sums = [total + part for total, part in zip(sums, parts, strict=True)] if sums else parts
        return sums

    def _by_models(self, pairs: Pairs, draws: npt.NDArray[np.floating]) -> list[Floats]:
        """Weigh each model's pairs with all others, to first order in how the draws differ from one each."""
        weights = (draws - 0.5).astype(np.float64)  # row sums hold every pair twice: half of 1 + 2d, d = w - 1
        everyone = np.arange(draws.shape[1])
        found = [self._summed(pairs.between(everyone[m : m + 1], everyone)) for m in everyone]
        return [np.stack(parts, axis=1) @ weights.T for parts in zip(*found, strict=True)]

    def _products_of_one(self) -> tuple[Index, Index]:
        """Which tasks are multiplied: for a symmetric matrix only half of them."""
        if self.symmetric:
            return np.triu_indices(self.left)
        i, j = np.indices((self.left, self.right)).reshape(2, -1)
        return i, j

    def _products(self, row: Row) -> Iterator[Signs]:
        """Give what is summed over pairs, pair by pair: (products, pairs) of concordance, then of what is untied."""
        s, t, known_s, known_t = _both_sides(row)
        yield _each_with_each(s, t, self.symmetric)
        if self.gaps:
            yield _each_with_each(np.abs(s), _ones_or(known_t, t), False)
            if not self.symmetric:  # else it is the same, the other way round
                yield _each_with_each(_ones_or(known_s, s), np.abs(t), False)
        elif not self.symmetric:
            yield np.abs(s)
            yield np.abs(t)

    def _summed(self, row: Row) -> list[Sums]:
        """The same, summed over the pairs of this row: one product of matrices each."""
        s, t, known_s, known_t = _both_sides(row)
        i, j = self._products_of_one()
        found: list[Sums] = [(s @ t.T)[i, j]]
        if self.gaps:
            found.append((np.abs(s) @ _ones_or(known_t, t).T).ravel())
            if not self.symmetric:
                found.append((_ones_or(known_s, s) @ np.abs(t).T).ravel())
        elif not self.symmetric:
            found += [np.abs(s).sum(axis=1), np.abs(t).sum(axis=1)]
        return found

    def _spread(self, sums: list[Floats]) -> None:
        """Put sums of products, (products, resamples), where they belong: (resamples, tasks, other tasks)."""
        i, j = self._products_of_one()
        where = np.empty((self.left, self.right), dtype=np.intp)
        where[i, j] = np.arange(len(i))
        if self.symmetric:
            where[j, i] = where[i, j]
        self.concordance = np.take(np.ascontiguousarray(sums[0].T, dtype=np.float64), where, axis=1)
        if self.gaps:
            self.untied_left = left = np.ascontiguousarray(sums[1].T, dtype=np.float64).reshape(self.shape)
            self.untied_right = left.transpose(0, 2, 1) if self.symmetric else sums[2].T.reshape(self.shape)
        elif not self.symmetric:
            self.untied_left, self.untied_right = sums[1].T[:, :, None], sums[2].T[:, None, :]

    # --- unweighted ----------------------------------------------------------------------------------------------

    def add_bits(self, left: Bits, right: Bits | None) -> None:
        """Add the pairs that these bits stand for, of every resample."""
        other = left if right is None else right
        if self.right < self.left:  # go through the smaller side
            turned = Totals(self.right, self.left, len(self.concordance), gaps=self.gaps)
            turned.add_bits(other, left)
            self.concordance += turned.concordance.transpose(0, 2, 1)
            self.untied_left += turned.untied_right.transpose(0, 2, 1)
            self.untied_right += turned.untied_left.transpose(0, 2, 1)
            return
        for i in range(self.left):
            for total, found in self._counts(left.task(i), other.tasks(i if right is None else 0), other.pairs):
                total[:, i, other.above.shape[1] - found.shape[1] :] += found
        if self.symmetric:
            a, b = np.triu_indices(self.left, 1)
            self.concordance[:, b, a] = self.concordance[:, a, b]
            if self.gaps:
                self.untied_left[:, b, a] = self.untied_right[:, a, b]
                self.untied_right[:, b, a] = self.untied_left[:, a, b]

    def _counts(self, one: Bits, others: Bits, pairs: int) -> Iterator[tuple[Floats, npt.NDArray[np.int64]]]:
        """Count one task against others: what is added to which total, (resamples, others)."""
        if one.below is None and others.below is None:  # no ties, no gaps: signs part where bits do
            yield self.concordance, pairs - 2 * _count(one.above ^ others.above)
            if not self.symmetric:
                yield self.untied_left, np.full((1, others.above.shape[1]), pairs)
                yield self.untied_right, np.full((1, others.above.shape[1]), pairs)
            return
        below, others_below = one.other_bits(), others.other_bits()
        alike = _count((one.above & others.above) | (below & others_below))
        apart = _count((one.above & others_below) | (below & others.above))
        yield self.concordance, alike - apart
        if self.gaps:
            yield self.untied_left, _count((one.above | below) & others.known_bits())
            yield self.untied_right, _count(one.known_bits() & (others.above | others_below))
        elif not self.symmetric:
            yield self.untied_left, _count(one.above | below) + np.zeros((1, others.above.shape[1]), dtype=np.int64)
            yield self.untied_right, _count(others.above | others_below)


@dataclass(frozen=True)
class Bits:
    """Signs of pairs as bits, 64 to a word: (resamples, tasks, words). Bits past the last pair are clear."""

    pairs: int
    above: Words
    below: Words | None  # None: every pair is above or below
    known: Words | None  # None: every pair is known

    def task(self, i: int) -> Bits:
        """Return the bits of one task."""
        return self._part(slice(i, i + 1))

    def tasks(self, start: int) -> Bits:
        """Return the bits of the tasks from one on."""
        return self._part(slice(start, None))

    def other_bits(self) -> Words:
        """Return which pairs are below."""
        return self.known_bits() & ~self.above if self.below is None else self.below

    def known_bits(self) -> Words:
        """Return which pairs are known."""
        if self.known is not None:
            return self.known
        return _packed(np.ones((1, 1, self.pairs), dtype=bool))

    def _part(self, part: slice) -> Bits:
        below = None if self.below is None else self.below[:, part]
        return Bits(self.pairs, self.above[:, part], below, None if self.known is None else self.known[:, part])


def bits_of_signs(s: npt.NDArray[np.floating], known: npt.NDArray[np.bool_] | None) -> Bits:
    """Return signs (pairs, tasks) as bits."""
    above, below = (_packed(np.ascontiguousarray(flags.T)[None]) for flags in (s > 0, s < 0))
    return Bits(len(s), above, below, None if known is None else _packed(np.ascontiguousarray(known.T)[None]))


def bits_of_scores(x: npt.NDArray[np.generic], start: int, stop: int, *, tied: bool, gaps: bool) -> Bits:
    """Return the signs of models from start to stop against those after them: x is (resamples, tasks, models)."""
    there = ~np.isnan(x) if gaps else None
    pairs = sum(x.shape[2] - 1 - m for m in range(start, stop))
    above = _compared(np.greater, x, start, stop, pairs)
    below = _compared(np.less, x, start, stop, pairs) if tied or gaps else None
    return Bits(pairs, above, below, None if there is None else _compared(np.logical_and, there, start, stop, pairs))


def _compared(with_: np.ufunc, x: npt.NDArray[np.generic], start: int, stop: int, pairs: int) -> Words:
    flags = np.zeros((*x.shape[:2], -(-pairs // 64) * 64), dtype=bool)  # padded to whole words
    end = 0
    for m in range(start, stop):
        end, begin = end + x.shape[2] - 1 - m, end
        with_(x[:, :, m : m + 1], x[:, :, m + 1 :], out=flags[:, :, begin:end])
    return np.packbits(flags, axis=2).view(np.uint64)


def _packed(flags: npt.NDArray[np.bool_]) -> Words:
    padded = np.zeros((*flags.shape[:2], -(-flags.shape[2] // 64) * 64), dtype=bool)
    padded[:, :, : flags.shape[2]] = flags
    return np.packbits(padded, axis=2).view(np.uint64)


def _count(words: Words) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.bitwise_count(words).sum(axis=2, dtype=np.uint32).astype(np.int64)
    return found


def model_blocks(models: int, size: int) -> Iterator[tuple[int, int]]:
    """Models from start to stop, with at most ``size`` pairs with those after them (never fewer than one model's)."""
    start = 0
    while start < models - 1:
        stop, count = start, 0
        while stop < models - 1 and (count == 0 or count + models - 1 - stop <= size):
            count += models - 1 - stop
            stop += 1
        yield start, stop
        start = stop


def pairs_of(start: int, stop: int, models: int) -> tuple[Index, Index]:
    """Return the pairs a < b of models from start to stop with those after them."""
    a = np.repeat(np.arange(start, stop), models - 1 - np.arange(start, stop))
    return a, np.concatenate([np.arange(m + 1, models) for m in range(start, stop)])


def _units(draws: npt.NDArray[np.floating]) -> list[Index]:
    """Return the models that are always drawn alike, together."""
    together: dict[bytes, list[int]] = {}
    for m, column in enumerate(np.ascontiguousarray(draws.T)):
        together.setdefault(column.tobytes(), []).append(m)
    return [np.array(models) for models in together.values()]


def _both_sides(row: Row) -> tuple[Signs, Signs, Signs | None, Signs | None]:
    s, t, known_s, known_t = row
    return s, s if t is None else t, known_s, known_s if known_t is None else known_t


def _ones_or(known: Signs | None, like: Signs) -> Signs:
    return np.ones_like(like) if known is None else known


def _each_with_each(s: Signs, t: Signs, symmetric: bool) -> Signs:
    """Products of every task with every other, pair by pair: (products, pairs)."""
    rows = range(len(s))
    sizes = [len(t) - i if symmetric else len(t) for i in rows]
    found = np.empty((sum(sizes), s.shape[1]), dtype=np.float32)
    end = 0
    for i, size in zip(rows, sizes, strict=True):
        end, begin = end + size, end
        np.multiply(s[i], t[len(t) - size :], out=found[begin:end])
    return found
