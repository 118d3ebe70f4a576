"""The end of a task's search: choose seed by seed, test what is chosen on the test split, and commit the cell.

An adjustment may also be scored on the way, at given optimizer steps. Where there are several lanes to choose from,
these scores wait in a file for the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.errors import TuningError
from potentia.files import write_file
from potentia.run.ask import Evaluation, evaluate
from potentia.run.search import (
    LaneSearch,
    Peaks,
    ValidatedState,
    find_most_doubtful_end,
    find_search_end,
    select_best,
)
from potentia.run.tuning_setup import FINAL_STEP, LaneReporter, PendingCells, TuningSetup
from potentia.study import content_key
from potentia.timing import spending
from potentia.values.fine_tuning import FineTuning, LaneStatus, Style
from potentia.values.selection import (
    CutExamples,
    SearchEnd,
    SeedChoice,
    Selection,
    TestedState,
)

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import FullLanes, Lane, LaneTrainer


@dataclass(frozen=True)
class TrainedLanes:
    """The lanes of a row and their validation, with the trainer that brings their states back."""

    search: LaneSearch
    lane_by_key: Mapping[str, Lane]
    trainer: LaneTrainer | FullLanes
    scorer: Scorer


class FinalTest:
    """Chooses among the states of one task, tests what is chosen, and commits the cell."""

    def __init__(
        self,
        setup: TuningSetup,
        trained: TrainedLanes,
        cells: PendingCells,
        reporter: LaneReporter,
        task_name: str,
    ) -> None:
        self.setup = setup
        self.trained = trained
        self.search = trained.search
        self.cells = cells
        self.reporter = reporter
        self.name = task_name
        self.task = setup.tasks[task_name]
        self.fine_tunings: dict[str, FineTuning] = {}
        for lane_key, fine_tuning in self.search.lanes.items():
            if task_name in self.search.list_served_tasks(fine_tuning):
                self.fine_tunings[lane_key] = fine_tuning
        self.lanes: list[Lane] = [trained.lane_by_key[lane_key] for lane_key in self.fine_tunings]

    def run(self) -> None:
        """Choose, test and commit."""
        failures = self._describe_failures()
        if not self.search.list_states(self.name):
            raise TuningError(f"every fine-tuning on {self.name} failed: {'; '.join(failures)}")
        chosen = self._choose_states()
        best_tuned = self._choose_tuned_states()
        self._commit_steps(best_tuned)
        if (self.name, FINAL_STEP) not in self.cells:
            return
        tests = [self._test(state, is_selected=True) for state in chosen]
        context = self.setup.context
        direct = context.find_direct_evaluation(self.name, self.trained.trainer.restore_untuned)
        final = Evaluation.mean(tests)
        keeps_direct = False
        # as the paper does: the untuned score where tuning did not improve the test score
        # (this selects on the test split)
        if direct is not None and context.study.selection == "paper":
            keeps_direct = not self._is_better(final, direct)
        selection = replace(
            make_selection(chosen, tests),
            tuned=chosen[0].is_tuned and not keeps_direct,
            kept_direct=keeps_direct,
            epochs_saved_by_race=self._count_saved_epochs(),
            target_modules=tuple(self.lanes[0].targets),
            failed_lanes=tuple(failures),
            cut_examples=self._count_cut_examples(chosen[0]),
        )
        selection = self._describe_search(selection, chosen, best_tuned)
        selection = self._test_others(selection, dict(zip(chosen, tests, strict=True)), best_tuned)
        if keeps_direct and direct is not None:
            final = direct
        else:
            self._keep_adapter(chosen[0])
        direct_value = direct.main.value if direct is not None else None
        self.cells.commit(self.name, FINAL_STEP, final, selection, direct_value=direct_value)

    def _describe_failures(self) -> list[str]:
        failures = []
        for lane in self.lanes:
            if lane.reason:
                fine_tuning = self.fine_tunings[lane.key]
                failures.append(f"{fine_tuning.learning_rate:g} {fine_tuning.style}: {lane.reason}")
        return failures

    def _count_saved_epochs(self) -> int:
        saved = 0
        for lane in self.lanes:
            if lane.status == LaneStatus.DROPPED:
                planned_epochs = self.search.count_epochs(self.fine_tunings[lane.key])
                saved += planned_epochs - len(lane.epochs)
        return saved

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _list_seeds(self) -> range:
        return self.setup.list_seeds(self.name)

    def _choose_states(self) -> list[ValidatedState]:
        """Return what is chosen for each seed, the untuned model among them where validation may choose it."""
        untuned = [self.search.untuned[self.name, style] for style in self.setup.styles]
        has_validation = bool(self.task.documents("validation"))  # MMLU has none: tuned it stands
        may_stay_untuned = has_validation and self.setup.context.study.selection == "validation"
        chosen = []
        for seed in self._list_seeds():
            states = self.search.list_states(self.name, seed)
            if may_stay_untuned:
                states = [*untuned, *states]
            chosen.append(select_best(states or untuned))
        return chosen

    def _choose_tuned_states(self) -> list[ValidatedState]:
        """Return the best tuned state of each seed that has one."""
        states_by_seed = [self.search.list_states(self.name, seed) for seed in self._list_seeds()]
        return [select_best(states) for states in states_by_seed if states]

    def _is_better(self, test_evaluation: Evaluation, direct: Evaluation) -> bool:
        """Whether the test is better after the tuning."""
        gain = test_evaluation.main.value - direct.main.value
        return gain > 0 if self.task.higher_is_better else gain < 0

    def _find_peaks(self, state: ValidatedState) -> Peaks:
        """Return the peaks of the race that a state comes from."""
        if state.lane is None:
            return {}
        return self.search.find_peaks(self.name, state.lane.race)

    def _describe_search(
        self,
        selection: Selection,
        chosen: Sequence[ValidatedState],
        best_tuned: Sequence[ValidatedState],
    ) -> Selection:
        """Add what was searched, and where the best lies in it: over seeds, the most doubtful."""
        search_ends = [SearchEnd.UNTUNED] if selection.kept_direct else []
        for state in chosen:
            curve: Sequence[ValidatedState] = ()
            if state.lane is not None:
                curve = self.search.curves[state.lane.key, self.name]
            search_ends.append(find_search_end(state, self._find_peaks(state), curve))
        validation_task = self.setup.find_validation_task(self.name)
        metric = validation_task.describe_metric(validation_task.metric)
        assert best_tuned[0].lane is not None
        lane = self.trained.lane_by_key[best_tuned[0].lane.key]
        rates: set[float] = set()
        for state in best_tuned:
            rates.update(self._find_peaks(state))
        parameters = self.setup.context.loaded.parameters  # full tuning trains all
        return replace(
            selection,
            search=find_most_doubtful_end(search_ends, chosen, metric),
            rates_tried=tuple(sorted(rates)),
            updates=lane.step,
            tokens=sum(epoch.result.tokens for epoch in lane.epochs),
            trainable=int(getattr(self.trained.trainer, "trainable", parameters)),
        )

    # --- testing -----------------------------------------------------------------------------------------------------

    def _test(self, state: ValidatedState, *, is_selected: bool = False) -> Evaluation:
        """Score a state on the test split; a state without a lane is the untuned model.

        The test of the selected state counts for the study: its progress is shown, and it is reported.
        """
        context = self.setup.context
        lane = state.lane
        owner = None
        if lane is None:
            self.trained.trainer.restore_untuned()  # adapters off, or the original weights back
        else:
            owner = self.trained.trainer.restore(lane.key, state.epoch)
        progress = None
        if is_selected:
            self.setup.begin_phase(f"testing {self.name}", len(self.task.documents("test")))
            progress = context.advance
        evaluation = evaluate_test_split(
            self.setup, self.trained.scorer, self.name, state.style, owner, progress=progress
        )
        if lane is not None and is_selected:
            status = self.trained.lane_by_key[lane.key].status
            self.reporter.report(self.search, lane, self.name, status=status, selected=True)
        return evaluation

    def _test_others(
        self,
        selection: Selection,
        tests: Mapping[ValidatedState, Evaluation],
        best_tuned: Sequence[ValidatedState],
    ) -> Selection:
        """Test what `selection: tuned` would give, where an untuned model stands, and every rate where it is asked."""
        if selection.kept_direct or not all(state.is_tuned for state in tests):
            tested = [self._describe_tested(state, tests) for state in best_tuned]
            mean = replace(
                tested[0],
                value=sum(state.value for state in tested) / len(tested),
                stderr=sum(state.stderr for state in tested) / len(tested),
            )
            selection = replace(selection, best_tuned=mean)
        if self.setup.tests_every_rate:
            states = self.search.list_states(self.name)
            rates = [self._describe_tested(state, tests) for state in states]
            selection = replace(selection, rates=tuple(rates))
        return selection

    def _describe_tested(
        self, state: ValidatedState, tests: Mapping[ValidatedState, Evaluation]
    ) -> TestedState:
        """Return a state's test score beside its validation (appendix B.3: what a larger search gives)."""
        assert state.lane is not None
        test_evaluation = tests[state] if state in tests else self._test(state)
        return TestedState(
            learning_rate=state.lane.learning_rate,
            style=state.style,
            seed=state.lane.seed,
            validation=state.value,
            value=test_evaluation.main.value,
            stderr=test_evaluation.main.stderr,
            chosen=state in tests,
        )

    def _commit_steps(self, best_tuned: Sequence[ValidatedState]) -> None:
        """Commit the scores on the way of the lanes that were chosen in the end."""
        for step in self.setup.at_steps:
            if (self.name, step) not in self.cells:
                continue
            tests = []
            for state in best_tuned:
                if state.lane is not None:
                    tests.append(_read_step_score(self.setup, state.lane, step, self.name))
            # no epoch: that is the end of the tuning, where the lane was chosen
            selection = replace(make_selection(best_tuned, tests), step=step, epoch=None)
            self.cells.commit(self.name, step, Evaluation.mean(tests), selection)

    def _count_cut_examples(self, chosen: ValidatedState) -> CutExamples | None:
        """Return how many training examples were truncated to the maximum length; None where none was."""
        lane = self.lanes[0]
        if chosen.lane is not None:
            lane = self.trained.lane_by_key[chosen.lane.key]
        limit = self.trained.trainer.limit
        cut_count = lane.spec.count_cut_examples(limit)
        if not cut_count:
            return None
        return CutExamples(
            cut=cut_count, examples=len(lane.spec.examples), tokens=lane.spec.max_text_length(limit)
        )

    def _keep_adapter(self, chosen: ValidatedState) -> None:
        """Keep the chosen adapter beside the store, where the study wants it; all weights of a model are not kept."""
        context = self.setup.context
        save_peft = getattr(self.trained.trainer, "save_peft", None)
        if save_peft is None or chosen.lane is None or not context.study.keep_adapters:
            return
        row = context.row
        # an adapter tuned on few bits goes on the whole model too
        fingerprint = row.original_fingerprint
        if row.model.copy_of is not None:
            fingerprint = row.model_fingerprint
        base_model = {"fingerprint": fingerprint, "source": row.model.source}
        if row.model.quantise:
            base_model["quantise"] = row.model.quantise
        save_adapter = partial(save_peft, chosen.lane.key, epoch=chosen.epoch)
        with spending("save"):
            context.store.adapters.save(
                self.cells.get_key(self.name), save_adapter, {"base": base_model}
            )


