"""One long row of static size: the rows of all lanes of a pass end to end, and everything about them as plain numbers.

A graph of kernels can be captured once and replayed if shapes and addresses stay; so a pass is laid out in a *bucket*
of fixed sizes, and all that changes from step to step (tokens, whose they are, where rows begin, targets, dropout
keys) is data in one buffer of 32-bit numbers, sent in one transfer. Each lane begins at a multiple of
:data:`STRETCH` tokens; what fills the gaps, and the bucket's end, are rows of one token that no loss looks at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.engine.lane_spec import TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite
from potentia.engine.operations import TILE, tile
from potentia.engine.operations.dropout import keys_within, layer_mix, row_keys

STRETCH = (
    16  # tokens of a lane are filled up to a multiple of this, the least that a matrix unit takes
)


@dataclass(frozen=True)
class LaneRoute:
    """The lanes of one long row: the owner of every stretch, the slots' spans of tokens, the tokens' dropout keys."""

    bank: AdapterBank
    owners: Tensor  # (N / 16,) slots; the bank's last row is the bare model
    spans: Tensor  # (slots, 3) a slot, its first token and one past its last; the longest first
    keys: Tensor | None  # (N,)
    tiles: Tensor  # (T, 2), see ``operations.Rows``: none has tokens of two lanes
    stretch: int = STRETCH


class AdapterGroup:
    """The adapted layers that read the same input and write side by side into the same output."""

    def __init__(
        self, sites: Sequence[tuple[AdapterSite, int]], rank: int, device: torch.device
    ) -> None:
        self.sites = tuple(site for site, _ in sites)
        self.columns = tuple(column for _, column in sites)
        self.widest = max(site.fan_out for site in self.sites)
        rows = [
            [
                site.offset,
                site.offset + site.fan_in * rank,
                column,
                site.fan_out,
                layer_mix(site.index),
            ]
            for site, column in sites
        ]
        self.table = torch.tensor(rows, dtype=torch.int64, device=device)  # (S, 5)
        self.align = math.gcd(
            16, *(number for row in rows for number in row[:4])
        )  # of all places and widths

    def parts(self) -> Iterator[tuple[AdapterSite, slice]]:
        """Each site with its columns of the output."""
        for site, column in zip(self.sites, self.columns, strict=True):
            yield site, slice(column, column + site.fan_out)


Ints32 = npt.NDArray[np.int32]
GRAIN = 128  # buckets are multiples of this many tokens


@dataclass(frozen=True)
class Bucket:
    """Sizes of a pass: tokens, targets, and the slots that its spans are told of."""

    tokens: int
    targets: int
    slots: int

    @classmethod
    def holding(
        cls, tokens: int, targets: int, slots: int, *, few: bool, grain: int = GRAIN
    ) -> Bucket:
        """Return the least bucket; with ``few``, of a ladder with 16 steps between a size and its double.

        Sizes are multiples of ``grain`` then, and targets come in fewer sizes: their number goes with the tokens. One
        token and one target more than asked for are always there, for the filling to point at.
        """
        if not few:
            return cls(_least(tokens + 1, GRAIN), _least(targets + 1, 64), slots)
        size = _least(tokens + 1, max(grain, _eighth(tokens + 1) // 2))
        return cls(
            size,
            _least(targets + 1, max(_eighth(targets + 1), min(512, _least(size // 16, 64)))),
            slots,
        )

    @property
    def picked(self) -> int:
        """Room for the tokens before targets, lane by lane in whole stretches."""
        return _least(self.targets + STRETCH * self.slots, TILE)

    @property
    def fields(self) -> dict[str, int]:
        """Length of every field of the buffer, in their order."""
        n, t, p = self.tokens, self.targets, self.picked
        return {
            **dict.fromkeys(("ids", "places", "keys", "first", "last"), n),
            **{"owners": n // STRETCH, "picked": p, "picked_owners": p // STRETCH},
            **dict.fromkeys(
                ("positions", "targets", "target_owners", "weights"), t
            ),  # weights: float32 in 32 bits
            **dict.fromkeys(("spans", "picked_spans"), 3 * self.slots),
            **{
                "tiles": 2 * (n // TILE + self.slots + 1),
                "picked_tiles": 2 * (p // TILE + self.slots + 1),
            },
        }

    @property
    def size(self) -> int:
        """Numbers in the buffer."""
        return sum(self.fields.values())


def _least(count: int, grain: int) -> int:
    return -(-count // grain) * grain


def _eighth(count: int) -> int:
    """Return an eighth of the power of two below a count."""
    return 1 << max(0, count.bit_length() - 4)


@dataclass(frozen=True)
class PackedRows:
    """Rows of lanes laid end to end, before they are put into a bucket."""

    ids: Ints32  # (n,), lanes filled up to whole stretches
    places: Ints32
    keys: Ints32
    first: Ints32
    last: Ints32
    owners: Ints32  # (n / 16,)
    spans: dict[int, tuple[int, int]]  # of each slot's own tokens
    ends: npt.NDArray[np.int64]  # of each lane, filling included
    positions: Ints32  # (t,) tokens whose next one is a target
    targets: Ints32
    target_owners: Ints32
    weights: npt.NDArray[np.float32]

    def filled(self, bucket: Bucket) -> Ints32:
        """Return all fields, filled up to a bucket's sizes, end to end (bucket.size,)."""
        assert len(self.ids) < bucket.tokens
        assert len(self.targets) < bucket.targets
        alone = np.arange(len(self.ids), bucket.tokens, dtype=np.int32)
        parts: dict[str, Any] = vars(self) | {"weights": self.weights.view(np.int32)}
        parts["spans"] = _spans((slot, *span) for slot, span in self.spans.items())
        parts["tiles"] = tile([*self.ends.tolist(), bucket.tokens])
        no_token = bucket.tokens - 1  # none that is real
        begins = np.flatnonzero(np.diff(self.target_owners, prepend=-1))
        slots, counts = self.target_owners[begins], np.diff(begins, append=len(self.target_owners))
        whole = -(-counts // STRETCH) * STRETCH
        ends = np.cumsum(whole)
        picked = np.full(ends[-1], no_token, np.int32)
        picked[np.arange(len(self.positions)) + np.repeat(ends - whole - begins, counts)] = (
            self.positions
        )
        parts |= {"picked": picked, "picked_owners": np.repeat(slots, whole // STRETCH)}
        parts["picked_spans"] = _spans(zip(slots, ends - whole, ends - whole + counts, strict=True))
        parts["picked_tiles"] = tile([*ends.tolist(), bucket.picked])
        filling: dict[str, Any] = {
            "first": alone,
            "last": alone + 1,
            "positions": no_token,
            "picked": no_token,
        }
        filling |= dict.fromkeys(("owners", "picked_owners", "target_owners"), bucket.slots)
        buffer = np.empty(bucket.size, np.int32)
        begin = 0
        for name, length in bucket.fields.items():
            end = begin + len(parts[name])
            buffer[begin:end] = parts[name]
            begin += length
            buffer[end:begin] = filling.get(name, 0)
        return buffer


def _spans(found: Iterable[tuple[int, int, int]]) -> Ints32:
    """Return slots with their first tokens and ends, flat; the longest first."""
    return np.array(sorted(found, key=lambda span: span[1] - span[2]), np.int32).ravel()


def lay_out_rows(rows: Sequence[TrainingRow]) -> PackedRows:
    """Lay rows, which come slot by slot, end to end."""
    count = len(rows)
    lengths = np.fromiter((len(row.ids) for row in rows), np.int64, count)
    slots = np.fromiter((row.slot for row in rows), np.int64, count)
    firsts = np.fromiter((row.first_target for row in rows), np.int64, count)
    weights = np.fromiter((row.weight for row in rows), np.float32, count)
    sides = (
        np.fromiter((getattr(row, name) for row in rows), np.int64, count)
        for name in ("seed", "step", "place")
    )
    shared = row_keys(*sides)
    cuts = np.flatnonzero(np.diff(slots)) + 1
    begins, ends = np.concatenate([[0], cuts]), np.concatenate([cuts, [count]])  # rows of each lane
    per_lane = np.add.reduceat(lengths, begins)
    whole = -(-per_lane // STRETCH) * STRETCH
    lane_starts = np.concatenate([[0], np.cumsum(whole)])
    shift = np.repeat(
        lane_starts[:-1] - np.concatenate([[0], np.cumsum(per_lane)])[:-1], ends - begins
    )
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) + shift  # of each row in the long row
    n = int(lane_starts[-1])
    row_of = np.repeat(np.arange(count), lengths)
    places = np.arange(len(row_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = starts[row_of] + places  # where each real token stands
    ids = np.concatenate([row.ids for row in rows])
    wanted = places >= firsts[row_of]
    who = row_of[wanted]

    def spread(values: npt.NDArray[np.generic], rest: npt.NDArray[np.generic] | int = 0) -> Ints32:
        out = np.empty(n, np.int32)
        out[:] = rest
        out[at] = values
        return out

    alone = np.arange(n)
    return PackedRows(
        ids=spread(ids),
        places=spread(places),
        keys=spread(keys_within(shared[row_of], places)),
        first=spread(starts[row_of], alone),
        last=spread((starts + lengths)[row_of], alone + 1),
        owners=np.repeat(slots[begins], whole // STRETCH).astype(np.int32),
        spans={
            int(slots[row]): (int(start), int(start + size))
            for row, start, size in zip(begins, lane_starts, per_lane, strict=False)
        },
        ends=lane_starts[1:],
        positions=(at[wanted] - 1).astype(np.int32),
        targets=ids[wanted].astype(np.int32),
        target_owners=slots[who].astype(np.int32),
        weights=weights[who],
    )


class PackedInputs(SimpleNamespace):
    """The device's copy of a bucket's buffer, and the bucket's fields as views of it, by their names."""

    @classmethod
    def on(cls, device: torch.device, bucket: Bucket) -> PackedInputs:
        """Make room for a bucket on the device."""
        buffer = torch.zeros(bucket.size, dtype=torch.int32, device=device)
        views = dict(
            zip(bucket.fields, torch.split(buffer, list(bucket.fields.values())), strict=True)
        )
        views |= {name: views[name].view(-1, 2) for name in ("tiles", "picked_tiles")}
        views |= {name: views[name].view(-1, 3) for name in ("spans", "picked_spans")}
        views["weights"] = views["weights"].view(torch.float32)
        return cls(bucket=bucket, buffer=buffer, **views)


@dataclass(frozen=True)
class LossTokens:
    """The tokens that a loss looks at, few among all: beyond the last layer's attention no other matters."""

    at: Tensor  # (M,) tokens, lane by lane; those that fill up are no real ones, and have no gradient
    route: LaneRoute

    @classmethod
    def of(cls, inputs: PackedInputs, route: LaneRoute) -> LossTokens | None:
        """Return them; None where they are so many that leaving others out saves little."""
        if 2 * inputs.picked.shape[0] > inputs.ids.shape[0]:
            return None
        at = inputs.picked.long()
        keys = None if route.keys is None else route.keys.index_select(0, at)
        return cls(
            at,
            LaneRoute(
                route.bank, inputs.picked_owners, inputs.picked_spans, keys, inputs.picked_tiles
            ),
        )

    def gather(self, *wholes: Tensor) -> list[Tensor]:
        """Return their rows of tensors (N, d)."""
        return [whole.index_select(0, self.at) for whole in wholes]

    def spread(self, like: Tensor, *parts: Tensor) -> list[Tensor]:
        """Return tensors (N, d) that have these rows, and are zero elsewhere."""
        return [
            like.new_zeros(like.shape[0], part.shape[1]).index_copy_(0, self.at, part)
            for part in parts
        ]


@dataclass(frozen=True)
class PackedRun:
    """What every layer of a pass reads: the operations, the rows' bounds, the lanes."""

    operations: Any
    inputs: PackedInputs
    route: LaneRoute
    picked: LossTokens | None = None

    def route_of(self, group: int) -> LaneRoute:
        """Return the lanes of the tokens that the layers of a group see."""
        return self.picked.route if self.picked and group else self.route
