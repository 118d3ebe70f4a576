"""Rank bump charts: direct → tuned over all tasks by the overall ranking, and on each task aligned by significance.

The alignment (appendix C of the train-before-test paper) undoes the crossings that test noise could explain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from potentia.analysis.rankings import Ranking, align
from potentia.findings import Bump
from potentia.report.source import ReportData
from potentia.scores import ScoreMatrix


@dataclass(frozen=True)
class Ascent:
    """One bump chart: what it compares, in words, and the chart."""

    label: str
    chart: Bump


def ascents(data: ReportData) -> list[Ascent]:
    """Return direct → tuned over all tasks, on each task, then the task → task alignments of the findings."""
    if data.rankings is None:
        return []
    found: list[Ascent] = []
    scores, before, after = data.evidence.planned, data.first, data.main
    if before != after:
        overall = data.rankings.overall
        if before in overall and after in overall and len(overall[after].tasks) > 1:
            found += _overall(data, overall[before], overall[after])
        first, second = scores[before].benchmarks(), scores[after].benchmarks()
        models = [m for m in second.models if m in first.models]
        for task in (t for t in second.tasks if t in first.tasks) if len(models) > 1 else ():
            found += _on_task(data, task, *(m.select(models=models, tasks=[task]) for m in (first, second)))
    for protocol, aligned in data.rankings.alignment.items():
        for chart in aligned.charts():
            assert isinstance(chart, Bump)
            label = f"{aligned.tasks[0]} → {aligned.tasks[1]} ({protocol.label})"
            found.append(Ascent(label, replace(chart, title=label)))
    return found


def _overall(data: ReportData, before: Ranking, after: Ranking) -> list[Ascent]:
    """Join the two overall rankings; both are made by the same rule."""
    models = [model for model in after.models if model in before.models]
    if len(models) < 2:
        return []
    families = data.evidence.background.families
    label = f"{before.protocol.label} → {after.protocol.label}: all tasks"
    chart = Bump(
        name="bump-all-tasks",
        title=label,
        caption=f"Ranks over all tasks, as in the answer: by {after.method}, since {after.reason}.",
        models=tuple(models),
        columns=(before.protocol.label, after.protocol.label),
        ranks=np.array([[before.rank(m), after.rank(m)] for m in models], dtype=np.float64),
        groups=tuple(families.get(m, "") for m in models),
    )
    return [Ascent(label, chart)]


def _on_task(data: ReportData, task: str, one: ScoreMatrix, two: ScoreMatrix) -> list[Ascent]:
    """Align the two protocols as if they were two tasks; nothing where a standard error or a pair of models lacks."""
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
        return []
    aligned = align(joined, *names, families=data.evidence.background.families)
    label = f"{names[0]} → {names[1]}: {task}"
    caption = (
        f"{aligned.moved} of {len(aligned.models)} models change rank by more than test noise; Kendall's τ "
        f"{aligned.tau:.2f} as measured, {aligned.aligned_tau:.2f} aligned. "
        "Crossings that noise could explain are undone."
    )
    chart = aligned.charts()[0]
    assert isinstance(chart, Bump)
    return [Ascent(label, replace(chart, name=f"bump-{task}", title=label, caption=caption))]
