"""Choosing a model for one's own data: several small studies in one store; a second run reuses what is stored.

All candidates are tuned identically, the weaker ones are dropped early, and the rest are tested.

1. Every model is scored before fine-tuning.
2. All are tuned on a quarter of the training examples (of many candidates: a ninth, then a third). Validation decides
   who stays. These results are also one end of the learning curve, so two candidates have this round too.
3. The finalists are tuned on all training examples and tested; in folds, every example is tested once.

A budget is of wall time, and everything counts. The scores before fine-tuning measure the pace of this machine, then a
trial does, the smallest fine-tuning there is; what the budget does not hold at that pace is left out (``race_budget``)
and told before it starts. There is always an answer: that of the last round which all racing models ended, of the
trial, or of the scores before fine-tuning, which no budget leaves out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.analysis.benchmark import find_classification, find_written_answers
from potentia.analysis.planning import (
    CandidateStanding,
    ModelChoice,
    answers_from_items,
    find_selection,
    find_smaller_model,
    measure_trust,
)
from potentia.analysis.rankings import build_scoreboard
from potentia.analysis.stats import select_survivors
from potentia.errors import InputError, PotentiaError
from potentia.run.cost import find_parameters, format_time
from potentia.run.execute import choose_worker_count, register_study, run_study
from potentia.run.executors.local import ModelSession
from potentia.run.plan import CellPlan, StudyPlan, load_tasks, plan_study
from potentia.run.progress import find_store, open_store, read_events
from potentia.run.race_budget import (
    FEW_CANDIDATES,
    MIN_TRAIN_EXAMPLES,
    RaceClock,
    RacePlan,
    describe_limits,
    has_more_updates,
    is_known,
    list_smaller_plans,
    measure_flops_per_second,
    plan_trial,
)
from potentia.run.refit import RefitSettings, make_refit_study, pool_scores, put_fold_scores
from potentia.study import ModelSpec, Study, TaskSpec, Tuning, find_price
from potentia.values.baselines import Baseline
from potentia.values.findings import short_names
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, TaskName
from potentia.values.scores import Score
from potentia.values.selection_studies import SelectionPart, SelectionStudy

if TYPE_CHECKING:
    from potentia.analysis.planning import TestedAnswer, Trust
    from potentia.run.encoder_entrants import CheapClassifiers, EncoderEntrants
    from potentia.store import CellRecord, Store
    from potentia.study import Price
    from potentia.tasks import Task

MOST_EMBEDDED = 5_000  # examples that embeddings are tested on
BUDGET_RESERVE = 0.9  # of the budget is planned for: estimates are rough
TRIAL_SHARE = 0.4  # of the time left that an unmeasured plan may take without a trial before it
DIRECT_SHARE = 0.2  # of the time left for scores before fine-tuning
LEAST_TESTED = 50  # examples, however small the budget is

Report = Callable[[str], Any]  # receives a line for the user
Watch = Callable[[StudyPlan], Any]  # gives a context manager that shows progress


@dataclass(frozen=True)
class DroppedModel:
    """When a model was dropped, and how good it looked by validation at that time."""

    round: int
    win_chance: float
    validation: float


@dataclass(frozen=True)
class FinishedRound:
    """A round that all racing models ended."""

    plan: StudyPlan
    train_examples: int  # 0 before fine-tuning
    cells: Mapping[str, Sequence[CellRecord]]  # by model, a cell for each fold
    folds: int

    @property
    def study(self) -> str:
        """The key of its study."""
        return self.plan.key


@dataclass(frozen=True)
class RefittedModel:
    """The best candidate, fine-tuned on all rows: its store, and its result with the scores of the folds."""

    store: str
    cell: CellRecord
    folds: int = 0


class NoCandidateError(PotentiaError):
    """No candidate could be scored or tuned; ``problems`` says why, by model."""

    def __init__(
        self, message: str, problems: Mapping[str, str], *, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = dict(problems)


class BudgetOverError(PotentiaError):
    """The budget ended before a round did."""


@dataclass
class Race:
    """The state of a selection while it runs."""

    study: Study
    budget: float | None = None  # seconds, of everything since `began`
    report: Report = lambda _: None  # receives what is going on
    report_note: Report = lambda _: None  # receives what users should know
    watch: Watch | None = None
    workers: int = 0  # at once; 0 fits them to the GPUs
    began: float = field(default_factory=time.monotonic)
    session: ModelSession | None = None
    problems: dict[str, str] = field(init=False, default_factory=dict)  # by model
    hints: dict[str, str] = field(init=False, default_factory=dict)  # on problems, by model
    dropped: dict[str, DroppedModel] = field(init=False, default_factory=dict)  # by model
    notes: list[str] = field(init=False, default_factory=list)
    standing: str = field(init=False, default="")  # who leads
    final_round: FinishedRound | None = field(init=False, default=None)
    refitted: RefittedModel | None = field(init=False, default=None)  # the model to use
    direct: dict[str, list[CellRecord]] = field(init=False, default_factory=dict)  # by model
    direct_seconds: float = field(init=False, default=0.0)  # that the scores before tuning took
    clock: RaceClock = field(init=False)  # knows how long things take
    train_examples: int = field(init=False, default=0)  # of one fold
    test_examples: int = field(init=False, default=0)  # of one fold
    tuning: Tuning = field(init=False)  # that every candidate gets: the study's, or a shorter one
    finished_sizes: list[int] = field(init=False, default_factory=list)  # of rounds that count
    candidates: tuple[ModelSpec, ...] = field(init=False, default=())  # encoders among them
    encoders: EncoderEntrants | None = field(init=False, default=None)
    cheap_classifiers: CheapClassifiers | None = field(init=False, default=None)
    baselines: dict[Baseline, float] = field(init=False, default_factory=dict)  # accuracies
    _final_round_was_cut: bool = field(init=False, default=False)  # before all models ended it

    def __post_init__(self) -> None:
        self.study = put_sizes(self.study)

    def run(self) -> ModelChoice:
        """Run the rounds and return the answer; the data is read once, and a model stays loaded if memory allows."""
        from potentia.tasks import reading_data_once

        with reading_data_once(), ModelSession() as self.session:
            choice = self._run_rounds()
            self._refit(choice)
        return replace(choice, notes=tuple(self.notes), seconds=self.seconds_spent())

    @property
    def last(self) -> str:
        """The key of the study whose results are the answer."""
        assert self.final_round is not None
        return self.final_round.study

    def _run_rounds(self) -> ModelChoice:
        folds: Mapping[str, Task] = self._load_folds()
        self._report_baselines(folds)
        self._separate_encoders(next(iter(folds.values())))
        model_names = [row.name for row in self.study.rows() if not self.is_encoder(row.name)]
        race_plan = self._plan_everything(folds)
        self.tuning = race_plan.tuning
        if not model_names:
            return self._run_encoders_alone(folds, race_plan)
        folds = self._limit_tested_examples(folds)
        self._report_estimate(race_plan)
        self.report(f"Scores of {_count_models(model_names)} before fine-tuning")
        answer = self._run_direct(model_names, self._choose_direct_folds(race_plan.folds))
        if self.budget is None:
            self._test_cheap_classifiers(folds)
        racing = [model_name for model_name in model_names if model_name not in self.problems]
        trial = self._run_trial(race_plan, racing)
        answer = trial or answer
        limited = self._limit_plan(race_plan, trial is not None)
        if limited is not None:
            answer = self._run_tuning_rounds(race_plan, limited, racing, folds) or answer
        self._settle_answer(answer, race_plan)
        self._run_encoders(answer, race_plan)
        if self.budget is not None:
            self._test_cheap_classifiers(
                {cell.task: folds[cell.task] for cell in self._tested_cells()}
            )
        return self._make_choice(next(iter(folds.values())))

    def _run_tuning_rounds(
        self,
        race_plan: RacePlan,
        limited: RacePlan,
        racing: list[str],
        folds: Mapping[str, Task],
    ) -> FinishedRound | None:
        """Run the early rounds and the last one; return the last that ended, None where none did."""
        self.tuning = limited.tuning
        sizes = limited.sizes
        task = next(iter(folds.values()))
        last_round = None
        finished_sizes: list[int] = []
        for round_number in range(1, len(sizes)):
            finished = self._run_early_round(round_number, racing, sizes, limited.folds[0])
            if finished is None:
                break
            last_round = finished
            finished_sizes.append(finished.train_examples)
            racing = self._choose_survivors(task, round_number, len(sizes), finished, sizes)
        final_round = self._run_final_round(racing, race_plan, limited)
        if final_round is not None:
            finished_sizes.append(final_round.train_examples)
        if finished_sizes:
            self.finished_sizes = finished_sizes
        return final_round or last_round

    def _load_folds(self) -> dict[str, Task]:
        """Return the one task of the selection, or its folds; refuse data that models cannot be tuned and chosen by."""
        specs = self.study.list_task_specs()
        if len({TaskName(spec.name).whole for spec in specs}) != 1:
            raise InputError(
                "a selection is on one task", hint="give one --data; several tasks are a study"
            )
        folds = dict(load_tasks(self.study).by_name)
        task = next(iter(folds.values()))
        for note in task.notes:
            self.report_note(note)
        if len(folds) > 1:
            rows = sum(len(fold.documents("test")) for fold in folds.values())
            self.report_note(
                f"{rows} examples: cross-validation in {len(folds)} folds, every example is tested once"
                " (--folds changes that)."
            )
        if not task.documents("train") or not task.documents("validation"):
            raise InputError(
                f"{task.name} has too few examples to fine-tune and to choose by",
                hint="give more rows",
            )
        return folds

    def _report_baselines(self, folds: Mapping[str, Task]) -> None:
        """Tell what needs no language model: it takes seconds, and is what the candidates have to beat."""
        from potentia.tasks import compute_baselines

        if next(iter(folds.values())).has_written_answers:
            self._report_written_baselines(folds)
            return
        scores: dict[Baseline, float] = {}
        examples = sum(len(task.documents("test")) for task in folds.values())
        for task in folds.values():
            if not task.labels:
                return
            for baseline, values in compute_baselines(task).items():
                share = len(task.documents("test")) / examples
                scores[baseline] = scores.get(baseline, 0.0) + share * values["acc"]
        self.baselines = scores
        if scores:
            listed = ", ".join(
                f"{baseline.label} {accuracy:.3f}" for baseline, accuracy in scores.items()
            )
            self.report_note(
                f"Without a language model (accuracy): {listed}, on all {examples} tested examples."
                " A candidate should beat this."
            )

    def _report_written_baselines(self, folds: Mapping[str, Task]) -> None:
        """Tell what answers score that need no language model."""
        from potentia.tasks import compute_written_baselines

        examples = sum(len(task.documents("test")) for task in folds.values())
        scores: dict[Baseline, float] = {}
        metric = ""
        for task in folds.values():
            metric = task.metric
            share = len(task.documents("test")) / examples
            for baseline, values in compute_written_baselines(task).items():
                scores[baseline] = scores.get(baseline, 0.0) + share * values[metric]
        if scores:
            listed = ", ".join(
                f"{baseline.label} {value:.3f}" for baseline, value in scores.items()
            )
            self.report_note(
                f"Without a language model ({metric}): {listed}, on all {examples} tested examples."
                " A candidate should beat this."
            )

    def _find_price(self) -> Price | None:
        """Return the price of the machine that the candidates run on; None where none is known."""
        from potentia.engine import pick_device

        return find_price(self.study.price, str(pick_device(self.study.device)))

    # --- time --------------------------------------------------------------------------------------------------------

    def seconds_spent(self) -> float:
        """Return the seconds since the selection began."""
        return time.monotonic() - self.began

    def _seconds_left(self) -> float:
        return math.inf if self.budget is None else self.budget - self.seconds_spent()

    def _plan_everything(self, folds: Mapping[str, Task]) -> RacePlan:
        """Return what is done without a budget, and start the clock that estimates it."""
        first_fold = next(iter(folds.values()))
        examples = len(first_fold.documents("train"))
        rows = [row for row in self.study.rows() if not self.is_encoder(row.name)]
        flops_per_second = measure_flops_per_second(self.study.device)
        encoders = () if self.encoders is None else self.encoders.rows
        self.clock = RaceClock.start(rows, first_fold, flops_per_second, encoders)
        self.train_examples = examples
        self.test_examples = len(first_fold.documents("test"))
        sizes = choose_round_sizes(len(rows), examples)
        return RacePlan(tuple(folds), tuple(sizes), self.study.tuning, has_encoders=bool(encoders))

    def _limit_tested_examples(self, folds: Mapping[str, Task]) -> Mapping[str, Task]:
        """Test on fewer examples where the budget is too short for all of one fold."""
        seconds_left = DIRECT_SHARE * self._seconds_left()
        needed = self.clock.estimate_direct(1)
        examples = len(next(iter(folds.values())).documents("test"))
        if not needed > seconds_left or examples <= LEAST_TESTED:
            return folds
        limit = max(LEAST_TESTED, int(examples * max(seconds_left, 0.0) / needed))
        if limit >= examples:
            return folds
        limited_caps = self.study.caps.model_copy(update={"test": limit, "validation": limit})
        self.study = self.study.model_copy(update={"caps": limited_caps})
        self._add_note(f"The budget is enough to test on {limit} of {examples} examples.")
        limited_folds = dict(load_tasks(self.study).by_name)
        first_fold = next(iter(limited_folds.values()))
        self.clock.recount_tokens(first_fold)
        self.test_examples = len(first_fold.documents("test"))
        return limited_folds

    def _choose_direct_folds(self, fold_names: Sequence[str]) -> list[str]:
        """Return the folds that are scored before fine-tuning: all, or the first where time is short."""
        seconds_left = DIRECT_SHARE * self._seconds_left()
        if self.clock.estimate_direct(len(fold_names)) > seconds_left:
            return list(fold_names[:1])
        return list(fold_names)

    def _report_estimate(self, race_plan: RacePlan) -> None:
        """Tell how long all of it would take, and what the budget is likely to hold."""
        tuning_seconds = self.clock.estimate_plan(race_plan) * self._count_unfinished_share(
            race_plan
        )
        total = tuning_seconds + self.clock.estimate_direct(len(race_plan.folds))
        if not is_known(total):
            return
        finish = f"about {format_time(total)}"
        price = self._find_price()
        if price is not None:
            finish += f" (cost {price.format(total)})"
        if self.budget is None:
            self.report_note(f"Estimate: {finish} on this machine. --budget 30min would limit it.")
            return
        budget = format_time(self.budget)
        if total <= BUDGET_RESERVE * self._seconds_left():
            self.report_note(f"Estimate: {finish}, within the budget of {budget}.")
            return
        direct_seconds = self.clock.estimate_direct(1)
        seconds_left = BUDGET_RESERVE * self._seconds_left() - direct_seconds
        limited = self._find_plan_within(race_plan, seconds_left)
        limits = "no fine-tuning, only the scores before it"
        if limited is not None:
            limits = describe_limits(race_plan, limited)
        self.report_note(
            f"A first guess: everything takes {finish}; the budget of {budget} is enough for {limits}."
            " The pace is measured on the way."
        )

    def _count_unfinished_share(self, race_plan: RacePlan) -> float:
        """Return the share of the last round's cells that an earlier run of this selection did not finish."""
        store = find_store(self.study.store)
        if store is None:
            return 1.0
        store.close()
        models = [row.name for row in self.study.rows()]
        final_study = self._make_round_study(
            models, SelectionPart.FINAL, race_plan.folds, train=race_plan.sizes[-1]
        )
        cells: list[CellPlan] = []
        for row in plan_study(final_study).rows:
            cells.extend(row.cells)
        return sum(not cell.finished for cell in cells) / max(len(cells), 1)

    def _find_plan_within(self, race_plan: RacePlan, seconds: float) -> RacePlan | None:
        """Return the largest plan that takes no more than so many seconds; None where there is none."""
        if self.clock.estimate_plan(race_plan) <= seconds:
            return race_plan
        for smaller in list_smaller_plans(race_plan, len(self.study.rows())):
            if self.clock.estimate_plan(smaller) <= seconds:
                return smaller
        return None

    def _run_trial(self, race_plan: RacePlan, racing: Sequence[str]) -> FinishedRound | None:
        """Measure the pace by the smallest fine-tuning there is; None where that is not needed or does not fit."""
        seconds_left = self._seconds_left()
        has_time = self.clock.estimate_plan(race_plan) <= TRIAL_SHARE * seconds_left
        if self.budget is None or has_time or seconds_left <= 0:
            return None
        trial = plan_trial(race_plan)
        if self.clock.estimate_plan(trial) > seconds_left:
            return None
        trial_size = trial.sizes[0]
        self._tell_with_standing(
            f"A trial to measure the pace, the smallest fine-tuning there is: {_count_models(racing)},"
            f" {trial_size} training examples"
        )
        self.tuning = trial.tuning
        try:
            finished = self._run_round(racing, SelectionPart.TRIAL, trial.folds, train=trial_size)
        except BudgetOverError:
            return None
        self.finished_sizes = [trial_size]
        return finished

    def _limit_plan(self, race_plan: RacePlan, has_trial: bool) -> RacePlan | None:
        """Return what of a plan the time left holds at the measured pace, None for nothing; tell what is left out."""
        if self.budget is None:
            return race_plan
        seconds_left = BUDGET_RESERVE * self._seconds_left()
        limited = self._find_plan_within(race_plan, seconds_left)
        if limited == race_plan:
            return race_plan
        if (
            limited is not None
            and has_trial
            and not has_more_updates(limited, plan_trial(race_plan))
        ):
            limited = None  # the trial is the better answer
        budget = format_time(self.budget)
        if limited is not None:
            full_time = format_time(self.clock.estimate_plan(race_plan))
            limits = describe_limits(race_plan, limited)
            self.report_note(
                f"Everything would take about {full_time} more; the budget of {budget} is enough for {limits}."
            )
        elif has_trial:
            self.report_note(f"The budget of {budget} is enough for the trial alone.")
        else:
            self._add_note(
                f"The budget of {budget} is too short to fine-tune: these are scores before fine-tuning."
            )
        return limited

    def _describe_what_was_left_out(self, plan: RacePlan, answer: FinishedRound) -> None:
        """Say what the answer rests on, where that is less than the plan: a budget may hold more than was expected."""
        if self.budget is None or answer.train_examples == 0:
            return
        done = RacePlan(
            folds=plan.folds[: answer.folds],
            sizes=tuple(self.finished_sizes),
            tuning=answer.plan.study.tuning,
            has_encoders=plan.has_encoders,  # told where they are left out
        )
        if done != plan:
            limits = describe_limits(plan, done)
            self._add_note(f"The budget of {format_time(self.budget)} was enough for {limits}.")

    def _add_note(self, text: str) -> None:
        """Tell something now, and beside the answer."""
        self.report_note(text)
        self.notes.append(text)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _run_direct(self, model_names: Sequence[str], fold_names: Sequence[str]) -> FinishedRound:
        """Score the candidates as they are, whatever the budget is."""
        began = time.monotonic()
        finished = self._run_round(model_names, SelectionPart.DIRECT, fold_names)
        self.direct_seconds += time.monotonic() - began
        for model, cells in finished.cells.items():
            self.direct[model] = list(cells)
        return finished

    def _tell_with_standing(self, message: str) -> None:
        if self.standing:
            message = f"{message} · {self.standing}"
        self.report(message)

    def _run_early_round(
        self, round_number: int, racing: Sequence[str], sizes: Sequence[int], fold_name: str
    ) -> FinishedRound | None:
        """Tune the racing models on a share of the examples of one fold; None where the budget ended meanwhile."""
        round_size = sizes[round_number - 1]
        self._tell_with_standing(
            f"Round {round_number} of {len(sizes)}: {_count_models(racing)}, {round_size} training examples"
        )
        try:
            return self._run_round(
                racing,
                SelectionPart.ROUND,
                [fold_name],
                train=round_size,
                round_number=round_number,
            )
        except BudgetOverError:
            self.notes.append(f"The budget ended in round {round_number}.")
            return None

    def _choose_survivors(
        self,
        task: Task,
        round_number: int,
        rounds: int,
        finished: FinishedRound,
        sizes: Sequence[int],
    ) -> list[str]:
        """Return the models of the next round by validation; all of a few candidates go on."""
        documents = len(task.documents("validation"))
        values: dict[str, float] = {}
        errors: dict[str, float] = {}
        correct_answers: dict[str, str] = {}
        for model, cells in finished.cells.items():
            selection = cells[0].selection
            values[model] = _nan_if_none(selection.validation)
            errors[model] = _estimate_validation_error(cells[0], documents)
            correct_answers[model] = selection.validation_right
        survivors, win_chances = select_survivors(
            values,
            errors,
            correct_answers,
            higher_is_better=task.higher_is_better,
            looks=rounds - 1,
            seed=self.study.seed,
        )
        leader = max(win_chances, key=lambda model: win_chances[model])
        if len(win_chances) > 1:
            (name,) = short_names([leader])
            self.standing = f"{name} leads (P(best) {win_chances[leader]:.2f})"
        tuned_models = list(finished.cells)
        if len(tuned_models) <= FEW_CANDIDATES:
            return tuned_models
        seconds = sum(cells[0].seconds for cells in finished.cells.values()) / len(tuned_models)
        seconds_per_model = seconds * sizes[round_number] / sizes[round_number - 1]
        survivors = self._limit_to_budget(survivors, seconds_per_model)
        for model in tuned_models:
            if model not in survivors:
                self.dropped[model] = DroppedModel(
                    round=round_number, win_chance=win_chances[model], validation=values[model]
                )
        return [model_name for model_name in tuned_models if model_name in survivors]

    def _limit_to_budget(self, survivors: list[str], seconds_per_model: float) -> list[str]:
        """Return as many of the survivors as the seconds left are enough for, two at least."""
        seconds_left = self._seconds_left()
        if seconds_per_model * len(survivors) <= seconds_left or len(survivors) <= 2:
            return survivors
        limit = max(2, int(seconds_left / seconds_per_model))
        share = f"{min(limit, len(survivors))} of the {len(survivors)} models"
        self.notes.append(f"The budget was enough for {share} that might win.")
        return survivors[:limit]

    def _run_final_round(
        self, racing: Sequence[str], race_plan: RacePlan, limited: RacePlan
    ) -> FinishedRound | None:
        """Tune the finalists on all examples and test them; under a budget fold by fold, as long as time is left."""
        round_size = limited.sizes[-1]
        message = f"Final round: {_count_models(racing)}, {round_size} training examples"
        if len(limited.folds) > 1:
            message += f", {len(limited.folds)} folds"
        self._tell_with_standing(message)
        if self.budget is None:
            return self._run_round(racing, SelectionPart.FINAL, race_plan.folds, train=round_size)
        finished = None
        seconds_per_fold = 0.0
        for fold_count in range(1, len(race_plan.folds) + 1):
            fold_names = race_plan.folds[:fold_count]
            # The winner is fine-tuned once more at the end, on all rows; encoders are tested on the same folds.
            seconds_needed = seconds_per_fold * (1 + 1 / len(racing))
            if limited.has_encoders:
                seconds_needed += self.clock.estimate_encoders(round_size, fold_count)
            if self._seconds_left() <= seconds_needed:
                break
            fold_began = time.monotonic()
            try:
                if fold_count > len(next(iter(self.direct.values()), ())):
                    self._run_direct(list(self.direct), fold_names)
                finished = self._run_round(
                    racing,
                    SelectionPart.FINAL,
                    fold_names,
                    train=round_size,
                    planned_folds=len(limited.folds),
                )
            except BudgetOverError:
                if finished is None:
                    self._final_round_was_cut = True
                break
            seconds_per_fold = time.monotonic() - fold_began
        return finished

    def _settle_answer(self, answer: FinishedRound, race_plan: RacePlan) -> None:
        """Take a round for the answer; reports on the store show the study that was opened last."""
        self.final_round = answer
        register_study(answer.plan)
        if self._final_round_was_cut:
            self._add_note(describe_cut_final_round(answer.plan.study.name))
        self._describe_what_was_left_out(race_plan, answer)
        task = next(iter(answer.plan.tasks.by_name.values()))
        if task.labels and 0 < answer.train_examples < race_plan.sizes[-1]:
            self._add_note(
                f"Classifiers without fine-tuning learned from all {race_plan.sizes[-1]} training examples."
            )
        if answer.train_examples == 0 and not self.notes:
            self.notes.append("The budget ended before all candidates were fine-tuned.")

    def _make_round_study(
        self,
        models: Sequence[str],
        part: SelectionPart,
        fold_names: Sequence[str],
        *,
        train: int = 0,
        round_number: int | None = None,
    ) -> Study:
        tasks: list[TaskSpec] = [
            task_spec for task_spec in self.study.list_task_specs() if task_spec.name in fold_names
        ]
        round_caps = self.study.caps
        if 0 < train < self.train_examples:  # else each fold uses all of its own, one more or less
            round_caps = round_caps.model_copy(update={"train": train})
        return self.study.model_copy(
            update={
                "name": SelectionStudy(self.study.name, part, round_number).name,
                "models": tuple(row for row in self.study.rows() if row.name in models),
                "tasks": tuple(tasks),
                "protocols": (DIRECT if part is SelectionPart.DIRECT else TRAIN_BEFORE_TEST,),
                "caps": round_caps,
                "tuning": self.tuning,
                # under a budget any round may turn out to be the answer
                "keep_adapters": part is SelectionPart.FINAL or self.budget is not None,
            }
        )

    def _run_round(
        self,
        models: Sequence[str],
        part: SelectionPart,
        fold_names: Sequence[str],
        *,
        train: int = 0,
        round_number: int | None = None,
        planned_folds: int = 0,
    ) -> FinishedRound:
        """Run a round and return its cells by model, in the order of the models; failures go to the problems.

        Progress counts to the ``planned_folds`` where these are more.
        """
        study = self._make_round_study(
            models, part, fold_names, train=train, round_number=round_number
        )
        may_run_late = part is SelectionPart.DIRECT  # there is always an answer
        study_plan = replace(
            plan_study(study), later_cells=len(models) * max(0, planned_folds - len(fold_names))
        )
        pending = {row.model.name: len(row.pending) for row in study_plan.rows}
        workers = self.workers or choose_worker_count(study_plan)
        result = run_study(
            study_plan,
            workers=workers,
            session=self.session,
            watch=self.watch,
            stop=lambda: not may_run_late and self._seconds_left() <= 0,
        )
        if result.stop_requested:
            raise KeyboardInterrupt
        if result.interrupted:
            if self._seconds_left() <= 0:
                raise BudgetOverError("the budget is spent")
            raise KeyboardInterrupt
        for failure in result.failures:
            self.problems[failure.model] = failure.reason
            self.hints[failure.model] = failure.hint or ""
        self._learn_pace(study_plan, pending, train)
        finished = self._read_round(study_plan, models, len(fold_names))
        if not finished:
            contestant = "finalist" if part is SelectionPart.FINAL else "candidate"
            treatment = "scored" if part is SelectionPart.DIRECT else "tuned"
            message = f"no {contestant} could be {treatment}"
            if not self.problems:
                raise PotentiaError(message)
            model, problem = next(iter(self.problems.items()))
            raise NoCandidateError(
                f"{message}: {problem}", self.problems, hint=self.hints.get(model)
            )
        return FinishedRound(study_plan, train, finished, len(fold_names))

    def _read_round(
        self, study_plan: StudyPlan, models: Sequence[str], folds: int
    ) -> dict[str, list[CellRecord]]:
        """Return the cells of the models that have all folds of a round."""
        cells_by_model: dict[str, list[CellRecord]] = {}
        with open_store(study_plan.study.store, readonly=True) as store:
            for cell in store.cells.read(study=study_plan.key):
                cells_by_model.setdefault(cell.model, []).append(cell)
        finished = {}
        for model in models:
            cells = sorted(cells_by_model.get(model, ()), key=lambda cell: cell.task)
            if len(cells) == folds:
                finished[model] = cells
        return finished

    def _learn_pace(self, study_plan: StudyPlan, pending: Mapping[str, int], train: int) -> None:
        """Let the clock know how long the models of a round took, by the last entries of its log."""
        seconds_by_model: dict[str, Mapping[str, float]] = {}
        with open_store(study_plan.study.store, readonly=True) as store:
            for event in read_events(store, study_plan.key):
                if event.kind == "row":
                    seconds_by_model[str(event.payload["row"])] = event.payload["tally"]
        for model, seconds_by_kind in seconds_by_model.items():
            folds = pending.get(model, 0)
            if folds and train:
                self.clock.learn_tuning(
                    model, seconds_by_kind, study_plan.study.tuning, train, folds
                )
            elif folds:
                self.clock.learn_scoring(model, seconds_by_kind, folds)

    # --- beside the race ---------------------------------------------------------------------------------------------

    def _separate_encoders(self, task: Task) -> None:
        """Take encoders out of the race of causal models: they have a head of their own, and all reach the end."""
        from potentia.run.encoder_entrants import EncoderEntrants, separate_encoders

        self.candidates = self.study.rows()
        causal_study, encoders = separate_encoders(self.study)
        if not encoders:
            return
        if causal_study.models:
            self.study = causal_study
        elif not task.labels:
            raise InputError(
                "all candidates are encoders, which classify, and this data has no labels",
                hint="give causal models, such as HuggingFaceTB/SmolLM2-135M",
            )
        if not task.labels:
            for row in encoders:
                self.problems[row.name] = "an encoder classifies, and this data has no labels"
            return
        self.encoders = EncoderEntrants(
            self.study,
            encoders,
            stop=lambda: self._seconds_left() <= 0,
            report=self.report_note,
        )

    def _test_cheap_classifiers(self, folds: Mapping[str, Task]) -> None:
        """Test classifiers on words and on frozen embeddings: cheap, and often hard to beat."""
        from potentia.run.encoder_entrants import CheapClassifiers

        task = next(iter(folds.values()))
        if not task.labels:
            return
        self.cheap_classifiers = CheapClassifiers(self.study, self.candidates, task.fingerprint)
        self._register_final_round()  # the study of these was opened just now
        self.cheap_classifiers.test_words(folds)
        self._register_final_round()
        if sum(len(fold.documents("test")) for fold in folds.values()) > MOST_EMBEDDED:
            return
        has_time = self._seconds_left() >= self.direct_seconds  # about as long as these took
        if not has_time and not self.cheap_classifiers.has_embedding_results(folds):
            self._add_note("The budget left no time for classifiers on frozen embeddings.")
            return
        accuracies = self.cheap_classifiers.measure_embedding_accuracies(
            folds, only_stored=not has_time
        )
        self._register_final_round()
        for model_name, problem in self.cheap_classifiers.problems.items():
            (name,) = short_names([model_name])
            self.report_note(f"Frozen embeddings of {name} were not tested: {problem}")
        if accuracies:
            names = short_names(list(accuracies))
            listed = ", ".join(
                f"{name} {accuracy:.3f}"
                for name, accuracy in zip(names, accuracies.values(), strict=True)
            )
            self.report_note(f"Frozen embeddings + logistic regression (accuracy): {listed}.")

    def measure_words_trust(self, folds: Mapping[str, Task]) -> Trust | None:
        """Return how far the probabilities of the classifier on words can be trusted, by the rows of these folds."""
        from potentia.run.encoders import classify_words, grade_logprobs

        answers: list[TestedAnswer] = []
        for fold, task in enumerate(folds.values()):
            outcomes = grade_logprobs(task, classify_words(task))
            answers += answers_from_items(outcomes, "acc", fold)
        return measure_trust(answers)

    def _register_final_round(self) -> None:
        """Open the study of the answer once more: reports show the study that was opened last."""
        if self.final_round is not None:
            register_study(self.final_round.plan)

    def _find_tested_folds(self, answer: FinishedRound) -> dict[str, Task]:
        """Return the folds of a round, with the training examples that its models were fine-tuned on."""
        folds = answer.plan.tasks.by_name
        return {cell.task: folds[cell.task] for cell in self._tested_cells()}

    def _run_encoders(self, answer: FinishedRound, race_plan: RacePlan) -> None:
        """Fine-tune the encoders on the folds of the last round, and add their results to it."""
        if self.encoders is None or self.final_round is None:
            return
        tested = self._find_tested_folds(answer)
        seconds_needed = math.inf
        if answer.train_examples > 0:
            seconds_needed = self.clock.estimate_encoders(answer.train_examples, len(tested))
        if self.budget is not None and seconds_needed > self._seconds_left():
            self._add_note("The budget left no time for the encoders.")
            return
        encoder_names = ", ".join(short_names([row.name for row in self.encoders.rows]))
        self._tell_with_standing(f"Encoders with a classification head: {encoder_names}")
        try:
            self.encoders.run(self.last, tested)
        except KeyboardInterrupt:
            if self._seconds_left() > 0:
                raise
            self.notes.append("The budget ended before the encoders were fine-tuned.")
        self.problems |= self.encoders.problems
        cells: dict[str, list[CellRecord]] = {}
        with open_store(self.study.store, readonly=True) as store:
            for row in self.encoders.rows:
                stored = store.cells.read(study=self.last, model=row.name)
                if len(stored) == len(tested):
                    cells[row.name] = sorted(stored, key=lambda cell: cell.task)
        self.final_round = replace(self.final_round, cells={**self.final_round.cells, **cells})
        tuning = answer.plan.study.tuning
        if cells and tuning != race_plan.tuning:
            encoder_updates = max(
                cell.selection.updates for fold_cells in cells.values() for cell in fold_cells
            )
            updates = tuning.count_updates(answer.train_examples)
            self._add_note(describe_unequal_training(encoder_updates, updates))

    def _run_encoders_alone(self, folds: Mapping[str, Task], race_plan: RacePlan) -> ModelChoice:
        """Fine-tune encoders where no other model is a candidate: fold by fold, as long as the budget has time."""
        total = self.clock.estimate_plan(race_plan)
        self._report_encoder_estimate(total)
        if self.budget is None:
            self._test_cheap_classifiers(folds)
        names = [row.name for row in self.study.rows()]
        self.report(f"Encoders with a classification head: {', '.join(short_names(names))}")
        seconds_per_fold = 0.0
        fold_counts = range(1, len(folds) + 1) if self.budget is not None else (len(folds),)
        for fold_count in fold_counts:
            seconds_needed = seconds_per_fold * (1 + 1 / len(names))  # the best is fine-tuned again
            if self._seconds_left() <= seconds_needed:
                break
            fold_began = time.monotonic()
            finished = self._run_encoder_folds(
                names, dict(list(folds.items())[:fold_count]), race_plan
            )
            if finished is None:
                break
            self.final_round = finished
            seconds_per_fold = time.monotonic() - fold_began
        if self.final_round is None:
            raise self._no_encoder_error(total / len(folds))
        self.finished_sizes = [race_plan.sizes[-1]]
        self._settle_answer(self.final_round, race_plan)
        if self.budget is not None:
            self._test_cheap_classifiers(
                {cell.task: folds[cell.task] for cell in self._tested_cells()}
            )
        return self._make_choice(next(iter(folds.values())))

    def _report_encoder_estimate(self, seconds: float) -> None:
        """Tell how long the encoders would take on all folds."""
        if not is_known(seconds):
            return
        finish = f"about {format_time(seconds)}"
        price = self._find_price()
        if price is not None:
            finish += f" (cost {price.format(seconds)})"
        limit = "--budget 30min would limit it."
        if self.budget is not None:
            limit = f"The budget is {format_time(self.budget)}: as many folds as it holds."
        self.report_note(f"Estimate: {finish} on this machine. {limit}")

    def _run_encoder_folds(
        self, names: Sequence[str], folds: Mapping[str, Task], race_plan: RacePlan
    ) -> FinishedRound | None:
        """Run the encoders on these folds as a round; None where the budget ended meanwhile, or all failed."""
        assert self.encoders is not None
        study = self._make_round_study(
            names, SelectionPart.FINAL, list(folds), train=race_plan.sizes[-1]
        )
        # No rows: a plan has the keys of causal models, and would release the encoders' results.
        study_plan = replace(plan_study(study), rows=(), outdated=())
        register_study(study_plan)
        try:
            self.encoders.run(study_plan.key, folds, len(race_plan.folds))
        except KeyboardInterrupt:
            if self._seconds_left() > 0:
                raise
            return None
        self.problems |= self.encoders.problems
        cells = self._read_round(study_plan, names, len(folds))
        if not cells:
            return None
        return FinishedRound(study_plan, race_plan.sizes[-1], cells, len(folds))

    def _no_encoder_error(self, seconds_per_fold: float) -> PotentiaError:
        """Say why no encoder reached the end."""
        if self.problems:
            model, problem = next(iter(self.problems.items()))
            message = f"no encoder could be fine-tuned: {problem}"
            return NoCandidateError(message, self.problems, hint=f"see {model}")
        needed = format_time(seconds_per_fold)
        return PotentiaError(
            f"the budget of {format_time(self.budget or 0.0)} ended before one fold was fine-tuned",
            hint=f"that takes about {needed} by the first guess; the same command goes on with a larger --budget",
        )

    def _tested_cells(self) -> Sequence[CellRecord]:
        """Return the cells of a finalist: one for each fold that the answer is of."""
        assert self.final_round is not None
        return next(iter(self.final_round.cells.values()))

    # --- the answer --------------------------------------------------------------------------------------------------

    def is_encoder(self, model_name: str) -> bool:
        """Whether a candidate is an encoder with a classification head."""
        return self.encoders is not None and model_name in [row.name for row in self.encoders.rows]

    def _refit(self, choice: ModelChoice) -> None:
        """Fine-tune the best candidate on all rows, where it was tested in folds; say where that is not so."""
        assert self.final_round is not None
        model_name = choice.best
        train_examples = self.final_round.train_examples
        (task, *_) = self.study.tasks
        if task.folds is None or train_examples == 0:
            return
        cells = self.final_round.cells[model_name]
        if self.is_encoder(model_name):
            refitted = self._refit_encoder(model_name, cells)
        else:
            tuning = self.final_round.plan.study.tuning
            settings = RefitSettings.from_folds(cells, tuning, train_examples)
            if settings is None:
                return
            refitted = self._run_refit(model_name, settings, tuning)
        if refitted is None:
            if not choice.uses_baseline:  # which is the model to use then
                self._add_note(
                    f"The model to use is that of the first fold, fine-tuned on {train_examples} examples."
                )
            return
        self.refitted = replace(
            refitted, cell=put_fold_scores(refitted.cell, cells), folds=len(cells)
        )

    def _refit_encoder(self, model: str, cells: Sequence[CellRecord]) -> RefittedModel | None:
        """Fine-tune an encoder on all rows as the folds chose; None where the budget does not allow it."""
        assert self.encoders is not None
        study = make_refit_study(self.study, model, self.study.tuning, "plain")
        (task,) = load_tasks(study).by_name.values()
        seconds_needed = self.clock.estimate_encoders(len(task.documents("train")), 1, rates=1)
        if seconds_needed > self._seconds_left():
            return None
        self.report(f"Fine-tuning {model} on all rows, for use")
        try:
            cell = self.encoders.refit(model, task, cells)
        except KeyboardInterrupt:
            if self._seconds_left() > 0:
                raise
            return None
        return RefittedModel(self.study.store, cell)

    def _run_refit(
        self, model_name: str, settings: RefitSettings, tuning: Tuning
    ) -> RefittedModel | None:
        """Fine-tune a candidate on all rows with these settings; None where the budget does not allow it."""
        refit_tuning = settings.make_tuning(tuning)
        study = make_refit_study(self.study, model_name, refit_tuning, settings.style)
        study_plan = plan_study(study)
        (task,) = study_plan.tasks.by_name.values()
        examples = len(task.documents("train"))
        if self.clock.estimate_refit(model_name, refit_tuning, examples) > self._seconds_left():
            return None
        self.report(f"Fine-tuning {Path(model_name).name} on all rows, for use")
        result = run_study(
            study_plan,
            session=self.session,
            watch=self.watch,
            stop=lambda: self._seconds_left() <= 0,
        )
        if result.stop_requested:
            raise KeyboardInterrupt
        with open_store(study.store, readonly=True) as store:
            cells = store.cells.read(study=study_plan.key)
        return RefittedModel(study.store, cells[0]) if cells else None

    def read_best_cell(self, store: Store, model_name: str) -> tuple[CellRecord, int]:
        """Return a finalist's result, and how many folds its scores are over: 0 for the split of one result.

        It is the first fold's; where tuning helped most folds, that of the first that it helped. Where it helped none,
        every fold has tested the same untuned model.
        """
        cells = [cell for cell in store.cells.read(study=self.last) if cell.model == model_name]
        cells.sort(key=lambda cell: cell.task)
        tuned = [cell for cell in cells if not cell.selection.is_untuned]
        untuned = [cell for cell in cells if cell.selection.is_untuned]
        if len(tuned) > len(untuned):
            return tuned[0], 0
        if not tuned and len(cells) > 1:
            return put_fold_scores(untuned[0], cells), len(cells)
        return untuned[0], 0

    def _make_choice(self, task: Task) -> ModelChoice:
        from potentia.evidence import read

        assert self.final_round is not None
        # The scoreboard is what every other command says about this store.
        evidence = read(self.study.store, study=self.last)
        scoreboard = build_scoreboard(evidence)
        ranking = scoreboard.ranking
        win_chances = dict(zip(ranking.models, ranking.p_first.tolist(), strict=True))
        if len(win_chances) == 1:
            # The only one of the candidates that did not fail has no rival: it is not the best of anything.
            chance = 1.0 if self.dropped else math.nan
            win_chances = dict.fromkeys(win_chances, chance)
        is_tuned = self.final_round.train_examples > 0
        final_cells = self.final_round.cells if is_tuned else {}
        standings = []
        for row in self.candidates:
            standings.append(
                self._make_standing(
                    row.name,
                    find_parameters(row),
                    self.direct.get(row.name, ()),
                    final_cells.get(row.name, ()),
                    win_chance=win_chances.get(row.name, math.nan),
                )
            )
        standings.sort(key=_standing_order)
        classifications = find_classification(evidence, best_model=ranking.first)
        parameters = {standing.model: standing.parameters for standing in standings}
        classification = classifications[0] if classifications else None
        written = find_written_answers(evidence, best_model=ranking.first)
        selection = find_selection(
            evidence, ranking.first, classification=classification, seed=self.study.seed
        )
        uses_classifier = selection is not None and bool(selection.classifier)
        return ModelChoice(
            task=TaskName(task.name).whole,
            metric=task.metric,
            ranking=ranking,
            missing=scoreboard.missing,
            p_dropped_best=min(sum(model.win_chance for model in self.dropped.values()), 1.0),
            seconds=self.seconds_spent(),
            train_examples=self.final_round.train_examples,
            test_examples=standings[0].examples,
            standings=tuple(standings),
            notes=tuple(self.notes),
            classification=classification,
            written=written[0] if written else None,
            curve=None if selection is None else selection.curve,
            smaller=find_smaller_model(ranking, parameters),
            trust=None if selection is None else selection.candidate_trust,
            classifier_trust=selection.trust if selection and uses_classifier else None,
            words_trust=None if selection is None else selection.words_trust,
            folds=self.final_round.folds,
            no_trust="" if selection is None else selection.no_trust,
            price=self._find_price(),
            seeds=scoreboard.seeds,
        )

    def _make_standing(
        self,
        model_name: str,
        parameters: float,
        direct_cells: Sequence[CellRecord],
        final_cells: Sequence[CellRecord],
        *,
        win_chance: float,
    ) -> CandidateStanding:
        dropped = self.dropped.get(model_name)
        direct = _join_scores(direct_cells)
        tuned = _join_scores(final_cells)
        seconds = sum(cell.seconds for cell in direct_cells)
        examples = sum(cell.score.n for cell in direct_cells)
        return CandidateStanding(
            model=model_name,
            direct=direct,
            tuned=tuned,
            p_best=win_chance,
            parameters=parameters,
            examples_per_second=self._find_speed(model_name, examples, seconds),
            dropped_in_round=None if dropped is None else dropped.round,
            problem="" if final_cells else self.problems.get(model_name, ""),
        )

    def _find_speed(self, model_name: str, examples: int, seconds: float) -> float:
        """Return the examples a second that a model predicts here, as its direct scores or its test took."""
        if self.encoders is not None and model_name in self.encoders.examples_per_second:
            return self.encoders.examples_per_second[model_name]
        measured_speed = self.clock.find_scoring_speed(model_name, self.test_examples)
        if math.isfinite(measured_speed):
            return measured_speed
        return examples / seconds if seconds > 0 else math.nan


