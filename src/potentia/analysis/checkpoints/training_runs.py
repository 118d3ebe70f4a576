"""Pretraining runs by their checkpoints: the mean score at every step, and from when on the order of the runs is final.

A study of checkpoints asks how runs grow, not which of sixteen models is best. Scores are means over the tasks that
every checkpoint has by every protocol, so that direct and tuned scores are of the same tests; intervals are of test
noise. At a step each run stands where its latest checkpoint does. The order of the runs has settled at a step when it
is the final one there and at every later step: a team that compares runs by a protocol may stop the others then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.checkpoints.lineage import Checkpoint, find_checkpoints, group_by_series
from potentia.analysis.left_out import describe_left_out, drop_names_in, format_notes
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.wording import format_plus_minus
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Line, Plot, Points, Table, short_names
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

Z_95 = 1.96  # half-width of a 95 % interval, in standard errors
MIN_CHECKPOINTS = 3  # of a series that has a course at all


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One pretraining run: its checkpoints, and by each protocol the mean score at each with its standard error."""

    series: str
    models: tuple[str, ...]  # in the order of their steps
    steps: Floats  # (checkpoints,)
    scores: Mapping[Protocol, Floats]
    errors: Mapping[Protocol, Floats]

    def measure_tau(self, protocol: Protocol) -> float:
        """Return Kendall's tau between scores and steps: 1 where every later checkpoint scores higher."""
        return float(kendall_by_row(self.scores[protocol], self.steps))

    def score_at_step(self, protocol: Protocol, step: float) -> float:
        """Return the score of the latest checkpoint up to a step."""
        latest = np.searchsorted(self.steps, step, side="right") - 1
        return float(self.scores[protocol][latest])


