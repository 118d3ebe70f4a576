"""The scorer: log-likelihoods, perplexity and greedy text of any causal LM, with lm-eval's numbers and less work."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from potentia.engine.layers.network import Network, Router
from potentia.engine.layers.prefix_tree import (
    PrefixTreeRow,
    ScoredSequence,
    group_rows,
    pack_sequences,
)
from potentia.engine.models.device_layout import give_back, out_of_memory
from potentia.engine.models.tokenization import BosPolicy, Ids
from potentia.engine.proof.request_check import RequestCheck
from potentia.engine.proof.scoring_check import ScoringCheck
from potentia.engine.scoring.decoding import Endings
from potentia.engine.scoring.request_sums import RequestSums
from potentia.errors import ModelError
from potentia.timing import spending
from potentia.values.requests import Continuation, Document, Generation
from potentia.values.scoring_route import ScoringLayers, ScoringRoute, WritingRoute

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

log = logging.getLogger(__name__)

Owners = Sequence[int] | None  # the adapter of each request
Progress = Callable[[int], None] | None  # told of requests that are done

PORTION = 2048  # requests tokenised and packed at a time
FIRST_PORTION = 512
ROW_TOKENS = {"cuda": 512, "cpu": 256}
# beyond this a mask costs more than a shared prefix saves
LONGEST_SHARED = {"cuda": 8192, "cpu": 4096}
MASK_CELLS = {"cuda": 1 << 28, "cpu": 1 << 24}
CPU_TOKEN_BUDGET = 1024  # a CPU gains nothing from more rows, and its caches lose
SAMPLES = 3
FAST_ROUTES = (ScoringRoute.TREE, ScoringRoute.PADDED, ScoringRoute.SINGLE)


@dataclass(frozen=True, slots=True)
class ScoredRequest:
    """Log-probability (natural log) of a text, whether greedy decoding would write it, and its number of tokens."""

    logprob: float
    greedy: bool
    tokens: int


class Scorer:
    """Score requests with one loaded model.

    Requests that begin alike share one pass over what they share (see ``prefix_tree``); rows are filled up to a token
    budget that halves when memory runs out; logits exist only where a prediction is read. A route is taken after a
    check in which it gave the numbers of the plain reference (see ``scoring_check``). ``owners[i]`` names the adapter
    that request i is to be scored with: it is handed to ``router`` row by row. ``continuous`` asks for texts to be
    written in seats (see ``continuous``), ``fused`` for fused layers where a model has them (see ``scoring_layers``):
    both by default on a GPU.
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
    def notes(self) -> dict[str, Any]:
        """Everything about how the scores were made that a reader may want to know later."""
        layers = ScoringLayers.OWN if self.network.fused_layers is None else ScoringLayers.FUSED
        return {
            "bos": self.encoder.bos.as_dict(),
            "max_length": self.encoder.max_length,
            "truncated": self._truncated,
            "windowed": self._windowed,
            "token_budget": self.token_budget,
            "tokens_requested": self._tokens_requested,
            "tokens_processed": self._tokens_processed,
            "rows_by_path": {route.value: rows for route, rows in self._rows_by_route.items()},
            "layers": layers.value,
            "writing": sorted(route.value for route in self._writing_routes),
            "fallbacks": list(self._warnings),
            "prompt_samples": [list(ids) for ids in self._samples],
        }

    def loglikelihood(
        self, requests: Sequence[Continuation], *, owners: Owners = None, progress: Progress = None
    ) -> list[ScoredRequest]:
        """Score continuations after their contexts; results in the order of the requests."""
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
        """Score continuations that are already token ids, each after its context's ids."""
        return self._score([self._make_sequences(0, pairs, owners)], len(pairs), progress)

    def rolling(
        self, requests: Sequence[Document], *, owners: Owners = None, progress: Progress = None
    ) -> list[ScoredRequest]:
        """Score whole documents, read in windows of the model's context length."""
        sequences: list[ScoredSequence] = []
        documents = self.encoder.documents([request.text for request in requests])
        self.encoder.check_known(documents)
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
        """Tokenise requests portion by portion."""
        # what a GPU would wait for is kept short; a processor's rows, and so their rounding, stay what they were
        first_end = FIRST_PORTION if self.loaded.device.type == "cuda" else PORTION
        bounds = [0, *range(first_end, len(requests), PORTION), len(requests)]
        for start, end in pairwise(bounds):
            texts = [(request.context, request.continuation) for request in requests[start:end]]
            yield self._make_sequences(start, self.encoder.continuations(texts), owners)

    def _make_sequences(
        self, start: int, pairs: Sequence[tuple[Ids, Ids]], owners: Owners
    ) -> list[ScoredSequence]:
        """Return the sequences of requests, long ones cut or in windows; ``start`` is the first one's index."""
        if start == 0:
            self.encoder.check_known(context + continuation for context, continuation in pairs)
        sequences: list[ScoredSequence] = []
        max_length = self.encoder.max_length
        for index, (context, continuation) in enumerate(pairs, start):
            owner = _owner_of(index, owners)
            if not continuation:
                continue
            if len(continuation) > max_length:
                self._windowed += 1
                windows = make_rolling_windows(
                    continuation, self.encoder.bos, max_length, head=context[-1:]
                )
                sequences += _sequences_of_windows(windows, index, owner)
                continue
            ids, was_cut = self.encoder.fit(context, continuation)
            self._truncated += was_cut
            self._keep_sample(ids)
            sequences.append(ScoredSequence(index, ids, len(continuation), owner))
        return sequences

    def _keep_sample(self, ids: Ids) -> None:
        if ids and len(self._samples) < SAMPLES:
            self._samples.append(ids)

    # ---- scoring --------------------------------------------------------------------------------------------------

    def _score(
        self, portions: Iterable[list[ScoredSequence]], count: int, progress: Progress
    ) -> list[ScoredRequest]:
        """Score portion by portion: while one is packed and sent to the device, the next one is tokenised."""
        sums = RequestSums(count, progress)
        with self.network.evaluating(), _without_garbage_collection():
            for sequences in _prepare_ahead(portions):
                sums.expect(sequences)
                self._tokens_requested += sum(len(sequence.ids) - 1 for sequence in sequences)
                remaining = list(sequences)
                if not self.reference:
                    for route in FAST_ROUTES:
                        rows, remaining = self._rows_for_route(route, remaining)
                        self._run_rows(rows, sums, route)
                for sequence in remaining:
                    logprobs, hits = self.network.reference_logprobs(sequence)
                    sums.add(sequence, float(logprobs.double().sum()), bool(hits.all()))
                    self._count(ScoringRoute.REFERENCE, 1, len(sequence.ids) - 1)
                for message in self.check.describe_refusals():
                    self._warn(message)
                gc.collect(0)  # what this portion left behind
            sums.drain()
            return [
                ScoredRequest(logprob, greedy, tokens) for logprob, greedy, tokens in sums.totals()
            ]

    def _rows_for_route(
        self, route: ScoringRoute, sequences: list[ScoredSequence]
    ) -> tuple[list[PrefixTreeRow], list[ScoredSequence]]:
        """Pack what may go down a route into rows; returns them, and the sequences that are left for the next route."""
        rows = self._pack(sequences, route)
        if rows:
            longest = max(len(row) for row in rows)
            usable_length = self.check.usable_length(route, longest, sequences)
            if usable_length < longest:
                fitting = [
                    sequence for sequence in sequences if len(sequence.ids) - 1 <= usable_length
                ]
                rows = self._pack(fitting, route, usable_length)
        packed: set[int] = set()
        for row in rows:
            packed.update(id(sequence) for sequence, _ in row.reads)
        return rows, [sequence for sequence in sequences if id(sequence) not in packed]

    def _pack(
        self,
        sequences: Sequence[ScoredSequence],
        route: ScoringRoute,
        max_tokens: int | None = None,
    ) -> list[PrefixTreeRow]:
        """Pack sequences into rows; those of a tree that branch nowhere need no mask, and are the next route's."""
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
            return [row for row in rows if row.has_branches]
        return rows

    def _run_rows(self, rows: list[PrefixTreeRow], sums: RequestSums, route: ScoringRoute) -> None:
        """Score rows batch by batch; when memory runs out, make room or halve the budget, and go on."""
        mask_cells = MASK_CELLS.get(self.loaded.device.type, 1 << 24)
        remaining = list(rows)
        while remaining:
            finished: set[int] = set()
            budget = 1 if route == ScoringRoute.SINGLE else self.token_budget
            try:
                for batch in group_rows(remaining, budget, mask_cells):
                    sums.collect(self.network.score_rows(batch), batch)
                    finished.update(id(row) for row in batch)
                    longest = max(len(row) for row in batch)
                    self._count(_route_of_batch(route, batch), len(batch), len(batch) * longest)
                break
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            remaining = [row for row in remaining if id(row) not in finished]
            if not give_back(self.loaded.device):
                remaining = self._shrink(remaining)

    def _shrink(self, rows: list[PrefixTreeRow]) -> list[PrefixTreeRow]:
        """Halve the token budget, or else take branches apart; returns the rows to go on with."""
        longest = max(len(row) for row in rows)
        if self.token_budget > longest:
            self.token_budget = max(self.token_budget // 2, 1)
        elif any(row.has_branches for row in rows):
            self.token_budget = max(self.token_budget // 2, 1)
            sequences = [sequence for row in rows for sequence, _ in row.reads]
            rows = self._pack(sequences, ScoringRoute.PADDED)
        else:
            raise ModelError(
                f"out of memory on a single sequence of {longest} tokens",
                hint="use a device with more memory, or a smaller model",
            )
        log.warning("out of memory: going on with at most %d tokens a batch", self.token_budget)
        return rows

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.append(message)
            log.warning("%s: %s", self.loaded.target_architecture, message)

    def _count(self, route: ScoringRoute, rows: int, tokens: int) -> None:
        self._rows_by_route[route] = self._rows_by_route.get(route, 0) + rows
        self._tokens_processed += tokens


def _owner_of(index: int, owners: Owners) -> int:
    """Return the adapter of a request; -1 is the bare model."""
    if owners is None:
        return -1
    return owners[index]


def _route_of_batch(route: ScoringRoute, batch: Sequence[PrefixTreeRow]) -> ScoringRoute:
    """Return the route that a batch took: rows of a tree may have been taken apart."""
    if route == ScoringRoute.SINGLE:
        return route
    if batch[0].has_branches:
        return ScoringRoute.TREE
    return ScoringRoute.PADDED


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Let Python not look for garbage inside the block: among torch's objects that takes as long as 8,000 requests."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _prepare_ahead(portions: Iterable[list[ScoredSequence]]) -> Iterator[list[ScoredSequence]]:
    """Make the next portion in a thread while this one is worked on."""
    remaining = iter(portions)
    with ThreadPoolExecutor(1) as thread:
        next_portion = thread.submit(next, remaining, None)
        while True:
            with spending("tokenise"):  # what is waited for; a thread's own time is not counted
                portion = next_portion.result()
            if portion is None:
                return
            next_portion = thread.submit(next, remaining, None)
            yield portion


def default_token_budget(network: Network) -> int:
    """Choose how many tokens to feed at once: enough to fill the chip, few enough to keep activations small."""
    width = int(getattr(network.config, "hidden_size", 1024) or 1024)
    if network.device.type == "cuda":
        return int(min(max((1 << 25) // width, 8192), 32768))
    return CPU_TOKEN_BUDGET


Window = tuple[Ids, int]  # a sequence, and how many of its last tokens are predicted


def _sequences_of_windows(
    windows: Sequence[Window], index: int, owner: int
) -> list[ScoredSequence]:
    return [ScoredSequence(index, ids, scored, owner) for ids, scored in windows]


def make_rolling_windows(
    ids: Ids, bos: BosPolicy, max_length: int, *, head: Ids | None = None
) -> list[Window]:
    """Return (sequence, how many of its last tokens are predicted) for each window of a document.

    Every token is predicted once. As in lm-eval, the first window starts with the prefix token, a later one with the
    last token of its predecessor, and the last one reaches back to be full. Unlike lm-eval, where the model needs BOS,
    *every* window begins with it and predicts one token fewer (appendix B.2 of the train-before-test paper: without
    it, the perplexity of such models explodes on long documents). ``head`` replaces the first window's prefix token.
    """
    if not ids:
        return []
    if not head:
        head = [bos.prefix_id] if bos.prefix_id is not None else []
    if not head:  # nothing to condition the first token on: it is read, not scored
        head = ids[:1]
        ids = ids[1:]
    repeated_bos = [bos.prefix_id] if bos.required and bos.prefix_id is not None else []
    room = max(max_length - len(repeated_bos), 1)
    windows: list[Window] = []
    done = min(max_length, len(ids))
    if done:
        windows.append((head + ids[:done], done))
    while done < len(ids):
        count = min(len(ids) - done, room)
        end = done + count
        begin = max(end - room - 1, 0)
        windows.append((repeated_bos + ids[begin:end], count))
        done = end
    return windows
