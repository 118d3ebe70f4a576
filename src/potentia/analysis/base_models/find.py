"""Base models in training, whole: stability over checkpoints, consistency with instruct versions, and the methods.

A study names its checkpoints ``run@step``, and facts know the base of an instruct model, so both are usually found by
name; a CSV file says it for models that Potentia does not know.

Pretraining runs by their checkpoints: the mean score at every step, and from when on the order of the runs is final.

A study of checkpoints asks how runs grow, not which of sixteen models is best. Scores are means over the tasks that
every checkpoint has by every protocol, so that direct and tuned scores are of the same tests; intervals are of test
noise. At a step each run stands where its latest checkpoint does. The order of the runs has settled at a step when it
is the final one there and at every later step: a team that compares runs by a protocol may stop the others then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.base_models import stability as taus
from potentia.analysis.base_models.ablation import Ablation, compare_methods
from potentia.analysis.base_models.stability import Checkpoint, Consistency, Stability, by_series
from potentia.analysis.left_out import NO_ENTRIES, describe_left_out, drop_names_in, format_notes
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.wording import format_plus_minus
from potentia.errors import DataError, InputError
from potentia.files import csv_rows
from potentia.values.findings import (
    Chart,
    Finding,
    Findings,
    Line,
    Plot,
    Points,
    Table,
    short_names,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.facts import ModelTable

Z = 1.96  # half-width of an interval, in standard errors
LEAST = 3  # checkpoints of a series that has a course at all


@dataclass(frozen=True, eq=False)
class Run:
    """One pretraining run: its checkpoints, and by each protocol the mean score at each with its standard error."""

    series: str
    models: tuple[str, ...]  # in the order of their steps
    steps: Floats  # (checkpoints,)
    scores: Mapping[Protocol, Floats]
    errors: Mapping[Protocol, Floats]

    def tau(self, protocol: Protocol) -> float:
        """Kendall's tau between scores and steps: 1 where every later checkpoint scores higher."""
        return float(kendall_by_row(self.scores[protocol], self.steps))

    def at(self, protocol: Protocol, step: float) -> float:
        """Return the score of the latest checkpoint up to a step."""
        return float(self.scores[protocol][np.searchsorted(self.steps, step, side="right") - 1])


