"""The scoreboard: every model's score as it is and after tuning, its gain and its rank, and whether the first is sure.

This is the answer of a study, made once: ``potentia run`` ends with it, ``analyze rankings`` begins with it, the report
and the board lead with it. Scores are means over the tasks that all models have, so that they can be compared; their
intervals are of test noise alone, while those of the ranks are of test noise and the choice of tasks. A gain has the
errors of the paired differences where items are stored, since both scores are of the same documents.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from potentia.analysis.rankings.certainty import Missing, what_is_missing
from potentia.analysis.rankings.components import Components
from potentia.analysis.rankings.groups import items_per_task
from potentia.analysis.rankings.overall import NAMES, Ranking
from potentia.values.findings import Cell, Chart, Finding, Interval, Plot, Points, Table, short_names
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

PREPARED = {
    "train_before_test": "after the same fine-tuning for all",
    "adjust": "after tuning all on the same data",
}


@dataclass(frozen=True)
class Standing:
    """One model: its rank with the interval, its rank by the first protocol, its mean scores, and its gain."""

    model: str
    rank: float
    low: float
    high: float
    before: float | None  # rank by the protocol with the least preparation
    scores: tuple[Interval | None, ...]  # by protocol; None where it lacks one of the tasks
    gain: Interval | None


@dataclass(frozen=True)
class Lead:
    """How far the first model's mean score lies above a rival's, on these very tasks."""

    rival: str
    difference: Interval

    def sentence(self, first: str, rival: str, tasks: int) -> str:
        """Say whether test noise could explain it, in the names given."""
        here = "these tasks" if tasks > 1 else "this task"
        by, low = told(self.difference), self.difference.low
        if low > 0:
            return f"On {here} alone {first} is ahead of {rival} beyond test noise: by {by}."
        return f"On {here} alone test noise can explain what lies between {first} and {rival}: {by}."


@dataclass(frozen=True)
class Scoreboard(Finding):
    """Every model from best to worst, and what may be said of the first."""

    protocols: tuple[Protocol, ...]  # of the scores
    protocol: Protocol  # that ranks
    before: Protocol | None  # that the gain is over
    method: str
    reason: str
    ranked_on: tuple[str, ...]  # the tasks of the ranking
    tasks: tuple[str, ...]  # whose mean the scores are
    metric: str
    standings: tuple[Standing, ...]
    rivals: tuple[str, ...]  # those beside the first whose intervals reach the first place
    lead: Lead | None  # over the rival that is hardest to tell from it
    missing: Missing | None  # what would tell the two apart
    level: float = 0.95

    @property
    def first(self) -> str:
        """The model with the best estimate."""
        return self.standings[0].model

    @property
    def names(self) -> dict[str, str]:
        """The models by the short names that people read."""
        models = [s.model for s in self.standings]
        return dict(zip(models, short_names(models), strict=True))

    @property
    def certain(self) -> bool:
        """Whether no other model may be first."""
        return not self.rivals

    def headline(self) -> str:
        """Say who is first, or who may be."""
        where = f"over {len(self.ranked_on)} task{'s' if len(self.ranked_on) > 1 else ''}"
        kind, models, first = self.protocol.kind, len(self.standings), self.names[self.first]
        how = PREPARED.get(kind, f"by {self.protocol.label}")
        if models < 2:
            return f"Only {first} has scores to rank {how}."
        if self.rivals:
            named = _listing([first, *(self.names[rival] for rival in self.rivals)], 4)
            return f"{named} may each be first of {models} models {how}, {where}."
        verb = "has the most potential of" if kind in PREPARED else "is first of"
        return f"{first} {verb} {models} models {how}, {where}."

    def certainty(self) -> list[str]:
        """Say how sure the first place is, and what would make it so."""
        if len(self.standings) < 2:
            return []
        top, others = self.standings[0], len(self.ranked_on) > 1
        reach = f"rank {top.rank:g}, {self.level:.0%} interval {top.low:.0f} to {top.high:.0f}".replace("%", " %")
        if not self.rivals:
            again = "on other tasks like these" if others else "on this task"
            return [f"Its first place ({reach}) holds when the tests are run again with their noise {again}."]
        cause = "test noise and the choice of tasks" if others else "test noise"
        tied = [s.model for s in self.standings if s.rank == top.rank]
        names, count = self.names, len([rival for rival in self.rivals if rival not in tied])
        rest = (
            f"the interval of one other model reaches first place too: {cause} could put it there."
            if count == 1
            else f"the intervals of {count} other models reach first place too: {cause} could put any of them there."
        )
        if len(tied) > 1:
            shared = f"{_listing([names[model] for model in tied], 4)} share the best estimate ({reach})"
            sentences = [f"{shared}, and {rest}" if count else f"{shared}."]
        else:
            sentences = [f"{names[top.model]} has the best estimate ({reach}), but {rest}"]
        if self.lead is not None:
            sentences.append(self.lead.sentence(names[top.model], names[self.lead.rival], len(self.tasks)))
        if self.missing is not None:
            sentences.append(self.missing.sentence(names[top.model], names[self.missing.rival]))
        return sentences

    def tables(self) -> Sequence[Table]:
        """Return one row per model, best first."""
        ranked, scored = len(self.standings) > 1, bool(self.tasks)
        gains = scored and any(s.gain is not None for s in self.standings)
        columns = [*(["rank"] if ranked else []), "model"]
        columns += [p.label for p in self.protocols] if scored else []
        rows: list[tuple[Cell, ...]] = []
        for name, s in zip(self.names.values(), self.standings, strict=True):
            row: list[Cell] = [f"{s.rank:g} ({s.low:.0f}–{s.high:.0f})"] if ranked else []
            row.append(name)
            row += [told(score) for score in s.scores] if scored else []
            rows.append((*row, *([told(s.gain, sign=True)] if gains else [])))
        return [
            Table(
                self._title(),
                (*columns, *(["gain"] if gains else [])),
                tuple(rows),
                note=" ".join(self._notes()),
            )
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the scores before and after tuning, a line for each model."""
        shown = [s for s in self.standings if all(score is not None for score in s.scores)]
        if not self.tasks or not shown:
            return []
        ends = [k for k, p in enumerate(self.protocols) if p in (self.before, self.protocol)]
        return [
            Plot(
                name="scoreboard",
                title=self._title(),
                caption=f"{self._notes()[0]} Models by rank over all tasks ({self.protocol.label}).",
                points=tuple(
                    Points(
                        self.protocols[k].label,
                        tuple(float(place) for place in range(1, len(shown) + 1)),
                        tuple(s.scores[k].value for s in shown),  # type: ignore[union-attr]
                        tuple(s.model for s in shown),
                        *_bounds([s.scores[k] for s in shown]),
                    )
                    for k in ends
                ),
                x_label="model, by rank",
                y_label=self._mean(),
                joined=True,
            )
        ]

    def _mean(self) -> str:
        what = self.metric or "score"
        return f"mean {what} over {len(self.tasks)} tasks" if len(self.tasks) > 1 else f"{what} on {self.tasks[0]}"

    def _title(self) -> str:
        if not self.tasks:
            return f"Ranks by {self.protocol.label}"
        mean = self._mean()
        return mean[:1].upper() + mean[1:]

    def _notes(self) -> list[str]:
        parts = []
        if self.tasks:
            part = f" of {len(self.ranked_on)}" if len(self.tasks) < len(self.ranked_on) else ""
            mean = f"Means over the {len(self.tasks)}{part} tasks that all models have; " if len(self.tasks) > 1 else ""
            parts.append(
                f"{mean}± is the half-width of the {self.level:.0%} interval of test noise.".replace("%", " %")
            )
            parts[0] = parts[0][:1].upper() + parts[0][1:]
        else:
            parts.append("No task has a score of every model, so there is no mean to compare.")
        if len(self.standings) > 1:
            parts.append(
                f"Rank by {self.protocol.label}, by the {NAMES[self.method]}: {self.reason}. "
                f"In brackets: the {self.level:.0%} interval.".replace("%", " %")
            )
        return parts


