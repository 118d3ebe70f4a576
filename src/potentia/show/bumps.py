"""Rank bump charts: direct → tuned over all tasks by the overall ranking, and on each task aligned by significance.

The alignment (appendix C of the train-before-test paper) undoes the crossings that test noise could explain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.rankings import NAMES, Ranking, align
from potentia.values.findings import Bump
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.show.source import ReportData


def ascents(data: ReportData) -> list[Bump]:
    """Return direct → tuned over all tasks, on each task where a model moves, then the alignments of two tasks."""
    if data.rankings is None:
        return []
    found: list[Bump] = []
    scores, before, after = data.evidence.planned, data.first, data.main
    if before != after:
        overall = data.rankings.overall
        if before in overall and after in overall and len(overall[after].tasks) > 1:
            found += _overall(overall[before], overall[after])
        first, second = scores[before].benchmarks(), scores[after].benchmarks()
        models = [m for m in second.models if m in first.models]
        shared = [t for t in second.tasks if t in first.tasks] if len(models) > 1 else []
        single = [_on_task(t, *(m.select(models=models, tasks=[t]) for m in (first, second))) for t in shared]
        still = sum(bump is not None and not moved for bump, moved in single)
        if found and still:
            told = f" On {still} of {len(shared)} tasks no model changes its rank by more than test noise."
            found = [replace(found[0], caption=found[0].caption + told)]
        found += [bump for bump, moved in single if bump is not None and moved]
    aligned = (chart for finding in data.rankings.alignment.values() for chart in finding.charts())
    found += [chart for chart in aligned if isinstance(chart, Bump)]
    families = data.evidence.background.families
    return [replace(c, groups=tuple(families.get(m, "") for m in c.models) if families else ()) for c in found]


def _overall(before: Ranking, after: Ranking) -> list[Bump]:
    """Join the two overall rankings; both are made by the same rule."""
    models = [model for model in after.models if model in before.models]
    if len(models) < 2:
        return []
    return [
        Bump(
            name="bump-all-tasks",
            title=f"{before.protocol.label} → {after.protocol.label}: all tasks",
            caption=f"Ranks over all tasks, as in the answer: by the {NAMES[after.method]}, since {after.reason}.",
            models=tuple(models),
            columns=(before.protocol.label, after.protocol.label),
            ranks=np.array([[before.rank(m), after.rank(m)] for m in models], dtype=np.float64),
        )
    ]


def _on_task(task: str, one: ScoreMatrix, two: ScoreMatrix) -> tuple[Bump | None, int]:
    """Align the two protocols as if they were two tasks, and say how many models move; None where an error lacks."""
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
        return None, 0
    aligned = align(joined, *names)
    label = f"{names[0]} → {names[1]}: {task}"
    caption = (
        f"{aligned.moved} of {len(aligned.models)} models change rank by more than test noise; Kendall's τ "
        f"{_told(aligned.tau)} as measured, {_told(aligned.aligned_tau)} aligned. "
        "Crossings that noise could explain are undone."
    )
    chart = aligned.charts()[0]
    assert isinstance(chart, Bump)
    return replace(chart, name=f"bump-{task}", title=label, caption=caption), aligned.moved


def _told(tau: float) -> str:
    """Say a correlation; models that all tie have none."""
    return f"{tau:.2f}" if tau == tau else "undefined"