@dataclass(frozen=True)
class Training(Finding):
    """Every run of a study of checkpoints, best at its end first."""

    unit: str
    tasks: tuple[str, ...]
    protocols: tuple[Protocol, ...]  # from the least to the most preparation
    main: Protocol
    runs: tuple[Run, ...]
    whole: bool  # every model with a score is a checkpoint of one of these runs
    left_out: tuple[str, ...] = ()

    @property
    def finals(self) -> tuple[str, ...]:
        """The last checkpoint of every run."""
        return tuple(run.models[-1] for run in self.runs)

    @property
    def names(self) -> dict[str, str]:
        """The runs by the short names that people read."""
        series = [run.series for run in self.runs]
        return dict(zip(series, short_names(series), strict=True))

    @property
    def where(self) -> str:
        """The tasks that scores are of."""
        return f"over {len(self.tasks)} tasks" if len(self.tasks) > 1 else f"on {self.tasks[0]}"

    @property
    def mean(self) -> str:
        """What a score of a run is called."""
        return f"{'mean score' if len(self.tasks) > 1 else 'score'} {self.where}"

    def settled(self, protocol: Protocol) -> float | None:
        """Return the step from which on the order of the runs is their final one; None where it is only at the end."""
        steps = np.unique(np.concatenate([run.steps for run in self.runs]))
        steps = steps[steps >= max(run.steps[0] for run in self.runs)]
        scores = np.array(
            [[run.at(protocol, step) for step in steps] for run in self.runs]
        )  # (runs, steps)
        first, second = np.triu_indices(len(self.runs), 1)
        gaps = scores[first] - scores[second]  # (pairs, steps)
        turned = np.flatnonzero((gaps * gaps[:, -1:] <= 0).any(axis=0))
        start = int(turned[-1]) + 1 if len(turned) else 0
        return float(steps[start]) if start < len(steps) - 1 else None

    def headline(self) -> str:
        """Say which run ends best, or how far the one run came."""
        how = f"by {self.main.label}, {self.where}"
        best, *others = self.runs
        value, error = best.scores[self.main], best.errors[self.main]
        one = self.names[best.series]
        if not others:
            course = f"from {value[0]:.3f} to {value[-1]:.3f} in {len(best.steps)} checkpoints"
            return f"{one} comes {course} {how}."
        second = others[0]
        two, ahead = self.names[second.series], value[-1] - second.scores[self.main][-1]
        half = Z * float(np.hypot(error[-1], second.errors[self.main][-1]))
        if not ahead > half:
            return f"{one} and {two} end within test noise of each other {how}."
        return f"{one} ends first of {len(self.runs)} runs {how}: {ahead:.3f} ± {half:.3f} before {two}."

    def sentences(self) -> list[str]:
        """Say when the order of the runs settles by each protocol, and whether each run still grows."""
        said = []
        for protocol in self.protocols if len(self.runs) > 1 else ():
            step = self.settled(protocol)
            order = ", ".join(
                self.names[r.series]
                for r in sorted(self.runs, key=lambda r: -r.scores[protocol][-1])
            )
            when = "at the end alone" if step is None else f"from {self._step(step)} on"
            said.append(
                f"By {protocol.label} the order of the runs is the final one ({order}) {when}."
            )
        return said + [self._course(run) for run in self.runs]

    def _course(self, run: Run) -> str:
        value, error, last = run.scores[self.main], run.errors[self.main], len(run.steps) - 1
        best = int(np.argmax(value))
        other = best if best < last else last - 1
        real = abs(value[other] - value[-1]) > Z * float(np.hypot(error[other], error[-1]))
        taus = ", ".join(f"{run.tau(p):.2f} by {p.label}" for p in self.protocols)
        start = f"{self.names[run.series]}: Kendall's τ between scores and {self.unit} is {taus}; "
        if best == last:
            still = "it still grows at its end" if real else "its last step up is within test noise"
            return f"{start}{still} ({value[-1] - value[other]:+.3f} since {self._step(run.steps[other])})."
        cause = "beyond test noise" if real else "within test noise"
        lost = f"{value[best] - value[-1]:.3f} above its end"
        return f"{start}its best is at {self._step(run.steps[best])}, {lost}, {cause}."

    def _step(self, step: float) -> str:
        return f"{self.unit.removesuffix('s')} {step:,.0f}"

    def tables(self) -> Sequence[Table]:
        """Return one row per checkpoint, and one per run."""
        first, gain = self.protocols[0], len(self.protocols) > 1
        rows = []
        for run, (k, step) in ((of, place) for of in self.runs for place in enumerate(of.steps)):
            scores = [
                format_plus_minus(run.scores[p][k], Z * run.errors[p][k]) for p in self.protocols
            ]
            more = [f"{run.scores[self.main][k] - run.scores[first][k]:+.3f}"] if gain else []
            rows.append((self.names[run.series], f"{step:,.0f}", *scores, *more))
        labels = [p.label for p in self.protocols]
        taus = [
            (self.names[r.series], len(r.steps), *map(r.tau, self.protocols)) for r in self.runs
        ]
        columns = ("run", self.unit, *labels, *(["gain"] if gain else []))
        note = (
            f"± is the half-width of the 95 % interval of test noise.{format_notes(self.left_out)}"
        )
        why = "1: every later checkpoint scores higher; 0: scores jump about."
        title = f"Kendall's τ between scores and {self.unit}"
        return [
            Table(f"{self.mean[0].upper()}{self.mean[1:]} over pretraining", columns, rows, note),
            Table(title, ("run", "checkpoints", *labels), taus, why),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the scores against steps, a curve for each run and protocol."""
        several = len(self.runs) > 1
        lines, points = [], []
        for (hue, run), p in product(enumerate(self.runs), self.protocols):
            score, half = run.scores[p], Z * run.errors[p]
            name = f"{self.names[run.series]}, {p.label}" if several else p.label
            low, high = (score - half, score + half) if np.isfinite(half).all() else ((), ())
            lines.append(Line(name, run.steps, score, low, high, dashed=p != self.main))
            points.append(Points(name, run.steps, score, run.models, hue=hue if several else None))
        other = ", ".join(p.label for p in self.protocols if p != self.main)
        dashed = f"; dashed: {other}" if other else ""
        caption = f"The {self.mean} at every checkpoint, with 95 % intervals of test noise{dashed}."
        drawn = tuple(points), tuple(lines), self.unit, self.mean
        return [Plot("training", "Scores over pretraining", caption, *drawn)]


def follow_training(
    scores: Mapping[Protocol, ScoreMatrix],
    checkpoints: Mapping[str, Checkpoint],
    main: Protocol,
    unit: str = "steps",
) -> Training:
    """Follow every series of three checkpoints and more through the protocols that have them all."""
    matrices = {p: m.benchmarks() for p, m in scores.items()}
    scored = dict.fromkeys(model for matrix in matrices.values() for model in matrix.models)
    known = {model: place for model, place in checkpoints.items() if model in scored}
    series = {name: of for name, of in by_series(known).items() if len(of) >= LEAST}
    models = [model for of in series.values() for model in of]
    followed = {
        p: matrix for p, matrix in matrices.items() if models and set(models) <= set(matrix.models)
    }
    tasks = _shared_tasks([matrix.select(models=models) for matrix in followed.values()])
    if not tasks:
        hint = "name each checkpoint as the scores do, with its series and step"
        raise InputError(
            "no series has three or more checkpoints with scores on the same tasks", hint=hint
        )
    protocols, every = tuple(followed), dict.fromkeys(t for m in matrices.values() for t in m.tasks)
    main = main if main in protocols else protocols[-1]
    runs = [_run(name, of, followed, tasks) for name, of in series.items()]
    runs.sort(key=lambda run: -float(run.scores[main][-1]))
    reasons = {
        "no checkpoint of a series": drop_names_in(scored, checkpoints),
        f"of a series of fewer than {LEAST} checkpoints": drop_names_in(known, models),
        "tasks that some checkpoint lacks": drop_names_in(every, tasks),
        "protocols that some checkpoint lacks": drop_names_in(map(str, matrices), protocols),
    }
    whole = set(scored) <= set(models)
    return Training(unit, tasks, protocols, main, tuple(runs), whole, describe_left_out(reasons))


def _run(
    series: str,
    members: Mapping[str, float],
    matrices: Mapping[Protocol, ScoreMatrix],
    tasks: Sequence[str],
) -> Run:
    parts = {p: matrix.select(models=members, tasks=tasks) for p, matrix in matrices.items()}
    means = {p: part.values.mean(axis=1) for p, part in parts.items()}
    errors = {p: np.sqrt((part.stderr**2).sum(axis=1)) / len(tasks) for p, part in parts.items()}
    return Run(series, tuple(members), np.array(list(members.values())), means, errors)


def _shared_tasks(matrices: Sequence[ScoreMatrix]) -> tuple[str, ...]:
    """Return the tasks that every model has under every protocol, and of which more is better."""
    whole = [
        set(compress(m.tasks, np.isfinite(m.values).all(axis=0) & np.array(m.higher_is_better)))
        for m in matrices
    ]
    return (
        tuple(task for task in matrices[-1].tasks if all(task in of for of in whole))
        if matrices
        else ()
    )


@dataclass(frozen=True)
class ConsistencyFindings(Findings):
    """Whether better base models become better instruct models, and which method says it best."""

    consistency: Consistency
    ablation: Ablation | None = None  # where there is more than one method


def find_stability(
    evidence: Evidence,
    checkpoints: Mapping[str, Checkpoint] | None = None,
    *,
    unit: str | None = None,
    **how: Any,
) -> Stability:
    """Say how stably scores grow over the checkpoints of a run: those given, else those that studies or names tell.

    ``how`` is what ``measure_stability`` takes: a baseline method, and the power from which a gap counts as resolved.
    """
    found = known_checkpoints(evidence, unit) if checkpoints is None else checkpoints
    return taus.measure_stability(evidence.planned, found, unit=unit or "steps", **how)


def find_training(
    evidence: Evidence,
    checkpoints: Mapping[str, Checkpoint] | None = None,
    *,
    unit: str | None = None,
) -> Training:
    """Follow the runs that the checkpoints are of: mean scores against steps, and when their order is the final one."""
    found = known_checkpoints(evidence, unit) if checkpoints is None else checkpoints
    return follow_training(
        evidence.planned, found, evidence.main or Protocol(""), unit=unit or "steps"
    )


def known_checkpoints(evidence: Evidence, unit: str | None = None) -> dict[str, Checkpoint]:
    """Return the checkpoints that the studies name, else those whose names say it; in steps, or in tokens."""
    rows = [row for row in evidence.specs if row.series is not None and row.step is not None]
    if unit == "tokens":
        found = {
            row.name: Checkpoint(str(row.series), row.tokens)
            for row in rows
            if row.tokens is not None
        }
    else:
        found = taus.named_checkpoints(evidence.models)
        found |= {row.name: Checkpoint(str(row.series), float(row.step or 0)) for row in rows}
    if not found:
        raise InputError(
            f"no checkpoints are known in {evidence.source}"
            + (" with their tokens" if unit == "tokens" else ""),
            hint="give --steps with a CSV file of the columns model, series, step (or tokens)",
        )
    return found


def find_consistency(
    evidence: Evidence,
    pairs: Mapping[str, str] | None = None,
    *,
    instruct_by: str | None = None,
    baseline: str | None = None,
) -> ConsistencyFindings:
    """Compare base models with their instruct versions: the pairs given, else those that studies or facts tell."""
    found = known_pairs(evidence) if pairs is None else pairs
    consistency = taus.measure_consistency(
        evidence.planned, found, reference=instruct_by, baseline=baseline
    )
    try:
        ablation = compare_methods(evidence.planned, models=list(found))
    except InputError:  # no task was scored by two methods
        ablation = None
    return ConsistencyFindings(consistency, ablation)


def find_ablation(
    evidence: Evidence, models: Sequence[str] | None = None, *, methods: Sequence[str] | None = None
) -> Ablation:
    """Rank the methods (protocols and prompt forms) on the models given, else on all that are not known as instruct."""
    kinds = evidence.background.kinds
    base = [model for model in evidence.models if kinds.get(model) != "instruct"]
    return compare_methods(evidence.planned, models=models or base, methods=methods)


# --- where models come from ------------------------------------------------------------------------------------------


def read_checkpoints(path: Path, unit: str | None = None) -> tuple[dict[str, Checkpoint], str]:
    """Read a CSV with the columns ``model``, ``series`` and ``step`` or ``tokens``; return checkpoints and unit.

    ``unit`` is ``steps`` or ``tokens`` where the file has both; without a ``series`` column all belong to one series.
    """
    rows = list(_rows(path, {"model"}))
    columns = set(rows[0][1]) if rows else set()
    chosen = {"steps": "step", "tokens": "tokens"}.get(
        unit or "", "step" if "step" in columns else "tokens"
    )
    if chosen not in columns:
        raise DataError(
            f"the column {chosen} is missing",
            where=str(path),
            hint="columns: model, series, step, tokens",
        )
    found: dict[str, Checkpoint] = {}
    for place, row in rows:
        try:
            found[row["model"]] = Checkpoint(row.get("series") or "series", float(row[chosen]))
        except ValueError:
            raise DataError(
                f"{row[chosen]!r} is no number", where=f"{place}, column {chosen}"
            ) from None
    return found, "steps" if chosen == "step" else "tokens"


def known_pairs(evidence: Evidence) -> dict[str, str]:
    """Pair base models with their instruct versions: base → instruct, by what studies and facts say."""
    bases = {row.name: row.base_model for row in evidence.specs if row.base_model}
    return pair_models(evidence.models, evidence.facts, bases)


def pair_models(
    models: Sequence[str], table: ModelTable, bases: Mapping[str, str] = NO_ENTRIES
) -> dict[str, str]:
    """Pair base models with their instruct versions among ``models``: base → instruct.

    ``bases`` (instruct → base) is what a study says; facts say the rest. A base model with several instruct versions
    goes with the first.
    """
    facts = {model: found for model in models if (found := table.find(model))}
    by_facts = {found.name: model for model, found in reversed(facts.items())}
    told = {}
    for model, found in facts.items():
        known = (
            table.find(found.base_model) if found.kind == "instruct" and found.base_model else None
        )
        told[model] = by_facts.get(known.name) if known else None
    told |= bases
    pairs: dict[str, str] = {}
    for model in models:
        base = told.get(model)
        if base in models and base is not None and base != model:
            pairs.setdefault(base, model)
    return pairs


def read_pairs(path: Path) -> dict[str, str]:
    """Read a CSV with the columns ``base`` and ``instruct``."""
    return {row["base"]: row["instruct"] for _, row in _rows(path, {"base", "instruct"})}


def _rows(path: Path, needed: set[str]) -> Iterator[tuple[str, dict[str, str]]]:
    def columns(given: list[str], where: str) -> list[str]:
        names = [name.casefold() for name in given]
        if missing := sorted(needed - set(names)):
            raise DataError(f"the column {', '.join(missing)} is missing", where=where)
        return names

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"it cannot be read: {error}", where=str(path)) from None
    for place, row in csv_rows(text, str(path), columns):
        if not all(row[name] for name in needed):
            raise DataError("a name is empty", where=place)
        yield place, row
