"""The row runner: a model is loaded once, and every cell of its row is computed with it.

Cells are committed one by one, in one transaction each. A cell that fails is recorded with its reason and the row goes
on. The row stops between steps when asked to, with everything finished saved.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import ModelError, PotentiaError, StoreError
from potentia.protocols import direct
from potentia.protocols.ask import Evaluation, Form
from potentia.run.board import Board, Interrupted
from potentia.run.manifest import manifest
from potentia.run.names import take_over
from potentia.run.plan import CellPlan, RowPlan

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.engine.scoring import Scorer
    from potentia.store import Store
    from potentia.study import Study
    from potentia.tasks import ChatTemplate, Task


@dataclass
class RowOutcome:
    """How a row ended."""

    done: int = 0
    failed: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass
class Row:
    """Everything that the cells of one row share."""

    study: Study
    study_key: str
    plan: RowPlan
    tasks: Mapping[str, Task]
    store: Store
    board: Board
    stop: Callable[[], bool]
    workspace: Path
    loaded: LoadedModel = field(init=False)
    scorer: Scorer = field(init=False)
    chat: ChatTemplate | None = field(init=False, default=None)
    forms: tuple[Form, ...] = field(init=False, default=("plain",))
    outcome: RowOutcome = field(init=False, default_factory=RowOutcome)

    def run(self) -> RowOutcome:
        """Compute every pending cell of the row."""
        if self.plan.problem:
            return self.give_up(self.plan.problem)
        if not self.plan.pending:
            return self.outcome
        try:
            self._load()
        except Exception as error:  # whatever a model's files can do, the other rows go on
            return self.give_up(_reason(error))
        try:
            for cell in self.plan.pending:
                if cell.protocol == "direct" or cell.protocol.startswith("few_shot:"):
                    self._guarded([cell], self._direct)
            for protocol, compute in (("train_before_test", self._tune), ("adjust", self._adjust)):
                cells = [cell for cell in self.plan.pending if cell.protocol == protocol]
                if cells:
                    self._guarded(cells, compute)
        finally:
            self.loaded.close()
        self.board.finish("failed" if self.outcome.failed else "done")
        return self.outcome

    # --- the cells -----------------------------------------------------------------------------------------------

    def _load(self) -> None:
        from transformers.utils import logging

        from potentia import engine
        from potentia.engine.scoring import Scorer

        logging.disable_progress_bar()  # the board shows progress; bars of other libraries would tear it
        model = self.plan.model
        self.board.phase(f"loading {model.name}")
        self.loaded = engine.load(
            model.source,
            device=self.study.device,
            dtype=self.study.dtype,
            revision=model.revision,
            gguf_file=model.gguf_file,
            trust_remote_code=model.trust_remote_code,
        )
        self.scorer = Scorer(self.loaded, token_budget=self.study.token_budget)
        template = engine.chat_template(self.loaded.tokenizer)
        if template is not None and self.study.chat != "never" and model.kind != "base":
            self.chat = template
            self.forms = ("chat",) if self.study.chat == "always" else ("plain", "chat")

    def _direct(self, cells: list[CellPlan]) -> None:
        (cell,) = cells
        task = self.tasks[cell.task]
        shots = int(cell.protocol.partition(":")[2] or 0)
        total = len(task.documents("test")) + (
            len(self.forms) * len(task.documents("validation")) if len(self.forms) > 1 else 0
        )
        self.board.phase(f"{cell.protocol} {cell.task}", total=total)
        began = time.monotonic()
        result = direct(
            self.scorer,
            task,
            forms=self.forms,
            chat=self.chat,
            shots=shots,
            seed=self.study.seed,
            progress=self._progress,
        )
        self.commit(
            cell,
            result.test,
            seconds=time.monotonic() - began,
            selection={"form": result.form, "validation": result.validation},
        )

    def _tune(self, cells: list[CellPlan]) -> None:
        from potentia.run.tuning import tune_row

        tune_row(self, cells)

    def _adjust(self, cells: list[CellPlan]) -> None:
        from potentia.run.tuning import adjust_row

        adjust_row(self, cells)

    # --- committing and failing -----------------------------------------------------------------------------------

    def commit(
        self,
        cell: CellPlan,
        test: Evaluation,
        *,
        seconds: float,
        selection: dict[str, Any],
        direct_value: float | None = None,
    ) -> None:
        """Commit one cell with its items, and say so on the board."""
        from potentia.store import CellRecord

        if not math.isfinite(test.main.value):
            raise ModelError(f"the {test.metric} on the test split is {test.main.value}")
        record = CellRecord(
            key=cell.key,
            study=self.study_key,
            model=self.plan.model.name,
            task=cell.task,
            protocol=cell.protocol,
            scores=test.scores,
            metric=test.metric,
            manifest=manifest(self, cell),
            seconds=seconds,
            selection=selection,
            direct_value=direct_value,
            gain=None if direct_value is None else test.main.value - direct_value,
        )
        if not self.store.commit_cell(record, items=test.outcomes):  # another row with the same files was first
            take_over(self.store, self.study_key, cell.key, record.model, record.task)
        self.outcome.done += 1
        self.board.event(
            "cell", task=cell.task, protocol=record.protocol, value=test.main.value, stderr=test.main.stderr
        )

    def _guarded(self, cells: list[CellPlan], compute: Callable[[list[CellPlan]], None]) -> None:
        """Compute; on an error, record each cell that is still missing as failed, and go on."""
        try:
            compute(cells)
        except (Interrupted, KeyboardInterrupt, StoreError):
            raise
        except Exception as error:
            for cell in cells:
                if not self.store.has(cell.key):
                    self.fail(cell, error)

    def fail(self, cell: CellPlan, error: Exception | str) -> None:
        """Record a cell as failed, with the reason."""
        reason = error if isinstance(error, str) else _reason(error)
        self.store.fail_cell(
            study=self.study_key,
            model=self.plan.model.name,
            task=cell.task,
            protocol=cell.protocol,
            reason=reason,
            key=cell.key or None,
            kind="" if isinstance(error, str) else type(error).__name__,
            hint=getattr(error, "hint", None),
        )
        self.outcome.failed += 1
        self.outcome.reasons.append(f"{self.plan.model.name} × {cell.task} × {cell.protocol}: {reason}")
        trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))[-4000:]
        self.board.event("failure", task=cell.task, protocol=cell.protocol, reason=reason, traceback=trace)

    def give_up(self, reason: str) -> RowOutcome:
        """Record every pending cell as failed for the same reason."""
        for cell in self.plan.pending:
            self.fail(cell, reason)
        self.board.finish("failed")
        return self.outcome

    def _progress(self, amount: int) -> None:
        if self.stop():
            raise Interrupted
        self.board.advance(amount)


def _reason(error: Exception) -> str:
    if isinstance(error, PotentiaError):
        return error.message
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
