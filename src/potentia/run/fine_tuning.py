"""The tuned protocols: the same fine-tuning for every model, selection on validation, then the test split once.

A tuning is a lane: (data, style, learning rate, seed). **Train-before-test** gives every benchmark lanes on its own
train split and validates them by the benchmark's metric after each epoch (section 3.1, appendix A.2 of the paper).
**Adjust** has one set of lanes on auxiliary data for all benchmarks (section 2.1 of "Training on the test task"),
validated at its end; the benchmarks can also be scored at given optimizer steps, which shows emergence against the
amount of training (figure 8). The candidates of a benchmark are its lanes' states and the untuned model. Nothing of
the test split enters the choice.

Adapters of all benchmarks train together, as lanes that share passes. Lanes of all weights, and those on auxiliary
data, take turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from potentia.errors import TuningError
from potentia.run.ask import Ask, Evaluation, SplitName, Style, evaluate
from potentia.run.training import Candidate, LanePlan, OnTheWay, Training, TunedResult, select
from potentia.study import Selection, Tuning, content_key
from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.engine.score import Scorer
    from potentia.engine.tune import FullLanes, LaneResult, LaneTrainer, StepInfo
    from potentia.tasks import ChatTemplate, Task


class Host(Protocol):
    """Whom the tuning serves: it says what is asked for, hears of progress, takes the results, and may stop it."""

    def asked(self, task: str, step: int | None) -> bool:
        """Say whether this score is wanted: after some steps, or (None) of the chosen state."""

    def direct(self, task: str, ready: Callable[[], None]) -> Evaluation | None:
        """Return the direct test evaluation, for the gain; ``ready`` is called before the untuned model is asked."""

    def commit(self, task: str, step: int | None, result: TunedResult) -> None:
        """Take a result."""

    def keep(self, task: str, save: Callable[[Path], None]) -> None:
        """Take the chosen adapter of a benchmark, which ``save`` writes into a folder; called before its commit."""

    def fail(self, task: str, error: Exception) -> None:
        """A benchmark has no result."""

    def lane(
        self,
        lane: LanePlan,
        task: str,
        curve: Sequence[Candidate],
        status: str,
        *,
        note: str = "",
        selected: bool = False,
    ) -> None:
        """A lane moved on or ended; ``curve`` is what it is worth on one task, from the untuned model on."""

    def phase(self, name: str, total: int, unit: str = "docs") -> None:
        """A new phase begins, with this much work."""

    def progress(self, amount: int) -> None:
        """Some of the phase's work is done."""

    def step(self, info: StepInfo) -> None:
        """A training step of all active lanes was made."""

    def stop(self) -> bool:
        """Say whether to stop now."""


