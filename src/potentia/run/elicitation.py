"""Elicitation: a sample of a study's results, tuned with more capacity: by a higher rank and by all weights.

The recipes differ from the study's own in this alone. Each searches its own learning rate in a study of its own, so
that the study's tables stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potentia.analysis.rankings import Elicitation, measure_elicitation
from potentia.errors import InputError, PotentiaError
from potentia.run.execute import run_study
from potentia.run.progress import open_store
from potentia.study import Study, Tuning
from potentia.values.protocol import TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.values.scores import ScoreMatrix

RECIPE = "recipe"
FIRST_TASKS = 3  # that an elicitation takes where none are named
METHOD_SETTINGS = ("recipe", "method", "learning_rates", "rate_bounds")


def list_elicitation_recipes(tuning: Tuning, rank: int) -> dict[str, Tuning]:
    """Return the recipe, the same with a higher rank (its output scaled alike), and the same with all weights."""
    from potentia.engine.training import find_adapter_method

    method = find_adapter_method(tuning.method)
    alpha_factor = method.scale(tuning.rank, 1) / method.scale(rank, 1)
    higher_rank = tuning.model_copy(update={"rank": rank, "alpha": tuning.alpha * alpha_factor})
    shared_settings = {
        setting: value for setting, value in tuning if setting not in METHOD_SETTINGS
    }
    all_weights = Tuning.model_validate({"method": "full", **shared_settings})
    return {RECIPE: tuning, f"rank {rank}": higher_rank, "all weights": all_weights}


def run_elicitation(
    study: Study,
    *,
    models: Sequence[str] = (),
    tasks: Sequence[str] = (),
    rank: int = 64,
    workers: int = 1,
) -> Elicitation:
    """Tune the chosen cells of a study with every recipe and compare; all models and the first tasks by default."""
    if study.tuning.method == "full":
        raise InputError(
            "the study tunes all weights already", hint="name a study whose recipe trains adapters"
        )
    model_specs = {row.name: row for row in study.rows() if row.copy_of is None}
    task_specs = {task.name: task for task in study.list_task_specs()}
    _refuse_unknown_names(models, list(model_specs))
    _refuse_unknown_names(tasks, list(task_specs))
    chosen_models = models or list(model_specs)
    chosen_tasks = tasks or list(task_specs)[:FIRST_TASKS]
    matrices = {}
    for recipe_name, tuning in list_elicitation_recipes(study.tuning, rank).items():
        small_study = study.model_copy(
            update={
                "name": f"{study.name}, {recipe_name}",
                "models": tuple(model_specs[model] for model in chosen_models),
                "tasks": tuple(task_specs[task] for task in chosen_tasks),
                "protocols": (TRAIN_BEFORE_TEST,),
                "tuning": tuning,
                "treat": None,
                "only": None,
                "keep_adapters": False,
            }
        )
        matrices[recipe_name] = _run_tuned_study(small_study, workers=workers)
    return measure_elicitation(RECIPE, matrices)


def _refuse_unknown_names(requested_names: Sequence[str], names_in_study: Sequence[str]) -> None:
    for requested_name in requested_names:
        if requested_name not in names_in_study:
            raise InputError(
                f"{requested_name} is not part of the study",
                hint=f"it has: {', '.join(names_in_study)}",
            )


def _run_tuned_study(study: Study, *, workers: int) -> ScoreMatrix:
    """Run a study and return the scores of its models and tasks after tuning."""
    result = run_study(study, workers=workers)
    if result.failed or result.interrupted:
        reason = result.reasons[0] if result.reasons else "stopped"
        raise PotentiaError(reason, hint="run the same command again")
    with open_store(study.store, readonly=True) as store:
        matrix = store.scores.read_matrix(TRAIN_BEFORE_TEST, study=study.name)
    return matrix.select(
        models=[model.name for model in study.models], tasks=[task.name for task in study.tasks]
    )