def told(score: Interval | None, digits: int = 3, *, sign: bool = False) -> str | None:
    """Write a score with the half-width of its interval: 0.612 ± 0.021."""
    if score is None or not math.isfinite(score.value):
        return None
    value = f"{score.value:{'+' if sign else ''}.{digits}f}"
    half = (score.high - score.low) / 2
    return f"{value} ± {half:.{digits}f}" if math.isfinite(half) else value


def make_scoreboard(
    matrices: Mapping[Protocol, ScoreMatrix],
    overall: Mapping[Protocol, Ranking],
    components: Mapping[Protocol, Components],
    main: Protocol,
    items: Mapping[Protocol, Outcomes],
) -> Scoreboard:
    """Put scores, gains and ranks side by side; ``matrices`` hold the tasks alone."""
    ranking, first = overall[main], next(iter(matrices))
    earlier = overall.get(first) if first != main else None
    level, models = ranking.level, list(ranking.models)
    shown, tasks = _shared(matrices, models, [p for p in matrices if p in (first, main)], list(matrices))
    means = {p: _means(matrices[p], models, tasks, level) for p in shown}
    gains = (
        _gains(matrices[first], matrices[main], models, tasks, items.get(first, {}), items.get(main, {}), level)
        if first != main and first in shown and tasks
        else {}
    )
    missing = _missing(matrices[main], ranking, components.get(main))
    rival = missing.rival if missing is not None else next(iter(ranking.rivals), None)
    metrics = {m for t, m in zip(matrices[main].tasks, matrices[main].metrics, strict=True) if t in tasks}
    return Scoreboard(
        protocols=tuple(shown),
        protocol=main,
        before=None if earlier is None else first,
        method=ranking.method,
        reason=ranking.reason,
        ranked_on=ranking.tasks,
        tasks=tuple(tasks),
        metric=metrics.pop() if len(metrics) == 1 else "",
        standings=tuple(
            Standing(
                model,
                float(ranking.ranks[k]),
                float(ranking.low[k]),
                float(ranking.high[k]),
                None if earlier is None else earlier.rank(model),
                tuple(means[p].get(model) for p in shown),
                gains.get(model),
            )
            for k, model in enumerate(models)
        ),
        rivals=ranking.rivals,
        lead=_lead(matrices[main], tasks, ranking.models[0], rival, items.get(main, {}), level) if rival else None,
        missing=missing,
        level=level,
    )


