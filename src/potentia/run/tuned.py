"""What a recipe is to the engine: its examples, the shape of its adapters, its schedule; and treated copies.

A treated copy is a model that is tuned on test tasks on purpose before the study scores it: its original and an adapter
(or all weights) trained on the train splits that ``treat`` names. It is made once, kept beside the store, and loaded
from there like any other model, so that a resumed row has the very same weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from potentia.errors import TuningError
from potentia.files import write_file
from potentia.run.progress import Stopped, remove_lanes
from potentia.study import Tuning
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.engine.tune import LoraConfig, Schedule, TokenisedExamples
    from potentia.run.row import RowRun
    from potentia.tasks import ChatTemplate, Task

NOTE = "wave.json"


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


class Begun(NamedTuple):
    """What lanes were begun with: the tasks that train together, on how many threads, in how many parts.

    The trainer's packing, and with it the last bits of every number, follows from the list of lanes; so does it from
    the threads that add up. Cells are committed one by one, so what is still missing shrinks, and a run that goes on
    may have other workers or another machine; the folder of the lanes remembers all three until all is done.
    """

    tasks: list[str]
    threads: int
    lane_parts: int

    @classmethod
    def read(cls, folder: Path) -> Begun | None:
        """Return what a folder remembers; None where nothing was begun."""
        try:
            return cls(**json.loads((folder / NOTE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def at(self, folder: Path, every: Sequence[str]) -> Begun:
        """Return what was begun here, if it covers what is left of all tasks; else begin."""
        known = Begun.read(folder)
        if known is not None and set(self.tasks) <= set(known.tasks) <= set(every):
            return known
        write_file(folder / NOTE, json.dumps(self._asdict()))
        return self


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Compute on so many threads meanwhile, where a number is given."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
    from potentia.engine.tune import FullLanes, LaneEpoch, LaneSpec, LaneTrainer

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
        lane = LaneSpec(name, examples, plan, adapter(tuning), study.treat.seed)
        where: dict[str, Any] = {"token_budget": study.token_budget, "workspace": workspace}
        full = tuning.method == "full"
        with FullLanes(loaded, **where, shards=study.shards) if full else LaneTrainer(loaded, **where) as trainer:

            def hold(ended: list[LaneEpoch]) -> None:
                if isinstance(trainer, FullLanes):  # adapters are all kept
                    trainer.hold([(name, epoch.epoch) for epoch in ended])

            def save(folder: Path) -> None:
                if isinstance(trainer, FullLanes):
                    trainer.restore(name, plan.epochs)
                    trainer.save(folder)
                    loaded.tokenizer.save_pretrained(str(folder))
                else:
                    trainer.save_peft(name, folder)

            step = row.board.reach
            result = trainer.train(
                [lane], on_epoch=hold, on_step=lambda i: step(i.done, before=i.before), stop=row.stop
            )[name]
            if result.status == "interrupted":
                raise Stopped
            if result.status == "failed":
                raise TuningError(f"showing {', '.join(shown)} failed: {result.reason}")
            return row.store.keep_adapter(name, save, note)
    finally:
        loaded.close()
