"""Continuous writing: a queue of texts through a fixed number of seats, the host one step behind the device.

While the device writes the next token everywhere, the host looks at the last ones: which texts have ended, which seats
are free. A text that ended is noticed a step late and its surplus token is dropped. Free seats are filled in groups,
since reading a prompt costs a pass; when the queue is empty and few texts are left, they move together and steps
become smaller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from potentia.engine.admission import not_a_number
from potentia.engine.score.decoding import StopTables
from potentia.engine.score.forest import Forest, Strand
from potentia.engine.score.network import Network, Outcome
from potentia.engine.score.slots import Slots

if TYPE_CHECKING:
    from potentia.engine.score.generate import Draft


IN_FLIGHT = 2


@dataclass(slots=True)
class _Parcel:
    """One batch's results on their way to the host."""

    strands: npt.NDArray[np.int64]
    logprobs: torch.Tensor
    hits: torch.Tensor
    finished: list[int]
    arrived: torch.cuda.Event | None


class Tally:
    """Sum log-probabilities per request as batches come in, and report requests that are complete."""

    def __init__(self, count: int, progress: Callable[[int], None] | None = None) -> None:
        self._sums = np.zeros(count)
        self._greedy = np.ones(count, dtype=bool)
        self._tokens = np.zeros(count, dtype=np.int64)
        self._open = np.zeros(count, dtype=np.int64)  # strands that have not come back
        self._progress = progress
        self._parcels: deque[_Parcel] = deque()

    def expect(self, strands: Sequence[Strand]) -> None:
        """Note what is on its way: all strands of a request are announced together."""
        for strand in strands:
            self._open[strand.index] += 1
            self._tokens[strand.index] += strand.scored

    def collect(self, outcome: Outcome, rows: Iterable[Forest]) -> None:
        """Take a batch's results without waiting for the device; older batches are added up meanwhile."""
        finished = [strand.index for row in rows for strand, _ in row.reads]
        if outcome.logprobs.device.type == "cuda":
            logprobs = torch.empty(outcome.logprobs.shape, dtype=outcome.logprobs.dtype, pin_memory=True)
            hits = torch.empty(outcome.hits.shape, dtype=torch.bool, pin_memory=True)
            logprobs.copy_(outcome.logprobs, non_blocking=True)
            hits.copy_(outcome.hits, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        else:
            logprobs, hits, arrived = outcome.logprobs, outcome.hits, None
        self._parcels.append(_Parcel(outcome.strands, logprobs, hits, finished, arrived))
        while len(self._parcels) > (IN_FLIGHT if arrived is not None else 0):
            self._open_parcel(self._parcels.popleft())

    def add(self, strand: Strand, logprob: float, greedy: bool) -> None:
        """Add one strand's result."""
        self._sums[strand.index] += logprob
        self._greedy[strand.index] &= greedy
        self._finish([strand.index])

    def drain(self) -> None:
        """Wait for all batches that are still on the device."""
        while self._parcels:
            self._open_parcel(self._parcels.popleft())

    def totals(self) -> list[tuple[float, bool, int]]:
        """(log-probability, greedy, tokens) of every request."""
        if self._progress is not None and (empty := int((self._tokens == 0).sum())):
            self._progress(empty)
        if (wrong := int(np.isnan(self._sums).sum())) > 0:
            raise not_a_number(f"for {wrong} of {len(self._sums)} requests")
        return list(zip(self._sums.tolist(), self._greedy.tolist(), self._tokens.tolist(), strict=True))

    def _open_parcel(self, parcel: _Parcel) -> None:
        if parcel.arrived is not None:
            parcel.arrived.synchronize()
        np.add.at(self._sums, parcel.strands, parcel.logprobs.double().numpy())
        np.logical_and.at(self._greedy, parcel.strands, parcel.hits.numpy())
        self._finish(parcel.finished)

    def _finish(self, indices: Iterable[int]) -> None:
        whole = 0
        for index in indices:
            self._open[index] -= 1
            whole += self._open[index] == 0
        if self._progress is not None and whole:
            self._progress(int(whole))


REFILL = 8  # seats are filled when an eighth of them is free
FEWEST = 16


@dataclass
class _Sent:
    """Tokens on their way to the host: what one step chose, and for whom."""

    tokens: torch.Tensor
    arrived: torch.cuda.Event | None
    readers: dict[int, Draft]

    def read(self) -> npt.NDArray[np.int64]:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tokens.numpy()


class ContinuousLoop:
    """One run of a queue of drafts through seats."""

    def __init__(
        self,
        network: Network,
        tokenizer: Any,
        tables: StopTables,
        ends: frozenset[int],
        *,
        seats: int,
        prefill: int,
        record: bool = False,
    ) -> None:
        self.network, self.tokenizer, self.tables = network, tokenizer, tables
        self.most, self.prefill, self.record = seats, prefill, record
        self.ends = np.zeros(network.vocabulary, bool)
        self.ends[[token for token in ends if token < network.vocabulary]] = True
        self.logprobs: dict[int, list[float]] = {}

    def write(self, drafts: Sequence[Draft]) -> Iterator[Draft]:
        """Write all drafts, longest first, and yield each as it ends."""
        queue = sorted(drafts, key=lambda d: (len(d.prompt) + d.room, len(d.prompt)), reverse=True)
        yield from (draft for draft in queue if draft.room < 1)
        queue = [draft for draft in queue if draft.room > 0]
        if not queue:
            return
        room = len(queue[0].prompt) + queue[0].room
        self.routed = any(draft.owner >= 0 for draft in queue)
        self.count = max(1, min(self.most, len(queue)))
        self.seats = Slots(self.network, self.count, room, capture=not self.record)
        self.live: dict[int, Draft] = {}
        waiting: list[_Sent] = []
        while queue or self.live or waiting:
            queue, seated = self._fill(queue)
            if seated is not None:
                waiting.append(seated)
            # a step is worth making if some text may go on after what is on its way already
            ahead = len(waiting)
            stepping = any(len(draft.written) + ahead < draft.room for draft in self.live.values())
            if stepping:
                self.seats.step(self.count, routed=self.routed, record=self.record)
                waiting.append(self._send(dict(self.live)))
            late = 1 if stepping and not self.record else 0
            while len(waiting) > late:
                yield from self._read(waiting.pop(0))
            if not queue:
                self._gather()

    # ---- seats ----------------------------------------------------------------------------------------------------

    def _fill(self, queue: list[Draft]) -> tuple[list[Draft], _Sent | None]:
        free = [seat for seat in range(self.count) if seat not in self.live]
        if not queue or (self.live and len(free) < max(1, self.count // REFILL)):
            return queue, None
        longest = len(queue[0].prompt)
        number = max(1, min(len(free), len(queue), self.prefill // longest))
        chosen, taken = sorted(queue[:number], key=lambda draft: draft.owner), free[:number]
        self.seats.seat(taken, [d.prompt for d in chosen], [d.owner for d in chosen], record=self.record)
        fresh = dict(zip(taken, chosen, strict=True))
        self.live |= fresh
        return queue[number:], self._send(fresh)

    def _gather(self) -> None:
        """Move the last texts together, once half of the seats would do."""
        if self.record or self.count <= FEWEST or len(self.live) > self.count // 2 or not self.live:
            return
        smaller = max(FEWEST, 1 << (len(self.live) - 1).bit_length())
        if smaller > self.count // 2:
            return
        free = iter(seat for seat in range(smaller) if seat not in self.live)
        pairs = [(seat, next(free)) for seat in sorted(self.live) if seat >= smaller]
        if pairs:
            self.seats.move(pairs)
            moved = dict(pairs)
            self.live = {moved.get(seat, seat): draft for seat, draft in self.live.items()}
        self.count = smaller

    # ---- what was written -----------------------------------------------------------------------------------------

    def _send(self, readers: dict[int, Draft]) -> _Sent:
        if self.record:
            for seat, draft in readers.items():
                self.logprobs.setdefault(draft.index, []).append(float(self.seats.logprobs[seat]))
        written = self.seats.written
        if written.device.type != "cuda":
            return _Sent(written.clone(), None, readers)
        tokens = torch.empty(written.shape, dtype=written.dtype, pin_memory=True)
        tokens.copy_(written, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return _Sent(tokens, arrived, readers)

    def _read(self, sent: _Sent) -> Iterator[Draft]:
        """Append the tokens of a step to the texts that were still going on; yield those that end with them."""
        tokens = sent.read()
        going = {id(draft) for draft in self.live.values()}
        seats = [seat for seat, draft in sent.readers.items() if id(draft) in going]
        if not seats:
            return
        drafts = [sent.readers[seat] for seat in seats]
        chosen = tokens[seats]
        if (chosen < 0).any():
            raise not_a_number("while writing a text")
        ended = self.ends[chosen]
        watched = []
        for i, (draft, token) in enumerate(zip(drafts, chosen.tolist(), strict=True)):
            if ended[i]:
                continue
            draft.written.append(token)
            if draft.stop and self.tables.table(draft.stop)[token]:
                watched.append(i)
        ends = [drafts[i].written[-drafts[i].lookback :] for i in watched]
        tails = self.tokenizer.batch_decode(ends) if ends else []
        for i, tail in zip(watched, tails, strict=True):
            ended[i] = any(stop and stop in tail for stop in drafts[i].stop)
        over = [d for i, d in enumerate(drafts) if ended[i] or len(d.written) >= d.room]
        leaving = {id(draft) for draft in over}
        self.live = {seat: draft for seat, draft in self.live.items() if id(draft) not in leaving}
        yield from over
