"""The scoreboard: every model's score as it is and after tuning, its gain, its rank and its chance to be the first.

This is the answer of a study, made once: ``potentia run`` ends with it, ``analyze rankings`` begins with it, the report
and the board lead with it. Scores are means over the tasks that all models have, so that they can be compared; their
intervals are of test noise alone, while ranks and P(first) are those of ``decide``. A gain has the errors of the paired
differences where items are stored, since both scores are of the same documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from typing import Any

import numpy as np
from scipy.stats import norm

from potentia.analysis.left_out import drop_names_in, keep_names_in
from potentia.analysis.rankings import sentences
from potentia.analysis.rankings.decide import (
    Ranking,
    format_rank_span,
)
from potentia.analysis.rankings.lead import (
    Lead,
    MissingEvidence,
    estimate_missing_evidence,
    measure_lead,
)
from potentia.analysis.rankings.noise import is_mean_of, stack_outcomes
from potentia.analysis.stats.significance import estimate_test_sizes
from potentia.analysis.wording import format_percent, format_plus_minus
from potentia.values.findings import (
    Chart,
    Finding,
    Interval,
    Plot,
    Points,
    Table,
    jsonable,
    short_names,
)
from potentia.values.protocol import Protocol, main_protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix


@dataclass(frozen=True)
class ModelStanding:
    """One model: its rank with the interval, its rank by the first protocol, its mean scores, and its gain."""

    model: str
    rank: float
    low: float
    high: float
    p_first: float  # NaN where no standard errors are known
    before: float | None  # rank by the protocol with the least preparation
    scores: tuple[Interval | None, ...]  # by protocol; None where it lacks one of the tasks
    gain: Interval | None

    @property
    def rank_interval(self) -> tuple[float, float]:
        """The interval of the rank, to draw: the rank alone where none is known."""
        return (self.low, self.high) if math.isfinite(self.low) else (self.rank, self.rank)


@dataclass(frozen=True)
class Scoreboard(Finding):
    """Every model from best to worst, and what may be said of the first."""

    protocols: tuple[Protocol, ...]  # of the scores
    ranking: Ranking
    before: Protocol | None  # that the gain is over
    tasks: tuple[str, ...]  # whose mean the scores are
    metric: str
    standings: tuple[ModelStanding, ...]
    lead: Lead | None  # of the first over the rival that is hardest to tell from it
    missing: MissingEvidence | None  # what would tell the two apart

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
        models = [s.model for s in self.standings]
        return dict(zip(models, short_names(models), strict=True))

    def headline(self) -> str:
        """Say who is the best, or who is most likely to be."""
        return sentences.headline_sentence(self.ranking)

    def certainty(self) -> list[str]:
        """Say how sure the first place is, and what would make it so."""
        return sentences.certainty_sentences(self.ranking, self.lead, self.missing)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, and the answer in words."""
        found = {f.name: jsonable(getattr(self, f.name)) for f in fields(self)}
        return found | {
            "first": self.first,
            "sure": self.ranking.is_first_certain,
            "answer": [self.headline(), *self.certainty()],
        }

    def tables(self) -> Sequence[Table]:
        """Return one row per model, best first."""
        ranked, scored = len(self.standings) > 1, bool(self.tasks)
        ranks = (
            f"{s.rank:g}" + (f" ({reach})" if (reach := format_rank_span(s.low, s.high)) else "")
            for s in self.standings
        )
        chances = (format_percent(s.p_first) for s in self.standings)
        columns: dict[str, Iterable[str | None]] = {"rank": ranks} if ranked else {}
        columns |= {"model": self.names.values()} | (
            {"P(first)": chances} if ranked and self.ranking.can_claim else {}
        )
        for k, protocol in enumerate(self.protocols if scored else ()):
            columns[protocol.label] = [format_score(s.scores[k]) for s in self.standings]
        if scored and any(s.gain is not None for s in self.standings):
            columns["gain"] = [format_score(s.gain, sign=True) for s in self.standings]
        return [
            Table(
                self._title(), columns, zip(*columns.values(), strict=True), " ".join(self._notes())
            )
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the scores before and after tuning, a line for each model."""
        shown = [s for s in self.standings if all(score is not None for score in s.scores)]
        if not self.tasks or not shown:
            return []
        places, names, points = np.arange(1.0, len(shown) + 1), tuple(s.model for s in shown), []
        for k, protocol in enumerate(self.protocols):
            scores = [score for s in shown if (score := s.scores[k]) is not None]
            value, low, high = np.array(
                [(score.value, score.low, score.high) for score in scores]
            ).T
            reach = (low, high) if np.isfinite(low).all() else ()
            if protocol in (self.before, self.protocol):
                points.append(Points(protocol.label, places, value, names, *reach))
        caption = f"{self._notes()[0]} Models by rank over all tasks ({self.protocol.label})."
        drawn = tuple(points), (), "model, by rank", self._mean()
        return [Plot("scoreboard", self._title(), caption, *drawn, joined=True)]

    def _mean(self) -> str:
        what = self.metric or "score"
        return (
            f"mean {what} over {len(self.tasks)} tasks"
            if len(self.tasks) > 1
            else f"{what} on {self.tasks[0]}"
        )

    def _title(self) -> str:
        if not self.tasks:
            return f"Ranks by {self.protocol.label}"
        mean = self._mean()
        return mean[:1].upper() + mean[1:]

    def _notes(self) -> list[str]:
        """Say what the scores are means of, what ± is, and how the ranks are made."""
        level = f"{100 * self.ranking.level:.0f} %"
        known = any(
            score is not None and math.isfinite(score.low)
            for s in self.standings
            for score in s.scores
        )
        errors = f"± is the half-width of the {level} interval of test noise." if known else ""
        parts = [errors] if known else []
        if not self.tasks:
            parts = ["No task has a score of every model, so there is no mean to compare."]
        elif len(self.tasks) > 1:
            part = (
                f" of {len(self.ranking.tasks)}"
                if len(self.tasks) < len(self.ranking.tasks)
                else ""
            )
            tasks = "tasks of one scale" if part else "tasks"
            lacking = sum(all(score is None for score in s.scores) for s in self.standings)
            who = (
                "all models have" if not lacking else f"{len(self.standings) - lacking} models have"
            )
            parts = [
                f"Means over the {len(self.tasks)}{part} {tasks} that {who}{'; ' if known else '.'}{errors}"
            ]
        if len(self.standings) > 1:
            how = f"Ranks are by {self.protocol.label}, by the {self.ranking.method.label}: {self.ranking.reason}."
            parts.append(
                f"{how} In brackets: the {level} interval." if self.ranking.can_claim else how
            )
        return parts


def format_score(score: Interval | None, *, sign: bool = False) -> str | None:
    """Write a score with the half-width of its interval; nothing where there is none."""
    return (
        None
        if score is None
        else format_plus_minus(score.value, (score.high - score.low) / 2, sign=sign)
    )


def scoreboard_from_rankings(
    given: Sequence[ScoreMatrix],
    overall: Mapping[Protocol, Ranking],
    items: Mapping[Protocol, Outcomes],
) -> Scoreboard:
    """Put scores, gains and ranks side by side; the matrices hold the tasks alone, from the least preparation on."""
    matrices = {m.protocol: m for m in given}
    first, main = given[0].protocol, main_protocol(matrices) or given[-1].protocol
    ranking, earlier = overall[main], overall.get(first) if first != main else None
    level, models = ranking.level, list(ranking.models)
    shown, tasks = _shared(matrices, models, [p for p in matrices if p in (first, main)])
    means = [_means(matrices[p], models, tasks, level) for p in shown]
    gains: dict[str, Interval] = {}
    if first != main and first in shown and tasks:
        stored = items.get(first, {}), items.get(main, {})
        gains = _gains(matrices[first], matrices[main], models, tasks, stored, level)
    missing = _hardest(ranking, matrices[main], items.get(main))
    second = next(iter(drop_names_in(models, [ranking.first])), None)
    rival = missing.rival if missing is not None else next(iter(ranking.rivals), second)
    lead = (
        measure_lead(ranking, matrices[main], items.get(main), ranking.first, rival)
        if rival
        else None
    )
    metrics = {metric.name for metric in matrices[main].select(tasks=tasks).metrics}
    by_model = ranking.ranks, ranking.low, ranking.high, ranking.p_first
    standings = []
    for m, rank, low, high, chance in zip(
        models, *(array.tolist() for array in by_model), strict=True
    ):
        before = None if earlier is None else earlier.rank_of(m)
        standings.append(
            ModelStanding(
                m, rank, low, high, chance, before, tuple(by.get(m) for by in means), gains.get(m)
            )
        )
    return Scoreboard(
        protocols=tuple(shown),
        ranking=ranking,
        before=None if earlier is None else first,
        tasks=tuple(tasks),
        metric=metrics.pop() if len(metrics) == 1 else "",
        standings=tuple(standings),
        lead=lead,
        missing=missing,
    )


def _hardest(
    ranking: Ranking, matrix: ScoreMatrix, items: Outcomes | None
) -> MissingEvidence | None:
    """Return what separates the first from the rival that is hardest to tell from it, and no variant of it."""
    sizes = estimate_test_sizes(matrix)
    rivals = drop_names_in(ranking.rivals, ranking.rival_variants) or ranking.rivals
    every = [
        estimate_missing_evidence(ranking, matrix, items, sizes, ranking.first, rival)
        for rival in rivals[:20]
    ]
    found = [missing for missing in every if missing is not None]
    return (
        max(found, key=lambda m: (m.times, math.inf if m.tasks is None else m.tasks))
        if found
        else None
    )


def _shared(
    matrices: Mapping[Protocol, ScoreMatrix], models: Sequence[str], ends: list[Protocol]
) -> tuple[list[Protocol], list[str]]:
    """Return protocols, as many as possible, and the tasks of which every model has all scores under them.

    A model that lacks more than half of the tasks does not keep them from the others. Scores where less is better, and
    those that are no shares of 1 (ratings, BLEU), are taken only where there are no others: a mean over both says
    nothing.
    """
    for protocols in (list(matrices), ends, ends[-1:]):
        if kept := _common([matrices[p] for p in protocols], models):
            return protocols, kept
    return ends[-1:], []


def _common(matrices: Sequence[ScoreMatrix], models: Sequence[str]) -> list[str]:
    """Return the tasks of which every model has all scores, but for models that lack more than half of them."""
    metrics = dict(zip(matrices[-1].tasks, matrices[-1].metrics, strict=True))
    tasks = keep_names_in(metrics, *(one.tasks for one in matrices))
    tasks = [t for t in tasks if metrics[t].higher_is_better] or tasks
    tasks = [
        t for t in tasks if metrics[t].scale in ("share", None) or metrics[t].guess == "zero"
    ] or tasks
    known = np.logical_and.reduce([np.isfinite(m.laid_out(models, tasks)[0]) for m in matrices])
    whole = known[known.sum(axis=1) > 0.5 * len(tasks)]
    return list(compress(tasks, whole.all(axis=0))) if len(whole) else []


def _means(
    matrix: ScoreMatrix, models: Sequence[str], tasks: Sequence[str], level: float
) -> dict[str, Interval]:
    if not tasks:
        return {}
    values, stderr, _ = matrix.laid_out(models, tasks)
    return _intervals(
        models, values.mean(axis=1), np.sqrt((stderr**2).sum(axis=1)) / len(tasks), level
    )


def _gains(
    before: ScoreMatrix,
    after: ScoreMatrix,
    models: Sequence[str],
    tasks: Sequence[str],
    items: tuple[Outcomes, Outcomes],
    level: float,
) -> dict[str, Interval]:
    one, error_one, _ = before.laid_out(models, tasks)
    two, error_two, _ = after.laid_out(models, tasks)
    variance = error_one**2 + error_two**2
    for i, j in np.ndindex(variance.shape):
        stored = [part.get(tasks[j], {}).get(models[i], {}) for part in items]
        both = stack_outcomes(stored)
        if (
            both is not None
            and is_mean_of(stored[0], float(one[i, j]))
            and is_mean_of(stored[1], float(two[i, j]))
        ):
            seeds = [matrix.seed_error(models[i], tasks[j]) for matrix in (before, after)]
            variance[i, j] = float(np.var(both[1] - both[0], ddof=1)) / both.shape[1] + np.dot(
                seeds, seeds
            )
    sign = after.select(tasks=tasks).sign.min()  # of a loss, less is a gain
    return _intervals(
        models, sign * (two - one).mean(axis=1), np.sqrt(variance.sum(axis=1)) / len(tasks), level
    )


def _intervals(
    models: Sequence[str], values: Floats, errors: Floats, level: float
) -> dict[str, Interval]:
    half = float(norm.ppf(0.5 + level / 2)) * errors
    return {
        m: Interval.around(v, h, level)
        for m, v, h in zip(models, values, half, strict=True)
        if math.isfinite(v)
    }
