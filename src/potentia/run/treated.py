"""Treated copies: models that are tuned on test tasks on purpose before the study scores them.

A copy is its original and an adapter (or all weights) trained on the train splits that ``treat`` names. It is made
once, kept beside the store, and loaded from there like any other model, so that a resumed row has the very same
weights. Its fingerprint names the original, the data and the recipe, so a plan knows its cells before it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.errors import TuningError
from potentia.run.fine_tuning import Stopped, adapter, learned, schedule
from potentia.run.sweep import remove
from potentia.study import Study, content_key
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.run.row import RowRun
    from potentia.tasks import Task


def treated_fingerprint(study: Study, original: str, shown: Mapping[str, Task]) -> str:
    """Name a treated copy by its original, what it is shown, and how."""
    assert study.treat is not None
    return content_key(
        original=original,
        data=[task.fingerprint for task in shown.values()],
        tuning=study.treat.recipe(study.tuning),
        seed=study.treat.seed,
        dtype=study.dtype,
    )


def load_treated(row: RowRun) -> LoadedModel:
    """Load a treated copy; it is made first where the store has none."""
    name = f"treated-{row.plan.weights}"
    folder = row.store.adapter(name)
    if folder is None:
        with spending("treat"):
            folder = _make(row, name)
    remove(row.store.lanes_folder / name)
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
    from potentia.engine.tune import LaneSpec, LaneTrainer, full_trainer

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
            with full_trainer(loaded, study.shards, token_budget=budget, workspace=workspace) as trainer:
                made = trainer.train(
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
