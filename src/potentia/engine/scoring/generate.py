"""Writing texts, greedily or by sampling: in seats that texts take in turn, or in batches that shrink as texts end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.layers.draft import Draft, draw_uniforms
from potentia.engine.layers.network import Network, log_softmax
from potentia.engine.models.device_layout import give_back, is_spread, out_of_memory
from potentia.engine.models.tokenization import Encoder, Ids
from potentia.engine.scoring.continuous import ContinuousLoop
from potentia.engine.scoring.decoding import (
    Decoding,
    Endings,
    SampleDraws,
    generate_by_model,
    mark_read_tokens,
)
from potentia.errors import ModelError
from potentia.values.requests import Generation
from potentia.values.scoring_route import WritingRoute

if TYPE_CHECKING:
    from potentia.engine.proof.scoring_check import ScoringCheck

# as lm-eval: a stop string may be written in up to two tokens more than it takes by itself
EXTRA_LOOKBACK = 2
PREFILL_BUDGETS = 4  # a prefill keeps no logits, so it may be larger than a scoring batch
MOST_ROWS = {"cuda": 256, "cpu": 16}
MOST_SEATS = {"cuda": 1024, "cpu": 16}
SAMPLES = 3


class TextWriter:
    """Continue prompts, greedily as lm-eval's ``generate_until`` with ``do_sample=False`` does, or by sampling.

    Prompts are cut from the left so that prompt and answer fit the model. A row leaves the batch as soon as it has
    written an end-of-text token, a stop string or its last token; the key/value cache shrinks with the batch. Where
    that loop does not give what the model itself would, or the settings ask for more than greedy choice, the model's
    own ``generate`` writes, on prompts of one length at a time, so that nothing is padded.
    """

    def __init__(
        self,
        *,
        network: Network,
        encoder: Encoder,
        token_budget: int,
        check: ScoringCheck,
        endings: Endings,
        continuous: bool | None,
    ) -> None:
        self.network = network
        self.encoder = encoder
        self.tokenizer = encoder.tokenizer
        self.token_budget = token_budget
        self.check = check
        self.endings = endings
        self.truncated = 0
        self.samples: list[Ids] = []
        self.routes: set[WritingRoute] = set()
        self.is_spread = is_spread(network.model)
        if continuous is None:
            continuous = network.device.type == "cuda" and not self.is_spread
        self.continuous = continuous
        encode = encoder.tokenizer.encode
        self._count_tokens = cache(lambda text: len(encode(text, add_special_tokens=False)))

    def write(
        self,
        requests: Sequence[Generation],
        owners: Sequence[int] | None,
        progress: Callable[[int], None] | None,
    ) -> list[str]:
        """Return one text for each request, in their order."""
        prompts = self.encoder.prompts([request.context for request in requests])
        self.encoder.check_known(prompts)
        drafts: list[Draft] = []
        for index, (request, prompt) in enumerate(zip(requests, prompts, strict=True)):
            owner = -1 if owners is None else owners[index]
            drafts.append(self._make_draft(index, request, prompt, owner))
        self.samples = [draft.prompt for draft in drafts[:SAMPLES]]
        texts = [""] * len(requests)
        for options in dict.fromkeys(draft.options for draft in drafts):
            queue = [draft for draft in drafts if draft.options == options]
            decoding = Decoding.from_options(self.network.model, options)
            for draft in self._write_drafts(queue, decoding):
                texts[draft.index] = self._decode(draft)
                if progress is not None:
                    progress(1)
        return texts

    def _write_drafts(self, queue: list[Draft], decoding: Decoding) -> Iterator[Draft]:
        """Write texts in the fastest way that gives the model's own; yield each as it ends."""
        route = self._choose_route(queue, decoding)
        self.routes.add(route)
        if route == WritingRoute.SEATS:
            yield from self._write_in_seats(queue)
        else:
            yield from self._write_in_batches(queue, decoding, route)

    def _choose_route(self, queue: list[Draft], decoding: Decoding) -> WritingRoute:
        """Return the fastest way to write such texts that gives the reference's numbers."""
        if decoding.is_beyond_greedy:
            return WritingRoute.GENERATE
        if not self._can_use(WritingRoute.LOOP, queue, self._try_loop):
            return WritingRoute.GENERATE
        if decoding.penalty != 1.0 or not self.continuous:
            return WritingRoute.LOOP
        if self._can_use(WritingRoute.SEATS, queue, self._try_seats):
            return WritingRoute.SEATS
        return WritingRoute.LOOP

    def _can_use(
        self,
        route: WritingRoute,
        queue: list[Draft],
        write: Callable[[Network, list[Draft]], list[list[float]]],
    ) -> bool:
        """Say whether a way of writing such texts gives the reference's numbers."""
        live = [draft for draft in queue if draft.room > 0]
        if not live:
            return True
        longest = max(draft.longest for draft in live)
        return self.check.can_write(longest, live, write, route)

    def _write_in_batches(
        self, queue: list[Draft], decoding: Decoding, route: WritingRoute
    ) -> Iterator[Draft]:
        """Write texts in batches, the longest first, by our loop or by the model's own ``generate``."""
        queue = sorted(queue, key=_by_length, reverse=True)
        by_model = route == WritingRoute.GENERATE
        while queue:
            if by_model:
                batch = self._take_alike(queue, decoding)
            else:
                batch = queue[: self._count_rows(queue[0])]
            try:
                if by_model:
                    self._write_by_model(batch, decoding)
                else:
                    self._write_by_loop(batch, decoding)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not self._halve_budget(error, len(batch)):
                    raise
                for draft in batch:
                    draft.written.clear()
                continue
            finished = {id(draft) for draft in batch}
            queue = [draft for draft in queue if id(draft) not in finished]
            yield from batch

    def _on_network(self, network: Network) -> TextWriter:
        """Return a writer like this one on another network."""
        sibling = copy.copy(self)
        sibling.network = network
        return sibling

    def _try_loop(self, network: Network, batch: list[Draft]) -> list[list[float]]:
        """Write a trial's texts in a loop, and return the log-probabilities of their tokens."""
        return self._on_network(network)._write_by_loop(batch, Decoding(), record=True)

    def _try_seats(self, network: Network, batch: list[Draft]) -> list[list[float]]:
        """Write a trial's texts in seats, and return the log-probabilities of their tokens."""
        seats = max(2, len(batch) // 2)
        loop = self._on_network(network)._make_continuous_loop(seats, record=True)
        for _ in loop.write(batch):
            pass
        return [loop.logprobs[draft.index] for draft in batch]

    def _make_continuous_loop(self, seats: int, *, record: bool = False) -> ContinuousLoop:
        return ContinuousLoop(
            self.network,
            self.endings,
            seats=seats,
            prefill=PREFILL_BUDGETS * self.token_budget,
            record=record,
        )

    def _write_in_seats(self, queue: list[Draft]) -> Iterator[Draft]:
        """Write texts in seats; with half as many where memory runs out."""
        longest = max(draft.longest for draft in queue)
        most_seats = MOST_SEATS.get(self.network.device.type, 16)
        seats = max(1, min(most_seats, self.network.count_cacheable_tokens() // longest))
        remaining = {draft.index: draft for draft in queue}
        while remaining:
            try:
                loop = self._make_continuous_loop(seats)
                for draft in loop.write(list(remaining.values())):
                    del remaining[draft.index]
                    yield draft
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not self._halve_budget(error, seats):
                    raise
                seats = max(1, seats // 2)
                for draft in remaining.values():
                    draft.written.clear()

    def _count_rows(self, longest: Draft) -> int:
        """How many texts to write at once: the prompts' activations and the finished texts' cache must both fit."""
        max_rows = MOST_ROWS.get(self.network.device.type, 16)
        prefilled = PREFILL_BUDGETS * self.token_budget // len(longest.prompt)
        cached = self.network.count_cacheable_tokens() // longest.longest
        return max(1, min(max_rows, prefilled, cached))

    def _take_alike(self, queue: list[Draft], decoding: Decoding) -> list[Draft]:
        """Choose drafts with prompts of one length and one owner; one where the model keeps several versions."""
        first = queue[0]
        max_rows = 1 if decoding.beams > 1 else self._count_rows(first)
        alike = [draft for draft in queue if _shape(draft) == _shape(first)]
        return alike[:max_rows]

    def _make_draft(self, index: int, request: Generation, prompt: Ids, owner: int) -> Draft:
        """Make the draft of a request, its prompt cut so that prompt and answer fit the model."""
        prefix = self.encoder.bos.prefix_id
        if not prompt:
            if prefix is None:
                raise ModelError(
                    "cannot continue an empty text: the tokenizer has neither a BOS nor an end-of-text token"
                )
            prompt = [prefix]
        max_length = self.encoder.max_length
        room = min(request.max_tokens, max_length - 1)
        space = max(max_length - room, 1)
        if len(prompt) > space:
            self.truncated += 1
            keeps_bos = self.encoder.bos.required and prompt[0] == prefix and space > 1
            if keeps_bos:
                prompt = [prompt[0], *prompt[-(space - 1) :]]
            else:
                prompt = prompt[-space:]
        longest_stop = max((self._count_tokens(stop) for stop in request.stop), default=0)
        return Draft(
            index=index,
            prompt=prompt,
            stop=request.stop,
            room=room,
            owner=owner,
            lookback=longest_stop + EXTRA_LOOKBACK,
            options=request.options,
            temperature=request.temperature,
            uniforms=draw_uniforms(request.seed, room) if request.temperature > 0 else None,
        )

    def _write_by_model(self, batch: list[Draft], decoding: Decoding) -> None:
        """Let the model's own ``generate`` write a batch of texts with prompts of one length."""
        live = [draft for draft in batch if draft.room > 0]
        if not live:
            return
        beams = decoding.beams
        self.network.route([draft.owner for draft in live for _ in range(beams)])

        def find_stopped(written: list[Ids]) -> list[bool]:
            """Which rows are done; of several versions of a text, lm-eval looks at the first alone."""
            stopped = self.endings.find_stopped(live, written)
            return stopped if beams == 1 else stopped * len(written)

        has_stops = any(draft.stop for draft in live)
        tokens = generate_by_model(
            self.network.model,
            [draft.prompt for draft in live],
            live[0].room,
            decoding,
            find_stopped if has_stops else None,
            pad=self.tokenizer.pad_token_id,
            drafts=live,
        )
        for draft, ids in zip(live, tokens, strict=True):
            ends = [position for position, token in enumerate(ids) if token in self.endings.tokens]
            draft.written = ids[: ends[0]] if ends else ids

    def _write_by_loop(
        self, batch: list[Draft], decoding: Decoding, *, record: bool = False
    ) -> list[list[float]]:
        """Write a batch of texts; returns, where asked to, the log-probability of every token that was chosen."""
        network = self.network
        live = sorted((draft for draft in batch if draft.room > 0), key=lambda draft: draft.owner)
        recorded: dict[int, list[float]] = {draft.index: [] for draft in batch}
        tokens, mask = self._pad_prompts(live)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        read_tokens: torch.Tensor | None = None
        cache: Any = None
        while live:
            network.route([draft.owner for draft in live])
            output = network.run_body(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            logits = network.compute_logits(output.last_hidden_state[:, -1])  # (rows, vocabulary)
            if decoding.penalty != 1.0 and read_tokens is None:
                read_tokens = mark_read_tokens([draft.prompt for draft in live], logits)
            draws = None if record else SampleDraws.of_next_tokens(live, network.device)
            choice = decoding.choose(logits, read_tokens, draws)  # (rows,)
            chosen = choice.tolist()
            if record:
                for draft, token, logprobs in zip(live, chosen, log_softmax(logits), strict=True):
                    recorded[draft.index].append(float(logprobs[token]))
            ended = self.endings.append(live, chosen, looked_up=False)
            going = [row for row, row_ended in enumerate(ended) if not row_ended]
            if not going:
                break
            positions = positions[:, -1:] + 1
            if read_tokens is not None:
                read_tokens.scatter_(1, choice[:, None], True)
            if len(going) < len(live):
                unfinished = torch.tensor(going, device=network.device)
                cache.batch_select_indices(unfinished.cpu() if self.is_spread else unfinished)
                choice = choice[unfinished]
                positions = positions[unfinished]
                mask = mask[unfinished]
                if read_tokens is not None:
                    read_tokens = read_tokens[unfinished]
                live = [live[row] for row in going]
            tokens = choice[:, None]
            mask = torch.cat([mask, mask.new_ones((len(live), 1))], dim=1)
        return [recorded[draft.index] for draft in batch]

    def _pad_prompts(self, drafts: list[Draft]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return prompts padded on the left, and their mask."""
        length = max((len(draft.prompt) for draft in drafts), default=0)
        tokens = torch.zeros((len(drafts), length), dtype=torch.long)
        mask = torch.zeros((len(drafts), length), dtype=torch.long)
        for row, draft in enumerate(drafts):
            begin = length - len(draft.prompt)
            tokens[row, begin:] = torch.tensor(draft.prompt)
            mask[row, begin:] = 1
        return tokens.to(self.network.device), mask.to(self.network.device)

    def _decode(self, draft: Draft) -> str:
        """Return what was written as text, up to the first stop text."""
        text = str(self.tokenizer.decode(draft.written, skip_special_tokens=True))
        for stop in (*draft.stop, self.tokenizer.eos_token):
            if stop:
                text = text.split(stop)[0]
        return text

    def _halve_budget(self, error: RuntimeError, rows: int) -> bool:
        """Halve the token budget where memory ran out; whether it is worth trying again."""
        if not out_of_memory(error):
            return False
        if not give_back(self.network.device) and rows == 1:
            return False
        self.token_budget = max(self.token_budget // 2, 1)
        return True


def _by_length(draft: Draft) -> tuple[int, int]:
    return draft.longest, len(draft.prompt)


def _shape(draft: Draft) -> tuple[int, int, int]:
    """What the drafts of one batch of the model's own ``generate`` have in common."""
    return len(draft.prompt), draft.room, draft.owner
