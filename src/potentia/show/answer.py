"""The answer first: who has the most potential and how sure that is, in sentences that the intervals allow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia.analysis.rankings import NAMES, Rankings, Scoreboard, Standing
from potentia.show.source import ReportData
from potentia.show.wording import count, percent, span, unbroken


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
    board: Scoreboard | None = None

    @property
    def standings(self) -> tuple[Standing, ...]:
        """Every ranked model, best first."""
        return () if self.board is None else self.board.standings

    @property
    def method(self) -> str:
        """What ranks the models."""
        return "" if self.board is None else self.board.method


def answer(data: ReportData) -> Answer:
    """Put the findings into words; nothing is said that an interval does not hold."""
    found, board = data.rankings, data.board
    if board is None:
        reason = data.problem or "there are too few scores"
        return Answer(f"No ranking yet: {reason}.", (), _tiles(data))
    runs = data.training if data.training is not None and data.training.whole else None
    sentences = board.certainty() if runs is None else runs.sentences()
    if found is not None:
        sentences += [*_agreement(data, found), *_resolution(data, found)]
    headline = board.headline() if runs is None else runs.headline()
    return Answer(headline, tuple(map(unbroken, sentences)), _tiles(data), board)


def _agreement(data: ReportData, found: Rankings) -> list[str]:
    change = found.changes.get((data.first, data.main))
    if change is not None:
        gap = change.interval
        told = (
            f"the mean Kendall's τ between tasks is {change.mean_before:.2f} by {change.before.label} and "
            f"{change.mean_after:.2f} by {change.after.label} "
            f"(difference {gap.value:+.2f}, 95 % interval over {change.over} {span(gap)})"
        )
        if gap.low > 0:
            return [f"The tasks agree more on the ranking after tuning: {told}."]
        if gap.high < 0:
            return [f"The tasks agree less on the ranking after tuning: {told}."]
        return [f"Whether the tasks agree more after tuning cannot be told from these scores: {told}."]
    alone = found.agreement.get(data.main)
    if alone is not None:
        return [
            f"The tasks agree on the ranking with a mean Kendall's τ of {alone.mean:.2f} "
            f"(95 % interval over {alone.over} {span(alone.interval)}; 1 is perfect agreement, 0 none)."
        ]
    return []


def _resolution(data: ReportData, rankings: Rankings) -> list[str]:
    found = rankings.significance.get(data.main)
    if found is None or not any(found.pairs):
        return ["The scores carry no standard errors, so no difference between two models can be called real."]
    share = sum(found.significant) / sum(found.pairs)
    smallest = float(np.nanmedian(found.detectable))
    several = len(found.pairs) > 1
    what, where = ("two models on a task", "on the median task") if several else ("two models", "on this task")
    return [
        f"Of all comparisons of {what}, {percent(share)} are significant at {percent(found.level)}; "
        f"{where} a true difference of {smallest:.3f} would be found four times in five."
    ]


def _tiles(data: ReportData) -> tuple[Tile, ...]:
    scores = data.evidence.planned
    known = {t for m in scores.values() for t in m.tasks}
    corpora = {t for m in scores.values() for t in m.corpora().tasks}
    cells = sum(int(np.isfinite(matrix.values).sum()) for matrix in data.evidence.scores.values())
    note = f"{count(cells, 'score')}" + (f", with {count(len(corpora), 'corpus', 'corpora')}" if corpora else "")
    runs = data.training if data.training is not None and data.training.whole else None
    what = "models × tasks" if runs is None else f"checkpoints × tasks, of {count(len(runs.runs), 'run')}"
    tiles = [Tile(f"{len(data.evidence.models)} × {len(known - corpora)}", what, note)]
    found = data.rankings
    ranking = found.overall.get(data.main) if found is not None else None
    if ranking is not None and len(ranking.models) > 1 and runs is None:
        how = f"95 % rank intervals, by the {NAMES[ranking.method] if len(ranking.tasks) > 1 else 'score'}"
        tiles.append(Tile(str(1 + len(ranking.rivals)), "may be first", how))
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
