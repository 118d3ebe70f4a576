"""Exposed copies: models that are trained on test tasks on purpose before the study scores them.

A copy is its original and an adapter (or all weights) trained on the train splits that ``treat`` names. It is made
once, kept beside the store, and loaded from there like any other model, so that a resumed row has the very same
weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from potentia.engine import LoadedModel
from potentia.errors import TuningError
from potentia.run.progress import Stopped, remove_lanes_folder
from potentia.run.recipe import encode_training_examples
from potentia.store import name_exposed_copy
from potentia.timing import spending
from potentia.values.fine_tuning import LaneStatus

if TYPE_CHECKING:
    from potentia.engine.training import FullLanes, LaneEpoch, LaneSpec, LaneTrainer, StepInfo
    from potentia.run.row_context import RowContext
    from potentia.study import Tuning


def load_exposed_copy(context: RowContext) -> LoadedModel:
    """Load an exposed copy; it is made first where the store has none."""
    copy_name = name_exposed_copy(context.row.model_fingerprint)
    folder = context.store.adapters.find(copy_name)
    if folder is None:
        with spending("treat"):
            folder = _make_copy(context, copy_name)
    remove_lanes_folder(context.store.lanes_folder / copy_name)
    if _find_recipe(context).method == "full":
        loaded = context.load_model_from(str(folder))
    else:
        loaded = context.load_model(extra_adapter=str(folder))
    loaded.fingerprint = context.row.model_fingerprint
    return loaded


def _find_recipe(context: RowContext) -> Tuning:
    study = context.study
    assert study.treat is not None
    return study.treat.make_tuning(study.tuning)


def _make_copy(context: RowContext, copy_name: str) -> Path:
    """Train the original on the tasks it is exposed to, and keep the result."""
    from potentia.engine.training import FullLanes, LaneSpec, LaneTrainer

    study = context.study
    assert study.treat is not None
    tuning = _find_recipe(context)
    tasks = context.tasks.exposure
    documents = sum(len(task.documents("train")) for task in tasks.values())
    schedule = tuning.make_schedule(tuning.learning_rates[0], documents)
    workspace = context.store.lanes_folder / copy_name
    loaded = context.load_model()
    try:
        examples = encode_training_examples(tuning, loaded, list(tasks.values()))
        context.progress.phase(
            f"showing {', '.join(tasks)}", total=schedule.total_steps(len(examples)), unit="steps"
        )
        lane = LaneSpec(copy_name, examples, schedule, tuning.make_lora_config(), study.treat.seed)
        trainer: FullLanes | LaneTrainer
        if tuning.method == "full":
            trainer = FullLanes(
                loaded, token_budget=study.token_budget, workspace=workspace, shards=study.shards
            )
        else:
            trainer = LaneTrainer(loaded, token_budget=study.token_budget, workspace=workspace)
        with trainer:
            return _train_and_keep(context, trainer, lane, loaded)
    finally:
        loaded.close()


def _train_and_keep(
    context: RowContext, trainer: FullLanes | LaneTrainer, lane: LaneSpec, loaded: LoadedModel
) -> Path:
    from potentia.engine.training import FullLanes

    def hold_states(ended: list[LaneEpoch]) -> None:
        if isinstance(trainer, FullLanes):  # adapters are all kept
            trainer.keep_only_states([(lane.key, epoch.epoch) for epoch in ended])

    def report_step(step_info: StepInfo) -> None:
        context.progress.reach(step_info.done, before=step_info.resumed)

    def save(folder: Path) -> None:
        if isinstance(trainer, FullLanes):
            trainer.restore(lane.key, lane.schedule.epochs)
            trainer.save_model(folder)
            loaded.tokenizer.save_pretrained(str(folder))
        else:
            trainer.save_peft(lane.key, folder)

    results = trainer.train(
        [lane], on_epoch=hold_states, on_step=report_step, stop=context.stop_requested
    )
    result = results[lane.key]
    tasks = list(context.tasks.exposure)
    if result.status == LaneStatus.INTERRUPTED:
        raise Stopped
    if result.status == LaneStatus.FAILED:
        raise TuningError(f"showing {', '.join(tasks)} failed: {result.reason}")
    row = context.row
    base_model = {"fingerprint": row.original_fingerprint, "source": row.model.source}
    return context.store.adapters.save(lane.key, save, {"base": base_model, "shown": tasks})
