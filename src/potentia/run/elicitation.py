"""Tuning a sample of a study's cells with more capacity: adapters of a higher rank, and all weights.

The ways differ from the study's recipe in this alone; each searches its own learning rate. The cells go into the
study's store under a study of their own, so what is there is not computed again, and the study's tables stay as they
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potentia.errors import InputError, PotentiaError
from potentia.run.execute import run_study
from potentia.study import Study, Tuning
from potentia.values.protocol import TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.analysis.rankings import Elicitation
    from potentia.values.scores import ScoreMatrix

RECIPE = "recipe"


def ways_of(tuning: Tuning, rank: int) -> dict[str, Tuning]:
    """Return the recipe, the same with a higher rank (its output scaled alike), and the same with all weights."""
    said = {name: value for name, value in tuning if name not in ("recipe", "method", "learning_rates", "rate_bounds")}
    more = (rank / tuning.rank) ** (0.5 if tuning.method == "rslora" else 1)
    higher = tuning.model_copy(update={"rank": rank, "alpha": tuning.alpha * more})
    return {RECIPE: tuning, f"rank {rank}": higher, "all weights": Tuning(method="full", **said)}


def elicit(
    study: Study, *, models: Sequence[str] = (), tasks: Sequence[str] = (), rank: int = 64, workers: int = 1
) -> Elicitation:
    """Tune the chosen cells of a study in every way and compare; all models and the first three tasks by default."""
    from potentia.analysis.rankings import find_elicitation
    from potentia.run.progress import opened

    if study.tuning.method == "full":
        raise InputError("the study tunes all weights already", hint="name a study whose recipe trains adapters")
    rows = {row.name: row for row in study.rows() if row.copy_of is None}
    known = {task.name: task for task in study.benchmarks()}
    for wanted, there in ((models, rows), (tasks, known)):
        if unknown := [name for name in wanted if name not in there]:
            raise InputError(f"{unknown[0]} is not part of the study", hint=f"it has: {', '.join(there)}")
    found: dict[str, ScoreMatrix] = {}
    for name, tuning in ways_of(study.tuning, rank).items():
        small = study.model_copy(
            update={
                "name": f"{study.name}, {name}",
                "models": tuple(rows[model] for model in models or rows),
                "tasks": tuple(known[task] for task in tasks or list(known)[:3]),
                "protocols": (TRAIN_BEFORE_TEST,),
                "tuning": tuning,
                "treat": None,
                "only": None,
                "keep_adapters": False,
            }
        )
        result = run_study(small, workers=workers)
        if result.failed or result.interrupted:
            raise PotentiaError(result.reasons[0] if result.reasons else "stopped", hint="run the same command again")
        with opened(study.store, readonly=True) as store:
            matrix = store.matrix(TRAIN_BEFORE_TEST, study=small.name)
        found[name] = matrix.select(models=[m.name for m in small.models], tasks=[t.name for t in small.tasks])
    return find_elicitation(RECIPE, found)
