"""Charts that the report alone has: how ranks change from direct to tuned, and the evidence between every two models.

The alignment (appendix C of the train-before-test paper) undoes the crossings that test noise could explain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
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

MAX_MODELS_RANKED = 80  # of a rank chart, the best first
MAX_TASK_CHARTS = 24  # those first where most models move
MAX_MODELS_COMPARED = 40  # of the map of evidence; `potentia compare` takes any two


@dataclass(frozen=True)
class TaskRankChange:
    """How ranks change on one task: the chart, and how many models move by more than noise."""

    chart: Bump
    moved_models: int


# --- ranks ------------------------------------------------------------------------------------------------------------


def rank_charts(report_data: ReportData) -> list[Bump]:
    """Return direct → tuned over all tasks, on each task where a model moves, then the alignments of two tasks."""
    if report_data.rankings is None:
        return []
    charts: list[Bump] = []
    if report_data.baseline_protocol != report_data.ranking_protocol:
        task_charts, note = _charts_by_task(report_data)
        overall = _chart_over_all_tasks(
            report_data.rankings.overall.get(report_data.baseline_protocol),
            report_data.rankings.overall.get(report_data.ranking_protocol),
            note,
        )
        if overall is not None:
            charts.append(overall)
        charts += task_charts
    for alignment in report_data.rankings.alignment.values():
        charts += [chart for chart in alignment.charts() if isinstance(chart, Bump)]
    families = report_data.evidence.background.families
    return [_keep_best_models(_color_by_family(chart, families)) for chart in charts]


def _color_by_family(chart: Bump, families: dict[str, str] | Any) -> Bump:
    if not families:
        return replace(chart, groups=())
    return replace(chart, groups=tuple(families.get(model, "") for model in chart.models))


def _keep_best_models(chart: Bump) -> Bump:
    """Keep the models that end first: more lines than that cannot be told apart."""
    models = len(chart.models)
    if models <= MAX_MODELS_RANKED:
        return chart
    final_ranks = np.nan_to_num(chart.ranks[:, -1], nan=np.inf)
    best_rows = np.sort(np.argsort(final_ranks, kind="stable")[:MAX_MODELS_RANKED])
    groups: tuple[str, ...] = ()
    if chart.groups:
        groups = tuple(chart.groups[row] for row in best_rows)
    return replace(
        chart,
        models=tuple(chart.models[row] for row in best_rows),
        ranks=chart.ranks[best_rows],
        groups=groups,
        caption=f"{chart.caption} The first {MAX_MODELS_RANKED} of {models:,} models.",
    )


def _chart_over_all_tasks(
    before: Ranking | None, after: Ranking | None, chart_note: str
) -> Bump | None:
    """Join the two overall rankings; both are made by the same rule."""
    if before is None or after is None or len(after.tasks) < 2:
        return None
    models = [model for model in after.models if model in before.models]
    if len(models) < 2:
        return None
    ranks = [[before.rank_of(model), after.rank_of(model)] for model in models]
    caption = f"Ranks over all tasks, as in the answer: by the {after.method.label}, since {after.reason}."
    return Bump(
        name="bump-all-tasks",
        title=f"{before.protocol.label} → {after.protocol.label}: all tasks",
        caption=caption + chart_note,
        models=tuple(models),
        columns=(before.protocol.label, after.protocol.label),
        ranks=np.array(ranks, dtype=np.float64),
    )


def _charts_by_task(report_data: ReportData) -> tuple[list[Bump], str]:
    """Return the charts of tasks on which a model moves by more than noise, and a note on the other tasks."""
    before = report_data.evidence.final_scores[report_data.baseline_protocol].benchmarks()
    after = report_data.evidence.final_scores[report_data.ranking_protocol].benchmarks()
    models = [model for model in after.models if model in before.models]
    tasks: list[str] = []
    if len(models) > 1:
        tasks = [task for task in after.tasks if task in before.tasks]
    changes = []
    for task in tasks:
        change = _compare_ranks_on_task(
            task,
            before.select(models=models, tasks=[task]),
            after.select(models=models, tasks=[task]),
        )
        if change is not None:
            changes.append(change)
    moving = [change for change in changes if change.moved_models]
    by_movement = sorted(range(len(moving)), key=lambda number: -moving[number].moved_models)
    shown_numbers = sorted(by_movement[:MAX_TASK_CHARTS])
    chart_note = ""
    unmoved = len(changes) - len(moving)
    if unmoved:
        chart_note = f" On {unmoved} of {len(tasks)} tasks no model changes its rank by more than test noise."
    if len(moving) > len(shown_numbers):
        chart_note += (
            f" Charts of single tasks: the {len(shown_numbers)} on which most models move."
        )
    return [moving[position].chart for position in shown_numbers], chart_note


def _compare_ranks_on_task(
    task: str, before: ScoreMatrix, after: ScoreMatrix
) -> TaskRankChange | None:
    """Align the two protocols as if they were two tasks; None where a standard error is missing."""
    protocol_labels = (before.protocol.label, after.protocol.label)
    joined = ScoreMatrix.build(
        before.models,
        protocol_labels,
        np.concatenate([before.oriented(), after.oriented()], axis=1),
        stderr=np.concatenate([before.stderr, after.stderr], axis=1),
        protocol=task,
    )
    complete = joined.drop_incomplete_models()
    if complete.shape[0] < 2 or not np.isfinite(complete.stderr).all():
        return None
    aligned = align_rankings(joined, *protocol_labels)
    chart = aligned.charts()[0]
    assert isinstance(chart, Bump)
    caption = (
        f"{aligned.moved} of {len(aligned.models)} models change rank by more than test noise; Kendall's τ "
        f"{_format_tau(aligned.tau)} as measured, {_format_tau(aligned.aligned_tau)} aligned."
        " Rank changes within noise are not drawn."
    )
    title = f"{protocol_labels[0]} → {protocol_labels[1]}: {task}"
    return TaskRankChange(
        replace(chart, name=f"bump-{task}", title=title, caption=caption), aligned.moved
    )


def _format_tau(tau: float) -> str:
    """Write a τ, which is not defined where all models tie."""
    return "undefined" if math.isnan(tau) else f"{tau:.2f}"


# --- evidence ---------------------------------------------------------------------------------------------------------


def evidence_maps(report_data: ReportData) -> dict[Protocol, EvidenceMap]:
    """Return the evidence between every two models, the most prepared protocol first, models by rank."""
    position: dict[str, int] = {}
    ranking = (
        None
        if report_data.rankings is None
        else report_data.rankings.overall.get(report_data.ranking_protocol)
    )
    if ranking is not None:
        position = {model: model_position for model_position, model in enumerate(ranking.models)}
    map_by_protocol = {}
    for protocol, matrix in reversed(report_data.evidence.final_scores.items()):
        models = sorted(matrix.models, key=lambda model: position.get(model, len(position)))
        evidence_map = map_evidence(
            matrix.select(models=models[:MAX_MODELS_COMPARED]),
            report_data.evidence.outcomes.get(protocol),
            report_data.evidence.background.task_groups,
        )
        if evidence_map is not None:
            map_by_protocol[protocol] = evidence_map
    return map_by_protocol


def evidence_chart(evidence_map: EvidenceMap, models: int) -> Heatmap:
    """Draw the share of tasks that the model of a row wins minus the share that it loses.

    It counts differences with p below the level, not corrected for many.
    """
    wins, losses, ties = evidence_map.count_outcomes()
    compared = wins + losses + ties
    shown_models = len(evidence_map.models)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(compared > 0, (wins - losses) / compared, np.nan)
    first_of_pair, second_of_pair = np.triu_indices(shown_models, 1)
    balance = np.full((shown_models, shown_models), np.nan)
    balance[first_of_pair, second_of_pair] = share
    balance[second_of_pair, first_of_pair] = -share
    left_out = ""
    if models > shown_models:
        left_out = f" The first {shown_models} of {models} models."
    task_count = len(evidence_map.tasks)
    tasks = "task" if task_count == 1 else "tasks"
    return Heatmap(
        f"evidence-{evidence_map.protocol}",
        f"Evidence over {task_count} {tasks}: {evidence_map.protocol.label}",
        f"Share of tasks won minus share lost by the model of the row, counting only differences with p below "
        f"{100 * (1 - evidence_map.level):.0f} %, not corrected for many. Blue: more won; orange: more lost; faint: as "
        f"many won as lost, or the tests cannot tell.{left_out}",
        rows=evidence_map.models,
        columns=evidence_map.models,
        values=balance,
        low=-1.0,
        high=1.0,
        diverging=True,
        digits=None,
        unit="share won − lost",
    )


def evidence_payload(evidence_map: EvidenceMap) -> dict[str, Any]:
    """Return every pair (as in ``triu_indices``) on every task: difference, p, whether Benjamini–Hochberg keeps it."""
    is_kept = np.isfinite(evidence_map.p) & (evidence_map.p <= evidence_map.critical)
    return {
        "protocol": evidence_map.protocol,
        "label": evidence_map.protocol.label,
        "models": evidence_map.models,
        "tasks": evidence_map.tasks,
        "basis": evidence_map.basis,
        "level": evidence_map.level,
        "difference": [_short_numbers(row.tolist()) for row in evidence_map.difference],
        "p": [_short_numbers(row.tolist()) for row in evidence_map.p],
        "kept": [_mark_flags(row) for row in is_kept],
        "pairs": [list(row) for row in evidence_map.pair_rows()],
    }


def _short_numbers(values: list[float]) -> list[float | None]:
    """Round to three digits, so that the page stays small; None where nothing is known."""
    short_numbers: list[float | None] = []
    for value in values:
        short_numbers.append(float(f"{value:.3g}") if math.isfinite(value) else None)
    return short_numbers


def _mark_flags(flags: Iterable[bool]) -> str:
    """Write flags as digits, 1 for yes and 0 for no: the page reads a row as one text."""
    return "".join("1" if flag else "0" for flag in flags)
