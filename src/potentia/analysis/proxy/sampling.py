"""Algorithm 1: which correlation names the same most relevant tasks, whichever models it is given.

The relevance ranking of all candidates is computed once on all models, and again on k random samples of n models. The
baseline consistency s is the mean overlap of the samples' top t tasks with those of all models; the sampling
consistency r is the mean overlap among the samples. A metric with both indices above the others' is the one to use.
Tasks that tie at the cut share the places that are left, so neither index depends on the order of the columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.proxy.proxies import METRICS, Metric, Normalise, correlate_target, normalise, performance
from potentia.analysis.stats.bootstrap import Spread, spread_of
from potentia.analysis.stats.correlation import pearson_matrix
from potentia.errors import InputError
from potentia.values.findings import Bars, Chart, Finding, Table
from potentia.values.scores import Floats, ScoreMatrix

# The paper's (n, k): models per sample and number of samples, in table 3's order.
PAPER_CONFIGURATIONS: tuple[tuple[int, int], ...] = ((6, 25), (8, 25), (10, 25), (10, 15), (10, 35))
PAPER_SAMPLED, PAPER_ROUNDS = (6, 8, 10), (25,)


@dataclass(frozen=True)
class Indices:
    """Baseline and sampling consistency of one metric for one choice of n and k.

    The values are means over repetitions of the whole algorithm; the spreads say where a single run of it falls.
    """

    metric: Metric
    n: int
    k: int
    baseline: Spread  # s
    sampling: Spread  # r
    leads: float  # share of repetitions in which the metric has both the highest s and the highest r


@dataclass(frozen=True)
class SamplingConsistency(Finding):
    """Algorithm 1 for several (n, k), and the metric that it chooses."""

    target: str
    top: int
    models: int
    candidates: int
    repetitions: int
    indices: tuple[Indices, ...]
    chosen: Metric | None  # the metric with the highest mean s and r in most configurations, where one has both

    def tables(self) -> Sequence[Table]:
        """Return table 3's layout, with the spread of single runs."""
        rows = [(i.n, i.k, i.metric, i.baseline, i.sampling, i.leads) for i in self.indices]
        of = f"top {self.top} tasks for {self.target} ({self.models} models, {self.candidates} candidates)"
        columns = ("n", "k", "metric", "s", "2.5 % of runs", "97.5 %", "r", "2.5 % of runs ", "97.5 % ", "leads")
        verdict = "No metric has both the highest s and the highest r in most configurations."
        if self.chosen:
            verdict = f"{self.chosen} has the highest s and r in most configurations."
        note = (
            f"{verdict} Means over {self.repetitions} runs of the algorithm; 95 % of single runs fall between the "
            "percentiles. leads: share of runs in which the metric has both the highest s and the highest r."
        )
        return (Table(f"Algorithm 1: consistency of the {of}", columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return s and r as grouped bars."""
        labels = dict.fromkeys(f"n={i.n}, k={i.k}" for i in self.indices)
        caption = "Higher means that other models would have named the same tasks; the bars hold 95 % of single runs."
        drawn = []
        for kind, title in (("baseline", "Baseline consistency s"), ("sampling", "Sampling consistency r")):
            by = {metric: [getattr(i, kind) for i in self.indices if i.metric == metric] for metric in METRICS}
            drawn.append(Bars(f"sampling-{kind}", title, caption, labels, by, y_label="overlap of the top tasks"))
        return drawn


def measure_sampling(
    scores: ScoreMatrix,
    target: str,
    candidates: Sequence[str] | None = None,
    *,
    top: int = 5,
    configurations: Sequence[tuple[int, int]] = PAPER_CONFIGURATIONS,
    how: Normalise = "both",
    repetitions: int = 100,
    seed: int = 0,
) -> SamplingConsistency:
    """Run algorithm 1 ``repetitions`` times for each (n, k), the same samples for every metric."""
    chosen = performance(scores, target, candidates)
    models, tasks = chosen.shape
    if not 1 <= top <= tasks - 1:
        raise InputError(f"top {top} of {tasks - 1} candidates", hint=f"choose 1 to {tasks - 1}")
    for n, k in configurations:
        if not 3 <= n <= models or k < 2:
            raise InputError(f"cannot draw {k} samples of {n} models from {models}", hint="3 <= n <= models, k >= 2")
    vectors = normalise(chosen.oriented(), how)
    rng = np.random.default_rng(seed)
    found: list[Indices] = []
    for n, k in configurations:
        draws = rng.permuted(np.tile(np.arange(models), (repetitions * k, 1)), axis=1)[:, :n]
        runs = {metric: _run(vectors, draws, metric, top, k) for metric in METRICS}
        best_s = np.max([s for s, _ in runs.values()], axis=0)
        best_r = np.max([r for _, r in runs.values()], axis=0)
        for metric, (s, r) in runs.items():
            leads = float(np.mean((s >= best_s) & (r >= best_r)))
            found.append(Indices(metric, n, k, spread_of(s), spread_of(r), leads))
    return SamplingConsistency(target, top, models, tasks - 1, repetitions, tuple(found), _choose(found))


def top_share(relevance: Floats, top: int) -> Floats:
    """Membership of each task in the top ``top`` (…, tasks): 1 above the cut, 0 below, and a fair share on it.

    A task without a relevance (a constant column in a small sample) comes last.
    """
    known = np.where(np.isfinite(relevance), relevance, -np.inf)
    cut = -np.sort(-known, axis=-1)[..., top - 1 : top]
    above, on = known > cut, known == cut
    left = top - above.sum(axis=-1, keepdims=True)
    return np.asarray(above + on * left / on.sum(axis=-1, keepdims=True), dtype=np.float64)


def _run(vectors: Floats, draws: npt.NDArray[np.int64], metric: Metric, top: int, k: int) -> tuple[Floats, Floats]:
    """Return s and r of each repetition."""
    whole = top_share(np.round(correlate_target(vectors, metric), 12), top)  # (tasks,)
    members = top_share(np.round(_sampled(vectors, draws, metric), 12), top).reshape(-1, k, len(whole))
    s = np.minimum(members, whole).sum(axis=-1).mean(axis=-1) / top
    first, second = np.triu_indices(k, 1)
    r = np.array([np.minimum(run[first], run[second]).sum(axis=-1).mean() / top for run in members])
    return np.clip(s, 0.0, 1.0), np.clip(r, 0.0, 1.0)


def _sampled(vectors: Floats, draws: npt.NDArray[np.int64], metric: Metric) -> Floats:
    """Relevance of every candidate in each sample of models, (draws, candidates)."""
    if metric == "spearman":  # ranks of all samples at once, then Pearson of the ranks
        ranks = rankdata(vectors[draws], axis=1)
        return pearson_matrix(ranks[:, :, :1], ranks[:, :, 1:])[:, 0, :]
    weights = np.zeros((len(draws), len(vectors)))
    np.put_along_axis(weights, draws, 1.0, axis=1)
    return correlate_target(vectors, metric, weights=weights)


def _choose(found: Sequence[Indices]) -> Metric | None:
    """Return the metric with the highest s and the highest r in more than half of the configurations."""
    rows = [found[k : k + len(METRICS)] for k in range(0, len(found), len(METRICS))]  # one for each configuration
    best_s = [max(row, key=lambda i: i.baseline.value).metric for row in rows]
    best_r = [max(row, key=lambda i: i.sampling.value).metric for row in rows]
    wins = Counter(s for s, r in zip(best_s, best_r, strict=True) if s == r)
    return next((metric for metric in METRICS if wins[metric] * 2 > len(rows)), None)
