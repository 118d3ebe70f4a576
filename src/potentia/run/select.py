"""Choosing a model for one's own data: several small studies in one store; a second run reuses what is stored.

All candidates are tuned identically, the weaker ones are dropped early, and the rest are tested.

1. Every model is scored before fine-tuning.
2. All are tuned on a quarter of the training examples (of many candidates: a ninth, then a third). Validation decides
   who stays. These results are also one end of the learning curve, so two candidates have this round too.
3. The finalists are tuned on all training examples and tested; in folds, every example is tested once.

A budget is of wall time, and everything counts. What it cannot hold is told before the start: fewer folds, then fewer
training examples. Where time runs out on the way, the answer is that of the last round which all racing models ended.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from potentia.analysis.benchmark import find_classification
from potentia.analysis.planning import (
    CandidateStanding,
    ModelChoice,
    find_selection,
    find_smaller_model,
)
from potentia.analysis.rankings import build_scoreboard
from potentia.analysis.stats import select_survivors
from potentia.errors import InputError, PotentiaError
from potentia.run.cost import count_work, find_parameters, format_time
from potentia.run.execute import choose_worker_count, run_study
from potentia.run.executors.local import ModelSession
from potentia.run.plan import StudyPlan, load_tasks, plan_study
from potentia.run.progress import open_store
from potentia.study import Caps, ModelSpec, Study, TaskSpec, find_price
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol, TaskName
from potentia.values.scores import Score

if TYPE_CHECKING:
    from potentia.run.encoder_entrants import EncoderEntrants
    from potentia.store import CellRecord, Store
    from potentia.tasks import Task

MOST_EMBEDDED = 5_000  # examples that embeddings are tested on
MIN_TRAIN_EXAMPLES = 32  # of the first round
FEW_CANDIDATES = 2  # all of whom reach the end
BUDGET_RESERVE = 0.9  # of the budget is planned for: estimates are rough
ROW_SECONDS = 4.0  # that a model costs beside its FLOPs: loading, checks
LEAST_SHARE = 0.05  # of the fine-tuning that a small budget leaves
LEAST_UPDATES = 10
UPDATE_SECONDS = 0.01  # that an update costs however small the model is
MATRIX_PRODUCTS = 60  # that the speed of the machine is measured by
COMPUTE_SHARE = 0.35  # of the machine's matrix products that fine-tuning reaches

Report = Callable[[str], Any]  # receives a line for the user
Watch = Callable[[StudyPlan], Any]  # gives a context manager that shows progress


@dataclass(frozen=True)
class DroppedModel:
    """When a model was dropped, and how good it looked by validation at that time."""

    round: int
    win_chance: float
    validation: float


@dataclass(frozen=True)
class RacePlan:
    """The folds of the last round, and the training examples of each round."""

    folds: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class FinishedRound:
    """A round that all racing models ended."""

    study: str  # the key of its study
    train_examples: int
    cells: Mapping[str, Sequence[CellRecord]]  # by model, a cell for each fold
    folds: int


class BudgetOverError(PotentiaError):
    """The budget ended before a round did."""


@dataclass
class Race:
    """The state of a selection while it runs."""

    study: Study
    budget: float | None = None  # seconds, of everything since `began`
    tell: Report = lambda _: None  # receives what is going on
    note: Report = lambda _: None  # receives what users should know
    watch: Watch | None = None
    workers: int = 0  # at once; 0 fits them to the GPUs
    began: float = field(default_factory=time.monotonic)
    session: ModelSession | None = None
    problems: dict[str, str] = field(init=False, default_factory=dict)  # by model
    dropped: dict[str, DroppedModel] = field(init=False, default_factory=dict)  # by model
    notes: list[str] = field(init=False, default_factory=list)
    standing: str = field(init=False, default="")  # who leads
    final_round: FinishedRound | None = field(init=False, default=None)
    flops_per_second: float = field(init=False, default=math.nan)
    tuning_share: float = field(init=False, default=1.0)  # of the recipe's updates
    candidates: tuple[ModelSpec, ...] = field(init=False, default=())  # encoders among them
    encoders: EncoderEntrants | None = field(init=False, default=None)

    def run(self) -> ModelChoice:
        """Run the rounds and return the answer; the data is read once, and a model stays loaded if memory allows."""
        from potentia.tasks import reading_data_once

        with reading_data_once(), ModelSession() as self.session:
            return self._run_rounds()

    @property
    def last(self) -> str:
        """The key of the study whose results are the answer."""
        assert self.final_round is not None
        return self.final_round.study

    def _run_rounds(self) -> ModelChoice:
        folds = self._load_folds()
        task = next(iter(folds.values()))
        self._tell_baselines(folds)
        self._separate_encoders(task)
        names = [row.name for row in self.study.rows()]
        plan = self._fit_into_budget(folds)
        fold_names = list(plan.folds)
        self.tell(f"scores of {len(names)} models before fine-tuning")
        direct = self._run_direct(names, fold_names)
        self._test_embeddings({name: folds[name] for name in fold_names})
        racing = [name for name in names if name not in self.problems]
        sizes = plan.sizes
        early: list[FinishedRound] = []
        for number in range(1, len(sizes)):
            finished = self._run_early_round(number, racing, sizes, fold_names[0])
            if finished is None:
                break
            early.append(finished)
            racing = self._choose_survivors(task, number, len(sizes), finished, sizes)
        self._run_final_round(racing, fold_names, sizes[-1], early)
        self._run_encoders(folds)
        return self._make_choice(task, direct)

    def _load_folds(self) -> dict[str, Task]:
        """Return the one task of the selection, or its folds; refuse data that models cannot be tuned and chosen by."""
        specs = self.study.benchmarks()
        if len({TaskName(spec.name).whole for spec in specs}) != 1:
            raise InputError(
                "a selection is on one task", hint="give one --data; several tasks are a study"
            )
        folds = dict(load_tasks(self.study).by_name)
        task = next(iter(folds.values()))
        for note in task.notes:
            self.note(note)
        if len(folds) > 1:
            rows = sum(len(fold.documents("test")) for fold in folds.values())
            self.note(
                f"{rows} examples: cross-validation in {len(folds)} folds, every example is tested once"
                " (--folds changes that)."
            )
        if not task.documents("train") or not task.documents("validation"):
            raise InputError(
                f"{task.name} has too few examples to fine-tune and to choose by",
                hint="give more rows",
            )
        return folds

    def _tell_baselines(self, folds: Mapping[str, Task]) -> None:
        """Tell what needs no language model: it takes seconds, and is what the candidates have to beat."""
        from potentia.tasks import compute_baselines

        scores: dict[str, float] = {}
        examples = sum(len(task.documents("test")) for task in folds.values())
        for task in folds.values():
            if not task.labels:
                return
            for name, values in compute_baselines(task).items():
                share = len(task.documents("test")) / examples
                scores[name] = scores.get(name, 0.0) + share * values["acc"]
        if scores:
            listed = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
            self.note(f"Without a language model (accuracy): {listed}. That is to be beaten.")

    # --- time --------------------------------------------------------------------------------------------------------

    def seconds_spent(self) -> float:
        """Return the seconds since the selection began."""
        return time.monotonic() - self.began

    def _seconds_left(self) -> float:
        return math.inf if self.budget is None else self.budget - self.seconds_spent()

    def _fit_into_budget(self, folds: Mapping[str, Task]) -> RacePlan:
        """Tell how long it will take; return what the budget holds: folds, rounds, training examples.

        Folds go first, then the early rounds, then training examples. Where there are few of these, the recipe makes as
        many updates of them as of more; then the fine-tuning is shortened, for all candidates alike.
        """
        fold_names = tuple(folds)
        examples = len(folds[fold_names[0]].documents("train"))
        candidates = len(self.study.rows())
        plan = RacePlan(fold_names, tuple(choose_round_sizes(candidates, examples)))
        self.flops_per_second = measure_flops_per_second(self.study.device)
        total = self._estimate_plan(plan)
        if not math.isfinite(total):
            return plan
        finish = f"about {format_time(total)}"
        price = find_price(self.study.price, self.study.device)
        if price is not None:
            finish += f" ({price.format(total)})"
        if self.budget is None:
            self.note(f"Estimate: {finish} on this machine. --budget 30min would limit it.")
            return plan
        left = BUDGET_RESERVE * self._seconds_left()
        if total <= left:
            self.note(f"Estimate: {finish}, within the budget of {format_time(self.budget)}.")
            return plan
        limited = self._shrink_plan(plan, candidates, left)
        self._limit_note(finish, self._describe_limits(plan, limited))
        return limited

    def _shrink_plan(self, plan: RacePlan, candidates: int, left: float) -> RacePlan:
        """Return the largest plan that so many seconds hold, or the smallest there is."""
        for count in range(len(plan.folds) - 1, 0, -1):
            fewer_folds = replace(plan, folds=plan.folds[:count])
            if self._estimate_plan(fewer_folds) <= left:
                return fewer_folds
        smaller = replace(plan, folds=plan.folds[:1])
        if (
            candidates <= FEW_CANDIDATES
        ):  # nobody is dropped: the early round is for the curve alone
            smaller = replace(smaller, sizes=plan.sizes[-1:])
        seconds = self._estimate_plan(smaller)
        if seconds <= left:
            return smaller
        share = max(left / seconds, LEAST_SHARE)
        fewer = max(MIN_TRAIN_EXAMPLES, int(plan.sizes[-1] * share))
        fewer_examples = replace(smaller, sizes=tuple(min(size, fewer) for size in smaller.sizes))
        if self._estimate_plan(fewer_examples) <= left:
            return replace(fewer_examples, sizes=tuple(sorted(set(fewer_examples.sizes))))
        self._shorten_tuning(share)
        return smaller

    def _shorten_tuning(self, share: float) -> None:
        """Give every candidate the same shorter fine-tuning."""
        tuning = self.study.tuning
        shorter = tuning.model_copy(
            update={
                "epochs": max(1, round(tuning.epochs * share)),
                "least_updates": max(LEAST_UPDATES, round(tuning.least_updates * share)),
            }
        )
        self.tuning_share = share
        self.study = self.study.model_copy(update={"tuning": shorter})

    def _describe_limits(self, plan: RacePlan, limited: RacePlan) -> str:
        """Say what a budget holds of a plan."""
        limits = []
        if limited.folds != plan.folds:
            limits.append(f"{len(limited.folds)} of {len(plan.folds)} folds")
        if len(limited.sizes) < len(plan.sizes):
            limits.append("no early round, so no outlook on more labels")
        if limited.sizes[-1] < plan.sizes[-1]:
            limits.append(f"{limited.sizes[-1]} of {plan.sizes[-1]} training examples")
        if self.tuning_share < 1.0:
            limits.append(f"{self.tuning_share:.0%} of the fine-tuning")
        return ", ".join(limits) or "less"

    def _estimate_plan(self, plan: RacePlan) -> float:
        """Return the seconds of all rounds: early ones on one fold, the last on all, with fewer candidates."""
        candidates = len(self.study.rows())
        early = sum(self._estimate_fold(plan.folds[0], size) for size in plan.sizes[:-1])
        share = _expected_finalists(candidates) / candidates
        return early + share * len(plan.folds) * self._estimate_fold(plan.folds[0], plan.sizes[-1])

    def _limit_note(self, finish: str, held: str) -> None:
        assert self.budget is not None
        text = (
            f"The budget of {format_time(self.budget)} holds {held}; all of it would take {finish}."
        )
        self.note(text)
        self.notes.append(text)

    def _estimate_fold(self, fold_name: str, train_examples: int) -> float:
        """Return the seconds that all candidates take on one fold with so many training examples, by their FLOPs."""
        caps = self.study.caps.model_copy(update={"train": train_examples})
        study = self._make_round_study(
            [row.name for row in self.study.rows()],
            "estimate",
            [fold_name],
            protocol=TRAIN_BEFORE_TEST,
            caps=caps,
        )
        work = [cell for cell in count_work(plan_study(study)) if not cell.finished]
        rows = {cell.model for cell in work}
        updates = sum(cell.lanes for cell in work) * study.tuning.updates(train_examples)
        seconds = sum(cell.flops for cell in work) / self.flops_per_second
        return seconds + UPDATE_SECONDS * updates + ROW_SECONDS * len(rows)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _run_direct(
        self, names: Sequence[str], fold_names: Sequence[str]
    ) -> dict[str, list[CellRecord]]:
        finished = self._run_round(names, "direct", fold_names, protocol=DIRECT)
        return {model: list(cells) for model, cells in finished.cells.items()}

    def _tell_with_standing(self, message: str) -> None:
        if self.standing:
            message = f"{message} · {self.standing}"
        self.tell(message)

    def _run_early_round(
        self, number: int, racing: Sequence[str], sizes: Sequence[int], fold_name: str
    ) -> FinishedRound | None:
        """Tune the racing models on a share of the examples of one fold; None where the budget ended meanwhile."""
        size = sizes[number - 1]
        self._tell_with_standing(
            f"Round {number} of {len(sizes)}: {len(racing)} models, {size} training examples"
        )
        caps = self.study.caps.model_copy(update={"train": size})
        try:
            return self._run_round(racing, f"round-{number}", [fold_name], caps=caps, train=size)
        except BudgetOverError:
            self.notes.append(f"The budget ended in round {number}.")
            return None

    def _choose_survivors(
        self,
        task: Task,
        number: int,
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
        self.standing = f"{leader} leads (P(best) {win_chances[leader]:.2f})"
        tuned_models = list(finished.cells)
        if len(tuned_models) <= FEW_CANDIDATES:
            return tuned_models
        seconds = sum(cells[0].seconds for cells in finished.cells.values()) / len(tuned_models)
        seconds_per_model = seconds * sizes[number] / sizes[number - 1]
        survivors = self._limit_to_budget(survivors, seconds_per_model)
        for model in tuned_models:
            if model not in survivors:
                self.dropped[model] = DroppedModel(
                    round=number, win_chance=win_chances[model], validation=values[model]
                )
        return [name for name in tuned_models if name in survivors]

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
        self,
        racing: Sequence[str],
        fold_names: Sequence[str],
        size: int,
        early: Sequence[FinishedRound],
    ) -> None:
        """Tune the finalists on all examples and test them; under a budget fold by fold, as long as time is left."""
        message = f"Final round: {len(racing)} models, {size} training examples"
        if len(fold_names) > 1:
            message += f", {len(fold_names)} folds"
        self._tell_with_standing(message)
        caps = self.study.caps.model_copy(update={"train": size})
        steps = [list(fold_names)]
        if self.budget is not None:
            steps = [list(fold_names[:count]) for count in range(1, len(fold_names) + 1)]
        seconds_per_fold = 0.0
        for folds in steps:
            if self.final_round is not None and self._seconds_left() < seconds_per_fold:
                break
            fold_began = time.monotonic()
            try:
                self.final_round = self._run_round(
                    racing, "final", folds, caps=caps, is_final=True, train=size
                )
            except BudgetOverError:
                break
            seconds_per_fold = time.monotonic() - fold_began
        if self.final_round is None:
            if not early:
                raise InputError(
                    f"the budget of {format_time(self.budget or 0.0)} ended before a model was fine-tuned",
                    hint="give more with --budget, or smaller candidates; what is finished is stored",
                )
            self.final_round = early[-1]
            self.notes.append(
                "The budget ended before the final round: the answer is that of"
                f" {early[-1].train_examples} training examples."
            )
        elif self.final_round.folds < len(fold_names):
            self.notes.append(
                f"The budget was enough for {self.final_round.folds} of {len(fold_names)} folds."
            )

    def _make_round_study(
        self,
        models: Sequence[str],
        name: str,
        fold_names: Sequence[str],
        *,
        protocol: Protocol,
        caps: Caps | None = None,
        is_final: bool = False,
    ) -> Study:
        tasks: list[TaskSpec] = [
            spec for spec in self.study.benchmarks() if spec.name in fold_names
        ]
        return self.study.model_copy(
            update={
                "name": f"{self.study.name}-{name}",
                "models": tuple(row for row in self.study.rows() if row.name in models),
                "tasks": tuple(tasks),
                "protocols": (protocol,),
                "caps": caps or self.study.caps,
                "keep_adapters": is_final,
            }
        )

    def _run_round(
        self,
        models: Sequence[str],
        name: str,
        fold_names: Sequence[str],
        *,
        protocol: Protocol = TRAIN_BEFORE_TEST,
        caps: Caps | None = None,
        is_final: bool = False,
        train: int = 0,
    ) -> FinishedRound:
        """Run a round and return its cells by model, in the order of the models; failures go to the problems."""
        study = self._make_round_study(
            models, name, fold_names, protocol=protocol, caps=caps, is_final=is_final
        )
        plan = plan_study(study)
        workers = self.workers or choose_worker_count(plan)
        result = run_study(
            plan,
            workers=workers,
            session=self.session,
            watch=self.watch,
            stop=lambda: self._seconds_left() <= 0,
        )
        if result.interrupted:
            if self._seconds_left() <= 0:
                raise BudgetOverError("the budget is spent")
            raise KeyboardInterrupt
        if result.stop_requested:
            raise KeyboardInterrupt
        for failure in result.failures:
            self.problems[failure.model] = failure.reason
        cells_by_model: dict[str, list[CellRecord]] = {}
        with open_store(study.store, readonly=True) as store:
            for cell in store.cells.read(study=result.study):
                cells_by_model.setdefault(cell.model, []).append(cell)
        finished = {}
        for model in models:
            cells = sorted(cells_by_model.get(model, ()), key=lambda cell: cell.task)
            if len(cells) == len(fold_names):
                finished[model] = cells
        if not finished:
            contestant = "finalist" if is_final else "candidate"
            treatment = "scored" if protocol == DIRECT else "tuned"
            first_problem = next(iter(self.problems.values()), "")
            raise PotentiaError(f"no {contestant} could be {treatment}", hint=first_problem)
        return FinishedRound(result.study, train, finished, len(fold_names))

    # --- beside the race ---------------------------------------------------------------------------------------------

    def _separate_encoders(self, task: Task) -> None:
        """Take encoders out of the race of causal models: they have a head of their own, and all reach the end."""
        from potentia.run.encoder_entrants import EncoderEntrants, separate_encoders

        self.candidates = self.study.rows()
        causal_study, encoders = separate_encoders(self.study)
        if not encoders:
            return
        if not causal_study.models:
            raise InputError(
                "all candidates are encoders: the race needs a causal model too",
                hint="add one to --models, such as HuggingFaceTB/SmolLM2-135M",
            )
        self.study = causal_study
        if not task.labels:
            for row in encoders:
                self.problems[row.name] = "an encoder classifies, and this data has no labels"
            return
        self.encoders = EncoderEntrants(
            causal_study, encoders, stop=lambda: self._seconds_left() <= 0
        )

    def _test_embeddings(self, folds: Mapping[str, Task]) -> None:
        """Test classifiers on frozen embeddings: cheap, and often hard to beat."""
        from potentia.run.encoder_entrants import run_embedding_baselines

        task = next(iter(folds.values()))
        examples = sum(len(fold.documents("test")) for fold in folds.values())
        if not task.labels or examples > MOST_EMBEDDED:
            return
        accuracies = run_embedding_baselines(self.study, self.candidates, folds)
        if accuracies:
            listed = ", ".join(f"{name} {value:.3f}" for name, value in accuracies.items())
            self.note(f"Frozen embeddings + logistic regression (accuracy): {listed}.")

    def _run_encoders(self, folds: Mapping[str, Task]) -> None:
        """Fine-tune the encoders on the folds of the last round, and add their results to it."""
        if self.encoders is None or self.final_round is None:
            return
        names = ", ".join(row.name for row in self.encoders.rows)
        self._tell_with_standing(f"Encoders with a classification head: {names}")
        finalist_cells = next(iter(self.final_round.cells.values()))
        tested = {cell.task: folds[cell.task] for cell in finalist_cells}
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

    # --- the answer --------------------------------------------------------------------------------------------------

    def is_encoder(self, model: str) -> bool:
        """Whether a candidate is an encoder with a classification head."""
        return self.encoders is not None and model in [row.name for row in self.encoders.rows]

    def final(self, store: Store, model: str) -> CellRecord:
        """Return a finalist's cell, of the first fold."""
        cells = [cell for cell in store.cells.read(study=self.last) if cell.model == model]
        return min(cells, key=lambda cell: cell.task)

    def _make_choice(self, task: Task, direct: Mapping[str, Sequence[CellRecord]]) -> ModelChoice:
        from potentia.evidence import read

        assert self.final_round is not None
        # The scoreboard is what every other command says about this store.
        evidence = read(self.study.store, study=self.last)
        scoreboard = build_scoreboard(evidence)
        ranking = scoreboard.ranking
        win_chances = dict(zip(ranking.models, ranking.p_first.tolist(), strict=True))
        if len(win_chances) == 1:
            win_chances = dict.fromkeys(win_chances, 1.0)
        standings = []
        for row in self.candidates:
            standings.append(
                self._make_standing(
                    row.name,
                    find_parameters(row),
                    direct.get(row.name, ()),
                    self.final_round.cells.get(row.name, ()),
                    win_chance=win_chances.get(row.name, math.nan),
                )
            )
        standings.sort(key=_standing_order)
        classifications = find_classification(evidence, best=ranking.first)
        parameters = {standing.model: standing.parameters for standing in standings}
        selection = find_selection(evidence, ranking.first, seed=self.study.seed)
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
            classification=classifications[0] if classifications else None,
            curve=None if selection is None else selection.curve,
            smaller=find_smaller_model(ranking, parameters),
            trust=None if selection is None else selection.trust,
            price=find_price(self.study.price, self.study.device),
            seeds=scoreboard.seeds,
        )

    def _make_standing(
        self,
        model: str,
        parameters: float,
        direct_cells: Sequence[CellRecord],
        final_cells: Sequence[CellRecord],
        *,
        win_chance: float,
    ) -> CandidateStanding:
        dropped = self.dropped.get(model)
        direct = _join_scores(direct_cells)
        tuned = _join_scores(final_cells)
        seconds = sum(cell.seconds for cell in direct_cells)
        examples = sum(cell.score.n for cell in direct_cells)
        return CandidateStanding(
            model=model,
            direct=direct,
            tuned=tuned,
            p_best=win_chance,
            parameters=parameters,
            examples_per_second=self._find_speed(model, examples, seconds),
            dropped_in_round=None if dropped is None else dropped.round,
            problem="" if final_cells else self.problems.get(model, ""),
        )

    def _find_speed(self, model: str, examples: int, seconds: float) -> float:
        """Return the examples a second that a model predicts here, as its direct scores or its test took."""
        if self.encoders is not None and model in self.encoders.examples_per_second:
            return self.encoders.examples_per_second[model]
        return examples / seconds if seconds > 0 else math.nan


