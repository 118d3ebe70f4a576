"""The tuned protocols: the same fine-tuning for every model, selection on validation, then the test split once.

A fine-tuning is a lane: (data, style, learning rate, seed). **Train-before-test** gives every task lanes on its own
train split and validates them by the task's metric after each epoch (section 3.1, appendix A.2 of the paper).
**Adjust** has one set of lanes on auxiliary data for all tasks (section 2.1 of "Training on the test task"), validated
at its end; the tasks can also be scored at given optimizer steps, which shows emergence against the amount of training
(figure 8). The candidates of a task are its lanes' states and the untuned model. Nothing of the test split enters the
choice.

Adapters of all tasks train together, as lanes that share passes. Lanes of all weights, and those on auxiliary data,
take turns. Learning rates that the search asks for beyond its grid (``search``) are a wave of lanes more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import TYPE_CHECKING

from potentia.errors import TuningError
from potentia.run.ask import Ask, Evaluation, evaluate
from potentia.run.final_test import FinalTest, TrainedLanes, score_at_step
from potentia.run.probe import probe_row
from potentia.run.progress import DOCUMENTS, STEPS, Stopped, name_lanes_folder, remove_lanes_folder
from potentia.run.recipe import LanesBeginning, computing_on_threads, encode_training_examples
from potentia.run.search import LaneSearch, SearchedTask, ValidatedState
from potentia.run.tuning_setup import LaneReporter, PendingCells, TuningSetup
from potentia.study import tuning_for_adjust
from potentia.timing import spending
from potentia.values.fine_tuning import (
    NOT_VALIDATED,
    EpochResult,
    FineTuning,
    LaneStatus,
    Style,
    ValidationScore,
)
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import (
        FullLanes,
        Lane,
        LaneEpoch,
        LaneSpec,
        LaneTrainer,
        StepInfo,
        TokenisedExamples,
    )
    from potentia.run.commit import CellCommitter
    from potentia.run.plan import CellPlan
    from potentia.run.row_context import RowContext


def tune_row(
    context: RowContext, committer: CellCommitter, protocol: Protocol, cells: Sequence[CellPlan]
) -> None:
    """Compute the cells of one tuned protocol; each is committed as soon as it is tested."""
    pending = PendingCells(context, committer, cells)
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    if protocol == TRAIN_BEFORE_TEST:
        for task_name in tasks:
            task = context.tasks.by_name[task_name]
            if not (task.documents("train") and task.documents("validation")):
                pending.fail(
                    task_name,
                    f"{task_name} has no examples to train on; use the protocol adjust with auxiliary data",
                )
    tasks = [task_name for task_name in tasks if task_name in pending.list_tasks()]
    if tasks:
        _tune_tasks(context, protocol, pending, tasks)


def _tune_tasks(
    context: RowContext, protocol: Protocol, cells: PendingCells, pending: Sequence[str]
) -> None:
    """Make every fine-tuning, on the tasks and threads that it was begun with; then its folder is not needed."""
    assignment = context.assignment
    setup = _make_setup(context, protocol)
    tuned_tasks = list(setup.tasks)
    trains_own_lanes = protocol == TRAIN_BEFORE_TEST and not setup.trains_all_weights
    beginning = LanesBeginning(
        tasks=list(pending if trains_own_lanes else tuned_tasks),
        threads=assignment.threads,
        lane_parts=assignment.lane_parts,
    ).resume_or_begin(setup.workspace, tuned_tasks)
    if assignment.only_trains_lanes and assignment.lane_parts != beginning.lane_parts:
        return  # another run divides it otherwise
    task_names = beginning.tasks if trains_own_lanes else list(pending)
    setup = replace(
        setup,
        tasks={task_name: context.tasks.by_name[task_name] for task_name in task_names},
        lane_parts=beginning.lane_parts,
    )
    with computing_on_threads(beginning.threads):
        if protocol == TRAIN_BEFORE_TEST and setup.trains_all_weights:
            cells.probes = probe_row(context, beginning.tasks, setup.workspace, None)
        groups = [list(setup.tasks)]
        if setup.trains_all_weights and setup.auxiliary is None:
            groups = [[task_name] for task_name in pending]
        tuning = RowTuning(setup, cells)
        for group in groups:
            tuning.run(group, [task_name for task_name in pending if task_name in group])
    if not assignment.only_trains_lanes:
        remove_lanes_folder(setup.workspace)


def _make_setup(context: RowContext, protocol: Protocol) -> TuningSetup:
    """Return what the fine-tunings of a row share, for all its tasks of a protocol."""
    study = context.study
    row = context.row
    tasks = {
        cell.task: context.tasks.by_name[cell.task]
        for cell in row.cells
        if cell.protocol == protocol
    }
    setup = TuningSetup(
        context=context,
        protocol=protocol,
        recipe=study.tuning,
        tasks=tasks,
        auxiliary=None,
        styles=context.styles,
        workspace=context.store.lanes_folder / name_lanes_folder(row, protocol),
    )
    if protocol != ADJUST or study.adjust is None:
        return setup
    return replace(
        setup,
        recipe=tuning_for_adjust(study, row.model, context.loaded.parameters),
        auxiliary=context.tasks.auxiliary,
        styles=context.styles[:1],  # one tuning for all tasks: in one style
        at_steps=tuple(sorted(set(study.adjust.at_steps))),
        tests_every_rate=study.adjust.every_rate,
    )


class RowTuning:
    """Drives the trainer through the lanes of one row, as validation and the search ask for them."""

    trainer: LaneTrainer | FullLanes
    scorer: Scorer
    search: LaneSearch

    def __init__(self, setup: TuningSetup, cells: PendingCells) -> None:
        self.setup = setup
        self.context = setup.context
        self.cells = cells
        self.reporter = LaneReporter(setup)
        self.lane_by_key: dict[str, Lane] = {}
        self._examples: dict[tuple[str, Style], TokenisedExamples] = {}
        self._phase_began = time.monotonic()
        self._phase_tokens = 0
        self._steps_ended = 0  # of the lanes that ended
        self._steps_resumed = 0  # of these, that an earlier run had made
        self._steps_planned: dict[str, int] = {}  # by lane
        self._steps_skipped: dict[str, int] = {}  # by lane, of those that ended early
        self._last_step: StepInfo | None = None
        self._single_lane: FineTuning | None = None  # the lane under way where lanes take turns

    def run(self, task_names: Sequence[str], pending: Sequence[str]) -> None:
        """Tune for some tasks that train together, and finish those of them that are pending."""
        from potentia.engine.scoring import Scorer
        from potentia.engine.training import LaneTrainer

        setup = self.setup
        token_budget = self.context.study.token_budget
        self.scorer = Scorer(self.context.loaded, token_budget=token_budget)
        with spending("validate"):
            untuned = self._validate_untuned(task_names)
        self.search = self._make_search(task_names, untuned)
        self.lane_by_key = {}
        with self._make_trainer() as self.trainer:
            self.scorer = Scorer(
                self.context.loaded, token_budget=token_budget, router=self.trainer.router
            )
            groups = self._group_lanes(list(self._plan_first_lanes(task_names)))
            while groups:
                self._train_wave(groups)
                if self.context.assignment.only_trains_lanes:
                    return  # who chooses from these lanes finds them
                groups = self._group_lanes(list(self._plan_more_lanes()))
            if isinstance(self.trainer, LaneTrainer) and setup.auxiliary is None:
                self.cells.probes = probe_row(
                    self.context, task_names, setup.workspace, self.trainer
                )
            for task_name in pending:
                self._finish_task(task_name)

    def _make_search(
        self, task_names: Sequence[str], untuned: Mapping[tuple[str, Style], ValidatedState]
    ) -> LaneSearch:
        setup = self.setup
        searched = {}
        takes_last_epoch = self.context.study.selection == "last"
        for task_name in setup.tasks:
            validation_task = setup.find_validation_task(task_name)
            has_validation = bool(validation_task.documents("validation"))
            searched[task_name] = SearchedTask(
                is_validated=has_validation and not takes_last_epoch,
                higher_is_better=validation_task.higher_is_better,
            )
        epochs_by_data = {}
        for training_data in self._list_training_data(task_names):
            documents = len(setup.find_training_task(training_data).documents("train"))
            epochs_by_data[training_data], _ = setup.recipe.plan_epochs(documents)
        return LaneSearch(
            tasks=searched,
            epochs_by_data=epochs_by_data,
            untuned=untuned,
            shared_lanes=setup.auxiliary is not None,
            rate_bounds=setup.recipe.rate_bounds,
            has_race=setup.recipe.race,
        )

    def _make_trainer(self) -> LaneTrainer | FullLanes:
        from potentia.engine.training import FullLanes, LaneTrainer

        loaded = self.context.loaded
        study = self.context.study
        workspace = self.setup.workspace
        if self.setup.trains_all_weights:
            return FullLanes(
                loaded,
                token_budget=study.token_budget,
                workspace=workspace,
                shards=study.shards,
                scored_steps=self.setup.at_steps,
            )
        return LaneTrainer(loaded, token_budget=study.token_budget, workspace=workspace)

    def _collect_trained(self) -> TrainedLanes:
        return TrainedLanes(self.search, self.lane_by_key, self.trainer, scorer=self.scorer)

    def _finish_task(self, task_name: str) -> None:
        try:
            with spending("select"):
                trained = self._collect_trained()
                FinalTest(self.setup, trained, self.cells, self.reporter, task_name).run()
        except TuningError as error:
            self.cells.fail(task_name, error)

    def is_stop_requested(self) -> bool:
        """Whether the row is to stop."""
        return self.context.stop_requested()

    def _begin_phase(self, phase: str, total: int, unit: str = DOCUMENTS) -> None:
        self._phase_began = time.monotonic()
        self._phase_tokens = 0
        self.setup.begin_phase(phase, total, unit)

    # --- the lanes ---------------------------------------------------------------------------------------------------

    def _list_training_data(self, task_names: Sequence[str]) -> Sequence[str]:
        """Return the names of what lanes learn from: each task's own documents, or the auxiliary data."""
        auxiliary = self.setup.auxiliary
        return task_names if auxiliary is None else [auxiliary.name]

    def _plan_first_lanes(self, task_names: Sequence[str]) -> Iterator[FineTuning]:
        for training_data, style, learning_rate in product(
            self._list_training_data(task_names),
            self.setup.styles,
            self.setup.recipe.learning_rates,
        ):
            for seed in self.setup.list_seeds(training_data):
                yield self.setup.make_lane(training_data, style, learning_rate, seed)

    def _plan_more_lanes(self) -> Iterator[FineTuning]:
        """Go through the lanes one rung beyond the ends that lead, for any task that they serve."""
        for lane, learning_rate in self.search.propose_lanes():
            yield self.setup.make_lane(lane.data, lane.style, learning_rate, lane.seed)

    def _group_lanes(self, wave: list[FineTuning]) -> list[list[FineTuning]]:
        """Return the lanes of a wave by who trains together; the first wave may be divided, and some of it be asked."""
        if not self.setup.trains_together:
            return [[lane] for lane in wave]
        if not wave:
            return []
        parts = self.setup.lane_parts
        if self.search.lanes or parts == 1:
            return [wave]
        asked_part = self.context.assignment.lane_part
        return [wave[part::parts] for part in range(parts) if asked_part in (None, part)]

    def _make_spec(self, lane: FineTuning) -> LaneSpec:
        """Return what the trainer needs of a lane; lanes on the same data share their examples."""
        from potentia.engine.training import LaneSpec

        recipe = self.setup.recipe
        task = self.setup.find_training_task(lane.data)
        data_and_style = (lane.data, lane.style)
        if data_and_style not in self._examples:
            chat_template = self.context.chat if lane.style == "chat" else None
            self._examples[data_and_style] = encode_training_examples(
                recipe, self.context.loaded, [task], chat_template=chat_template
            )
        return LaneSpec(
            key=lane.key,
            examples=self._examples[data_and_style],
            schedule=recipe.make_schedule(lane.learning_rate, len(task.documents("train"))),
            lora=recipe.make_lora_config(),
            seed=lane.seed,
        )

    # --- training ----------------------------------------------------------------------------------------------------

    def _train_wave(self, groups: Sequence[Sequence[FineTuning]]) -> None:
        """Train every lane of a wave to its end."""
        wave = list(chain.from_iterable(groups))
        is_first_wave = not self.search.lanes
        self.search.add_lanes(wave)
        specs = {lane.key: self._make_spec(lane) for lane in wave}
        auxiliary = self.setup.auxiliary
        on_data = f" on {auxiliary.name}" if auxiliary is not None else ""
        suffix = "" if is_first_wave else ", more rates"
        steps = sum(lane_spec.total_steps for lane_spec in specs.values())
        self._begin_phase(f"tuning{on_data}{suffix}", steps, STEPS)
        self._steps_ended = 0
        self._steps_resumed = 0
        self._steps_planned = {lane_key: spec.total_steps for lane_key, spec in specs.items()}
        self._steps_skipped = {}
        is_divided = self.setup.trains_together and self.setup.lane_parts > 1
        self.search.is_race_deferred = is_divided and is_first_wave
        for group in groups:
            self._train_group(group, [specs[lane.key] for lane in group])
        may_race = self.setup.recipe.race and not self.context.assignment.only_trains_lanes
        if self.search.is_race_deferred and may_race:
            self.search.is_race_deferred = False
            self._hold_race(wave)

    def _train_group(self, lanes: Sequence[FineTuning], specs: list[LaneSpec]) -> None:
        """Train lanes that share passes, or one lane alone."""
        self._last_step = None
        self._single_lane = None if self.setup.trains_together else lanes[0]
        with spending("train"):
            trained_lanes = self.trainer.train(
                specs,
                on_epoch=self._end_epochs,
                on_step=self._report_step,
                on_resume=self._record_epochs,
                stop=self.is_stop_requested,
            )
        self.lane_by_key |= trained_lanes
        for lane in lanes:
            self._report_end(lane)
        if any(lane.status == LaneStatus.INTERRUPTED for lane in trained_lanes.values()):
            raise Stopped
        steps = 0
        for lane_key, trained_lane in trained_lanes.items():
            steps += trained_lane.step
            self._steps_skipped[lane_key] = self._steps_planned[lane_key] - trained_lane.step
        self._steps_ended += steps
        self._steps_resumed += steps if self._last_step is None else self._last_step.resumed

    def _hold_race(self, wave: Sequence[FineTuning]) -> None:
        """Drop the lanes that would have been dropped beside their rivals, and what they were after that."""
        epochs_by_lane = {lane.key: list(self.lane_by_key[lane.key].epochs) for lane in wave}
        for lane_key, epoch in self.search.hold_race(epochs_by_lane).items():
            dropped_lane = self.lane_by_key[lane_key]
            dropped_lane.epochs = epochs_by_lane[lane_key][:epoch]
            dropped_lane.status = LaneStatus.DROPPED
            dropped_lane.reason = None
            dropped_lane.step = dropped_lane.epochs[-1].step
            self._report_end(self.search.lanes[lane_key])

    def _report_end(self, lane: FineTuning) -> None:
        ended_lane = self.lane_by_key[lane.key]
        for task_name in self.search.list_served_tasks(lane):
            self.reporter.report(
                self.search, lane, task_name, status=ended_lane.status, note=ended_lane.reason or ""
            )

    def _report_step(self, step_info: StepInfo) -> None:
        self._last_step = step_info
        self._phase_tokens += step_info.tokens
        seconds = max(time.monotonic() - self._phase_began, 1e-9)
        self.context.progress.reach(
            self._steps_ended + step_info.done,
            before=self._steps_resumed + step_info.resumed,
            skipped=sum(self._steps_skipped.values()),
            lanes_active=step_info.active,
            lanes_waiting=step_info.waiting,
            tokens_per_second=self._phase_tokens / seconds,
        )
        if self._single_lane is not None and step_info.done in self.setup.at_steps:
            trained = self._collect_trained()
            score_at_step(self.setup, trained, self.cells, self._single_lane, step_info.done)

    # --- validation --------------------------------------------------------------------------------------------------

    def _validate_untuned(
        self, task_names: Sequence[str]
    ) -> dict[tuple[str, Style], ValidatedState]:
        """Validate the untuned model on every task and style; tasks with one validation task are asked once."""
        asks: dict[tuple[str, Style], Ask] = {}
        for task_name, style in product(task_names, self.setup.styles):
            asks[task_name, style] = self.setup.make_ask(
                self.setup.find_validation_task(task_name), "validation", style
            )
        validations = dict.fromkeys(asks.values(), NOT_VALIDATED)
        documents = sum(len(ask.task.documents("validation")) for ask in validations)
        self._begin_phase("validating the untuned model", documents)
        for ask in validations:
            if ask.task.documents("validation"):
                (evaluation,) = evaluate(
                    self.scorer,
                    [ask],
                    chat_template=self.context.chat,
                    progress=self.context.advance,
                )
                validations[ask] = summarise_validation(evaluation)
        untuned = {}
        for (task_name, style), ask in asks.items():
            validation = validations[ask]
            untuned[task_name, style] = ValidatedState(
                style=style,
                result=EpochResult(0, value=validation.value, stderr=validation.stderr),
                right=validation.right,
                higher_is_better=ask.task.higher_is_better,
            )
        return untuned

    def _end_epochs(self, ended: list[LaneEpoch]) -> set[str]:
        """Validate lanes at the end of an epoch; return those that drop out of their race."""
        asks: dict[tuple[str, str], Ask] = {}
        for epoch in ended:
            lane = self.search.lanes[epoch.key]
            slot = self.trainer.slot(epoch.key)
            for task_name in self.search.list_tasks_to_validate(lane, epoch.epoch):
                validation_task = self.setup.find_validation_task(task_name)
                asks[epoch.key, task_name] = self.setup.make_ask(
                    validation_task, "validation", lane.style, slot
                )
        evaluations = self._evaluate_all(list(dict.fromkeys(asks.values())))
        epochs_by_lane = {epoch.key: epoch for epoch in ended}
        for (lane_key, task_name), ask in asks.items():
            epochs_by_lane[lane_key].validations[task_name] = summarise_validation(evaluations[ask])
        self._record_epochs(ended)
        for epoch in ended:
            lane = self.search.lanes[epoch.key]
            for task_name in self.search.list_served_tasks(lane):
                self.reporter.report(self.search, lane, task_name, status=LaneStatus.TRAINING)
        self._keep_leading_states()
        if not self.setup.recipe.race:
            return set()
        hopeless = set()
        for epoch in ended:
            if self.search.is_hopeless(self.search.lanes[epoch.key], epoch.epoch):
                hopeless.add(epoch.key)
                self._steps_skipped[epoch.key] = self._steps_planned[epoch.key] - epoch.step
        return hopeless

    def _record_epochs(self, epochs: Iterable[LaneEpoch]) -> None:
        for epoch in epochs:
            self.search.record_epoch(epoch)

    def _evaluate_all(self, asks: list[Ask]) -> dict[Ask, Evaluation]:
        """Evaluate all asks: together where lanes share passes, else one by one."""
        if not asks:
            return {}
        batches = [asks] if self.setup.trains_together else [[ask] for ask in asks]
        evaluations: list[Evaluation] = []
        with spending("validate"):
            for batch in batches:
                evaluations += evaluate(self.scorer, batch, chat_template=self.context.chat)
        return dict(zip(asks, evaluations, strict=True))

    def _keep_leading_states(self) -> None:
        """Let the trainer keep the leading states of each task on disk; of adapters it keeps all anyway."""
        from potentia.engine.training import FullLanes

        if not isinstance(self.trainer, FullLanes):
            return
        leading = self.search.find_leading_states(all_rates=self.setup.tests_every_rate)
        held_lanes = set()
        for state in leading:
            if state.lane is not None:
                held_lanes.add((state.lane.key, state.epoch))
        self.trainer.keep_only_states(held_lanes)


def summarise_validation(evaluation: Evaluation) -> ValidationScore:
    """Return what a state is worth on validation, its standard error, and which documents it got right."""
    from potentia.analysis.stats import pack_correct

    outcomes = [outcome.value for outcome in evaluation.outcomes]
    value = evaluation.main.value
    mean = sum(outcomes) / len(outcomes) if outcomes else math.nan
    right = ""
    if math.isclose(mean, value, abs_tol=1e-6):
        right = pack_correct(outcomes, [outcome.cluster for outcome in evaluation.outcomes])
    return ValidationScore(value, evaluation.main.stderr, right)
