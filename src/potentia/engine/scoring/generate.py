"""Writing texts, greedily or by sampling, in the fastest of three ways that writes what the model itself would.

* seats: a queue of texts through a fixed number of seats (see ``continuous``), on a GPU;
* the loop: batches of left-padded prompts, which shrink as texts end;
* the model's own ``generate``, on prompts of one length at a time.

A *draft* is a text while it is being written; its *owner* is the slot of the adapter that writes it, or −1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.layers.draft import Draft, draw_uniforms
from potentia.engine.layers.network import Network, log_softmax
from potentia.engine.models.device_layout import give_back, is_out_of_memory, is_spread
from potentia.engine.models.tokenization import Encoder, Ids
from potentia.engine.scoring.continuous import ContinuousLoop
from potentia.engine.scoring.decoding import (
    Decoding,
    Endings,
    SampleDraws,
    generate_by_model,
    mark_prompt_tokens,
)
from potentia.errors import ModelError
from potentia.values.requests import Generation
from potentia.values.scoring_route import WritingRoute

if TYPE_CHECKING:
    from potentia.engine.proof.scoring_check import ScoringCheck

# tokens, as in lm-eval: a stop text may be written in up to two tokens more than it takes by itself
EXTRA_LOOKBACK = 2
# a pass over prompts may have so many token budgets of a scoring batch: it keeps the logits of one token a row
PREFILL_BUDGETS = 4
MOST_ROWS = {"cuda": 256, "cpu": 16}  # texts in a batch
MOST_SEATS = {"cuda": 1024, "cpu": 16}
SAMPLES = 3  # prompts that are kept for the record


class TextWriter:
    """Continue prompts, greedily as lm-eval's ``generate_until`` with ``do_sample=False`` does, or by sampling.

    Prompts are cut from the left so that prompt and answer fit the model. A text leaves its batch as soon as it has an
    end-of-text token, a stop text or its largest length; the key-value cache shrinks with the batch. The model's own
    ``generate`` writes if our loop does not give what it would, or if settings ask for more than greedy choice; its
    prompts have one length, so that nothing is padded. ``continuous`` asks for seats, by default on a GPU.
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
        self.encoder.refuse_unknown_texts(prompts)
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
        """Write texts in the fastest way that the check allows; yield each as it ends."""
        route = self._choose_route(queue, decoding)
        self.routes.add(route)
        if route == WritingRoute.SEATS:
            yield from self._write_in_seats(queue)
        else:
            yield from self._write_in_batches(queue, decoding, route)

    def _choose_route(self, queue: list[Draft], decoding: Decoding) -> WritingRoute:
        """Return the fastest way to write these texts that chooses as the reference does."""
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
        write_trial: Callable[[Network, list[Draft]], list[list[float]]],
    ) -> bool:
        """Return whether a way of writing passes its check on texts like these.

        ``write_trial`` writes the check's texts in this way, and returns the log-probabilities of their tokens.
        """
        live_drafts = [draft for draft in queue if draft.max_new_tokens > 0]
        if not live_drafts:
            return True
        longest = max(draft.full_length for draft in live_drafts)
        return self.check.can_write(longest, live_drafts, write_trial, route)

    def _write_in_batches(
        self, queue: list[Draft], decoding: Decoding, route: WritingRoute
    ) -> Iterator[Draft]:
        """Write texts in batches, the longest first, by our loop or by the model's own ``generate``; yield batches."""
        queue = sorted(queue, key=_length_key, reverse=True)
        by_model = route == WritingRoute.GENERATE
        while queue:
            if by_model:
                batch = self._choose_alike(queue, decoding)
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
        return self._on_network(network)._write_by_loop(batch, Decoding(), record_logprobs=True)

    def _try_seats(self, network: Network, batch: list[Draft]) -> list[list[float]]:
        """Write a trial's texts in seats, and return the log-probabilities of their tokens."""
        seats = max(2, len(batch) // 2)
        continuous_loop = self._on_network(network)._make_continuous_loop(
            seats, record_logprobs=True
        )
        for _ in continuous_loop.write(batch):
            pass
        return [continuous_loop.logprobs[draft.index] for draft in batch]

    def _make_continuous_loop(self, seats: int, *, record_logprobs: bool = False) -> ContinuousLoop:
        return ContinuousLoop(
            self.network,
            self.endings,
            seats=seats,
            prefill_tokens=PREFILL_BUDGETS * self.token_budget,
            record_logprobs=record_logprobs,
        )

    def _write_in_seats(self, queue: list[Draft]) -> Iterator[Draft]:
        """Write texts in seats, in half as many each time memory runs out; yield each as it ends."""
        longest = max(draft.full_length for draft in queue)
        most_seats = MOST_SEATS.get(self.network.device.type, 16)
        seats = max(1, min(most_seats, self.network.count_cacheable_tokens() // longest))
        remaining = {draft.index: draft for draft in queue}
        while remaining:
            try:
                continuous_loop = self._make_continuous_loop(seats)
                for draft in continuous_loop.write(list(remaining.values())):
                    del remaining[draft.index]
                    yield draft
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not self._halve_budget(error, seats):
                    raise
                seats = max(1, seats // 2)
                for draft in remaining.values():
                    draft.written.clear()

    def _count_rows(self, longest: Draft) -> int:
        """Return how many texts to write at once, so that the prompts' activations and all texts' cache fit memory."""
        most_rows = MOST_ROWS.get(self.network.device.type, 16)
        rows_in_prefill = PREFILL_BUDGETS * self.token_budget // len(longest.prompt)
        rows_in_cache = self.network.count_cacheable_tokens() // longest.full_length
        return max(1, min(most_rows, rows_in_prefill, rows_in_cache))

    def _choose_alike(self, queue: list[Draft], decoding: Decoding) -> list[Draft]:
        """Choose the first draft and those like it in prompt length, answer length and owner; one for beam search."""
        first = queue[0]
        most_rows = 1 if decoding.beams > 1 else self._count_rows(first)
        alike = [draft for draft in queue if _shape(draft) == _shape(first)]
        return alike[:most_rows]

    def _make_draft(self, index: int, request: Generation, prompt: Ids, owner: int) -> Draft:
        """Make the draft of a request, and cut its prompt from the left so that prompt and answer fit the model."""
        prefix = self.encoder.bos.prefix_id
        if not prompt:
            if prefix is None:
                raise ModelError(
                    "cannot continue an empty text: the tokenizer has neither a BOS nor an end-of-text token"
                )
            prompt = [prefix]
        max_length = self.encoder.max_length
        max_new_tokens = min(request.max_tokens, max_length - 1)
        prompt_space = max(max_length - max_new_tokens, 1)
        if len(prompt) > prompt_space:
            self.truncated += 1
            keeps_bos = self.encoder.bos.required and prompt[0] == prefix and prompt_space > 1
            if keeps_bos:
                prompt = [prompt[0], *prompt[-(prompt_space - 1) :]]
            else:
                prompt = prompt[-prompt_space:]
        longest_stop = max((self._count_tokens(stop) for stop in request.stop), default=0)
        uniforms = None
        if request.temperature > 0:
            uniforms = draw_uniforms(request.seed, max_new_tokens)
        return Draft(
            index=index,
            prompt=prompt,
            stop=request.stop,
            max_new_tokens=max_new_tokens,
            owner=owner,
            lookback=longest_stop + EXTRA_LOOKBACK,
            options=request.options,
            temperature=request.temperature,
            uniforms=uniforms,
        )

    def _write_by_model(self, batch: list[Draft], decoding: Decoding) -> None:
        """Let the model's own ``generate`` write a batch of texts with prompts of one length."""
        live_drafts = [draft for draft in batch if draft.max_new_tokens > 0]
        if not live_drafts:
            return
        beams = decoding.beams
        self.network.route([draft.owner for draft in live_drafts for _ in range(beams)])

        def find_stopped(written: list[Ids]) -> list[bool]:
            """Return which rows are done; of the versions of a beam search, lm-eval looks at the first alone."""
            stopped = self.endings.find_stopped(live_drafts, written)
            return stopped if beams == 1 else stopped * len(written)

        has_stops = any(draft.stop for draft in live_drafts)
        tokens = generate_by_model(
            self.network.model,
            [draft.prompt for draft in live_drafts],
            live_drafts[0].max_new_tokens,
            decoding,
            find_stopped if has_stops else None,
            pad=self.tokenizer.pad_token_id,
            drafts=live_drafts,
        )
        for draft, token_ids in zip(live_drafts, tokens, strict=True):
            draft.written = self._cut_at_end_token(token_ids)

    def _cut_at_end_token(self, token_ids: Ids) -> Ids:
        """Return the tokens before the first that ends a text."""
        for position, token in enumerate(token_ids):
            if token in self.endings.end_tokens:
                return token_ids[:position]
        return token_ids

    def _write_by_loop(
        self, batch: list[Draft], decoding: Decoding, *, record_logprobs: bool = False
    ) -> list[list[float]]:
        """Write a batch of texts; return the log-probabilities of each text's tokens, if they are to be recorded.

        With ``record_logprobs`` sampled texts are written greedily too: the check compares the likeliest tokens.
        """
        network = self.network
        live_drafts = sorted(
            (draft for draft in batch if draft.max_new_tokens > 0), key=lambda draft: draft.owner
        )
        logprobs_by_index: dict[int, list[float]] = {draft.index: [] for draft in batch}
        tokens, mask = self._pad_prompts(live_drafts)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        is_repeated: torch.Tensor | None = None  # (rows, vocabulary), for a repetition penalty
        cache: Any = None
        while live_drafts:
            network.route([draft.owner for draft in live_drafts])
            output = network.run_body(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            logits = network.compute_logits(output.last_hidden_state[:, -1])  # (rows, vocabulary)
            if decoding.penalty != 1.0 and is_repeated is None:
                is_repeated = mark_prompt_tokens([draft.prompt for draft in live_drafts], logits)
            draws = None
            if not record_logprobs:
                draws = SampleDraws.of_next_tokens(live_drafts, network.device)
            choice = decoding.choose_tokens(logits, is_repeated, draws)  # (rows,)
            chosen = choice.tolist()
            if record_logprobs:
                for draft, token, logprobs in zip(
                    live_drafts, chosen, log_softmax(logits), strict=True
                ):
                    logprobs_by_index[draft.index].append(float(logprobs[token]))
            is_over = self.endings.append(live_drafts, chosen, looked_up=False)
            unfinished_rows = [row for row, ends in enumerate(is_over) if not ends]
            if not unfinished_rows:
                break
            positions = positions[:, -1:] + 1
            if is_repeated is not None:
                is_repeated.scatter_(1, choice[:, None], True)
            if len(unfinished_rows) < len(live_drafts):
                row_indices = torch.tensor(unfinished_rows, device=network.device)
                cache.batch_select_indices(row_indices.cpu() if self.is_spread else row_indices)
                choice = choice[row_indices]
                positions = positions[row_indices]
                mask = mask[row_indices]
                if is_repeated is not None:
                    is_repeated = is_repeated[row_indices]
                live_drafts = [live_drafts[row] for row in unfinished_rows]
            tokens = choice[:, None]
            mask = torch.cat([mask, mask.new_ones((len(live_drafts), 1))], dim=1)
        return [logprobs_by_index[draft.index] for draft in batch]

    def _pad_prompts(self, drafts: list[Draft]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return prompts padded on the left, and the attention mask that hides the padding."""
        length = max((len(draft.prompt) for draft in drafts), default=0)
        tokens = torch.zeros((len(drafts), length), dtype=torch.long)
        mask = torch.zeros((len(drafts), length), dtype=torch.long)
        for row, draft in enumerate(drafts):
            begin = length - len(draft.prompt)
            tokens[row, begin:] = torch.tensor(draft.prompt)
            mask[row, begin:] = 1
        return tokens.to(self.network.device), mask.to(self.network.device)

    def _decode(self, draft: Draft) -> str:
        """Return the written tokens as text, up to the first stop text."""
        text = str(self.tokenizer.decode(draft.written, skip_special_tokens=True))
        for stop in (*draft.stop, self.tokenizer.eos_token):
            if stop:
                text = text.split(stop)[0]
        return text

    def _halve_budget(self, error: RuntimeError, rows: int) -> bool:
        """Free memory and halve the token budget if memory ran out; return whether it is worth trying again.

        A single row is tried again only if there was something to free.
        """
        if not is_out_of_memory(error):
            return False
        if not give_back(self.network.device) and rows == 1:
            return False
        self.token_budget = max(self.token_budget // 2, 1)
        return True


def _length_key(draft: Draft) -> tuple[int, int]:
    return draft.full_length, len(draft.prompt)


def _shape(draft: Draft) -> tuple[int, int, int]:
    """Return what the drafts of one batch of the model's own ``generate`` have in common."""
    return len(draft.prompt), draft.max_new_tokens, draft.owner