@dataclass(frozen=True)
class Training(Finding):
    """Every run of a study of checkpoints, best at its end first."""

    unit: str
    tasks: tuple[str, ...]
    protocols: tuple[Protocol, ...]  # from the least to the most preparation
    main: Protocol
    runs: tuple[TrainingRun, ...]
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
    def tasks_phrase(self) -> str:
        """The tasks that scores are of, in words."""
        if len(self.tasks) > 1:
            return f"over {len(self.tasks)} tasks"
        return f"on {self.tasks[0]}"

    @property
    def score_phrase(self) -> str:
        """What a score of a run is called."""
        kind = "mean score" if len(self.tasks) > 1 else "score"
        return f"{kind} {self.tasks_phrase}"

    def find_settled_step(self, protocol: Protocol) -> float | None:
        """Return the step from which on the order of the runs is their final one; None where it is only at the end."""
        steps = np.unique(np.concatenate([run.steps for run in self.runs]))
        first_common_step = max(run.steps[0] for run in self.runs)
        steps = steps[steps >= first_common_step]
        scores = np.array([self._scores_at_steps(run, protocol, steps) for run in self.runs])
        first, second = np.triu_indices(len(self.runs), 1)
        gaps = scores[first] - scores[second]  # (pairs, steps)
        differs_from_end = (gaps * gaps[:, -1:] <= 0).any(axis=0)
        turned = np.flatnonzero(differs_from_end)
        settled = int(turned[-1]) + 1 if len(turned) else 0
        return float(steps[settled]) if settled < len(steps) - 1 else None

    @staticmethod
    def _scores_at_steps(run: TrainingRun, protocol: Protocol, steps: Floats) -> list[float]:
        return [run.score_at_step(protocol, step) for step in steps]

    def headline(self) -> str:
        """Say which run ends best, or whether the one run improved."""
        condition = f"{self.main.label}, {self.tasks_phrase}"
        if len(self.runs) == 1:
            return self._describe_improvement(self.runs[0], condition)
        best, second = self.runs[:2]
        best_name = self.names[best.series]
        second_name = self.names[second.series]
        lead = best.scores[self.main][-1] - second.scores[self.main][-1]
        stderr = np.hypot(best.errors[self.main][-1], second.errors[self.main][-1])
        half_width = Z_95 * float(stderr)
        if not lead > half_width:
            return (
                f"{best_name} and {second_name} are not significantly different at their last"
                f" checkpoints ({lead:+.3f} ± {half_width:.3f}; {condition})."
            )
        return (
            f"{best_name} is the best of {len(self.runs)} runs at the last checkpoints: "
            f"{lead:.3f} ± {half_width:.3f} ahead of {second_name} ({condition})."
        )

    def _describe_improvement(self, run: TrainingRun, condition: str) -> str:
        """Say whether the last checkpoint of a run scores higher than its first, beyond test noise."""
        scores = run.scores[self.main]
        errors = run.errors[self.main]
        change = float(scores[-1] - scores[0])
        half_width = Z_95 * float(np.hypot(errors[0], errors[-1]))
        span = f"over {len(run.steps)} checkpoints"
        numbers = f"({scores[0]:.3f} → {scores[-1]:.3f}, ± {half_width:.3f}; {condition})"
        name = self.names[run.series]
        if not np.isfinite(half_width):
            numbers = f"({scores[0]:.3f} → {scores[-1]:.3f}; {condition})"
            direction = "higher" if change > 0 else "not higher"
            return (
                f"{name} ends {direction} than it began {span} {numbers}. Without standard errors"
                " nothing says whether that is more than test noise."
            )
        if change > half_width:
            return f"{name} improved {span} {numbers}."
        if change < -half_width:
            return f"{name} got worse {span} {numbers}."
        return f"{name}: no measurable improvement {span} {numbers}."

    def sentences(self) -> list[str]:
        """Say when the order of the runs settles by each protocol, and whether each run still improves."""
        sentences = []
        if len(self.runs) > 1:
            sentences += [self._describe_order(protocol) for protocol in self.protocols]
        return sentences + [self._describe_course(run) for run in self.runs]

    def _describe_order(self, protocol: Protocol) -> str:
        settled_step = self.find_settled_step(protocol)
        best_first = sorted(self.runs, key=lambda run: -run.scores[protocol][-1])
        order = ", ".join(self.names[run.series] for run in best_first)
        if settled_step is None:
            when = "only at the last checkpoint"
        else:
            when = f"from {self._format_step(settled_step)} on"
        return f"The runs are in their final order ({order}) {when} ({protocol.label})."

    def _describe_course(self, run: TrainingRun) -> str:
        scores = run.scores[self.main]
        errors = run.errors[self.main]
        last = len(run.steps) - 1
        best = int(np.argmax(scores))
        compared = best if best < last else last - 1
        noise = Z_95 * float(np.hypot(errors[compared], errors[-1]))
        is_real = abs(scores[compared] - scores[-1]) > noise
        taus = ", ".join(f"{run.measure_tau(p):.2f} ({p.label})" for p in self.protocols)
        start = f"{self.names[run.series]}: Kendall's τ between scores and {self.unit} is {taus}; "
        if best == last:
            growth = "the last checkpoint is the best, but within test noise of the one before"
            if is_real:
                growth = "it is still improving"
            since = self._format_step(run.steps[compared])
            return f"{start}{growth} ({scores[-1] - scores[compared]:+.3f} since {since})."
        cause = "beyond test noise" if is_real else "within test noise"
        loss = f"{scores[best] - scores[-1]:.3f} above the last"
        return (
            f"{start}its best checkpoint is {self._format_step(run.steps[best])}, {loss}, {cause}."
        )

    def _format_step(self, step: float) -> str:
        return f"{self.unit.removesuffix('s')} {step:,.0f}"

    def tables(self) -> Sequence[Table]:
        """Return one row per checkpoint, and one per run."""
        labels = [protocol.label for protocol in self.protocols]
        columns = ["run", self.unit, *labels]
        if len(self.protocols) > 1:
            columns.append("gain")
        rows = []
        for run in self.runs:
            rows += [self._checkpoint_row(run, index) for index in range(len(run.steps))]
        taus = [
            (self.names[run.series], len(run.steps), *map(run.measure_tau, self.protocols))
            for run in self.runs
        ]
        title = f"{self.score_phrase[0].upper()}{self.score_phrase[1:]} over pretraining"
        note = (
            f"± is the half-width of the 95 % interval of test noise.{format_notes(self.left_out)}"
        )
        tau_title = f"Kendall's τ between scores and {self.unit}"
        tau_note = "1: every later checkpoint scores higher; 0: scores jump about."
        return [
            Table(title, columns, rows, note),
            Table(tau_title, ("run", "checkpoints", *labels), taus, tau_note),
        ]

    def _checkpoint_row(self, run: TrainingRun, index: int) -> list[str | None]:
        """Return run, step, the score by each protocol and, with several protocols, what preparation gains."""
        row: list[str | None] = [self.names[run.series], f"{run.steps[index]:,.0f}"]
        for protocol in self.protocols:
            half_width = Z_95 * run.errors[protocol][index]
            row.append(format_plus_minus(run.scores[protocol][index], half_width))
        if len(self.protocols) > 1:
            gain = run.scores[self.main][index] - run.scores[self.protocols[0]][index]
            row.append(f"{gain:+.3f}")
        return row

    def charts(self) -> Sequence[Chart]:
        """Return the scores against steps, a curve for each run and protocol."""
        lines = []
        points = []
        for hue, run in enumerate(self.runs):
            for protocol in self.protocols:
                lines.append(self._draw_line(run, protocol))
                points.append(self._draw_points(run, protocol, hue))
        others = ", ".join(p.label for p in self.protocols if p != self.main)
        dashed = f"; dashed: {others}" if others else ""
        caption = (
            f"The {self.score_phrase} at every checkpoint, "
            f"with 95 % intervals of test noise{dashed}."
        )
        plot = Plot(
            "training",
            "Scores over pretraining",
            caption,
            points=tuple(points),
            lines=tuple(lines),
            x_label=self.unit,
            y_label=self.score_phrase,
        )
        return [plot]

    def _curve_name(self, run: TrainingRun, protocol: Protocol) -> str:
        if len(self.runs) == 1:
            return protocol.label
        return f"{self.names[run.series]}, {protocol.label}"

    def _draw_line(self, run: TrainingRun, protocol: Protocol) -> Line:
        scores = run.scores[protocol]
        half_width = Z_95 * run.errors[protocol]
        name = self._curve_name(run, protocol)
        dashed = protocol != self.main
        if not np.isfinite(half_width).all():
            return Line(name, run.steps, scores, dashed=dashed)
        low = scores - half_width
        high = scores + half_width
        return Line(name, run.steps, scores, low=low, high=high, dashed=dashed)

    def _draw_points(self, run: TrainingRun, protocol: Protocol, hue: int) -> Points:
        name = self._curve_name(run, protocol)
        shown_hue = hue if len(self.runs) > 1 else None
        return Points(name, run.steps, run.scores[protocol], labels=run.models, hue=shown_hue)


