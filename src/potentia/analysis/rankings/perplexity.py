"""Agreement of perplexity with tasks.

Rankings by bits per byte on each corpus are compared with the rankings on each task by Kendall's tau: under one
protocol (figure 4), or perplexity before tuning against scores after it (figure 5), for base and for instruct models
apart, since instruction tuning raises perplexity and scores alike. Agreement is signed so that 1 means alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.rankings.decide import select_tasks_of_one_scale
from potentia.analysis.stats.bootstrap import DEFAULT_SAMPLING, Sampling, mean_over_pairs
from potentia.analysis.stats.correlation import kendall_matrix, nan_mean
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Heatmap, Interval, Table, format_mean
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True)
class PerplexityAgreement(Finding):
    """Agreement of perplexity rankings with each other and with task rankings."""

    perplexity_protocol: Protocol
    task_protocol: Protocol
    group: str  # which models: all, base, instruct
    models: int
    corpora: tuple[str, ...]
    tasks: tuple[str, ...]
    matrix: Floats  # (corpora, tasks)
    between_corpora: Floats  # (corpora, corpora)
    mean: Interval  # perplexity against tasks
    corpora_mean: Interval  # corpora against each other
    per_corpus: tuple[Interval, ...]
    averages: Interval  # average perplexity against average score
    resampled_unit: str = "models"  # what the intervals draw

    def tables(self) -> Sequence[Table]:
        """Return the means with their intervals."""
        table_rows = [
            ("between corpora, mean", self.corpora_mean),
            ("corpora against tasks, mean", self.mean),
        ]
        for corpus, mean in zip(self.corpora, self.per_corpus, strict=True):
            table_rows.append((f"{corpus} against tasks, mean", mean))
        table_rows.append(("average perplexity against average score", self.averages))
        title = f"{self._describe_scope('against')} ({self.models})"
        column_names = ("agreement", "Kendall's τ", "low", "high")
        return [
            Table(
                title, column_names, table_rows, f"Intervals: bootstrap over {self.resampled_unit}."
            )
        ]

    def _describe_scope(self, conjunction: str) -> str:
        corpora = f"Perplexity ({self.perplexity_protocol.label})"
        return f"{corpora} {conjunction} tasks ({self.task_protocol.label}), {self.group} models"

    def charts(self) -> Sequence[Chart]:
        """Return the corpora × (corpora and tasks) heat map of figures 4 and 5."""
        values = np.concatenate([self.between_corpora, self.matrix], axis=1)
        against_tasks = format_mean(self.mean.value)
        between_corpora = format_mean(self.corpora_mean.value)
        lowest = np.nanmin(values, initial=0.0)
        title = self._describe_scope("and")
        caption = f"Kendall's τ; {against_tasks} against tasks, {between_corpora} between corpora."
        chart = Heatmap(
            f"perplexity-{self.perplexity_protocol}-{self.task_protocol}-{self.group}",
            title,
            caption,
            self.corpora,
            (*self.corpora, *self.tasks),
            values,
            low=-1.0 if lowest < -0.2 else 0.0,
            high=1.0,
            unit="Kendall's τ",
            group="perplexity",
        )
        return [chart]


def compare_perplexity(
    perplexity: ScoreMatrix,
    scores: ScoreMatrix,
    *,
    models: Collection[str] | None = None,
    group: str = "all",
    averages_all_tasks: bool = False,
    sampling: Sampling = DEFAULT_SAMPLING,
) -> PerplexityAgreement:
    """Compare rankings by perplexity with rankings by score, on the models that both have.

    ``perplexity`` holds corpora, ``scores`` tasks; they may come from different protocols. Averages are taken over the
    models that have every corpus and every task, and over the tasks of one scale; with ``averages_all_tasks`` over all,
    as "Train-before-test" does.
    """
    allowed_models = scores.models if models is None else models
    shared_models = keep_names_in(scores.models, perplexity.models, allowed_models)
    corpora = perplexity.select(models=shared_models)
    corpora = corpora.select(models=np.isfinite(corpora.values).any(axis=1))
    if not corpora.models:
        raise InputError(
            f"no model of the {group} group has both a perplexity and a score",
            hint="add corpora to the study, or pass scores of the same models",
        )
    tasks = scores.select(models=corpora.models)
    bits_per_byte, task_scores = corpora.oriented(), tasks.oriented()
    draws = sampling.draw_models(corpora.models)
    against_tasks = kendall_matrix(bits_per_byte, task_scores)
    between_corpora = kendall_matrix(bits_per_byte)
    drawn_against_tasks = kendall_matrix(bits_per_byte, task_scores, weights=draws)
    drawn_between_corpora = kendall_matrix(bits_per_byte, weights=draws)
    per_corpus = []
    for row in range(len(corpora.tasks)):
        mean = float(nan_mean(against_tasks[row]))
        per_corpus.append(sampling.interval(mean, nan_mean(drawn_against_tasks[:, row])))
    mean_against_tasks = sampling.interval(
        float(nan_mean(against_tasks.ravel())),
        nan_mean(drawn_against_tasks.reshape(len(drawn_against_tasks), -1)),
    )
    corpora_mean = sampling.interval(
        float(mean_over_pairs(between_corpora)), mean_over_pairs(drawn_between_corpora)
    )
    averaged_tasks = tasks
    if not averages_all_tasks:
        averaged_tasks = tasks.select(tasks=select_tasks_of_one_scale(tasks))
    averages = _compare_averages(bits_per_byte, averaged_tasks.oriented(), draws, sampling)
    resampled_unit = sampling.units.drawn_unit(corpora.models)
    return PerplexityAgreement(
        perplexity_protocol=perplexity.protocol,
        task_protocol=scores.protocol,
        group=group,
        models=len(corpora.models),
        corpora=corpora.tasks,
        tasks=tasks.tasks,
        matrix=against_tasks,
        between_corpora=between_corpora,
        mean=mean_against_tasks,
        corpora_mean=corpora_mean,
        per_corpus=tuple(per_corpus),
        averages=averages,
        resampled_unit=resampled_unit,
    )


def _compare_averages(
    bits_per_byte: Floats, task_scores: Floats, draws: Floats, sampling: Sampling
) -> Interval:
    """Return τ of average perplexity and average score, over the models that have every corpus and every task.

    Scores of different scales have no average; who passes them follows the paper.
    """
    complete = np.isfinite(bits_per_byte).all(axis=1) & np.isfinite(task_scores).all(axis=1)
    average_bits = bits_per_byte.mean(axis=1)[complete, None]
    average_score = task_scores.mean(axis=1)[complete, None]
    tau = kendall_matrix(average_bits, average_score)
    drawn_tau = kendall_matrix(average_bits, average_score, weights=draws[:, complete])
    return sampling.interval(float(tau[0, 0]), drawn_tau[..., 0, 0])
