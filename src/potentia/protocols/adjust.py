"""Adjusting for training on the test task: tune every model on the same auxiliary data, then score the benchmarks.

Unlike train-before-test, the data are not the benchmark's own train split but any set of examples of the task's kind
(section 2.1 of "Training on the test task"): one fine-tuning per model and learning rate serves all benchmarks. The
benchmarks can also be scored at given optimizer steps, which shows emergence against the amount of training (figure 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import TuningError
from potentia.protocols.ask import Ask, Evaluation, Form, evaluate
from potentia.protocols.selection import Candidate, select
from potentia.protocols.train_before_test import LanePlan, Point, Stopped, Watcher, improves, schedule
from potentia.study import Selection, Tuning, content_key

if TYPE_CHECKING:
    from potentia.engine import LoadedModel
    from potentia.engine.tuning import FullStep, StepInfo
    from potentia.tasks import ChatTemplate, Task


@dataclass(frozen=True)
class AdjustedResult:
    """A benchmark's score after the common tuning."""

    test: Evaluation
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    direct_value: float | None
    kept_direct: bool

    def selection(self) -> dict[str, Any]:
        """Return what was chosen and why, as plain values for the store."""
        return {
            "tuned": self.chosen.tuned and not self.kept_direct,
            "form": self.chosen.form,
            "learning_rate": self.chosen.learning_rate,
            "validation": self.chosen.value,
            "kept_direct": self.kept_direct,
        }


