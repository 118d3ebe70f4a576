"""Rank bump charts: direct → tuned over all tasks and on each task, aligned by significance (appendix C)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from potentia.analysis.rankings.alignment import Alignment, align
from potentia.findings import Bump
from potentia.report.source import ReportData
from potentia.report.words import protocol_name
from potentia.scores import ScoreMatrix

ALL_TASKS = "all tasks"


@dataclass(frozen=True)
class Ascent:
    """One bump chart: what it compares, in words, and the chart."""

    label: str
    chart: Bump


def ascents(data: ReportData) -> list[Ascent]:
    """Return direct → tuned over all tasks, on each task, then the task → task alignments of the findings."""
    found: list[Ascent] = []
    before, after = data.protocols[0] if data.protocols else "", data.main
    if before and before != after:
        first, second = data.scores[before], data.scores[after]
        models = [m for m in second.models if m in first.models]
        tasks = [t for t in second.tasks if t in first.tasks and second.higher_is_better[second.tasks.index(t)]]
        if len(models) > 1 and tasks:
            one, two = first.select(models=models, tasks=tasks), second.select(models=models, tasks=tasks)
            if len(tasks) > 1:
                found += _between(data, ALL_TASKS, _mean(one), _mean(two), before, after)
            for task in tasks:
                pair = (one.select(tasks=[task]), two.select(tasks=[task]))
                found += _between(data, task, *pair, before, after)
    for protocol in data.protocols:
        aligned = data.findings.get(f"alignment {protocol}")
        if isinstance(aligned, Alignment):
            for chart in aligned.charts():
                assert isinstance(chart, Bump)
                label = f"{aligned.tasks[0]} → {aligned.tasks[1]} ({protocol_name(protocol)})"
                found.append(Ascent(label, replace(chart, title=label)))
    return found


def _between(data: ReportData, what: str, one: ScoreMatrix, two: ScoreMatrix, before: str, after: str) -> list[Ascent]:
    """Align the two protocols as if they were two tasks; nothing where a standard error or a pair of models lacks."""
    names = (protocol_name(before), protocol_name(after))
    joined = ScoreMatrix.build(
        one.models,
        names,
        np.concatenate([one.oriented(), two.oriented()], axis=1),
        stderr=np.concatenate([one.stderr, two.stderr], axis=1),
        protocol=what,
    )
    whole = joined.complete()
    if whole.shape[0] < 2 or not np.isfinite(whole.stderr).all():
        return []
    aligned = align(joined, *names, families=data.background.families)
    label = f"{names[0]} → {names[1]}: {what}"
    moved = f"{aligned.moved} of {len(aligned.models)} models change rank by more than test noise"
    caption = f"{moved}; Kendall's τ {aligned.tau:.2f} as measured, {aligned.aligned_tau:.2f} aligned. " + (
        "Ranks by the mean score over tasks." if what == ALL_TASKS else "Crossings that noise could explain are undone."
    )
    chart = aligned.charts()[0]
    assert isinstance(chart, Bump)
    return [Ascent(label, replace(chart, name=f"bump-{what}", title=label, caption=caption))]


def _mean(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the mean over tasks as one column, with the standard error that test noise gives it."""
    count = len(matrix.tasks)
    return ScoreMatrix.build(
        matrix.models,
        ["mean"],
        matrix.oriented().mean(axis=1, keepdims=True),
        stderr=np.sqrt((matrix.stderr**2).sum(axis=1, keepdims=True)) / count,
        protocol=matrix.protocol,
    )