def evaluate_test_split(
    setup: TuningSetup,
    scorer: Scorer,
    task_name: str,
    style: Style,
    owner: int | None,
    *,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Ask the test split of a task."""
    ask = setup.make_ask(setup.tasks[task_name], "test", style, owner)
    with spending("test"):
        (evaluation,) = evaluate(scorer, [ask], chat_template=setup.context.chat, progress=progress)
    return evaluation


def make_selection(chosen: Sequence[ValidatedState], tests: Sequence[Evaluation]) -> Selection:
    """Return what was chosen, seed by seed."""
    seeds = [
        SeedChoice(
            value=test_evaluation.main.value,
            learning_rate=state.learning_rate,
            epoch=state.epoch,
            style=state.style,
            validation=state.value,
        )
        for test_evaluation, state in zip(tests, chosen, strict=True)
    ]
    first_seed = chosen[0]
    return Selection(
        style=first_seed.style,
        learning_rate=first_seed.learning_rate,
        epoch=first_seed.epoch,
        validation=first_seed.value,
        validation_stderr=first_seed.stderr,
        validation_right=first_seed.right,
        seeds=tuple(seeds),
    )


# --- scores on the way -----------------------------------------------------------------------------------------------


def score_at_step(
    setup: TuningSetup, trained: TrainedLanes, cells: PendingCells, lane: FineTuning, step: int
) -> None:
    """Test a lane as it is now; where there are several to choose from, its scores wait for the choice."""
    has_choice = len(trained.search.lanes) > 1 or setup.recipe.rate_bounds is not None
    for task_name in trained.search.list_served_tasks(lane):
        score_file = _name_step_file(setup, lane, step, task_name)
        if (task_name, step) not in cells or score_file.exists():
            continue
        slot = trained.trainer.slot(lane.key)
        evaluation = evaluate_test_split(setup, trained.scorer, task_name, lane.style, slot)
        if has_choice:
            write_file(score_file, evaluation.to_json(), synced=True)
        else:
            selection = Selection(step=step, style=lane.style, learning_rate=lane.learning_rate)
            cells.commit(task_name, step, evaluation, selection)


def _name_step_file(setup: TuningSetup, lane: FineTuning, step: int, task_name: str) -> Path:
    key = content_key(lane=lane.key, step=step, task=task_name)
    return setup.workspace / "on-the-way" / f"{key}.json"


def _read_step_score(setup: TuningSetup, lane: FineTuning, step: int, task_name: str) -> Evaluation:
    """Return what a lane scored on a task after a step."""
    score_file = _name_step_file(setup, lane, step, task_name)
    try:
        return Evaluation.from_json(score_file.read_text("utf-8"))
    except (OSError, KeyError, ValueError, TypeError):
        raise TuningError(
            f"the score on {task_name} after {step} steps was not kept", where=str(score_file)
        ) from None
