"""The search for the best fine-tuning of a task, by validation alone: states, learning rates, race and choice.

Everything here is pure: it is told what was validated, and says what follows. The learning rates of a task form a
ladder: 1, 3, 10, 30 … times a power of ten. A grid is begun with and extended by one rung at whichever end leads, until
the best lies inside or a bound is reached. To lead is to beat the neighbour by more than half a standard error: less is
a tie, and ties stay inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from potentia.values.fine_tuning import (
    NOT_VALIDATED,
    EpochResult,
    FineTuning,
    RaceGroup,
    Style,
)
from potentia.values.selection import SearchEnd

if TYPE_CHECKING:
    from potentia.engine.training import LaneEpoch
    from potentia.values.metric import Metric

LEAD = 0.5  # standard errors of validation by which an end must lead to be followed further
PATIENCE = 3  # looks in a row, each more than a standard error below its best: a lane is past it


@dataclass(frozen=True)
class ValidatedState:
    """A state of the model as validated on a task: a lane after an epoch, or the untuned model at epoch 0."""

    style: Style
    result: EpochResult
    lane: FineTuning | None = None
    right: str = ""  # which validation examples it answered rightly, as in `ValidationScore`
    higher_is_better: bool = field(default=True, kw_only=True)

    @property
    def epoch(self) -> int:
        """The epoch that it ends."""
        return self.result.epoch

    @property
    def value(self) -> float:
        """Its score on validation; NaN where it has none."""
        return math.nan if self.result.value is None else self.result.value

    @property
    def stderr(self) -> float:
        """The standard error of its score; NaN where it has none."""
        return math.nan if self.result.stderr is None else self.result.stderr

    @property
    def is_tuned(self) -> bool:
        """Whether any fine-tuning lies behind it."""
        return self.lane is not None

    @property
    def learning_rate(self) -> float | None:
        """The lane's learning rate; None for the untuned model."""
        return self.lane.learning_rate if self.lane is not None else None

    @property
    def worth(self) -> float:
        """Its value, larger for better; no number is worst of all."""
        if math.isnan(self.value):
            return -math.inf
        return self.value if self.higher_is_better else -self.value

    @property
    def error(self) -> float:
        """Its standard error, 0 where there is none."""
        return self.stderr if math.isfinite(self.stderr) else 0.0


# the best state of every learning rate of one race; None where the lane failed
Peaks = Mapping[float, ValidatedState | None]


# --- choosing a state ------------------------------------------------------------------------------------------------


def select_best(states: Sequence[ValidatedState]) -> ValidatedState:
    """Return the best on validation; ties go to the untuned model, the rates inside the grid, the earlier epoch."""
    rates = sorted({state.learning_rate for state in states if state.learning_rate is not None})
    middle = (len(rates) - 1) / 2

    def order(state: ValidatedState) -> tuple[float, float, int, float, bool]:
        learning_rate = state.learning_rate
        distance_from_middle = (
            -1.0 if learning_rate is None else abs(rates.index(learning_rate) - middle)
        )
        is_chat = state.style == "chat"
        return -state.worth, distance_from_middle, state.epoch, learning_rate or 0.0, is_chat

    return min(states, key=order)


def find_leaders(states: Sequence[ValidatedState]) -> list[ValidatedState]:
    """Return the states that may be selected yet: which of those on a level wins depends on the rates still to come."""
    best_worth = max(state.worth for state in states)
    first_by_lane: dict[FineTuning | None, ValidatedState] = {}
    for state in states:
        if state.worth == best_worth:
            first_by_lane.setdefault(state.lane, state)
    return list(first_by_lane.values())


def find_peaks(
    lanes: Iterable[FineTuning], states: Sequence[ValidatedState]
) -> dict[float, ValidatedState | None]:
    """Return the best state of each of these lanes, by learning rate."""
    peaks: dict[float, ValidatedState | None] = {}
    for lane in lanes:
        states_of_lane = [state for state in states if state.lane == lane]
        peaks[lane.learning_rate] = select_best(states_of_lane) if states_of_lane else None
    return peaks


