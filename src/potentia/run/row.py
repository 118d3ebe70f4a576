"""The row runner: a model is loaded once, and every cell of its row is computed with it.

Cells are committed one by one, in one transaction each. A cell that fails is recorded with its reason and the row goes
on. The row stops between steps when asked to, with everything finished saved.
"""

from __future__ import annotations

import errno
import math
import platform
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from potentia.engine import LoadedModel, chat_template, going_first, load, verdicts_of_run
from potentia.errors import INTERRUPTS, DamagedItemsError, ModelError, PotentiaError, StoreError
from potentia.facts import Kind
from potentia.run.ask import Evaluation, Style, evaluate_untuned
from potentia.run.fine_tuning import tune_row
from potentia.run.machine import is_gpu_shared
from potentia.run.plan import (
    CellPlan,
    LoadedTasks,
    Row,
    adopt_finished_cells,
    decide_model_kind,
    decide_scoring_kind,
    mark_finished_cells,
)
from potentia.run.progress import RowProgress, Stopped
from potentia.study import SCORING_VERSION, adjust_tuning, cell_key, renamed
from potentia.timing import TimeTally, spending
from potentia.values.metric import Origin, recipe_fingerprint
from potentia.values.plain import to_plain
from potentia.values.protocol import ADJUST, DIRECT, TRAIN_BEFORE_TEST, Protocol
from potentia.values.provenance import (
    EngineProvenance,
    ModelProvenance,
    Provenance,
    ScorerProvenance,
    SplitsProvenance,
    TaskProvenance,
    TrainingProvenance,
)
from potentia.values.selection import CutPrompts, ProbeResult, Selection

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.run.machine import ModelCache
    from potentia.store import Store
    from potentia.study import Study
    from potentia.tasks import ChatTemplate, Task


@dataclass
class RowOutcome:
    """How a row ended."""

    done: int = 0
    failed: int = 0
    found: int = 0  # finished by another since the study was planned
    held: str = ""  # who computes the row now, where that is another process
    reasons: dict[str, list[str]] = field(
        default_factory=dict
    )  # why, and the cells that failed for it

    def join(self, other: RowOutcome) -> RowOutcome:
        """Add how another part of the row ended."""
        why = {**self.reasons, **other.reasons}
        reasons = {
            reason: [*self.reasons.get(reason, []), *other.reasons.get(reason, [])]
            for reason in why
        }
        return RowOutcome(
            self.done + other.done,
            self.failed + other.failed,
            self.found + other.found,
            "",
            reasons,
        )


