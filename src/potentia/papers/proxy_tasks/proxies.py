"""Proxy tasks: early, easy tasks that stand in for one which small models cannot do yet.

A task is the vector of its models' scores. The vectors are normalised across models (each task to mean 0 and spread 1)
and then across tasks (each model likewise), which takes away how hard a task and how good a model is; what is left is
the profile. Relevance is the correlation of two tasks' vectors (proxy-task paper, section 3.1).

A candidate is kept when its relevance C to the target and its robustness R pass their thresholds. Its evaluation score
is S = C·f(R) with a monotone f that tames extreme ratios, its weight W = S / ΣS, and a model's predicted standing on
the target is the weighted mean of its proxy scores (section 3.3). That the mean is of plain scores, with weights that
add up to one, follows from the paper's own tables 6 and 8.

Algorithm 1: which correlation names the same most relevant tasks, whichever models it is given.

The relevance ranking of all candidates is computed once on all models, and again on k random samples of n models. The
baseline consistency s is the mean overlap of the samples' top t tasks with those of all models; the sampling
consistency r is the mean overlap among the samples. A metric with both indices above the others' is the one to use.
Tasks that tie at the cut share the places that are left, so neither index depends on the order of the columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.stats import f as f_distribution
from scipy.stats import rankdata

from potentia.analysis.stats.bootstrap import RepetitionSpread, summarize_repetitions
from potentia.analysis.stats.correlation import kendall_matrix, pearson_matrix, spearman_matrix
from potentia.errors import InputError
from potentia.values.findings import Bars, Chart, Finding, Interval, Table
from potentia.values.scores import Floats, ScoreMatrix

_SMALL_GROUP = 6


@dataclass(frozen=True)
class TaskRobustness:
    """One task's two variances and their ratio, with what the data can say about it."""

    task: str
    data_models: int
    seed_models: int
    data_variance: float
    seed_variance: float
    ratio: Interval  # R
    p_value: float  # that the data moves the task no more than the seed does
    verdict: str  # "robust", "noise" or "cannot tell", with the reason where there is one


