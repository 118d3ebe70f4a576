"""Charts that the report alone has: how ranks change from direct to tuned, and the evidence between every two models.

The alignment (appendix C of the train-before-test paper) undoes the crossings that test noise could explain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.rankings import (
    EvidenceMap,
    Ranking,
    align_rankings,
    map_evidence,
)
from potentia.values.findings import Bump, Heatmap
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.show.source import ReportData

MOST_RANKED = 80  # models of a rank chart, the best first
MOST_BUMPS = 24  # tasks with a rank chart of their own, those first where most models move
MOST_COMPARED = 40  # models of the map of evidence; `potentia compare` takes any two


def rank_charts(data: ReportData) -> list[Bump]:
    """Return direct → tuned over all tasks, on each task where a model moves, then the alignments of two tasks."""
    if data.rankings is None:
        return []
    found: list[Bump] = []
    if data.first != data.main:
        before, after = (
            data.rankings.overall.get(protocol) for protocol in (data.first, data.main)
        )
        single, note = _by_task(data)
        found = [*_overall(before, after, note), *single]
    found += [
        c for one in data.rankings.alignment.values() for c in one.charts() if isinstance(c, Bump)
    ]
    families = data.evidence.background.families
    return [
        _shown(replace(c, groups=tuple(families.get(m, "") for m in c.models) if families else ()))
        for c in found
    ]


def _shown(chart: Bump) -> Bump:
    """Keep the models that end first: more lines than that are none."""
    models = len(chart.models)
    if models <= MOST_RANKED:
        return chart
    best = np.sort(
        np.argsort(np.nan_to_num(chart.ranks[:, -1], nan=np.inf), kind="stable")[:MOST_RANKED]
    )
    groups = tuple(chart.groups[k] for k in best) if chart.groups else ()
    caption = f"{chart.caption} The first {MOST_RANKED} of {models:,} models."
    names = tuple(chart.models[k] for k in best)
    return replace(chart, models=names, ranks=chart.ranks[best], groups=groups, caption=caption)


def _overall(before: Ranking | None, after: Ranking | None, note: str) -> list[Bump]:
    """Join the two overall rankings; both are made by the same rule."""
    models = [model for model in after.models if model in before.models] if before and after else []
    if before is None or after is None or len(models) < 2 or len(after.tasks) < 2:
        return []
    chart = Bump(
        name="bump-all-tasks",
        title=f"{before.protocol.label} → {after.protocol.label}: all tasks",
        caption=f"Ranks over all tasks, as in the answer: by the {after.method.label}, since {after.reason}.{note}",
        models=tuple(models),
        columns=(before.protocol.label, after.protocol.label),
        ranks=np.array([[before.rank_of(m), after.rank_of(m)] for m in models], dtype=np.float64),
    )
    return [chart]


def _by_task(data: ReportData) -> tuple[list[Bump], str]:
    """Return the charts of tasks on which a model moves by more than noise, and a word on the other tasks."""
    first, second = (data.evidence.planned[p].benchmarks() for p in (data.first, data.main))
    models = [m for m in second.models if m in first.models]
    shared = [t for t in second.tasks if t in first.tasks] if len(models) > 1 else []
    known = [
        c
        for t in shared
        if (c := _on_task(t, *(m.select(models=models, tasks=[t]) for m in (first, second))))
    ]
    moved = [(count, chart) for count, chart in known if count]
    most = sorted(range(len(moved)), key=lambda k: -moved[k][0])[:MOST_BUMPS]
    still = len(known) - len(moved)
    note = (
        f" On {still} of {len(shared)} tasks no model changes its rank by more than test noise."
        if still
        else ""
    )
    if len(moved) > len(most):
        note += f" Charts of single tasks: the {len(most)} on which most models move."
    return [moved[k][1] for k in sorted(most)], note


def _on_task(task: str, one: ScoreMatrix, two: ScoreMatrix) -> tuple[int, Bump] | None:
    """Align the two protocols as if they were two tasks, and count the models that move; None where an error lacks."""
    names = (one.protocol.label, two.protocol.label)
    joined = ScoreMatrix.build(
        one.models,
        names,
        np.concatenate([one.oriented(), two.oriented()], axis=1),
        stderr=np.concatenate([one.stderr, two.stderr], axis=1),
        protocol=task,
    )
    whole = joined.complete()
    if whole.shape[0] < 2 or not np.isfinite(whole.stderr).all():
        return None
    aligned = align_rankings(joined, *names)
    taus = [
        "undefined" if tau != tau else f"{tau:.2f}" for tau in (aligned.tau, aligned.aligned_tau)
    ]  # all may tie
    caption = (
        f"{aligned.moved} of {len(aligned.models)} models change rank by more than test noise; Kendall's τ "
        f"{taus[0]} as measured, {taus[1]} aligned. Crossings that noise could explain are undone."
    )
    chart = aligned.charts()[0]
    assert isinstance(chart, Bump)
    return aligned.moved, replace(
        chart, name=f"bump-{task}", title=f"{names[0]} → {names[1]}: {task}", caption=caption
    )


def evidence_maps(data: ReportData) -> dict[Protocol, EvidenceMap]:
    """Return the evidence between every two models, the most prepared protocol first, models by rank."""
    ranking = data.rankings.overall.get(data.main) if data.rankings is not None else None
    place = {model: k for k, model in enumerate(ranking.models)} if ranking is not None else {}
    weighed = {}
    for protocol, matrix in reversed(data.evidence.planned.items()):
        ordered = matrix.select(
            models=sorted(matrix.models, key=lambda m: place.get(m, len(place)))[:MOST_COMPARED]
        )
        if (found := map_evidence(ordered, data.evidence.outcomes.get(protocol))) is not None:
            weighed[protocol] = found
    return weighed


def evidence_chart(found: EvidenceMap, models: int) -> Heatmap:
    """Draw the share of tasks that the model of a row wins minus the share that it loses, significant ones alone."""
    wins, losses, ties = found.count_outcomes()
    met = wins + losses + ties
    first, second = np.triu_indices(len(found.models), 1)
    balance = np.full((len(found.models),) * 2, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(met > 0, (wins - losses) / met, np.nan)
    balance[first, second], balance[second, first] = share, -share
    left_out = (
        f" The first {len(found.models)} of {models} models." if models > len(found.models) else ""
    )
    tasks = "task" if len(found.tasks) == 1 else "tasks"
    return Heatmap(
        f"evidence-{found.protocol}",
        f"Evidence over {len(found.tasks)} {tasks}: {found.protocol.label}",
        f"Share of tasks won minus share lost by the model of the row, counting only differences that are significant "
        f"({100 * (1 - found.level):.0f} % level). Blue: more won; orange: more lost; faint: as many won as lost, or "
        f"the tests cannot tell.{left_out}",
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

    def short(row: Any) -> list[float | None]:
        return [float(f"{value:.3g}") if np.isfinite(value) else None for value in row.tolist()]

    return {
        "protocol": found.protocol,
        "label": found.protocol.label,
        "models": found.models,
        "tasks": found.tasks,
        "basis": found.basis,
        "level": found.level,
        "difference": [short(row) for row in found.difference],
        "p": [short(row) for row in found.p],
        "kept": ["".join("01"[int(k)] for k in row) for row in kept],
        "pairs": [list(row) for row in found.pair_rows()],
    }
