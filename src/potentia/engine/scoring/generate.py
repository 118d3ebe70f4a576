"""Greedy generation: in seats that texts take one after another, or in batches that shrink as texts end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.models.device_layout import give_back, is_spread, out_of_memory
from potentia.engine.models.tokenization import Encoder, Ids
from potentia.engine.scoring.continuous import ContinuousLoop
from potentia.engine.scoring.decoding import Decoding, Endings, generate_themselves, seen_tokens
from potentia.engine.scoring.network import Network, log_softmax
from potentia.errors import ModelError
from potentia.values.requests import Generation

if TYPE_CHECKING:
    from potentia.engine.proof.scoring_trial import Trials

LOOKBACK = (
    2  # as lm-eval: a stop string may be written in up to two tokens more than it takes by itself
)
PREFILL_BUDGETS = 4  # a prefill keeps no logits, so it may be larger than a scoring batch
MOST_ROWS = {"cuda": 256, "cpu": 16}
MOST_SEATS = {"cuda": 1024, "cpu": 16}


@dataclass(slots=True)
class Draft:
    """One text being written."""

    index: int
    prompt: Ids
    stop: tuple[str, ...]
    room: int
    owner: int
    lookback: int
    options: tuple[tuple[str, Any], ...] = ()
    written: Ids = field(default_factory=list)


class Writer:
    """Continue prompts greedily, as lm-eval's ``generate_until`` with ``do_sample=False`` does.

    Prompts are cut from the left so that prompt and answer fit the model. A row leaves the batch as soon as it has
    written an end-of-text token, a stop string or its last token; the key/value cache shrinks with the batch. Where
    that loop does not give what the model itself would, or the settings ask for more than greedy choice, the model's
    own ``generate`` writes, on prompts of one length at a time, so that nothing is padded.
    """

    def __init__(
        self,
        network: Network,
        encoder: Encoder,
        token_budget: int,
        trials: Trials,
        endings: Endings,
        continuous: bool | None,
    ) -> None:
        self.network, self.encoder, self.token_budget, self.trials = (
            network,
            encoder,
            token_budget,
            trials,
        )
        self.truncated = 0
        self.samples: list[Ids] = []
        self.ways: set[str] = set()
        self.tokenizer, self.endings = encoder.tokenizer, endings
        self.spread = is_spread(network.model)
        at_once = network.device.type == "cuda" and not self.spread
        self.continuous = at_once if continuous is None else continuous
        encode = encoder.tokenizer.encode
        self._length = cache(lambda stop: len(encode(stop, add_special_tokens=False)))

    def write(
        self,
        requests: Sequence[Generation],
        owners: Sequence[int] | None,
        progress: Callable[[int], None] | None,
    ) -> list[str]:
        """Return one text for each request, in their order."""
        prompts = self.encoder.prompts([request.context for request in requests])
        self.encoder.check_known(prompts)
        drafts = [
            self._draft(index, request, prompt, -1 if owners is None else owners[index])
            for index, (request, prompt) in enumerate(zip(requests, prompts, strict=True))
        ]
        self.samples = [draft.prompt for draft in drafts[:3]]
        texts = [""] * len(requests)
        for options in dict.fromkeys(draft.options for draft in drafts):
            queue = [draft for draft in drafts if draft.options == options]
            for draft in self._written(queue, Decoding.of(self.network.model, options)):
                texts[draft.index] = self._finish(draft)
                if progress is not None:
                    progress(1)
        return texts

    def _written(self, queue: list[Draft], decoding: Decoding) -> Iterator[Draft]:
        """Write texts in the fastest way that gives the model's own; yield each as it ends."""
        own = decoding.beyond_greedy or not self._tried(queue, self._in_a_loop, "writing")
        seated = not own and decoding.penalty == 1.0 and self.continuous
        if seated and self._tried(queue, self._in_seats, "writing in seats"):
            self.ways.add("continuous loop")
            yield from self._seated(queue)
            return
        self.ways.add("the model's own generate" if own else "greedy loop")
        queue = sorted(
            queue,
            key=lambda draft: (len(draft.prompt) + draft.room, len(draft.prompt)),
            reverse=True,
        )
        while queue:
            batch = self._alike(queue, decoding) if own else queue[: self._rows(queue[0])]
            try:
                self._write_batch(batch, decoding, own=own)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not self._halve(error, len(batch)):
                    raise
                for draft in batch:
                    draft.written.clear()
                continue
            done = {id(draft) for draft in batch}
            queue = [draft for draft in queue if id(draft) not in done]
            yield from batch

    def _tried(
        self,
        queue: list[Draft],
        write: Callable[[Network, list[Draft]], list[list[float]]],
        way: str,
    ) -> bool:
        """Say whether a way of writing such texts gives the reference's numbers."""
        live = [draft for draft in queue if draft.room > 0]
        longest = max((len(draft.prompt) + draft.room for draft in live), default=0)
        return not live or self.trials.may_write(longest, live, write, way)

    def _on(self, network: Network) -> Writer:
        """Return a writer like this one on another network."""
        other = copy.copy(self)
        other.network = network
        return other

    def _in_a_loop(self, network: Network, batch: list[Draft]) -> list[list[float]]:
        return self._on(network)._loop(batch, Decoding(), record=True)

    def _in_seats(self, network: Network, batch: list[Draft]) -> list[list[float]]:
        loop = self._on(network)._loop_of_seats(max(2, len(batch) // 2), record=True)
        for _ in loop.write(batch):
            pass
        return [loop.logprobs[draft.index] for draft in batch]

    def _loop_of_seats(self, seats: int, *, record: bool = False) -> ContinuousLoop:
        prefill = PREFILL_BUDGETS * self.token_budget
        return ContinuousLoop(
            self.network, self.endings, seats=seats, prefill=prefill, record=record
        )

    def _seated(self, queue: list[Draft]) -> Iterator[Draft]:
        """Write texts in seats; with half as many where memory runs out."""
        longest = max(len(draft.prompt) + draft.room for draft in queue)
        seats = max(
            1,
            min(MOST_SEATS.get(self.network.device.type, 16), self.network.cache_room() // longest),
        )
        left = {draft.index: draft for draft in queue}
        while left:
            try:
                for draft in self._loop_of_seats(seats).write(list(left.values())):
                    del left[draft.index]
                    yield draft
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not self._halve(error, seats):
                    raise
                seats = max(1, seats // 2)
                for draft in left.values():
                    draft.written.clear()

    def _rows(self, longest: Draft) -> int:
        """How many texts to write at once: the prompts' activations and the finished texts' cache must both fit."""
        most = MOST_ROWS.get(self.network.device.type, 16)
        prefill = PREFILL_BUDGETS * self.token_budget // len(longest.prompt)
        cached = self.network.cache_room() // (len(longest.prompt) + longest.room)
        return max(1, min(most, prefill, cached))

    def _alike(self, queue: list[Draft], decoding: Decoding) -> list[Draft]:
        """Choose drafts with prompts of one length and one owner; one where the model keeps several versions."""
        first = queue[0]
        most = 1 if decoding.beams > 1 else self._rows(first)

        def kind(draft: Draft) -> tuple[int, int, int]:
            return len(draft.prompt), draft.room, draft.owner

        return [draft for draft in queue if kind(draft) == kind(first)][:most]

    def _draft(self, index: int, request: Generation, prompt: Ids, owner: int) -> Draft:
        prefix = self.encoder.bos.prefix_id
        if not prompt:
            if prefix is None:
                raise ModelError(
                    "cannot continue an empty text: the tokenizer has neither a BOS nor an end-of-text token"
                )
            prompt = [prefix]
        most = self.encoder.max_length
        room = min(request.max_tokens, most - 1)
        space = max(most - room, 1)
        if len(prompt) > space:
            self.truncated += 1
            keep = self.encoder.bos.required and prompt[0] == prefix and space > 1
            prompt = [prompt[0], *prompt[-(space - 1) :]] if keep else prompt[-space:]
        lookback = max((self._length(stop) for stop in request.stop), default=0) + LOOKBACK
        return Draft(index, prompt, request.stop, room, owner, lookback, request.options)

    def _write_batch(self, batch: list[Draft], decoding: Decoding, *, own: bool) -> None:
        if not own:
            self._loop(batch, decoding)
            return
        live = [draft for draft in batch if draft.room > 0]
        if not live:
            return
        beams = decoding.beams
        self.network.route([draft.owner for draft in live for _ in range(beams)])

        def stopped(written: list[Ids]) -> list[bool]:
            """Which rows are done; of several versions of a text, lm-eval looks at the first alone."""
            done = self.endings.stopped(live, written)
            return done if beams == 1 else done * len(written)

        tokens = generate_themselves(
            self.network.model,
            [draft.prompt for draft in live],
            live[0].room,
            decoding,
            stopped if any(draft.stop for draft in live) else None,
            pad=self.tokenizer.pad_token_id,
        )
        for draft, ids in zip(live, tokens, strict=True):
            end = next(
                (place for place, token in enumerate(ids) if token in self.endings.tokens), len(ids)
            )
            draft.written = ids[:end]

    def _loop(
        self, batch: list[Draft], decoding: Decoding, *, record: bool = False
    ) -> list[list[float]]:
        """Write a batch of texts; returns, where asked to, the log-probability of every token that was chosen."""
        network, device = self.network, self.network.device
        live = sorted((draft for draft in batch if draft.room > 0), key=lambda draft: draft.owner)
        said: dict[int, list[float]] = {draft.index: [] for draft in batch}
        length = max((len(draft.prompt) for draft in live), default=0)
        tokens, mask = torch.zeros((2, len(live), length), dtype=torch.long)
        for i, draft in enumerate(live):
            tokens[i, length - len(draft.prompt) :] = torch.tensor(draft.prompt)
            mask[i, length - len(draft.prompt) :] = 1
        tokens, mask = tokens.to(device), mask.to(device)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        seen: torch.Tensor | None = None
        cache: Any = None
        while live:
            network.route([draft.owner for draft in live])
            output = network.run(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            logits = network.logits(output.last_hidden_state[:, -1])  # (rows, vocabulary)
            if decoding.penalty != 1.0 and seen is None:
                seen = seen_tokens([draft.prompt for draft in live], logits)
            choice = decoding.choose(logits, seen)  # (rows,)
            chosen = choice.tolist()
            if record:
                for draft, token, row in zip(live, chosen, log_softmax(logits), strict=True):
                    said[draft.index].append(float(row[token]))
            over = self.endings.append(live, chosen, looked_up=False)
            going = [i for i, ended in enumerate(over) if not ended]
            if not going:
                break
            places = places[:, -1:] + 1
            if seen is not None:
                seen.scatter_(1, choice[:, None], True)
            if len(going) < len(live):
                keep = torch.tensor(going, device=device)
                cache.batch_select_indices(keep.cpu() if self.spread else keep)
                choice, places, mask = choice[keep], places[keep], mask[keep]
                seen = seen[keep] if seen is not None else None
                live = [live[i] for i in going]
            tokens = choice[:, None]
            mask = torch.cat([mask, mask.new_ones((len(live), 1))], dim=1)
        return [said[draft.index] for draft in batch]

    def _finish(self, draft: Draft) -> str:
        text = str(self.tokenizer.decode(draft.written, skip_special_tokens=True))
        for stop in (*draft.stop, self.tokenizer.eos_token):
            if stop:
                text = text.split(stop)[0]
        return text

    def _halve(self, error: RuntimeError, rows: int) -> bool:
        if not out_of_memory(error) or (not give_back(self.network.device) and rows == 1):
            return False
        self.token_budget = max(self.token_budget // 2, 1)
        return True
