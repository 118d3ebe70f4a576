"""Questions that several small studies answer, in one store: run again, everything that is there is found again.

**Choosing a model for one's own data**: all candidates tuned identically, the weaker dropped early, the rest tested.
The rounds are direct scores of all, then train-before-test on a share of the training documents with hardly a test
document (validation decides who stays), then the finalists on all of it, tested once.

**Elicitation**: a sample of a study's cells tuned with more capacity, by adapters of a higher rank and by all weights.
The ways differ from the study's recipe in this alone; each searches its own learning rate, as a study of its own, so
that the study's tables stay as they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from potentia.analysis.planning import CandidateStanding, ModelChoice
from potentia.analysis.rankings import Elicitation, build_scoreboard, measure_elicitation
from potentia.analysis.stats import select_survivors
from potentia.errors import InputError, PotentiaError
from potentia.run.execute import choose_worker_count, run_study
from potentia.run.executors.local import ModelSession
from potentia.run.plan import load_tasks, plan_study
from potentia.run.progress import open_store
from potentia.study import Study, Tuning
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol

if TYPE_CHECKING:
    from potentia.store import CellRecord, Store
    from potentia.tasks import Task

LEAST = 32  # training documents of the first round, at least
GLANCE = 8  # test documents of a round that decides by validation: they are not looked at


class Out(NamedTuple):
    """When a model was left behind: the round, and then its chance to be the best and its validation."""

    round: int
    chance: float
    validation: float


@dataclass
class Race:
    """The state of a selection as it goes."""

    study: Study
    budget: float | None = None  # seconds
    tell: Callable[[str], Any] = lambda _: None  # what is going on
    note: Callable[[str], Any] = lambda _: None  # what is to be known of the data
    workers: int = 0  # at once; 0 fits them to the GPUs
    last: str = ""  # key of the final round's study
    session: ModelSession | None = None
    problems: dict[str, str] = field(init=False, default_factory=dict)  # by model
    out: dict[str, Out] = field(init=False, default_factory=dict)
    notes: list[str] = field(init=False, default_factory=list)
    standing: str = field(init=False, default="")

    def run(self) -> ModelChoice:
        """Run the rounds and return the answer; the data is read once, and a model stays loaded if memory allows."""
        from potentia.tasks import reading_data_once

        with reading_data_once(), ModelSession() as self.session:
            return self._run()

    def _run(self) -> ModelChoice:
        began = time.monotonic()
        if len(self.study.benchmarks()) != 1:
            raise InputError(
                "a selection is on one task", hint="give one --data; several tasks are a study"
            )
        task = next(iter(load_tasks(self.study).by_name.values()))
        for note in task.notes:
            self.note(note)
        if not task.documents("train") or not task.documents("validation"):
            raise InputError(
                f"{task.name} has too few documents to tune and to choose by", hint="give more rows"
            )
        names = [row.name for row in self.study.rows()]
        self.tell(f"direct scores of {len(names)} models")
        direct = self._round(names, "direct", "scored", protocols=(DIRECT,))
        racing = [name for name in names if name not in self.problems]
        sizes = choose_round_sizes(len(racing), len(task.documents("train")))
        for number in range(1, len(sizes)):
            start, size = time.monotonic(), sizes[number - 1]
            now = f"round {number} of {len(sizes)}: {len(racing)} models on {size} documents"
            self.tell(f"{now} · {self.standing}" if self.standing else now)
            seen = self._round(racing, f"round-{number}", "tuned", train=size, test=GLANCE)
            racing, staying = (
                [name for name in racing if name in seen],
                self._staying(task, number, len(sizes), seen),
            )
            left = math.inf if self.budget is None else self.budget - (time.monotonic() - began)
            each = (time.monotonic() - start) / len(racing) * sizes[number] / size
            staying = self._affordable(staying, each, left)
            racing = [name for name in racing if name in staying]
            for name in racing:
                del self.out[name]
            if each * len(racing) > left:  # not even they fit: all get the same, smaller share
                fits = max(size, int(sizes[number] * max(left, 0.0) / (each * len(racing))))
                self.notes.append(
                    f"The budget was enough for {fits} of {sizes[-1]} training documents."
                )
                sizes[number:] = [min(fits, s) for s in sizes[number:]]
        self.tell(
            f"the last {len(racing)} on {sizes[-1]} documents{self.standing and f' · {self.standing}'}"
        )
        final = self._round(racing, "final", "tuned", train=sizes[-1])
        return self._answer(task, direct, final, time.monotonic() - began, sizes[-1])

    def _staying(
        self, task: Task, number: int, rounds: int, seen: Mapping[str, CellRecord]
    ) -> list[str]:
        """Return who may win by validation, the likeliest first; all are noted as out until they go on."""
        told = {m: _validated(cell, len(task.documents("validation"))) for m, cell in seen.items()}
        values, errors = ({m: one[k] for m, one in told.items()} for k in (0, 1))
        right = {m: cell.selection.validation_right for m, cell in seen.items()}
        how = {
            "higher_is_better": task.higher_is_better,
            "looks": rounds - 1,
            "seed": self.study.seed,
        }
        staying, chance = select_survivors(values, errors, right, **how)  # type: ignore[arg-type]
        leader = max(chance, key=lambda m: chance[m])
        self.standing = f"{leader} leads (P(best) {chance[leader]:.2f})"
        self.out |= {m: Out(number, chance[m], values[m]) for m in seen}
        return list(staying)

    def _affordable(self, staying: list[str], each: float, left: float) -> list[str]:
        """Return as many as the seconds left are enough for, two at least."""
        if each * len(staying) <= left or len(staying) <= 2:
            return staying
        keep = max(2, int(left / each))
        enough = f"{min(keep, len(staying))} of the {len(staying)} models"
        self.notes.append(f"The budget was enough for {enough} that might win.")
        return staying[:keep]

    def _round(
        self,
        models: Sequence[str],
        name: str,
        done: str,
        *,
        protocols: Sequence[Protocol] = (TRAIN_BEFORE_TEST,),
        **caps: int,
    ) -> dict[str, CellRecord]:
        """Run a round and return its cells by model, in the order of the models; the reasons of others are noted."""
        study = self.study.model_copy(
            update={
                "name": f"{self.study.name}-{name}",
                "models": tuple(row for row in self.study.rows() if row.name in models),
                "protocols": tuple(protocols),
                "caps": self.study.caps.model_copy(update=caps),
                "keep_adapters": name == "final",
            }
        )
        plan = plan_study(study)
        workers = self.workers or choose_worker_count(plan)
        result = run_study(plan, workers=workers, session=self.session)
        if result.interrupted:
            raise KeyboardInterrupt
        for failure in result.failures:
            self.problems[failure.model] = failure.reason
        self.last = result.study
        with open_store(study.store, readonly=True) as store:
            found = {cell.model: cell for cell in store.cells.read(study=result.study)}
        if not found:
            who = "finalist" if name == "final" else "candidate"
            raise PotentiaError(
                f"no {who} could be {done}", hint=next(iter(self.problems.values()), "")
            )
        return {model: found[model] for model in models if model in found}

    def final(self, store: Store, model: str) -> CellRecord:
        """Return a finalist's cell."""
        return next(c for c in store.cells.read(study=self.last) if c.model == model)

    def _answer(
        self,
        task: Task,
        direct: Mapping[str, CellRecord],
        final: Mapping[str, CellRecord],
        seconds: float,
        train: int,
    ) -> ModelChoice:
        from potentia.evidence import read

        board = build_scoreboard(
            read(self.study.store, study=self.last)
        )  # what every other door says of this store
        ranking, missing = board.ranking, board.missing
        each = max((c.seconds / max(c.score.n, 1) for c in direct.values()), default=math.nan)
        chance = dict(zip(ranking.models, ranking.p_first.tolist(), strict=True))
        if len(chance) == 1:
            chance = dict.fromkeys(chance, 1.0)
        validation = {m: out.validation for m, out in self.out.items()}
        validation |= {m: _number(cell.selection.validation) for m, cell in final.items()}

        def standing(model: str) -> CandidateStanding:
            return CandidateStanding(
                model,
                *_scored(direct.get(model)),
                *_scored(final.get(model)),
                validation.get(model, math.nan),
                p_best=chance.get(model, math.nan),
                dropped_in_round=self.out[model].round if model in self.out else None,
                problem="" if model in final else self.problems.get(model, ""),
            )

        standings = [standing(row.name) for row in self.study.rows()]
        standings.sort(
            key=lambda s: (-s.p_best if s.p_best == s.p_best else 0.0, s.dropped_in_round is None)
        )
        return ModelChoice(
            task=task.name,
            metric=task.metric,
            ranking=ranking,
            missing=missing,
            p_dropped_best=min(sum(out.chance for out in self.out.values()), 1.0),
            seconds=seconds,
            more_seconds=each * 2 * missing.documents
            if missing is not None and missing.documents
            else math.nan,
            train_documents=train,
            standings=tuple(standings),
            notes=tuple(self.notes),
        )


