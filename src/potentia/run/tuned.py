"""The tuned cells of a row: what the store and the board hear of them, and what a resumed row needs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import ModelError
from potentia.files import write_file
from potentia.run.ask import Evaluation
from potentia.run.choice import Candidate, LanePlan
from potentia.run.fine_tuning import FineTuning
from potentia.run.plan import CellPlan, lanes_name
from potentia.run.probe import probe_row
from potentia.run.sweep import remove
from potentia.study import adjust_tuning
from potentia.timing import spending
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol

if TYPE_CHECKING:
    from potentia.engine.tune import LaneTrainer, StepInfo
    from potentia.run.row import RowRun


def tune_row(row: RowRun, kind: Protocol, cells: Sequence[CellPlan]) -> None:
    """Compute the cells of one tuned protocol; each is committed as soon as it is tested."""
    study, tasks = row.study, row.tasks.benchmarks
    every = {cell.task: cell.key for cell in row.plan.cells if cell.protocol == kind}
    pending = list(dict.fromkeys(cell.task for cell in cells))
    folder = row.store.lanes_folder / lanes_name(row.plan, kind)
    host = RowHost(row, cells, every, folder)
    if kind == TRAIN_BEFORE_TEST:
        able = {name for name in pending if tasks[name].documents("train") and tasks[name].documents("validation")}
        for name in [name for name in pending if name not in able]:
            told = f"{name} has no documents to train on; use the protocol adjust with auxiliary data"
            host.fail(name, told)
            pending.remove(name)
        if not pending:
            return
    size = row.loaded.parameters
    adjusted = study.adjust if kind == ADJUST else None
    tuning = adjust_tuning(study, row.plan.model, size) if adjusted else study.tuning
    waved = kind == TRAIN_BEFORE_TEST and tuning.method != "full"
    begun, threads = _begun(folder, list(every), pending if waved else list(every), row.plan.threads)
    tuned = FineTuning(
        loaded=row.loaded,
        benchmarks={name: tasks[name] for name in (begun if waved else pending)},
        tuning=tuning,
        host=host,
        auxiliary=row.tasks.auxiliary if adjusted else None,
        styles=row.styles if adjusted is None else row.styles[:1],  # one tuning for all benchmarks: in one style
        chat=row.chat,
        seed=study.seed,
        seeds=study.seeds,
        choice=study.selection,
        at_steps=tuple(sorted(set(adjusted.at_steps))) if adjusted else (),
        shots={name: study.shots_for(name, kind) for name in begun},
        every_rate=adjusted is not None and adjusted.every_rate,
        token_budget=study.token_budget,
        shards=study.shards,
        workspace=folder,
    )
    with _on_threads(threads):
        if kind == TRAIN_BEFORE_TEST and tuning.method == "full":
            host.probe(begun, None)
        tuned.run(pending)
    remove(folder)


def _begun(folder: Path, every: Sequence[str], pending: Sequence[str], threads: int) -> tuple[list[str], int]:
    """Return the tasks whose lanes train together, and the threads: those begun with here, if they cover what is left.

    The trainer's packing, and with it the last bits of every number, follows from the list of lanes; so does it from
    the threads that add up. Cells are committed one by one, so what is still missing shrinks, and a run that goes on
    may have other workers or another machine; the folder remembers both until all is done.
    """
    note = folder / "wave.json"
    try:
        known = json.loads(note.read_text())
        begun, on = list(known["tasks"]), int(known.get("threads", threads))
        if set(pending) <= set(begun) <= set(every):
            return begun, on
    except (OSError, ValueError, KeyError, TypeError):
        pass
    write_file(note, json.dumps({"tasks": list(pending), "threads": threads}))
    return list(pending), threads


@contextmanager
def _on_threads(threads: int) -> Iterator[None]:
    """Compute on so many threads meanwhile, where a number is given."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class RowHost:
    """Serves the tuning of a row: writes lanes and cells to the store, progress to the board, passes on the stop."""

    def __init__(self, row: RowRun, cells: Sequence[CellPlan], every: dict[str, str], folder: Path) -> None:
        self.row, self.folder = row, folder
        self.cells = {(cell.task, cell.protocol.step): cell for cell in cells}
        self.every = every  # the keys of all cells of the protocol, by task
        self.began = self.committed = time.monotonic()
        self.tokens = 0
        self.best: dict[str, float] = {}
        self.probes: Mapping[str, Mapping[str, Any]] = {}  # by task, where one was made

    # --- what is asked for, what is found --------------------------------------------------------------------------

    def asked(self, task: str, step: int | None) -> bool:
        """Say whether a cell is still to compute."""
        return (task, step) in self.cells

    def direct(self, task: str, ready: Callable[[], None]) -> Evaluation | None:
        """Return the direct evaluation: the committed cell's, or computed now."""
        return self.row.direct_evaluation(task, ready)

    def probe(self, tasks: Sequence[str], trainer: LaneTrainer | None) -> None:
        """Measure what is left to learn of the tasks, by lanes of a trainer that has checked its own."""
        self.probes = probe_row(self.row, tasks, self.folder, trainer)

    def commit(
        self, task: str, step: int | None, test: Evaluation, selection: dict[str, Any], direct: float | None = None
    ) -> None:
        """Commit a cell; a score that is no number fails it alone."""
        cell, now = self.cells.pop((task, step)), time.monotonic()
        try:
            self.row.commit(
                cell,
                test,
                seconds=now - self.committed,
                selection=selection,
                direct_value=direct,
                probe=self.probes.get(task),
            )
        except ModelError as error:
            self.row.fail(cell, error)
        self.committed = now

    def keep(self, task: str, save: Callable[[Path], None]) -> None:
        """Keep the chosen adapter beside the store, where the study wants it."""
        if self.row.study.keep_adapters and (task, None) in self.cells:
            plan = self.row.plan  # an adapter tuned on few bits goes on the whole model too
            print_of = plan.weights if plan.model.copy_of is not None else plan.original
            base = {"fingerprint": print_of, "source": plan.model.source}
            if plan.model.quantise:
                base["quantise"] = plan.model.quantise
            with spending("save"):
                self.row.store.keep_adapter(self.cells[task, None].key, save, {"base": base})

    def fail(self, task: str, error: Exception | str) -> None:
        """Record the missing cells of a task as failed."""
        for place in [place for place in self.cells if place[0] == task]:
            self.row.fail(self.cells.pop(place), error)

    # --- progress ----------------------------------------------------------------------------------------------------

    def phase(self, name: str, total: int, unit: str = "docs") -> None:
        """Begin a phase on the board."""
        self.began, self.tokens = time.monotonic(), 0
        self.row.board.phase(name, total=total, unit=unit, tokens_per_second=None)

    def progress(self, amount: int) -> None:
        """Move the phase on, or stop."""
        self.row.progress(amount)

    def step(self, info: StepInfo) -> None:
        """Report a training step."""
        self.tokens += info.tokens
        rate = self.tokens / max(time.monotonic() - self.began, 1e-9)
        facts = {"lanes_active": info.active, "lanes_waiting": info.waiting, "tokens_per_second": rate}
        self.row.board.reach(info.done, before=info.before, **facts)

    def lane(
        self,
        lane: LanePlan,
        task: str,
        curve: Sequence[Candidate],
        status: str,
        *,
        note: str = "",
        selected: bool = False,
    ) -> None:
        """Write the lane's curve to the store and the best validation so far to the board."""
        from potentia.store import EpochRecord, LaneRecord

        row = self.row
        record = LaneRecord(
            key=lane.key,
            study=row.plan.study_key,
            model=row.plan.model.name,
            task=task,
            learning_rate=lane.learning_rate,
            style=lane.style,
            seed=lane.seed,
            status=status,
            cell=self.every[task],
            epochs=tuple(EpochRecord(c.epoch, c.loss, c.value, c.stderr, c.seconds, c.tokens) for c in curve),
            selected=selected,
            note=note,
        )
        row.store.save_lane(record)
        best = max if row.tasks.benchmarks[task].higher_is_better else min
        self.best[task] = best([*(c.value for c in curve), *([self.best[task]] if task in self.best else [])])
        row.board.note(validation=f"{task} {self.best[task]:.3f}", best=dict(self.best))

    def stop(self) -> bool:
        """Say whether the row is to stop."""
        return self.row.stop()
