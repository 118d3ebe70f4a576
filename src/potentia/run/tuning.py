"""The fine-tuned cells of a row: train-before-test and adjust, with what the store and the board hear of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from potentia.errors import TuningError
from potentia.protocols.adjust import Adjustment
from potentia.protocols.ask import Evaluation
from potentia.protocols.train_before_test import LanePlan, Point, Stopped, TrainBeforeTest, trainable
from potentia.run.board import Interrupted
from potentia.run.plan import CellPlan
from potentia.run.wave import open_wave
from potentia.study import content_key

if TYPE_CHECKING:
    from potentia.engine.tuning import StepInfo
    from potentia.run.row import RowRun


class RowWatcher:
    """Hears of the tuning: writes lanes to the store, progress to the board, and passes on the wish to stop."""

    def __init__(self, row: RowRun, cells: dict[str, CellPlan]) -> None:
        self.row = row
        self.cells = cells
        self.began = time.monotonic()
        self.tokens = 0
        self.best: dict[str, float] = {}

    def phase(self, name: str, total: int) -> None:
        """Begin a phase on the board."""
        self.began, self.tokens = time.monotonic(), 0
        unit = "steps" if name == "tuning" else "docs"
        self.row.board.phase(name, total=total, unit=unit, tokens_per_second=None)

    def progress(self, amount: int) -> None:
        """Move the phase on, or stop."""
        if self.row.stop():
            raise Interrupted
        self.row.board.advance(amount)

    def step(self, info: StepInfo) -> None:
        """Report a training step."""
        self.tokens += info.tokens
        spent = max(time.monotonic() - self.began, 1e-9)
        rate = self.tokens / spent
        facts = {"lanes_active": info.active, "lanes_waiting": info.waiting, "tokens_per_second": rate}
        self.row.board.reach(info.done, before=info.before, **facts)

    def lane(self, lane: LanePlan, curve: Sequence[Point], status: str, note: str = "", selected: bool = False) -> None:
        """Write the lane's curve to the store and the best validation so far to the board."""
        from potentia.store import EpochRecord, LaneRecord

        row = self.row
        record = LaneRecord(
            key=lane.key,
            study=row.plan.study_key,
            model=row.plan.model.name,
            task=lane.task,
            learning_rate=lane.learning_rate,
            form=lane.form,
            seed=lane.seed,
            status=status,
            cell=self.cells[lane.task].key,
            epochs=tuple(
                EpochRecord(epoch=p.epoch, train_loss=p.train_loss, value=p.value, stderr=p.stderr) for p in curve
            ),
            selected=selected,
            note=note,
        )
        row.store.save_lane(record)
        higher = row.tasks.benchmarks[lane.task].higher_is_better
        values = [p.value for p in curve]
        best = max(values) if higher else min(values)
        known = self.best.get(lane.task)
        self.best[lane.task] = best if known is None else (max(known, best) if higher else min(known, best))
        row.board.note(validation=f"{lane.task} {self.best[lane.task]:.3f}", best=dict(self.best))

    def stop(self) -> bool:
        """Say whether the row is to stop."""
        return self.row.stop()


def tune_row(row: RowRun, cells: Sequence[CellPlan]) -> None:
    """Compute the train-before-test cells of a row; each is committed as soon as it is tested."""
    every = {cell.task: cell for cell in row.plan.cells if cell.protocol == "train_before_test"}
    pending = {cell.task: cell for cell in cells if trainable(row.tasks.benchmarks[cell.task])}
    for cell in cells:
        if cell.task not in pending:
            row.fail(cell, f"{cell.task} has no documents to train on; use the protocol adjust with auxiliary data")
    if not pending:
        return
    folder = row.workspace / content_key(cells=sorted(cell.key for cell in every.values()))
    wave = open_wave(folder, list(every), list(pending))
    watcher = RowWatcher(row, every)
    tuning = TrainBeforeTest(
        loaded=row.loaded,
        tasks={name: row.tasks.benchmarks[name] for name in wave.tasks},
        tuning=row.study.tuning,
        watcher=watcher,
        forms=row.forms,
        chat=row.chat,
        seed=row.study.seed,
        seeds=row.study.seeds,
        choice=row.study.selection,
        token_budget=row.study.token_budget,
        workspace=wave.folder,
    )
    began = time.monotonic()
    try:
        for name, result in tuning.run(list(pending), row.direct_evaluation):
            if isinstance(result, TuningError):
                row.fail(pending[name], result)
                continue
            now = time.monotonic()
            row.commit(
                pending[name],
                result.test,
                seconds=now - began,
                selection=result.selection(),
                direct_value=result.direct_value,
            )
            began = now
    except Stopped:
        raise Interrupted from None
    wave.close()


def adjust_row(row: RowRun, cells: Sequence[CellPlan]) -> None:
    """Compute the adjust cells of a row: one tuning on the auxiliary data, then every benchmark."""
    asked = row.study.adjust
    assert asked is not None  # the study's own validation sees to it
    data = row.tasks.auxiliary
    assert data is not None
    tuning = asked.recipe_for(sum(p.numel() for p in row.loaded.model.parameters())) or row.study.tuning
    wanted = {(cell.task, cell.protocol.step): cell for cell in cells}
    ends = {cell.task: cell for cell in row.plan.cells if cell.protocol == "adjust"}
    pending = {task: ends[task] for task, _ in wanted}
    folder = row.workspace / content_key(cells=sorted(cell.key for cell in ends.values()))
    adjustment = Adjustment(
        loaded=row.loaded,
        data=data,
        tasks={name: row.tasks.benchmarks[name] for name in pending},
        tuning=tuning,
        watcher=RowWatcher(row, pending),
        form="chat" if row.forms == ("chat",) else "plain",
        chat=row.chat,
        seed=row.study.seed,
        choice=row.study.selection,
        at_steps=asked.at_steps,
        token_budget=row.study.token_budget,
        workspace=folder,
    )

    def partial(name: str, step: int, made: Evaluation) -> None:
        cell = wanted.pop((name, step), None)
        if cell is not None:
            row.commit(cell, made, seconds=0.0, selection={"step": step})

    began = time.monotonic()
    try:
        for name, result in adjustment.run(list(pending), row.direct_evaluation, partial):
            if (name, None) not in wanted:
                continue
            now = time.monotonic()
            row.commit(
                pending[name],
                result.test,
                seconds=now - began,
                selection=result.selection(),
                direct_value=result.direct_value,
            )
            began = now
    except Stopped:
        raise Interrupted from None
    shutil.rmtree(folder, ignore_errors=True)