@dataclass(frozen=True)
class Robustness(Finding):
    """Robustness of every task from two groups of small models."""

    tasks: tuple[TaskRobustness, ...]

    def tables(self) -> Sequence[Table]:
        """Return table 5's layout, with the interval and the verdict."""
        note = "R above one: data moves the task more than the seed does. Interval: F distribution, normal scores."
        data, seeds = min(
            ((t.data_models, t.seed_models) for t in self.tasks),
            default=(_SMALL_GROUP, _SMALL_GROUP),
        )
        if min(data, seeds) < _SMALL_GROUP:
            widest = np.divide(*_tails(data - 1, seeds - 1)) if min(data, seeds) > 1 else np.inf
            note += f" Groups as small as {data} and {seeds} models: the interval spans a factor of {widest:.0f}."
        columns = (
            "task",
            "data models",
            "seed models",
            "seed variance",
            "data variance",
            "R",
            "low",
            "high",
            "p",
            "verdict",
        )
        names = (
            "task",
            "data_models",
            "seed_models",
            "seed_variance",
            "data_variance",
            "ratio",
            "p_value",
            "verdict",
        )
        rows = map(attrgetter(*names), self.tasks)
        title = "Robustness to training: variance over data against variance over seeds"
        return (Table(title, columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return R with its interval, one bar per task."""
        known = {t.task: t.ratio for t in self.tasks if np.isfinite(t.ratio.value)}
        caption = "Variance over data divided by variance over seeds. Below one, the seed matters more than the data."
        names, ratios = list(known), {"R": list(known.values())}
        return (Bars("robustness", "Robustness of each task", caption, names, ratios, y_label="R"),)


def measure_robustness(
    scores: ScoreMatrix, data_group: Sequence[str], seed_group: Sequence[str]
) -> Robustness:
    """Compare, task by task, the models trained on different data with those that differ in their seed only."""
    both = sorted(set(data_group) & set(seed_group))
    if both:
        raise InputError(
            f"in both groups: {', '.join(both)}",
            hint="a model differs either in its data or in its seed",
        )
    data, seeds = scores.select(models=data_group).values, scores.select(models=seed_group).values
    return Robustness(tuple(map(variance_ratio, data.T, seeds.T, scores.tasks)))


def variance_ratio(data: npt.ArrayLike, seeds: npt.ArrayLike, task: str = "") -> TaskRobustness:
    """Divide the two sample variances and give the ratio its F interval of 95 %: [R / F(1-α/2), R / F(α/2)]."""
    groups = [np.asarray(group, dtype=np.float64) for group in (data, seeds)]
    groups = [group[np.isfinite(group)] for group in groups]
    sizes = len(groups[0]), len(groups[1])
    top, bottom = (float(group.var(ddof=1)) if len(group) > 1 else np.nan for group in groups)
    if min(sizes) < 2 or bottom == 0.0:
        why = (
            "a variance needs two models in each group"
            if min(sizes) < 2
            else "all seeds score the same"
        )
        unknown = Interval(np.nan, np.nan, np.nan)
        return TaskRobustness(task, *sizes, top, bottom, unknown, np.nan, f"cannot tell: {why}")
    ratio, freedom = top / bottom, (sizes[0] - 1, sizes[1] - 1)
    low, high = (ratio / float(tail) for tail in _tails(*freedom))
    verdict = "robust" if low > 1 else "noise" if high < 1 else "cannot tell"
    p_value = float(f_distribution.sf(ratio, *freedom))
    return TaskRobustness(task, *sizes, top, bottom, Interval(ratio, low, high), p_value, verdict)


def _tails(data: int, seeds: int) -> Floats:
    """Return the upper and the lower end of the F distribution with these degrees of freedom."""
    tail = (1 - 0.95) / 2
    return np.asarray(f_distribution.ppf([1 - tail, tail], data, seeds))


Metric = Literal["pearson", "spearman", "kendall"]
METRICS: tuple[Metric, ...] = get_args(Metric)
Normalise = Literal["both", "feature", "none"]
_CORRELATE = {"pearson": pearson_matrix, "spearman": spearman_matrix, "kendall": kendall_matrix}


def normalise(values: Floats, how: Normalise = "both") -> Floats:
    """Normalise (models, tasks): ``feature`` each task across models, ``both`` then each model across tasks.

    A task on which all models score the same carries no information and becomes zeros.
    """
    if how == "none":
        return values
    by_task = _standardise(values, axis=0)
    return by_task if how == "feature" else _standardise(by_task, axis=1)


def performance(
    scores: ScoreMatrix, target: str, candidates: Sequence[str] | None = None
) -> ScoreMatrix:
    """Return the target, then the candidates (default: all other tasks), on the models that have every score."""
    others = [task for task in (candidates or scores.tasks) if task != target]
    chosen = scores.select(tasks=[target, *dict.fromkeys(others)]).complete()
    if len(chosen.tasks) < 2:
        raise InputError(
            "no candidate task besides the target", hint="name candidates, or score more tasks"
        )
    if len(chosen.models) < 3:
        few = f"only {len(chosen.models)} models have a score on {target} and on every candidate"
        raise InputError(
            f"{few}; three are needed", hint="leave out candidates that few models were scored on"
        )
    return chosen


def measure_relevance(
    scores: ScoreMatrix,
    target: str,
    candidates: Sequence[str] | None = None,
    *,
    how: Normalise = "both",
) -> tuple[ScoreMatrix, dict[Metric, Floats]]:
    """Correlate the target with every candidate by Pearson, Spearman and Kendall on the normalised scores.

    Returns the scores, the target's first, and by each metric the correlations of the candidates.
    """
    chosen = performance(scores, target, candidates)
    vectors = normalise(chosen.oriented(), how)
    return chosen, {metric: correlate_target(vectors, metric) for metric in METRICS}


def correlate_target(vectors: Floats, metric: Metric, *, weights: Floats | None = None) -> Floats:
    """Correlate column 0, the target, with the other columns; ``weights`` (draws, models) gives (draws, candidates)."""
    result = _CORRELATE[metric](vectors[:, :1], vectors[:, 1:], weights=weights)
    return result[..., 0, :]


def _standardise(values: Floats, axis: int) -> Floats:
    centred = values - values.mean(axis=axis, keepdims=True)
    spread = values.std(axis=axis, keepdims=True)
    blank = spread <= 1e-12 * np.abs(values).max(initial=1.0)
    return np.asarray(np.where(blank, 0.0, centred / np.where(blank, 1.0, spread)))


# --- the choice ------------------------------------------------------------------------------------------------------

Transform = Callable[[float], float]
_FEW_TASKS = (
    8  # normalised over T tasks, correlations average -1/(T-1): with fewer than this many it shows
)


def sigmoid(steepness: float = 1.0) -> Transform:
    """Return f(x) = 1 / (1 + e^(-kx)), the paper's example of a transformation."""
    return lambda x: float(1.0 / (1.0 + np.exp(-steepness * x)))


def log_ratio(x: float) -> float:
    """Return f(x) = log(1 + x): monotone, zero at zero, never saturating."""
    return float(np.log1p(x))


def ignore_robustness(x: float) -> float:
    """Return f(x) = 1: relevance alone."""
    return 1.0


@dataclass(frozen=True)
class Proxy:
    """One candidate: how relevant, how robust, and what it weighs."""

    task: str
    relevance: float  # C, by the chosen metric
    by_metric: dict[Metric, float]
    robustness: TaskRobustness | None
    score: float  # S
    weight: float  # W, zero where not kept
    dropped: str  # why it is not a proxy; empty where it is


@dataclass(frozen=True)
class ProxyTasks(Finding):
    """The candidates for a target, and the weights of those that are kept."""

    target: str
    metric: Metric
    how: Normalise
    models: int
    min_relevance: float
    min_robustness: float
    proxies: tuple[Proxy, ...]  # by descending weight, then relevance

    @property
    def weights(self) -> dict[str, float]:
        """The kept tasks and their weights, which add up to one."""
        return {p.task: p.weight for p in self.proxies if not p.dropped}

    def tables(self) -> Sequence[Table]:
        """Return every candidate with its relevance, robustness and weight."""
        note = f"Chosen by {self.metric} over {self.models} models."
        if not any(p.robustness is not None for p in self.proxies):
            note += " No groups of small models were given: robustness is unknown, the weights are relevance alone."
        if self.how == "both" and len(self.proxies) < _FEW_TASKS:
            note += (
                f" Normalising each model over only {len(self.proxies) + 1} tasks pushes every correlation down;"
                " normalise by task alone (feature), or name more candidates."
            )
        columns = ("task", *METRICS, "R", "S", "weight", "dropped because")
        rows = []
        for p in self.proxies:
            ratio = p.robustness.ratio.value if p.robustness else None
            rows.append(
                (p.task, *(p.by_metric[m] for m in METRICS), ratio, p.score, p.weight, p.dropped)
            )
        return (Table(f"Proxy tasks for {self.target}", columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return the weights, and the relevance of every candidate by each metric (figure 1)."""
        by_metric = {str(m): [p.by_metric[m] for p in self.proxies] for m in METRICS}
        names, shares = [p.task for p in self.proxies], {"weight": self.weights.values()}
        title, caption = (
            f"Weights of the proxy tasks for {self.target}",
            "Share of each proxy in the prediction.",
        )
        relevant = "Correlation of each candidate's normalised scores with the target's."
        return (
            Bars("proxy-weights", title, caption, self.weights, shares, y_label="weight"),
            Bars(
                "proxy-relevance",
                f"Relevance to {self.target}",
                relevant,
                names,
                by_metric,
                y_label="correlation",
            ),
        )


def choose_proxies(
    scores: ScoreMatrix,
    target: str,
    candidates: Sequence[str] | None = None,
    *,
    metric: Metric = "kendall",
    how: Normalise = "both",
    robust: Robustness | None = None,
    min_relevance: float = 0.0,
    min_robustness: float = 1.0,
    transform: Transform | None = None,
    top: int | None = None,
) -> ProxyTasks:
    """Choose and weigh the proxy tasks for ``target`` among ``candidates`` (default: all other tasks).

    A candidate must lie above ``min_relevance`` and, where ``robust`` knows it, at or above ``min_robustness``;
    ``top`` then keeps the highest S only. Without ``robust`` the weights follow from relevance alone.
    """
    if metric not in METRICS:
        raise InputError(f"no metric {metric!r}", hint=f"choose one of: {', '.join(METRICS)}")
    chosen, relevance = measure_relevance(scores, target, candidates, how=how)
    measured = {t.task: t for t in robust.tasks} if robust else {}
    shape = transform or sigmoid()
    proxies: list[Proxy] = []
    for place, task in enumerate(chosen.tasks[1:]):
        by_metric = {m: float(relevance[m][place]) for m in METRICS}
        value, known = by_metric[metric], measured.get(task)
        ratio = known.ratio.value if known is not None else np.nan
        score = value * shape(ratio) if np.isfinite(ratio) else value
        why = ""
        if not value > min_relevance:
            why = f"relevance not above {min_relevance:g}"
        elif known is not None and not ratio >= min_robustness:
            why = f"robustness below {min_robustness:g}" if np.isfinite(ratio) else known.verdict
        proxies.append(Proxy(task, value, by_metric, known, score, 0.0, why))
    return ProxyTasks(
        target, metric, how, len(chosen.models), min_relevance, min_robustness, _weigh(proxies, top)
    )


def predict(weights: Mapping[str, float], scores: ScoreMatrix) -> Floats:
    """Weighted mean of each model's proxy scores, higher is better; NaN where a model lacks one of them."""
    if not weights:
        raise InputError(
            "no proxy task passed the thresholds", hint="lower --min-relevance or --min-robustness"
        )
    chosen = scores.select(tasks=list(weights))
    return np.asarray(chosen.oriented() @ np.array(list(weights.values())))


def _weigh(proxies: Sequence[Proxy], top: int | None) -> tuple[Proxy, ...]:
    order = sorted(
        proxies, key=lambda p: (bool(p.dropped), -p.score if np.isfinite(p.score) else np.inf)
    )
    kept = [p for p in order if not p.dropped][:top]
    total = sum(p.score for p in kept)
    weighed = [replace(p, weight=p.score / total) for p in kept]
    return (
        *weighed,
        *(replace(p, dropped=p.dropped or f"not among the top {top}") for p in order[len(kept) :]),
    )


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
    baseline: RepetitionSpread  # s
    sampling: RepetitionSpread  # r
    leads: (
        float  # share of repetitions in which the metric has both the highest s and the highest r
    )


@dataclass(frozen=True)
class SamplingConsistency(Finding):
    """Algorithm 1 for several (n, k), and the metric that it chooses."""

    target: str
    top: int
    models: int
    candidates: int
    repetitions: int
    indices: tuple[Indices, ...]
    chosen: (
        Metric | None
    )  # the metric with the highest mean s and r in most configurations, where one has both

    def tables(self) -> Sequence[Table]:
        """Return table 3's layout, with the spread of single runs."""
        rows = map(attrgetter("n", "k", "metric", "baseline", "sampling", "leads"), self.indices)
        of = f"top {self.top} tasks for {self.target} ({self.models} models, {self.candidates} candidates)"
        columns = (
            "n",
            "k",
            "metric",
            "s",
            "2.5 % of runs",
            "97.5 %",
            "r",
            "2.5 % of runs ",
            "97.5 % ",
            "leads",
        )
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
        for kind, title in (
            ("baseline", "Baseline consistency s"),
            ("sampling", "Sampling consistency r"),
        ):
            by = {
                metric: [getattr(i, kind) for i in self.indices if i.metric == metric]
                for metric in METRICS
            }
            drawn.append(
                Bars(
                    f"sampling-{kind}",
                    title,
                    caption,
                    labels,
                    by,
                    y_label="overlap of the top tasks",
                )
            )
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
            raise InputError(
                f"cannot draw {k} samples of {n} models from {models}",
                hint="3 <= n <= models, k >= 2",
            )
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
            found.append(
                Indices(metric, n, k, summarize_repetitions(s), summarize_repetitions(r), leads)
            )
    return SamplingConsistency(
        target, top, models, tasks - 1, repetitions, tuple(found), _choose(found)
    )


def top_share(relevance: Floats, top: int) -> Floats:
    """Membership of each task in the top ``top`` (…, tasks): 1 above the cut, 0 below, and a fair share on it.

    A task without a relevance (a constant column in a small sample) comes last.
    """
    known = np.where(np.isfinite(relevance), relevance, -np.inf)
    cut = -np.sort(-known, axis=-1)[..., top - 1 : top]
    above, on = known > cut, known == cut
    left = top - above.sum(axis=-1, keepdims=True)
    return np.asarray(above + on * left / on.sum(axis=-1, keepdims=True), dtype=np.float64)


def _run(
    vectors: Floats, draws: npt.NDArray[np.int64], metric: Metric, top: int, k: int
) -> tuple[Floats, Floats]:
    """Return s and r of each repetition."""
    whole = top_share(np.round(correlate_target(vectors, metric), 12), top)  # (tasks,)
    members = top_share(np.round(_sampled(vectors, draws, metric), 12), top).reshape(
        -1, k, len(whole)
    )
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
    rows = [
        found[k : k + len(METRICS)] for k in range(0, len(found), len(METRICS))
    ]  # one for each configuration
    best_s = [max(row, key=lambda i: i.baseline.value).metric for row in rows]
    best_r = [max(row, key=lambda i: i.sampling.value).metric for row in rows]
    wins = Counter(s for s, r in zip(best_s, best_r, strict=True) if s == r)
    return next((metric for metric in METRICS if wins[metric] * 2 > len(rows)), None)
