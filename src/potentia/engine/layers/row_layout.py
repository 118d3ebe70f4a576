"""One long row of static size: the rows of all lanes of a pass end to end, and everything about them as plain numbers.

A graph of kernels can be captured once and replayed if shapes and addresses stay; so a pass is laid out in a *bucket*
of fixed sizes, and all that changes from step to step (tokens, whose they are, where rows begin, targets, dropout
keys) is data in one buffer of 32-bit numbers, sent in one transfer. Each lane begins at a multiple of
:data:`STRETCH` tokens; what fills the gaps, and the bucket's end, are rows of one token that no loss looks at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.engine.lane_spec import TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite
from potentia.engine.layers.lane_layers import find_output_order
from potentia.engine.layers.row_mixers import RowsByLength, group_rows
from potentia.engine.operations import TILE, Operations, tile
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
    """The adapted layers that read the same input and write side by side into the same output.

    Where one layer holds several projections whose outputs do not lie side by side, ``output_order`` says where each of
    its outputs lies among them.
    """

    def __init__(
        self,
        sites: Sequence[tuple[AdapterSite, int]],
        rank: int,
        device: torch.device,
        output_order: Tensor | None = None,
    ) -> None:
        self.output_order = output_order
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
        offsets_and_widths = itertools.chain.from_iterable(row[:4] for row in rows)
        self.align = math.gcd(16, *offsets_and_widths)

    @classmethod
    def of_layer(
        cls, sites: Sequence[AdapterSite], rank: int, device: torch.device
    ) -> AdapterGroup:
        """Return the group of one layer's projections."""
        group_ends = itertools.accumulate((site.fan_out for site in sites), initial=0)
        placed = list(zip(sites, group_ends, strict=False))
        return cls(placed, rank, device, find_output_order(sites, device))

    def parts(self) -> Iterator[tuple[AdapterSite, slice]]:
        """Each site with its columns of the output."""
        for adapter_site, column in zip(self.sites, self.columns, strict=True):
            yield adapter_site, slice(column, column + adapter_site.fan_out)


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
        cls, tokens: int, targets: int, slots: int, *, coarse: bool, grain: int = GRAIN
    ) -> Bucket:
        """Return the least bucket; with ``coarse``, of a ladder with 16 steps between a size and its double.

        Sizes are multiples of ``grain`` then, and targets come in fewer sizes: their number goes with the tokens. One
        token and one target more than asked for are always there, for the filling to point at.
        """
        if not coarse:
            return cls(_least(tokens + 1, GRAIN), _least(targets + 1, 64), slots)
        capacity = _least(tokens + 1, max(grain, _eighth(tokens + 1) // 2))
        return cls(
            capacity,
            _least(targets + 1, max(_eighth(targets + 1), min(512, _least(capacity // 16, 64)))),
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
            **dict.fromkeys(("ids", "position_ids", "keys", "first", "last"), n),
            **{"owners": n // STRETCH, "picked": p, "picked_owners": p // STRETCH},
            **dict.fromkeys(
                ("prediction_indices", "targets", "target_owners", "weights"), t
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
    position_ids: Ints32
    keys: Ints32
    first: Ints32
    last: Ints32
    owners: Ints32  # (n / 16,)
    spans: dict[int, tuple[int, int]]  # of each slot's own tokens
    ends: npt.NDArray[np.int64]  # of each lane, filling included
    prediction_indices: Ints32  # (t,) of the tokens whose hidden states predict the targets
    targets: Ints32
    target_owners: Ints32
    weights: npt.NDArray[np.float32]
    row_starts: npt.NDArray[np.int64]  # (rows,)
    row_lengths: npt.NDArray[np.int64]

    def filled(self, bucket: Bucket) -> Ints32:
        """Return all fields, filled up to a bucket's sizes, end to end (bucket.size,)."""
        assert len(self.ids) < bucket.tokens
        assert len(self.targets) < bucket.targets
        fields = self._fields(bucket)
        filling = self._filling(bucket)
        buffer = np.empty(bucket.size, np.int32)
        begin = 0
        for field_name, length in bucket.fields.items():
            end = begin + len(fields[field_name])
            buffer[begin:end] = fields[field_name]
            begin += length
            buffer[end:begin] = filling.get(field_name, 0)
        return buffer

    def _fields(self, bucket: Bucket) -> dict[str, Any]:
        """Return the values of every field, before they are filled up."""
        fields: dict[str, Any] = dict(vars(self))
        fields["weights"] = self.weights.view(np.int32)
        fields["spans"] = _longest_first((slot, *span) for slot, span in self.spans.items())
        fields["tiles"] = tile([*self.ends.tolist(), bucket.tokens])
        return fields | self._loss_token_fields(bucket)

    def _loss_token_fields(self, bucket: Bucket) -> dict[str, Ints32]:
        """Return the tokens before targets, lane by lane in whole stretches, and whose they are."""
        begins = np.flatnonzero(np.diff(self.target_owners, prepend=-1))
        slots = self.target_owners[begins]
        counts = np.diff(begins, append=len(self.target_owners))
        sizes = _round_up(counts, STRETCH)
        lane_ends = np.cumsum(sizes)
        lane_starts = lane_ends - sizes
        tokens = np.full(
            lane_ends[-1], bucket.tokens - 1, np.int32
        )  # the last token is no real one
        shifts = np.repeat(lane_starts - begins, counts)
        tokens[np.arange(len(self.prediction_indices)) + shifts] = self.prediction_indices
        spans = zip(slots, lane_starts, lane_starts + counts, strict=True)
        return {
            "picked": tokens,
            "picked_owners": np.repeat(slots, sizes // STRETCH),
            "picked_spans": _longest_first(spans),
            "picked_tiles": tile([*lane_ends.tolist(), bucket.picked]),
        }

    def _filling(self, bucket: Bucket) -> dict[str, Any]:
        """Return what fills fields up: rows of one token, which no loss looks at and no lane owns."""
        alone = np.arange(len(self.ids), bucket.tokens, dtype=np.int32)
        no_token = bucket.tokens - 1  # none that is real
        return {
            "first": alone,
            "last": alone + 1,
            "prediction_indices": no_token,
            "picked": no_token,
            "owners": bucket.slots,
            "picked_owners": bucket.slots,
            "target_owners": bucket.slots,
        }


def _round_up(counts: npt.NDArray[np.int64], grain: int) -> npt.NDArray[np.int64]:
    """Return the least multiples of a number that hold these counts."""
    return -(-counts // grain) * grain


def _longest_first(spans: Iterable[tuple[int, int, int]]) -> Ints32:
    """Return slots with their first tokens and ends, flat; the longest first."""
    by_length = sorted(spans, key=lambda span: span[1] - span[2])
    return np.array(by_length, np.int32).ravel()


def _starts_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return where parts begin that lie end to end, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)])


def lay_out_rows(rows: Sequence[TrainingRow]) -> PackedRows:
    """Lay rows, which come slot by slot, end to end."""
    count = len(rows)
    lengths = np.fromiter((len(row.ids) for row in rows), np.int64, count)
    slots = np.fromiter((row.slot for row in rows), np.int64, count)
    first_targets = np.fromiter((row.first_target for row in rows), np.int64, count)
    weights = np.fromiter((row.weight for row in rows), np.float32, count)
    seeds = np.fromiter((row.seed for row in rows), np.int64, count)
    steps = np.fromiter((row.step for row in rows), np.int64, count)
    batch_indices = np.fromiter((row.batch_index for row in rows), np.int64, count)
    dropout_keys = row_keys(seeds, steps, batch_indices)

    # lanes: their first rows, their tokens, and where they begin in whole stretches
    lane_changes = np.flatnonzero(np.diff(slots)) + 1
    first_rows = np.concatenate([[0], lane_changes])
    rows_per_lane = np.diff(first_rows, append=count)
    lane_tokens = np.add.reduceat(lengths, first_rows)
    lane_sizes = _round_up(lane_tokens, STRETCH)
    lane_starts = _starts_of(lane_sizes)

    # rows and tokens: where each lies
    shifts = np.repeat(lane_starts[:-1] - _starts_of(lane_tokens)[:-1], rows_per_lane)
    row_starts = _starts_of(lengths)[:-1] + shifts
    row_of_token = np.repeat(np.arange(count), lengths)
    position_ids = np.arange(len(row_of_token)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    long_row_indices = row_starts[row_of_token] + position_ids
    total = int(lane_starts[-1])

    def spread(
        values: npt.NDArray[np.generic], filling: npt.NDArray[np.generic] | int = 0
    ) -> Ints32:
        """Put the tokens' values where the tokens lie, and the rest between them."""
        spread_values = np.empty(total, np.int32)
        spread_values[:] = filling
        spread_values[long_row_indices] = values
        return spread_values

    token_ids = np.concatenate([row.ids for row in rows])
    is_target = position_ids >= first_targets[row_of_token]
    row_of_target = row_of_token[is_target]
    spans: dict[int, tuple[int, int]] = {}
    for row, start, token_count in zip(first_rows, lane_starts, lane_tokens, strict=False):
        spans[int(slots[row])] = int(start), int(start + token_count)
    alone = np.arange(total)
    return PackedRows(
        ids=spread(token_ids),
        position_ids=spread(position_ids),
        keys=spread(keys_within(dropout_keys[row_of_token], position_ids)),
        first=spread(row_starts[row_of_token], alone),
        last=spread((row_starts + lengths)[row_of_token], alone + 1),
        owners=np.repeat(slots[first_rows], lane_sizes // STRETCH).astype(np.int32),
        spans=spans,
        ends=lane_starts[1:],
        prediction_indices=(long_row_indices[is_target] - 1).astype(np.int32),
        targets=token_ids[is_target].astype(np.int32),
        target_owners=slots[row_of_target].astype(np.int32),
        weights=weights[row_of_target],
        row_starts=row_starts,
        row_lengths=lengths,
    )


@dataclass
class PackedInputs:
    """The device's copy of a bucket's buffer, and the bucket's fields as views of it."""

    bucket: Bucket
    buffer: Tensor
    ids: Tensor  # (N,)
    position_ids: Tensor  # of tokens in their rows
    keys: Tensor  # of dropout
    first: Tensor
    last: Tensor
    owners: Tensor  # (N / 16,)
    picked: Tensor  # (P,) tokens before targets, lane by lane in whole stretches
    picked_owners: Tensor
    prediction_indices: Tensor  # (T,) of the tokens whose hidden states predict the targets
    targets: Tensor
    target_owners: Tensor
    weights: Tensor  # float32
    spans: Tensor  # (slots, 3)
    picked_spans: Tensor
    tiles: Tensor  # (tiles, 2)
    picked_tiles: Tensor
    # for layers that scan tokens in order; not in the buffer
    rows: RowsByLength | None = field(default=None, init=False)

    @classmethod
    def on(cls, device: torch.device, bucket: Bucket) -> PackedInputs:
        """Make room for a bucket on the device."""
        buffer = torch.zeros(bucket.size, dtype=torch.int32, device=device)
        parts = torch.split(buffer, list(bucket.fields.values()))
        views = dict(zip(bucket.fields, parts, strict=True))
        for field_name in ("tiles", "picked_tiles"):
            views[field_name] = views[field_name].view(-1, 2)
        for field_name in ("spans", "picked_spans"):
            views[field_name] = views[field_name].view(-1, 3)
        views["weights"] = views["weights"].view(torch.float32)
        return cls(bucket=bucket, buffer=buffer, **views)

    def group_rows_of(self, packed: PackedRows) -> None:
        """Note which rows these are, for layers that scan their tokens in order."""
        self.rows = group_rows(
            packed.row_starts, packed.row_lengths, self.bucket.tokens, self.buffer.device
        )


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
        return [tensor.index_select(0, self.at) for tensor in wholes]

    def spread(self, like: Tensor, *parts: Tensor) -> list[Tensor]:
        """Return tensors (N, d) that have these rows, and are zero elsewhere."""
        return [
            like.new_zeros(like.shape[0], part.shape[1]).index_copy_(0, self.at, part)
            for part in parts
        ]


@dataclass(frozen=True)
class PackedRun:
    """What every layer of a pass reads: the operations, the rows' bounds, the lanes."""

    operations: Operations
    inputs: PackedInputs
    route: LaneRoute
    picked: LossTokens | None = None

    def route_of(self, group: int) -> LaneRoute:
        """Return the lanes of the tokens that the layers of a group see."""
        return self.picked.route if self.picked and group else self.route
