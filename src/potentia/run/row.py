"""The row runner: a model is loaded once, and every cell of its row is computed with it.

Cells are committed one by one, in one transaction each. A cell that fails is recorded with its reason and the row goes
on. The row stops between steps when asked to, with everything finished saved.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from potentia.engine import chat_template, going_first
from potentia.errors import DISK_FULL_HINT, INTERRUPTS, ModelError, StoreError
from potentia.run.commit import CellCommitter, CellResult
from potentia.run.exposed_copies import load_exposed_copy
from potentia.run.memory import describe_shortage, find_free_bytes
from potentia.run.plan import (
    Assignment,
    CellPlan,
    LoadedTasks,
    adopt_finished_cells,
    decide_model_kind,
)
from potentia.run.progress import Stopped
from potentia.run.row_context import RowContext, RowOutcome, describe_error, is_disk_full
from potentia.run.tuning import tune_row
from potentia.timing import TimeTally, spending
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.run.model_cache import ModelCache
    from potentia.store import Store


class RowRun:
    """Computes the pending cells of one assignment."""

    def __init__(
        self,
        assignment: Assignment,
        tasks: LoadedTasks,
        store: Store,
        *,
        stop_requested: Callable[[], bool],
        device: str,
        model_cache: ModelCache | None = None,
    ) -> None:
        self.context = RowContext(assignment, tasks, store, stop_requested, device)
        self._committer = CellCommitter(self.context)
        self._model_cache = model_cache  # where the model waits for the next run
        self._tally = TimeTally()

    def run(self) -> RowOutcome:
        """Compute every cell of the row that the store does not have by now, and report where the time went."""
        context = self.context
        with ExitStack() as stack:
            stack.enter_context(self._tally.running())
            if context.assignment.memory_share < 1.0:
                stack.enter_context(going_first(context.device))
            outcome = self._compute()
        if outcome.done or context.assignment.only_trains_lanes:
            context.progress.log_event("row", seconds=self._tally.total, tally=self._tally.seconds)
        return outcome

    def _compute(self) -> RowOutcome:
        context = self.context
        if context.row.problem:
            return context.fail_all_cells(context.row.problem)
        self._adopt_what_is_finished()
        if not context.row.pending:
            return context.outcome
        try:
            with spending("load"):
                self._load()
        except (Stopped, KeyboardInterrupt):
            context.progress.finish("stopped")
            raise
        except INTERRUPTS:
            raise
        except BaseException as error:  # whatever a model's files can do, the other rows go on
            return context.fail_all_cells(describe_error(error))
        try:
            self._compute_cells()
        except (Stopped, KeyboardInterrupt):
            context.progress.finish("stopped")
            raise
        finally:
            self._keep_or_close_model()
        context.progress.finish("failed" if context.outcome.failed else "done")
        return context.outcome

    def _adopt_what_is_finished(self) -> None:
        """Take over the cells that another run has finished since the study was planned."""
        context = self.context
        pending = len(context.row.pending)
        context.assignment = context.assignment.refresh(context.store)
        if context.assignment.only_trains_lanes:
            return
        context.outcome.finished_elsewhere = pending - len(context.row.pending)
        if context.outcome.finished_elsewhere:
            adopt_finished_cells(context.row, context.store)
            finished = [(cell.task, cell.protocol) for cell in context.row.cells if cell.finished]
            context.progress.log_event(
                "found", cells=context.outcome.finished_elsewhere, done=finished
            )

    # --- the model ---------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        from transformers.utils import logging

        from potentia.engine.scoring import Scorer

        logging.disable_progress_bar()  # bars of other libraries would tear our own
        context = self.context
        row = context.row
        context.progress.phase("loading")
        cached = None
        if self._model_cache is not None:
            cached = self._model_cache.take(row, context.device)
        if cached is not None:
            context.loaded = cached
        else:
            self._warn_of_little_memory()
            if row.model.copy_of is not None:
                context.loaded = load_exposed_copy(context)
            else:
                context.loaded = context.load_model()
        if context.loaded.fingerprint != row.model_fingerprint:
            context.loaded.close()
            raise ModelError(
                "its files changed since the study was planned", hint="run the same command again"
            )
        context.scorer = Scorer(context.loaded, token_budget=context.study.token_budget)
        self._choose_styles()

    def _warn_of_little_memory(self) -> None:
        """Say before the model is loaded that memory would not suffice, and what to change."""
        context = self.context
        free_bytes = find_free_bytes(context.device, context.assignment.memory_share)
        device_type = context.device.partition(":")[0]
        shortage = describe_shortage(context.row, device_type, free_bytes)
        if shortage is not None:
            context.progress.log_event("memory", text=shortage)

    def _choose_styles(self) -> None:
        """Decide whether the model is asked plainly, in its chat template, or in both ways."""
        context = self.context
        study = context.study
        model = context.row.model
        template = chat_template(context.loaded.tokenizer)
        model_kind = decide_model_kind(study, model, template=template is not None)
        assert model_kind is not None
        context.kind = model_kind
        if template is None or study.chat == "never":
            return
        always_chats = study.chat == "always" and model.kind != "base"
        if always_chats or model_kind.value == "instruct":
            context.chat = template
            context.styles = ("chat",) if study.chat == "always" else ("plain", "chat")

    def _keep_or_close_model(self) -> None:
        """Put the model where the next run finds it, unless something went wrong with it."""
        context = self.context
        went_well = (
            not context.outcome.failed
            and not context.stop_requested()
            and sys.exc_info()[0] is None
        )
        if self._model_cache is not None and went_well:
            self._model_cache.put(context.row, context.device, context.loaded)
        else:
            context.loaded.close()

    # --- the cells ---------------------------------------------------------------------------------------------------

    def _compute_cells(self) -> None:
        pending = self.context.row.pending
        for cell in pending:
            if not cell.protocol.tuned:
                self._compute_guarded([cell], partial(self._compute_untuned, cell))
        for protocol_kind in (TRAIN_BEFORE_TEST, ADJUST):
            cells = [cell for cell in pending if cell.protocol.kind == protocol_kind]
            if cells:
                tune_cells = partial(tune_row, self.context, self._committer, protocol_kind, cells)
                self._compute_guarded(cells, tune_cells)

    def _compute_untuned(self, cell: CellPlan) -> None:
        context = self.context
        task = context.tasks.by_name[cell.task]
        documents = len(task.documents("test"))
        if len(context.styles) > 1:
            documents += len(context.styles) * len(task.documents("validation"))
        context.progress.phase(
            f"scoring {cell.task} {cell.protocol.phrase}",
            total=documents,
            cell=(cell.task, str(cell.protocol)),
        )
        began = time.monotonic()
        test_evaluation, selection = context.evaluate_untuned(
            cell.task, cell.protocol, context.advance
        )
        seconds = time.monotonic() - began
        self._committer.commit(cell, CellResult(test_evaluation, selection, seconds))

    def _compute_guarded(self, cells: Sequence[CellPlan], compute: Callable[[], None]) -> None:
        """Compute; on an error, record each cell that is still missing as failed, and go on."""
        context = self.context
        try:
            compute()
        except (Stopped, StoreError, *INTERRUPTS):
            raise
        except BaseException as error:  # a panic of Rust code is no `Exception`
            if is_disk_full(error):  # no fault of the cell's: nothing can be saved now
                location = getattr(error, "where", None)
                raise StoreError(
                    describe_error(error), where=location, hint=DISK_FULL_HINT
                ) from error
            for cell in cells:
                if not context.store.cells.has(cell.key):
                    context.fail_cell(cell, error)
