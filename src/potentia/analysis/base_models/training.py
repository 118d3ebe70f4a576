"""Pretraining runs by their checkpoints: the mean score at every step, and from when on the order of the runs is final.

A study of checkpoints asks how runs grow, not which of sixteen models is best. Scores are means over the tasks that
every checkpoint has by every protocol, so that direct and tuned scores are of the same tests; intervals are of test
noise. At a step each run stands where its latest checkpoint does. The order of the runs has settled at a step when it
is the final one there and at every later step: a team that compares runs by a protocol may stop the others then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from potentia.analysis.base_models.stability import Checkpoint
from potentia.analysis.left_out import left_out, noted
from potentia.analysis.stats.bootstrap import tau_rows
from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Line, Plot, Points, Table, short_names
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
        return float(tau_rows(self.scores[protocol][None, :], self.steps)[0])

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

    def settled(self, protocol: Protocol) -> float | None:
        """Return the step from which on the order of the runs is their final one; None where it is only at the end."""
        ends = [float(run.scores[protocol][-1]) for run in self.runs]
        steps = sorted({float(s) for run in self.runs for s in run.steps})
        start = max(float(run.steps[0]) for run in self.runs)
        found = None
        for step in reversed([s for s in steps if s >= start]):
            here = [run.at(protocol, step) for run in self.runs]
            if any((a - b) * (c - d) <= 0 for (a, c), (b, d) in combinations(zip(here, ends, strict=True), 2)):
                break
            found = step
        return None if found == steps[-1] else found

    def headline(self) -> str:
        """Say which run ends best, or how far the one run came."""
        how = f"by {self.main.label}"
        best = self.runs[0]
        value, error = best.scores[self.main], best.errors[self.main]
        if len(self.runs) == 1:
            return (
                f"{self.names[best.series]} comes from {value[0]:.3f} to {value[-1]:.3f} in {len(best.steps)} "
                f"checkpoints {how}, {self.where}."
            )
        second = self.runs[1]
        ahead = value[-1] - second.scores[self.main][-1]
        half = Z * float(np.hypot(error[-1], second.errors[self.main][-1]))
        one, two = self.names[best.series], self.names[second.series]
        if not ahead > half:
            return f"{one} and {two} end within test noise of each other {how}, {self.where}."
        return f"{one} ends first of {len(self.runs)} runs {how}, {self.where}: {ahead:.3f} ± {half:.3f} before {two}."

    def sentences(self) -> list[str]:
        """Say when the order of the runs settles by each protocol, and whether each run still grows."""
        told = []
        if len(self.runs) > 1:
            for protocol in self.protocols:
                step = self.settled(protocol)
                order = ", ".join(
                    self.names[r.series] for r in sorted(self.runs, key=lambda r: -r.scores[protocol][-1])
                )
                when = f"is the final one ({order}) from {_told(step, self.unit)} on" if step is not None else (
                    f"is the final one ({order}) at the end alone")  # fmt: skip
                told.append(f"By {protocol.label} the order of the runs {when}.")
        return told + [self._course(run) for run in self.runs]

    def _course(self, run: Run) -> str:
        value, error = run.scores[self.main], run.errors[self.main]
        best = int(np.argmax(value))
        taus = ", ".join(f"{run.tau(p):.2f} by {p.label}" for p in self.protocols)
        start = f"{self.names[run.series]}: Kendall's τ between scores and {self.unit} is {taus}; "
        if best == len(value) - 1:
            step = value[-1] - value[-2]
            real = step > Z * float(np.hypot(error[-1], error[-2]))
            still = "it still grows at its end" if real else "its last step up is within test noise"
            return f"{start}{still} ({step:+.3f} since {_told(float(run.steps[-2]), self.unit)})."
        lost = value[best] - value[-1]
        real = lost > Z * float(np.hypot(error[best], error[-1]))
        cause = "beyond test noise" if real else "within test noise"
        return f"{start}its best is at {_told(float(run.steps[best]), self.unit)}, {lost:.3f} above its end, {cause}."

    def tables(self) -> Sequence[Table]:
        """Return one row per checkpoint, and one per run."""
        gain = len(self.protocols) > 1
        rows: list[tuple[Cell, ...]] = []
        for run in self.runs:
            for k, step in enumerate(run.steps.tolist()):
                row: list[Cell] = [self.names[run.series], f"{step:,.0f}"]
                for p in self.protocols:
                    half = Z * float(run.errors[p][k])
                    row.append(f"{run.scores[p][k]:.3f}" + (f" ± {half:.3f}" if np.isfinite(half) else ""))
                if gain:
                    row.append(f"{run.scores[self.main][k] - run.scores[self.protocols[0]][k]:+.3f}")
                rows.append(tuple(row))
        mean = f"{'Mean score' if len(self.tasks) > 1 else 'Score'} {self.where}"
        labels = tuple(p.label for p in self.protocols)
        ends: tuple[tuple[Cell, ...], ...] = tuple(
            (self.names[run.series], len(run.steps), *(run.tau(p) for p in self.protocols)) for run in self.runs
        )
        return [
            Table(
                f"{mean} over pretraining",
                ("run", self.unit, *labels, *(["gain"] if gain else [])),
                tuple(rows),
                note=f"± is the half-width of the 95 % interval of test noise.{noted(self.left_out)}",
            ),
            Table(
                f"Kendall's τ between scores and {self.unit}",
                ("run", "checkpoints", *labels),
                ends,
                note="1: every later checkpoint scores higher; 0: scores jump about.",
            ),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the scores against steps, a curve for each run and protocol."""
        curves = [(hue, run, p) for hue, run in enumerate(self.runs) for p in self.protocols]
        several = len(self.runs) > 1
        lines, points = [], []
        for hue, run, p in curves:
            x, y = tuple(run.steps.tolist()), tuple(run.scores[p].tolist())
            name = f"{self.names[run.series]}, {p.label}" if several else p.label
            half = Z * run.errors[p]
            known = bool(np.isfinite(half).all())
            low, high = (tuple((run.scores[p] + s * half).tolist()) if known else () for s in (-1, 1))
            lines.append(Line(name, x, y, low, high, dashed=p != self.main))
            points.append(Points(name, x, y, run.models, hue=hue if several else None))
        mean = f"{'mean score' if len(self.tasks) > 1 else 'score'} {self.where}"
        other = ", ".join(p.label for p in self.protocols if p != self.main)
        return [
            Plot(
                "training",
                "Scores over pretraining",
                f"The {mean} at every checkpoint, with 95 % intervals of test noise{other and '; dashed: '}{other}.",
                points=tuple(points),
                lines=tuple(lines),
                x_label=self.unit,
                y_label=mean,
            )
        ]


