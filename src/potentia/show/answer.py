"""The answer first: who has the most potential and how sure that is, in sentences that the intervals allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.rankings import NAMES, Scoreboard, Standing, agreement_sentence, resolution_sentence
from potentia.show.wording import count, percent, unbroken

if TYPE_CHECKING:
    from potentia.show.source import ReportData


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
        agreed = agreement_sentence(found.changes.get((data.first, data.main)), found.agreement.get(data.main))
        sentences += [s for s in (agreed, resolution_sentence(found.significance.get(data.main))) if s is not None]
    headline = board.headline() if runs is None else runs.headline()
    return Answer(headline, tuple(map(unbroken, sentences)), _tiles(data), board)


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
    if ranking is not None and ranking.known and runs is None:
        tiles.append(Tile(percent(float(ranking.p_first.max())), "P(first)", f"by the {NAMES[ranking.method]}"))
    change = found.changes.get((data.first, data.main)) if found is not None else None
    alone = found.agreement.get(data.main) if found is not None else None
    if change is not None and np.isfinite([change.mean_before, change.mean_after]).all():
        tiles.append(
            Tile(
                f"{change.mean_before:.2f} → {change.mean_after:.2f}",
                "agreement between tasks",
                f"mean Kendall's τ, {change.before.label} → {change.after.label}",
            )
        )
    elif alone is not None and np.isfinite(alone.mean):
        tiles.append(Tile(f"{alone.mean:.2f}", "agreement between tasks", "mean Kendall's τ"))
    resolved = found.significance.get(data.main) if found is not None else None
    if data.failures:
        tiles.append(Tile(str(len(data.failures)), "failed cells", "shown with their reason, never as zero"))
    elif resolved is not None and any(resolved.pairs):
        share = sum(resolved.significant) / sum(resolved.pairs)
        tiles.append(Tile(percent(share), "comparisons resolved", "pairs of models on a task, 95 %"))
    return tuple(tiles)