def choose_round_sizes(candidates: int, examples: int) -> list[int]:
    """Training examples of each round: a quarter first for a few candidates, a ninth and a third for many."""
    if examples <= MIN_TRAIN_EXAMPLES:
        return [examples]
    shares = [1 / 4] if candidates <= 6 else [1 / 9, 1 / 3]
    early_sizes = sorted({max(MIN_TRAIN_EXAMPLES, int(examples * share)) for share in shares})
    smaller_sizes = [size for size in early_sizes if 2 * size <= examples]
    return [*smaller_sizes, examples]


def _expected_finalists(candidates: int) -> int:
    """Return how many candidates reach the end as a rule: the better half, and one or two beside it."""
    return candidates if candidates <= FEW_CANDIDATES else min(candidates, candidates // 2 + 1)


def measure_flops_per_second(device: str) -> float:
    """Return the floating-point operations a second that fine-tuning reaches here, by a few matrix products."""
    import torch

    from potentia.engine import pick_device

    place = pick_device(device)
    size = 512 if place.type == "cpu" else 4096
    dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
    matrix = torch.ones((size, size), dtype=dtype, device=place)
    seconds = []
    for _ in range(MATRIX_PRODUCTS):
        began = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # waits for the device
        seconds.append(time.perf_counter() - began)
    # the mean of all but the first few, which warm up: other work on the machine counts
    usual = statistics.fmean(seconds[MATRIX_PRODUCTS // 4 :])
    return COMPUTE_SHARE * 2 * size**3 / usual


def _standing_order(standing: CandidateStanding) -> tuple[float, float, bool]:
    """Sort by the chance to be the best, then by score; models without one come last, the dropped ones first."""
    chance = 0.0 if math.isnan(standing.p_best) else standing.p_best
    value = 0.0 if standing.tuned is None else -standing.tuned.value
    return -chance, value, standing.dropped_in_round is None


def _join_scores(cells: Sequence[CellRecord]) -> Score | None:
    """Return the score over all folds; None where there is none."""
    if not cells:
        return None
    scores = [cell.score for cell in cells]
    examples = sum(score.n for score in scores)
    weights = [score.n / examples for score in scores]
    pairs = list(zip(weights, scores, strict=True))
    return Score(
        value=sum(weight * score.value for weight, score in pairs),
        stderr=math.sqrt(sum((weight * score.stderr) ** 2 for weight, score in pairs)),
        n=examples,
        metric=scores[0].metric,
    )


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
    value = _nan_if_none(cell.selection.validation)
    share = min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.5
    return math.sqrt((share * (1 - share) + 1.0 / examples) / examples)
