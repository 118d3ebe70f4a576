"""Running a study from start to end: plan, execute the rows that are not done, and say how it went."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from potentia.errors import InputError
from potentia.run.board import Interrupted
from potentia.run.names import step_key
from potentia.run.plan import Plan, load_tasks, make_plan, study_key

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


def plan_study(study: Study) -> Plan:
    """Plan a study against its store, creating the store where there is none."""
    from potentia.store import Store

    tasks = load_tasks(study)
    with Store.open(study.store) as store:
        plan = make_plan(study, store, tasks)
        done = [cell for row in plan.rows for cell in row.cells if cell.done]
        steps = study.adjust.at_steps if study.adjust else ()
        on_the_way = [step_key(cell.key, step) for cell in done if cell.protocol == "adjust" for step in steps]
        store.adopt(study_key(study), [*(cell.key for cell in done), *on_the_way])
    return plan


def run_study(
    study: Study,
    *,
    workers: int = 1,
    executor: Executor = "local",
    plan: Plan | None = None,
    watch: Callable[[Plan], Any] | None = None,
) -> RunResult:
    """Run what is not done yet. ``watch`` gives a context manager that shows progress while the rows run."""
    plan = plan or plan_study(study)
    todo = [row.model.name for row in plan.rows if row.pending]
    reused = sum(cell.done for row in plan.rows for cell in row.cells)
    outcomes: dict[str, RowOutcome] = {}
    interrupted = False
    if todo:
        with _stoppable() as stop, watch(plan) if watch else _nothing():
            try:
                outcomes = _execute(study, todo, workers, executor, stop)
            except Interrupted:
                interrupted = True
    return RunResult(
        study=study_key(study),
        reused=reused,
        computed=sum(o.done for o in outcomes.values()),
        failed=sum(o.failed for o in outcomes.values()),
        interrupted=interrupted,
        reasons=[reason for o in outcomes.values() for reason in o.reasons],
    )


def _execute(
    study: Study, names: list[str], workers: int, executor: Executor, stop: Callable[[], bool]
) -> dict[str, RowOutcome]:
    if executor == "local":
        from potentia.run.local import run_rows

        return run_rows(study, names, workers=workers, stop=stop)
    if executor == "ray":
        from potentia.run.on_ray import run_rows_on_ray

        return run_rows_on_ray(study, names, stop=stop)
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


@contextmanager
def _nothing() -> Iterator[None]:
    yield
