"""Collecting results while the device works on: no read waits for the batch that was just sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from potentia.engine.admission import not_a_number
from potentia.engine.score.forest import Forest, Strand
from potentia.engine.score.network import Outcome

IN_FLIGHT = 2


@dataclass(slots=True)
class _Parcel:
    """One batch's results on their way to the host."""

    strands: npt.NDArray[np.int64]
    logprobs: torch.Tensor
    hits: torch.Tensor
    finished: list[int]
    arrived: torch.cuda.Event | None


class Tally:
    """Sum log-probabilities per request as batches come in, and report requests that are complete."""

    def __init__(self, count: int, progress: Callable[[int], None] | None = None) -> None:
        self._sums = np.zeros(count)
        self._greedy = np.ones(count, dtype=bool)
        self._tokens = np.zeros(count, dtype=np.int64)
        self._open = np.zeros(count, dtype=np.int64)  # strands that have not come back
        self._progress = progress
        self._parcels: deque[_Parcel] = deque()

    def expect(self, strands: Sequence[Strand]) -> None:
        """Note what is on its way: all strands of a request are announced together."""
        for strand in strands:
            self._open[strand.index] += 1
            self._tokens[strand.index] += strand.scored

    def collect(self, outcome: Outcome, rows: Iterable[Forest]) -> None:
        """Take a batch's results without waiting for the device; older batches are added up meanwhile."""
        finished = [strand.index for row in rows for strand, _ in row.reads]
        if outcome.logprobs.device.type == "cuda":
            logprobs = torch.empty(outcome.logprobs.shape, dtype=outcome.logprobs.dtype, pin_memory=True)
            hits = torch.empty(outcome.hits.shape, dtype=torch.bool, pin_memory=True)
            logprobs.copy_(outcome.logprobs, non_blocking=True)
            hits.copy_(outcome.hits, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        else:
            logprobs, hits, arrived = outcome.logprobs, outcome.hits, None
        self._parcels.append(_Parcel(outcome.strands, logprobs, hits, finished, arrived))
        while len(self._parcels) > (IN_FLIGHT if arrived is not None else 0):
            self._open_parcel(self._parcels.popleft())

    def add(self, strand: Strand, logprob: float, greedy: bool) -> None:
        """Add one strand's result."""
        self._sums[strand.index] += logprob
        self._greedy[strand.index] &= greedy
        self._finish([strand.index])

    def drain(self) -> None:
        """Wait for all batches that are still on the device."""
        while self._parcels:
            self._open_parcel(self._parcels.popleft())

    def totals(self) -> list[tuple[float, bool, int]]:
        """(log-probability, greedy, tokens) of every request."""
        if self._progress is not None and (empty := int((self._tokens == 0).sum())):
            self._progress(empty)
        if (wrong := int(np.isnan(self._sums).sum())) > 0:
            raise not_a_number(f"for {wrong} of {len(self._sums)} requests")
        return list(zip(self._sums.tolist(), self._greedy.tolist(), self._tokens.tolist(), strict=True))

    def _open_parcel(self, parcel: _Parcel) -> None:
        if parcel.arrived is not None:
            parcel.arrived.synchronize()
        np.add.at(self._sums, parcel.strands, parcel.logprobs.double().numpy())
        np.logical_and.at(self._greedy, parcel.strands, parcel.hits.numpy())
        self._finish(parcel.finished)

    def _finish(self, indices: Iterable[int]) -> None:
        whole = 0
        for index in indices:
            self._open[index] -= 1
            whole += self._open[index] == 0
        if self._progress is not None and whole:
            self._progress(int(whole))