def put_sizes(study: Study) -> Study:
    """Return a study that says how large its models are, for reports: few of a company's models are known by name."""
    models = []
    for model in study.models:
        parameters = math.nan if model.checkpoints else find_parameters(model)
        if model.parameters is None and math.isfinite(parameters):
            model = model.model_copy(update={"parameters": parameters})
        models.append(model)
    return study.model_copy(update={"models": tuple(models)})


def describe_unequal_training(encoder_updates: int, updates: int) -> str:
    """Say that a budget shortened the fine-tuning of the other models, and not that of the encoders."""
    return (
        f"Encoders made {encoder_updates} training steps at each learning rate, the other models {updates} at one:"
        " with a larger --budget these may catch up."
    )


def describe_cut_final_round(answer_study: str) -> str:
    """Say that the budget ended before all models ended the final round, and which round the answer is of."""
    study = SelectionStudy.parse(answer_study)
    round_words = {
        SelectionPart.TRIAL: "the trial",
        SelectionPart.DIRECT: "the scores before fine-tuning",
    }
    answer = "an earlier round"
    if study is not None and study.part in round_words:
        answer = round_words[study.part]
    elif study is not None and study.round_number is not None:
        answer = f"round {study.round_number}"
    return f"The final round did not end within the budget; the answer is that of {answer}."