# --- learning rates --------------------------------------------------------------------------------------------------


def find_leading_end(peaks: Peaks) -> float | None:
    """Return the end of the grid that beats its neighbour beyond a tie; None where neither does."""
    rates = sorted(peaks)
    if len(rates) < 2:
        return None
    worth_by_rate = {}
    for learning_rate, peak in peaks.items():
        worth_by_rate[learning_rate] = -math.inf if peak is None else peak.worth
    if max(worth_by_rate.values()) == -math.inf:
        return rates[0]  # all failed: smaller ones may not
    best_rate = max(rates, key=worth_by_rate.__getitem__)
    neighbour = {rates[0]: rates[1], rates[-1]: rates[-2]}.get(best_rate)
    best_peak = peaks[best_rate]
    if neighbour is None or best_peak is None:
        return None
    leads = worth_by_rate[best_rate] - worth_by_rate[neighbour] > LEAD * best_peak.error
    return best_rate if leads else None


def propose_rate(peaks: Peaks, bounds: tuple[float, float] | None) -> float | None:
    """Return the learning rate to try next, one rung beyond the end that leads; None where the search is over."""
    end_rate = find_leading_end(peaks)
    if end_rate is None or bounds is None:
        return None
    learning_rate = find_next_rung(end_rate, upwards=end_rate == max(peaks))
    return learning_rate if bounds[0] <= learning_rate <= bounds[1] else None


def find_next_rung(learning_rate: float, *, upwards: bool) -> float:
    """Return the nearest of 1, 3, 10, 30 … times a power of ten that is at least half as much again away."""
    power = math.floor(math.log10(learning_rate))
    rungs = []
    for exponent in range(power - 2, power + 3):
        rungs += [float(f"1e{exponent}"), float(f"3e{exponent}")]
    if upwards:
        return next(rung for rung in rungs if rung > 1.5 * learning_rate)
    return next(rung for rung in reversed(rungs) if 1.5 * rung < learning_rate)


# --- the end of a search ---------------------------------------------------------------------------------------------


def find_search_end(
    chosen: ValidatedState, peaks: Peaks, curve: Sequence[ValidatedState]
) -> SearchEnd:
    """Say where the chosen state lies in what was searched; ``curve`` is its lane's, from the untuned model on."""
    if not chosen.is_tuned:
        return SearchEnd.UNTUNED
    if find_leading_end(peaks) is not None:
        return SearchEnd.AT_BOUND
    earlier = [state for state in curve if state.epoch < chosen.epoch]
    is_last_epoch = bool(curve) and chosen.epoch == curve[-1].epoch
    if earlier and is_last_epoch and not math.isnan(chosen.value):
        previous = max(earlier, key=lambda state: state.epoch)
        if chosen.worth - previous.worth > LEAD * chosen.error:
            return SearchEnd.STILL_RISING
    if len(peaks) < 2:
        return SearchEnd.ONE_RATE
    if chosen.learning_rate in (min(peaks), max(peaks)):
        return SearchEnd.FLAT
    return SearchEnd.INSIDE


def find_most_doubtful_end(
    ends: Sequence[SearchEnd], chosen: Sequence[ValidatedState], metric: Metric
) -> SearchEnd:
    """Return the most doubtful end over seeds; validation that cannot be better leaves no doubt."""
    worst = min(ends, key=list(SearchEnd).index)
    is_perfect = metric.scale == "share" and all(
        state.value == float(state.higher_is_better) for state in chosen
    )
    if is_perfect and worst.may_have_more:
        return SearchEnd.PERFECT
    return worst


# --- the race --------------------------------------------------------------------------------------------------------


def is_past_its_best(curve: Sequence[ValidatedState]) -> bool:
    """Whether a lane's last looks are all clearly worse than its best."""
    looks = [state for state in curve if state.is_tuned and math.isfinite(state.value)]
    if len(looks) <= PATIENCE:
        return False
    best_state = max(looks, key=lambda state: state.worth)
    return all(state.worth < best_state.worth - best_state.error for state in looks[-PATIENCE:])