@dataclass
class Tuned:
    """The tunings of one row: train-before-test, or adjust where there is ``auxiliary`` data."""

    loaded: LoadedModel
    benchmarks: Mapping[str, Task]
    tuning: Tuning
    host: Host
    auxiliary: Task | None = None
    styles: tuple[Style, ...] = ("plain",)
    chat: ChatTemplate | None = None
    seed: int = 0
    seeds: int = 1
    choice: Selection = "validation"
    at_steps: tuple[int, ...] = ()
    shots: Mapping[str, int] = field(default_factory=dict)  # examples before a question, by benchmark
    every_rate: bool = False  # test every lane at its end, whatever is chosen
    token_budget: int | None = None
    shards: int = 1  # processes of one full tuning
    workspace: Path | None = None
    untuned: dict[tuple[str, Style], Candidate] = field(default_factory=dict)
    curves: dict[tuple[str, str], list[Candidate]] = field(default_factory=dict)  # by lane and task
    on_the_way: OnTheWay = field(init=False)

    def __post_init__(self) -> None:
        self.on_the_way = OnTheWay(self.workspace / "on-the-way" if self.workspace else None)

    @property
    def together(self) -> bool:
        """Whether all lanes train in shared passes."""
        return self.auxiliary is None and self.tuning.method == "lora"

    def run(self, wanted: Sequence[str]) -> None:
        """Make every tuning and hand the wanted benchmarks' results to the host, each as soon as it is tested."""
        alone = self.tuning.method == "full" and self.auxiliary is None
        for names in [[name] for name in wanted] if alone else [list(self.benchmarks)]:
            self._tune(names, [name for name in wanted if name in names])

    def _tune(self, names: Sequence[str], wanted: Sequence[str]) -> None:
        from potentia.engine.score import Scorer
        from potentia.engine.tune import FullLanes, LaneTrainer

        with spending("validate"):
            self._validate_untuned(names, Scorer(self.loaded, token_budget=self.token_budget))
        lanes = {lane.key: lane for lane in self._lanes(names)}
        where: dict[str, Any] = {"token_budget": self.token_budget, "workspace": self.workspace}
        made: LaneTrainer | FullLanes
        if self.tuning.method == "full":
            made = FullLanes(self.loaded, **where, shards=self.shards, looks=self.at_steps)
        else:
            made = LaneTrainer(self.loaded, **where)
        with made as trainer:
            scorer = Scorer(self.loaded, token_budget=self.token_budget, router=trainer.router)
            results = Training(self, trainer, scorer, lanes).go()
            for name in wanted:
                try:
                    with spending("select"):
                        self._finish(name, lanes, results, trainer, scorer)
                except TuningError as error:
                    self.host.fail(name, error)

    # --- asking ------------------------------------------------------------------------------------------------------

    def ask(self, task: Task, split: SplitName, style: Style, owner: int | None = None) -> Ask:
        """Return a question to a lane, or to the untuned model, with the examples that the task is asked with."""
        shots = next((self.shots.get(name, 0) for name, one in self.benchmarks.items() if one is task), 0)
        return Ask(task, split, style, shots, self.seed, owner)

    def judge(self, name: str) -> Task:
        """Return whose validation documents choose for a benchmark: its own, else those held out of auxiliary data."""
        task = self.benchmarks[name]
        held = self.auxiliary is not None and self.auxiliary.documents("validation")
        return self.auxiliary if held and self.auxiliary and not task.documents("validation") else task

    # --- before: validation of the untuned model, the lanes --------------------------------------------------------

    def _validate_untuned(self, names: Sequence[str], scorer: Scorer) -> None:
        asks = {
            (name, style): self.ask(self.judge(name), "validation", style) for name in names for style in self.styles
        }
        apart = dict.fromkeys(asks.values())  # benchmarks without validation documents have one judge
        self.host.phase("validating untuned", sum(len(ask.task.documents("validation")) for ask in apart))
        worth = {}
        for ask in apart:
            worth[ask] = math.nan, math.nan
            if ask.task.documents("validation"):
                (made,) = evaluate(scorer, [ask], chat=self.chat, progress=self.host.progress)
                worth[ask] = made.main.value, made.main.stderr
        for (name, style), ask in asks.items():
            self.untuned[name, style] = Candidate(style, 0, *worth[ask])

    def _lanes(self, names: Sequence[str]) -> Iterator[LanePlan]:
        for name, data in (
            [(n, self.benchmarks[n]) for n in names] if self.auxiliary is None else [("", self.auxiliary)]
        ):
            content = {"task" if name else "adjust": data.fingerprint}
            for style in self.styles:
                for rate in self.tuning.learning_rates:
                    for seed in range(self.seed, self.seed + self.seeds):
                        model, tuning = self.loaded.fingerprint, self.tuning
                        key = content_key(model=model, form=style, rate=rate, seed=seed, tuning=tuning, **content)
                        yield LanePlan(key, name or data.name, style, rate, seed)

    def served(self, lane: LanePlan) -> Sequence[str]:
        """Return the benchmarks that a lane is for."""
        return (lane.data,) if self.auxiliary is None else tuple(self.benchmarks)

    # --- after: selection, then the test split once ------------------------------------------------------------------

    def states(self, name: str, lanes: Mapping[str, LanePlan]) -> list[Candidate]:
        """Return the tuned states that may be chosen for a benchmark, so far."""
        known = [c for key in lanes for c in self.curves.get((key, name), ()) if c.tuned]
        return known if self.auxiliary is None else [c for c in known if c.epoch == self.tuning.epochs]

    def best(self, name: str, candidates: Sequence[Candidate]) -> Candidate:
        """Return the best candidate on validation."""
        return select(candidates, higher_is_better=self.judge(name).higher_is_better)

    def _finish(
        self,
        name: str,
        lanes: Mapping[str, LanePlan],
        results: Mapping[str, LaneResult],
        trainer: LaneTrainer | FullLanes,
        scorer: Scorer,
    ) -> None:
        task = self.benchmarks[name]
        mine = {key: lane for key, lane in lanes.items() if name in self.served(lane)}
        failures = [
            f"{lane.learning_rate:g} {lane.style}: {results[key].reason}"
            for key, lane in mine.items()
            if results[key].reason
        ]
        tuned = self.states(name, mine)
        if not tuned:
            raise TuningError(f"every lane of {name} failed: {'; '.join(failures)}")
        untuned = [self.untuned[name, style] for style in self.styles]
        blind = not task.documents("validation")  # nothing to choose by (as in MMLU): the tuned model stands
        chosen, on_the_way = [], []
        for seed in range(self.seed, self.seed + self.seeds):
            own = [c for c in tuned if c.lane is not None and c.lane.seed == seed]
            forced = own and (blind or self.choice != "validation")
            chosen.append(self.best(name, own if forced else [*untuned, *own]))
            on_the_way += [self.best(name, own)] if own else []
        self._publish_steps(name, on_the_way)
        if not self.host.asked(name, None):
            return
        tests = []
        for best in chosen:
            if best.lane is None:
                trainer.bare()
            owner = trainer.restore(best.lane.key, best.epoch) if best.lane is not None else None
            self.host.phase(f"testing {name}", len(task.documents("test")))
            ask = self.ask(task, "test", best.style, owner)
            with spending("test"):
                tests += evaluate(scorer, [ask], chat=self.chat, progress=self.host.progress)
            if best.lane is not None:
                self.tell(best.lane, name, results[best.lane.key].status, selected=True)
        direct = self.host.direct(name, trainer.bare)
        test, kept_direct = Evaluation.mean(tests), False
        if self.choice == "paper" and direct is not None and not _improves(test, direct, task):
            test, kept_direct = direct, True
        ended = [results[key] for key in mine]
        selection = _told(chosen, tests) | {
            "tuned": chosen[0].tuned and not kept_direct,
            "kept_direct": kept_direct,
            "epochs_saved_by_race": sum(self.tuning.epochs - len(r.epochs) for r in ended if r.status == "dropped"),
            "target_modules": list(ended[0].targets),
            "failed_lanes": failures,
        }
        if any(best.lane is None for best in chosen) or kept_direct:
            selection["best_tuned"] = self._best_tuned(
                name, tuned, dict(zip(chosen, tests, strict=True)), trainer, scorer
            )
        if self.every_rate:
            made = dict(zip(chosen, tests, strict=True))
            selection["rates"] = [self._tested(name, one, made, trainer, scorer) for one in tuned]
        save = getattr(trainer, "save_peft", None)  # adapters can be taken away; all weights of a model are not kept
        if save is not None and chosen[0].lane is not None and not kept_direct:
            self.host.keep(name, partial(save, chosen[0].lane.key, epoch=chosen[0].epoch))
        self.host.commit(name, None, TunedResult(test, selection, direct.main.value if direct is not None else None))

    def _best_tuned(
        self,
        name: str,
        tuned: Sequence[Candidate],
        made: Mapping[Candidate, Evaluation],
        trainer: LaneTrainer | FullLanes,
        scorer: Scorer,
    ) -> dict[str, Any]:
        """Return the test score of the best tuned state, where the untuned model is kept: what ``tuned`` would be."""
        seeds: dict[int, list[Candidate]] = {}
        for state in tuned:
            assert state.lane is not None
            seeds.setdefault(state.lane.seed, []).append(state)
        told = [self._tested(name, self.best(name, own), made, trainer, scorer) for own in seeds.values()]
        return told[0] | {key: sum(one[key] for one in told) / len(told) for key in ("value", "stderr")}

    def _tested(
        self,
        name: str,
        state: Candidate,
        made: Mapping[Candidate, Evaluation],
        trainer: LaneTrainer | FullLanes,
        scorer: Scorer,
    ) -> dict[str, Any]:
        """Return a lane's test score at its end: what a larger budget of search is worth (appendix B.3)."""
        assert state.lane is not None
        if state not in made:
            owner = trainer.restore(state.lane.key, state.epoch)
            ask = self.ask(self.benchmarks[name], "test", state.style, owner)
            (test,) = evaluate(scorer, [ask], chat=self.chat)
        else:
            test = made[state]
        told = {"learning_rate": state.learning_rate, "style": state.style, "seed": state.lane.seed}
        told |= {"validation": state.value, "value": test.main.value, "stderr": test.main.stderr}
        return told | {"chosen": state in made}

    def _publish_steps(self, name: str, chosen: Sequence[Candidate]) -> None:
        """Hand over the scores on the way of the lanes that were chosen in the end."""
        for step in self.at_steps:
            if self.host.asked(name, step):
                tests = [self.on_the_way.get(c.lane.key, step, name) for c in chosen if c.lane is not None]
                selection = _told(chosen, tests) | {"step": step}
                del selection["epoch"]  # the end of the tuning, where the lane was chosen
                self.host.commit(name, step, TunedResult(Evaluation.mean(tests), selection))

    def tell(self, lane: LanePlan, name: str, status: str, *, note: str = "", selected: bool = False) -> None:
        """Tell the host what a lane is worth on a benchmark; one lane on auxiliary data has a curve for each."""
        curve = self.curves[lane.key, name]
        if any(not math.isnan(candidate.value) for candidate in curve):
            key = lane.key if self.auxiliary is None else content_key(lane=lane.key, task=name)
            self.host.lane(replace(lane, key=key), name, curve, status, note=note, selected=selected)


def trainable(task: Task) -> bool:
    """Say whether a task has documents to train on and to validate with."""
    return bool(task.documents("train") and task.documents("validation"))


def _told(chosen: Sequence[Candidate], tests: Sequence[Evaluation]) -> dict[str, Any]:
    """Return what was chosen, seed by seed, and how far the seeds' scores lie apart."""
    values = [test.main.value for test in tests]
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else None
    return {
        "style": chosen[0].style,
        "learning_rate": chosen[0].learning_rate,
        "epoch": chosen[0].epoch,
        "validation": chosen[0].value,
        "validation_stderr": chosen[0].stderr,
        "seeds": [
            {"value": v, "learning_rate": c.learning_rate, "epoch": c.epoch, "style": c.style, "validation": c.value}
            for v, c in zip(values, chosen, strict=True)
        ],
        "spread": spread,
    }


def _improves(test: Evaluation, direct: Evaluation, task: Task) -> bool:
    """Say whether the tuned test score beats the direct one (the question of ``selection: paper``)."""
    gain = test.main.value - direct.main.value
    return gain > 0 if task.higher_is_better else gain < 0
