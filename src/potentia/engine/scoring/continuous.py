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
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from potentia.engine.layers.draft import Draft
from potentia.engine.layers.network import Network, SentTensors, log_softmax
from potentia.engine.models.device_layout import out_of_memory
from potentia.engine.models.split_model import AttentionSettings, attending, configs_of
from potentia.engine.models.tokenization import Ids
from potentia.engine.operations import Rows, operations, tile
from potentia.engine.scoring.decoding import Endings, SampleDraws

log = logging.getLogger(__name__)

LayerAttention = Callable[[int, Tensor, Tensor, Tensor, AttentionSettings], Tensor]
"""Attention of one layer: its number, queries, keys, values, scale and window."""


class Seats:
    """``count`` seats of ``room`` tokens each, on one model."""

    def __init__(
        self, network: Network, count: int, room: int, *, capture: bool, samples: bool = False
    ) -> None:
        self.network = network
        self.count = count
        self.room = room
        device = network.device
        self.operations = operations(device)
        # the token that each seat reads next, and its position
        self.tokens = torch.zeros(count, dtype=torch.long, device=device)
        self.positions = torch.zeros(count, dtype=torch.long, device=device)
        self.owners = torch.full((count,), -1, dtype=torch.long, device=device)
        # what the last step chose, and the log-probabilities of that, where they are recorded
        self.written = torch.zeros(count, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(count, device=device)
        # of texts that are sampled: their temperature, the numbers that choose their tokens, and the next of these
        self.samples = samples
        self.temperatures = torch.zeros(count, device=device)
        self.uniforms = torch.zeros(count, room + 1 if samples else 1, device=device)
        self.next_uniform = torch.zeros(count, dtype=torch.long, device=device)
        # keys and values of each layer: (count · room + 1, heads, width)
        self._layer_caches: list[tuple[Tensor, Tensor]] = []
        self._capture = capture and device.type == "cuda"
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._warmed_up: set[int] = set()
        self._pool: Any = None
        self._configs = configs_of(network.model)

    # ---- reading prompts ------------------------------------------------------------------------------------------

    def seat_prompts(
        self,
        seats: Sequence[int],
        prompts: Sequence[Ids],
        owners: Sequence[int],
        *,
        record: bool = False,
        drafts: Sequence[Draft] = (),
    ) -> None:
        """Let prompts take seats: read them, keep their keys and values, and choose each one's first token.

        ``drafts`` say how the texts of these prompts are sampled, where some are.
        """
        device = self.network.device
        rows = len(prompts)
        length = max(len(prompt) for prompt in prompts)
        ids = torch.zeros(rows, length, dtype=torch.long)
        # where keys and values are kept: padding's where nobody looks
        cache_rows = torch.full((rows, length), self.count * self.room)
        for row, (seat, prompt) in enumerate(zip(seats, prompts, strict=True)):
            ids[row, : len(prompt)] = torch.tensor(prompt)
            cache_rows[row, : len(prompt)] = seat * self.room + torch.arange(len(prompt))
        bounds = _bounds_of_rows(rows, length, device)
        flat_cache_rows = cache_rows.view(-1).to(device)

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, settings: AttentionSettings
        ) -> Tensor:
            _refuse_sinks(settings)
            queries = q.reshape(rows * length, *q.shape[2:])
            keys = k.reshape(rows * length, *k.shape[2:])
            values = v.reshape(rows * length, *v.shape[2:])
            self._keep(layer, flat_cache_rows, keys, values)
            answers, _ = self.operations.attend(
                queries, keys, values, bounds, settings.scale, settings.window
            )
            return answers.view(rows, length, *answers.shape[1:])

        self.network.route(owners)
        positions = torch.arange(length).expand(rows, length).to(device)
        with self._attending(attend):
            output = self.network.run_body(
                input_ids=ids.to(device), position_ids=positions, use_cache=False
            )
        hidden = output.last_hidden_state
        last = torch.tensor([len(prompt) for prompt in prompts]).to(device) - 1
        last_hidden = hidden[torch.arange(rows, device=device), last]
        taken = torch.tensor(seats).to(device)
        if self.samples:
            self._take_draws(taken, drafts)
        choice, logprobs = self._choose(last_hidden, record, self._draws_of(taken))
        self.tokens[taken] = choice.clamp(min=0)
        self.positions[taken] = last + 1
        self.written[taken] = choice
        self.owners[taken] = torch.tensor(owners).to(device)
        if record:
            self.logprobs[taken] = logprobs

    def _take_draws(self, taken: Tensor, drafts: Sequence[Draft]) -> None:
        """Give seats what chooses the tokens of the texts that take them."""
        numbers = torch.zeros(len(drafts), self.uniforms.shape[1])
        for row, draft in enumerate(drafts):
            if draft.uniforms is not None:
                numbers[row, : len(draft.uniforms)] = torch.from_numpy(draft.uniforms)
        temperatures = torch.tensor([draft.temperature for draft in drafts])
        self.temperatures[taken] = temperatures.to(taken.device)
        self.uniforms[taken] = numbers.to(taken.device)
        self.next_uniform[taken] = 0

    def _draws_of(self, seats: Tensor) -> SampleDraws | None:
        """Return what chooses the next token in these seats, and go on to the number after it."""
        if not self.samples:
            return None
        position = self.next_uniform[seats].clamp(max=self.uniforms.shape[1] - 1)
        uniforms = self.uniforms[seats, position]
        self.next_uniform[seats] = position + 1
        return SampleDraws(self.temperatures[seats], uniforms)

    def _keep(
        self, layer: int, cache_rows: Tensor, new_keys: Tensor, new_values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Keep keys and values of a layer; returns all that are kept."""
        if layer == len(self._layer_caches):
            size = self.count * self.room + 1
            empty_keys = new_keys.new_zeros((size, *new_keys.shape[1:]))
            empty_values = new_values.new_zeros((size, *new_values.shape[1:]))
            self._layer_caches.append((empty_keys, empty_values))
        keys, values = self._layer_caches[layer]
        keys.index_copy_(0, cache_rows, new_keys)
        values.index_copy_(0, cache_rows, new_values)
        return keys, values

    # ---- writing --------------------------------------------------------------------------------------------------

    def step(self, count: int, *, routed: bool, record: bool = False) -> None:
        """Write one token in each of the first ``count`` seats, by a graph where that is possible."""
        can_capture = self._capture and not record
        if can_capture and count in self._warmed_up and count not in self._graphs:
            graph = self._capture_step(count, routed)
            if graph is not None:
                self._graphs[count] = graph
        if count in self._graphs and not record:
            self._graphs[count].replay()
            return
        self._warmed_up.add(count)
        self._compute_step(count, routed, record)

    def _compute_step(self, count: int, routed: bool, record: bool) -> None:
        tokens = self.tokens[:count]
        positions = self.positions[:count]
        cache_rows = torch.arange(count, device=tokens.device) * self.room + positions
        lengths = (positions + 1).to(torch.int32)

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, settings: AttentionSettings
        ) -> Tensor:
            _refuse_sinks(settings)
            keys, values = self._keep(layer, cache_rows, k.squeeze(1), v.squeeze(1))
            answers = self.operations.attend_cached(
                q.squeeze(1), keys, values, lengths, self.room, settings.scale, settings.window
            )
            return answers.unsqueeze(1)

        if self.network.router is not None:
            self.network.router.route(self.owners[:count] if routed else None)
        with self._attending(attend):
            output = self.network.run_body(
                input_ids=tokens.unsqueeze(1), position_ids=positions.unsqueeze(1), use_cache=False
            )
        draws = self._draws_of(torch.arange(count, device=tokens.device))
        choice, logprobs = self._choose(output.last_hidden_state[:, -1], record, draws)
        self.written[:count] = choice
        tokens.copy_(choice.clamp(min=0))
        # a seat that nobody watches stays within its room
        positions.copy_((positions + 1).clamp(max=self.room - 1))
        if record:
            self.logprobs[:count] = logprobs

    def _choose(
        self, hidden: Tensor, record: bool, draws: SampleDraws | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the token of each row, −1 where the logits are not numbers, and its log-probability.

        It is the likeliest, or the one that ``draws`` choose. Where nothing is recorded, the second is its logit.
        """
        logits = self.network.compute_logits(hidden)
        token = logits.argmax(dim=-1, keepdim=True)  # NaN is the largest of all
        best_logits = logits.gather(1, token)
        is_no_number = best_logits.isnan()
        if draws is not None:
            token = draws.choose(logits)[:, None]
        choice = torch.where(is_no_number, -1, token).squeeze(1)
        if record:
            return choice, log_softmax(logits).gather(1, token).squeeze(1)
        return choice, best_logits.squeeze(1)

    def _capture_step(self, count: int, routed: bool) -> torch.cuda.CUDAGraph | None:
        """Capture a step, or say why that cannot be done and never try again."""
        torch.cuda.synchronize(self.network.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                self._compute_step(count, routed, record=False)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            log.debug("what could not be captured", exc_info=error)
            self._capture = False
            torch.cuda.synchronize(self.network.device)
            reason = "no memory" if out_of_memory(error) else str(error)[:200]
            log.warning("writing cannot be captured (%s): it goes one operation at a time", reason)
            return None
        self._pool = graph.pool()
        return graph

    def move_texts(self, moves: Sequence[tuple[int, int]]) -> None:
        """Move texts from one seat to another: (from, to)."""
        device = self.network.device
        sources = torch.tensor([source for source, _ in moves]).to(device)
        targets = torch.tensor([target for _, target in moves]).to(device)
        for state in (
            self.tokens,
            self.positions,
            self.owners,
            self.written,
            self.temperatures,
            self.uniforms,
            self.next_uniform,
        ):
            state[targets] = state[sources]
        offsets = torch.arange(self.room, device=device)
        source_rows = (sources[:, None] * self.room + offsets).view(-1)
        target_rows = (targets[:, None] * self.room + offsets).view(-1)
        for keys, values in self._layer_caches:
            keys.index_copy_(0, target_rows, keys.index_select(0, source_rows))
            values.index_copy_(0, target_rows, values.index_select(0, source_rows))

    @contextmanager
    def _attending(self, attend: LayerAttention) -> Iterator[None]:
        """Let the model attend by this function inside the block; layers are known by the order of their calls."""
        layers = itertools.count()
        with attending(self._configs, lambda *arguments: attend(next(layers), *arguments)):
            yield


def _refuse_sinks(settings: AttentionSettings) -> None:
    """Refuse attention with sinks: what is kept of earlier tokens has no room for them."""
    if settings.sinks is not None:
        raise NotImplementedError("attention with sinks")


def _bounds_of_rows(rows: int, length: int, device: torch.device) -> Rows:
    """Return the bounds of padded rows of one length, laid end to end."""
    first = (torch.arange(rows) * length).repeat_interleave(length)
    tiles = torch.from_numpy(tile([rows * length])).view(-1, 2)
    return Rows(
        first=first.to(device, torch.int32),
        last=(first + length).to(device, torch.int32),
        tiles=tiles.to(device, torch.int32),
    )


REFILL_SHARE = 8  # seats are filled when an eighth of them is free
FEWEST_SEATS = 16


@dataclass(frozen=True)
class _SentStep:
    """What a step chose, on its way to the host, and the drafts that it was chosen for, by seat."""

    written: SentTensors
    readers: dict[int, Draft]


class ContinuousLoop:
    """One run of a queue of drafts through seats."""

    def __init__(
        self, network: Network, endings: Endings, *, seats: int, prefill: int, record: bool = False
    ) -> None:
        self.network = network
        self.endings = endings
        self.most_seats = seats
        self.prefill = prefill
        self.record = record
        self.logprobs: dict[int, list[float]] = {}

    def write(self, drafts: Sequence[Draft]) -> Iterator[Draft]:
        """Write all drafts, longest first, and yield each as it ends."""
        ordered = sorted(drafts, key=lambda draft: (draft.longest, len(draft.prompt)), reverse=True)
        yield from (draft for draft in ordered if draft.room < 1)
        queue = [draft for draft in ordered if draft.room > 0]
        if not queue:
            return
        self.routed = any(draft.owner >= 0 for draft in queue)
        self.count = max(1, min(self.most_seats, len(queue)))
        self.seats = Seats(
            self.network,
            self.count,
            room=queue[0].longest,
            capture=not self.record,
            samples=any(draft.temperature > 0 for draft in queue),
        )
        self.live: dict[int, Draft] = {}
        waiting: list[_SentStep] = []
        while queue or self.live or waiting:
            queue, seated = self._fill_seats(queue)
            if seated is not None:
                waiting.append(seated)
            # a step is worth making if some text may go on after what is on its way already
            ahead = len(waiting)
            stepping = any(len(draft.written) + ahead < draft.room for draft in self.live.values())
            if stepping:
                self.seats.step(self.count, routed=self.routed, record=self.record)
                waiting.append(self._send(dict(self.live)))
            steps_late = 1 if stepping and not self.record else 0
            while len(waiting) > steps_late:
                yield from self._read(waiting.pop(0))
            if not queue:
                self._move_together()

    # ---- seats ----------------------------------------------------------------------------------------------------

    def _fill_seats(self, queue: list[Draft]) -> tuple[list[Draft], _SentStep | None]:
        """Seat the next drafts, where enough seats are free; returns the drafts that still wait."""
        free = [seat for seat in range(self.count) if seat not in self.live]
        is_too_early = bool(self.live) and len(free) < max(1, self.count // REFILL_SHARE)
        if not queue or is_too_early:
            return queue, None
        longest = len(queue[0].prompt)
        number = max(1, min(len(free), len(queue), self.prefill // longest))
        chosen = sorted(queue[:number], key=lambda draft: draft.owner)
        taken = free[:number]
        prompts = [draft.prompt for draft in chosen]
        owners = [draft.owner for draft in chosen]
        self.seats.seat_prompts(taken, prompts, owners, record=self.record, drafts=chosen)
        seated = dict(zip(taken, chosen, strict=True))
        self.live |= seated
        return queue[number:], self._send(seated)

    def _move_together(self) -> None:
        """Move the last texts together, once half of the seats would do."""
        if self.record or not self.live or self.count <= FEWEST_SEATS:
            return
        smaller = max(FEWEST_SEATS, 1 << (len(self.live) - 1).bit_length())
        if len(self.live) > self.count // 2 or smaller > self.count // 2:
            return
        free = iter(seat for seat in range(smaller) if seat not in self.live)
        moves = [(seat, next(free)) for seat in sorted(self.live) if seat >= smaller]
        if moves:
            self.seats.move_texts(moves)
            new_seats = dict(moves)
            self.live = {new_seats.get(seat, seat): draft for seat, draft in self.live.items()}
        self.count = smaller

    # ---- what was written -----------------------------------------------------------------------------------------

    def _send(self, readers: dict[int, Draft]) -> _SentStep:
        """Send what was chosen for these drafts to the host."""
        if self.record:
            for seat, draft in readers.items():
                logprob = float(self.seats.logprobs[seat])
                self.logprobs.setdefault(draft.index, []).append(logprob)
        return _SentStep(SentTensors(self.seats.written), readers)

    def _read(self, step: _SentStep) -> Iterator[Draft]:
        """Append the tokens of a step to the texts that were still going on; yield those that end with them."""
        (tokens,) = step.written.read()
        going = {id(draft) for draft in self.live.values()}
        readers = {seat: draft for seat, draft in step.readers.items() if id(draft) in going}
        drafts = list(readers.values())
        is_over = self.endings.append(drafts, tokens[list(readers)].tolist(), looked_up=True)
        ended = {
            id(draft): draft
            for draft, draft_is_over in zip(drafts, is_over, strict=True)
            if draft_is_over
        }
        self.live = {seat: draft for seat, draft in self.live.items() if id(draft) not in ended}
        yield from ended.values()
