"""Pretraining runs by their checkpoints: the mean score at every step, and from when on the order of the runs is final.

A study of checkpoints asks how runs grow, not which of sixteen models is best. Scores are means over the tasks of one
scale that every checkpoint has by every protocol, so that direct and tuned scores are of the same tests; tasks of one
benchmark count as one. Intervals are of test noise, and of paired differences where answers are stored: checkpoints
of one run fail on the same examples. Which run ends best is decided as in every ranking
(``rankings.decide``), on the last checkpoints. At a step each run stands where its latest checkpoint does. The order of
the runs has settled at a step when it is the final one there and at every later step: a team that compares runs by a
protocol may stop the others then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from potentia.analysis.completion import predict_missing_cells
from potentia.analysis.left_out import (
    NO_ENTRIES,
    describe_left_out,
    drop_names_in,
    format_notes,
)
from potentia.analysis.lineage import (
    SINGULAR_BY_UNIT,
    Checkpoint,
    StepUnit,
    find_checkpoints,
    group_by_series,
)
from potentia.analysis.rankings.decide import (
    CLAIM_PROBABILITY,
    Ranking,
    decide_ranking,
    select_tasks_of_one_scale,
)
from potentia.analysis.rankings.pair_test import ScoreGaps
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.wording import capitalize_first, format_percent, format_plus_minus
from potentia.errors import InputError
from potentia.facts import find_chance_score
from potentia.values.findings import (
    Chart,
    Finding,
    Line,
    Plot,
    Points,
    Table,
    ValuedText,
    short_names,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

if TYPE_CHECKING:
    from potentia.analysis.completion import CellSampler
    from potentia.evidence import Evidence

ERROR_RATE = 0.05  # of what is said of all pairs of runs, or of all checkpoints of one
Z_95 = 1.96  # half-width of a 95 % interval, in standard errors
ONE_SIDED_Z = 1.645  # of a one-sided test at 5 %
SAME_SCORE = 0.0005  # a smaller difference does not show in three digits
MIN_CHECKPOINTS = 3  # of a series that has a course at all
NO_ERRORS = "without standard errors nothing says whether that is more than test noise"


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One pretraining run: its checkpoints, and by each protocol the mean score at each with its standard error."""

    series: str
    models: tuple[str, ...]  # in the order of their steps
    steps: Floats  # (checkpoints,)
    scores: Mapping[Protocol, Floats]
    errors: Mapping[Protocol, Floats]
    # Standard errors of the difference of every checkpoint from the last, paired where answers are stored.
    errors_to_last: Mapping[Protocol, Floats]
    # That the last checkpoint is better than the one before, as every ranking draws it; NaN where nothing is claimed.
    chance_last_is_better: Mapping[Protocol, float]

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

    unit: StepUnit
    groups: TaskGroups  # of the tasks that scores are means over
    protocols: tuple[Protocol, ...]  # from the least to the most preparation
    main: Protocol
    runs: tuple[TrainingRun, ...]
    ends: Ranking  # of the last checkpoints by the main protocol
    # (runs, runs): standard errors of the differences of the last checkpoints, paired where answers are stored
    end_errors: Mapping[Protocol, Floats]
    whole: bool  # every model with a score is a checkpoint of one of these runs
    left_out: tuple[str, ...] = ()
    are_shares: bool = False  # whether the scores lie between 0 and 1
    guess_score: float | None = None  # what guessing scores on these tasks, where it is known

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that scores are means over."""
        return self.groups.tasks

    @property
    def finals(self) -> tuple[str, ...]:
        """The last checkpoint of every run."""
        return tuple(run.models[-1] for run in self.runs)

    @property
    def names(self) -> dict[str, str]:
        """The runs by the short names that people read."""
        series = [training_run.series for training_run in self.runs]
        return dict(zip(series, short_names(series), strict=True))

    @property
    def tasks_phrase(self) -> str:
        """The tasks that scores are of, in words."""
        if len(self.tasks) > 1:
            return f"over {self.groups.describe_size()}"
        return f"on {self.tasks[0]}"

    @property
    def score_phrase(self) -> str:
        """What a score of a run is called."""
        kind = "mean score" if len(self.tasks) > 1 else "score"
        return f"{kind} {self.tasks_phrase}"

    def find_settled_step(self, protocol: Protocol) -> float | None:
        """Return the step from which on the order of the runs is their final one; None where it is only at the end.

        Pairs of runs that do not differ beyond test noise at the end have no order that could be final.
        """
        steps = np.unique(np.concatenate([run.steps for run in self.runs]))
        first_common_step = max(run.steps[0] for run in self.runs)
        steps = steps[steps >= first_common_step]
        scores = np.array([self._scores_at_steps(run, protocol, steps) for run in self.runs])
        first_of_pair, second_of_pair = np.triu_indices(len(self.runs), 1)
        score_gaps = scores[first_of_pair] - scores[second_of_pair]  # (pairs, steps)
        score_gaps = score_gaps[self._mark_separate_pairs(protocol)]
        if not len(score_gaps):
            return None
        differs_from_end = (score_gaps * score_gaps[:, -1:] <= 0).any(axis=0)
        turned = np.flatnonzero(differs_from_end)
        settled = int(turned[-1]) + 1 if len(turned) else 0
        return float(steps[settled]) if settled < len(steps) - 1 else None

    def count_separate_pairs(self, protocol: Protocol) -> int:
        """Return how many pairs of runs differ beyond test noise at their last checkpoints."""
        return int(self._mark_separate_pairs(protocol).sum())

    def _mark_separate_pairs(self, protocol: Protocol) -> npt.NDArray[np.bool_]:
        """Return which pairs of runs differ beyond test noise at the end (Bonferroni); all where no error is known."""
        first_of_pair, second_of_pair = np.triu_indices(len(self.runs), 1)
        scores = np.array([run.scores[protocol][-1] for run in self.runs])
        score_gaps = np.abs(scores[first_of_pair] - scores[second_of_pair])
        noise = self.end_errors[protocol][first_of_pair, second_of_pair]
        threshold = float(norm.ppf(1 - ERROR_RATE / (2 * max(1, len(score_gaps)))))
        return np.asarray(~(score_gaps <= threshold * noise) & (score_gaps > 0))

    @staticmethod
    def _scores_at_steps(
        training_run: TrainingRun, protocol: Protocol, steps: Floats
    ) -> list[float]:
        return [training_run.score_at_step(protocol, step) for step in steps]

    def headline(self) -> str:
        """Say which run ends best, or whether the one run improved."""
        condition = f"{self.main.label}, {self.tasks_phrase}"
        if len(self.runs) == 1:
            improvement = f"{self._describe_improvement(self.runs[0])}."
            if not np.isfinite(self.runs[0].errors_to_last[self.main][0]):
                improvement += f" {capitalize_first(NO_ERRORS)}."
            return improvement
        best_run, second = self.runs[:2]
        best_name = self.names[best_run.series]
        second_name = self.names[second.series]
        best_score = best_run.scores[self.main][-1]
        score_lead = best_score - second.scores[self.main][-1]
        half_width = Z_95 * float(self.end_errors[self.main][0, 1])
        at_the_end = f"of {len(self.runs)} runs at the last checkpoints"
        if not self.ends.can_claim:
            score = "mean score" if len(self.tasks) > 1 else "score"
            return (
                f"{best_name} has the best {score} {at_the_end}: {score_lead:.3f} ahead of {second_name} ({condition})."
                f" {capitalize_first(NO_ERRORS)}."
            )
        if np.isfinite(half_width):
            condition = f"± {half_width:.3f} by test noise alone; {condition}"
        if not self._is_best_certain():
            return (
                f"{best_name} and {second_name} are not significantly different at their last"
                f" checkpoints: {score_lead:+.3f} ({condition})."
            )
        return (
            f"{best_name} is the best {at_the_end}: "
            f"{score_lead:.3f} ahead of {second_name} ({condition})."
        )

    def _is_best_certain(self) -> bool:
        """Whether the run that ends with the best score may be called the best: it beats each of the others."""
        best, *others = self.finals
        chances = [self.ends.probability_better(best, other) for other in others]
        return min(chances) >= CLAIM_PROBABILITY

    def _describe_improvement(self, training_run: TrainingRun) -> str:
        """Say whether the last checkpoint of a run scores higher than its first, beyond test noise: a clause."""
        scores = training_run.scores[self.main]
        change = float(scores[-1] - scores[0])
        half_width = Z_95 * float(training_run.errors_to_last[self.main][0])
        condition = f"{self.main.label}, {self.tasks_phrase}"
        checkpoint_span = f"over {len(training_run.steps)} checkpoints"
        numbers = f"({scores[0]:.3f} → {scores[-1]:.3f}, ± {half_width:.3f}; {condition})"
        run_name = self.names[training_run.series]
        if not np.isfinite(half_width):
            numbers = f"({scores[0]:.3f} → {scores[-1]:.3f}; {condition})"
            direction = "higher" if change > 0 else "not higher"
            return f"{run_name} ends {direction} than it began {checkpoint_span} {numbers}"
        if change > half_width:
            return f"{run_name} improved {checkpoint_span} {numbers}"
        if change < -half_width:
            return f"{run_name} got worse {checkpoint_span} {numbers}"
        return f"{run_name}: no measurable improvement {checkpoint_span} {numbers}"

    def sentences(self) -> list[str]:
        """Say of each run whether it improved and still does, then when the order of the runs settles."""
        if len(self.runs) == 1:
            (training_run,) = self.runs
            return [f"{self.names[training_run.series]}: {self._describe_course(training_run)}."]
        sentences = [
            f"{self._describe_improvement(training_run)}; {self._describe_course(training_run)}."
            for training_run in self.runs
        ]
        return sentences + [self._describe_order(protocol) for protocol in self.protocols]

    def _describe_order(self, protocol: Protocol) -> str:
        settled_step = self.find_settled_step(protocol)
        pairs = len(self.runs) * (len(self.runs) - 1) // 2
        separate_pairs = self.count_separate_pairs(protocol)
        if not separate_pairs:
            return (
                "No two runs differ beyond test noise at their last checkpoints "
                f"({protocol.label}): they have no final order."
            )
        best_first = sorted(self.runs, key=lambda training_run: -training_run.scores[protocol][-1])
        order = ", ".join(self.names[training_run.series] for training_run in best_first)
        if settled_step is None:
            settled_phrase = "only at the last checkpoint"
        else:
            settled_phrase = f"from {self._format_step(settled_step)} on"
        subject = "The runs are"
        if separate_pairs < pairs:
            subject = (
                f"The {separate_pairs} of {pairs} pairs of runs that differ beyond test noise are"
            )
        sentence = f"{subject} in their final order ({order}) {settled_phrase} ({protocol.label})"
        if not np.isfinite(self.end_errors[protocol]).all():
            return f"{sentence}; {NO_ERRORS}."
        return f"{sentence}."

    def _describe_course(self, training_run: TrainingRun) -> str:
        """Say whether the last checkpoint is better than the one before, and how the other protocols see the run."""
        clauses = [self._describe_last_checkpoint(training_run)]
        if len(self.protocols) > 1 and len(self.runs) == 1:  # of several runs it was just said
            clauses[0] = f"{self.main.label} {clauses[0]}"
        if self.is_at_guessing(training_run, self.main):
            clauses[0] += f", and scores are {self._guessing_phrase}"
        clauses += [
            self._describe_other_protocol(training_run, protocol)
            for protocol in self.protocols
            if protocol != self.main
        ]
        if not math.isfinite(training_run.chance_last_is_better[self.main]):
            clauses.append(NO_ERRORS)
        return "; ".join(clauses)

    def _describe_last_checkpoint(self, training_run: TrainingRun) -> str:
        """Compare the last checkpoint with the one before, and with the best where that is an earlier one.

        The one before is a fixed rival: whether the last is better is decided as between any two models. The best of
        many checkpoints is partly best by luck: each of the others could have been it.
        """
        scores = training_run.scores[self.main]
        last_index = len(training_run.steps) - 1
        best_index = int(np.argmax(scores))
        # no earlier one is better in three digits
        if scores[-1] >= scores[best_index] - SAME_SCORE:
            best_index = last_index
        gain = float(scores[-1] - scores[-2])
        chance = training_run.chance_last_is_better[self.main]
        is_known = math.isfinite(chance)
        is_better = gain > 0 and chance >= CLAIM_PROBABILITY
        is_worse = gain < 0 and chance <= 1 - CLAIM_PROBABILITY
        certainty = ""
        if is_better or is_worse:
            certainty = f", {format_percent(max(chance, 1 - chance))} sure"
        since = f"({gain:+.3f} since {self._format_step(training_run.steps[-2])}{certainty})"
        if best_index == last_index:
            if is_better:
                return (
                    "it is still improving: "
                    f"the last checkpoint is better than the one before {since}"
                )
            if is_known:
                return (
                    "the last checkpoint is the best, "
                    f"but not measurably better than the one before {since}"
                )
            return f"the last checkpoint is the best {since}"
        relation = "not measurably different from"
        if is_better:
            relation = "better than"
        elif is_worse:
            relation = "worse than"
        elif not is_known:
            relation = "above" if gain > 0 else "not above"
        clause = f"the last checkpoint is {relation} the one before {since}"
        if best_index == last_index - 1:
            return clause
        best_step = self._format_step(training_run.steps[best_index])
        loss = float(scores[best_index] - scores[-1])
        clause += f"; its best checkpoint is {best_step}, {loss:.3f} above the last"
        threshold = float(norm.ppf(1 - ERROR_RATE / (2 * max(1, last_index))))
        noise = threshold * float(training_run.errors_to_last[self.main][best_index])
        if not math.isfinite(noise):
            return clause
        return f"{clause}, {'beyond' if loss > noise else 'within'} test noise"

    def _describe_other_protocol(self, training_run: TrainingRun, protocol: Protocol) -> str:
        """Say how the scores of a run changed by a protocol that is not the main one."""
        scores = training_run.scores[protocol]
        change = float(scores[-1] - scores[0])
        half_width = Z_95 * float(training_run.errors_to_last[protocol][0])
        course = "scores did not change measurably"
        if not math.isfinite(half_width):
            course = "scores went"
        elif change > half_width:
            course = "scores rose"
        elif change < -half_width:
            course = "scores fell"
        clause = f"{protocol.label} {course} ({scores[0]:.3f} → {scores[-1]:.3f})"
        if self.is_at_guessing(training_run, protocol):
            clause += f" and are {self._guessing_phrase}"
        return clause

    def is_at_guessing(self, training_run: TrainingRun, protocol: Protocol) -> bool:
        """Whether a run ends not measurably above the level of guessing, where that is known."""
        if self.guess_score is None:
            return False
        error = float(training_run.errors[protocol][-1])
        lower_end = float(training_run.scores[protocol][-1]) - ONE_SIDED_Z * error
        return lower_end <= self.guess_score

    @property
    def _guessing_phrase(self) -> str:
        return f"at the level of guessing ({self.guess_score:.3f})"

    def _format_step(self, step: float) -> str:
        return f"{SINGULAR_BY_UNIT[self.unit]} {step:,.0f}"

    def tables(self) -> Sequence[Table]:
        """Return one row per checkpoint, and one per run."""
        labels = [protocol.label for protocol in self.protocols]
        column_names = ["run", self.unit, *labels]
        if len(self.protocols) > 1:
            column_names.append("gain")
        table_rows = []
        for training_run in self.runs:
            table_rows += [
                self._checkpoint_row(training_run, index)
                for index in range(len(training_run.steps))
            ]
        taus = [
            (
                self.names[training_run.series],
                len(training_run.steps),
                *map(training_run.measure_tau, self.protocols),
            )
            for training_run in self.runs
        ]
        title = f"{self.score_phrase[0].upper()}{self.score_phrase[1:]} over pretraining"
        note = (
            f"± is the half-width of the 95 % interval of test noise.{format_notes(self.left_out)}"
        )
        tau_title = f"Kendall's τ between scores and {self.unit}"
        tau_note = "1: every later checkpoint scores higher; 0: scores jump about."
        return [
            Table(title, column_names, table_rows, note),
            Table(tau_title, ("run", "checkpoints", *labels), taus, tau_note),
        ]

    def _checkpoint_row(self, training_run: TrainingRun, index: int) -> list[str | None]:
        """Return run, step, the score by each protocol and, with several protocols, what preparation gains."""
        row: list[str | None] = [
            self.names[training_run.series],
            ValuedText(f"{training_run.steps[index]:,.0f}", value=training_run.steps[index]),
        ]
        for protocol in self.protocols:
            half_width = Z_95 * training_run.errors[protocol][index]
            row.append(format_plus_minus(training_run.scores[protocol][index], half_width))
        if len(self.protocols) > 1:
            gain_score = (
                training_run.scores[self.main][index]
                - training_run.scores[self.protocols[0]][index]
            )
            row.append(ValuedText(f"{gain_score:+.3f}", value=gain_score))
        return row

    def charts(self) -> Sequence[Chart]:
        """Return the scores against steps, a curve for each run and protocol."""
        lines = []
        points = []
        for hue, training_run in enumerate(self.runs):
            for protocol in self.protocols:
                lines.append(self._draw_line(training_run, protocol))
                points.append(self._draw_points(training_run, protocol, hue))
        if self.guess_score is not None:
            lines.append(self._draw_guessing(self.guess_score))
        other_protocols = ", ".join(
            other_protocol.label for other_protocol in self.protocols if other_protocol != self.main
        )
        dashed = f"; dashed: {other_protocols}" if other_protocols else ""
        if self.guess_score is not None:
            dashed += f"; level: guessing ({self.guess_score:.3f})"
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
            wide=True,
        )
        return [plot]

    def _curve_name(self, training_run: TrainingRun, protocol: Protocol) -> str:
        if len(self.runs) == 1:
            return protocol.label
        return f"{self.names[training_run.series]}, {protocol.label}"

    def _draw_line(self, training_run: TrainingRun, protocol: Protocol) -> Line:
        scores = training_run.scores[protocol]
        half_width = Z_95 * training_run.errors[protocol]
        curve_name = self._curve_name(training_run, protocol)
        dashed = protocol != self.main
        if not np.isfinite(half_width).all():
            return Line(curve_name, training_run.steps, scores, dashed=dashed)
        low = scores - half_width
        high = scores + half_width
        if self.are_shares:
            low = np.clip(low, 0.0, 1.0)
            high = np.clip(high, 0.0, 1.0)
        return Line(curve_name, training_run.steps, scores, low=low, high=high, dashed=dashed)

    def _draw_guessing(self, guess_score: float) -> Line:
        """Draw the level of guessing from the first step to the last."""
        steps = np.concatenate([training_run.steps for training_run in self.runs])
        return Line(
            "guessing",
            (float(steps.min()), float(steps.max())),
            (guess_score, guess_score),
            dashed=True,
        )

    def _draw_points(self, training_run: TrainingRun, protocol: Protocol, hue: int) -> Points:
        curve_name = self._curve_name(training_run, protocol)
        shown_hue = hue if len(self.runs) > 1 else None
        return Points(
            curve_name,
            training_run.steps,
            training_run.scores[protocol],
            labels=training_run.models,
            hue=shown_hue,
        )


def find_training(
    evidence: Evidence,
    checkpoints: Mapping[str, Checkpoint] | None = None,
    *,
    unit: StepUnit | None = None,
) -> Training:
    """Follow the runs that the checkpoints are of: mean scores against steps, and when their order is the final one.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        checkpoints: Model → its place in a run, from ``read_checkpoints``; else what studies or names tell.
        unit: ``steps`` or ``tokens``, where both are known.

    Example:
        >>> potentia.find_training("potentia.db").headline()
    """
    if checkpoints is None:
        checkpoints = find_checkpoints(evidence, unit)
    main = evidence.main or Protocol("")
    return follow_training(
        evidence.final_scores,
        checkpoints,
        main,
        unit=unit or "steps",
        outcomes=evidence.outcomes,
        task_groups=evidence.background.task_groups,
        guess_accuracies=evidence.background.chance,
        cell_samplers=_predict_gaps(evidence),
    )


def _predict_gaps(evidence: Evidence) -> dict[Protocol, CellSampler]:
    """Return samplers of the missing cells, so that a comparison of two checkpoints is that of any two models."""
    samplers: dict[Protocol, CellSampler] = {}
    for matrix in evidence.final_scores.values():
        samplers |= predict_missing_cells(evidence, [matrix.benchmarks()])
    return samplers


def follow_training(
    scores: Mapping[Protocol, ScoreMatrix],
    checkpoints: Mapping[str, Checkpoint],
    main: Protocol,
    unit: StepUnit = "steps",
    *,
    outcomes: Mapping[Protocol, Outcomes] | None = None,
    task_groups: Mapping[str, str] = NO_ENTRIES,
    guess_accuracies: Mapping[str, float] = NO_ENTRIES,
    cell_samplers: Mapping[Protocol, CellSampler] | None = None,
) -> Training:
    """Follow every series of three checkpoints and more through the protocols that have them all.

    ``outcomes`` are those of examples, by protocol; ``task_groups`` are groups by task that the user names, and
    ``guess_accuracies`` are what guessing scores, by task. ``cell_samplers`` draw the cells that are missing.
    """
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
    models: list[str] = []
    for steps in long_series.values():
        models.extend(steps)
    followed = {}
    for protocol, matrix in matrices.items():
        if models and set(models) <= set(matrix.models):
            followed[protocol] = matrix
    shared_tasks = _find_shared_tasks(
        [matrix.select(models=models) for matrix in followed.values()]
    )
    if not shared_tasks:
        raise InputError(
            "no series has three or more checkpoints with scores on the same tasks",
            hint="name each checkpoint as the scores do, with its series and step",
        )
    protocols = tuple(followed)
    if main not in protocols:
        main = protocols[-1]
    tasks = select_tasks_of_one_scale(followed[main].select(tasks=shared_tasks))
    groups = TaskGroups.find(tasks, task_groups)
    known_outcomes = outcomes or {}
    rankings = {
        protocol: decide_ranking(
            matrix,
            known_outcomes.get(protocol),
            task_groups=task_groups,
            cell_sampler=(cell_samplers or {}).get(protocol),
        )
        for protocol, matrix in followed.items()
    }
    runs = [
        _make_run(series, steps, followed, groups, known_outcomes, rankings)
        for series, steps in long_series.items()
    ]
    followed_tasks = followed[main].select(tasks=tasks)
    runs.sort(key=lambda run: -float(run.scores[main][-1]))
    finals = [run.models[-1] for run in runs]
    reasons = {
        "no checkpoint of a series": drop_names_in(scored_models, checkpoints),
        f"of a series of fewer than {MIN_CHECKPOINTS} checkpoints": drop_names_in(
            scored_checkpoints, models
        ),
        "tasks that some checkpoint lacks": drop_names_in(all_tasks, shared_tasks),
        "tasks of another scale": drop_names_in(shared_tasks, tasks),
        "protocols that some checkpoint lacks": drop_names_in(map(str, matrices), protocols),
    }
    return Training(
        unit=unit,
        groups=groups,
        protocols=protocols,
        main=main,
        runs=tuple(runs),
        ends=decide_ranking(
            followed[main].select(models=finals, tasks=tasks),
            known_outcomes.get(main),
            task_groups=task_groups,
        ),
        end_errors=_measure_end_errors(finals, followed, groups, known_outcomes),
        whole=set(scored_models) <= set(models),
        left_out=describe_left_out(reasons),
        are_shares=followed_tasks.has_unit_scale,
        guess_score=find_guess_score(followed_tasks, groups, guess_accuracies),
    )


def find_guess_score(
    matrix: ScoreMatrix, groups: TaskGroups, guess_accuracies: Mapping[str, float]
) -> float | None:
    """Return what guessing scores on the mean over the tasks; None where a task's level is not known."""
    if not matrix.has_unit_scale:
        return None
    guess_scores = []
    for task, metric in zip(matrix.tasks, matrix.metrics, strict=True):
        guess_score = find_chance_score(task, metric, guess_accuracies)
        if guess_score is None:
            return None
        guess_scores.append(guess_score)
    return float(np.array(guess_scores) @ groups.weights)