def find_training(
    evidence: Evidence,
    checkpoints: Mapping[str, Checkpoint] | None = None,
    *,
    unit: str | None = None,
) -> Training:
    """Follow the runs that the checkpoints are of: mean scores against steps, and when their order is the final one."""
    if checkpoints is None:
        checkpoints = find_checkpoints(evidence, unit)
    main = evidence.main or Protocol("")
    return follow_training(evidence.planned, checkpoints, main, unit=unit or "steps")


def follow_training(
    scores: Mapping[Protocol, ScoreMatrix],
    checkpoints: Mapping[str, Checkpoint],
    main: Protocol,
    unit: str = "steps",
) -> Training:
    """Follow every series of three checkpoints and more through the protocols that have them all."""
    matrices = {protocol: matrix.benchmarks() for protocol, matrix in scores.items()}
    scored_models: dict[str, None] = {}
    all_tasks: dict[str, None] = {}
    for matrix in matrices.values():
        scored_models |= dict.fromkeys(matrix.models)
        all_tasks |= dict.fromkeys(matrix.tasks)
    scored_checkpoints = {
        model: checkpoint for model, checkpoint in checkpoints.items() if model in scored_models
    }
    long_series = {
        series: steps
        for series, steps in group_by_series(scored_checkpoints).items()
        if len(steps) >= MIN_CHECKPOINTS
    }
    models = [model for steps in long_series.values() for model in steps]
    followed = {
        protocol: matrix
        for protocol, matrix in matrices.items()
        if models and set(models) <= set(matrix.models)
    }
    tasks = _find_shared_tasks([matrix.select(models=models) for matrix in followed.values()])
    if not tasks:
        raise InputError(
            "no series has three or more checkpoints with scores on the same tasks",
            hint="name each checkpoint as the scores do, with its series and step",
        )
    protocols = tuple(followed)
    if main not in protocols:
        main = protocols[-1]
    runs = [_make_run(series, steps, followed, tasks) for series, steps in long_series.items()]
    runs.sort(key=lambda run: -float(run.scores[main][-1]))
    reasons = {
        "no checkpoint of a series": drop_names_in(scored_models, checkpoints),
        f"of a series of fewer than {MIN_CHECKPOINTS} checkpoints": drop_names_in(
            scored_checkpoints, models
        ),
        "tasks that some checkpoint lacks": drop_names_in(all_tasks, tasks),
        "protocols that some checkpoint lacks": drop_names_in(map(str, matrices), protocols),
    }
    return Training(
        unit=unit,
        tasks=tasks,
        protocols=protocols,
        main=main,
        runs=tuple(runs),
        whole=set(scored_models) <= set(models),
        left_out=describe_left_out(reasons),
    )


def _make_run(
    series: str,
    step_by_model: Mapping[str, float],
    matrices: Mapping[Protocol, ScoreMatrix],
    tasks: Sequence[str],
) -> TrainingRun:
    means = {}
    errors = {}
    for protocol, matrix in matrices.items():
        part = matrix.select(models=step_by_model, tasks=tasks)
        means[protocol] = part.values.mean(axis=1)
        errors[protocol] = np.sqrt((part.stderr**2).sum(axis=1)) / len(tasks)
    return TrainingRun(
        series=series,
        models=tuple(step_by_model),
        steps=np.array(list(step_by_model.values())),
        scores=means,
        errors=errors,
    )


def _find_shared_tasks(matrices: Sequence[ScoreMatrix]) -> tuple[str, ...]:
    """Return the tasks that every model has under every protocol, and of which more is better."""
    if not matrices:
        return ()
    complete_tasks = []
    for matrix in matrices:
        is_complete = np.isfinite(matrix.values).all(axis=0) & np.array(matrix.higher_is_better)
        complete_tasks.append(set(compress(matrix.tasks, is_complete)))
    shared = set.intersection(*complete_tasks)
    return tuple(task for task in matrices[-1].tasks if task in shared)
