"""The answer first: who has the most potential and how sure that is, in sentences that the intervals allow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia.analysis.rankings.aggregate import Aggregate
from potentia.analysis.rankings.agreement import Agreement, AgreementChange
from potentia.analysis.rankings.components import Components
from potentia.analysis.stats.significance import Significance
from potentia.report.source import ReportData
from potentia.report.words import count, listing, percent, protocol_name, span

PREPARED = {
    "train_before_test": "after the same fine-tuning for all",
    "adjust": "after tuning all on the same data",
}
MAY_BE_FIRST = 1.5  # an interval that reaches below this holds the first place


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
    protocol: str
    before: str


def answer(data: ReportData) -> Answer:
    """Put the findings into words; nothing is said that an interval does not hold."""
    protocol = data.main
    aggregate = data.findings.get(f"aggregate {protocol}")
    if not isinstance(aggregate, Aggregate):
        reason = data.problem or "there are too few scores"
        return Answer(f"No ranking yet: {reason}.", (), _tiles(data, None), (), "", protocol, "")
    method = choose_method(data, aggregate)
    standings = rank_table(data, aggregate, method)
    headline = _headline(standings, aggregate, protocol)
    sentences = [*_who_else(standings), *_agreement(data), *_resolution(data, protocol)]
    first = data.protocols[0]
    return Answer(
        headline,
        tuple(sentence.replace(" %", "\u00a0%") for sentence in sentences),
        _tiles(data, aggregate),
        tuple(standings),
        aggregate.methods[method],
        protocol,
        first if first != protocol and f"aggregate {first}" in data.findings else "",
    )


def rank_table(data: ReportData, aggregate: Aggregate, method: int) -> list[Standing]:
    """Return every ranked model, best first, with its rank under the first protocol beside it."""
    before = data.findings.get(f"aggregate {data.protocols[0]}")
    earlier: dict[str, float] = {}
    if isinstance(before, Aggregate) and before.protocol != aggregate.protocol:
        earlier = dict(zip(before.models, before.ranks[:, choose_method(data, before)].tolist(), strict=True))
    order = [
        k for k in np.argsort(aggregate.ranks[:, method], kind="stable") if np.isfinite(aggregate.ranks[k, method])
    ]
    return [
        Standing(
            aggregate.models[k],
            float(aggregate.ranks[k, method]),
            float(aggregate.low[k, method]),
            float(aggregate.high[k, method]),
            earlier.get(aggregate.models[k]),
        )
        for k in order
    ]


def choose_method(data: ReportData, aggregate: Aggregate) -> int:
    """Choose PC1, or the mean z score where gaps keep PC1 from ranking a model or some task runs against PC1."""
    found = data.findings.get(f"components {aggregate.protocol}")
    common = isinstance(found, Components) and bool((found.loadings[0] > 0).all())
    return 0 if common and np.isfinite(aggregate.ranks[:, 0]).all() else aggregate.methods.index("mean z")


def _headline(standings: list[Standing], aggregate: Aggregate, protocol: str) -> str:
    first = standings[0]
    rivals = [s for s in standings[1:] if s.low < MAY_BE_FIRST]
    where = f"over {count(len(aggregate.tasks), 'task')}"
    how = PREPARED.get(protocol, f"by {protocol_name(protocol)}")
    if len(standings) < 2:
        return f"Only {first.model} has scores to rank {how}."
    if rivals:
        named = listing([first.model, *(s.model for s in rivals)], 4)
        return f"{named} may each be first of {len(standings)} models {how}, {where}."
    verb = "has the most potential of" if protocol in PREPARED else "is first of"
    return f"{first.model} {verb} {len(standings)} models {how}, {where}."


def _who_else(standings: list[Standing]) -> list[str]:
    if len(standings) < 2:
        return []
    first = standings[0]
    reach = f"rank {first.rank:g}, 95 % interval {first.low:.0f} to {first.high:.0f}"
    rivals = [s for s in standings[1:] if s.low < MAY_BE_FIRST]
    if not rivals:
        return [
            f"Its first place ({reach}) holds when the tests are run again with their noise on other tasks like these."
        ]
    if len(rivals) == 1:
        rest = (
            "the interval of one other model reaches first place too: test noise and the choice of tasks "
            "could put it there."
        )
    else:
        rest = (
            f"the intervals of {len(rivals)} other models reach first place too: test noise and the choice of tasks "
            "could put any of them there."
        )
    return [f"{first.model} has the best estimate ({reach}), but {rest}"]


def _agreement(data: ReportData) -> list[str]:
    tuned = data.main
    change = data.findings.get(f"change {data.protocols[0]} {tuned}")
    if isinstance(change, AgreementChange) and "models" in change.difference:
        gap = change.difference["models"]
        told = (
            f"the mean Kendall's τ between tasks is {change.mean_before:.2f} by {protocol_name(change.before)} and "
            f"{change.mean_after:.2f} by {protocol_name(change.after)} "
            f"(difference {gap.value:+.2f}, 95 % interval {span(gap)})"
        )
        if gap.low > 0:
            return [f"The tasks agree more on the ranking after tuning: {told}."]
        if gap.high < 0:
            return [f"The tasks agree less on the ranking after tuning: {told}."]
        return [f"Whether the tasks agree more after tuning cannot be told from these scores: {told}."]
    alone = data.findings.get(f"agreement {tuned}")
    if isinstance(alone, Agreement) and "models" in alone.intervals:
        gap = alone.intervals["models"]
        return [
            f"The tasks agree on the ranking with a mean Kendall's τ of {alone.mean:.2f} "
            f"(95 % interval over models {span(gap)}; 1 is perfect agreement, 0 none)."
        ]
    return []


def _resolution(data: ReportData, protocol: str) -> list[str]:
    found = data.findings.get(f"significance {protocol}")
    if not isinstance(found, Significance) or not any(found.pairs):
        return ["The scores carry no standard errors, so no difference between two models can be called real."]
    share = sum(found.significant) / sum(found.pairs)
    smallest = float(np.nanmedian(found.detectable))
    return [
        f"Of all comparisons of two models on a task, {percent(share)} are significant at {percent(found.level)}; "
        f"on the median task a true difference of {smallest:.3f} would be found four times in five."
    ]


def _tiles(data: ReportData, aggregate: Aggregate | None) -> tuple[Tile, ...]:
    models = {m for matrix in data.scores.values() for m in matrix.models}
    known = {t: up for m in data.scores.values() for t, up in zip(m.tasks, m.higher_is_better, strict=True)}
    corpora = sum(not up for up in known.values())
    cells = sum(int(np.isfinite(matrix.values).sum()) for matrix in data.scores.values())
    note = f"{count(cells, 'score')}" + (f", with {count(corpora, 'corpus', 'corpora')}" if corpora else "")
    tiles = [Tile(f"{len(models)} × {len(known) - corpora}", "models × tasks", note)]
    if aggregate is not None and aggregate.ranks.shape[0] > 1:
        method = choose_method(data, aggregate)
        may = int((aggregate.low[:, method] < MAY_BE_FIRST).sum())
        tiles.append(Tile(str(may), "may be first", f"95 % rank intervals by {aggregate.methods[method]}"))
    change = data.findings.get(f"change {data.protocols[0]} {data.main}") if data.protocols else None
    alone = data.findings.get(f"agreement {data.main}")
    if isinstance(change, AgreementChange):
        tiles.append(
            Tile(
                f"{change.mean_before:.2f} → {change.mean_after:.2f}",
                "agreement between tasks",
                f"mean Kendall's τ, {protocol_name(change.before)} → {protocol_name(change.after)}",
            )
        )
    elif isinstance(alone, Agreement):
        tiles.append(Tile(f"{alone.mean:.2f}", "agreement between tasks", "mean Kendall's τ"))
    if data.failures:
        tiles.append(Tile(str(len(data.failures)), "failed cells", "shown with their reason, never as zero"))
    else:
        resolved = data.findings.get(f"significance {data.main}")
        if isinstance(resolved, Significance) and any(resolved.pairs):
            share = sum(resolved.significant) / sum(resolved.pairs)
            tiles.append(Tile(percent(share), "comparisons resolved", "pairs of models on a task, 95 %"))
    return tuple(tiles)
