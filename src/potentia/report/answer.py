"""The answer first: who has the most potential and how sure that is, in sentences that the intervals allow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia.analysis.rankings import Ranking, Rankings
from potentia.report.source import ReportData
from potentia.report.words import count, listing, percent, span

PREPARED = {
    "train_before_test": "after the same fine-tuning for all",
    "adjust": "after tuning all on the same data",
}


@dataclass(frozen=True)
class Standing:
    """One model of the ranking: its rank with the interval, and its rank by the first protocol."""

    model: str
    rank: float
    low: float
    high: float
    before: float | None


@dataclass(frozen=True)
class Tile:
    """One number with what it means."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """What a reader takes away."""

    headline: str
    sentences: tuple[str, ...]
    tiles: tuple[Tile, ...]
    standings: tuple[Standing, ...]
    method: str
    reason: str  # why this method
    protocol: str
    before: str


def answer(data: ReportData) -> Answer:
    """Put the findings into words; nothing is said that an interval does not hold."""
    found = data.rankings
    ranking = found.overall.get(data.main) if found is not None else None
    if found is None or ranking is None:
        reason = data.problem or "there are too few scores"
        return Answer(f"No ranking yet: {reason}.", (), _tiles(data), (), "", "", data.main, "")
    sentences = [*_who_else(ranking), *_agreement(data, found), *_resolution(data, found)]
    earlier = found.overall.get(data.first) if data.first != data.main else None
    return Answer(
        _headline(ranking),
        tuple(sentence.replace(" %", "\u00a0%") for sentence in sentences),
        _tiles(data),
        _standings(ranking, earlier),
        ranking.method,
        ranking.reason,
        data.main,
        "" if earlier is None else data.first,
    )


def _standings(ranking: Ranking, earlier: Ranking | None) -> tuple[Standing, ...]:
    """Return every ranked model, best first, with its rank under the first protocol beside it."""
    return tuple(
        Standing(
            model,
            float(ranking.ranks[k]),
            float(ranking.low[k]),
            float(ranking.high[k]),
            None if earlier is None else earlier.rank(model),
        )
        for k, model in enumerate(ranking.models)
    )


def _headline(ranking: Ranking) -> str:
    where = f"over {count(len(ranking.tasks), 'task')}"
    kind, first, models = ranking.protocol.kind, ranking.models[0], len(ranking.models)
    how = PREPARED.get(kind, f"by {ranking.protocol.label}")
    if models < 2:
        return f"Only {first} has scores to rank {how}."
    if ranking.rivals:
        named = listing([first, *ranking.rivals], 4)
        return f"{named} may each be first of {models} models {how}, {where}."
    verb = "has the most potential of" if kind in PREPARED else "is first of"
    return f"{first} {verb} {models} models {how}, {where}."


def _who_else(ranking: Ranking) -> list[str]:
    if len(ranking.models) < 2:
        return []
    reach = f"rank {ranking.ranks[0]:g}, 95 % interval {ranking.low[0]:.0f} to {ranking.high[0]:.0f}"
    others = len(ranking.tasks) > 1
    if not ranking.rivals:
        again = "on other tasks like these" if others else "on this task"
        return [f"Its first place ({reach}) holds when the tests are run again with their noise {again}."]
    cause = "test noise and the choice of tasks" if others else "test noise"
    if len(ranking.rivals) == 1:
        rest = f"the interval of one other model reaches first place too: {cause} could put it there."
    else:
        rest = (
            f"the intervals of {len(ranking.rivals)} other models reach first place too: {cause} "
            "could put any of them there."
        )
    return [f"{ranking.models[0]} has the best estimate ({reach}), but {rest}"]


def _agreement(data: ReportData, found: Rankings) -> list[str]:
    change = found.changes.get((data.first, data.main))
    if change is not None and "models" in change.difference:
        gap = change.difference["models"]
        told = (
            f"the mean Kendall's τ between tasks is {change.mean_before:.2f} by {change.before.label} and "
            f"{change.mean_after:.2f} by {change.after.label} "
            f"(difference {gap.value:+.2f}, 95 % interval {span(gap)})"
        )
        if gap.low > 0:
            return [f"The tasks agree more on the ranking after tuning: {told}."]
        if gap.high < 0:
            return [f"The tasks agree less on the ranking after tuning: {told}."]
        return [f"Whether the tasks agree more after tuning cannot be told from these scores: {told}."]
    alone = found.agreement.get(data.main)
    if alone is not None and "models" in alone.intervals:
        return [
            f"The tasks agree on the ranking with a mean Kendall's τ of {alone.mean:.2f} "
            f"(95 % interval over models {span(alone.intervals['models'])}; 1 is perfect agreement, 0 none)."
        ]
    return []


def _resolution(data: ReportData, rankings: Rankings) -> list[str]:
    found = rankings.significance.get(data.main)
    if found is None or not any(found.pairs):
        return ["The scores carry no standard errors, so no difference between two models can be called real."]
    share = sum(found.significant) / sum(found.pairs)
    smallest = float(np.nanmedian(found.detectable))
    return [
        f"Of all comparisons of two models on a task, {percent(share)} are significant at {percent(found.level)}; "
        f"on the median task a true difference of {smallest:.3f} would be found four times in five."
    ]


def _tiles(data: ReportData) -> tuple[Tile, ...]:
    scores = data.evidence.planned
    known = {t for m in scores.values() for t in m.tasks}
    corpora = {t for m in scores.values() for t in m.corpora().tasks}
    cells = sum(int(np.isfinite(matrix.values).sum()) for matrix in data.evidence.scores.values())
    note = f"{count(cells, 'score')}" + (f", with {count(len(corpora), 'corpus', 'corpora')}" if corpora else "")
    tiles = [Tile(f"{len(data.evidence.models)} × {len(known - corpora)}", "models × tasks", note)]
    found = data.rankings
    ranking = found.overall.get(data.main) if found is not None else None
    if ranking is not None and len(ranking.models) > 1:
        tiles.append(Tile(str(1 + len(ranking.rivals)), "may be first", f"95 % rank intervals by {ranking.method}"))
    change = found.changes.get((data.first, data.main)) if found is not None else None
    alone = found.agreement.get(data.main) if found is not None else None
    if change is not None:
        tiles.append(
            Tile(
                f"{change.mean_before:.2f} → {change.mean_after:.2f}",
                "agreement between tasks",
                f"mean Kendall's τ, {change.before.label} → {change.after.label}",
            )
        )
    elif alone is not None:
        tiles.append(Tile(f"{alone.mean:.2f}", "agreement between tasks", "mean Kendall's τ"))
    resolved = found.significance.get(data.main) if found is not None else None
    if data.failures:
        tiles.append(Tile(str(len(data.failures)), "failed cells", "shown with their reason, never as zero"))
    elif resolved is not None and any(resolved.pairs):
        share = sum(resolved.significant) / sum(resolved.pairs)
        tiles.append(Tile(percent(share), "comparisons resolved", "pairs of models on a task, 95 %"))
    return tuple(tiles)
