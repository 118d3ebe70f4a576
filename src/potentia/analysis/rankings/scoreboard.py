"""The scoreboard: every model's score as it is and after tuning, its gain, its rank and its chance to be the first.

This is the answer of a study, made once: ``potentia run`` ends with it, ``analyze rankings`` begins with it, the report
and the board lead with it. Scores are means over the tasks that all models have, so that they can be compared; their
intervals are of test noise alone, while ranks and P(first) are those of ``decide_ranking``. A gain has the errors of
the paired differences where items are stored, since both scores are of the same documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import compress
from typing import Any

import numpy as np
from scipy.stats import norm

from potentia.analysis.left_out import NO_ENTRIES, drop_names_in, keep_names_in
from potentia.analysis.rankings.decide import AggregateMethod, Ranking, format_rank_span
from potentia.analysis.rankings.lead import (
    Lead,
    MissingEvidence,
    estimate_missing_evidence,
    measure_lead,
)
from potentia.analysis.rankings.margin import MarginComparison, find_smallest_as_good
from potentia.analysis.rankings.noise import stack_outcomes
from potentia.analysis.rankings.sentences import (
    certainty_sentences,
    headline_sentence,
    seed_sentence,
)
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.intervals import average_intervals, score_interval
from potentia.analysis.stats.significance import estimate_test_sizes, is_mean_of
from potentia.analysis.wording import (
    capitalize_first,
    format_level,
    format_percent,
    join_names,
)
from potentia.values.clusters import Clusters, clustered_error
from potentia.values.findings import (
    Chart,
    Finding,
    Interval,
    Plot,
    Points,
    Table,
    ValuedText,
    short_names,
    to_json_values,
)
from potentia.values.metric import Origin
from potentia.values.protocol import Protocol, choose_main_protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix, find_clusters
from potentia.values.seeds import SeedSpread, measure_seed_spread

MOST_RIVALS = 20  # that are looked at for what is missing


@dataclass(frozen=True)
class ModelStanding:
    """One model: its rank with the interval, its rank by the first protocol, its mean scores, and its gain."""

    model: str
    rank: float
    low: float
    high: float
    p_first: float  # NaN where nothing can be claimed
    tasks: int  # that it was measured on
    before: float | None  # rank by the protocol with the least preparation
    scores: tuple[Interval | None, ...]  # by protocol; None where it lacks one of the tasks
    gain: Interval | None

    @property
    def rank_interval(self) -> tuple[float, float]:
        """The interval of the rank, to draw: the rank alone where none is known."""
        if math.isfinite(self.low):
            return self.low, self.high
        return self.rank, self.rank

    def format_rank(self) -> str:
        """Write the rank, with its interval where it is known."""
        rank_span = format_rank_span(self.low, self.high)
        text = f"{self.rank:g}" if rank_span is None else f"{self.rank:g} ({rank_span})"
        return ValuedText(text, value=self.rank, low=self.low, high=self.high)


@dataclass(frozen=True)
class Scoreboard(Finding):
    """Every model from best to worst, and what may be said of the first."""

    protocols: tuple[Protocol, ...]  # of the scores
    ranking: Ranking
    before: Protocol | None  # that the gain is over
    tasks: tuple[str, ...]  # whose mean the scores are
    metric: str
    standings: tuple[ModelStanding, ...]
    lead: Lead | None  # of the first over the rival that is hardest to separate from it
    missing: MissingEvidence | None  # what would separate the two
    other_parts: tuple[Scoreboard, ...] = ()  # of models that share no task with these
    seeds: SeedSpread | None = None  # of fine-tuned results; None where nothing is fine-tuned here
    smallest_as_good: MarginComparison | None = None  # beside the first
    left_out: dict[str, str] = field(
        default_factory=dict
    )  # why a task is not in the means, by task

    @property
    def protocol(self) -> Protocol:
        """The protocol that ranks."""
        return self.ranking.protocol

    @property
    def first(self) -> str:
        """The model that is most likely the best."""
        return self.ranking.first

    @property
    def names(self) -> dict[str, str]:
        """The models by the short names that people read."""
        models = [standing.model for standing in self.standings]
        return dict(zip(models, short_names(models), strict=True))

    @property
    def overall_scores(self) -> dict[str, float]:
        """What ranks the models, where it is something else than the mean of their scores."""
        if self.ranking.method not in (AggregateMethod.MEAN_Z, AggregateMethod.MEAN_RANK):
            return {}
        return dict(zip(self.ranking.models, self.ranking.scores.tolist(), strict=True))

    def headline(self) -> str:
        """Say who is the best, or who is most likely to be."""
        return headline_sentence(self.ranking)

    def certainty(self) -> list[str]:
        """Say how sure the first place is, and what would make it so."""
        sentences = certainty_sentences(self.ranking, self.lead, self.missing)
        if self.smallest_as_good is not None:
            sentences.append(self.smallest_as_good.sentence())
        if self.seeds is not None and len(self.standings) > 1:
            about_seeds = seed_sentence(self.seeds)
            if about_seeds is not None:
                sentences.append(about_seeds)
        return sentences

    def to_dict(self) -> dict[str, Any]:
        """Return every field, and the answer in words."""
        content = {field.name: to_json_values(getattr(self, field.name)) for field in fields(self)}
        return content | {
            "first": self.first,
            "sure": self.ranking.is_first_certain,
            "answer": [self.headline(), *self.certainty()],
        }

    def tables(self) -> Sequence[Table]:
        """Return one row per model, best first; a table for each part of models that can be compared."""
        tables = [self._tabulate_standings()]
        for part in self.other_parts:
            tables += part.tables()
        return tables

    def _tabulate_standings(self) -> Table:
        is_ranked = len(self.standings) > 1
        columns_by_name: dict[str, Iterable[str | None]] = {}
        if is_ranked:
            columns_by_name["rank"] = [standing.format_rank() for standing in self.standings]
        columns_by_name["model"] = self.names.values()
        if is_ranked and self.ranking.can_claim:
            columns_by_name["P(first)"] = [
                format_percent(standing.p_first) for standing in self.standings
            ]
        overall_scores = self.overall_scores
        if is_ranked and overall_scores:
            columns_by_name[self.ranking.method.value] = [
                _format_overall_score(overall_scores[standing.model]) for standing in self.standings
            ]
        if self.tasks:
            for position, protocol in enumerate(self.protocols):
                columns_by_name[protocol.label] = [
                    format_score(standing.scores[position]) for standing in self.standings
                ]
        if self.tasks and any(standing.gain is not None for standing in self.standings):
            columns_by_name["gain"] = [
                format_score(standing.gain, sign=True) for standing in self.standings
            ]
        tasks = len(self.ranking.tasks)
        if any(standing.tasks < tasks for standing in self.standings):
            columns_by_name["tasks"] = [
                ValuedText(f"{standing.tasks} of {tasks}", value=standing.tasks)
                for standing in self.standings
            ]
        table_rows = zip(*columns_by_name.values(), strict=True)
        frame_names = {protocol.label: str(protocol) for protocol in self.protocols}
        return Table(
            self._title(),
            columns_by_name,
            table_rows,
            " ".join(self._notes()),
            frame_names=frame_names,
        )

    def charts(self) -> Sequence[Chart]:
        """Return the scores before and after tuning, a line for each model."""
        drawn_standings = []
        for standing in self.standings:
            if all(score is not None for score in standing.scores):
                drawn_standings.append(standing)
        if not self.tasks or not drawn_standings:
            return []
        points = []
        for column, protocol in enumerate(self.protocols):
            if protocol in (self.before, self.protocol):
                points.append(_score_points(protocol, column, drawn_standings))
        title = self._title()
        caption = f"{self._notes()[0]} Models by rank over all tasks ({self.protocol.label})."
        chart = Plot(
            "scoreboard",
            title,
            caption,
            tuple(points),
            (),
            x_label="model, by rank",
            y_label=self._describe_mean(),
            joined=True,
        )
        return [chart]

    def describe_left_out(self) -> str:
        """Say which tasks the means leave out, and why: ", without cola (another scale)"; empty where there is none."""
        tasks_by_reason: dict[str, list[str]] = {}
        for task, reason in self.left_out.items():
            tasks_by_reason.setdefault(reason, []).append(task)
        named = [f"{join_names(tasks)} ({reason})" for reason, tasks in tasks_by_reason.items()]
        return f", without {join_names(named)}" if named else ""

    def _describe_mean(self) -> str:
        """Say what the scores are means of."""
        measure = self.metric or "score"
        if len(self.tasks) > 1:
            return f"mean {measure} over {self._groups.describe_size()}"
        return f"{measure} on {self.tasks[0]}"

    @property
    def _groups(self) -> TaskGroups:
        """The groups of the tasks whose mean the scores are."""
        return self.ranking.groups.select(self.tasks)

    def _title(self) -> str:
        if not self.tasks:
            return f"Ranks {self.protocol.phrase}"
        return capitalize_first(self._describe_mean())

    def _notes(self) -> list[str]:
        """Say what the scores are means of, what their intervals are, and how the ranks are made."""
        level = format_level(self.ranking.level)
        error_note = self._describe_intervals()
        notes = []
        if not self.tasks:
            notes.append("No task has a score of every model, so there is no mean to compare.")
        elif len(self.tasks) > 1:
            mean_note = self._describe_tasks()
            notes.append(f"{mean_note}; {error_note}" if error_note else f"{mean_note}.")
        elif error_note:
            notes.append(error_note)
        if len(self.standings) > 1:
            method = f"by the {self.ranking.method.label}: {self.ranking.reason}"
            rank_note = f"Ranks are those {self.protocol.phrase}, {method}."
            if self.ranking.can_claim:
                rank_note += f" In brackets: the {level} interval{self._rank_scope()}."
            notes.append(rank_note)
        return notes

    def _rank_scope(self) -> str:
        """Say what the intervals of ranks allow for."""
        if self.ranking.generalizes:
            return ", with other tasks like these"
        return ", by test noise on these tasks alone"

    def _describe_intervals(self) -> str:
        """Say what is written behind the scores; nothing where no score has an interval."""
        intervals = []
        for standing in self.standings:
            for score in standing.scores:
                if score is not None and math.isfinite(score.low):
                    intervals.append(score)
        level = format_level(self.ranking.level)
        if any(interval.has_even_sides() for interval in intervals):
            return f"± is the half-width of the {level} interval of test noise."
        if intervals:
            return f"In brackets behind a score: the {level} interval of test noise."
        return ""

    def _describe_tasks(self) -> str:
        """Say which tasks the means are over, and how many models have them."""
        tasks = f"{len(self.tasks)} tasks"
        if len(self.tasks) < len(self.ranking.tasks):
            tasks = f"{len(self.tasks)} of {len(self.ranking.tasks)} tasks"
        lacking = 0
        for standing in self.standings:
            lacking += all(score is None for score in standing.scores)
        models = "all models have"
        if lacking:
            models = f"{len(self.standings) - lacking} models have"
        return f"Means over the {tasks} that {models}{self.describe_left_out()}"


def _score_points(protocol: Protocol, column: int, standings: Sequence[ModelStanding]) -> Points:
    """Return the scores under one protocol as points, with their intervals where all are known."""
    scores = [standing.scores[column] for standing in standings]
    points = [(score.value, score.low, score.high) for score in scores if score is not None]
    values, low, high = np.array(points).T
    positions = np.arange(1.0, len(standings) + 1)
    names = tuple(standing.model for standing in standings)
    if not np.isfinite(low).all():
        return Points(protocol.label, positions, values, names)
    return Points(protocol.label, positions, values, names, low, high)


def _format_overall_score(score: float) -> ValuedText:
    return ValuedText(f"{score:.2f}", value=score)


def format_score(score: Interval | None, *, sign: bool = False) -> str | None:
    """Write a score with the half-width of its interval; None where there is none."""
    if score is None:
        return None
    return score.format(sign=sign)


def scoreboard_from_rankings(
    matrices: Sequence[ScoreMatrix],
    overall: Mapping[Protocol, Ranking],
    items: Mapping[Protocol, Outcomes],
    sizes: Mapping[str, float] = NO_ENTRIES,
) -> Scoreboard:
    """Put scores, gains and ranks side by side; the matrices hold the tasks alone, from the least preparation on.

    ``sizes`` are the models' parameters, where they are known.
    """
    by_protocol = {matrix.protocol: matrix for matrix in matrices}
    first = matrices[0].protocol
    main = choose_main_protocol(by_protocol) or matrices[-1].protocol
    ranking_before = overall.get(first) if first != main else None
    scoreboard = _scoreboard_of_part(by_protocol, overall[main], ranking_before, first, items)
    other_parts = []
    for part in overall[main].other_parts:
        other_parts.append(_scoreboard_of_part(by_protocol, part, ranking_before, first, items))
    smallest = find_smallest_as_good(
        by_protocol[main], items.get(main), scoreboard.first, sizes, overall[main].groups
    )
    return replace(scoreboard, other_parts=tuple(other_parts), smallest_as_good=smallest)


def _scoreboard_of_part(
    by_protocol: Mapping[Protocol, ScoreMatrix],
    ranking: Ranking,
    ranking_before: Ranking | None,
    first: Protocol,
    items: Mapping[Protocol, Outcomes],
) -> Scoreboard:
    """Put scores, gains and ranks of models that can be compared side by side."""
    main = ranking.protocol
    models = list(ranking.models)
    end_protocols = [protocol for protocol in by_protocol if protocol in (first, main)]
    protocols, tasks = _choose_shared_tasks(by_protocol, models, end_protocols)
    weights = ranking.groups.select(tasks).weights
    means = []
    for protocol in protocols:
        means.append(_average_scores(by_protocol[protocol], models, tasks, weights, ranking.level))
    gains: dict[str, Interval] = {}
    if first != main and first in protocols and tasks:
        gains = measure_gains(
            ScoresWithItems(by_protocol[first], items.get(first, {})),
            ScoresWithItems(by_protocol[main], items.get(main, {})),
            models,
            tasks,
            weights,
            ranking.level,
        )
    missing = _find_hardest_rival(ranking, by_protocol[main], items.get(main))
    first_lead = _measure_first_lead(ranking, by_protocol[main], items.get(main), missing)
    metrics = {metric.name for metric in by_protocol[main].select(tasks=tasks).metrics}
    standings = []
    for row, model in enumerate(models):
        rank_before = None
        if ranking_before is not None:
            rank_before = ranking_before.rank_of(model)
        mean_scores = tuple(mean_by_model.get(model) for mean_by_model in means)
        standing = ModelStanding(
            model=model,
            rank=float(ranking.ranks[row]),
            low=float(ranking.low[row]),
            high=float(ranking.high[row]),
            p_first=float(ranking.p_first[row]),
            tasks=ranking.task_counts[row],
            before=rank_before,
            scores=mean_scores,
            gain=gains.get(model),
        )
        standings.append(standing)
    before = None if ranking_before is None else first
    shared_metric = metrics.pop() if len(metrics) == 1 else ""
    seeds = find_seed_spread(by_protocol[main])
    return Scoreboard(
        protocols=tuple(protocols),
        ranking=ranking,
        before=before,
        tasks=tuple(tasks),
        metric=shared_metric,
        standings=tuple(standings),
        lead=first_lead,
        missing=missing,
        seeds=seeds,
        left_out=_explain_left_out(ranking.tasks, tasks, models, protocols, by_protocol),
    )


def find_seed_spread(matrix: ScoreMatrix) -> SeedSpread | None:
    """Return how far seeds move the scores of a matrix; None where they are not of fine-tunings that are known.

    A table from elsewhere does not say how often a model was fine-tuned.
    """
    if not matrix.protocol.tuned or matrix.origins is None:
        return None
    origins: list[Origin | None] = matrix.origins.ravel().tolist()
    recipes = [origin.recipe for origin in origins if origin is not None]
    if not any(recipes):
        return None
    return measure_seed_spread(matrix)


def _find_hardest_rival(
    ranking: Ranking, matrix: ScoreMatrix, items: Outcomes | None
) -> MissingEvidence | None:
    """Return what separates the first from the rival that is hardest to tell from it, and no variant of it."""
    test_sizes = estimate_test_sizes(matrix)
    rivals = drop_names_in(ranking.rivals, ranking.rival_variants) or ranking.rivals
    candidates = []
    for rival in rivals[:MOST_RIVALS]:
        missing = estimate_missing_evidence(
            ranking, matrix, items, test_sizes, ranking.first, rival
        )
        if missing is not None:
            candidates.append(missing)
    if not candidates:
        return None
    return max(candidates, key=_evidence_needed)


def _evidence_needed(missing: MissingEvidence) -> tuple[float, float]:
    """Return how much is missing, by test examples and then by tasks, to compare rivals by."""
    tasks = math.inf if missing.tasks is None else float(missing.tasks)
    return missing.times, tasks


def _measure_first_lead(
    ranking: Ranking,
    matrix: ScoreMatrix,
    items: Outcomes | None,
    missing: MissingEvidence | None,
) -> Lead | None:
    """Return the lead of the first over its hardest rival, its likeliest one, or the second; None if it is alone."""
    other_models = drop_names_in(ranking.models, [ranking.first])
    if missing is not None:
        rival = missing.rival
    elif ranking.rivals:
        rival = ranking.rivals[0]
    elif other_models:
        rival = other_models[0]
    else:
        return None
    return measure_lead(ranking, matrix, items, ranking.first, rival)


def _choose_shared_tasks(
    matrices: Mapping[Protocol, ScoreMatrix], models: Sequence[str], end_protocols: list[Protocol]
) -> tuple[list[Protocol], list[str]]:
    """Return protocols, as many as possible, and the tasks of which every model has all scores under them.

    A model that lacks more than half of the tasks does not keep them from the others. Scores where less is better, and
    those that are no shares of 1 (ratings, BLEU), are taken only where there are no others: a mean over both says
    nothing.
    """
    for protocols in (list(matrices), end_protocols, end_protocols[-1:]):
        tasks = _list_common_tasks([matrices[protocol] for protocol in protocols], models)
        if tasks:
            return protocols, tasks
    return end_protocols[-1:], []


def _explain_left_out(
    ranked_tasks: Sequence[str],
    averaged_tasks: Sequence[str],
    models: Sequence[str],
    protocols: Sequence[Protocol],
    matrices: Mapping[Protocol, ScoreMatrix],
) -> dict[str, str]:
    """Return why each ranked task is not in the means: it has another scale, or models lack it."""
    if not averaged_tasks:
        return {}
    main = matrices[protocols[-1]]
    metrics = dict(zip(main.tasks, main.metrics, strict=True))
    is_averaged_high = metrics[averaged_tasks[0]].higher_is_better
    reasons = {}
    for task in drop_names_in(ranked_tasks, averaged_tasks):
        lacking = _find_models_without(task, models, [matrices[protocol] for protocol in protocols])
        if task not in metrics or metrics[task].higher_is_better != is_averaged_high:
            reasons[task] = "less is better there" if is_averaged_high else "more is better there"
        elif lacking:
            names = dict(zip(models, short_names(models), strict=True))
            reasons[task] = f"no score of {join_names([names[model] for model in lacking])}"
        else:
            reasons[task] = "another scale"
    return reasons


def _find_models_without(
    task: str, models: Sequence[str], matrices: Sequence[ScoreMatrix]
) -> list[str]:
    """Return the models that lack the score of a task in one of the matrices."""
    lacking = []
    for row, model in enumerate(models):
        has_all = True
        for matrix in matrices:
            has_task = task in matrix.tasks
            has_all = (
                has_all
                and has_task
                and bool(np.isfinite(matrix.arrange(models, [task])[0][row, 0]))
            )
        if not has_all:
            lacking.append(model)
    return lacking


def _list_common_tasks(matrices: Sequence[ScoreMatrix], models: Sequence[str]) -> list[str]:
    """Return the tasks of which every model has all scores, but for models that lack more than half of them."""
    metrics = dict(zip(matrices[-1].tasks, matrices[-1].metrics, strict=True))
    tasks = keep_names_in(metrics, *(matrix.tasks for matrix in matrices))
    tasks = [task for task in tasks if metrics[task].higher_is_better] or tasks
    of_one_scale = []
    for task in tasks:
        if metrics[task].scale in ("share", None) or metrics[task].guess_rule == "zero":
            of_one_scale.append(task)
    tasks = of_one_scale or tasks
    measured = [np.isfinite(matrix.arrange(models, tasks)[0]) for matrix in matrices]
    under_all = np.logical_and.reduce(measured)
    counted = under_all[under_all.sum(axis=1) > 0.5 * len(tasks)]
    if not len(counted):
        return []
    return list(compress(tasks, counted.all(axis=0)))


def _average_scores(
    matrix: ScoreMatrix,
    models: Sequence[str],
    tasks: Sequence[str],
    weights: Floats,
    level: float,
) -> dict[str, Interval]:
    """Return the mean score of every model over these tasks, with its interval of test noise."""
    if not tasks:
        return {}
    values, stderr, examples = matrix.arrange(models, tasks)
    metrics = dict(zip(matrix.tasks, matrix.metrics, strict=True))
    are_shares = [metrics[task].scale == "share" for task in tasks]
    means = {}
    for row, model in enumerate(models):
        intervals = []
        for column, is_share in enumerate(are_shares):
            interval = score_interval(
                float(values[row, column]),
                float(stderr[row, column]),
                examples=float(examples[row, column]),
                is_share=is_share,
                level=level,
            )
            intervals.append(interval)
        mean = average_intervals(intervals, weights.tolist())
        if math.isfinite(mean.value):
            means[model] = mean
    return means


@dataclass(frozen=True)
class ScoresWithItems:
    """The scores of one protocol with their stored outcomes."""

    matrix: ScoreMatrix
    items: Outcomes

    def outcomes_of(self, model: str, task: str) -> Mapping[int, float]:
        """Return the stored outcomes of one model on one task, by document."""
        return self.items.get(task, {}).get(model, {})

    def clusters_of(self, task: str, documents: Sequence[int]) -> Clusters:
        """Return which of these documents of a task share a passage."""
        return Clusters.of_examples(documents, find_clusters(self.items, task))


def measure_gains(
    before: ScoresWithItems,
    after: ScoresWithItems,
    models: Sequence[str],
    tasks: Sequence[str],
    weights: Floats,
    level: float,
) -> dict[str, Interval]:
    """Return the mean gain of every model over these tasks, with its interval of test noise."""
    values_before, _, _ = before.matrix.arrange(models, tasks)
    values_after, _, _ = after.matrix.arrange(models, tasks)
    variance = measure_gain_variance(before, after, models, tasks)
    sign = after.matrix.select(tasks=tasks).sign.min()  # of a loss, less is a gain
    gains = sign * (values_after - values_before) @ weights
    errors = np.sqrt(variance @ weights**2)
    return _intervals_by_model(models, gains, errors, level)


def measure_gain_variance(
    before: ScoresWithItems,
    after: ScoresWithItems,
    models: Sequence[str],
    tasks: Sequence[str],
) -> Floats:
    """Return the variance by test noise of every gain, (models, tasks): paired where the same documents were tested."""
    values_before, errors_before, _ = before.matrix.arrange(models, tasks)
    values_after, errors_after, _ = after.matrix.arrange(models, tasks)
    variance = errors_before**2 + errors_after**2
    for row, column in np.ndindex(variance.shape):
        model, task = models[row], tasks[column]
        outcomes_before = before.outcomes_of(model, task)
        outcomes_after = after.outcomes_of(model, task)
        paired = stack_outcomes([outcomes_before, outcomes_after])
        if paired is None:
            continue
        if not is_mean_of(outcomes_before, float(values_before[row, column])):
            continue
        if not is_mean_of(outcomes_after, float(values_after[row, column])):
            continue
        seed_errors = [scores.matrix.seed_error(model, task) for scores in (before, after)]
        clusters = after.clusters_of(task, sorted(outcomes_after))
        paired_variance = clustered_error(paired[1] - paired[0], clusters) ** 2
        variance[row, column] = paired_variance + np.dot(seed_errors, seed_errors)
    return variance


def _intervals_by_model(
    models: Sequence[str], values: Floats, errors: Floats, level: float
) -> dict[str, Interval]:
    """Return the normal interval of each model's value; models without a value are left out."""
    half_widths = float(norm.ppf(0.5 + level / 2)) * errors
    intervals = {}
    for model, value, half_width in zip(models, values, half_widths, strict=True):
        if math.isfinite(value):
            intervals[model] = Interval.around(value, half_width, level)
    return intervals
