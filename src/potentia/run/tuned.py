"""What a fine-tuning has around it: what the store and the board hear of its cells, its examples and its schedule.

And treated copies: models that are tuned on test tasks on purpose before the study scores them. A copy is its original
and an adapter (or all weights) trained on the train splits that ``treat`` names. It is made once, kept beside the
store, and loaded from there like any other model, so that a resumed row has the very same weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import ModelError, TuningError
from potentia.files import write_file
from potentia.run.ask import Evaluation
from potentia.run.choice import Candidate, LanePlan
from potentia.run.plan import CellPlan
from potentia.run.progress import Stopped, remove_lanes
from potentia.study import Tuning, content_key
from potentia.timing import spending
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.engine.tune import LoraConfig, Schedule, StepInfo, TokenisedExamples
    from potentia.run.row import RowRun
    from potentia.tasks import ChatTemplate, Task


class TunedCells:
    """Serves the tuning of a row: writes lanes and cells to the store, progress to the board, passes on the stop."""

    def __init__(self, row: RowRun, kind: Protocol, cells: Sequence[CellPlan]) -> None:
        self.row, self.kind = row, kind
        self.cells = {(cell.task, cell.protocol.step): cell for cell in cells}
        self.every = {cell.task: cell.key for cell in row.plan.cells if cell.protocol == kind}
        self.began = self.committed = time.monotonic()
        self.tokens = 0
        self.leads: dict[str, float] = {}  # the best validation so far, by task
        self.probes: Mapping[str, Mapping[str, Any]] = {}  # by task, where one was made

    def asked(self, task: str, step: int | None) -> bool:
        """Say whether a cell is still to compute."""
        return (task, step) in self.cells

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

    def phase(self, name: str, total: int, unit: str = "docs") -> None:
        """Begin a phase on the board."""
        self.began, self.tokens = time.monotonic(), 0
        self.row.board.phase(name, total=total, unit=unit, tokens_per_second=None)

    def step(self, info: StepInfo) -> None:
        """Report a training step."""
        self.tokens += info.tokens
        rate = self.tokens / max(time.monotonic() - self.began, 1e-9)
        facts = {"lanes_active": info.active, "lanes_waiting": info.waiting, "tokens_per_second": rate}
        self.row.board.reach(info.done, before=info.before, **facts)

    def save_lane(
        self,
        lane: LanePlan,
        key: str,
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
            key=key,
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
        self.leads[task] = best([*(c.value for c in curve), *([self.leads[task]] if task in self.leads else [])])
        row.board.note(validation=f"{task} {self.leads[task]:.3f}", best=dict(self.leads))

    def stop(self) -> bool:
        """Say whether the row is to stop."""
        return self.row.stop()


class OnTheWay:
    """Test evaluations of lanes at given steps, in files of a folder, until it is known whose count."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, lane: str, step: int, task: str) -> Path:
        """Return where the score of a lane on a task is kept."""
        return self.folder / f"{content_key(lane=lane, step=step, task=task)}.json"

    def put(self, lane: str, step: int, task: str, made: Evaluation) -> None:
        """Keep what a lane scored on a task; the file is whole or not there."""
        write_file(self.path(lane, step, task), made.to_json(), synced=True)

    def get(self, lane: str, step: int, task: str) -> Evaluation:
        """Return what was kept."""
        path = self.path(lane, step, task)
        try:
            return Evaluation.from_json(path.read_text("utf-8"))
        except (OSError, KeyError, ValueError, TypeError):
            raise TuningError(f"the score on {task} after {step} steps was not kept", where=str(path)) from None


def learned(
    tuning: Tuning, loaded: LoadedModel, data: Sequence[Task], *, chat: ChatTemplate | None = None
) -> TokenisedExamples:
    """Return what one epoch of a recipe learns from, as the model reads it."""
    from potentia.engine.tune import encode_examples

    every = tuning.answers == "all"
    texts = [e for task in data for e in task.examples(task.documents("train"), chat=chat, every_answer=every)]
    end = loaded.tokenizer.eos_token_id
    if end is not None:
        texts = [replace(e, end=bool(e.context) or tuning.end_of_text == "texts") for e in texts]
    return encode_examples(loaded.encoder, texts, end_id=end).repeated(tuning.rounds(len(texts))[1])


