"""Running a study from start to end: plan, execute the rows that are not done, and say how it went."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from potentia.errors import InputError
from potentia.run.board import Interrupted
from potentia.run.plan import RowPlan, StudyPlan, plan_study, take_over

if TYPE_CHECKING:
    from potentia.run.row import RowOutcome
    from potentia.study import Study

Executor = Literal["local", "ray"]


@dataclass(frozen=True)
class RunResult:
    """How a run ended: cells found finished, computed now, failed, and still missing."""

    study: str
    reused: int
    computed: int
    failed: int
    interrupted: bool
    reasons: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 all is well, 1 some cells failed, 130 interrupted."""
        return 130 if self.interrupted else int(self.failed > 0)


def run_study(
    study: Study | StudyPlan,
    *,
    workers: int = 1,
    executor: Executor = "local",
    watch: Callable[[StudyPlan], Any] | None = None,
) -> RunResult:
    """Run what is not done yet of a study, or of a plan just made of it.

    ``watch`` gives a context manager that shows progress while the rows run.
    """
    plan = study if isinstance(study, StudyPlan) else plan_study(study)
    _register(plan)
    todo = [row for row in plan.rows if row.pending]
    outcomes: dict[str, RowOutcome] = {}
    interrupted = False
    if todo:
        with _stoppable() as stop, watch(plan) if watch else nullcontext():
            try:
                outcomes = _execute(plan, todo, workers, executor, stop)
            except Interrupted:
                interrupted = True
    return RunResult(
        study=plan.key,
        reused=sum(cell.done for cell in plan.cells()) + sum(o.found for o in outcomes.values()),
        computed=sum(o.done for o in outcomes.values()),
        failed=sum(o.failed for o in outcomes.values()),
        interrupted=interrupted,
        reasons=[reason for o in outcomes.values() for reason in o.reasons],
    )


def _register(plan: StudyPlan) -> None:
    """Make the study known to its store, which is created where there is none, with the cells that are done."""
    from potentia.store import Store, without_password

    spec = plan.study.model_dump(mode="json") | {"store": without_password(plan.study.store)}
    with Store.open(plan.study.store) as store:
        store.study(plan.study.name, plan.key, spec)
        if plan.outdated:
            store.release(plan.key, plan.outdated)
        for row in plan.rows:
            take_over(row, store)


def _execute(
    plan: StudyPlan, rows: list[RowPlan], workers: int, executor: Executor, stop: Callable[[], bool]
) -> dict[str, RowOutcome]:
    if executor == "local":
        from potentia.run.local import run_rows

        return run_rows(rows, plan.tasks, workers=workers, stop=stop)
    if executor == "ray":
        from potentia.run.on_ray import run_rows_on_ray

        return run_rows_on_ray(rows, plan.tasks, stop=stop)
    raise InputError(f"no executor {executor!r}", hint="use local or ray")


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a polite stop, and the second into the usual interrupt."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return

    def ask(number: int, frame: Any) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
