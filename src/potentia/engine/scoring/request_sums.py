"""The results of requests, summed up from the predictions of their tokens while batches come in from the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.engine.layers.network import ReadResults, SentTensors
from potentia.engine.layers.prefix_tree import PrefixTreeRow, ScoredSequence
from potentia.engine.models.admission import not_a_number_error

IN_FLIGHT = 2  # batches whose results may be on their way from a GPU


@dataclass(frozen=True)
class _SentBatch:
    """The results of one batch, on their way to the host."""

    predictions: SentTensors  # log-probabilities and greedy hits
    requests: npt.NDArray[np.int64]  # the request of each prediction
    finished: list[int]  # for each sequence of the batch, its request


class RequestSums:
    """The results of ``count`` requests so far; ``progress`` is told how many requests became complete.

    A request may have several sequences (the windows of a long text), and is complete when all have come in.
    """

    def __init__(self, count: int, progress: Callable[[int], None] | None = None) -> None:
        self._logprobs = np.zeros(count)
        self._is_greedy = np.ones(count, dtype=bool)
        self._tokens = np.zeros(count, dtype=np.int64)
        self._pending = np.zeros(count, dtype=np.int64)  # sequences that have not come in
        self._progress = progress
        self._batches: deque[_SentBatch] = deque()

    def expect(self, sequences: Sequence[ScoredSequence]) -> None:
        """Announce sequences that will be scored: all those of a request in one call."""
        indices = [sequence.index for sequence in sequences]
        np.add.at(self._pending, indices, 1)
        np.add.at(self._tokens, indices, [sequence.scored for sequence in sequences])

    def collect(self, results: ReadResults, rows: Iterable[PrefixTreeRow]) -> None:
        """Take the results of a batch of rows; on a GPU, wait for those of older batches alone, and add them."""
        finished: list[int] = []
        for row in rows:
            finished.extend(sequence.index for sequence, _ in row.reads)
        predictions = SentTensors(results.logprobs, results.greedy_hits)
        self._batches.append(_SentBatch(predictions, results.requests, finished))
        in_flight = IN_FLIGHT if results.logprobs.device.type == "cuda" else 0
        while len(self._batches) > in_flight:
            self._add_batch(self._batches.popleft())

    def add(self, sequence: ScoredSequence, logprob: float, is_greedy: bool) -> None:
        """Add the result of one sequence that was scored by itself."""
        self._logprobs[sequence.index] += logprob
        self._is_greedy[sequence.index] &= is_greedy
        self._finish([sequence.index])

    def drain(self) -> None:
        """Wait for the batches that are still on their way, and add them."""
        while self._batches:
            self._add_batch(self._batches.popleft())

    def totals(self) -> list[tuple[float, bool, int]]:
        """Return every request's log-probability, whether greedy decoding would write it, and its number of tokens."""
        without_tokens = int((self._tokens == 0).sum())
        if self._progress is not None and without_tokens:
            self._progress(without_tokens)
        nan_count = int(np.isnan(self._logprobs).sum())
        if nan_count:
            raise not_a_number_error(f"for {nan_count} of {len(self._logprobs)} requests")
        columns = (self._logprobs.tolist(), self._is_greedy.tolist(), self._tokens.tolist())
        return list(zip(*columns, strict=True))

    def _add_batch(self, batch: _SentBatch) -> None:
        """Wait for a batch, and add its predictions to their requests."""
        logprobs, greedy_hits = batch.predictions.read()
        np.add.at(self._logprobs, batch.requests, logprobs.astype(np.float64))
        np.logical_and.at(self._is_greedy, batch.requests, greedy_hits)
        self._finish(batch.finished)

    def _finish(self, indices: list[int]) -> None:
        """Count off one sequence of each of these requests, and report the requests that are complete now."""
        np.subtract.at(self._pending, indices, 1)
        complete = int((self._pending[np.unique(indices)] == 0).sum())
        if self._progress is not None and complete:
            self._progress(complete)