def is_behind(lane: FineTuning, rivals: Mapping[FineTuning, ValidatedState], looks: int) -> bool:
    """Whether a lane has hardly a chance to be the best of its race, by all states at the same epoch.

    The rule is that of every race (``analysis.stats``); the doubt is shared out over the ends of epochs.
    """
    from potentia.analysis.stats import SURVIVAL_CHANCE, estimate_win_chances

    for state in rivals.values():
        if math.isfinite(state.value) and not math.isfinite(state.stderr):
            return False  # no telling what is noise
    values = {}
    errors = {}
    right_answers = {}
    for rival, state in rivals.items():
        values[rival.key] = state.value
        errors[rival.key] = state.stderr
        right_answers[rival.key] = state.right
    chances = estimate_win_chances(
        values,
        errors,
        right_answers,
        higher_is_better=rivals[lane].higher_is_better,
    )
    return bool(chances[lane.key] < SURVIVAL_CHANCE / max(looks, 1))


@dataclass(frozen=True)
class SearchedTask:
    """What a search has to know of a task."""

    is_validated: bool  # whether there are documents to choose by
    higher_is_better: bool


@dataclass
class LaneSearch:
    """All that was validated of the lanes of one row, and what follows from it.

    Lanes on a task's own documents serve that task. With ``shared_lanes``, lanes on auxiliary data serve all tasks,
    and only their last epoch may be chosen.
    """

    tasks: Mapping[str, SearchedTask]
    epochs_by_data: Mapping[str, int]  # of a lane
    untuned: Mapping[tuple[str, Style], ValidatedState]  # by task and style
    shared_lanes: bool
    rate_bounds: tuple[float, float] | None
    has_race: bool
    is_race_deferred: bool = (
        False  # rivals train in several parts: their race waits for all of them
    )
    lanes: dict[str, FineTuning] = field(default_factory=dict)
    curves: dict[tuple[str, str], list[ValidatedState]] = field(default_factory=dict)

    def add_lanes(self, lanes: Iterable[FineTuning]) -> None:
        """Begin the curves of lanes with the untuned model."""
        for lane in lanes:
            self.lanes[lane.key] = lane
            for task in self.list_served_tasks(lane):
                self.curves[lane.key, task] = [self.untuned[task, lane.style]]

    def list_served_tasks(self, lane: FineTuning) -> Sequence[str]:
        """Return the tasks that a lane is for."""
        return tuple(self.tasks) if self.shared_lanes else (lane.data,)

    def count_epochs(self, lane: FineTuning) -> int:
        """Return the epochs of a lane."""
        return self.epochs_by_data[lane.data]

    def list_tasks_to_validate(self, lane: FineTuning, epoch: int) -> list[str]:
        """Return the tasks to validate a lane on after an epoch."""
        if self.shared_lanes and epoch < self.count_epochs(lane) and not self.has_race:
            return []
        return [task for task in self.list_served_tasks(lane) if self.tasks[task].is_validated]

    def record_epoch(self, lane_epoch: LaneEpoch) -> None:
        """Add an ended epoch to its lane's curves, in place of an earlier record of it.

        Without a validation score the last epoch counts with NaN, others are left out.
        """
        lane = self.lanes[lane_epoch.key]
        for task in self.list_served_tasks(lane):
            curve = [
                state for state in self.curves[lane.key, task] if state.epoch < lane_epoch.epoch
            ]
            if task in lane_epoch.validations or lane_epoch.epoch == self.count_epochs(lane):
                validation = lane_epoch.validations.get(task, NOT_VALIDATED)
                result = replace(
                    lane_epoch.result, value=validation.value, stderr=validation.stderr
                )
                state = ValidatedState(
                    style=lane.style,
                    result=result,
                    lane=lane,
                    right=validation.right,
                    higher_is_better=self.tasks[task].higher_is_better,
                )
                curve.append(state)
            self.curves[lane.key, task] = curve

    def list_states(self, task_name: str, seed: int | None = None) -> list[ValidatedState]:
        """Return the tuned states that may be chosen for a task, so far; those of all seeds or of one."""
        states = []
        for lane in self.lanes.values():
            if task_name not in self.list_served_tasks(lane) or seed not in (None, lane.seed):
                continue
            for state in self.curves.get((lane.key, task_name), ()):
                may_be_chosen = not self.shared_lanes or state.epoch == self.count_epochs(lane)
                if state.is_tuned and may_be_chosen:
                    states.append(state)
        return states

    def find_peaks(self, task_name: str, race: RaceGroup) -> dict[float, ValidatedState | None]:
        """Return the best state of every learning rate of a race."""
        lanes = [lane for lane in self.lanes.values() if lane.race == race]
        return find_peaks(lanes, self.list_states(task_name))

    def find_leading_states(self, *, all_rates: bool) -> list[ValidatedState]:
        """Return the states that may be chosen yet for any task and seed; with ``all_rates`` all of them."""
        seeds = {lane.seed for lane in self.lanes.values()}
        leading = []
        for task in self.tasks:
            for seed in seeds:
                states = self.list_states(task, seed)
                if states:
                    leading += states if all_rates else find_leaders(states)
        return leading

    def propose_lanes(self) -> Iterator[tuple[FineTuning, float]]:
        """Go through the races that go on: a lane of each, with a rate one rung beyond the end that leads."""
        first_by_race: dict[RaceGroup, FineTuning] = {}
        for lane in self.lanes.values():
            first_by_race.setdefault(lane.race, lane)
        for race, lane in first_by_race.items():
            rates = set()
            for task in self.list_served_tasks(lane):
                if self.tasks[task].is_validated:
                    rates.add(propose_rate(self.find_peaks(task, race), self.rate_bounds))
            for learning_rate in sorted(
                learning_rate for learning_rate in rates if learning_rate is not None
            ):
                yield lane, learning_rate

    def is_hopeless(self, lane: FineTuning, epoch: int) -> bool:
        """Whether a lane can win on none of its tasks: past its best, or behind its rivals after a third."""
        tasks = self.list_tasks_to_validate(lane, epoch)
        return bool(tasks) and all(self._is_lost_on(task, lane, epoch) for task in tasks)

    def _is_lost_on(self, task_name: str, lane: FineTuning, epoch: int) -> bool:
        if not self.shared_lanes and is_past_its_best(self.curves[lane.key, task_name]):
            return True
        epochs = self.count_epochs(lane)
        if self.is_race_deferred or 3 * epoch < epochs:
            return False
        rivals = {}
        for rival in self.lanes.values():
            if rival.race == lane.race:
                for state in self.curves.get((rival.key, task_name), ()):
                    if state.epoch == epoch:
                        rivals[rival] = state
        return is_behind(lane, rivals, epochs - 1)

    def hold_race(self, epochs_by_lane: Mapping[str, Sequence[LaneEpoch]]) -> dict[str, int]:
        """Hold the race of lanes that trained apart; return after which epoch each of the dropped ones ends.

        Their curves end where they would have ended beside their rivals.
        """
        racing = dict(epochs_by_lane)
        for lane_key in racing:
            for task in self.list_served_tasks(self.lanes[lane_key]):
                self.curves[lane_key, task] = self.curves[lane_key, task][:1]
        dropped: dict[str, int] = {}
        longest = max(len(epochs) for epochs in racing.values())
        for epoch in range(1, longest + 1):
            due_lanes = [
                self.lanes[lane_key] for lane_key, epochs in racing.items() if len(epochs) >= epoch
            ]
            for lane in due_lanes:
                self.record_epoch(racing[lane.key][epoch - 1])
            unfinished = [lane for lane in due_lanes if epoch < self.count_epochs(lane)]
            for lane in [lane for lane in unfinished if self.is_hopeless(lane, epoch)]:
                dropped[lane.key] = epoch
                del racing[lane.key]
        return dropped
