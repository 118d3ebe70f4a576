"""pass@k: how often one of k sampled answers is right, before and after the same fine-tuning.

What a model answers right in one of many samples, reinforcement learning can make it answer right in the first: pass@k
is the potential under it. Intervals are over problems, which holds both kinds of noise: which problems are in the test
and which samples were drawn. The part of the samples is told apart, since only more samples reduce it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potentia.analysis.stats.intervals import score_interval
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Interval, Line, Plot, Points, Table, ValuedText
from potentia.values.protocol import Protocol
from potentia.values.sampling import estimate_generation_error
from potentia.values.scores import ItemOutcome, Score

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.store import CellRecord

_PREFIX = "pass@"


@dataclass(frozen=True)
class PassAtK:
    """One result at one k."""

    protocol: Protocol
    task: str
    model: str
    k: int
    value: float
    stderr: float  # over problems, with the noise of the samples in it
    sampling_error: float  # the part that is due to the samples; NaN where it cannot be told
    problems: int
    samples: int
    temperature: float
    greedy: float  # the score of the one greedy answer

    @property
    def interval(self) -> Interval:
        """The 95 % interval over problems."""
        return score_interval(self.value, self.stderr, examples=self.problems, is_share=True)

    def describe(self) -> str:
        """Return the value with its interval."""
        interval = self.interval
        text = f"{self.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
        return ValuedText(text, value=self.value, low=interval.low, high=interval.high)


@dataclass(frozen=True)
class PassAtKFinding(Finding):
    """pass@k of every result that was sampled."""

    rows: tuple[PassAtK, ...]
    writing_share: float  # of all written test answers, those that were sampled

    @property
    def ks(self) -> tuple[int, ...]:
        """The k that are scored."""
        return tuple(sorted({row.k for row in self.rows}))

    def tables(self) -> Sequence[Table]:
        """Return one row per protocol, task and model, with every k."""
        column_names = (
            "protocol",
            "task",
            "model",
            "greedy",
            *(f"pass@{k}" for k in self.ks),
            "samples",
            "temperature",
        )
        table_rows = []
        for curve in _group_curves(self.rows):
            first = curve[0]
            by_k = {row.k: row.describe() for row in curve}
            names = (first.protocol.label, first.task, first.model, first.greedy)
            values = [by_k.get(k) for k in self.ks]
            table_rows.append((*names, *values, first.samples, first.temperature))
        note = (
            "Unbiased estimates from all samples of a problem, with 95 % intervals over problems. Of the standard "
            f"error of pass@{self.ks[0]}, {self._describe_sampling_part()} is due to the samples, and more samples "
            "would reduce it."
        )
        if math.isfinite(self.writing_share):
            note += f" {self.writing_share:.0%} of all written test answers were samples."
        return [Table("One of k sampled answers is right", column_names, table_rows, note)]

    def _describe_sampling_part(self) -> str:
        """Return which share of the variance of the first k is due to the samples, as mean over the results."""
        shares = []
        for row in self.rows:
            is_measured = row.stderr > 0 and math.isfinite(row.sampling_error)
            if row.k == self.ks[0] and is_measured:
                shares.append((row.sampling_error / row.stderr) ** 2)
        return f"{math.sqrt(min(1.0, _mean(shares))):.0%}" if shares else "an unknown part"

    def charts(self) -> Sequence[Chart]:
        """Return pass@k against k, a curve for each model and protocol, for every task."""
        charts = []
        for task in dict.fromkeys(row.task for row in self.rows):
            task_rows = [row for row in self.rows if row.task == task]
            lines = []
            points = []
            models = list(dict.fromkeys(row.model for row in task_rows))
            last_protocol = task_rows[-1].protocol
            for curve in _group_curves(task_rows):
                first = curve[0]
                curve_name = f"{first.model}, {first.protocol.label}"
                x = [row.k for row in curve]
                y = [row.value for row in curve]
                lines.append(Line(curve_name, x, y, dashed=first.protocol != last_protocol))
                points.append(Points(curve_name, x, y, hue=models.index(first.model)))
            charts.append(
                Plot(
                    f"pass-at-k-{task}",
                    f"pass@k on {task}",
                    "The probability that one of k samples is right; "
                    f"solid lines: {last_protocol.label}.",
                    points=tuple(points),
                    lines=tuple(lines),
                    x_label="k",
                    y_label="pass@k",
                    log_x=True,
                )
            )
        return charts

    def sentences(self) -> list[str]:
        """Say, for every protocol and task, how far one of many samples goes beyond the first."""
        sentences = []
        groups = dict.fromkeys((row.protocol, row.task) for row in self.rows)
        for protocol, task in groups:
            rows = [row for row in self.rows if (row.protocol, row.task) == (protocol, task)]
            low, high = self.ks[0], self.ks[-1]
            at_low = _mean([row.value for row in rows if row.k == low])
            at_high = _mean([row.value for row in rows if row.k == high])
            models = len({row.model for row in rows})
            fewer_samples = "a single sample" if low == 1 else f"one of {low}"
            sentences.append(
                f"{task} ({protocol.label}): one of {high} samples is right for {at_high:.0%} of the problems, "
                f"{fewer_samples} for {at_low:.0%} (mean of {models} models)."
            )
        if math.isfinite(self.writing_share):
            sentences.append(f"{self.writing_share:.0%} of all written test answers were samples.")
        return sentences


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _group_curves(rows: Sequence[PassAtK]) -> list[list[PassAtK]]:
    """Return the rows of each result, by rising k as they are made."""
    curves: dict[tuple[str, str, str], list[PassAtK]] = {}
    for row in rows:
        curves.setdefault((row.protocol, row.task, row.model), []).append(row)
    return list(curves.values())


def find_pass_at_k(evidence: Evidence) -> PassAtKFinding:
    """Collect pass@k of every stored result whose answers were sampled."""
    rows: list[PassAtK] = []
    sampled = 0
    written = 0
    for cell in evidence.cells():
        protocol = Protocol(cell.protocol)
        scores = _read_pass_scores(cell)
        is_shown = protocol in evidence.scores and cell.model in evidence.scores[protocol].models
        if not scores or not is_shown:
            continue
        items = [outcome for outcome in evidence.items(cell.key) if "samples" in outcome.detail]
        rows += _make_rows(protocol, cell, scores, items)
        sampled += sum(len(outcome.detail["samples"]["right"]) for outcome in items)
        written += len(items)
    if not rows:
        raise InputError(
            f"no sampled answers in {evidence.source}",
            hint="ask for them with `samples: 16` under a task that is answered by writing",
        )
    total = sampled + written
    return PassAtKFinding(tuple(rows), sampled / total if total else math.nan)


def _read_pass_scores(cell: CellRecord) -> dict[int, Score]:
    """Return the scores of a result by k."""
    scores = {}
    for metric_name, score in cell.scores.items():
        suffix = metric_name.removeprefix(_PREFIX)
        if metric_name.startswith(_PREFIX) and suffix.isdecimal():
            scores[int(suffix)] = score
    return dict(sorted(scores.items()))


def _make_rows(
    protocol: Protocol,
    cell: CellRecord,
    scores: dict[int, Score],
    items: Sequence[ItemOutcome],
) -> list[PassAtK]:
    counts = [_count_right(outcome.detail["samples"]) for outcome in items]
    temperature = math.nan
    samples = 0
    if items:
        temperature = float(items[0].detail["samples"]["temperature"])
        samples = counts[0][0]
    return [
        PassAtK(
            protocol=protocol,
            task=cell.task,
            model=cell.model,
            k=sample_count,
            value=score.value,
            stderr=score.stderr,
            sampling_error=estimate_generation_error(counts, sample_count),
            problems=score.n,
            samples=samples,
            temperature=temperature,
            greedy=cell.scores[cell.metric].value,
        )
        for sample_count, score in scores.items()
    ]


def _count_right(samples: dict[str, Any]) -> tuple[int, int]:
    """Return how many samples an example has, and how many of them are right."""
    return len(samples["right"]), sum(map(bool, samples["right"]))
