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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from potentia.study import Caps, Study, TaskSpec, find_price
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol, TaskName
from potentia.values.scores import Score

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store
    from potentia.tasks import Task

MIN_TRAIN_EXAMPLES = 32  # of the first round
FEW_CANDIDATES = 2  # all of whom reach the end
BUDGET_RESERVE = 0.9  # of the budget is planned for: estimates are rough
ROW_SECONDS = 4.0  # that a model costs beside its FLOPs: loading, checks
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
        names = [row.name for row in self.study.rows()]
        self._tell_baselines(folds)
        fold_names, train_limit = self._fit_into_budget(folds)
        self.tell(f"scores of {len(names)} models before fine-tuning")
        direct = self._run_direct(names, fold_names)
        racing = [name for name in names if name not in self.problems]
        sizes = choose_round_sizes(len(racing), train_limit)
        early: list[FinishedRound] = []
        for number in range(1, len(sizes)):
            finished = self._run_early_round(number, racing, sizes, fold_names[0])
            if finished is None:
                break
            early.append(finished)
            racing = self._choose_survivors(task, number, len(sizes), finished, sizes)
        self._run_final_round(racing, fold_names, sizes[-1], early)
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

    def _fit_into_budget(self, folds: Mapping[str, Task]) -> tuple[list[str], int]:
        """Tell how long it will take; return the folds and the training examples that the budget holds."""
        fold_names = list(folds)
        task = folds[fold_names[0]]
        train_examples = len(task.documents("train"))
        self.flops_per_second = measure_flops_per_second(self.study.device)
        one_fold = self._estimate_seconds([fold_names[0]], train_examples)
        candidates = len(self.study.rows())
        early = sum(choose_round_sizes(candidates, train_examples)[:-1]) / train_examples
        finals = len(fold_names) * _expected_finalists(candidates) / candidates
        total = one_fold * (early + finals)
        if not math.isfinite(total):
            return fold_names, train_examples
        finish = f"about {format_time(total)}"
        price = find_price(self.study.price, self.study.device)
        if price is not None:
            finish += f" ({price.format(total)})"
        if self.budget is None:
            self.note(f"Estimate: {finish} on this machine. --budget 30min would limit it.")
            return fold_names, train_examples
        left = BUDGET_RESERVE * self._seconds_left()
        if total <= left:
            self.note(f"Estimate: {finish}, within the budget of {format_time(self.budget)}.")
            return fold_names, train_examples
        per_fold = one_fold * _expected_finalists(candidates) / candidates
        affordable = int((left - one_fold * early) / per_fold)
        if affordable >= 1:
            fold_names = fold_names[: min(affordable, len(fold_names))]
            self._limit_note(finish, f"{len(fold_names)} of {len(folds)} folds")
            return fold_names, train_examples
        share = left / (one_fold * (early + finals / len(fold_names)))
        limited = max(MIN_TRAIN_EXAMPLES, int(train_examples * share))
        limited = min(limited, train_examples)
        held = f"{limited} of {train_examples} training examples"
        if len(folds) > 1:
            held = f"1 of {len(folds)} folds and {held}"
        self._limit_note(finish, held)
        return fold_names[:1], limited

    def _limit_note(self, finish: str, held: str) -> None:
        assert self.budget is not None
        text = (
            f"The budget of {format_time(self.budget)} holds {held}; all of it would take {finish}."
        )
        self.note(text)
        self.notes.append(text)

    def _estimate_seconds(self, fold_names: Sequence[str], train_examples: int) -> float:
        """Return the seconds that all candidates take on some folds, by their FLOPs."""
        caps = self.study.caps.model_copy(update={"train": train_examples})
        study = self._make_round_study(
            [row.name for row in self.study.rows()],
            "estimate",
            fold_names,
            protocol=TRAIN_BEFORE_TEST,
            caps=caps,
        )
        plan = plan_study(study)
        pending = [work for work in count_work(plan) if not work.finished]
        flops = sum(work.flops for work in pending)
        rows = {work.model for work in pending}
        return flops / self.flops_per_second + ROW_SECONDS * len(rows)

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

    # --- the answer --------------------------------------------------------------------------------------------------

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
        for row in self.study.rows():
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
            examples_per_second=examples / seconds if seconds > 0 else math.nan,
            dropped_in_round=None if dropped is None else dropped.round,
            problem="" if final_cells else self.problems.get(model, ""),
        )


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
    fastest = math.inf
    for _ in range(8):
        began = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # waits for the device
        fastest = min(fastest, time.perf_counter() - began)
    return COMPUTE_SHARE * 2 * size**3 / fastest


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
