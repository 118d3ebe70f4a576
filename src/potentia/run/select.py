"""Choosing a model for one's own data: all candidates tuned identically, the weaker dropped early, the rest tested.

The rounds are ordinary studies in one store: direct scores of all, then train-before-test on a share of the training
documents with hardly a test document (validation decides who stays), then the finalists on all of it, tested once.
Run again, everything that is there is found again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potentia.analysis.planning import Choice, Standing
from potentia.analysis.rankings import find_scoreboard
from potentia.analysis.stats import stay_in
from potentia.errors import InputError, PotentiaError
from potentia.run.execute import RunResult, default_workers, run_study
from potentia.run.local import Stay
from potentia.run.plan import load_tasks, plan_study
from potentia.run.progress import opened
from potentia.study import Study
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store

LEAST = 32  # training documents of the first round, at least
GLANCE = 8  # test documents of a round that decides by validation: they are not looked at


@dataclass
class Race:
    """The state of a selection as it goes."""

    study: Study
    budget: float | None = None  # seconds
    tell: Callable[[str], Any] = lambda _: None  # what is going on
    note: Callable[[str], Any] = lambda _: None  # what is to be known of the data
    workers: int = 0  # at once; 0 fits them to the GPUs
    last: str = ""  # key of the final round's study
    stay: Stay | None = None

    def run(self) -> Choice:
        """Run the rounds and return the answer; the data is read once, and a model stays loaded if memory allows."""
        from potentia.tasks import reading_once

        with reading_once(), Stay() as self.stay:
            return self._run()

    def _run(self) -> Choice:
        began = time.monotonic()
        if len(self.study.benchmarks()) != 1:
            raise InputError("a selection is on one task", hint="give one --data; several tasks are a study")
        task = next(iter(load_tasks(self.study).benchmarks.values()))
        for note in task.notes:
            self.note(note)
        if not task.documents("train") or not task.documents("validation"):
            raise InputError(f"{task.name} has too few documents to tune and to choose by", hint="give more rows")
        names = [row.name for row in self.study.rows()]
        self.tell(f"direct scores of {len(names)} models")
        direct = self._round(names, "direct", protocols=(DIRECT,))
        problems = self._problems(direct[1], names)
        racing = [name for name in names if name not in problems]
        if not racing:
            raise PotentiaError("no candidate could be scored", hint=next(iter(problems.values()), ""))
        out: dict[str, tuple[int, float, float]] = {}  # model → round, P(best) then, validation then
        whole = len(task.documents("train"))
        sizes, notes, standing = rounds(len(racing), whole), [], ""
        for number, size in enumerate(sizes[:-1], start=1):
            start = time.monotonic()
            now = f"round {number} of {len(sizes)}: {len(racing)} models on {size} documents"
            self.tell(f"{now} · {standing}" if standing else now)
            cells, result = self._round(racing, f"round-{number}", train=size, test=GLANCE)
            problems |= self._problems(result, racing)
            seen = {c.model: c for c in cells if c.model in racing}
            racing = [name for name in racing if name in seen]
            if not racing:
                raise PotentiaError("no candidate could be tuned", hint=next(iter(problems.values()), ""))
            told = {m: _validated(seen[m], len(task.documents("validation"))) for m in racing}
            values, errors = {m: told[m][0] for m in racing}, {m: told[m][1] for m in racing}
            right = {m: str(seen[m].selection.get("validation_right", "")) for m in racing}
            up, looks = task.higher_is_better, len(sizes) - 1
            staying, chance = stay_in(values, errors, right, higher_is_better=up, looks=looks, seed=self.study.seed)
            leader = max(chance, key=lambda m: chance[m])
            standing = f"{leader} leads (P(best) {chance[leader]:.2f})"
            spent = time.monotonic() - start
            left = math.inf if self.budget is None else self.budget - (time.monotonic() - began)
            each = spent / len(racing) * sizes[number] / size
            if each * len(staying) > left and len(staying) > 2:
                keep = max(2, int(left / each))
                enough = f"{min(keep, len(staying))} of the {len(staying)} models"
                notes.append(f"The budget was enough for {enough} that might win.")
                staying = staying[:keep]
            out |= {m: (number, chance[m], values[m]) for m in racing if m not in staying}
            racing = [name for name in racing if name in staying]
            if each * len(racing) > left:  # not even they fit: all get the same, smaller share
                fits = max(size, int(sizes[number] * max(left, 0.0) / (each * len(racing))))
                sizes[number:] = [min(fits, s) for s in sizes[number:]]
                notes.append(f"The budget was enough for {fits} of {whole} training documents.")
        self.tell(f"the last {len(racing)} on {sizes[-1]} documents{f' · {standing}' if standing else ''}")
        cells, result = self._round(racing, "final", train=sizes[-1])
        problems |= self._problems(result, racing)
        return self._answer(task, direct[0], cells, out, problems, time.monotonic() - began, sizes[-1], notes)

    def _round(
        self,
        models: Sequence[str],
        name: str,
        *,
        protocols: Sequence[Protocol] = (TRAIN_BEFORE_TEST,),
        train: int | None = None,
        test: int | None = None,
    ) -> tuple[list[CellRecord], RunResult]:
        caps = self.study.caps.model_copy(update={k: v for k, v in (("train", train), ("test", test)) if v is not None})
        study = self.study.model_copy(
            update={
                "name": f"{self.study.name}-{name}",
                "models": tuple(row for row in self.study.rows() if row.name in models),
                "protocols": tuple(protocols),
                "caps": caps,
                "keep_adapters": name == "final",
            }
        )
        plan = plan_study(study)
        result = run_study(plan, workers=self.workers or default_workers(plan), stay=self.stay)
        if result.interrupted:
            raise KeyboardInterrupt
        self.last = result.study
        with opened(study.store, readonly=True) as store:
            return list(store.cells(study=result.study)), result

    def final(self, store: Store, model: str) -> CellRecord:
        """Return a finalist's cell."""
        return next(c for c in store.cells(study=self.last) if c.model == model)

    @staticmethod
    def _problems(result: RunResult, models: Sequence[str]) -> dict[str, str]:
        return {
            model: reason.removeprefix(model).partition(": ")[2]
            for reason in result.reasons
            for model in models
            if reason.startswith((f"{model} × ", f"{model}, "))
        }

    def _answer(
        self,
        task: Any,
        direct: Sequence[CellRecord],
        final: Sequence[CellRecord],
        out: dict[str, tuple[int, float, float]],
        problems: dict[str, str],
        seconds: float,
        train: int,
        notes: Sequence[str],
    ) -> Choice:
        if not final:
            raise PotentiaError("no finalist could be tuned", hint=next(iter(problems.values()), ""))
        from potentia.evidence import read

        board = find_scoreboard(read(self.study.store, study=self.last))  # what every other door says of this store
        ranking, missing, scores = board.ranking, board.missing, {c.model: c.score for c in final}
        before = {c.model: c for c in direct}
        each = max((c.seconds / max(c.score.n, 1) for c in before.values()), default=math.nan)
        chance = dict(zip(ranking.models, ranking.p_first.tolist(), strict=True))
        validation = {m: value for m, (_, _, value) in out.items()}
        validation |= {c.model: _number(c.selection.get("validation")) for c in final}
        standings = [
            Standing(
                model=m,
                direct=before[m].score.value if m in before else math.nan,
                direct_stderr=before[m].score.stderr if m in before else math.nan,
                tuned=scores[m].value if m in scores else math.nan,
                tuned_stderr=scores[m].stderr if m in scores else math.nan,
                validation=validation.get(m, math.nan),
                p_best=chance.get(m, math.nan) if len(chance) > 1 else 1.0 if m in chance else math.nan,
                out=out[m][0] if m in out else None,
                problem=problems.get(m, "") if m not in scores else "",
            )
            for m in (row.name for row in self.study.rows())
        ]
        standings.sort(key=lambda s: (-s.p_best if s.p_best == s.p_best else 0.0, s.out is None))
        return Choice(
            task=task.name,
            metric=task.metric,
            ranking=ranking,
            missing=missing,
            lost=min(sum(chance for _, chance, _ in out.values()), 1.0),
            seconds=seconds,
            more_seconds=each * 2 * missing.documents if missing is not None and missing.documents else math.nan,
            train=train,
            standings=tuple(standings),
            notes=tuple(notes),
        )


def rounds(candidates: int, documents: int) -> list[int]:
    """Training documents of each round: all at once for two candidates, a quarter first for a few, a ninth for many."""
    if candidates <= 2 or documents <= LEAST:
        return [documents]
    shares = [1 / 4] if candidates <= 6 else [1 / 9, 1 / 3]
    early = sorted({max(LEAST, int(documents * share)) for share in shares})
    return [*(size for size in early if size < documents), documents]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _validated(cell: CellRecord, documents: int) -> tuple[float, float]:
    """Return the validation value of a cell's chosen state, and its standard error.

    Without one that of a share, which is an upper bound for other metrics of the unit interval.
    """
    value, error = (_number(cell.selection.get(key)) for key in ("validation", "validation_stderr"))
    p = min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.5
    return value, error if error > 0 else math.sqrt((p * (1 - p) + 1.0 / documents) / documents)
