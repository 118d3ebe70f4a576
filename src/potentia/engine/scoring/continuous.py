"""Continuous writing: a queue of texts through a fixed number of seats, the host one step behind the device.

A text takes a free seat with room of its own for keys and values, its prompt is read in one padded pass, and from then
on every step writes one token in every seat, taken or not. All that changes from step to step is data at fixed
addresses: tokens, places, whose adapter reads along. So a step can be captured once as a graph and replayed. Keys and
values are kept by the attention function itself, in the order in which the model's layers call it: what a model calls
its cache plays no part. While the device writes the next token everywhere, the host looks at the last ones: a text that
ended is noticed a step late and its surplus token dropped; free seats are filled in groups, since reading a prompt
costs a pass; when the queue is empty and few texts are left, they move together and steps become smaller.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from potentia.engine.models.device_layout import out_of_memory
from potentia.engine.models.split_model import attending, configs_of
from potentia.engine.models.tokenization import Ids
from potentia.engine.operations import Rows, operations, tile
from potentia.engine.scoring.decoding import Endings
from potentia.engine.scoring.network import Network, Sent, log_softmax

if TYPE_CHECKING:
    from potentia.engine.scoring.generate import Draft

log = logging.getLogger(__name__)


class Slots:
    """``count`` seats of ``room`` tokens each, on one model."""

    def __init__(self, network: Network, count: int, room: int, *, capture: bool) -> None:
        self.network, self.count, self.room = network, count, room
        device = network.device
        self.operations = operations(device)
        self.tokens = torch.zeros(
            count, dtype=torch.long, device=device
        )  # the token that each seat reads next
        self.places = torch.zeros(count, dtype=torch.long, device=device)  # and where it stands
        self.owners = torch.full((count,), -1, dtype=torch.long, device=device)
        self.written = torch.zeros(
            count, dtype=torch.long, device=device
        )  # what the last step chose
        self.logprobs = torch.zeros(
            count, device=device
        )  # of the chosen tokens, where they are recorded
        self._kept: list[
            tuple[Tensor, Tensor]
        ] = []  # keys and values of each layer: (count · room + 1, K, d)
        self._capture = capture and device.type == "cuda"
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._warm: set[int] = set()
        self._pool: Any = None
        self._configs = configs_of(network.model)

    # ---- reading prompts ------------------------------------------------------------------------------------------

    def seat(
        self,
        seats: Sequence[int],
        prompts: Sequence[Ids],
        owners: Sequence[int],
        *,
        record: bool = False,
    ) -> None:
        """Let prompts take seats: read them, keep their keys and values, and choose each one's first token."""
        device = self.network.device
        rows, length = len(prompts), max(len(prompt) for prompt in prompts)
        ids = torch.zeros(rows, length, dtype=torch.long)
        where = torch.full(
            (rows, length), self.count * self.room
        )  # padding is kept where nobody looks
        for i, (seat, prompt) in enumerate(zip(seats, prompts, strict=True)):
            ids[i, : len(prompt)] = torch.tensor(prompt)
            where[i, : len(prompt)] = seat * self.room + torch.arange(len(prompt))
        starts = (torch.arange(rows) * length).repeat_interleave(length)
        ends = starts + length
        cut = torch.from_numpy(tile([rows * length])).view(-1, 2)
        bounds = Rows(*(part.to(device, torch.int32) for part in (starts, ends, cut)))
        where = where.view(-1).to(device)

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
        ) -> Tensor:
            q, k, v = (part.reshape(rows * length, *part.shape[2:]) for part in (q, k, v))
            self._keep(layer, where, k, v)
            out: Tensor = self.operations.attend(q, k, v, bounds, scale, window)[0]
            return out.view(rows, length, *out.shape[1:])

        self.network.route(owners)
        places = torch.arange(length).expand(rows, length).to(device)
        with self._attending(attend):
            hidden = self.network.run(
                input_ids=ids.to(device), position_ids=places, use_cache=False
            ).last_hidden_state
        last = torch.tensor([len(prompt) for prompt in prompts]).to(device) - 1
        choice, logprobs = self._choose(hidden[torch.arange(rows, device=device), last], record)
        at = torch.tensor(seats).to(device)
        self.tokens[at], self.places[at], self.written[at] = choice.clamp(min=0), last + 1, choice
        self.owners[at] = torch.tensor(owners).to(device)
        if record:
            self.logprobs[at] = logprobs

    def _keep(self, layer: int, where: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer == len(self._kept):
            shape = (self.count * self.room + 1, *k.shape[1:])
            self._kept.append((k.new_zeros(shape), v.new_zeros((shape[0], *v.shape[1:]))))
        keys, values = self._kept[layer]
        keys.index_copy_(0, where, k)
        values.index_copy_(0, where, v)
        return keys, values

    # ---- writing --------------------------------------------------------------------------------------------------

    def step(self, count: int, *, routed: bool, record: bool = False) -> None:
        """Write one token in each of the first ``count`` seats, by a graph where that is possible."""
        if self._capture and not record and count in self._warm and count not in self._graphs:
            self._graphs |= self._captured(count, routed)
        graph = self._graphs.get(count)
        if graph is not None and not record:
            graph.replay()
            return
        self._warm.add(count)
        self._step(count, routed, record)

    def _step(self, count: int, routed: bool, record: bool) -> None:
        tokens, places = self.tokens[:count], self.places[:count]
        where = torch.arange(count, device=tokens.device) * self.room + places
        lengths = (places + 1).to(torch.int32)

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
        ) -> Tensor:
            q, k, v = (part.squeeze(1) for part in (q, k, v))
            keys, values = self._keep(layer, where, k, v)
            out: Tensor = self.operations.attend_cached(
                q, keys, values, lengths, self.room, scale, window
            )
            return out.unsqueeze(1)

        if self.network.router is not None:
            self.network.router.route(self.owners[:count] if routed else None)
        with self._attending(attend):
            hidden = self.network.run(
                input_ids=tokens.unsqueeze(1), position_ids=places.unsqueeze(1), use_cache=False
            ).last_hidden_state
        choice, logprobs = self._choose(hidden[:, -1], record)
        self.written[:count] = choice
        tokens.copy_(choice.clamp(min=0))
        places.copy_(
            (places + 1).clamp(max=self.room - 1)
        )  # a seat that nobody watches stays within its room
        if record:
            self.logprobs[:count] = logprobs

    def _choose(self, hidden: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """Return the likeliest token of each row, −1 where the logits are not numbers, and its log-probability."""
        logits = self.network.logits(hidden)
        token = logits.argmax(dim=-1, keepdim=True)  # NaN is the largest of all
        best = logits.gather(1, token)
        choice = torch.where(best.isnan(), -1, token).squeeze(1)
        return choice, log_softmax(logits).gather(1, token).squeeze(1) if record else best.squeeze(
            1
        )

    def _captured(self, count: int, routed: bool) -> dict[int, torch.cuda.CUDAGraph]:
        """Capture a step, or say why that cannot be done and never try again."""
        torch.cuda.synchronize(self.network.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._step(count, routed, record=False)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            log.debug("what could not be captured", exc_info=error)
            self._capture = False
            torch.cuda.synchronize(self.network.device)
            reason = "no memory" if out_of_memory(error) else str(error)[:200]
            log.warning("writing cannot be captured (%s): it goes one operation at a time", reason)
            return {}
        self._pool = graph.pool()
        return {count: graph}

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Move texts from one seat to another: (from, to)."""
        device = self.network.device
        source, target = (torch.tensor(part).to(device) for part in zip(*pairs, strict=True))
        for part in (self.tokens, self.places, self.owners, self.written):
            part[target] = part[source]
        longest = torch.arange(self.room, device=device)
        rows, into = ((part[:, None] * self.room + longest).view(-1) for part in (source, target))
        for keys, values in self._kept:
            keys.index_copy_(0, into, keys.index_select(0, rows))
            values.index_copy_(0, into, values.index_select(0, rows))

    @contextmanager
    def _attending(self, attend: Callable[..., Tensor]) -> Iterator[None]:
        """Let the model attend by this function inside the block; layers are known by the order of their calls."""
        calls = itertools.count()
        with attending(self._configs, lambda *given: attend(next(calls), *given)):
            yield


REFILL = 8  # seats are filled when an eighth of them is free
FEWEST = 16


class ContinuousLoop:
    """One run of a queue of drafts through seats."""

    def __init__(
        self, network: Network, endings: Endings, *, seats: int, prefill: int, record: bool = False
    ) -> None:
        self.network, self.endings = network, endings
        self.most, self.prefill, self.record = seats, prefill, record
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
        waiting: list[tuple[Sent, dict[int, Draft]]] = []  # what a step chose, and for whom
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
                yield from self._read(*waiting.pop(0))
            if not queue:
                self._gather()

    # ---- seats ----------------------------------------------------------------------------------------------------

    def _fill(self, queue: list[Draft]) -> tuple[list[Draft], tuple[Sent, dict[int, Draft]] | None]:
        free = [seat for seat in range(self.count) if seat not in self.live]
        if not queue or (self.live and len(free) < max(1, self.count // REFILL)):
            return queue, None
        longest = len(queue[0].prompt)
        number = max(1, min(len(free), len(queue), self.prefill // longest))
        chosen, taken = sorted(queue[:number], key=lambda draft: draft.owner), free[:number]
        self.seats.seat(
            taken, [d.prompt for d in chosen], [d.owner for d in chosen], record=self.record
        )
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

    def _send(self, readers: dict[int, Draft]) -> tuple[Sent, dict[int, Draft]]:
        if self.record:
            for seat, draft in readers.items():
                self.logprobs.setdefault(draft.index, []).append(float(self.seats.logprobs[seat]))
        return Sent(self.seats.written), readers

    def _read(self, sent: Sent, readers: dict[int, Draft]) -> Iterator[Draft]:
        """Append the tokens of a step to the texts that were still going on; yield those that end with them."""
        (tokens,), going = sent.read(), {id(draft) for draft in self.live.values()}
        readers = {seat: draft for seat, draft in readers.items() if id(draft) in going}
        over = self.endings.append(
            list(readers.values()), tokens[list(readers)].tolist(), looked_up=True
        )
        leaving = {
            id(draft): draft for draft, ended in zip(readers.values(), over, strict=True) if ended
        }
        self.live = {seat: draft for seat, draft in self.live.items() if id(draft) not in leaving}
        yield from leaving.values()