def _shared(
    matrices: Mapping[Protocol, ScoreMatrix], models: Sequence[str], ends: list[Protocol], every: list[Protocol]
) -> tuple[list[Protocol], list[str]]:
    """Return protocols, as many as possible, and the tasks of which every model has all scores under them.

    A model that lacks more than half of the tasks does not keep them from the others. Scores where less is better are
    taken only where there are no others: a mean over both says nothing.
    """
    for protocols in (every, ends, ends[-1:]):
        if not all(p in matrices for p in protocols):
            continue
        tasks = [t for t in matrices[protocols[-1]].tasks if all(t in matrices[p].tasks for p in protocols)]
        up = dict(zip(matrices[protocols[-1]].tasks, matrices[protocols[-1]].higher_is_better, strict=True))
        tasks = [t for t in tasks if up[t]] or tasks
        parts = [matrices[p].select(tasks=tasks) for p in protocols]
        known = np.logical_and.reduce([np.isfinite(_rows(part, models)[0]) for part in parts])  # (models, tasks)
        whole = known[known.mean(axis=1) > 0.5] if tasks else known
        kept = [t for k, t in enumerate(tasks) if len(whole) and whole[:, k].all()]
        if kept:
            return protocols, kept
    return ends[-1:], []


def _rows(matrix: ScoreMatrix, models: Sequence[str]) -> tuple[Floats, Floats]:
    """Return values and standard errors of these models; NaN where the matrix has no such model."""
    place = {m: k for k, m in enumerate(matrix.models)}
    values, stderr = (np.full((len(models), len(matrix.tasks)), np.nan) for _ in range(2))
    rows = [k for k, m in enumerate(models) if m in place]
    where = [place[models[k]] for k in rows]
    values[rows], stderr[rows] = matrix.values[where], matrix.stderr[where]
    return values, stderr


def _means(matrix: ScoreMatrix, models: Sequence[str], tasks: Sequence[str], level: float) -> dict[str, Interval]:
    if not tasks:
        return {}
    values, stderr = _rows(matrix.select(tasks=tasks), models)
    return _intervals(models, values.mean(axis=1), np.sqrt((stderr**2).sum(axis=1)) / len(tasks), level)


