"""Continuous writing: a queue of texts through a fixed number of seats, the host one step behind the device.

While the device writes the next token everywhere, the host looks at the last ones: which texts have ended, which seats
are free. A text that ended is noticed a step late and its surplus token is dropped. Free seats are filled in groups,
since reading a prompt costs a pass; when the queue is empty and few texts are left, they move together and steps
become smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from potentia.engine.admission import not_a_number
from potentia.engine.score.network import Network
from potentia.engine.score.slots import Slots
from potentia.engine.score.stops import StopTables

if TYPE_CHECKING:
    from potentia.engine.score.generate import Draft

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
