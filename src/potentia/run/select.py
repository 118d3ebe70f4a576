"""Two questions that are answered by several small studies in one store; a second run reuses what is stored.

**Choosing a model for one's own data**: all candidates are tuned identically, the weaker ones are dropped early, and
the rest are tested. The first round scores every model directly. The next rounds run train-before-test on a share of
the training documents with hardly any test documents: validation decides who stays. The last round tunes the
finalists on all training documents and tests them once.

**Elicitation**: a sample of a study's cells is tuned with more capacity, by adapters of a higher rank and by all
weights. The recipes differ from the study's own in this alone. Each searches its own learning rate in a study of its
own, so that the study's tables stay as they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from potentia.analysis.planning import CandidateStanding, ModelChoice
from potentia.analysis.rankings import Elicitation, build_scoreboard, measure_elicitation
from potentia.analysis.stats import select_survivors
from potentia.errors import InputError, PotentiaError
from potentia.run.execute import choose_worker_count, run_study
from potentia.run.executors.local import ModelSession
from potentia.run.plan import load_tasks, plan_study
from potentia.run.progress import open_store
from potentia.study import Caps, Study, Tuning
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store
    from potentia.tasks import Task
    from potentia.values.scores import ScoreMatrix

MIN_TRAIN_DOCUMENTS = 32  # of the first round
UNUSED_TEST_DOCUMENTS = 8  # of a round that decides by validation: nobody looks at their scores


@dataclass(frozen=True)
class DroppedModel:
    """When a model was dropped, and how good it looked by validation at that time."""

    round: int
    win_chance: float
    validation: float


@dataclass
class Race:
    """The state of a selection while it runs."""

    study: Study
    budget: float | None = None  # seconds
    tell: Callable[[str], Any] = lambda _: None  # receives what is going on
    note: Callable[[str], Any] = lambda _: None  # receives what users should know about the data
    workers: int = 0  # at once; 0 fits them to the GPUs
    last: str = ""  # key of the final round's study
    session: ModelSession | None = None
    problems: dict[str, str] = field(init=False, default_factory=dict)  # by model
    dropped: dict[str, DroppedModel] = field(init=False, default_factory=dict)  # by model
    notes: list[str] = field(init=False, default_factory=list)
    standing: str = field(init=False, default="")  # who leads

    def run(self) -> ModelChoice:
        """Run the rounds and return the answer; the data is read once, and a model stays loaded if memory allows."""
        from potentia.tasks import reading_data_once

        with reading_data_once(), ModelSession() as self.session:
            return self._run_rounds()

    def _run_rounds(self) -> ModelChoice:
        began = time.monotonic()
        task = self._load_task()
        names = [row.name for row in self.study.rows()]
        self.tell(f"direct scores of {len(names)} models")
        direct_cells = self._run_round(names, "direct", protocol=DIRECT)
        racing = [name for name in names if name not in self.problems]
        sizes = choose_round_sizes(len(racing), len(task.documents("train")))
        for number in range(1, len(sizes)):
            racing, sizes = self._run_early_round(task, number, racing, sizes, began=began)
        self._tell_with_standing(f"the last {len(racing)} on {sizes[-1]} documents")
        final_caps = self.study.caps.model_copy(update={"train": sizes[-1]})
        final_cells = self._run_round(racing, "final", caps=final_caps, is_final=True)
        seconds = time.monotonic() - began
        return self._make_choice(
            task, direct_cells, final_cells, seconds=seconds, train_documents=sizes[-1]
        )

    def _load_task(self) -> Task:
        """Return the one task of the selection; refuse data that models cannot be tuned and chosen by."""
        if len(self.study.benchmarks()) != 1:
            raise InputError(
                "a selection is on one task", hint="give one --data; several tasks are a study"
            )
        task = next(iter(load_tasks(self.study).by_name.values()))
        for note in task.notes:
            self.note(note)
        if not task.documents("train") or not task.documents("validation"):
            raise InputError(
                f"{task.name} has too few documents to tune and to choose by", hint="give more rows"
            )
        return task

    def _tell_with_standing(self, message: str) -> None:
        if self.standing:
            message = f"{message} · {self.standing}"
        self.tell(message)

    # --- rounds --------------------------------------------------------------------------------------------------

    def _run_early_round(
        self, task: Task, number: int, racing: Sequence[str], sizes: Sequence[int], *, began: float
    ) -> tuple[list[str], list[int]]:
        """Tune the racing models on a share of the documents.

        Return the models of the next round, and the sizes of all rounds: the budget may shrink the later ones.
        """
        round_began = time.monotonic()
        size = sizes[number - 1]
        next_size = sizes[number]
        self._tell_with_standing(
            f"round {number} of {len(sizes)}: {len(racing)} models on {size} documents"
        )
        caps = self.study.caps.model_copy(update={"train": size, "test": UNUSED_TEST_DOCUMENTS})
        cells = self._run_round(racing, f"round-{number}", caps=caps)
        tuned_models = [name for name in racing if name in cells]
        survivors = self._find_survivors(task, number, len(sizes), cells)
        seconds_left = math.inf
        if self.budget is not None:
            seconds_left = self.budget - (time.monotonic() - began)
        seconds_per_model = (time.monotonic() - round_began) / len(tuned_models) * next_size / size
        survivors = self._limit_to_budget(survivors, seconds_per_model, seconds_left)
        staying = [name for name in tuned_models if name in survivors]
        for name in staying:
            del self.dropped[name]
        next_sizes = list(sizes)
        if seconds_per_model * len(staying) > seconds_left:
            # Not even these models fit into the budget: all of them get the same, smaller share of the documents.
            seconds_needed = seconds_per_model * len(staying)
            affordable_size = max(size, int(next_size * max(seconds_left, 0.0) / seconds_needed))
            self.notes.append(
                f"The budget was enough for {affordable_size} of {sizes[-1]} training documents."
            )
            next_sizes[number:] = [min(affordable_size, planned) for planned in sizes[number:]]
        return staying, next_sizes

    def _find_survivors(
        self, task: Task, number: int, rounds: int, cells: Mapping[str, CellRecord]
    ) -> list[str]:
        """Return the models that may win by validation, the likeliest first; all count as dropped until they go on."""
        documents = len(task.documents("validation"))
        values: dict[str, float] = {}
        errors: dict[str, float] = {}
        correct_answers: dict[str, str] = {}
        for model, cell in cells.items():
            values[model] = _nan_if_none(cell.selection.validation)
            errors[model] = _estimate_validation_error(cell, documents)
            correct_answers[model] = cell.selection.validation_right
        survivors, win_chances = select_survivors(
            values,
            errors,
            correct_answers,
            higher_is_better=task.higher_is_better,
            looks=rounds - 1,
            seed=self.study.seed,
        )
        leader = max(win_chances, key=lambda model: win_chances[model])
        self.standing = f"{leader} leads (P(best) {win_chances[leader]:.2f})"
        for model in cells:
            self.dropped[model] = DroppedModel(
                round=number, win_chance=win_chances[model], validation=values[model]
            )
        return survivors

    def _limit_to_budget(
        self, survivors: list[str], seconds_per_model: float, seconds_left: float
    ) -> list[str]:
        """Return as many of the survivors as the seconds left are enough for, two at least."""
        if seconds_per_model * len(survivors) <= seconds_left or len(survivors) <= 2:
            return survivors
        limit = max(2, int(seconds_left / seconds_per_model))
        share = f"{min(limit, len(survivors))} of the {len(survivors)} models"
        self.notes.append(f"The budget was enough for {share} that might win.")
        return survivors[:limit]

    def _run_round(
        self,
        models: Sequence[str],
        name: str,
        *,
        protocol: Protocol = TRAIN_BEFORE_TEST,
        caps: Caps | None = None,
        is_final: bool = False,
    ) -> dict[str, CellRecord]:
        """Run a round and return its cells by model, in the order of the models; failures go to the problems."""
        study = self.study.model_copy(
            update={
                "name": f"{self.study.name}-{name}",
                "models": tuple(row for row in self.study.rows() if row.name in models),
                "protocols": (protocol,),
                "caps": caps or self.study.caps,
                "keep_adapters": is_final,
            }
        )
        plan = plan_study(study)
        workers = self.workers or choose_worker_count(plan)
        result = run_study(plan, workers=workers, session=self.session)
        if result.interrupted:
            raise KeyboardInterrupt
        for failure in result.failures:
            self.problems[failure.model] = failure.reason
        self.last = result.study
        with open_store(study.store, readonly=True) as store:
            cells_by_model = {cell.model: cell for cell in store.cells.read(study=result.study)}
        if not cells_by_model:
            contestant = "finalist" if is_final else "candidate"
            treatment = "scored" if protocol == DIRECT else "tuned"
            first_problem = next(iter(self.problems.values()), "")
            raise PotentiaError(f"no {contestant} could be {treatment}", hint=first_problem)
        return {model: cells_by_model[model] for model in models if model in cells_by_model}

    # --- the answer ----------------------------------------------------------------------------------------------

    def final(self, store: Store, model: str) -> CellRecord:
        """Return a finalist's cell."""
        return next(cell for cell in store.cells.read(study=self.last) if cell.model == model)

    def _make_choice(
        self,
        task: Task,
        direct_cells: Mapping[str, CellRecord],
        final_cells: Mapping[str, CellRecord],
        *,
        seconds: float,
        train_documents: int,
    ) -> ModelChoice:
        from potentia.evidence import read

        # The scoreboard is what every other command says about this store.
        scoreboard = build_scoreboard(read(self.study.store, study=self.last))
        ranking = scoreboard.ranking
        missing = scoreboard.missing
        win_chances = dict(zip(ranking.models, ranking.p_first.tolist(), strict=True))
        if len(win_chances) == 1:
            win_chances = dict.fromkeys(win_chances, 1.0)
        standings = []
        for row in self.study.rows():
            standings.append(
                self._make_standing(
                    row.name,
                    direct_cells.get(row.name),
                    final_cells.get(row.name),
                    win_chance=win_chances.get(row.name, math.nan),
                )
            )
        standings.sort(key=_standing_order)
        more_seconds = math.nan
        if missing is not None and missing.documents:
            more_seconds = _slowest_document_seconds(direct_cells) * 2 * missing.documents
        return ModelChoice(
            task=task.name,
            metric=task.metric,
            ranking=ranking,
            missing=missing,
            p_dropped_best=min(sum(model.win_chance for model in self.dropped.values()), 1.0),
            seconds=seconds,
            more_seconds=more_seconds,
            train_documents=train_documents,
            standings=tuple(standings),
            notes=tuple(self.notes),
        )

    def _make_standing(
        self,
        model: str,
        direct_cell: CellRecord | None,
        final_cell: CellRecord | None,
        *,
        win_chance: float,
    ) -> CandidateStanding:
        dropped = self.dropped.get(model)
        dropped_in_round = None if dropped is None else dropped.round
        validation = math.nan
        problem = ""
        if final_cell is not None:
            validation = _nan_if_none(final_cell.selection.validation)
        else:
            problem = self.problems.get(model, "")
            if dropped is not None:
                validation = dropped.validation
        direct_score, direct_stderr = _score_and_error(direct_cell)
        tuned_score, tuned_stderr = _score_and_error(final_cell)
        return CandidateStanding(
            model=model,
            direct=direct_score,
            direct_stderr=direct_stderr,
            tuned=tuned_score,
            tuned_stderr=tuned_stderr,
            validation=validation,
            p_best=win_chance,
            dropped_in_round=dropped_in_round,
            problem=problem,
        )


