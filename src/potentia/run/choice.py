"""What is chosen among fine-tunings, by validation alone: the best state, the next learning rate to try, who drops out.

The learning rates of a benchmark form a ladder: 1, 3, 10, 30 … times a power of ten. A grid is begun with and extended
by one rung at whichever end leads, until the best lies inside or a bound is reached. To lead is to beat the neighbour
by more than half a standard error: less is a tie, and ties stay inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import TuningError
from potentia.files import write_file
from potentia.run.ask import Evaluation, Style, evaluate
from potentia.study import content_key
from potentia.timing import spending
from potentia.values.selection import SearchEnd, SeedChoice, Selection, TestedState

if TYPE_CHECKING:
    from potentia.run.fine_tuning import FineTuning
    from potentia.values.metric import Metric

LEAD = 0.5  # standard errors of validation by which an end must lead to be followed further
PATIENCE = 3  # looks in a row, each more than a standard error below its best, after which a lane is past it


@dataclass(frozen=True)
class LanePlan:
    """One fine-tuning to make: what it learns from, plain or as chat, its learning rate and its seed."""

    key: str
    data: str
    style: Style
    learning_rate: float
    seed: int

    @property
    def rivals(self) -> tuple[str, Style, int]:
        """What lanes share that differ in their learning rate alone."""
        return self.data, self.style, self.seed


@dataclass(frozen=True)
class Candidate:
    """A state of the model as validated on a task: a lane after an epoch, or the untuned model at epoch 0."""

    style: Style
    epoch: int
    value: float
    stderr: float
    lane: LanePlan | None = None
    loss: float | None = None  # in training, over the epoch
    tokens: int = 0  # learned from in the epoch
    seconds: float = 0.0
    right: str = (
        ""  # which validation documents it got right, packed; empty where that is no 0 or 1
    )
    up: bool = field(default=True, kw_only=True)  # whether higher is better

    @property
    def tuned(self) -> bool:
        """Whether any fine-tuning lies behind it."""
        return self.lane is not None

    @property
    def learning_rate(self) -> float | None:
        """The lane's learning rate; None for the untuned model."""
        return self.lane.learning_rate if self.lane is not None else None

    @property
    def worth(self) -> float:
        """Its value, larger for better; no number is worst of all."""
        return -math.inf if math.isnan(self.value) else self.value if self.up else -self.value

    @property
    def error(self) -> float:
        """Its standard error, 0 where there is none."""
        return self.stderr if math.isfinite(self.stderr) else 0.0


Peaks = Mapping[
    float, Candidate | None
]  # the best state of every learning rate of one search; None where it failed


def select(candidates: Sequence[Candidate]) -> Candidate:
    """Return the best on validation; ties go to the untuned model, the rates inside the grid, the earlier epoch."""
    rates = sorted({c.learning_rate for c in candidates if c.learning_rate is not None})
    middle = (len(rates) - 1) / 2

    def order(candidate: Candidate) -> tuple[float, float, int, float, bool]:
        rate = candidate.learning_rate
        outside = -1.0 if rate is None else abs(rates.index(rate) - middle)
        return -candidate.worth, outside, candidate.epoch, rate or 0.0, candidate.style == "chat"

    return min(candidates, key=order)


