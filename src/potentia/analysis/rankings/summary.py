"""Every ranking finding in a screenful: what ``potentia analyze rankings`` prints where nothing more is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from potentia.values.findings import Cell, Interval, Table

if TYPE_CHECKING:
    from potentia.analysis.rankings.find import Rankings


def summarise(found: Rankings) -> Sequence[Table]:
    """Return how far the tasks agree and tell models apart under each protocol, and which tasks to distrust."""
    protocols = list(found.overall)
    rows: list[tuple[Cell, ...]] = []
    if found.agreement:
        means = {p: a.interval for p, a in found.agreement.items()}
        rows.append(("agreement between tasks (mean Kendall's τ)", *(_span(means.get(p)) for p in protocols)))
    if found.components:
        shares = {p: c.explained[0] for p, c in found.components.items()}
        rows.append(("variance on one component (PC1)", *(_span(shares.get(p), percent=True) for p in protocols)))
    if found.significance:
        told = {p: (sum(s.significant), sum(s.pairs)) for p, s in found.significance.items()}
        rows.append(("pairs of models told apart on a task", *(_share(*told.get(p, (0, 0))) for p in protocols)))
    if found.perplexity:
        texts = {p: text.mean for p, text in found.perplexity.items()}
        rows.append(("agreement of perplexity with tasks (mean τ)", *(_span(texts.get(p)) for p in protocols)))
    drawn = dict.fromkeys(a.over for a in found.agreement.values())
    drawn |= dict.fromkeys(c.over for c in found.components.values())
    drawn |= dict.fromkeys(p.over for p in found.perplexity.values())
    tables = []
    if rows:
        tables.append(
            Table(
                "What the tasks say together",
                ("", *(p.label for p in protocols)),
                tuple(rows),
                note=f"In brackets: 95 % intervals over {' or '.join(drawn)}. 1 is perfect agreement, 0 is none.",
            )
        )
    tables += [table for same in found.same.values() for table in same.tables()]
    if found.screening.flags:
        tables.append(
            Table(
                "Tasks to distrust",
                ("task", "reason", "evidence"),
                tuple((flag.task, flag.reason, flag.evidence) for flag in found.screening.flags),
            )
        )
    return tables


def _span(interval: Interval | None, *, percent: bool = False) -> str | None:
    if interval is None:
        return None
    value, low, high = (f"{x:.0%}" if percent else f"{x:.2f}" for x in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


def _share(part: int, whole: int) -> str | None:
    return f"{part / whole:.0%}" if whole else None