def _gains(
    before: ScoreMatrix,
    after: ScoreMatrix,
    models: Sequence[str],
    tasks: Sequence[str],
    items_before: Outcomes,
    items_after: Outcomes,
    level: float,
) -> dict[str, Interval]:
    one, error_one = _rows(before.select(tasks=tasks), models)
    two, error_two = _rows(after.select(tasks=tasks), models)
    variance = error_one**2 + error_two**2
    for j, task in enumerate(tasks):
        for i, model in enumerate(models):
            pair = items_before.get(task, {}).get(model), items_after.get(task, {}).get(model)
            variance[i, j] = _paired(*pair, (one[i, j], two[i, j]), variance[i, j])
    gain = (two - one).mean(axis=1)
    sign = 1.0 if _up(after, tasks) else -1.0  # of a loss, less is a gain
    return _intervals(models, sign * gain, np.sqrt(variance.sum(axis=1)) / len(tasks), level)


def _lead(
    matrix: ScoreMatrix, tasks: Sequence[str], first: str, rival: str, items: Outcomes, level: float
) -> Lead | None:
    if not tasks:
        return None
    values, stderr = _rows(matrix.select(tasks=tasks), [first, rival])
    variance = (stderr**2).sum(axis=0)
    for j, task in enumerate(tasks):
        pair = items.get(task, {}).get(rival), items.get(task, {}).get(first)
        variance[j] = _paired(*pair, (values[1, j], values[0, j]), variance[j])
    ahead = (values[0] - values[1]).mean(keepdims=True) * (1.0 if _up(matrix, tasks) else -1.0)
    found = _intervals([first], ahead, np.sqrt(variance.sum(keepdims=True)) / len(tasks), level).get(first)
    return Lead(rival, found) if found is not None and math.isfinite(found.low) else None


def _paired(
    one: Mapping[int, float] | None, two: Mapping[int, float] | None, means: tuple[float, float], otherwise: float
) -> float:
    """Return the variance of the difference of two scores of the same documents, where their items are stored.

    Scores that are no means of items (f1, mcc) keep the variance of two scores that have nothing in common.
    """
    if not one or not two or one.keys() != two.keys() or len(one) < 2:
        return otherwise
    x, y = (np.array([part[document] for document in one]) for part in (one, two))
    return float(np.var(y - x, ddof=1)) / len(x) if np.allclose([x.mean(), y.mean()], means, atol=1e-6) else otherwise


def _up(matrix: ScoreMatrix, tasks: Sequence[str]) -> bool:
    return all(up for task, up in zip(matrix.tasks, matrix.higher_is_better, strict=True) if task in tasks)


def _intervals(models: Sequence[str], values: Floats, errors: Floats, level: float) -> dict[str, Interval]:
    z = float(norm.ppf(0.5 + level / 2))
    return {
        m: Interval(float(v), float(v - z * e), float(v + z * e), level)
        for m, v, e in zip(models, values.tolist(), errors.tolist(), strict=True)
        if math.isfinite(v)
    }


def _missing(matrix: ScoreMatrix, ranking: Ranking, components: Components | None) -> Missing | None:
    if not ranking.rivals:
        return None
    values = matrix.oriented()
    known = np.isfinite(values)
    spread = np.array([np.std(column[there]) for column, there in zip(values.T, known.T, strict=True)])
    if ranking.method == "PC1" and components is not None and components.tasks == matrix.tasks:
        weights = components.loadings[0]
    else:
        weights = np.full(len(matrix.tasks), 1.0 / len(matrix.tasks))
    weights = np.divide(weights, spread, out=np.zeros(len(spread)), where=spread > 0)
    sizes = items_per_task(matrix)
    return what_is_missing(matrix, weights, ranking.models[0], ranking.rivals, sizes, level=ranking.level)


def _bounds(scores: Sequence[Interval | None]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    known = [s for s in scores if s is not None and math.isfinite(s.low)]
    if len(known) < len(scores):
        return (), ()
    return tuple(s.low for s in known), tuple(s.high for s in known)


def _listing(names: Sequence[str], most: int) -> str:
    if len(names) <= most:
        return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"