def _make_run(
    series: str,
    step_by_model: Mapping[str, float],
    matrices: Mapping[Protocol, ScoreMatrix],
    groups: TaskGroups,
    outcomes: Mapping[Protocol, Outcomes],
    rankings: Mapping[Protocol, Ranking],
) -> TrainingRun:
    means = {}
    errors = {}
    errors_to_last = {}
    models = tuple(step_by_model)
    for protocol, matrix in matrices.items():
        run_matrix = matrix.select(models=step_by_model, tasks=groups.tasks)
        means[protocol] = run_matrix.values @ groups.weights
        errors[protocol] = np.sqrt(run_matrix.stderr**2 @ groups.weights**2)
        items = outcomes.get(protocol)
        to_last = [
            _error_of_difference(run_matrix, items, model, models[-1], groups)
            for model in models[:-1]
        ]
        errors_to_last[protocol] = np.array([*to_last, 0.0])
    return TrainingRun(
        series=series,
        models=models,
        steps=np.array(list(step_by_model.values())),
        scores=means,
        errors=errors,
        errors_to_last=errors_to_last,
        chance_last_is_better={
            protocol: ranking.probability_better(models[-1], models[-2])
            for protocol, ranking in rankings.items()
        },
    )


def _measure_end_errors(
    finals: Sequence[str],
    matrices: Mapping[Protocol, ScoreMatrix],
    groups: TaskGroups,
    outcomes: Mapping[Protocol, Outcomes],
) -> dict[Protocol, Floats]:
    """Return the standard errors of the differences of the last checkpoints by every protocol: (runs, runs)."""
    end_errors = {}
    for protocol, matrix in matrices.items():
        of_finals = matrix.select(models=finals, tasks=groups.tasks)
        errors = np.zeros((len(finals), len(finals)))
        for first, second in combinations(range(len(finals)), 2):
            error = _error_of_difference(
                of_finals, outcomes.get(protocol), finals[first], finals[second], groups
            )
            errors[first, second] = errors[second, first] = error
        end_errors[protocol] = errors
    return end_errors


def _error_of_difference(
    matrix: ScoreMatrix, items: Outcomes | None, first: str, second: str, groups: TaskGroups
) -> float:
    """Return the standard error of the difference of two mean scores, paired where their answers are stored."""
    gaps = ScoreGaps.measure(matrix, items, first, second, groups)
    if gaps is None:
        return math.nan
    return math.sqrt(float(gaps.variances @ gaps.groups.weights**2))


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