def choose_round_sizes(candidates: int, documents: int) -> list[int]:
    """Training documents of each round: all at once for two candidates, a quarter first for a few, a ninth for many."""
    if candidates <= 2 or documents <= LEAST:
        return [documents]
    shares = [1 / 4] if candidates <= 6 else [1 / 9, 1 / 3]
    early = sorted({max(LEAST, int(documents * share)) for share in shares})
    return [*(size for size in early if size < documents), documents]


def _scored(cell: CellRecord | None) -> tuple[float, float]:
    return (math.nan, math.nan) if cell is None else (cell.score.value, cell.score.stderr)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _validated(cell: CellRecord, documents: int) -> tuple[float, float]:
    """Return the validation value of a cell's chosen state, and its standard error.

    Without one that of a share, which is an upper bound for other metrics of the unit interval.
    """
    value = _number(cell.selection.validation)
    error = _number(cell.selection.validation_stderr)
    p = min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.5
    return value, error if error > 0 else math.sqrt((p * (1 - p) + 1.0 / documents) / documents)


# --- elicitation ------------------------------------------------------------------------------------------------------

RECIPE = "recipe"


def list_elicitation_recipes(tuning: Tuning, rank: int) -> dict[str, Tuning]:
    """Return the recipe, the same with a higher rank (its output scaled alike), and the same with all weights."""
    said = {
        name: value
        for name, value in tuning
        if name not in ("recipe", "method", "learning_rates", "rate_bounds")
    }
    more = (rank / tuning.rank) ** (0.5 if tuning.method == "rslora" else 1)
    higher = tuning.model_copy(update={"rank": rank, "alpha": tuning.alpha * more})
    return {RECIPE: tuning, f"rank {rank}": higher, "all weights": Tuning(method="full", **said)}


