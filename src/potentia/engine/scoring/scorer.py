"""The scorer: log-likelihoods, perplexity and greedy text of any causal LM, with lm-eval's numbers and less work."""

from __future__ import annotations

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from potentia.engine.models.admission import not_a_number_error
from potentia.engine.models.device_layout import give_back, out_of_memory
from potentia.engine.models.tokenization import BosPolicy, Ids
from potentia.engine.proof.request_check import RequestCheck
from potentia.engine.proof.scoring_trial import Trials
from potentia.engine.scoring.decoding import Endings
from potentia.engine.scoring.network import (
    HAND,
    OWN,
    Forest,
    Network,
    Outcome,
    Router,
    Sent,
    Strand,
    batches,
    plant,
)
from potentia.errors import ModelError
from potentia.timing import spending
from potentia.values.requests import Continuation, Document, Generation

if TYPE_CHECKING:
    from potentia.engine.models.loading import LoadedModel

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
Owners = Sequence[int] | None  # the adapter of each request
Progress = Callable[[int], None] | None  # told of requests that are done

PORTION, FIRST_PORTION = 2048, 512  # requests tokenised and packed at a time
ROW_TOKENS = {"cuda": 512, "cpu": 256}
LONGEST_SHARED = {
    "cuda": 8192,
    "cpu": 4096,
}  # beyond this a mask costs more than a shared prefix saves
MASK_CELLS = {"cuda": 1 << 28, "cpu": 1 << 24}
SAMPLES = 3
PATHS = (
    "tree",
    "plain",
    "single",
)  # from fast to slow: shared beginnings, padded rows, one row at a time


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Log-probability (natural log) of a text, whether greedy decoding would write it, and its number of tokens."""

    logprob: float
    greedy: bool
    tokens: int


class Scorer:
    """Score requests with one loaded model.

    Requests that begin alike share one pass over what they share (see ``forest``); rows are filled up to a token budget
    that halves when memory runs out; logits exist only where a prediction is read. A path is taken after a trial in
    which it gave the numbers of the plain reference path (see ``trial``). ``owners[i]`` names the
    adapter that request i is to be scored with: it is handed to ``router`` row by row. ``continuous`` asks for texts to
    be written in seats (see ``continuous``), ``by_hand`` for hand-written layers where a model has them (see
    ``by_hand``): both by default on a GPU.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        token_budget: int | None = None,
        reference: bool = False,
        router: Router | None = None,
        continuous: bool | None = None,
        by_hand: bool | None = None,
    ) -> None:
        self.loaded = loaded
        self.encoder = loaded.encoder
        on_gpu = loaded.device.type == "cuda"
        self.network = Network(loaded, router, by_hand=on_gpu if by_hand is None else by_hand)
        self.reference = reference
        self.continuous = continuous
        self._endings: Endings | None = None
        self.trials = Trials(self.network, loaded)
        self.request_check = RequestCheck(self.network, loaded)
        self.token_budget = token_budget or default_budget(self.network)
        self._truncated = self._windowed = self._fed = self._asked = 0
        self._rows: dict[str, int] = {}
        self._warnings: list[str] = []
        self._samples: list[list[int]] = []
        self._ways: set[str] = set()

    @property
    def notes(self) -> dict[str, Any]:
        """Everything about how the scores were made that a reader may want to know later."""
        return {
            "bos": self.encoder.bos.as_dict(),
            "max_length": self.encoder.max_length,
            "truncated": self._truncated,
            "windowed": self._windowed,
            "token_budget": self.token_budget,
            "tokens_requested": self._asked,
            "tokens_processed": self._fed,
            "rows_by_path": dict(self._rows),
            "layers": OWN if self.network.by_hand is None else HAND,
            "writing": sorted(self._ways),
            "fallbacks": list(self._warnings),
            "prompt_samples": [list(ids) for ids in self._samples],
        }

    def loglikelihood(
        self, requests: Sequence[Continuation], *, owners: Owners = None, progress: Progress = None
    ) -> list[Likelihood]:
        """Score continuations after their contexts; results in the order of the requests."""
        # what a GPU would wait for is kept short; a processor's rows, and so their rounding, stay what they were
        first = FIRST_PORTION if self.loaded.device.type == "cuda" else PORTION
        bounds = [0, *range(first, len(requests), PORTION), len(requests)]
        portions = (
            (
                start,
                self.encoder.continuations(
                    [(r.context, r.continuation) for r in requests[start:end]]
                ),
            )
            for start, end in pairwise(bounds)
        )
        likelihoods = self._score(
            (self._strands(*portion, owners) for portion in portions), len(requests), progress
        )
        if not self.reference:
            logprobs = [likelihood.logprob for likelihood in likelihoods]
            with self.network.evaluating():
                self.request_check.check_continuations(requests, logprobs, owners)
        return likelihoods

    def loglikelihood_ids(
        self, pairs: Sequence[tuple[Ids, Ids]], *, owners: Owners = None, progress: Progress = None
    ) -> list[Likelihood]:
        """Score continuations that are already token ids, each after its context's ids."""
        return self._score([self._strands(0, pairs, owners)], len(pairs), progress)

    def rolling(
        self, requests: Sequence[Document], *, owners: Owners = None, progress: Progress = None
    ) -> list[Likelihood]:
        """Score whole documents, read in windows of the model's context length."""
        strands: list[Strand] = []
        documents = self.encoder.documents([request.text for request in requests])
        self.encoder.check_known(documents)
        for index, document in enumerate(documents):
            owner = -1 if owners is None else owners[index]
            windows = rolling_windows(document, self.encoder.bos, self.encoder.max_length)
            self._windowed += len(windows) > 1
            strands += [Strand(index, ids, scored, owner) for ids, scored in windows]
            self._remember(windows[0][0] if windows else [])
        likelihoods = self._score([strands], len(requests), progress)
        if not self.reference:
            logprobs = [likelihood.logprob for likelihood in likelihoods]
            with self.network.evaluating():
                self.request_check.check_documents(requests, logprobs, owners)
        return likelihoods

    def generate(
        self, requests: Sequence[Generation], *, owners: Owners = None, progress: Progress = None
    ) -> list[str]:
        """Continue contexts greedily; each text ends before its first stop string."""
        from potentia.engine.scoring.generate import Writer

        if self._endings is None:
            self._endings = Endings(
                self.network.model, self.encoder.tokenizer, self.network.vocabulary
            )
        writer = Writer(
            self.network,
            self.encoder,
            self.token_budget,
            self.trials,
            self._endings,
            self.continuous,
        )
        self.request_check.check_prompts(requests)
        with self.network.evaluating():
            texts = writer.write(requests, owners, progress)
        for message in self.trials.failures():
            self._warn(message)
        self._ways |= writer.ways
        self._truncated += writer.truncated
        self.token_budget = writer.token_budget
        for prompt in writer.samples:
            self._remember(prompt)
        return texts

    def _remember(self, ids: list[int]) -> None:
        if ids and len(self._samples) < SAMPLES:
            self._samples.append(ids)

    def _strands(
        self, start: int, pairs: Sequence[tuple[Ids, Ids]], owners: Owners
    ) -> list[Strand]:
        strands: list[Strand] = []
        most = self.encoder.max_length
        if start == 0:
            self.encoder.check_known([ids for pair in pairs for ids in pair])
        for index, (context, continuation) in enumerate(pairs, start):
            owner = -1 if owners is None else owners[index]
            if not continuation:
                continue
            if len(continuation) > most:
                self._windowed += 1
                windows = rolling_windows(continuation, self.encoder.bos, most, head=context[-1:])
                strands += [Strand(index, ids, scored, owner) for ids, scored in windows]
                continue
            ids, cut = self.encoder.fit(context, continuation)
            self._truncated += cut
            self._remember(ids)
            strands.append(Strand(index, ids, len(continuation), owner))
        return strands

    def _score(
        self, portions: Iterable[list[Strand]], count: int, progress: Progress
    ) -> list[Likelihood]:
        """Score portion by portion: while one is packed and sent to the device, the next one is tokenised."""
        tally = Tally(count, progress)
        with self.network.evaluating(), _no_collector():
            for strands in _ahead(portions):
                tally.expect(strands)
                self._asked += sum(len(strand.ids) - 1 for strand in strands)
                left: list[Strand] = list(strands)
                if not self.reference:
                    for path in PATHS:
                        rows, left = self._rows_for(path, left)
                        self._run(rows, tally, path)
                for strand in left:
                    logprobs, hits = self.network.own_logprobs(strand)
                    tally.add(strand, float(logprobs.double().sum()), bool(hits.all()))
                    self._count("reference", 1, len(strand.ids) - 1)
                for message in self.trials.failures():
                    self._warn(message)
                gc.collect(0)  # what this portion left behind
            tally.drain()
            return [Likelihood(*entry) for entry in tally.totals()]

    def _rows_for(self, path: str, strands: list[Strand]) -> tuple[list[Forest], list[Strand]]:
        """Pack what may go down a path into rows; returns them, and the strands that are left for the next path."""
        rows = self._plant(strands, path)
        longest = max(map(len, rows), default=0)
        limit = self.trials.limit(path, longest, strands) if rows else 0
        if limit < longest:
            rows = self._plant(
                [strand for strand in strands if len(strand.ids) - 1 <= limit], path, limit
            )
        taken = {id(strand) for row in rows for strand, _ in row.reads}
        return rows, [strand for strand in strands if id(strand) not in taken]

    def _plant(self, strands: Sequence[Strand], path: str, most: int | None = None) -> list[Forest]:
        """Pack strands into rows; those of a tree that branch nowhere need no mask, and are the next path's."""
        kind = self.loaded.device.type
        row_tokens, longest = ROW_TOKENS.get(kind, 256), LONGEST_SHARED.get(kind, 4096)
        rows = plant(strands, row_tokens, share=path == "tree", longest_shared=longest, most=most)
        return [row for row in rows if row.branches] if path == "tree" else rows

    def _run(self, rows: list[Forest], tally: Tally, path: str) -> None:
        """Score rows batch by batch; when memory runs out, make room or halve the budget, and go on."""
        cells = MASK_CELLS.get(self.loaded.device.type, 1 << 24)
        left = list(rows)
        while left:
            done: list[Forest] = []
            try:
                for batch in batches(left, 1 if path == "single" else self.token_budget, cells):
                    tally.collect(self.network.score(batch), batch)
                    done += batch
                    path = path if path == "single" else "tree" if batch[0].branches else "plain"
                    self._count(path, len(batch), len(batch) * max(len(row) for row in batch))
                break
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            finished = {id(row) for row in done}
            left = [row for row in left if id(row) not in finished]
            if not give_back(self.loaded.device):
                left = self._shrink(left)

    def _shrink(self, left: list[Forest]) -> list[Forest]:
        longest = max(len(row) for row in left)
        if self.token_budget > longest:
            self.token_budget = max(self.token_budget // 2, 1)
        elif any(row.branches for row in left):
            self.token_budget = max(self.token_budget // 2, 1)
            left = self._plant([strand for row in left for strand, _ in row.reads], "plain")
        else:
            raise ModelError(
                f"out of memory on a single sequence of {longest} tokens",
                hint="use a device with more memory, or a smaller model",
            )
        log.warning("out of memory: going on with at most %d tokens a batch", self.token_budget)
        return left

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.append(message)
            log.warning("%s: %s", self.loaded.target_architecture, message)

    def _count(self, path: str, rows: int, tokens: int) -> None:
        self._rows[path] = self._rows.get(path, 0) + rows
        self._fed += tokens


IN_FLIGHT = 2


class Tally:
    """Sum log-probabilities per request as batches come in, and report requests that are complete."""

    def __init__(self, count: int, progress: Progress = None) -> None:
        self._sums = np.zeros(count)
        self._greedy = np.ones(count, dtype=bool)
        self._tokens = np.zeros(count, dtype=np.int64)
        self._open = np.zeros(count, dtype=np.int64)  # strands that have not come back
        self._progress = progress
        self._parcels: deque[tuple[Sent, Ints, list[int]]] = (
            deque()
        )  # results of reads, whose they are, strands done

    def expect(self, strands: Sequence[Strand]) -> None:
        """Note what is on its way: all strands of a request are announced together."""
        indices = [strand.index for strand in strands]
        np.add.at(self._open, indices, 1)
        np.add.at(self._tokens, indices, [strand.scored for strand in strands])

    def collect(self, outcome: Outcome, rows: Iterable[Forest]) -> None:
        """Take a batch's results without waiting for the device; older batches are added up meanwhile."""
        finished = [strand.index for row in rows for strand, _ in row.reads]
        self._parcels.append((Sent(outcome.logprobs, outcome.hits), outcome.strands, finished))
        while len(self._parcels) > (IN_FLIGHT if outcome.logprobs.device.type == "cuda" else 0):
            self._open_parcel(*self._parcels.popleft())

    def add(self, strand: Strand, logprob: float, greedy: bool) -> None:
        """Add one strand's result."""
        self._sums[strand.index] += logprob
        self._greedy[strand.index] &= greedy
        self._finish([strand.index])

    def drain(self) -> None:
        """Wait for all batches that are still on the device."""
        while self._parcels:
            self._open_parcel(*self._parcels.popleft())

    def totals(self) -> list[tuple[float, bool, int]]:
        """(log-probability, greedy, tokens) of every request."""
        if self._progress is not None and (empty := int((self._tokens == 0).sum())):
            self._progress(empty)
        if (wrong := int(np.isnan(self._sums).sum())) > 0:
            raise not_a_number_error(f"for {wrong} of {len(self._sums)} requests")
        return list(
            zip(self._sums.tolist(), self._greedy.tolist(), self._tokens.tolist(), strict=True)
        )

    def _open_parcel(self, sent: Sent, strands: Ints, finished: list[int]) -> None:
        logprobs, hits = sent.read()
        np.add.at(self._sums, strands, logprobs.astype(np.float64))
        np.logical_and.at(self._greedy, strands, hits)
        self._finish(finished)

    def _finish(self, indices: list[int]) -> None:
        np.subtract.at(self._open, indices, 1)
        whole = int((self._open[np.unique(indices)] == 0).sum())
        if self._progress is not None and whole:
            self._progress(whole)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Let Python not look for garbage inside the block: among torch's objects that takes as long as 8,000 requests."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _ahead(portions: Iterable[list[Strand]]) -> Iterator[list[Strand]]:
    """Make the next portion in a thread while this one is worked on."""
    left = iter(portions)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, left, None)
        while True:
            with spending("tokenise"):  # what is waited for; a thread's own time is not counted
                portion = coming.result()
            if portion is None:
                return
            coming = thread.submit(next, left, None)
            yield portion


def default_budget(network: Network) -> int:
    """Choose how many tokens to feed at once: enough to fill the chip, few enough to keep activations small."""
    width = int(getattr(network.config, "hidden_size", 1024) or 1024)
    if network.device.type == "cuda":
        return int(min(max((1 << 25) // width, 8192), 32768))
    return 1024  # a CPU gains nothing from more rows, and its caches lose


def rolling_windows(
    ids: Ids, bos: BosPolicy, max_length: int, *, head: Ids | None = None
) -> list[tuple[Ids, int]]:
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
        head, ids = ids[:1], ids[1:]
    repeat = [bos.prefix_id] if bos.required and bos.prefix_id is not None else []
    room = max(max_length - len(repeat), 1)
    first = min(max_length, len(ids))
    windows: list[tuple[Ids, int]] = [(head + ids[:first], first)] if first else []
    done = first
    while done < len(ids):
        count = min(len(ids) - done, room)
        end = done + count
        windows.append((repeat + ids[max(end - room - 1, 0) : end], count))
        done = end
    return windows