def choose_round_sizes(candidates: int, examples: int) -> list[int]:
    """Training examples of each round: a quarter first for a few candidates, a ninth and a third for many."""
    if examples <= MIN_TRAIN_EXAMPLES:
        return [examples]
    shares = [1 / 4] if candidates <= 6 else [1 / 9, 1 / 3]
    early_sizes = sorted({max(MIN_TRAIN_EXAMPLES, int(examples * share)) for share in shares})
    smaller_sizes = [round_size for round_size in early_sizes if 2 * round_size <= examples]
    return [*smaller_sizes, examples]


def _standing_order(standing: CandidateStanding) -> tuple[float, bool, float, bool]:
    """Sort by the chance to be the best, then by score; models without one come last, those that failed after all."""
    chance = 0.0 if math.isnan(standing.p_best) else standing.p_best
    negative_score = 0.0 if standing.tuned is None else -standing.tuned.value
    return -chance, bool(standing.problem), negative_score, standing.dropped_in_round is None


def _join_scores(cells: Sequence[CellRecord]) -> Score | None:
    """Return the score over all folds; None where there is none."""
    return pool_scores([cell.score for cell in cells]) if cells else None


def _count_models(names: Sequence[str]) -> str:
    return "1 model" if len(names) == 1 else f"{len(names)} models"


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value


def _estimate_validation_error(cell: CellRecord, examples: int) -> float:
    """Return the standard error of the validation value of a cell's chosen state.

    Where none was stored, the error of a share is returned, which is an upper bound for other metrics of the unit
    interval.
    """
    stored_error = _nan_if_none(cell.selection.validation_stderr)
    if stored_error > 0:
        return stored_error
    validation_score = _nan_if_none(cell.selection.validation)
    share = min(max(validation_score, 0.0), 1.0) if math.isfinite(validation_score) else 0.5
    return math.sqrt((share * (1 - share) + 1.0 / examples) / examples)