def choose_round_sizes(candidates: int, documents: int) -> list[int]:
    """Training documents of each round: all at once for two candidates, a quarter first for a few, a ninth for many."""
    if candidates <= 2 or documents <= MIN_TRAIN_DOCUMENTS:
        return [documents]
    shares = [1 / 4] if candidates <= 6 else [1 / 9, 1 / 3]
    early_sizes = sorted({max(MIN_TRAIN_DOCUMENTS, int(documents * share)) for share in shares})
    smaller_sizes = [size for size in early_sizes if size < documents]
    return [*smaller_sizes, documents]


def _slowest_document_seconds(cells: Mapping[str, CellRecord]) -> float:
    """Return the seconds per document of the slowest model; NaN without cells."""
    return max((cell.seconds / max(cell.score.n, 1) for cell in cells.values()), default=math.nan)


def _standing_order(standing: CandidateStanding) -> tuple[float, bool]:
    """Sort by the chance to be the best; models without one come last, the dropped ones first."""
    chance = 0.0 if math.isnan(standing.p_best) else standing.p_best
    return -chance, standing.dropped_in_round is None


def _score_and_error(cell: CellRecord | None) -> tuple[float, float]:
    if cell is None:
        return math.nan, math.nan
    return cell.score.value, cell.score.stderr


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value


