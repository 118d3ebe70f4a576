"""Log-probabilities of tokens, added up for each request while batches come in from the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.engine.layers.network import ReadResults, SentTensors
from potentia.engine.layers.prefix_tree import PrefixTreeRow, ScoredSequence
from potentia.engine.models.admission import not_a_number_error

IN_FLIGHT = 2  # batches that may be on their way from a GPU


@dataclass(frozen=True)
class _SentBatch:
    """A batch on its way to the host: its numbers, the request of each, and the requests whose sequences are done."""

    numbers: SentTensors
    requests: npt.NDArray[np.int64]
    finished: list[int]


class RequestSums:
    """Sum log-probabilities per request as batches come in, and report requests that are complete."""

    def __init__(self, count: int, progress: Callable[[int], None] | None = None) -> None:
        self._logprobs = np.zeros(count)
        self._greedy = np.ones(count, dtype=bool)
        self._tokens = np.zeros(count, dtype=np.int64)
        self._pending = np.zeros(count, dtype=np.int64)  # sequences that have not come back
        self._progress = progress
        self._batches: deque[_SentBatch] = deque()

    def expect(self, sequences: Sequence[ScoredSequence]) -> None:
        """Note what is on its way: all sequences of a request are announced together."""
        indices = [sequence.index for sequence in sequences]
        np.add.at(self._pending, indices, 1)
        np.add.at(self._tokens, indices, [sequence.scored for sequence in sequences])

    def collect(self, results: ReadResults, rows: Iterable[PrefixTreeRow]) -> None:
        """Take a batch's results without waiting for the device; older batches are added up meanwhile."""
        finished = [sequence.index for row in rows for sequence, _ in row.reads]
        numbers = SentTensors(results.logprobs, results.hits)
        self._batches.append(_SentBatch(numbers, results.sequences, finished))
        in_flight = IN_FLIGHT if results.logprobs.device.type == "cuda" else 0
        while len(self._batches) > in_flight:
            self._add_batch(self._batches.popleft())

    def add(self, sequence: ScoredSequence, logprob: float, greedy: bool) -> None:
        """Add one sequence's result."""
        self._logprobs[sequence.index] += logprob
        self._greedy[sequence.index] &= greedy
        self._finish([sequence.index])

    def drain(self) -> None:
        """Wait for all batches that are still on the device."""
        while self._batches:
            self._add_batch(self._batches.popleft())

    def totals(self) -> list[tuple[float, bool, int]]:
        """(log-probability, greedy, tokens) of every request."""
        empty = int((self._tokens == 0).sum())
        if self._progress is not None and empty:
            self._progress(empty)
        not_numbers = int(np.isnan(self._logprobs).sum())
        if not_numbers:
            raise not_a_number_error(f"for {not_numbers} of {len(self._logprobs)} requests")
        columns = (self._logprobs.tolist(), self._greedy.tolist(), self._tokens.tolist())
        return list(zip(*columns, strict=True))

    def _add_batch(self, batch: _SentBatch) -> None:
        logprobs, hits = batch.numbers.read()
        np.add.at(self._logprobs, batch.requests, logprobs.astype(np.float64))
        np.logical_and.at(self._greedy, batch.requests, hits)
        self._finish(batch.finished)

    def _finish(self, indices: list[int]) -> None:
        np.subtract.at(self._pending, indices, 1)
        complete = int((self._pending[np.unique(indices)] == 0).sum())
        if self._progress is not None and complete:
            self._progress(complete)
