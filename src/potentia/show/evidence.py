"""Evidence between every two models: the map of the page, and what it says of a pair that the reader chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.rankings import EvidenceMap, map_evidence
from potentia.values.findings import Heatmap
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    from potentia.show.source import ReportData

MOST = 40  # models of the map, the best first; `potentia compare` takes any two


def evidence_maps(data: ReportData) -> dict[Protocol, EvidenceMap]:
    """Return the evidence between every two models, the most prepared protocol first, models by rank."""
    ranking = data.rankings.overall.get(data.main) if data.rankings is not None else None
    place = {model: k for k, model in enumerate(ranking.models)} if ranking is not None else {}
    weighed = {}
    for protocol, matrix in reversed(data.evidence.planned.items()):
        ordered = matrix.select(models=sorted(matrix.models, key=lambda m: place.get(m, len(place)))[:MOST])
        if (found := map_evidence(ordered, data.evidence.outcomes.get(protocol))) is not None:
            weighed[protocol] = found
    return weighed


def evidence_chart(found: EvidenceMap, models: int) -> Heatmap:
    """Draw the share of tasks that the model of a row wins minus the share that it loses, significant ones alone."""
    wins, losses, ties = found.counts()
    met = wins + losses + ties
    first, second = np.triu_indices(len(found.models), 1)
    balance = np.full((len(found.models),) * 2, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(met > 0, (wins - losses) / met, np.nan)
    balance[first, second], balance[second, first] = share, -share
    left_out = f" The first {len(found.models)} of {models} models." if models > len(found.models) else ""
    tasks = "task" if len(found.tasks) == 1 else "tasks"
    return Heatmap(
        f"evidence-{found.protocol}",
        f"Evidence over {len(found.tasks)} {tasks}: {found.protocol.label}",
        f"Share of tasks won minus share lost by the model of the row, counting only differences that are significant "
        f"at {100 * found.level:.0f} %. Blue: better; orange: worse; faint: the tests cannot tell.{left_out}",
        rows=found.models,
        columns=found.models,
        values=balance,
        low=-1.0,
        high=1.0,
        diverging=True,
        digits=None,
        unit="share won − lost",
    )


def evidence_payload(found: EvidenceMap) -> dict[str, Any]:
    """Return every pair (as in ``triu_indices``) on every task: difference, p, whether Benjamini–Hochberg keeps it."""
    kept = np.isfinite(found.p) & (found.p <= found.critical)
    return {
        "protocol": found.protocol,
        "label": found.protocol.label,
        "models": found.models,
        "tasks": found.tasks,
        "basis": found.basis,
        "level": found.level,
        "difference": [_short(row) for row in found.difference],
        "p": [_short(row) for row in found.p],
        "kept": ["".join("01"[int(k)] for k in row) for row in kept],
        "pairs": [list(row[2:]) for row in found.table().rows],  # wins, losses, ties, mean difference, p, detectable
    }


def _short(row: Any) -> list[float | None]:
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in row.tolist()]