def adapter(tuning: Tuning) -> LoraConfig:
    """Return the shape of a recipe's adapters; full tuning has none, and takes no notice."""
    from potentia.engine.tune import LoraConfig

    kind = "lora" if tuning.method == "full" else tuning.method
    return LoraConfig(tuning.rank, tuning.alpha, tuning.dropout, tuning.targets, kind)


def schedule(tuning: Tuning, rate: float, documents: int | None = None) -> Schedule:
    """Return the engine's schedule for this recipe at one learning rate, with the epochs of so many documents."""
    from potentia.engine.tune import Schedule

    same = ("batch", "weight_decay", "betas", "clip", "decay", "warmup_steps", "floor", "loss", "max_tokens")
    epochs = tuning.epochs if documents is None else tuning.rounds(documents)[0]
    return Schedule(epochs=epochs, learning_rate=rate, **{name: getattr(tuning, name) for name in same})


def load_treated(row: RowRun) -> LoadedModel:
    """Load a treated copy; it is made first where the store has none."""
    name = f"treated-{row.plan.weights}"
    folder = row.store.adapter(name)
    if folder is None:
        with spending("treat"):
            folder = _make(row, name)
    remove_lanes(row.store.lanes_folder / name)
    treat = row.study.treat
    assert treat is not None
    if treat.recipe(row.study.tuning).method == "full":
        loaded = row.load_model(source=str(folder))
    else:
        loaded = row.load_model(more=str(folder))
    loaded.fingerprint = row.plan.weights
    return loaded


def _make(row: RowRun, name: str) -> Path:
    """Tune the original on the data shown, and keep the result."""
    from potentia.engine.tune import FullTrainer, LaneSpec, LaneTrainer

    study, shown = row.study, row.tasks.shown
    assert study.treat is not None
    tuning = study.treat.recipe(study.tuning)
    documents = sum(len(task.documents("train")) for task in shown.values())
    plan = schedule(tuning, tuning.learning_rates[0], documents)
    note = {"base": {"fingerprint": row.plan.original, "source": row.plan.model.source}, "shown": list(shown)}
    workspace = row.store.lanes_folder / name
    loaded = row.load_model()
    try:
        examples = learned(tuning, loaded, list(shown.values()))
        row.board.phase(f"showing {', '.join(shown)}", total=plan.total_steps(len(examples)), unit="steps")
        if tuning.method == "full":
            budget = study.token_budget
            with FullTrainer(loaded, shards=study.shards, token_budget=budget, workspace=workspace) as trainer:
                made = trainer.tune(
                    examples,
                    plan,
                    seed=study.treat.seed,
                    on_step=lambda step: row.board.reach(step.step),
                    stop=row.stop,
                )
                if len(made) < plan.total_steps(len(examples)):
                    raise Stopped

                def save(folder: Path) -> None:
                    trainer.save(folder)
                    loaded.tokenizer.save_pretrained(str(folder))

                return row.store.keep_adapter(name, save, note)
        lane = LaneSpec(name, examples, plan, adapter(tuning), study.treat.seed)
        with LaneTrainer(loaded, token_budget=study.token_budget, workspace=workspace) as lanes:
            step = row.board.reach
            result = lanes.train([lane], on_step=lambda i: step(i.done, before=i.before), stop=row.stop)[name]
            if result.status == "interrupted":
                raise Stopped
            if result.status == "failed":
                raise TuningError(f"showing {', '.join(shown)} failed: {result.reason}")
            return row.store.keep_adapter(name, lambda folder: lanes.save_peft(name, folder), note)
    finally:
        loaded.close()