@dataclass
class RowRun:
    """Everything that the cells of one row share while it runs."""

    plan: Row
    tasks: LoadedTasks
    store: Store
    stop: Callable[[], bool]
    device: str
    shelf: ModelCache | None = None  # where the model waits for the next wave
    board: RowProgress = field(init=False)
    study: Study = field(init=False)
    loaded: LoadedModel = field(init=False)
    scorer: Scorer = field(init=False)
    kind: Kind = field(init=False)
    chat: ChatTemplate | None = field(init=False, default=None)
    styles: tuple[Style, ...] = field(init=False, default=("plain",))
    outcome: RowOutcome = field(init=False, default_factory=RowOutcome)
    unknown: dict[str, float] = field(init=False, default_factory=dict)  # shares of tokens, by task
    tally: TimeTally = field(init=False, default_factory=TimeTally)

    def __post_init__(self) -> None:
        self.board = RowProgress(self.plan, self.store)
        self.study = self.plan.study

    def run(self) -> RowOutcome:
        """Compute every cell of the row that the store does not have by now, and tell where the time went."""
        shared = self.plan.memory < 1.0
        with self.tally.running(), going_first(self.device) if shared else nullcontext():
            outcome = self._run()
        if self.outcome.done or self.plan.lane_part is not None:
            self.board.event("row", seconds=self.tally.total, tally=self.tally.seconds)
        return outcome

    def _run(self) -> RowOutcome:
        if self.plan.problem:
            return self.give_up(self.plan.problem)
        pending = len(self.plan.pending)
        (self.plan,) = mark_finished_cells([self.plan], self.store)
        self.outcome.found = pending - len(self.plan.pending) if self.plan.lane_part is None else 0
        if self.outcome.found:
            adopt_finished_cells(self.plan, self.store)
            done = [(cell.task, cell.protocol) for cell in self.plan.cells if cell.finished]
            self.board.event("found", cells=self.outcome.found, done=done)
        if not self.plan.pending:
            return self.outcome
        try:
            with spending("load"):
                self._load()
        except (Stopped, KeyboardInterrupt):
            self.board.finish("stopped")
            raise
        except SystemExit:
            raise
        except BaseException as error:  # whatever a model's files can do, the other rows go on
            return self.give_up(_reason(error))
        try:
            for cell in self.plan.pending:
                if not cell.protocol.tuned:
                    self._guarded([cell], self._direct)
            for kind in (TRAIN_BEFORE_TEST, ADJUST):
                cells = [cell for cell in self.plan.pending if cell.protocol.kind == kind]
                if cells:
                    self._guarded(cells, partial(tune_row, self, kind))
        except (Stopped, KeyboardInterrupt):
            self.board.finish("stopped")
            raise
        finally:
            self._let_go()
        self.board.finish("failed" if self.outcome.failed else "done")
        return self.outcome

    # --- the cells -----------------------------------------------------------------------------------------------

    def _load(self) -> None:
        from transformers.utils import logging

        from potentia.engine.scoring import Scorer

        logging.disable_progress_bar()  # the board shows progress; bars of other libraries would tear it
        model = self.plan.model
        self.board.phase(f"loading {model.name}")
        kept = self.shelf.take(self.plan, self.device) if self.shelf is not None else None
        if kept is not None:
            self.loaded = kept
        elif model.copy_of is not None:
            from potentia.run.tuned import load_treated

            self.loaded = load_treated(self)
        else:
            self.loaded = self.load_model()
        if self.loaded.fingerprint != self.plan.model_fingerprint:
            self.loaded.close()
            raise ModelError(
                "its files changed since the study was planned", hint="run the same command again"
            )
        self.scorer = Scorer(self.loaded, token_budget=self.study.token_budget)
        template = chat_template(self.loaded.tokenizer)
        kind = decide_model_kind(self.study, model, template=template is not None)
        assert kind is not None
        self.kind = kind
        asked = self.study.chat == "always" and model.kind != "base"
        if (
            template is not None
            and self.study.chat != "never"
            and (asked or self.kind.value == "instruct")
        ):
            self.chat = template
            self.styles = ("chat",) if self.study.chat == "always" else ("plain", "chat")

    def _let_go(self) -> None:
        """Put the model where the next wave finds it, unless something went wrong with it."""
        if (
            self.shelf is not None
            and not self.outcome.failed
            and not self.stop()
            and sys.exc_info()[0] is None
        ):
            self.shelf.put(self.plan, self.device, self.loaded)
        else:
            self.loaded.close()

    def load_model(self, *, source: str | None = None, more: str | None = None) -> LoadedModel:
        """Load the row's model, or the one at ``source``, with one more adapter than its own where one is given."""
        model = self.plan.model
        how: dict[str, Any] = {
            "trust_remote_code": model.trust_remote_code,
            "quantise": model.quantise,
        }
        if source is None:
            adapters = (*model.adapters, *([more] if more else []))
            how |= {"revision": model.revision, "gguf_file": model.gguf_file, "adapters": adapters}
        loaded = load(source or model.source, device=self.device, dtype=self.study.dtype, **how)
        loaded.verdicts = verdicts_of_run()
        return loaded

    def _direct(self, cells: list[CellPlan]) -> None:
        (cell,) = cells
        task = self.tasks.by_name[cell.task]
        looks = len(self.styles) if len(self.styles) > 1 else 0
        total = len(task.documents("test")) + looks * len(task.documents("validation"))
        self.board.phase(f"{cell.protocol} {cell.task}", total=total)
        began = time.monotonic()
        test, selection = self._ask_untuned(cell.task, cell.protocol, self.progress)
        self.commit(cell, test, seconds=time.monotonic() - began, selection=selection)

    def _ask_untuned(
        self, task: str, protocol: Protocol, progress: Callable[[int], None] | None = None
    ) -> tuple[Evaluation, Selection]:
        how: dict[str, Any] = {
            "styles": self.styles,
            "chat": self.chat,
            "seed": self.study.seed,
            "progress": progress,
        }
        with spending("test"):
            return evaluate_untuned(
                self.scorer,
                self.tasks.by_name[task],
                shots=self.study.shots_for(task, protocol),
                **how,
            )

    # --- committing and failing -----------------------------------------------------------------------------------

    def commit(
        self,
        cell: CellPlan,
        test: Evaluation,
        *,
        seconds: float,
        selection: Selection,
        direct_value: float | None = None,
        probe: ProbeResult | None = None,
    ) -> None:
        """Commit one cell with its items, and say so on the board."""
        from potentia.store import CellRecord

        if not math.isfinite(test.main.value):
            raise ModelError(f"the {test.metric} on the test split is {test.main.value}")
        if test.says_nothing:
            raise ModelError(
                f"every choice got the same log-probability in {test.tied:,} of {test.compared:,} examples",
                hint="the result would say which choice comes first: look at the model's weights and tokenizer",
            )
        provenance = self.describe_provenance(cell, selection)
        unknown_share = provenance.task.unknown_tokens
        if unknown_share >= UNKNOWN_SHARE:
            selection = replace(selection, unknown_tokens=unknown_share)
        if test.cut:
            selection = replace(selection, cut_prompts=CutPrompts(test.cut, test.requests))
        recipe = provenance.recipe
        if (
            recipe["adjust"] and self.tasks.auxiliary is not None
        ):  # what is in the file, wherever it lies
            recipe["adjust"] = {**recipe["adjust"], "data": self.tasks.auxiliary.fingerprint}
        training = provenance.training
        origin = Origin(
            data=provenance.task.fingerprint,
            recipe=recipe_fingerprint(recipe),
            shots=provenance.shots,
            model=self.loaded.fingerprint,
            path=training.form if training is not None else None,
        )
        record = CellRecord(
            key=cell.key,
            study=self.plan.study_key,
            model=self.plan.model.name,
            task=cell.task,
            protocol=cell.protocol,
            scores={name: replace(score, origin=origin) for name, score in test.scores.items()},
            metric=test.metric,
            provenance=provenance,
            seconds=seconds,
            selection=selection,
            direct_value=direct_value,
            gain=None if direct_value is None else test.main.value - direct_value,
            probe=probe,
        )
        names = (record.model, record.task)
        said = {
            "task": cell.task,
            "protocol": cell.protocol,
            "value": test.main.value,
            "stderr": test.main.stderr,
        }
        if selection.search is not None and selection.search.may_have_more:
            said["may_have_more"] = selection.search.label
        with spending("save"):
            told = True  # in the transaction of the commit, also where that went through and its answer got lost
            if not self.store.commit_cell(
                record, items=test.outcomes, event={"row": self.plan.model.name, **said}
            ):
                if names not in self.store.names([cell.key]).values():
                    own = renamed(cell.key, *names)  # another row with the same files was first
                    self.store.copy_cell(
                        cell.key, own, study=record.study, model=record.model, task=record.task
                    )
                    told = False
                elif (
                    known := self.store.cell(record.key)
                ) is None or known.created != record.created:
                    # another process had the row meanwhile; else this commit went through, and its answer got lost
                    self.outcome.found += 1
                    self.board.event("found", cells=1, done=[(cell.task, cell.protocol)])
                    return
        self.outcome.done += 1
        self.board.event("cell", told=told, **said)

    def describe_provenance(self, cell: CellPlan, selection: Selection) -> Provenance:
        """Return how a cell's score was made, in enough detail to explain or repeat it."""
        provenance = Provenance(
            scoring_version=SCORING_VERSION,
            versions=versions(),
            model=self._model_provenance(),
            task=self._task_provenance(cell.task),
            shots=self.study.shots_for(cell.task, cell.protocol),
            seed=self.study.seed,
            styles=self.styles,
            scorer=ScorerProvenance.from_dict(to_plain(self.scorer.notes)),
            gpu_sharing="MPS" if self.loaded.device.type == "cuda" and is_gpu_shared() else None,
            engine=self._engine_provenance(),
        )
        if cell.protocol.tuned:
            training = {
                "targets": selection.target_modules,
                **self.loaded.record.get("training", {}),
            }
            provenance = replace(
                provenance, training=TrainingProvenance.from_dict(to_plain(training))
            )
        if cell.protocol.kind == "train_before_test":
            provenance = replace(
                provenance,
                tuning=self.study.tuning.model_dump(mode="json"),
                selection=self.study.selection,
            )
        if cell.protocol.kind == "adjust" and self.study.adjust is not None:
            tuning = adjust_tuning(self.study, self.plan.model, self.loaded.parameters)
            provenance = replace(
                provenance,
                adjust=self.study.adjust.model_dump(mode="json"),
                adjusted_with=tuning.model_dump(mode="json"),
            )
        return provenance

    def _model_provenance(self) -> ModelProvenance:
        model, loaded = self.plan.model, self.loaded
        return ModelProvenance(
            source=model.source,
            revision=model.revision,
            gguf_file=model.gguf_file,
            adapter=model.adapter,
            quantise=model.quantise,
            trust_remote_code=model.trust_remote_code,
            copy_of=model.copy_of,
            shown=tuple(self.tasks.exposure) if model.copy_of else (),
            fingerprint=loaded.fingerprint,
            dtype=str(loaded.dtype).removeprefix("torch."),
            device=str(loaded.device),
            kind=self.kind.value,
            kind_by=self.kind.by,
        )

    def _task_provenance(self, name: str) -> TaskProvenance:
        task = self.tasks.by_name[name]
        description = {
            "fingerprint": self.plan.task_fingerprints[name],
            "metric": task.metric,
            **task.describe(),
        }
        provenance = TaskProvenance.from_dict(to_plain(description))
        spec = self.study.benchmark(name)
        chance = provenance.chance
        if spec is not None and spec.chance is not None:
            chance = spec.chance
        return replace(
            provenance,
            splits=SplitsProvenance.from_dict(task.plan.to_dict()),
            unknown_tokens=self._unknown_token_share(task),
            chance=chance,
        )

    def _engine_provenance(self) -> EngineProvenance:
        parts = {part: facts for part, facts in self.loaded.record.items() if part != "training"}
        return EngineProvenance.from_dict(to_plain(parts))

    def _unknown_token_share(self, task: Task) -> float:
        """Return the share of a task's tokens that the tokenizer does not know."""
        if task.name not in self.unknown:
            tokenizer, docs = self.loaded.tokenizer, task.documents("test")[:LOOKED_AT]
            mark = getattr(tokenizer, "unk_token_id", None)
            texts = [value for doc in docs for value in doc.data.values() if isinstance(value, str)]
            found = (
                tokenizer(texts, add_special_tokens=False)["input_ids"]
                if texts and mark is not None
                else []
            )
            self.unknown[task.name] = sum(ids.count(mark) for ids in found) / max(
                sum(map(len, found)), 1
            )
        share = self.unknown[task.name]
        return share

    def direct_evaluation(self, task: str, ready: Callable[[], None]) -> Evaluation | None:
        """Return the direct test evaluation of a task: the committed cell's, or computed here where there is none.

        ``ready`` is called before the model is asked: a tuning may have changed it.
        """
        planned = (
            c.copy_of or c.key for c in self.plan.cells if (c.task, c.protocol) == (task, DIRECT)
        )
        key = next(planned, None)
        if not key:
            kind, shots = (
                decide_scoring_kind(self.study, self.plan.model),
                self.study.shots_for(task, DIRECT),
            )
            key = cell_key(
                self.study,
                self.plan.model_fingerprint,
                self.plan.task_fingerprints[task],
                DIRECT,
                kind=kind,
                shots=shots,
            )
        cell = self.store.cell(key)
        if cell is not None:
            try:
                return Evaluation(
                    outcomes=self.store.items(key), scores=dict(cell.scores), metric=cell.metric
                )
            except DamagedItemsError:  # computed here once more; its score is the same
                self.board.event("damaged", task=task, protocol=DIRECT)
        if any(failure.key == key for failure in self.store.failures(study=self.plan.study_key)):
            return None
        ready()
        return self._ask_untuned(task, DIRECT)[0]

    def _guarded(self, cells: list[CellPlan], compute: Callable[[list[CellPlan]], None]) -> None:
        """Compute; on an error, record each cell that is still missing as failed, and go on."""
        try:
            compute(cells)
        except (Stopped, StoreError, *INTERRUPTS):
            raise
        except BaseException as error:  # a panic of Rust code is no `Exception`
            if _is_full(error):  # no fault of the cell's: nothing can be saved now
                raise StoreError(
                    _reason(error), where=getattr(error, "where", None), hint=FULL
                ) from error
            for cell in cells:
                if not self.store.has(cell.key):
                    self.fail(cell, error)

    def fail(self, cell: CellPlan, error: BaseException | str) -> None:
        """Record a cell as failed, with the reason; what lanes fail for, who chooses from them finds out."""
        reason = error if isinstance(error, str) else _reason(error)
        if self.plan.lane_part is not None:
            self.board.note(reason=reason)
            return
        self.store.fail_cell(
            study=self.plan.study_key,
            model=self.plan.model.name,
            task=cell.task,
            protocol=cell.protocol,
            reason=reason,
            key=cell.key or None,
            kind="" if isinstance(error, str) else type(error).__name__,
            hint=getattr(error, "hint", None),
        )
        self.outcome.failed += 1
        self.outcome.reasons.setdefault(reason, []).append(f"{cell.task} × {cell.protocol}")
        trace = "" if isinstance(error, str) else "".join(traceback.format_exception(error))[-4000:]
        self.board.event(
            "failure", task=cell.task, protocol=cell.protocol, reason=reason, traceback=trace
        )

    def give_up(self, reason: str) -> RowOutcome:
        """Record every pending cell as failed for the same reason."""
        for cell in self.plan.pending:
            self.fail(cell, reason)
        self.board.finish("failed")
        return self.outcome

    def progress(self, amount: int) -> None:
        """Move the board's phase on, or stop."""
        if self.stop():
            raise Stopped
        self.board.advance(amount)


FULL = "free some space, then run the same command again: finished cells are kept"


def _is_full(error: BaseException | None) -> bool:
    """Say whether a disk without space lies behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: BaseException) -> str:
    if isinstance(error, PotentiaError):
        return error.message
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


UNKNOWN_SHARE = 0.05  # of the tokens of a task, from which it is told
LOOKED_AT = 100  # documents whose tokens are looked at
PARTS = (
    "potentia",
    "torch",
    "transformers",
    "peft",
    "lm-eval",
    "tokenizers",
    "datasets",
    "numpy",
    "bitsandbytes",
)


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that takes part in a score."""
    found = {"python": platform.python_version()}
    for part in PARTS:
        try:
            found[part] = version(part)
        except PackageNotFoundError:
            continue
    return found