def run_elicitation(
    study: Study,
    *,
    models: Sequence[str] = (),
    tasks: Sequence[str] = (),
    rank: int = 64,
    workers: int = 1,
) -> Elicitation:
    """Tune the chosen cells of a study in every way and compare; all models and the first three tasks by default."""
    if study.tuning.method == "full":
        raise InputError(
            "the study tunes all weights already", hint="name a study whose recipe trains adapters"
        )
    rows = {row.name: row for row in study.rows() if row.copy_of is None}
    known = {task.name: task for task in study.benchmarks()}
    for wanted, there in ((models, rows), (tasks, known)):
        if unknown := [name for name in wanted if name not in there]:
            raise InputError(
                f"{unknown[0]} is not part of the study", hint=f"it has: {', '.join(there)}"
            )
    found = {}
    for name, tuning in list_elicitation_recipes(study.tuning, rank).items():
        small = study.model_copy(
            update={
                "name": f"{study.name}, {name}",
                "models": tuple(rows[model] for model in models or rows),
                "tasks": tuple(known[task] for task in tasks or list(known)[:3]),
                "protocols": (TRAIN_BEFORE_TEST,),
                "tuning": tuning,
                "treat": None,
                "only": None,
                "keep_adapters": False,
            }
        )
        result = run_study(small, workers=workers)
        if result.failed or result.interrupted:
            raise PotentiaError(
                result.reasons[0] if result.reasons else "stopped",
                hint="run the same command again",
            )
        with open_store(study.store, readonly=True) as store:
            matrix = store.scores.read_matrix(TRAIN_BEFORE_TEST, study=small.name)
        found[name] = matrix.select(
            models=[m.name for m in small.models], tasks=[t.name for t in small.tasks]
        )
    return measure_elicitation(RECIPE, found)
