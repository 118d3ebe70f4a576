"""Perplexity agreement: whether a model's bits per byte on plain text ranks it as the tasks do.

Rankings by bits per byte on each corpus are compared with the rankings on each task by Kendall's tau: under one
protocol (figure 4), or perplexity before tuning against scores after it (figure 5), for base and for instruct models
apart, since instruction tuning raises perplexity and scores alike. The average over corpora against the average over
tasks is one more number (section 3.3). Bits per byte are lower-is-better; agreement is signed so that 1 means alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from potentia.analysis.stats.bootstrap import How, Sampling, pair_mean
from potentia.analysis.stats.correlation import nan_mean
from potentia.analysis.stats.kendall import kendall_matrix
from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Heatmap, Interval, Table, mean_in_words
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
    over: str = "models"  # what the intervals draw

    def tables(self) -> Sequence[Table]:
        """Return the means with their intervals."""
        named = [
            ("between corpora, mean", self.corpora_mean),
            ("corpora against tasks, mean", self.mean),
            *((f"{c} against tasks, mean", i) for c, i in zip(self.corpora, self.per_corpus, strict=True)),
            ("average perplexity against average score", self.averages),
        ]
        rows: list[tuple[Cell, ...]] = [(name, i.value, i.low, i.high) for name, i in named]
        return [
            Table(
                f"Perplexity ({self.perplexity_protocol.label}) against tasks ({self.task_protocol.label}), "
                f"{self.group} models ({self.models})",
                ("agreement", "Kendall's τ", "low", "high"),
                tuple(rows),
                note=f"Intervals: bootstrap over {self.over}.",
            )
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the corpora × (corpora and tasks) heat map of figures 4 and 5."""
        values = np.concatenate([self.between_corpora, self.matrix], axis=1)
        return [
            Heatmap(
                name=f"perplexity-{self.perplexity_protocol}-{self.task_protocol}-{self.group}",
                title=f"Perplexity ({self.perplexity_protocol.label}) and tasks ({self.task_protocol.label}), "
                f"{self.group} models",
                caption=f"Kendall's τ; {mean_in_words(self.mean.value)} against tasks, "
                f"{mean_in_words(self.corpora_mean.value)} between corpora.",
                rows=self.corpora,
                columns=(*self.corpora, *self.tasks),
                values=values,
                low=-1.0 if np.nanmin(values, initial=0.0) < -0.2 else 0.0,
                high=1.0,
                unit="Kendall's τ",
                group="perplexity",
            )
        ]


def compare_perplexity(
    perplexity: ScoreMatrix,
    scores: ScoreMatrix,
    *,
    models: Collection[str] | None = None,
    group: str = "all",
    **how: Unpack[How],
) -> PerplexityAgreement:
    """Compare rankings by perplexity with rankings by score, on the models that both have.

    ``perplexity`` holds corpora, ``scores`` tasks; they may come from different protocols. Averages are taken over the
    models that have every corpus and every task.
    """
    rows = [m for m in scores.models if m in set(perplexity.models) and (models is None or m in models)]
    bits, task = perplexity.select(models=rows), scores.select(models=rows)
    kept = [m for m, row in zip(rows, bits.values, strict=True) if np.isfinite(row).any()]
    if not kept:
        raise InputError(
            f"no model of the {group} group has both a perplexity and a score",
            hint="add corpora to the study, or pass scores of the same models",
        )
    bits, task = bits.select(models=kept), task.select(models=kept)
    x, y = bits.oriented(), task.oriented()
    whole = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    average_x, average_y = x.mean(axis=1)[whole, None], y.mean(axis=1)[whole, None]
    sampling = Sampling(**how)
    draws = sampling.draws(kept)
    matrix, between = kendall_matrix(x, y), kendall_matrix(x)
    spread, between_spread = kendall_matrix(x, y, weights=draws), kendall_matrix(x, weights=draws)
    return PerplexityAgreement(
        perplexity_protocol=perplexity.protocol,
        task_protocol=scores.protocol,
        group=group,
        models=len(kept),
        corpora=bits.tasks,
        tasks=task.tasks,
        matrix=matrix,
        between_corpora=between,
        mean=sampling.interval(float(nan_mean(matrix.ravel())), nan_mean(spread.reshape(len(spread), -1))),
        corpora_mean=sampling.interval(float(pair_mean(between)), pair_mean(between_spread)),
        per_corpus=tuple(
            sampling.interval(float(nan_mean(matrix[k])), nan_mean(spread[:, k])) for k in range(len(bits.tasks))
        ),
        averages=sampling.interval(
            float(kendall_matrix(average_x, average_y)[0, 0]),
            kendall_matrix(average_x, average_y, weights=draws[:, whole])[:, 0, 0],
        ),
        over=sampling.units.over(kept),
    )