def _estimate_validation_error(cell: CellRecord, documents: int) -> float:
    """Return the standard error of the validation value of a cell's chosen state.

    Where none was stored, the error of a share is returned, which is an upper bound for other metrics of the unit
    interval.
    """
    stored_error = _nan_if_none(cell.selection.validation_stderr)
    if stored_error > 0:
        return stored_error
    value = _nan_if_none(cell.selection.validation)
    share = min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.5
    return math.sqrt((share * (1 - share) + 1.0 / documents) / documents)


# --- elicitation ------------------------------------------------------------------------------------------------------

RECIPE = "recipe"
FIRST_TASKS = 3  # that an elicitation takes where none are named
METHOD_SETTINGS = ("recipe", "method", "learning_rates", "rate_bounds")


def list_elicitation_recipes(tuning: Tuning, rank: int) -> dict[str, Tuning]:
    """Return the recipe, the same with a higher rank (its output scaled alike), and the same with all weights."""
    # The output of LoRA is scaled by alpha / rank, that of rsLoRA by alpha / √rank.
    exponent = 0.5 if tuning.method == "rslora" else 1
    alpha_factor = (rank / tuning.rank) ** exponent
    higher_rank = tuning.model_copy(update={"rank": rank, "alpha": tuning.alpha * alpha_factor})
    shared_settings = {name: value for name, value in tuning if name not in METHOD_SETTINGS}
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
    task_specs = {task.name: task for task in study.benchmarks()}
    _refuse_unknown_names(models, list(model_specs))
    _refuse_unknown_names(tasks, list(task_specs))
    chosen_models = models or list(model_specs)
    chosen_tasks = tasks or list(task_specs)[:FIRST_TASKS]
    matrices = {}
    for name, tuning in list_elicitation_recipes(study.tuning, rank).items():
        small_study = study.model_copy(
            update={
                "name": f"{study.name}, {name}",
                "models": tuple(model_specs[model] for model in chosen_models),
                "tasks": tuple(task_specs[task] for task in chosen_tasks),
                "protocols": (TRAIN_BEFORE_TEST,),
                "tuning": tuning,
                "treat": None,
                "only": None,
                "keep_adapters": False,
            }
        )
        matrices[name] = _run_tuned_study(small_study, workers=workers)
    return measure_elicitation(RECIPE, matrices)


def _refuse_unknown_names(names: Sequence[str], names_in_study: Sequence[str]) -> None:
    for name in names:
        if name not in names_in_study:
            raise InputError(
                f"{name} is not part of the study", hint=f"it has: {', '.join(names_in_study)}"
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
