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
from dataclasses import dataclass, field, replace
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

TOP = 10  # t of the paper's algorithm 1
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
        group_sizes = [(task.data_models, task.seed_models) for task in self.tasks]
        data_models, seed_models = min(group_sizes, default=(_SMALL_GROUP, _SMALL_GROUP))
        smaller_group = min(data_models, seed_models)
        if smaller_group < _SMALL_GROUP:
            factor = np.inf
            if smaller_group > 1:
                factor = np.divide(*_f_quantiles(data_models - 1, seed_models - 1))
            note += (
                f" Groups as small as {data_models} and {seed_models} models:"
                f" the interval spans a factor of {factor:.0f}."
            )
        column_names = (
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
        table_rows = map(attrgetter(*names), self.tasks)
        title = "Robustness to training: variance over data against variance over seeds"
        return (Table(title, column_names, table_rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return R with its interval, one bar per task."""
        ratios = {task.task: task.ratio for task in self.tasks if np.isfinite(task.ratio.value)}
        caption = "Variance over data divided by variance over seeds. Below one, the seed matters more than the data."
        bars = Bars(
            "robustness",
            "Robustness of each task",
            caption,
            list(ratios),
            {"R": list(ratios.values())},
            y_label="R",
        )
        return (bars,)


def measure_robustness(
    scores: ScoreMatrix, data_group: Sequence[str], seed_group: Sequence[str]
) -> Robustness:
    """Compare, task by task, the models trained on different data with those that differ in their seed only."""
    in_both_groups = sorted(set(data_group) & set(seed_group))
    if in_both_groups:
        raise InputError(
            f"in both groups: {', '.join(in_both_groups)}",
            hint="a model differs either in its data or in its seed",
        )
    data_scores = scores.select(models=data_group).values
    seed_scores = scores.select(models=seed_group).values
    return Robustness(tuple(map(variance_ratio, data_scores.T, seed_scores.T, scores.tasks)))


def variance_ratio(data: npt.ArrayLike, seeds: npt.ArrayLike, task: str = "") -> TaskRobustness:
    """Divide the two sample variances and give the ratio its F interval of 95 %: [R / F(1-α/2), R / F(α/2)]."""
    data_scores = _drop_missing(data)
    seed_scores = _drop_missing(seeds)
    data_variance = _sample_variance(data_scores)
    seed_variance = _sample_variance(seed_scores)
    ratio = Interval(np.nan, np.nan, np.nan)
    p_value = np.nan
    if min(len(data_scores), len(seed_scores)) < 2:
        verdict = "cannot tell: a variance needs two models in each group"
    elif seed_variance == 0.0:
        verdict = "cannot tell: all seeds score the same"
    else:
        freedom = (len(data_scores) - 1, len(seed_scores) - 1)
        value = data_variance / seed_variance
        upper_quantile, lower_quantile = _f_quantiles(*freedom)
        ratio = Interval(value, value / float(upper_quantile), value / float(lower_quantile))
        p_value = float(f_distribution.sf(value, *freedom))
        verdict = "cannot tell"
        if ratio.low > 1:
            verdict = "robust"
        elif ratio.high < 1:
            verdict = "noise"
    return TaskRobustness(
        task=task,
        data_models=len(data_scores),
        seed_models=len(seed_scores),
        data_variance=data_variance,
        seed_variance=seed_variance,
        ratio=ratio,
        p_value=p_value,
        verdict=verdict,
    )


def _drop_missing(scores: npt.ArrayLike) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    return values[np.isfinite(values)]


def _sample_variance(scores: Floats) -> float:
    """Return the unbiased variance; NaN of fewer than two scores."""
    return float(scores.var(ddof=1)) if len(scores) > 1 else np.nan


def _f_quantiles(data_freedom: int, seed_freedom: int) -> Floats:
    """Return the upper and the lower end of the F distribution with these degrees of freedom."""
    tail_share = (1 - 0.95) / 2
    return np.asarray(f_distribution.ppf([1 - tail_share, tail_share], data_freedom, seed_freedom))


Metric = Literal["pearson", "spearman", "kendall"]
METRICS: tuple[Metric, ...] = get_args(Metric)
Normalise = Literal["both", "feature", "none"]
_CORRELATE = {"pearson": pearson_matrix, "spearman": spearman_matrix, "kendall": kendall_matrix}


def normalise(values: Floats, steps: Normalise = "both") -> Floats:
    """Normalise (models, tasks): ``feature`` each task across models, ``both`` then each model across tasks.

    A task on which all models score the same carries no information and becomes zeros.
    """
    if steps == "none":
        return values
    by_task = _standardise(values, axis=0)
    return by_task if steps == "feature" else _standardise(by_task, axis=1)


def performance(
    scores: ScoreMatrix, target: str, candidates: Sequence[str] | None = None
) -> ScoreMatrix:
    """Return the target, then the candidates (default: all other tasks), on the models that have every score."""
    other_tasks = [task for task in (candidates or scores.tasks) if task != target]
    chosen = scores.select(tasks=[target, *dict.fromkeys(other_tasks)]).drop_incomplete_models()
    if len(chosen.tasks) < 2:
        raise InputError(
            "no candidate task besides the target", hint="name candidates, or score more tasks"
        )
    if len(chosen.models) < 3:
        raise InputError(
            f"only {len(chosen.models)} models have a score on {target} and on every candidate;"
            " three are needed",
            hint="leave out candidates that few models were scored on",
        )
    return chosen


def measure_relevance(
    scores: ScoreMatrix,
    target: str,
    candidates: Sequence[str] | None = None,
    *,
    normalisation: Normalise = "both",
) -> tuple[ScoreMatrix, dict[Metric, Floats]]:
    """Correlate the target with every candidate by Pearson, Spearman and Kendall on the normalised scores.

    Returns the scores, the target's first, and by each metric the correlations of the candidates.
    """
    chosen = performance(scores, target, candidates)
    vectors = normalise(chosen.oriented(), normalisation)
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


def log_ratio(robustness: float) -> float:
    """Return f(x) = log(1 + x): monotone, zero at zero, never saturating."""
    return float(np.log1p(robustness))


def ignore_robustness(robustness: float) -> float:
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
    capabilities: Mapping[str, str] = field(default_factory=dict)  # what kind of task each one is

    @property
    def weights(self) -> dict[str, float]:
        """The kept tasks and their weights, which add up to one."""
        return {proxy.task: proxy.weight for proxy in self.proxies if not proxy.dropped}

    def tables(self) -> Sequence[Table]:
        """Return every candidate with its relevance, robustness and weight."""
        note = f"Chosen by {self.metric} over {self.models} models."
        if not any(proxy.robustness is not None for proxy in self.proxies):
            note += " No groups of small models were given: robustness is unknown, the weights are relevance alone."
        if self.how == "both" and len(self.proxies) < _FEW_TASKS:
            note += (
                f" Normalising each model over only {len(self.proxies) + 1} tasks pushes every correlation down;"
                " normalise by task alone (feature), or name more candidates."
            )
        column_names = ("task", *METRICS, "R", "S", "weight", "dropped because")
        table_rows = []
        for proxy in self.proxies:
            ratio = proxy.robustness.ratio.value if proxy.robustness else None
            relevance = [proxy.by_metric[metric] for metric in METRICS]
            table_rows.append(
                (proxy.task, *relevance, ratio, proxy.score, proxy.weight, proxy.dropped)
            )
        candidates = Table(f"Proxy tasks for {self.target}", column_names, table_rows, note)
        if not any(proxy.task in self.capabilities for proxy in self.proxies):
            return (candidates,)
        return candidates, self._tabulate_capabilities()

    def _tabulate_capabilities(self) -> Table:
        """Return how many of the most relevant tasks are of each capability, by each correlation (section 4.1)."""
        size = min(TOP, max(1, len(self.proxies) // 2))
        counts: dict[Metric, Counter[str]] = {}
        for metric in METRICS:
            ranked = sorted(self.proxies, key=lambda proxy: -proxy.by_metric[metric])
            counts[metric] = Counter(self._name_capability(proxy) for proxy in ranked[:size])
        all_candidates = Counter(map(self._name_capability, self.proxies))
        table_rows = []
        for capability, candidates in all_candidates.most_common():
            table_rows.append(
                (capability, candidates, *(counts[metric][capability] for metric in METRICS))
            )
        return Table(
            f"The {size} tasks most relevant to {self.target}, by capability",
            ("capability", "candidates", *METRICS),
            table_rows,
            "How many of the most relevant tasks are of each kind, by each correlation.",
        )

    def _name_capability(self, proxy: Proxy) -> str:
        return self.capabilities.get(proxy.task) or "unknown"

    def charts(self) -> Sequence[Chart]:
        """Return the weights, and the relevance of every candidate by each metric (figure 1)."""
        relevance = {}
        for metric in METRICS:
            relevance[str(metric)] = [proxy.by_metric[metric] for proxy in self.proxies]
        weights_chart = Bars(
            "proxy-weights",
            f"Weights of the proxy tasks for {self.target}",
            "Share of each proxy in the prediction.",
            self.weights,
            {"weight": self.weights.values()},
            y_label="weight",
        )
        relevance_chart = Bars(
            "proxy-relevance",
            f"Relevance to {self.target}",
            "Correlation of each candidate's normalised scores with the target's.",
            [proxy.task for proxy in self.proxies],
            relevance,
            y_label="correlation",
        )
        return weights_chart, relevance_chart


def choose_proxies(
    scores: ScoreMatrix,
    target: str,
    candidates: Sequence[str] | None = None,
    *,
    metric: Metric = "kendall",
    normalisation: Normalise = "both",
    robust: Robustness | None = None,
    min_relevance: float = 0.0,
    min_robustness: float = 1.0,
    transform: Transform | None = None,
    top_count: int | None = None,
) -> ProxyTasks:
    """Choose and weigh the proxy tasks for ``target`` among ``candidates`` (default: all other tasks).

    A candidate must lie above ``min_relevance`` and, where ``robust`` knows it, at or above ``min_robustness``;
    ``top_count`` then keeps the highest S only. Without ``robust`` the weights follow from relevance alone.
    """
    if metric not in METRICS:
        raise InputError(f"no metric {metric!r}", hint=f"choose one of: {', '.join(METRICS)}")
    chosen, relevance = measure_relevance(scores, target, candidates, normalisation=normalisation)
    robustness_by_task = {task.task: task for task in robust.tasks} if robust else {}
    squash = transform or sigmoid()
    proxies: list[Proxy] = []
    for column, task in enumerate(chosen.tasks[1:]):
        by_metric = {metric_name: float(relevance[metric_name][column]) for metric_name in METRICS}
        task_relevance = by_metric[metric]
        robustness = robustness_by_task.get(task)
        ratio = np.nan if robustness is None else robustness.ratio.value
        has_ratio = bool(np.isfinite(ratio))
        reason = ""
        if not task_relevance > min_relevance:
            reason = f"relevance not above {min_relevance:g}"
        elif robustness is not None and not ratio >= min_robustness:
            reason = f"robustness below {min_robustness:g}" if has_ratio else robustness.verdict
        proxy = Proxy(
            task=task,
            relevance=task_relevance,
            by_metric=by_metric,
            robustness=robustness,
            score=task_relevance * squash(ratio) if has_ratio else task_relevance,
            weight=0.0,
            dropped=reason,
        )
        proxies.append(proxy)
    return ProxyTasks(
        target=target,
        metric=metric,
        how=normalisation,
        models=len(chosen.models),
        min_relevance=min_relevance,
        min_robustness=min_robustness,
        proxies=_weigh_proxies(proxies, top_count),
    )


def predict(weights: Mapping[str, float], scores: ScoreMatrix) -> Floats:
    """Weighted mean of each model's proxy scores, higher is better; NaN where a model lacks one of them."""
    if not weights:
        raise InputError(
            "no proxy task passed the thresholds",
            hint="lower min_relevance or min_robustness of ProxyOptions",
        )
    chosen = scores.select(tasks=list(weights))
    return np.asarray(chosen.oriented() @ np.array(list(weights.values())))


def _weigh_proxies(candidates: Sequence[Proxy], top_count: int | None) -> tuple[Proxy, ...]:
    """Return the candidates by descending score, those that count with their weights first."""

    def rank(candidate: Proxy) -> tuple[bool, float]:
        descending_score = -candidate.score if np.isfinite(candidate.score) else np.inf
        return bool(candidate.dropped), descending_score

    ranked = sorted(candidates, key=rank)
    proxies = [candidate for candidate in ranked if not candidate.dropped][:top_count]
    total = sum(proxy.score for proxy in proxies)
    weighed = [replace(proxy, weight=proxy.score / total) for proxy in proxies]
    for candidate in ranked[len(proxies) :]:
        reason = candidate.dropped or f"not among the top {top_count}"
        weighed.append(replace(candidate, dropped=reason))
    return tuple(weighed)


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
    leads: float  # share of repetitions in which the metric has the highest s and the highest r


@dataclass(frozen=True)
class SamplingConsistency(Finding):
    """Algorithm 1 for several (n, k), and the metric that it chooses."""

    target: str
    top: int
    models: int
    candidates: int
    repetitions: int
    indices: tuple[Indices, ...]
    # the metric with the highest mean s and r in most configurations, where one has both
    chosen: Metric | None

    def tables(self) -> Sequence[Table]:
        """Return table 3's layout, with the spread of single runs."""
        table_rows = map(
            attrgetter("n", "k", "metric", "baseline", "sampling", "leads"), self.indices
        )
        title = (
            f"Algorithm 1: consistency of the top {self.top} tasks for {self.target}"
            f" ({self.models} models, {self.candidates} candidates)"
        )
        column_names = (
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
        return (Table(title, column_names, table_rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return s and r as grouped bars."""
        labels = dict.fromkeys(f"n={index.n}, k={index.k}" for index in self.indices)
        caption = "Higher means that other models would have named the same tasks; the bars hold 95 % of single runs."
        titles = {"baseline": "Baseline consistency s", "sampling": "Sampling consistency r"}
        charts = []
        for kind, title in titles.items():
            spreads: dict[str, list[RepetitionSpread]] = {metric: [] for metric in METRICS}
            for index in self.indices:
                spreads[index.metric].append(getattr(index, kind))
            chart = Bars(
                f"sampling-{kind}",
                title,
                caption,
                labels,
                spreads,
                y_label="overlap of the top tasks",
            )
            charts.append(chart)
        return charts


def measure_sampling(
    scores: ScoreMatrix,
    target: str,
    candidates: Sequence[str] | None = None,
    *,
    top_count: int = 5,
    configurations: Sequence[tuple[int, int]] = PAPER_CONFIGURATIONS,
    normalisation: Normalise = "both",
    repetitions: int = 100,
    seed: int = 0,
) -> SamplingConsistency:
    """Run algorithm 1 ``repetitions`` times for each (n, k), the same samples for every metric."""
    chosen = performance(scores, target, candidates)
    models, tasks = chosen.shape
    if not 1 <= top_count <= tasks - 1:
        raise InputError(
            f"top {top_count} of {tasks - 1} candidates", hint=f"choose 1 to {tasks - 1}"
        )
    for n, k in configurations:
        if not 3 <= n <= models or k < 2:
            raise InputError(
                f"cannot draw {k} samples of {n} models from {models}",
                hint="3 <= n <= models, k >= 2",
            )
    vectors = normalise(chosen.oriented(), normalisation)
    rng = np.random.default_rng(seed)
    indices: list[Indices] = []
    for n, k in configurations:
        all_models = np.tile(np.arange(models), (repetitions * k, 1))
        draws = rng.permuted(all_models, axis=1)[:, :n]
        run_by_metric = {
            metric: _run_algorithm(vectors, draws, metric, top_count, k) for metric in METRICS
        }
        best_s = np.max([s for s, _ in run_by_metric.values()], axis=0)
        best_r = np.max([r for _, r in run_by_metric.values()], axis=0)
        for metric, (s, r) in run_by_metric.items():
            is_leading = (s >= best_s) & (r >= best_r)
            index = Indices(
                metric=metric,
                n=n,
                k=k,
                baseline=summarize_repetitions(s),
                sampling=summarize_repetitions(r),
                leads=float(np.mean(is_leading)),
            )
            indices.append(index)
    return SamplingConsistency(
        target=target,
        top=top_count,
        models=models,
        candidates=tasks - 1,
        repetitions=repetitions,
        indices=tuple(indices),
        chosen=_choose_metric(indices),
    )


def top_share(relevance: Floats, top_count: int) -> Floats:
    """Membership of each task in the top ``top_count`` (…, tasks): 1 above the cut, 0 below, and a fair share on it.

    A task without a relevance (a constant column in a small sample) comes last.
    """
    comparable = np.where(np.isfinite(relevance), relevance, -np.inf)
    threshold = -np.sort(-comparable, axis=-1)[..., top_count - 1 : top_count]
    is_above = comparable > threshold
    is_tied = comparable == threshold
    places_to_share = top_count - is_above.sum(axis=-1, keepdims=True)
    tied_tasks = is_tied.sum(axis=-1, keepdims=True)
    return np.asarray(is_above + is_tied * places_to_share / tied_tasks, dtype=np.float64)


def _run_algorithm(
    vectors: Floats, draws: npt.NDArray[np.int64], metric: Metric, top_count: int, k: int
) -> tuple[Floats, Floats]:
    """Return s and r of each repetition."""
    relevance_of_all = np.round(correlate_target(vectors, metric), 12)
    top_of_all = top_share(relevance_of_all, top_count)  # (tasks,)
    relevance_in_samples = np.round(_correlate_samples(vectors, draws, metric), 12)
    top_in_samples = top_share(relevance_in_samples, top_count).reshape(-1, k, len(top_of_all))
    s = np.minimum(top_in_samples, top_of_all).sum(axis=-1).mean(axis=-1) / top_count
    first_of_pair, second_of_pair = np.triu_indices(k, 1)
    r = []
    for samples in top_in_samples:
        overlaps = np.minimum(samples[first_of_pair], samples[second_of_pair]).sum(axis=-1)
        r.append(overlaps.mean() / top_count)
    return np.clip(s, 0.0, 1.0), np.clip(np.array(r), 0.0, 1.0)


def _correlate_samples(vectors: Floats, draws: npt.NDArray[np.int64], metric: Metric) -> Floats:
    """Return the relevance of every candidate in each sample of models, (draws, candidates)."""
    if metric == "spearman":  # ranks of all samples at once, then Pearson of the ranks
        ranks = rankdata(vectors[draws], axis=1)
        return pearson_matrix(ranks[:, :, :1], ranks[:, :, 1:])[:, 0, :]
    weights = np.zeros((len(draws), len(vectors)))
    np.put_along_axis(weights, draws, 1.0, axis=1)
    return correlate_target(vectors, metric, weights=weights)


def _choose_metric(indices: Sequence[Indices]) -> Metric | None:
    """Return the metric with the highest s and the highest r in more than half of the configurations."""
    win_counts: Counter[Metric] = Counter()
    configurations = len(indices) // len(METRICS)
    for number in range(configurations):
        rivals = indices[number * len(METRICS) : (number + 1) * len(METRICS)]
        highest_s = max(rivals, key=lambda index: index.baseline.value)
        highest_r = max(rivals, key=lambda index: index.sampling.value)
        if highest_s.metric == highest_r.metric:
            win_counts[highest_s.metric] += 1
    for metric in METRICS:
        if win_counts[metric] * 2 > configurations:
            return metric
    return None