def follow_training(
    scores: Mapping[Protocol, ScoreMatrix],
    checkpoints: Mapping[str, Checkpoint],
    main: Protocol,
    *,
    unit: str = "steps",
) -> Training:
    """Follow every series of three checkpoints and more through the protocols that have them all."""
    matrices = {p: m.benchmarks() for p, m in scores.items()}
    found = dict.fromkeys(m for matrix in matrices.values() for m in matrix.models if m in checkpoints)
    series: dict[str, list[str]] = {}
    for model in sorted(found, key=lambda m: checkpoints[m].step):
        series.setdefault(checkpoints[model].series, []).append(model)
    series = {name: models for name, models in series.items() if len(models) >= LEAST}
    models = [m for of in series.values() for m in of]
    protocols = [p for p, matrix in matrices.items() if set(models) <= set(matrix.models)]
    tasks = [
        task
        for task in (matrices[protocols[-1]].tasks if protocols else ())
        if all(task in matrices[p].tasks and _whole(matrices[p], models, task) for p in protocols)
    ]
    if not series or not tasks:
        raise InputError(
            "no series has three or more checkpoints with scores on the same tasks",
            hint="name each checkpoint as the scores do, with its series and step",
        )
    main = main if main in protocols else protocols[-1]
    runs = [_run(name, of, checkpoints, {p: matrices[p] for p in protocols}, tasks) for name, of in series.items()]
    runs.sort(key=lambda run: -float(run.scores[main][-1]))
    scored = dict.fromkeys(m for matrix in matrices.values() for m in matrix.models)
    every = dict.fromkeys(task for matrix in matrices.values() for task in matrix.tasks)
    reasons: dict[str, list[str]] = {
        "no checkpoint of a series": [m for m in scored if m not in checkpoints],
        f"of a series of fewer than {LEAST} checkpoints": [m for m in found if m not in models],
        "tasks that some checkpoint lacks": [task for task in every if task not in tasks],
        "protocols that some checkpoint lacks": [str(p) for p in matrices if p not in protocols],
    }
    whole = set(scored) <= set(models)
    return Training(unit, tuple(tasks), tuple(protocols), main, tuple(runs), whole, left_out(reasons))


def _run(
    name: str,
    models: Sequence[str],
    checkpoints: Mapping[str, Checkpoint],
    matrices: Mapping[Protocol, ScoreMatrix],
    tasks: Sequence[str],
) -> Run:
    parts = {p: matrix.select(models=models, tasks=tasks) for p, matrix in matrices.items()}
    order = {p: [m.models.index(model) for model in models] for p, m in parts.items()}
    return Run(
        name,
        tuple(models),
        np.array([checkpoints[m].step for m in models], dtype=np.float64),
        {p: m.values[order[p]].mean(axis=1) for p, m in parts.items()},
        {p: np.sqrt((m.stderr[order[p]] ** 2).sum(axis=1)) / len(tasks) for p, m in parts.items()},
    )


def _whole(matrix: ScoreMatrix, models: Sequence[str], task: str) -> bool:
    part = matrix.select(models=models, tasks=[task])
    return bool(part.higher_is_better[0] and np.isfinite(part.values).all())


def _told(step: float, unit: str) -> str:
    return f"{unit.removesuffix('s')} {step:,.0f}"
