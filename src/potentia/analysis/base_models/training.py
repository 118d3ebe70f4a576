"""Pretraining runs by their checkpoints: the mean score at every step, and from when on the order of the runs is final.

A study of checkpoints asks how runs grow, not which of sixteen models is best. Scores are means over the tasks that
every checkpoint has by every protocol, so that direct and tuned scores are of the same tests; intervals are of test
noise. At a step each run stands where its latest checkpoint does. The order of the runs has settled at a step when it
is the final one there and at every later step: a team that compares runs by a protocol may stop the others then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product

import numpy as np

from potentia.analysis.base_models.stability import Checkpoint, by_series
from potentia.analysis.left_out import left_out, noted, outside
from potentia.analysis.stats.bootstrap import tau_rows
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Line, Plot, Points, Table, short_names
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

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
        return float(tau_rows(self.scores[protocol], self.steps))

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
        scores = np.array([[run.at(protocol, step) for step in steps] for run in self.runs])  # (runs, steps)
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
            order = ", ".join(self.names[r.series] for r in sorted(self.runs, key=lambda r: -r.scores[protocol][-1]))
            when = "at the end alone" if step is None else f"from {self._step(step)} on"
            said.append(f"By {protocol.label} the order of the runs is the final one ({order}) {when}.")
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
            scores = [_noisy(run.scores[p][k], Z * run.errors[p][k]) for p in self.protocols]
            more = [f"{run.scores[self.main][k] - run.scores[first][k]:+.3f}"] if gain else []
            rows.append((self.names[run.series], f"{step:,.0f}", *scores, *more))
        labels = [p.label for p in self.protocols]
        taus = [(self.names[r.series], len(r.steps), *map(r.tau, self.protocols)) for r in self.runs]
        columns = ("run", self.unit, *labels, *(["gain"] if gain else []))
        note = f"± is the half-width of the 95 % interval of test noise.{noted(self.left_out)}"
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
    scores: Mapping[Protocol, ScoreMatrix], checkpoints: Mapping[str, Checkpoint], main: Protocol, unit: str = "steps"
) -> Training:
    """Follow every series of three checkpoints and more through the protocols that have them all."""
    matrices = {p: m.benchmarks() for p, m in scores.items()}
    scored = dict.fromkeys(model for matrix in matrices.values() for model in matrix.models)
    known = {model: place for model, place in checkpoints.items() if model in scored}
    series = {name: of for name, of in by_series(known).items() if len(of) >= LEAST}
    models = [model for of in series.values() for model in of]
    followed = {p: matrix for p, matrix in matrices.items() if models and set(models) <= set(matrix.models)}
    tasks = _shared_tasks([matrix.select(models=models) for matrix in followed.values()])
    if not tasks:
        hint = "name each checkpoint as the scores do, with its series and step"
        raise InputError("no series has three or more checkpoints with scores on the same tasks", hint=hint)
    protocols, every = tuple(followed), dict.fromkeys(t for m in matrices.values() for t in m.tasks)
    main = main if main in protocols else protocols[-1]
    runs = [_run(name, of, followed, tasks) for name, of in series.items()]
    runs.sort(key=lambda run: -float(run.scores[main][-1]))
    reasons = {
        "no checkpoint of a series": outside(scored, checkpoints),
        f"of a series of fewer than {LEAST} checkpoints": outside(known, models),
        "tasks that some checkpoint lacks": outside(every, tasks),
        "protocols that some checkpoint lacks": outside(map(str, matrices), protocols),
    }
    whole = set(scored) <= set(models)
    return Training(unit, tasks, protocols, main, tuple(runs), whole, left_out(reasons))


def _run(
    series: str, members: Mapping[str, float], matrices: Mapping[Protocol, ScoreMatrix], tasks: Sequence[str]
) -> Run:
    parts = {p: matrix.select(models=members, tasks=tasks) for p, matrix in matrices.items()}
    means = {p: part.values.mean(axis=1) for p, part in parts.items()}
    errors = {p: np.sqrt((part.stderr**2).sum(axis=1)) / len(tasks) for p, part in parts.items()}
    return Run(series, tuple(members), np.array(list(members.values())), means, errors)


def _shared_tasks(matrices: Sequence[ScoreMatrix]) -> tuple[str, ...]:
    """Return the tasks that every model has under every protocol, and of which more is better."""
    whole = [set(compress(m.tasks, np.isfinite(m.values).all(axis=0) & np.array(m.higher_is_better))) for m in matrices]
    return tuple(task for task in matrices[-1].tasks if all(task in of for of in whole)) if matrices else ()


def _noisy(value: float, half: float) -> str:
    return f"{value:.3f}" + (f" ± {half:.3f}" if np.isfinite(half) else "")