def leaders(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the states that may be selected yet: which of those on a level wins depends on the rates still to come."""
    top = max(candidate.worth for candidate in candidates)
    level = [candidate for candidate in candidates if candidate.worth == top]
    return [
        next(c for c in level if c.lane == lane) for lane in dict.fromkeys(c.lane for c in level)
    ]


def peaks_of(
    lanes: Iterable[LanePlan], states: Sequence[Candidate]
) -> dict[float, Candidate | None]:
    """Return the best state of each of these lanes, by learning rate."""
    own = {lane: [state for state in states if state.lane == lane] for lane in lanes}
    return {lane.learning_rate: select(mine) if mine else None for lane, mine in own.items()}


def leading_end(peaks: Peaks) -> float | None:
    """Return the end of the grid that beats its neighbour beyond a tie; None where neither does."""
    rates = sorted(peaks)
    worth = {rate: -math.inf if c is None else c.worth for rate, c in peaks.items()}
    if len(rates) < 2:
        return None
    if max(worth.values()) == -math.inf:
        return rates[0]  # all failed: smaller ones may not
    best = max(rates, key=worth.__getitem__)
    neighbour = {rates[0]: rates[1], rates[-1]: rates[-2]}.get(best)
    top = peaks[best]
    if neighbour is None or top is None:
        return None
    return best if worth[best] - worth[neighbour] > LEAD * top.error else None


def next_rate(peaks: Peaks, bounds: tuple[float, float] | None) -> float | None:
    """Return the learning rate to try next, one rung beyond the end that leads; None where the search is over."""
    end = leading_end(peaks)
    if end is None or bounds is None:
        return None
    rate = next_rung(end, up=end == max(peaks))
    return rate if bounds[0] <= rate <= bounds[1] else None


def next_rung(rate: float, *, up: bool) -> float:
    """Return the nearest of 1, 3, 10, 30 … times a power of ten that is at least half as much again away."""
    power = math.floor(math.log10(rate))
    rungs = sorted(
        float(f"{digit}e{power + more}") for more in (-2, -1, 0, 1, 2) for digit in (1, 3)
    )
    if up:
        return next(rung for rung in rungs if rung > 1.5 * rate)
    return next(rung for rung in reversed(rungs) if 1.5 * rung < rate)


def find_search_end(chosen: Candidate, peaks: Peaks, curve: Sequence[Candidate]) -> SearchEnd:
    """Say where the chosen state lies in what was searched; ``curve`` is its lane's, from the untuned model on."""
    if not chosen.tuned:
        return SearchEnd.UNTUNED
    if leading_end(peaks) is not None:
        return SearchEnd.AT_BOUND
    before = [c for c in curve if c.epoch < chosen.epoch]
    if before and chosen.epoch == curve[-1].epoch and not math.isnan(chosen.value):
        last = max(before, key=lambda c: c.epoch)
        if chosen.worth - last.worth > LEAD * chosen.error:
            return SearchEnd.STILL_RISING
    if len(peaks) < 2:
        return SearchEnd.ONE_RATE
    if chosen.learning_rate in (min(peaks), max(peaks)):
        return SearchEnd.FLAT
    return SearchEnd.INSIDE


def most_doubtful_end(
    ends: Sequence[SearchEnd], chosen: Sequence[Candidate], metric: Metric
) -> SearchEnd:
    """Return the most doubtful end over seeds; validation that cannot be better leaves no doubt."""
    worst = min(ends, key=list(SearchEnd).index)
    perfect = metric.scale == "share" and all(best.value == float(best.up) for best in chosen)
    return SearchEnd.PERFECT if perfect and worst.may_have_more else worst


def past_its_best(curve: Sequence[Candidate]) -> bool:
    """Say whether a lane's last looks are all clearly worse than its best."""
    looks = [c for c in curve if c.tuned and math.isfinite(c.value)]
    if len(looks) <= PATIENCE:
        return False
    best = max(looks, key=lambda c: c.worth)
    return all(c.worth < best.worth - best.error for c in looks[-PATIENCE:])


def is_behind(lane: LanePlan, same: Mapping[LanePlan, Candidate], looks: int) -> bool:
    """Say whether a lane has hardly a chance to be the best of its rivals at the same epoch.

    The rule is that of every race (``analysis.stats.first``); the doubt is shared out over the ends of epochs.
    """
    from potentia.analysis.stats import SURVIVAL_CHANCE, estimate_win_chances

    if any(math.isfinite(c.value) and not math.isfinite(c.stderr) for c in same.values()):
        return False  # no telling what is noise
    told = (
        {other.key: getattr(c, what) for other, c in same.items()}
        for what in ("value", "stderr", "right")
    )
    chance = estimate_win_chances(*told, higher_is_better=same[lane].up)
    return bool(chance[lane.key] < SURVIVAL_CHANCE / max(looks, 1))


def validated(made: Evaluation) -> tuple[float, float, str]:
    """Return what a state is worth on validation, its standard error, and which documents it got right."""
    from potentia.analysis.stats import pack_correct

    outcomes, value = [item.value for item in made.outcomes], made.main.value
    mean = sum(outcomes) / len(outcomes) if outcomes else math.nan
    return (
        value,
        made.main.stderr,
        pack_correct(outcomes) if math.isclose(mean, value, abs_tol=1e-6) else "",
    )


# --- the end of a search: testing what is chosen ---------------------------------------------------------------------


class Ending:
    """The end of one benchmark's search: choose seed by seed, test what is chosen, and commit the cell."""

    def __init__(self, tuning: FineTuning, name: str) -> None:
        self.tuning, self.name, self.task = tuning, name, tuning.benchmarks[name]
        self.lanes = {
            key: lane for key, lane in tuning.lanes.items() if name in tuning.served(lane)
        }
        self.results = [tuning.results[key] for key in self.lanes]

    def finish(self) -> None:
        """Choose, test and commit."""
        tuning, name, lanes = self.tuning, self.name, self.lanes
        failed = [(lanes[result.key], result.reason) for result in self.results if result.reason]
        failures = [f"{lane.learning_rate:g} {lane.style}: {reason}" for lane, reason in failed]
        if not tuning.states(name):
            raise TuningError(f"every lane of {name} failed: {'; '.join(failures)}")
        chosen, best_tuned = self._chosen()
        self._publish_steps(best_tuned)
        if (name, None) not in tuning.cells:
            return
        tests = [self._test(best, selected=True) for best in chosen]
        direct, test = (
            tuning.row.direct_evaluation(name, tuning.trainer.bare),
            Evaluation.mean(tests),
        )
        kept_direct = (
            direct is not None
            and tuning.study.selection == "paper"
            and not self._gains(test, direct)
        )
        dropped = [result for result in self.results if result.status == "dropped"]
        selection = replace(
            selection_of(chosen, tests),
            tuned=chosen[0].tuned and not kept_direct,
            kept_direct=kept_direct,
            epochs_saved_by_race=sum(
                tuning.epochs(lanes[one.key]) - len(one.epochs) for one in dropped
            ),
            target_modules=tuple(self.results[0].targets),
            failed_lanes=tuple(failures),
        )
        selection = self._describe_search(selection, chosen, best_tuned)
        evaluations = dict(zip(chosen, tests, strict=True))
        selection = self._test_others(selection, evaluations, best_tuned)
        if not kept_direct:
            tuning.keep(name, chosen[0])
        final = direct if kept_direct and direct is not None else test
        tuning.commit(
            name, None, final, selection, direct.main.value if direct is not None else None
        )

    def _chosen(self) -> tuple[list[Candidate], list[Candidate]]:
        """Return what is chosen for each seed, and the best tuned state of each seed that has one."""
        tuning = self.tuning
        untuned = [tuning.untuned[self.name, style] for style in tuning.styles]
        blind = not self.task.documents("validation")  # as in MMLU: the tuned model stands
        rivals = [] if blind or tuning.study.selection != "validation" else untuned
        each = [tuning.states(self.name, tuning.study.seed + k) for k in range(tuning.study.seeds)]
        return [select([*rivals, *own] or untuned) for own in each], [
            select(own) for own in each if own
        ]

    def _gains(self, test: Evaluation, direct: Evaluation) -> bool:
        """Say whether the test is better after the tuning."""
        gain = test.main.value - direct.main.value
        return gain > 0 if self.task.higher_is_better else gain < 0

    def _describe_search(
        self, selection: Selection, chosen: Sequence[Candidate], best_tuned: Sequence[Candidate]
    ) -> Selection:
        """Add what was searched, and where the best lies in it: over seeds, the most doubtful."""
        tuning, name = self.tuning, self.name

        def peaks(best: Candidate) -> Peaks:
            return tuning.peaks(name, best.lane.rivals) if best.lane is not None else {}

        ends = [SearchEnd.UNTUNED] if selection.kept_direct else []
        for best in chosen:
            curve = tuning.curves[best.lane.key, name] if best.lane is not None else ()
            ends.append(find_search_end(best, peaks(best), curve))
        judge = tuning.judge(name)
        assert best_tuned[0].lane is not None
        made = tuning.results[best_tuned[0].lane.key]
        rates = {rate for best in best_tuned for rate in peaks(best)}
        return replace(
            selection,
            search=most_doubtful_end(ends, chosen, judge.metric_named(judge.metric)),
            rates_tried=tuple(sorted(rates)),
            updates=made.step,
            tokens=sum(epoch.tokens for epoch in made.epochs),
            trainable=int(
                getattr(tuning.trainer, "trainable", tuning.loaded.parameters)
            ),  # full: all
        )

    def _test_others(
        self,
        selection: Selection,
        made: Mapping[Candidate, Evaluation],
        best_tuned: Sequence[Candidate],
    ) -> Selection:
        """Test what `selection: tuned` would give, where an untuned model stands, and every rate where it is asked."""
        if selection.kept_direct or not all(best.tuned for best in made):
            states = [self._at_end(best, made) for best in best_tuned]
            best = replace(
                states[0],
                value=sum(state.value for state in states) / len(states),
                stderr=sum(state.stderr for state in states) / len(states),
            )
            selection = replace(selection, best_tuned=best)
        if self.tuning.every_rate:
            rates = tuple(self._at_end(one, made) for one in self.tuning.states(self.name))
            selection = replace(selection, rates=rates)
        return selection

    def _at_end(self, state: Candidate, made: Mapping[Candidate, Evaluation]) -> TestedState:
        """Return a state's test score beside what validation said of it (appendix B.3: what a larger search gives)."""
        assert state.lane is not None
        test = made[state] if state in made else self._test(state)
        return TestedState(
            learning_rate=state.lane.learning_rate,
            style=state.style,
            seed=state.lane.seed,
            validation=state.value,
            value=test.main.value,
            stderr=test.main.stderr,
            chosen=state in made,
        )

    def _test(self, state: Candidate, *, selected: bool = False) -> Evaluation:
        """Score a state on the test split."""
        tuning, name, lane, owner = self.tuning, self.name, state.lane, None
        if lane is None:
            tuning.trainer.bare()
        else:
            owner = tuning.trainer.restore(lane.key, state.epoch)
        if selected:
            tuning.phase(f"testing {name}", len(self.task.documents("test")))
        made = _asked(
            tuning, name, state.style, owner, progress=tuning.row.progress if selected else None
        )
        if lane is not None and selected:
            tuning.tell(lane, name, tuning.results[lane.key].status, selected=True)
        return made

    def _publish_steps(self, chosen: Sequence[Candidate]) -> None:
        """Hand over the scores on the way of the lanes that were chosen in the end."""
        for step in self.tuning.at_steps:
            if (self.name, step) in self.tuning.cells:
                tests = [
                    _on_the_way(self.tuning, c.lane, step, self.name)
                    for c in chosen
                    if c.lane is not None
                ]
                # no epoch: that is the end of the tuning, where the lane was chosen
                selection = replace(selection_of(chosen, tests), step=step, epoch=None)
                self.tuning.commit(self.name, step, Evaluation.mean(tests), selection)


def _asked(
    tuning: FineTuning, name: str, style: Style, owner: int | None, **heard: Any
) -> Evaluation:
    """Ask the test split of a benchmark."""
    ask = tuning.ask(tuning.benchmarks[name], "test", style, owner)
    with spending("test"):
        (made,) = evaluate(tuning.scorer, [ask], chat=tuning.chat, **heard)
    return made


def score_on_the_way(tuning: FineTuning, lane: LanePlan, step: int) -> None:
    """Test a lane as it is now; where there are several to choose from, its scores wait for the choice."""
    for name in tuning.served(lane):
        path = _waiting(tuning, lane, step, name)
        if (name, step) not in tuning.cells or path.exists():
            continue
        made = _asked(tuning, name, lane.style, tuning.trainer.slot(lane.key))
        if len(tuning.lanes) > 1 or tuning.tuning.rate_bounds is not None:
            write_file(path, made.to_json(), synced=True)
        else:
            selection = Selection(step=step, style=lane.style, learning_rate=lane.learning_rate)
            tuning.commit(name, step, made, selection)


def _waiting(tuning: FineTuning, lane: LanePlan, step: int, task: str) -> Path:
    return (
        tuning.workspace / "on-the-way" / f"{content_key(lane=lane.key, step=step, task=task)}.json"
    )


def _on_the_way(tuning: FineTuning, lane: LanePlan, step: int, task: str) -> Evaluation:
    """Return what a lane scored on a task after a step."""
    path = _waiting(tuning, lane, step, task)
    try:
        return Evaluation.from_json(path.read_text("utf-8"))
    except (OSError, KeyError, ValueError, TypeError):
        raise TuningError(
            f"the score on {task} after {step} steps was not kept", where=str(path)
        ) from None


def selection_of(chosen: Sequence[Candidate], tests: Sequence[Evaluation]) -> Selection:
    """Return what was chosen, seed by seed."""
    seeds = [
        SeedChoice(
            value=test.main.value,
            learning_rate=state.learning_rate,
            epoch=state.epoch,
            style=state.style,
            validation=state.value,
        )
        for test, state in zip(tests, chosen, strict=True)
    ]
    first = chosen[0]
    return Selection(
        style=first.style,
        learning_rate=first.learning_rate,
        epoch=first.epoch,
        validation=first.value,
        validation_stderr=first.stderr,
        validation_right=first.right,
        seeds=tuple(seeds),
    )
