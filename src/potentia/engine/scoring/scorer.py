"""The scorer: log-likelihoods, perplexity and written texts of any causal LM, with lm-eval's numbers and less work.

Requests are tokenised portion by portion and packed into rows; rows go through the model in batches by the fastest
*route* that passed its check: prefix trees, padded rows, one row at a time, or the model's own forward, which is the
reference of the others.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from potentia.engine.layers.network import Network, Router
from potentia.engine.layers.prefix_tree import (
    PrefixTreeRow,
    ScoredSequence,
    group_rows,
    pack_sequences,
)
from potentia.engine.models.device_layout import give_back, is_out_of_memory
from potentia.engine.models.tokenization import BosPolicy, Ids
from potentia.engine.proof.request_check import RequestCheck
from potentia.engine.proof.scoring_check import ScoringCheck
from potentia.engine.scoring.decoding import Endings
from potentia.engine.scoring.request_sums import RequestSums
from potentia.errors import InputError, ModelError
from potentia.timing import spending
from potentia.values.engine_records import ScorerNotes
from potentia.values.requests import Continuation, Document, Generation
from potentia.values.scoring_route import ScoringLayers, ScoringRoute, WritingRoute

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

log = logging.getLogger(__name__)

Owners = Sequence[int] | None  # the adapter of each request
Progress = Callable[[int], None] | None  # called with the number of requests that became complete

PORTION = 2048  # requests that are tokenised and packed at a time
FIRST_PORTION = 512  # the first portion on a GPU, which waits for it
ROW_TOKENS = {"cuda": 512, "cpu": 256}  # about how many a row of a prefix tree has
# tokens of a sequence: for longer ones a mask costs more than a shared prefix saves
LONGEST_SHARED = {"cuda": 8192, "cpu": 4096}
MASK_CELLS = {"cuda": 1 << 28, "cpu": 1 << 24}  # of a batch's attention mask
CPU_TOKEN_BUDGET = 1024  # a CPU gains nothing from more rows, and they no longer fit its caches
SAMPLES = 3  # prompts that are kept for the record
FAST_ROUTES = (ScoringRoute.TREE, ScoringRoute.PADDED, ScoringRoute.SINGLE)


@dataclass(frozen=True, slots=True)
class ScoredRequest:
    """Log-probability (natural log) of a text, whether greedy decoding would write it, and its number of tokens."""

    logprob: float
    greedy: bool
    tokens: int


class Scorer:
    """Score requests with one loaded model.

    What several requests begin with is computed once (see ``prefix_tree``). A batch has at most ``token_budget``
    tokens, half as many each time memory runs out. Logits are computed only where a prediction is read. A route is used
    if it gave the reference's numbers in a check (see ``scoring_check``); with ``reference``, the model's own forward
    scores everything.

    ``owners[i]`` is the slot of the adapter that request i is scored with, or −1; ``router`` puts it on. ``continuous``
    asks for texts to be written in seats (see ``continuous``), ``fused`` for fused layers if the model's layers are of
    the kind (see ``scoring_layers``): both by default on a GPU.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        token_budget: int | None = None,
        reference: bool = False,
        router: Router | None = None,
        continuous: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self.loaded = loaded
        self.encoder = loaded.encoder
        if fused is None:
            fused = loaded.device.type == "cuda"
        self.network = Network(loaded, router, fused=fused)
        self.reference = reference
        self.continuous = continuous
        self.check = ScoringCheck(self.network, loaded)
        self.request_check = RequestCheck(self.network, loaded)
        self.token_budget = token_budget or default_token_budget(self.network)
        self._endings: Endings | None = None
        self._truncated = 0
        self._windowed = 0
        self._tokens_processed = 0
        self._tokens_requested = 0
        self._rows_by_route: dict[ScoringRoute, int] = {}
        self._warnings: list[str] = []
        self._samples: list[Ids] = []
        self._writing_routes: set[WritingRoute] = set()

    @property
    def notes(self) -> ScorerNotes:
        """How the scores were made; results carry it."""
        layers = ScoringLayers.OWN if self.network.fused_layers is None else ScoringLayers.FUSED
        return ScorerNotes(
            bos=self.encoder.bos.as_dict(),
            max_length=self.encoder.max_length,
            truncated=self._truncated,
            windowed=self._windowed,
            token_budget=self.token_budget,
            tokens_requested=self._tokens_requested,
            tokens_processed=self._tokens_processed,
            rows_by_route=dict(self._rows_by_route),
            layers=layers,
            writing=tuple(sorted(self._writing_routes)),
            fallbacks=tuple(self._warnings),
            prompt_samples=tuple(tuple(token_ids) for token_ids in self._samples),
        )

    def loglikelihood(
        self, requests: Sequence[Continuation], *, owners: Owners = None, progress: Progress = None
    ) -> list[ScoredRequest]:
        """Return the log-likelihood of each continuation after its context."""
        portions = self._encode_portions(requests, owners)
        scored = self._score(portions, len(requests), progress)
        if not self.reference:
            logprobs = [request.logprob for request in scored]
            tokens = [request.tokens for request in scored]
            with self.network.evaluating():
                self.request_check.check_continuations(
                    requests, logprobs, tokens, owners=owners, portion=PORTION
                )
        return scored

    def loglikelihood_ids(
        self, pairs: Sequence[tuple[Ids, Ids]], *, owners: Owners = None, progress: Progress = None
    ) -> list[ScoredRequest]:
        """Return the log-likelihood of each continuation after its context, both given as token ids.

        A context has at least one token.
        """
        return self._score([self._make_sequences(0, pairs, owners)], len(pairs), progress)

    def rolling(
        self, requests: Sequence[Document], *, owners: Owners = None, progress: Progress = None
    ) -> list[ScoredRequest]:
        """Return the log-likelihood of each whole document, read in windows of the model's context length."""
        sequences: list[ScoredSequence] = []
        documents = self.encoder.documents([request.text for request in requests])
        self.encoder.refuse_unknown_texts(documents)
        for index, document in enumerate(documents):
            windows = make_rolling_windows(document, self.encoder.bos, self.encoder.max_length)
            sequences += _sequences_of_windows(windows, index, _owner_of(index, owners))
            self._windowed += len(windows) > 1
            if windows:
                first_window, _ = windows[0]
                self._keep_sample(first_window)
        scored = self._score([sequences], len(requests), progress)
        if not self.reference:
            logprobs = [request.logprob for request in scored]
            tokens = [request.tokens for request in scored]
            with self.network.evaluating():
                self.request_check.check_documents(requests, logprobs, tokens, owners=owners)
        return scored

    def generate(
        self, requests: Sequence[Generation], *, owners: Owners = None, progress: Progress = None
    ) -> list[str]:
        """Continue contexts, greedily or by sampling; each text ends before its first stop string."""
        from potentia.engine.scoring.generate import TextWriter

        if self._endings is None:
            tokenizer = self.encoder.tokenizer
            self._endings = Endings(self.network.model, tokenizer, self.network.vocabulary)
        writer = TextWriter(
            network=self.network,
            encoder=self.encoder,
            token_budget=self.token_budget,
            check=self.check,
            endings=self._endings,
            continuous=self.continuous,
        )
        self.request_check.check_prompts(requests)
        with self.network.evaluating():
            texts = writer.write(requests, owners, progress)
        for message in self.check.describe_refusals():
            self._warn(message)
        self._writing_routes |= writer.routes
        self._truncated += writer.truncated
        self.token_budget = writer.token_budget
        for prompt in writer.samples:
            self._keep_sample(prompt)
        return texts

    # ---- sequences ------------------------------------------------------------------------------------------------

    def _encode_portions(
        self, requests: Sequence[Continuation], owners: Owners
    ) -> Iterator[list[ScoredSequence]]:
        """Tokenise requests portion by portion, and yield each portion's sequences."""
        # a GPU waits for the first portion, so that is a short one; on a CPU nothing waits, and the rows of results
        # that exist already would be packed otherwise, and round otherwise
        first_end = FIRST_PORTION if self.loaded.device.type == "cuda" else PORTION
        bounds = [0, *range(first_end, len(requests), PORTION), len(requests)]
        for start, end in pairwise(bounds):
            texts = [(request.context, request.continuation) for request in requests[start:end]]
            yield self._make_sequences(start, self.encoder.continuations(texts), owners)

    def _make_sequences(
        self, start: int, pairs: Sequence[tuple[Ids, Ids]], owners: Owners
    ) -> list[ScoredSequence]:
        """Return the sequences of requests from number ``start`` on.

        A context that is too long is cut from the left; a continuation that is too long is read in windows.
        """
        if start == 0:
            self.encoder.refuse_unknown_texts(
                context + continuation for context, continuation in pairs
            )
        sequences: list[ScoredSequence] = []
        max_length = self.encoder.max_length
        for index, (context, continuation) in enumerate(pairs, start):
            owner = _owner_of(index, owners)
            if not continuation:
                continue
            if not context:
                raise InputError(
                    f"request {index} has no context: nothing predicts its first token",
                    hint="begin every text with one token that is not scored, such as the start of text",
                )
            if len(continuation) > max_length:
                self._windowed += 1
                windows = make_rolling_windows(
                    continuation, self.encoder.bos, max_length, first_context=context[-1:]
                )
                sequences += _sequences_of_windows(windows, index, owner)
                continue
            token_ids, was_cut = self.encoder.fit(context, continuation)
            self._truncated += was_cut
            self._keep_sample(token_ids)
            sequences.append(ScoredSequence(index, token_ids, len(continuation), owner))
        return sequences

    def _keep_sample(self, token_ids: Ids) -> None:
        if token_ids and len(self._samples) < SAMPLES:
            self._samples.append(token_ids)

    # ---- scoring --------------------------------------------------------------------------------------------------

    def _score(
        self, portions: Iterable[list[ScoredSequence]], count: int, progress: Progress
    ) -> list[ScoredRequest]:
        """Score portions of sequences of ``count`` requests; while one portion is scored, the next is tokenised."""
        request_sums = RequestSums(count, progress)
        with self.network.evaluating(), _without_garbage_collection():
            for sequences in _prepare_ahead(portions):
                request_sums.expect(sequences)
                self._tokens_requested += sum(len(sequence.ids) - 1 for sequence in sequences)
                remaining = list(sequences)
                if not self.reference:
                    for route in FAST_ROUTES:
                        rows, remaining = self._rows_for_route(route, remaining)
                        self._run_rows(rows, request_sums, route)
                for sequence in remaining:
                    logprobs, greedy_hits = self.network.reference_logprobs(sequence)
                    request_sums.add(
                        sequence,
                        logprob=float(logprobs.double().sum()),
                        is_greedy=bool(greedy_hits.all()),
                    )
                    self._count(ScoringRoute.REFERENCE, 1, len(sequence.ids) - 1)
                for message in self.check.describe_refusals():
                    self._warn(message)
                gc.collect(0)  # what this portion left behind
            request_sums.drain()
            return [
                ScoredRequest(logprob, greedy, tokens)
                for logprob, greedy, tokens in request_sums.totals()
            ]

    def _rows_for_route(
        self, route: ScoringRoute, sequences: list[ScoredSequence]
    ) -> tuple[list[PrefixTreeRow], list[ScoredSequence]]:
        """Pack the sequences that may take a route into rows; return these, and the sequences for slower routes."""
        rows = self._pack(sequences, route)
        if rows:
            longest = max(len(row) for row in rows)
            usable_length = self.check.settle_route(route, longest, sequences)
            if usable_length < longest:
                fitting = [
                    sequence for sequence in sequences if len(sequence.ids) - 1 <= usable_length
                ]
                rows = self._pack(fitting, route, usable_length)
        packed_ids: set[int] = set()
        for row in rows:
            packed_ids.update(id(sequence) for sequence, _ in row.reads)
        return rows, [sequence for sequence in sequences if id(sequence) not in packed_ids]

    def _pack(
        self,
        sequences: Sequence[ScoredSequence],
        route: ScoringRoute,
        max_tokens: int | None = None,
    ) -> list[PrefixTreeRow]:
        """Pack sequences into rows for a route; trees that need no mask are left out, for a later route is faster."""
        device_type = self.loaded.device.type
        is_tree = route == ScoringRoute.TREE
        rows = pack_sequences(
            sequences,
            ROW_TOKENS.get(device_type, 256),
            share=is_tree,
            longest_shared=LONGEST_SHARED.get(device_type, 4096),
            max_tokens=max_tokens,
        )
        if is_tree:
            return [row for row in rows if row.needs_mask]
        return rows

    def _run_rows(
        self, rows: list[PrefixTreeRow], request_sums: RequestSums, route: ScoringRoute
    ) -> None:
        """Score rows batch by batch; if memory runs out, free some or halve the token budget, and go on."""
        mask_cells = MASK_CELLS.get(self.loaded.device.type, 1 << 24)
        remaining = list(rows)
        while remaining:
            finished_ids: set[int] = set()
            budget = 1 if route == ScoringRoute.SINGLE else self.token_budget
            try:
                for batch in group_rows(remaining, budget, mask_cells):
                    request_sums.collect(self.network.score_rows(batch), batch)
                    finished_ids.update(id(row) for row in batch)
                    longest = max(len(row) for row in batch)
                    self._count(_route_of_batch(route, batch), len(batch), len(batch) * longest)
                break
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            remaining = [row for row in remaining if id(row) not in finished_ids]
            if not give_back(self.loaded.device):
                remaining = self._shrink_batches(remaining)

    def _shrink_batches(self, rows: list[PrefixTreeRow]) -> list[PrefixTreeRow]:
        """Halve the token budget; if single rows exceed it, take trees apart too. Return the rows to go on with."""
        longest = max(len(row) for row in rows)
        if self.token_budget > longest:
            self.token_budget = max(self.token_budget // 2, 1)
        elif any(row.needs_mask for row in rows):
            self.token_budget = max(self.token_budget // 2, 1)
            sequences: list[ScoredSequence] = []
            for row in rows:
                sequences.extend(sequence for sequence, _ in row.reads)
            rows = self._pack(sequences, ScoringRoute.PADDED)
        else:
            raise ModelError(
                f"out of memory on a single sequence of {longest} tokens",
                hint="use a device with more memory, or a smaller model",
            )
        log.warning("out of memory: going on with at most %d tokens a batch", self.token_budget)
        return rows

    def _warn(self, message: str) -> None:
        """Log and record a message once."""
        if message not in self._warnings:
            self._warnings.append(message)
            log.warning("%s: %s", self.loaded.target_architecture, message)

    def _count(self, route: ScoringRoute, rows: int, tokens: int) -> None:
        """Count rows and tokens, padding included, for the record."""
        self._rows_by_route[route] = self._rows_by_route.get(route, 0) + rows
        self._tokens_processed += tokens


def _owner_of(index: int, owners: Owners) -> int:
    """Return the slot of a request's adapter; -1 for none."""
    if owners is None:
        return -1
    return owners[index]


def _route_of_batch(route: ScoringRoute, batch: Sequence[PrefixTreeRow]) -> ScoringRoute:
    """Return the route that a batch took: trees that were taken apart for want of memory took the padded one."""
    if route == ScoringRoute.SINGLE:
        return route
    if batch[0].needs_mask:
        return ScoringRoute.TREE
    return ScoringRoute.PADDED


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch Python's garbage collection off inside the block: once through torch's objects costs 8,000 requests."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _prepare_ahead(portions: Iterable[list[ScoredSequence]]) -> Iterator[list[ScoredSequence]]:
    """Yield portions, while a thread prepares the next one."""
    remaining = iter(portions)
    with ThreadPoolExecutor(1) as thread:
        next_portion = thread.submit(next, remaining, None)
        while True:
            with spending("tokenise"):  # the waiting alone; the thread's own time is not counted
                portion = next_portion.result()
            if portion is None:
                return
            next_portion = thread.submit(next, remaining, None)
            yield portion


def default_token_budget(network: Network) -> int:
    """Return how many tokens to feed at once: enough to keep a GPU busy, few enough to keep activations small."""
    width = int(getattr(network.config, "hidden_size", 1024) or 1024)
    if network.device.type == "cuda":
        return int(min(max((1 << 25) // width, 8192), 32768))
    return CPU_TOKEN_BUDGET


Window = tuple[Ids, int]  # a sequence, and how many of its last tokens are predicted


def _sequences_of_windows(
    windows: Sequence[Window], index: int, owner: int
) -> list[ScoredSequence]:
    return [ScoredSequence(index, token_ids, scored, owner) for token_ids, scored in windows]


def make_rolling_windows(
    token_ids: Ids, bos_policy: BosPolicy, max_length: int, *, first_context: Ids | None = None
) -> list[Window]:
    """Return the windows of a document: sequences, and how many of each one's last tokens are predicted.

    The first window predicts up to ``max_length`` tokens after its context: ``first_context``, else the prefix token,
    else the document's own first token, which is then the only token that nothing predicts. As in lm-eval, a later
    window begins with the last token of its predecessor, and the last one reaches back to be full. Unlike in lm-eval,
    if the model needs BOS, it stands before every later window, which then predicts one token fewer (appendix B.2 of
    the train-before-test paper: without it, the perplexity of such models explodes on long documents).
    """
    if not token_ids:
        return []
    if not first_context and bos_policy.prefix_id is not None:
        first_context = [bos_policy.prefix_id]
    if (
        not first_context
    ):  # there is no prefix token: the document's first token is read, not scored
        first_context = token_ids[:1]
        token_ids = token_ids[1:]
    repeated_bos: Ids = []
    if bos_policy.required and bos_policy.prefix_id is not None:
        repeated_bos = [bos_policy.prefix_id]
    later_window_tokens = max(max_length - len(repeated_bos), 1)
    windows: list[Window] = []
    tokens_scored = min(max_length, len(token_ids))
    if tokens_scored:
        windows.append((first_context + token_ids[:tokens_scored], tokens_scored))
    while tokens_scored < len(token_ids):
        count = min(len(token_ids) - tokens_scored, later_window_tokens)
        end = tokens_scored + count
        begin = max(end - later_window_tokens - 1, 0)
        windows.append((repeated_bos + token_ids[begin:end], count))
        tokens_scored = end
    return windows
