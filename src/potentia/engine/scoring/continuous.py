"""Continuous batching: a queue of texts is written in a fixed number of seats, the host one step behind the device.

A *seat* is the room for one text: its next token, its position, its adapter, and a part of the key-value cache. A text
takes a free seat, its prompt is read in one padded pass with those of others, and from then on every step writes one
token in every seat, whether a text sits there or not. All that changes from step to step is data at fixed addresses,
so a step can be captured once as a CUDA graph and replayed. The attention function itself keeps the keys and values,
layer by layer in the order in which the model's layers call it; the model's own cache plays no part.

While the device writes the next token everywhere, the host reads the last ones. So it sees a step late that a text has
ended, and drops the surplus token. Free seats are filled several at a time, since reading prompts costs a pass. When
the queue is empty and few texts are left, they move to the first seats and steps become smaller.
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
from potentia.engine.models.device_layout import is_out_of_memory
from potentia.engine.models.split_model import AttentionSettings, attending, configs_of
from potentia.engine.models.tokenization import Ids
from potentia.engine.operations import Rows, operations, tile
from potentia.engine.scoring.decoding import Endings, SampleDraws

log = logging.getLogger(__name__)

LayerAttention = Callable[[int, Tensor, Tensor, Tensor, AttentionSettings], Tensor]
"""Attention of one layer: its number in the order of calls, queries, keys, values (R, T, H, d), scale and window."""


class Seats:
    """``count`` seats of ``capacity`` tokens each, on one model.

    ``uses_adapters`` says that some texts are written with adapters, ``samples`` that some are sampled, and ``capture``
    that steps may be captured as CUDA graphs, where the device has them.
    """

    def __init__(
        self,
        network: Network,
        count: int,
        capacity: int,
        *,
        capture: bool,
        uses_adapters: bool = False,
        samples: bool = False,
    ) -> None:
        self.network = network
        self.count = count
        self.capacity = capacity
        self.uses_adapters = uses_adapters
        device = network.device
        self.operations = operations(device)
        # the token that each seat reads next, its position, and the slot of the seat's adapter (-1: none)
        self.tokens = torch.zeros(count, dtype=torch.long, device=device)
        self.positions = torch.zeros(count, dtype=torch.long, device=device)
        self.owners = torch.full((count,), -1, dtype=torch.long, device=device)
        # the tokens that the last step chose, and their log-probabilities if these are recorded
        self.chosen_tokens = torch.zeros(count, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(count, device=device)
        # of sampled texts: the temperature, the numbers that choose the tokens, and the index of the next one
        self.samples = samples
        self.temperatures = torch.zeros(count, device=device)
        self.uniforms = torch.zeros(count, capacity + 1 if samples else 1, device=device)
        self.next_uniform = torch.zeros(count, dtype=torch.long, device=device)
        # each layer's keys and values (count · capacity + 1, heads, width), seat by seat; the last row is for padding
        self._layer_caches: list[tuple[Tensor, Tensor]] = []
        self._may_capture = capture and device.type == "cuda"
        # by the number of seats in a step
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._warmed_up: set[int] = set()
        self._graph_memory: Any = None  # the pool that all graphs share
        self._configs = configs_of(network.model)

    # ---- reading prompts ------------------------------------------------------------------------------------------

    def seat_prompts(
        self,
        seats: Sequence[int],
        prompts: Sequence[Ids],
        owners: Sequence[int],
        *,
        record_logprobs: bool = False,
        drafts: Sequence[Draft] = (),
    ) -> None:
        """Put prompts into seats: read them, cache their keys and values, and choose the first token of each text.

        ``drafts`` are the texts of these prompts; they are needed if some are sampled.
        """
        device = self.network.device
        rows = len(prompts)
        length = max(len(prompt) for prompt in prompts)
        token_ids = torch.zeros(rows, length, dtype=torch.long)
        # where each token's keys and values go in the cache; padding's go to its last row, which nobody reads
        cache_rows = torch.full((rows, length), self.count * self.capacity)
        for row, (seat, prompt) in enumerate(zip(seats, prompts, strict=True)):
            token_ids[row, : len(prompt)] = torch.tensor(prompt)
            cache_rows[row, : len(prompt)] = seat * self.capacity + torch.arange(len(prompt))
        bounds = _bounds_of_rows(rows, length, device)
        flat_cache_rows = cache_rows.view(-1).to(device)

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, settings: AttentionSettings
        ) -> Tensor:
            _refuse_sinks(settings)
            queries = q.reshape(rows * length, *q.shape[2:])
            keys = k.reshape(rows * length, *k.shape[2:])
            values = v.reshape(rows * length, *v.shape[2:])
            self._cache_keys_and_values(layer, flat_cache_rows, keys, values)
            answers, _ = self.operations.attend(
                queries, keys, values, bounds, settings.scale, settings.window
            )
            return answers.view(rows, length, *answers.shape[1:])

        self.network.route(owners)
        positions = torch.arange(length).expand(rows, length).to(device)
        with self._attending(attend):
            output = self.network.run_body(
                input_ids=token_ids.to(device), position_ids=positions, use_cache=False
            )
        hidden = output.last_hidden_state
        last_positions = torch.tensor([len(prompt) for prompt in prompts]).to(device) - 1
        last_hidden = hidden[torch.arange(rows, device=device), last_positions]
        taken_seats = torch.tensor(seats).to(device)
        if self.samples:
            self._set_sampling(taken_seats, drafts)
        draws = self._next_draws(taken_seats)
        choice, logprobs = self._choose_tokens(last_hidden, record_logprobs, draws)
        self.tokens[taken_seats] = choice.clamp(min=0)
        self.positions[taken_seats] = last_positions + 1
        self.chosen_tokens[taken_seats] = choice
        self.owners[taken_seats] = torch.tensor(owners).to(device)
        if record_logprobs:
            self.logprobs[taken_seats] = logprobs

    def _set_sampling(self, seats: Tensor, drafts: Sequence[Draft]) -> None:
        """Set the temperatures and the numbers by which the texts in these seats are sampled."""
        numbers = torch.zeros(len(drafts), self.uniforms.shape[1])
        for row, draft in enumerate(drafts):
            if draft.uniforms is not None:
                numbers[row, : len(draft.uniforms)] = torch.from_numpy(draft.uniforms)
        temperatures = torch.tensor([draft.temperature for draft in drafts])
        self.temperatures[seats] = temperatures.to(seats.device)
        self.uniforms[seats] = numbers.to(seats.device)
        self.next_uniform[seats] = 0

    def _next_draws(self, seats: Tensor) -> SampleDraws | None:
        """Return what chooses the next token in these seats, and advance each seat to its next number."""
        if not self.samples:
            return None
        position = self.next_uniform[seats].clamp(max=self.uniforms.shape[1] - 1)
        uniforms = self.uniforms[seats, position]
        self.next_uniform[seats] = position + 1
        return SampleDraws(self.temperatures[seats], uniforms)

    def _cache_keys_and_values(
        self, layer: int, cache_rows: Tensor, new_keys: Tensor, new_values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write tokens' keys and values into these rows of a layer's cache; return all that the cache holds."""
        if layer == len(self._layer_caches):  # the layer's first call: its heads are known now
            cache_tokens = self.count * self.capacity + 1
            empty_keys = new_keys.new_zeros((cache_tokens, *new_keys.shape[1:]))
            empty_values = new_values.new_zeros((cache_tokens, *new_values.shape[1:]))
            self._layer_caches.append((empty_keys, empty_values))
        keys, values = self._layer_caches[layer]
        keys.index_copy_(0, cache_rows, new_keys)
        values.index_copy_(0, cache_rows, new_values)
        return keys, values

    # ---- writing --------------------------------------------------------------------------------------------------

    def step(self, count: int, *, record_logprobs: bool = False) -> None:
        """Write one token in each of the first ``count`` seats.

        The second step of a size captures a graph, if steps may be captured; later ones replay it. A step that records
        log-probabilities is never captured.
        """
        can_capture = self._may_capture and not record_logprobs
        if can_capture and count in self._warmed_up and count not in self._graphs:
            graph = self._capture_step(count)
            if graph is not None:
                self._graphs[count] = graph
        if count in self._graphs and not record_logprobs:
            self._graphs[count].replay()
            return
        self._warmed_up.add(count)
        self._compute_step(count, record_logprobs=record_logprobs)

    def _compute_step(self, count: int, *, record_logprobs: bool) -> None:
        """Run the model on the next token of the first ``count`` seats, and choose the token after it."""
        tokens = self.tokens[:count]
        positions = self.positions[:count]
        cache_rows = torch.arange(count, device=tokens.device) * self.capacity + positions
        lengths = (positions + 1).to(torch.int32)

        def attend(
            layer: int, q: Tensor, k: Tensor, v: Tensor, settings: AttentionSettings
        ) -> Tensor:
            _refuse_sinks(settings)
            keys, values = self._cache_keys_and_values(
                layer, cache_rows, k.squeeze(1), v.squeeze(1)
            )
            outputs = self.operations.attend_cached(
                q.squeeze(1), keys, values, lengths, self.capacity, settings.scale, settings.window
            )
            return outputs.unsqueeze(1)

        if self.network.router is not None:
            self.network.router.route(self.owners[:count] if self.uses_adapters else None)
        with self._attending(attend):
            output = self.network.run_body(
                input_ids=tokens.unsqueeze(1), position_ids=positions.unsqueeze(1), use_cache=False
            )
        draws = self._next_draws(torch.arange(count, device=tokens.device))
        last_hidden = output.last_hidden_state[:, -1]
        choice, logprobs = self._choose_tokens(last_hidden, record_logprobs, draws)
        self.chosen_tokens[:count] = choice
        tokens.copy_(choice.clamp(min=0))
        # a seat whose text has ended goes on, and stays within its capacity
        positions.copy_((positions + 1).clamp(max=self.capacity - 1))
        if record_logprobs:
            self.logprobs[:count] = logprobs

    def _choose_tokens(
        self, hidden: Tensor, record_logprobs: bool, draws: SampleDraws | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the next token of each row, −1 if its logits hold NaN, and the token's log-probability.

        The token is the likeliest, or the one that ``draws`` choose. If log-probabilities are not to be recorded, the
        largest logit takes their place: it costs nothing, and nobody reads it.
        """
        logits = self.network.compute_logits(hidden)
        token = logits.argmax(
            dim=-1, keepdim=True
        )  # of a NaN, if there is one: argmax takes it for the largest
        best_logits = logits.gather(1, token)
        has_nan = best_logits.isnan()
        if draws is not None:
            token = draws.choose(logits)[:, None]
        choice = torch.where(has_nan, -1, token).squeeze(1)
        if record_logprobs:
            return choice, log_softmax(logits).gather(1, token).squeeze(1)
        return choice, best_logits.squeeze(1)

    def _capture_step(self, count: int) -> torch.cuda.CUDAGraph | None:
        """Capture a step of ``count`` seats as a graph; if that fails, warn, and never capture again."""
        torch.cuda.synchronize(self.network.device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph, pool=self._graph_memory, capture_error_mode="thread_local"
            ):
                self._compute_step(count, record_logprobs=False)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            log.debug("what could not be captured", exc_info=error)
            self._may_capture = False
            torch.cuda.synchronize(self.network.device)
            reason = "no memory" if is_out_of_memory(error) else str(error)[:200]
            log.warning("writing cannot be captured (%s): it goes one operation at a time", reason)
            return None
        self._graph_memory = graph.pool()
        return graph

    def move_texts(self, moves: Sequence[tuple[int, int]]) -> None:
        """Move texts between seats, each from the first seat of a pair to the second."""
        device = self.network.device
        sources = torch.tensor([source for source, _ in moves]).to(device)
        targets = torch.tensor([target for _, target in moves]).to(device)
        for state in (
            self.tokens,
            self.positions,
            self.owners,
            self.chosen_tokens,
            self.temperatures,
            self.uniforms,
            self.next_uniform,
        ):
            state[targets] = state[sources]
        offsets = torch.arange(self.capacity, device=device)
        source_rows = (sources[:, None] * self.capacity + offsets).view(-1)
        target_rows = (targets[:, None] * self.capacity + offsets).view(-1)
        for keys, values in self._layer_caches:
            keys.index_copy_(0, target_rows, keys.index_select(0, source_rows))
            values.index_copy_(0, target_rows, values.index_select(0, source_rows))

    @contextmanager
    def _attending(self, attend: LayerAttention) -> Iterator[None]:
        """Let the model attend by this function inside the block; a layer is known by the order of its call."""
        layers = itertools.count()
        with attending(self._configs, lambda *arguments: attend(next(layers), *arguments)):
            yield


def _refuse_sinks(settings: AttentionSettings) -> None:
    """Refuse attention with sinks (a learned share of each softmax): :meth:`Operations.attend_cached` has none."""
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


REFILL_SHARE = 8  # seats are filled when one in so many is free
FEWEST_SEATS = 16  # of a step that is made smaller


@dataclass(frozen=True)
class _SentStep:
    """The tokens that a step chose, on their way to the host, and the drafts that they were chosen for, by seat."""

    tokens: SentTensors
    drafts_by_seat: dict[int, Draft]


class ContinuousLoop:
    """One run of a queue of drafts through at most ``seats`` seats.

    ``prefill_tokens`` bounds the tokens of the prompts, padding included, that are read in one pass. With
    ``record_logprobs``, ``logprobs`` has each written token's log-probability afterwards, by the index of the draft.
    """

    def __init__(
        self,
        network: Network,
        endings: Endings,
        *,
        seats: int,
        prefill_tokens: int,
        record_logprobs: bool = False,
    ) -> None:
        self.network = network
        self.endings = endings
        self.most_seats = seats
        self.prefill_tokens = prefill_tokens
        self.record_logprobs = record_logprobs
        self.logprobs: dict[int, list[float]] = {}

    def write(self, drafts: Sequence[Draft]) -> Iterator[Draft]:
        """Write all drafts, the longest first, and yield each as it ends."""
        longest_first = sorted(drafts, key=_length_key, reverse=True)
        yield from (draft for draft in longest_first if draft.max_new_tokens < 1)
        queue = [draft for draft in longest_first if draft.max_new_tokens > 0]
        if not queue:
            return
        self.seat_count = max(1, min(self.most_seats, len(queue)))
        self.seats = Seats(
            self.network,
            self.seat_count,
            capacity=queue[0].full_length,
            capture=not self.record_logprobs,
            uses_adapters=any(draft.owner >= 0 for draft in queue),
            samples=any(draft.temperature > 0 for draft in queue),
        )
        self.drafts_by_seat: dict[int, Draft] = {}  # those that are being written
        unread_steps: list[_SentStep] = []
        while queue or self.drafts_by_seat or unread_steps:
            queue, first_tokens = self._fill_seats(queue)
            if first_tokens is not None:
                unread_steps.append(first_tokens)
            # a further step makes sense if some text may need a token beyond those on their way
            tokens_ahead = len(unread_steps)
            makes_step = any(
                len(draft.written) + tokens_ahead < draft.max_new_tokens
                for draft in self.drafts_by_seat.values()
            )
            if makes_step:
                self.seats.step(self.seat_count, record_logprobs=self.record_logprobs)
                unread_steps.append(self._send_tokens(dict(self.drafts_by_seat)))
            steps_late = 1 if makes_step and not self.record_logprobs else 0
            while len(unread_steps) > steps_late:
                yield from self._read_step(unread_steps.pop(0))
            if not queue:
                self._use_fewer_seats()

    # ---- seats ----------------------------------------------------------------------------------------------------

    def _fill_seats(self, queue: list[Draft]) -> tuple[list[Draft], _SentStep | None]:
        """Seat the next drafts if enough seats are free; return the drafts that still wait, and the first tokens."""
        free_seats = [seat for seat in range(self.seat_count) if seat not in self.drafts_by_seat]
        enough_seats = max(1, self.seat_count // REFILL_SHARE)
        is_too_early = bool(self.drafts_by_seat) and len(free_seats) < enough_seats
        if not queue or is_too_early:
            return queue, None
        longest_prompt = len(queue[0].prompt)
        count = max(1, min(len(free_seats), len(queue), self.prefill_tokens // longest_prompt))
        next_drafts = sorted(queue[:count], key=lambda draft: draft.owner)
        taken_seats = free_seats[:count]
        prompts = [draft.prompt for draft in next_drafts]
        owners = [draft.owner for draft in next_drafts]
        self.seats.seat_prompts(
            taken_seats,
            prompts,
            owners,
            record_logprobs=self.record_logprobs,
            drafts=next_drafts,
        )
        newly_seated = dict(zip(taken_seats, next_drafts, strict=True))
        self.drafts_by_seat |= newly_seated
        return queue[count:], self._send_tokens(newly_seated)

    def _use_fewer_seats(self) -> None:
        """Move the last texts to the first seats once half of the seats hold them, so that steps become smaller."""
        has_fewest = self.seat_count <= FEWEST_SEATS
        if self.record_logprobs or not self.drafts_by_seat or has_fewest:
            return
        text_count = len(self.drafts_by_seat)
        half = self.seat_count // 2
        fewer_seats = max(FEWEST_SEATS, 1 << (text_count - 1).bit_length())  # a power of two
        if text_count > half or fewer_seats > half:
            return
        free_seats = iter(seat for seat in range(fewer_seats) if seat not in self.drafts_by_seat)
        moves: list[tuple[int, int]] = []
        for seat in sorted(self.drafts_by_seat):
            if seat >= fewer_seats:
                moves.append((seat, next(free_seats)))
        if moves:
            self.seats.move_texts(moves)
            new_seats = dict(moves)
            self.drafts_by_seat = {
                new_seats.get(seat, seat): draft for seat, draft in self.drafts_by_seat.items()
            }
        self.seat_count = fewer_seats

    # ---- what was written -----------------------------------------------------------------------------------------

    def _send_tokens(self, drafts_by_seat: dict[int, Draft]) -> _SentStep:
        """Send the tokens that were just chosen for these drafts to the host."""
        if self.record_logprobs:
            for seat, draft in drafts_by_seat.items():
                logprob = float(self.seats.logprobs[seat])
                self.logprobs.setdefault(draft.index, []).append(logprob)
        return _SentStep(SentTensors(self.seats.chosen_tokens), drafts_by_seat)

    def _read_step(self, step: _SentStep) -> Iterator[Draft]:
        """Append a step's tokens to the texts that have not ended meanwhile; yield the texts that end with them."""
        (tokens,) = step.tokens.read()
        unfinished = {id(draft) for draft in self.drafts_by_seat.values()}
        seats: list[int] = []
        drafts: list[Draft] = []
        for seat, draft in step.drafts_by_seat.items():
            if id(draft) in unfinished:
                seats.append(seat)
                drafts.append(draft)
        is_over = self.endings.append(drafts, tokens[seats].tolist(), looked_up=True)
        ended_drafts = [draft for draft, ends in zip(drafts, is_over, strict=True) if ends]
        ended_ids = {id(draft) for draft in ended_drafts}
        self.drafts_by_seat = {
            seat: draft for seat, draft in self.drafts_by_seat.items() if id(draft) not in ended_ids
        }
        yield from ended_drafts


def _length_key(draft: Draft) -> tuple[int, int]:
    return draft.full_length, len(draft.prompt)