@dataclass
class Adjustment:
    """The common tuning of one model, and the benchmarks scored after it."""

    loaded: LoadedModel
    data: Task
    tasks: Mapping[str, Task]
    tuning: Tuning
    watcher: Watcher
    form: Form = "plain"
    chat: ChatTemplate | None = None
    seed: int = 0
    choice: Selection = "validation"
    at_steps: tuple[int, ...] = ()
    token_budget: int | None = None
    workspace: Path | None = None
    candidates: dict[str, list[Candidate]] = field(default_factory=dict)
    partial: Callable[[str, int, Evaluation], None] = field(init=False)
    tests: dict[str, Evaluation] = field(default_factory=dict)  # of the best candidate so far, per task

    def run(
        self,
        wanted: Sequence[str],
        direct: Callable[[str], Evaluation | None],
        partial: Callable[[str, int, Evaluation], None],
    ) -> Iterator[tuple[str, AdjustedResult]]:
        """Tune on the auxiliary data and yield every wanted benchmark's result.

        ``direct`` gives the direct test evaluation of a benchmark; ``partial`` receives the scores at the given steps
        as soon as they are there, so that a stopped run need not make them again.
        """
        self.partial = partial
        from potentia.engine.scoring import Scorer

        scorer = Scorer(self.loaded, token_budget=self.token_budget)
        self.watcher.phase("validating untuned", 0)
        for name in wanted:
            value, error = self._validate(name, scorer, None)
            self.candidates[name] = [Candidate(self.form, 0, None, self.seed, value, error)]
        tune = self._tune_full if self.tuning.method == "full" else self._tune_lora
        for rate in self.tuning.learning_rates:
            tune(wanted, rate)
        for name in wanted:
            yield name, self._result(name, scorer, direct(name))

    # --- tuning ------------------------------------------------------------------------------------------------------

    def _lane(self, rate: float) -> LanePlan:
        key = content_key(
            model=self.loaded.fingerprint,
            adjust=self.data.fingerprint,
            form=self.form,
            rate=rate,
            seed=self.seed,
            tuning=self.tuning,
        )
        return LanePlan(key, self.data.name, self.form, rate, self.seed)

    def _examples(self) -> Any:
        from potentia.engine.tuning import encode_examples

        examples = self.data.examples(self.data.documents("train"), chat=self.chat if self.form == "chat" else None)
        return encode_examples(self.loaded.encoder, examples, end_id=self.loaded.tokenizer.eos_token_id)

    def _tune_lora(self, wanted: Sequence[str], rate: float) -> None:
        from potentia.engine.scoring import Scorer
        from potentia.engine.tuning import LaneSpec, LaneTrainer, LoraConfig

        tuning, lane = self.tuning, self._lane(rate)
        lora = LoraConfig(r=tuning.rank, alpha=tuning.alpha, dropout=tuning.dropout, targets=tuning.targets)
        spec = LaneSpec(lane.key, self._examples(), schedule(self.tuning, rate), lora, self.seed)
        self.watcher.phase(f"adjusting on {self.data.name}", spec.total_steps)
        with LaneTrainer(self.loaded, token_budget=self.token_budget, workspace=self.workspace) as trainer:
            scorer = Scorer(self.loaded, token_budget=self.token_budget, router=trainer.router)
            due = set(self.at_steps)

            def on_step(info: StepInfo) -> None:
                self.watcher.step(info)
                if info.step in due:
                    self._at_step(wanted, scorer, info.step, trainer.slot(lane.key))

            result = trainer.train([spec], on_step=on_step, stop=self.watcher.stop)[lane.key]
            if result.status == "interrupted":
                raise Stopped
            if result.status == "failed":
                raise TuningError(f"tuning on {self.data.name} failed: {result.reason}")
            owner = trainer.restore(lane.key, result.epochs[-1].epoch)
            self._last(wanted, scorer, lane, owner)

    def _tune_full(self, wanted: Sequence[str], rate: float) -> None:
        from potentia.engine.scoring import Scorer
        from potentia.engine.tuning import FullTrainer, StepInfo

        lane, examples, plan = self._lane(rate), self._examples(), schedule(self.tuning, rate)
        self.watcher.phase(f"adjusting on {self.data.name}", plan.total_steps(len(examples)))
        with FullTrainer(self.loaded, token_budget=self.token_budget, workspace=self.workspace) as trainer:
            scorer = Scorer(self.loaded, token_budget=self.token_budget)

            before: list[int] = []

            def on_step(done: FullStep) -> None:
                before.append(done.step - 1)
                self.watcher.step(StepInfo(done.step, 1, 0, plan.batch, tokens=0, done=done.step, before=before[0]))

            made = trainer.train(
                examples,
                plan,
                seed=self.seed,
                checkpoints=self.at_steps,
                on_checkpoint=lambda done: self._at_step(wanted, scorer, done.step, None),
                on_step=on_step,
                stop=self.watcher.stop,
            )
            if len(made) < plan.total_steps(len(examples)):
                raise Stopped
            self._last(wanted, scorer, lane, None)

    # --- scoring -----------------------------------------------------------------------------------------------------

    def _at_step(self, wanted: Sequence[str], scorer: Any, step: int, owner: int | None) -> None:
        for name in wanted:
            (made,) = evaluate(scorer, [Ask(self.tasks[name], "test", self.form, owner=owner)], chat=self.chat)
            self.partial(name, step, made)

    def _last(self, wanted: Sequence[str], scorer: Any, lane: LanePlan, owner: int | None) -> None:
        """Validate the tuned model on every benchmark, and test it where it leads: its weights are here only now."""
        for name in wanted:
            task, known = self.tasks[name], self.candidates[name]
            value, error = self._validate(name, scorer, owner)
            mine = Candidate(self.form, self.tuning.epochs, lane.learning_rate, self.seed, value, error, lane.key)
            known.append(mine)
            if not math.isnan(value):
                self._tell(name, lane, mine, selected=False)
            if self._best(name) is mine:
                (self.tests[name],) = evaluate(scorer, [Ask(task, "test", self.form, owner=owner)], chat=self.chat)

    def _tell(self, name: str, lane: LanePlan, tuned: Candidate, *, selected: bool) -> None:
        """One tuning serves all benchmarks; each has its own curve of it, from the untuned model to the end."""
        curve = [Point(c.epoch, c.value, c.stderr) for c in (self.candidates[name][0], tuned)]
        mine = replace(lane, key=content_key(lane=lane.key, task=name), task=name)
        self.watcher.lane(mine, curve, "done", selected=selected)

    def _validate(self, name: str, scorer: Any, owner: int | None) -> tuple[float, float]:
        if not self.tasks[name].documents("validation"):
            return math.nan, math.nan
        ask = Ask(self.tasks[name], "validation", self.form, owner=owner)
        (made,) = evaluate(scorer, [ask], chat=self.chat)
        return made.main.value, made.main.stderr

    def _best(self, name: str) -> Candidate:
        """Return the best candidate on validation; without validation (as in MMLU) the tuned model stands."""
        known = self.candidates[name]
        blind = not self.tasks[name].documents("validation")
        pool = [c for c in known if c.tuned] if self.choice != "validation" or blind else known
        return select(pool, higher_is_better=self.tasks[name].higher_is_better)

    def _result(self, name: str, scorer: Any, direct: Evaluation | None) -> AdjustedResult:
        task, chosen = self.tasks[name], self._best(name)
        if chosen.tuned:
            test = self.tests[name]
        else:
            (test,) = evaluate(scorer, [Ask(task, "test", self.form)], chat=self.chat)
        if chosen.tuned and chosen.learning_rate is not None and not math.isnan(chosen.value):
            self._tell(name, self._lane(chosen.learning_rate), chosen, selected=True)
        kept = self.choice == "paper" and direct is not None and not improves(test, direct, task)
        return AdjustedResult(
            test=direct if kept and direct is not None else test,
            chosen=chosen,
            candidates=tuple(self.candidates[name]),
            direct_value=None if direct is None else direct.main.value,
            kept_direct=kept,
        )
