"""Every ranking finding of a set of scores: by name, as tables and charts, and in a screenful."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from potentia.analysis.rankings.aggregate import Aggregate, RankIntervals, TaskCurve
from potentia.analysis.rankings.agreement import Agreement, AgreementChange
from potentia.analysis.rankings.alignment import Alignment
from potentia.analysis.rankings.components import Components, ComputeFit
from potentia.analysis.rankings.decide import Ranking
from potentia.analysis.rankings.groups import GroupAgreement, PerplexityAgreement
from potentia.analysis.rankings.scoreboard import Scoreboard
from potentia.analysis.rankings.screening import Screening
from potentia.analysis.rankings.tuning import SameForAll
from potentia.analysis.stats.first import FEW_MODELS
from potentia.analysis.stats.significance import Significance
from potentia.values.findings import Finding, Findings, Interval, Table
from potentia.values.protocol import Protocol

Changes = dict[tuple[Protocol, Protocol], AgreementChange]


LABELS = {  # what findings are called where not by their field
    "overall": "ranking",
    "same": "same for all",
    "changes": "change",
    "tau_b": "tau-b",
    "tau_b_changes": "tau-b change",
    "fewer": "fewer tasks",
    "groups": "by",
    "family_components": "components",
    "perplexity_by_kind": "perplexity direct, tuned tasks,",
}


@dataclass(frozen=True, kw_only=True)
class Rankings(Findings):
    """Every ranking finding in reading order, by what it is about; what the scores have no evidence for is absent."""

    scoreboard: Scoreboard
    overall: dict[Protocol, Ranking]
    same: dict[Protocol, SameForAll] = field(default_factory=dict)
    screening: Screening
    agreement: dict[Protocol, Agreement] = field(default_factory=dict)
    measures: GroupAgreement | None = None
    changes: Changes = field(default_factory=dict)
    tau_b: dict[Protocol, Agreement] = field(default_factory=dict)  # insignificant differences as ties
    tau_b_changes: Changes = field(default_factory=dict)
    fewer: dict[Protocol, TaskCurve] = field(default_factory=dict)
    groups: dict[str, GroupAgreement] = field(default_factory=dict)  # size, family, kind, test size
    significance: dict[Protocol, Significance] = field(default_factory=dict)
    ranks: dict[Protocol, RankIntervals] = field(default_factory=dict)
    aggregate: dict[Protocol, Aggregate] = field(default_factory=dict)
    components: dict[Protocol, Components] = field(default_factory=dict)
    family_components: dict[Protocol, dict[str, Components]] = field(default_factory=dict)
    compute: dict[Protocol, ComputeFit] = field(default_factory=dict)
    perplexity: dict[Protocol, PerplexityAgreement] = field(default_factory=dict)
    perplexity_by_kind: dict[str, PerplexityAgreement] = field(default_factory=dict)
    alignment: dict[Protocol, Alignment] = field(default_factory=dict)

    def named(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in reading order."""
        found: dict[str, Finding] = {}
        for about in fields(self):
            label, part = LABELS.get(about.name, about.name), getattr(self, about.name)
            found |= {label: part} if isinstance(part, Finding) else {f"{label} {k}": v for k, v in _flat(part or {})}
        return found


def _flat(part: Mapping[Any, Any]) -> Iterator[tuple[str, Finding]]:
    """Yield findings of one kind, of each family apart where they are so."""
    for key, one in part.items():
        if isinstance(one, Finding):
            yield " ".join(key) if isinstance(key, tuple) else key, one
        else:
            yield from ((f"{key} {name}", finding) for name, finding in one.items())


def summarise(found: Rankings) -> Sequence[Table]:
    """Return how far the tasks agree and tell models apart under each protocol, and which tasks to distrust."""
    tables = [*_together(found), *(table for same in found.same.values() for table in same.tables())]
    if found.screening.flags:
        flags = [(flag.task, flag.reason, flag.evidence) for flag in found.screening.flags]
        tables.append(Table("Tasks to distrust", ("task", "reason", "evidence"), flags))
    return tables


def _together(found: Rankings) -> list[Table]:
    """Return the table of what the tasks say together; none where there is nothing to say."""
    protocols = list(found.overall)
    some = {p for p, ranking in found.overall.items() if len(ranking.models) >= FEW_MODELS}  # fewer say nothing of it
    means: dict[str, dict[Protocol, tuple[Interval, str]]] = {
        "agreement between tasks (mean Kendall's τ)": {p: (a.interval, a.over) for p, a in found.agreement.items()},
        "variance on one component (PC1)": {p: (c.explained[0], c.over) for p, c in found.components.items()},
        "agreement of perplexity with tasks (mean τ)": {p: (t.mean, t.over) for p, t in found.perplexity.items()},
    }
    rows: list[Sequence[str | None]] = []
    drawn: dict[str, None] = {}
    for name, by_protocol in means.items():
        shown = {p: mean for p, mean in by_protocol.items() if p in some and np.isfinite(mean[0].value)}
        drawn |= dict.fromkeys(over for _, over in shown.values())
        if shown:
            rows.append((name, *(_span(shown[p][0], percent="PC1" in name) if p in shown else None for p in protocols)))
    if found.significance:
        told = {p: (sum(s.significant), sum(s.pairs)) for p, s in found.significance.items()}
        rows.append(("pairs of models told apart on a task", *(_share(*told.get(p, (0, 0))) for p in protocols)))
    note = f"In brackets: 95 % intervals over {' or '.join(drawn)}. 1 is perfect agreement, 0 is none." if drawn else ""
    title = "What the tasks say together"
    return [Table(title, ("", *(p.label for p in protocols)), rows, note)] if rows else []


def _span(interval: Interval, *, percent: bool) -> str:
    value, low, high = (f"{x:.0%}" if percent else f"{x:.2f}" for x in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})" if np.isfinite(interval.low) else value


def _share(part: int, whole: int) -> str | None:
    return f"{part / whole:.0%}" if whole else None
