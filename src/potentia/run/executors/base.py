"""What every executor shares: the queue of assignments, and the loop that hands them out and collects the answers.

An executor is one file with one class: how an assignment reaches a worker, and how its answer comes back. An assignment
that another run has waits in the queue and is tried again after the others; one that is lost with its worker costs its
own row alone.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potentia.errors import PotentiaError, StoreError
from potentia.run.plan import Assignment, LoadedTasks
from potentia.run.progress import Stopped
from potentia.run.row_context import RowOutcome

if TYPE_CHECKING:
    from potentia.run.worker import Answer, StopRequested

RETRY_SECONDS = 1.0  # after which an assignment that another run has is tried again
IDLE_SECONDS = 0.1  # between two looks while all assignments wait


@dataclass(frozen=True)
class ExecutionRequest:
    """What an executor is asked to run.

    ``divide`` returns the assignments in parts that keep so many workers of a kind of device (``cpu``, ``cuda``) busy.
    ``give_up`` records that an assignment was lost, and why.
    """

    assignments: Sequence[Assignment]
    tasks: LoadedTasks
    workers: int
    stop_requested: StopRequested
    divide: Callable[[int, str], Sequence[Assignment]]
    give_up: Callable[[Assignment, str], RowOutcome]


class AssignmentQueue:
    """Assignments in order, and how they ended; one that another run has comes back after the others."""

    def __init__(
        self,
        assignments: Iterable[Assignment],
        give_up: Callable[[Assignment, str], RowOutcome],
    ) -> None:
        self.outcomes: dict[str, RowOutcome] = {}  # by model
        self._give_up = give_up
        self._ready = deque(assignments)
        self._held: deque[tuple[float, Assignment]] = deque()  # until when, by another run

    def __len__(self) -> int:
        return len(self._ready) + len(self._held)

    @property
    def waiting(self) -> list[Assignment]:
        """The assignments that are still to come."""
        return [*self._ready, *(assignment for _, assignment in self._held)]

    def take(
        self, running: Collection[Assignment] = (), preferred_models: Collection[str] = ()
    ) -> Assignment | None:
        """Return the next assignment, of the preferred models first; None while all wait for others."""
        startable = self._find_startable(running)
        if not startable and self._held and self._held[0][0] <= time.monotonic():
            self._ready.append(self._held.popleft()[1])
            startable = self._find_startable(running)
        if not startable:
            return None
        preferred = [
            assignment for assignment in startable if assignment.model.name in preferred_models
        ]
        chosen = (preferred or startable)[0]
        self._ready.remove(chosen)
        return chosen

    def _find_startable(self, running: Collection[Assignment]) -> list[Assignment]:
        """Return the assignments that choose from no lanes that are still to be trained."""
        untrained = set()
        for assignment in (*self.waiting, *running):
            if assignment.only_trains_lanes:
                untrained.add((assignment.model.name, assignment.cells[0]))
        startable = []
        for assignment in self._ready:
            cells = {(assignment.model.name, cell) for cell in assignment.cells}
            if assignment.only_trains_lanes or untrained.isdisjoint(cells):
                startable.append(assignment)
        return startable

    def record(self, assignment: Assignment, answer: Answer) -> None:
        """Record the answer to an assignment.

        One that another run holds is tried again later; after an error its cells are recorded as failed; a stopped one
        (None) leaves no outcome. An error of the store is raised.
        """
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, PotentiaError):
            answer = self._give_up(assignment, answer.message)
        if answer is None:
            return
        if answer.holder:
            self._held.append((time.monotonic() + RETRY_SECONDS, assignment))
            return
        model_name = assignment.model.name
        if model_name in self.outcomes:
            answer = self.outcomes[model_name].join(answer)
        self.outcomes[model_name] = answer

    def clear(self) -> None:
        """Forget what waits."""
        self._ready.clear()
        self._held.clear()


class Executor(ABC):
    """Runs the assignments of a study somewhere."""

    @classmethod  # noqa: B027 - most need nothing
    def check_installed(cls) -> None:
        """Raise an error that names the fix where this executor cannot be used."""

    @abstractmethod
    def run(self, request: ExecutionRequest) -> dict[str, RowOutcome]:
        """Run all assignments and return how each row ended, by the model's name."""


class QueueExecutor(Executor):
    """An executor with a queue: a subclass says how an assignment reaches a worker, and how its answer comes back."""

    drain_seconds = 60.0  # that workers get to save once they are asked to stop

    def __init__(self) -> None:
        self.running: dict[Hashable, Assignment] = {}  # by what `submit` returned
        self.give_up: Callable[[Assignment, str], RowOutcome]

    def run(self, request: ExecutionRequest) -> dict[str, RowOutcome]:
        """Run all assignments and return how each row ended, by the model's name."""
        self.give_up = request.give_up
        queue = AssignmentQueue((), request.give_up)
        try:
            queue = AssignmentQueue(self.start(request), request.give_up)
            self._hand_out_and_collect(queue, request.stop_requested)
        except KeyboardInterrupt:  # the second time somebody asks: at once
            self.close(graceful=False)
            raise
        except Stopped:
            self._stop(queue)
            raise
        except BaseException:
            self.request_stop()  # the others save what they have
            self.close(graceful=True)
            raise
        self.finish()
        return queue.outcomes

    def _hand_out_and_collect(self, queue: AssignmentQueue, stop_requested: StopRequested) -> None:
        while queue or self.running:
            if stop_requested():
                raise Stopped
            while queue and self.has_free_worker():
                assignment = queue.take(self.running.values(), self.list_loaded_models())
                if assignment is None:
                    break
                assignment = self.prepare(assignment, queue.waiting)
                self.running[self.submit(assignment)] = assignment
            self._collect(queue)

    def _collect(self, queue: AssignmentQueue) -> None:
        if not self.running:
            time.sleep(IDLE_SECONDS)
            return
        for handle, answer in self.collect_answers():
            queue.record(self.running.pop(handle), answer)

    def _stop(self, queue: AssignmentQueue) -> None:
        """Ask the workers to save and to stop, and wait for them."""
        self.request_stop()
        queue.clear()
        deadline = time.monotonic() + self.drain_seconds
        try:
            while self.running and time.monotonic() < deadline:
                self._collect(queue)
        except KeyboardInterrupt:
            self.close(graceful=False)
            raise
        self.close(graceful=not self.running)

    # --- what a subclass says ----------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, request: ExecutionRequest) -> Sequence[Assignment]:
        """Get ready, and return the assignments, divided for the workers there are."""

    @abstractmethod
    def submit(self, assignment: Assignment) -> Hashable:
        """Hand an assignment to a free worker; return what stands for it in :meth:`collect_answers`."""

    @abstractmethod
    def collect_answers(self) -> Iterable[tuple[Hashable, Answer]]:
        """Wait a moment, and return what has ended meanwhile."""

    @abstractmethod
    def request_stop(self) -> None:
        """Ask all workers to save and to stop."""

    @abstractmethod
    def close(self, *, graceful: bool) -> None:
        """Let all workers go: at once, or after they had time to end."""

    def has_free_worker(self) -> bool:
        """Whether one more assignment can be submitted; the usual cluster has a queue of its own."""
        return True

    def list_loaded_models(self) -> Collection[str]:
        """Return the models that the next free worker may have loaded."""
        return ()

    def prepare(self, assignment: Assignment, waiting: Sequence[Assignment]) -> Assignment:
        """Return an assignment with what only this executor knows, such as its share of a GPU's memory."""
        return assignment

    def finish(self) -> None:
        """End after all assignments have ended."""
        self.close(graceful=True)
