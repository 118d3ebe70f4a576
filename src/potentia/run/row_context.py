"""What the cells of one row share while it runs: the loaded model, the store, the progress, and how it went so far."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from potentia.engine import LoadedModel, load, open_run_proof_cache
from potentia.errors import DamagedItemsError, PotentiaError
from potentia.facts import Kind
from potentia.run.ask import Evaluation, evaluate_untuned
from potentia.run.plan import Assignment, CellPlan, LoadedTasks, Row, decide_scoring_kind
from potentia.run.progress import RowProgress, Stopped
from potentia.study import cell_key
from potentia.timing import spending
from potentia.values.failure import CellFailure
from potentia.values.fine_tuning import Style
from potentia.values.protocol import DIRECT, Protocol

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.store import Store
    from potentia.study import Study
    from potentia.tasks import ChatTemplate
    from potentia.values.selection import Selection

TRACEBACK_LETTERS = 4000  # that are kept of a failure's traceback


@dataclass
class RowOutcome:
    """How a row ended."""

    done: int = 0
    finished_elsewhere: int = 0  # finished by another since the study was planned
    holder: str = ""  # who computes the row now, where that is another process
    failures: list[CellFailure] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """How many cells failed."""
        return len(self.failures)

    def join(self, other: RowOutcome) -> RowOutcome:
        """Add how another part of the row ended."""
        return RowOutcome(
            done=self.done + other.done,
            finished_elsewhere=self.finished_elsewhere + other.finished_elsewhere,
            failures=[*self.failures, *other.failures],
        )


@dataclass
class RowContext:
    """What the cells of one row share; the model and how it is asked are there once it is loaded."""

    assignment: Assignment
    tasks: LoadedTasks
    store: Store
    stop_requested: Callable[[], bool]
    device: str
    progress: RowProgress = field(init=False)
    outcome: RowOutcome = field(init=False, default_factory=RowOutcome)
    loaded: LoadedModel = field(init=False)
    scorer: Scorer = field(init=False)
    kind: Kind = field(init=False)
    chat: ChatTemplate | None = field(init=False, default=None)
    styles: tuple[Style, ...] = field(init=False, default=("plain",))

    def __post_init__(self) -> None:
        self.progress = RowProgress(self.assignment, self.store)

    @property
    def row(self) -> Row:
        """The row, or the part of it, that is computed."""
        return self.assignment.row

    @property
    def study(self) -> Study:
        """The study that the row belongs to."""
        return self.assignment.row.study

    def advance(self, amount: int) -> None:
        """Move the phase's progress on, or stop."""
        if self.stop_requested():
            raise Stopped
        self.progress.advance(amount)

    # --- the model ---------------------------------------------------------------------------------------------------

    def load_model(self, *, extra_adapter: str | None = None) -> LoadedModel:
        """Load the row's model, with one more adapter than its own where one is given."""
        model = self.row.model
        adapters = tuple(model.adapters)
        if extra_adapter is not None:
            adapters = (*adapters, extra_adapter)
        loaded = load(
            model.source,
            device=self.device,
            dtype=self.study.dtype,
            trust_remote_code=model.trust_remote_code,
            quantise=model.quantise,
            revision=model.revision,
            gguf_file=model.gguf_file,
            adapters=adapters,
        )
        # Fast paths are used once they were checked to agree with the reference; the run checks each model once.
        loaded.proof_cache = open_run_proof_cache()
        return loaded

    def load_model_from(self, folder: str) -> LoadedModel:
        """Load the model of a folder as the row's own would be."""
        model = self.row.model
        loaded = load(
            folder,
            device=self.device,
            dtype=self.study.dtype,
            trust_remote_code=model.trust_remote_code,
            quantise=model.quantise,
        )
        loaded.proof_cache = open_run_proof_cache()
        return loaded

    def evaluate_untuned(
        self, task_name: str, protocol: Protocol, progress: Callable[[int], None] | None = None
    ) -> tuple[Evaluation, Selection]:
        """Evaluate the untuned model on a task's test split."""
        with spending("test"):
            return evaluate_untuned(
                self.scorer,
                self.tasks.by_name[task_name],
                styles=self.styles,
                chat_template=self.chat,
                shots=self.study.count_shots(task_name, protocol),
                seed=self.study.seed,
                progress=progress,
            )

    def find_direct_evaluation(
        self, task_name: str, restore_model: Callable[[], None]
    ) -> Evaluation | None:
        """Return the direct test evaluation of a task: the committed cell's, or computed here where there is none.

        ``restore_model`` is called before the model is asked: a tuning may have changed it.
        """
        cell_key = self._find_direct_key(task_name)
        cell = self.store.cells.get(cell_key)
        if cell is not None:
            try:
                return Evaluation(
                    outcomes=self.store.cells.read_items(cell_key),
                    scores=dict(cell.scores),
                    metric=cell.metric,
                )
            except DamagedItemsError:  # computed here once more; its score is the same
                self.progress.log_event("damaged", task=task_name, protocol=DIRECT)
        failures = self.store.failures.read(study=self.row.study_key)
        if any(failure.key == cell_key for failure in failures):
            return None
        restore_model()
        evaluation, _ = self.evaluate_untuned(task_name, DIRECT)
        return evaluation

    def _find_direct_key(self, task_name: str) -> str:
        for cell in self.row.cells:
            key = cell.copy_of or cell.key
            if (cell.task, cell.protocol) == (task_name, DIRECT) and key:
                return key
        return cell_key(
            self.study,
            self.row.model_fingerprint,
            self.row.task_fingerprints[task_name],
            DIRECT,
            kind=decide_scoring_kind(self.study, self.row.model),
            shots=self.study.count_shots(task_name, DIRECT),
            samples=self.study.make_sample_plan(task_name),
        )

    # --- failing -----------------------------------------------------------------------------------------------------

    def fail_cell(self, cell: CellPlan, error: BaseException | str) -> None:
        """Record a cell as failed, with the reason; what lanes fail for, who chooses from them finds out."""
        error_name = ""
        trace = ""
        hint: str | None = getattr(error, "hint", None)
        if isinstance(error, str):
            reason = error
        else:
            reason = describe_error(error)
            error_name = type(error).__name__
            trace = "".join(traceback.format_exception(error))[-TRACEBACK_LETTERS:]
        if self.assignment.only_trains_lanes:
            self.progress.note(reason=reason)
            return
        self.store.failures.record(
            study=self.row.study_key,
            model=self.row.model.name,
            task=cell.task,
            protocol=cell.protocol,
            reason=reason,
            key=cell.key or None,
            kind=error_name,
            hint=hint,
        )
        self.outcome.failures.append(
            CellFailure(self.row.model.name, cell.task, cell.protocol, reason=reason, hint=hint)
        )
        self.progress.log_event(
            "failure", task=cell.task, protocol=cell.protocol, reason=reason, traceback=trace
        )

    def fail_all_cells(self, reason: str) -> RowOutcome:
        """Record every pending cell as failed for the same reason."""
        for cell in self.row.pending:
            self.fail_cell(cell, reason)
        self.progress.finish("failed")
        return self.outcome


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a disk without space lies behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_error(error: BaseException) -> str:
    """Return what an error says, in one line; with its kind where it is not one of ours."""
    if isinstance(error, PotentiaError):
        return error.message
    lines = str(error).splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"
