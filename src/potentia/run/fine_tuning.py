"""The tuned protocols: the same fine-tuning for every model, selection on validation, then the test split once.

A tuning is a lane: (data, style, learning rate, seed). **Train-before-test** gives every benchmark lanes on its own
train split and validates them by the benchmark's metric after each epoch (section 3.1, appendix A.2 of the paper).
**Adjust** has one set of lanes on auxiliary data for all benchmarks (section 2.1 of "Training on the test task"),
validated at its end; the benchmarks can also be scored at given optimizer steps, which shows emergence against the
amount of training (figure 8). The candidates of a benchmark are its lanes' states and the untuned model. Nothing of
the test split enters the choice.

Adapters of all benchmarks train together, as lanes that share passes. Lanes of all weights, and those on auxiliary
data, take turns. Learning rates that the search asks for beyond its grid (``choice``) are a wave of lanes more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product, starmap
from typing import TYPE_CHECKING, Any

from potentia.errors import ModelError, TuningError
from potentia.run.ask import Ask, Evaluation, SplitName, Style, evaluate
from potentia.run.choice import (
    Candidate,
    Ending,
    LanePlan,
    Peaks,
    is_behind,
    leaders,
    next_rate,
    past_its_best,
    peaks_of,
    score_on_the_way,
    validated,
)
from potentia.run.plan import CellPlan
from potentia.run.progress import Stopped, name_lanes_folder, remove_lanes_folder
from potentia.run.tuned import Begun, adapter, learned, on_threads, probe_row, schedule
from potentia.study import adjust_tuning, content_key
from potentia.timing import spending
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol
from potentia.values.selection import ProbeResult, Selection

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import FullLanes, Lane, LaneEpoch, LaneSpec, LaneTrainer, StepInfo
    from potentia.run.row import RowRun
    from potentia.tasks import Task


class FineTuning:
    """The tunings of one row: train-before-test, or adjust on auxiliary data."""

    trainer: LaneTrainer | FullLanes
    scorer: Scorer

    def __init__(self, row: RowRun, kind: Protocol, cells: Sequence[CellPlan]) -> None:
        self.row, self.kind = row, kind
        self.cells = {(cell.task, cell.protocol.step): cell for cell in cells}  # still to compute
        self.every = {cell.task: cell.key for cell in row.plan.cells if cell.protocol == kind}
        self.loaded, self.study, self.chat = row.loaded, row.study, row.chat
        adjust = self.study.adjust if kind == ADJUST else None
        self.auxiliary: Task | None = row.tasks.auxiliary if adjust else None
        self.tuning = (
            adjust_tuning(self.study, row.plan.model, self.loaded.parameters)
            if adjust
            else self.study.tuning
        )
        self.styles = (
            row.styles if adjust is None else row.styles[:1]
        )  # one tuning for all benchmarks: in one style
        self.at_steps = tuple(sorted(set(adjust.at_steps))) if adjust else ()
        self.every_rate = (
            adjust is not None and adjust.every_rate
        )  # test every lane at its end, whatever is chosen
        self.workspace = row.store.lanes_folder / name_lanes_folder(row.plan, kind)
        # what is found on the way
        self.benchmarks: dict[str, Task] = {}
        self.untuned: dict[tuple[str, Style], Candidate] = {}
        self.lanes: dict[str, LanePlan] = {}
        self.curves: dict[tuple[str, str], list[Candidate]] = {}  # by lane and task
        self.results: dict[str, Lane] = {}
        self.leads: dict[str, float] = {}  # the best validation so far, by task
        self.probes: Mapping[str, ProbeResult] = {}  # by task, where one was made
        self.began = self.committed = time.monotonic()
        self.tokens = 0
        self._texts: dict[tuple[str, Style], Any] = {}
        self._done = self._found = (
            0  # steps of the lanes that ended, and those that an earlier run had made
        )
        self._last: StepInfo | None = None
        self._alone: LanePlan | None = None  # the lane under way where lanes take turns
        self.lane_parts, self._apart = (
            1,
            False,
        )  # where rivals train in several parts, their race waits for all

    def run(self, pending: Sequence[str]) -> None:
        """Make every tuning, on the tasks and threads that it was begun with; then its folder is not needed."""
        tasks, every = self.row.tasks.by_name, list(self.every)
        waved = self.kind == TRAIN_BEFORE_TEST and self.tuning.method != "full"
        plan = self.row.plan
        begun = Begun(list(pending if waved else every), plan.threads, plan.lane_parts).at(
            self.workspace, every
        )
        if plan.lane_part is not None and plan.lane_parts != begun.lane_parts:
            return  # another run divides it otherwise
        self.lane_parts = begun.lane_parts
        self.benchmarks = {name: tasks[name] for name in (begun.tasks if waved else pending)}
        with on_threads(begun.threads):
            if self.kind == TRAIN_BEFORE_TEST and self.tuning.method == "full":
                self.probes = probe_row(self.row, begun.tasks, self.workspace, None)
            alone = self.tuning.method == "full" and self.auxiliary is None
            for names in [[name] for name in pending] if alone else [list(self.benchmarks)]:
                self._tune(names, [name for name in pending if name in names])
        if plan.lane_part is None:
            remove_lanes_folder(self.workspace)

    @property
    def together(self) -> bool:
        """Whether all lanes train in shared passes."""
        return self.auxiliary is None and self.tuning.method != "full"

    def _tune(self, names: Sequence[str], wanted: Sequence[str]) -> None:
        from potentia.engine.scoring import Scorer
        from potentia.engine.training import FullLanes, LaneTrainer

        self.scorer = Scorer(self.loaded, token_budget=self.study.token_budget)
        with spending("validate"):
            self._validate_untuned(names)
        self.lanes, self.results = {}, {}
        where: dict[str, Any] = {
            "token_budget": self.study.token_budget,
            "workspace": self.workspace,
        }
        made: LaneTrainer | FullLanes
        if self.tuning.method == "full":
            made = FullLanes(self.loaded, **where, shards=self.study.shards, looks=self.at_steps)
        else:
            made = LaneTrainer(self.loaded, **where)
        with made as self.trainer:
            self.scorer = Scorer(
                self.loaded, token_budget=self.study.token_budget, router=self.trainer.router
            )
            parts = self._parts(list(self._first_lanes(names)))
            while parts:
                wave = {lane.key: lane for part in parts for lane in part}
                self.lanes |= wave
                self._train(wave, parts)
                if self.row.plan.lane_part is not None:
                    return  # who chooses from these lanes finds them
                parts = self._parts(list(self._more_lanes()))
            if isinstance(self.trainer, LaneTrainer) and self.auxiliary is None:
                self.probes = probe_row(self.row, names, self.workspace, self.trainer)
            for name in wanted:
                try:
                    with spending("select"):
                        Ending(self, name).finish()
                except TuningError as error:
                    self.fail(name, error)

    # --- asking ------------------------------------------------------------------------------------------------------

    def ask(self, task: Task, split: SplitName, style: Style, owner: int | None = None) -> Ask:
        """Return a question to a lane, or to the untuned model, with the examples that the task is asked with."""
        name = next((name for name, one in self.benchmarks.items() if one is task), None)
        shots = 0 if name is None else self.study.shots_for(name, self.kind)
        return Ask(task, split, style, shots, self.study.seed, owner)

    def judge(self, name: str) -> Task:
        """Return whose validation documents choose for a benchmark: its own, else those held out of auxiliary data."""
        task, other = self.benchmarks[name], self.auxiliary
        if task.documents("validation") or other is None or not other.documents("validation"):
            return task
        return other

    def _validate_untuned(self, names: Sequence[str]) -> None:
        asks = {
            (n, style): self.ask(self.judge(n), "validation", style)
            for n in names
            for style in self.styles
        }
        worth = dict.fromkeys(
            asks.values(), (math.nan, math.nan, "")
        )  # benchmarks may have one judge
        self.phase(
            "validating untuned", sum(len(ask.task.documents("validation")) for ask in worth)
        )
        for ask in worth:
            if ask.task.documents("validation"):
                (made,) = evaluate(self.scorer, [ask], chat=self.chat, progress=self.row.progress)
                worth[ask] = validated(made)
        for (name, style), ask in asks.items():
            value, error, right = worth[ask]
            up = ask.task.higher_is_better
            self.untuned[name, style] = Candidate(style, 0, value, error, right=right, up=up)

    # --- the lanes ---------------------------------------------------------------------------------------------------

    def data(self, lane: LanePlan) -> Task:
        """Return what a lane learns from."""
        return self.auxiliary or self.benchmarks[lane.data]

    def epochs(self, lane: LanePlan) -> int:
        """Return the epochs of a lane."""
        return self.tuning.rounds(len(self.data(lane).documents("train")))[0]

    def served(self, lane: LanePlan) -> Sequence[str]:
        """Return the benchmarks that a lane is for."""
        return (lane.data,) if self.auxiliary is None else tuple(self.benchmarks)

    def _lane(self, data: str, style: Style, rate: float, seed: int) -> LanePlan:
        what = (
            {"task": self.benchmarks[data]}
            if self.auxiliary is None
            else {"adjust": self.auxiliary}
        )
        content = {kind: task.fingerprint for kind, task in what.items()}
        model, tuning = self.loaded.fingerprint, self.tuning
        key = content_key(model=model, form=style, rate=rate, seed=seed, tuning=tuning, **content)
        return LanePlan(key, data, style, rate, seed)

    def _first_lanes(self, names: Sequence[str]) -> Iterator[LanePlan]:
        data = names if self.auxiliary is None else [self.auxiliary.name]
        seeds = range(self.study.seed, self.study.seed + self.study.seeds)
        return starmap(self._lane, product(data, self.styles, self.tuning.learning_rates, seeds))

    def _parts(self, wave: list[LanePlan]) -> list[list[LanePlan]]:
        """Return the lanes of a wave by who trains together; the first wave may be divided, and some of it be asked."""
        if not self.together:
            return [[lane] for lane in wave]
        if not wave or self.lanes or self.lane_parts == 1:
            return [wave] if wave else []
        wanted = self.row.plan.lane_part
        return [wave[k :: self.lane_parts] for k in range(self.lane_parts) if wanted in (None, k)]

    def _more_lanes(self) -> Iterator[LanePlan]:
        """Yield the lanes one rung beyond the ends that lead, for any benchmark that they serve."""
        for group in dict.fromkeys(lane.rivals for lane in self.lanes.values()):
            first = next(lane for lane in self.lanes.values() if lane.rivals == group)
            asked = {
                next_rate(self.peaks(name, group), self.tuning.rate_bounds)
                for name in self.served(first)
                if self.judge(name).documents("validation")
            }
            for rate in sorted(rate for rate in asked if rate is not None):
                yield self._lane(first.data, first.style, rate, first.seed)

    def _spec(self, lane: LanePlan) -> LaneSpec:
        from potentia.engine.training import LaneSpec

        place = (lane.data, lane.style)
        if place not in self._texts:
            chat = self.chat if lane.style == "chat" else None
            self._texts[place] = learned(self.tuning, self.loaded, [self.data(lane)], chat=chat)
        documents = len(self.data(lane).documents("train"))
        plan = schedule(self.tuning, lane.learning_rate, documents)
        return LaneSpec(lane.key, self._texts[place], plan, adapter(self.tuning), lane.seed)

    # --- what validation says ----------------------------------------------------------------------------------------

    def states(self, name: str, seed: int | None = None) -> list[Candidate]:
        """Return the tuned states that may be chosen for a benchmark, so far; those of all seeds or of one."""
        mine = [
            lane
            for lane in self.lanes.values()
            if name in self.served(lane) and seed in (None, lane.seed)
        ]
        known = [
            (c, lane) for lane in mine for c in self.curves.get((lane.key, name), ()) if c.tuned
        ]
        return [c for c, lane in known if self.auxiliary is None or c.epoch == self.epochs(lane)]

    def peaks(self, name: str, group: tuple[str, Style, int]) -> Peaks:
        """Return the best state of every learning rate of a search."""
        return peaks_of(
            [lane for lane in self.lanes.values() if lane.rivals == group], self.states(name)
        )

    # --- what the store and the board hear ---------------------------------------------------------------------------

    def tell(
        self, lane: LanePlan, name: str, status: str, *, note: str = "", selected: bool = False
    ) -> None:
        """Tell what a lane is worth on a benchmark so far; one lane on auxiliary data has a curve for each."""
        from potentia.store import EpochRecord, LaneRecord

        curve = self.curves[lane.key, name]
        if all(math.isnan(candidate.value) for candidate in curve):
            return
        record = LaneRecord(
            key=lane.key if self.auxiliary is None else content_key(lane=lane.key, task=name),
            study=self.row.plan.study_key,
            model=self.row.plan.model.name,
            task=name,
            learning_rate=lane.learning_rate,
            style=lane.style,
            seed=lane.seed,
            status=status,
            cell=self.every[name],
            epochs=tuple(
                EpochRecord(c.epoch, c.loss, c.value, c.stderr, c.seconds, c.tokens) for c in curve
            ),
            selected=selected,
            note=note,
        )
        self.row.store.save_lane(record)
        best = max if self.benchmarks[name].higher_is_better else min
        self.leads[name] = best(
            [*(c.value for c in curve), *([self.leads[name]] if name in self.leads else [])]
        )
        self.row.board.note(validation=f"{name} {self.leads[name]:.3f}", best=dict(self.leads))

    def commit(
        self,
        task: str,
        step: int | None,
        test: Evaluation,
        selection: Selection,
        direct: float | None = None,
    ) -> None:
        """Commit a cell; a score that is no number fails it alone."""
        cell, now = self.cells.pop((task, step)), time.monotonic()
        how: dict[str, Any] = {"seconds": now - self.committed, "probe": self.probes.get(task)}
        try:
            self.row.commit(cell, test, selection=selection, direct_value=direct, **how)
        except ModelError as error:
            self.row.fail(cell, error)
        self.committed = now

    def keep(self, task: str, chosen: Candidate) -> None:
        """Keep the chosen adapter beside the store, where the study wants it; all weights of a model are not kept."""
        save = getattr(self.trainer, "save_peft", None)
        if save is None or chosen.lane is None or not self.study.keep_adapters:
            return
        plan = self.row.plan  # an adapter tuned on few bits goes on the whole model too
        print_of = (
            plan.model_fingerprint if plan.model.copy_of is not None else plan.original_fingerprint
        )
        few = {"quantise": plan.model.quantise} if plan.model.quantise else {}
        base = {"fingerprint": print_of, "source": plan.model.source, **few}
        write = partial(save, chosen.lane.key, epoch=chosen.epoch)
        with spending("save"):
            self.row.store.keep_adapter(self.cells[task, None].key, write, {"base": base})

    def fail(self, task: str, error: Exception | str) -> None:
        """Record the missing cells of a task as failed."""
        for place in [place for place in self.cells if place[0] == task]:
            self.row.fail(self.cells.pop(place), error)

    def phase(self, name: str, total: int, unit: str = "docs") -> None:
        """Begin a phase on the board."""
        self.began, self.tokens = time.monotonic(), 0
        self.row.board.phase(name, total=total, unit=unit, tokens_per_second=None)

    def stop(self) -> bool:
        """Say whether the row is to stop."""
        return self.row.stop()

    # --- training ----------------------------------------------------------------------------------------------------

    def _train(self, wave: Mapping[str, LanePlan], parts: Sequence[Sequence[LanePlan]]) -> None:
        """Train every lane of a wave to its end."""
        specs = {lane.key: self._spec(lane) for lane in wave.values()}
        on_data = f" on {self.auxiliary.name}" if self.auxiliary is not None else ""
        more = ", more rates" if len(wave) < len(self.lanes) else ""
        self.phase(
            f"tuning{on_data}{more}", sum(spec.total_steps for spec in specs.values()), "steps"
        )
        for key, lane in wave.items():
            for name in self.served(lane):
                self.curves[key, name] = [self.untuned[name, lane.style]]
        self._done = self._found = 0
        self._apart = self.together and self.lane_parts > 1 and len(wave) == len(self.lanes)
        for part in parts:
            self._last, batch = None, [specs[lane.key] for lane in part]
            self._alone = part[0] if not self.together else None
            with spending("train"):
                heard: dict[str, Any] = {
                    "on_step": self._on_step,
                    "on_recall": self._note_all,
                    "stop": self.stop,
                }
                made = self.trainer.train(batch, on_epoch=self._on_epoch, **heard)
            self.results |= made
            for lane in part:
                self._tell_end(lane)
            if any(result.status == "interrupted" for result in made.values()):
                raise Stopped
            steps = sum(spec.total_steps for spec in batch)
            self._done += steps
            self._found += self._last.before if self._last is not None else steps
        if self._apart and self.tuning.race and self.row.plan.lane_part is None:
            self._apart = False
            self._race(wave)

    def _tell_end(self, lane: LanePlan) -> None:
        result = self.results[lane.key]
        for name in self.served(lane):
            self.tell(lane, name, result.status, note=result.reason or "")

    def _race(self, wave: Mapping[str, LanePlan]) -> None:
        """Drop the lanes that would have been dropped beside their rivals, and what they were after that."""
        ended = {key: list(self.results[key].epochs) for key in wave}
        for key, name in [(key, name) for key, lane in wave.items() for name in self.served(lane)]:
            self.curves[key, name] = self.curves[key, name][:1]
        for epoch in range(1, 1 + max(map(len, ended.values()))):
            due = [wave[key] for key, epochs in ended.items() if len(epochs) >= epoch]
            self._note_all(ended[lane.key][epoch - 1] for lane in due)
            for lane in [
                lane for lane in due if epoch < self.epochs(lane) and self._is_lost(lane, epoch)
            ]:
                result = self.results[lane.key]
                result.epochs = ended.pop(lane.key)[:epoch]
                result.status, result.reason, result.step = "dropped", None, result.epochs[-1].step
                self._tell_end(lane)

    def _on_epoch(self, ended: list[LaneEpoch]) -> set[str]:
        asks = {
            (e.key, name): self.ask(
                self.judge(name), "validation", self.lanes[e.key].style, self.trainer.slot(e.key)
            )
            for e in ended
            for name in self._validated(self.lanes[e.key], e.epoch)
        }
        worth = self._evaluate(dict.fromkeys(asks.values()))
        by_key = {epoch.key: epoch for epoch in ended}
        for (key, name), ask in asks.items():
            by_key[key].notes[name] = list(validated(worth[ask]))
        self._note_all(ended)
        for epoch in ended:
            for name in self.served(self.lanes[epoch.key]):
                self.tell(self.lanes[epoch.key], name, "training")
        self._hold()
        if not self.tuning.race:
            return set()
        return {e.key for e in ended if self._is_lost(self.lanes[e.key], e.epoch)}

    def _validated(self, lane: LanePlan, epoch: int) -> list[str]:
        """Return the benchmarks to validate a lane on after an epoch."""
        if self.auxiliary is not None and epoch < self.epochs(lane) and not self.tuning.race:
            return []
        return [name for name in self.served(lane) if self.judge(name).documents("validation")]

    def _evaluate(self, asks: Iterable[Ask]) -> dict[Ask, Evaluation]:
        asked = list(asks)
        batches = [asked] if self.together else [[ask] for ask in asked]
        with spending("validate"):
            made = [
                one
                for batch in batches
                if batch
                for one in evaluate(self.scorer, batch, chat=self.chat)
            ]
        return dict(zip(asked, made, strict=True))

    def _note_all(self, epochs: Iterable[LaneEpoch]) -> None:
        """Add epochs to the curves of their lanes; one that was to be validated and could not is worth NaN."""
        for epoch in epochs:
            lane = self.lanes[epoch.key]
            work = epoch.loss, epoch.tokens, epoch.seconds
            for name in self.served(lane):
                curve = [c for c in self.curves[lane.key, name] if c.epoch < epoch.epoch]
                if name in epoch.notes or epoch.epoch == self.epochs(lane):
                    value, error, *right = epoch.notes.get(name, (math.nan, math.nan))
                    up = self.judge(name).higher_is_better
                    curve.append(
                        Candidate(
                            lane.style,
                            epoch.epoch,
                            value,
                            error,
                            lane,
                            *work,
                            "".join(right),
                            up=up,
                        )
                    )
                self.curves[lane.key, name] = curve

    def _hold(self) -> None:
        """Let the trainer keep the states that lead, for each benchmark and search; adapters are all kept."""
        from potentia.engine.training import FullLanes

        if not isinstance(self.trainer, FullLanes):
            return
        seeds = {lane.seed for lane in self.lanes.values()}
        searches = [
            own for name in self.benchmarks for seed in seeds if (own := self.states(name, seed))
        ]
        held = [state for own in searches for state in (own if self.every_rate else leaders(own))]
        self.trainer.hold(
            {(state.lane.key, state.epoch) for state in held if state.lane is not None}
        )

    def _is_lost(self, lane: LanePlan, epoch: int) -> bool:
        """Say whether a lane cannot win on any of its tasks: it is past its best, or behind after a third."""
        names, epochs = self._validated(lane, epoch), self.epochs(lane)
        rivals = [other for other in self.lanes.values() if other.rivals == lane.rivals]
        for name in names:
            if self.auxiliary is None and past_its_best(self.curves[lane.key, name]):
                continue
            same = {
                other: c
                for other in rivals
                for c in self.curves.get((other.key, name), ())
                if c.epoch == epoch
            }
            if self._apart or 3 * epoch < epochs or not is_behind(lane, same, epochs - 1):
                return False
        return bool(names)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _on_step(self, info: StepInfo) -> None:
        self._last = info
        self.tokens += info.tokens
        rate = self.tokens / max(time.monotonic() - self.began, 1e-9)
        facts = {
            "lanes_active": info.active,
            "lanes_waiting": info.waiting,
            "tokens_per_second": rate,
        }
        self.row.board.reach(self._done + info.done, before=self._found + info.before, **facts)
        if self._alone is not None and info.done in self.at_steps:
            score_on_the_way(self, self._alone, info.done)


def tune_row(row: RowRun, kind: Protocol, cells: Sequence[CellPlan]) -> None:
    """Compute the cells of one tuned protocol; each is committed as soon as it is tested."""
    tuned, tasks = FineTuning(row, kind, cells), row.tasks.by_name
    pending = list(dict.fromkeys(cell.task for cell in cells))
    for name in pending if kind == TRAIN_BEFORE_TEST else ():
        if not (tasks[name].documents("train") and tasks[name].documents("validation")):
            tuned.fail(
                name,
                f"{name} has no documents to train on; use the protocol adjust with auxiliary data",
            )
    pending = [name for name in pending if any(place[0] == name for place in tuned.cells)]
    if pending:
        tuned.run(pending)
