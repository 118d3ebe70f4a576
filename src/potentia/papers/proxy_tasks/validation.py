"""The honest test of proxy tasks: chosen on half of the models, they predict the other half, beside perplexity.

Random halves are drawn many times, with a family on one side only where families are known. Where base models and their
chat versions are known, proxies chosen and scored on chat models, on base models, or chosen on chat and scored on base
models are compared (proxy-task paper, section 4.3).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from scipy.stats import rankdata

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.stats.bootstrap import (
    RepetitionSpread,
    kendall_by_row,
    summarize_repetitions,
)
from potentia.analysis.stats.correlation import nan_mean
from potentia.errors import InputError
from potentia.papers.proxy_tasks.proxies import choose_proxies, predict
from potentia.values.findings import Bars, Chart, Finding, Plot, Points, Table, select_positions
from potentia.values.metric import Metric
from potentia.values.scores import Floats, ScoreMatrix

LEAST_MODELS = 8  # to halve them and still choose and judge


@dataclass(frozen=True, eq=False)
class Forecast(Finding):
    """Predicted standing of early models on the target, with the truth and perplexity's view where known."""

    target: str
    models: tuple[str, ...]
    predicted: Floats  # weighted mean of proxy scores
    truth: Floats  # NaN where unknown
    perplexity: Floats  # higher is better; NaN where unknown
    reversed_by_proxy: int | None  # pairs in the reverse of the true order
    reversed_by_perplexity: int | None
    pairs: int

    def tables(self) -> Sequence[Table]:
        """Return each model's prediction and rank, and the reverse-ordered pairs."""
        sort_keys = np.where(np.isfinite(self.predicted), -self.predicted, np.inf)
        order = np.argsort(sort_keys, kind="stable")
        rows = list(
            zip(
                self.models,
                self.predicted,
                _rank_best_first(self.predicted),
                _rank_best_first(self.perplexity),
                self.truth,
                _rank_best_first(self.truth),
                strict=True,
            )
        )
        note = "Predicted: weighted mean of the proxy scores, which orders models; it is not a score of the target."
        if self.reversed_by_proxy is not None:
            note += f" Reverse-ordered pairs by proxies: {self.reversed_by_proxy} of {self.pairs}"
            if self.reversed_by_perplexity is not None:
                note += f"; by perplexity: {self.reversed_by_perplexity}"
            note += "."
        title = f"Predicted standing on {self.target}"
        column_names = ("model", "predicted", "rank", "rank by perplexity", "truth", "true rank")
        return [Table(title, column_names, select_positions(rows, order), note)]

    def charts(self) -> Sequence[Chart]:
        """Return the prediction against the truth, where that is known."""
        is_known = np.isfinite(self.truth) & np.isfinite(self.predicted)
        if not is_known.any():
            return []
        names = tuple(compress(self.models, is_known))
        points = Points("models", self.predicted[is_known], self.truth[is_known], names)
        chart = Plot(
            "forecast",
            f"Predicted standing and true score on {self.target}",
            "Points that rise from left to right are in the predicted order.",
            points=(points,),
            lines=(),
            x_label="weighted mean of proxy scores",
            y_label=self.target,
        )
        return [chart]


def _rank_best_first(scores: Floats) -> Floats:
    """Return the ranks, 1 for the highest score; NaN where there is none."""
    return np.asarray(rankdata(-scores, nan_policy="omit"))


def count_reversed_pairs(predicted: Floats, truth: Floats) -> tuple[int, int]:
    """Count the pairs in the reverse of the true order, and all pairs that both sides know; a tie is no reversal."""
    is_known = np.isfinite(predicted) & np.isfinite(truth)
    predicted = predicted[is_known]
    truth = truth[is_known]
    first_of_pair, second_of_pair = np.triu_indices(len(predicted), 1)
    predicted_gaps = predicted[first_of_pair] - predicted[second_of_pair]
    true_gaps = truth[first_of_pair] - truth[second_of_pair]
    reversed_count = int((predicted_gaps * true_gaps < 0).sum())
    return reversed_count, len(first_of_pair)


def make_forecast(
    weights: Mapping[str, float],
    early: ScoreMatrix,
    target: str,
    *,
    truth: Mapping[str, float] = NO_ENTRIES,
    corpora: Sequence[str] = (),
) -> Forecast:
    """Rank early models by their proxy scores; ``truth`` are the later scores on the target, where known."""
    predicted = predict(weights, early)
    true_scores = np.array([truth.get(model, np.nan) for model in early.models], dtype=np.float64)
    perplexity = by_perplexity(early, corpora)
    reversed_by_proxy = None
    reversed_by_perplexity = None
    reversed_count, pairs = count_reversed_pairs(predicted, true_scores)
    if np.isfinite(true_scores).sum() > 1:
        reversed_by_proxy = reversed_count
        if np.isfinite(perplexity).any():
            reversed_by_perplexity = count_reversed_pairs(perplexity, true_scores)[0]
    return Forecast(
        target=target,
        models=early.models,
        predicted=predicted,
        truth=true_scores,
        perplexity=perplexity,
        reversed_by_proxy=reversed_by_proxy,
        reversed_by_perplexity=reversed_by_perplexity,
        pairs=pairs,
    )


def by_perplexity(scores: ScoreMatrix, corpora: Sequence[str]) -> Floats:
    """Return the mean over corpora of perplexity or bits per byte, so that higher is better; NaN without corpora."""
    if not corpora:
        return np.full(len(scores.models), np.nan)
    return np.asarray(scores.select(tasks=corpora).oriented().mean(axis=1))


# --- base models and their chat versions -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class JoinedPairs:
    """Aligned rows: the target of each pair (higher is better), and the other tasks as each kind of model has them."""

    target: str
    truth: Floats  # (pairs,) of the chat models
    views: dict[str, ScoreMatrix]  # "base", and "chat" where every chat model has these scores

    @property
    def models(self) -> tuple[str, ...]:
        """The base models of the pairs."""
        return self.views["base"].models

    @property
    def chats(self) -> tuple[str, ...]:
        """The chat models of the pairs, or the base models' names where only the target of these is known."""
        return self.views["chat"].models if "chat" in self.views else self.models

    def select_scores(
        self, view_name: str, rows: Sequence[int], tasks: Sequence[str] | None = None
    ) -> ScoreMatrix:
        """Return the scores of some pairs as this kind of model has them."""
        if view_name not in self.views:
            raise InputError(
                "the chat models lack a score on some candidate",
                hint="choose on base models: on='base' of ProxyOptions",
            )
        return self.views[view_name].select(models=np.array(rows, dtype=int), tasks=tasks)

    def join_target(
        self, view_name: str, tasks: Sequence[str], rows: Sequence[int] | None = None
    ) -> ScoreMatrix:
        """Put the target beside the tasks as this kind of model scores them, for all pairs or some."""
        if rows is None:
            rows = range(len(self.truth))
        scores = self.select_scores(view_name, rows, tasks)
        return ScoreMatrix.build(
            scores.models,
            (self.target, *scores.tasks),
            np.column_stack([self.truth[list(rows)], scores.values]),
            metrics=(Metric(), *scores.metrics),
            protocol=scores.protocol,
        )


def join_pairs(
    scores: ScoreMatrix,
    pairs: Mapping[str, str],
    target: str,
    tasks: Sequence[str],
    corpora: Sequence[str] = (),
) -> JoinedPairs:
    """Keep the pairs whose base model has every task and corpus, and whose chat model has the target."""
    predictors = [task for task in dict.fromkeys((*tasks, *corpora)) if task != target]
    target_scores = _scores_on_target(scores, target)
    complete_models = set(scores.select(tasks=predictors).drop_incomplete_models().models)
    bases = []
    chats = []
    for base_model, chat_model in pairs.items():
        if base_model in complete_models and chat_model in target_scores:
            bases.append(base_model)
            chats.append(chat_model)
    if len(bases) < 3:
        raise InputError(
            f"{len(bases)} pairs have the candidates on the base model and {target} on its chat version;"
            " it takes three",
            hint="leave out candidates that few base models were scored on, or name the pairs with --pairs",
        )
    views = {"base": scores.select(models=bases, tasks=predictors)}
    if complete_models.issuperset(chats):
        views["chat"] = scores.select(models=chats, tasks=predictors)
    truth = np.array([target_scores[chat_model] for chat_model in chats])
    return JoinedPairs(target, truth, views)


def _scores_on_target(scores: ScoreMatrix, target: str) -> dict[str, float]:
    """Return the score on the target of every model that has one, oriented so that higher is better."""
    on_target = scores.select(tasks=[target])
    target_scores = {}
    for model, value in zip(on_target.models, on_target.oriented()[:, 0], strict=True):
        if np.isfinite(value):
            target_scores[model] = float(value)
    return target_scores


@dataclass(frozen=True)
class Trial:
    """One way to predict, over all splits: Kendall's tau with the truth, and the share of reversed pairs."""

    name: str
    tau: RepetitionSpread  # over halves
    reversed_share: float
    gain: RepetitionSpread | None  # tau less perplexity's, half by half
    wins: float | None  # share of splits in which its tau is above perplexity's


@dataclass(frozen=True)
class Validation(Finding):
    """Predictions for models that had no part in choosing the proxies, beside perplexity's."""

    target: str
    splits: int
    units: int
    unit: str  # "models" or "pairs"
    trials: tuple[Trial, ...]
    chosen: dict[str, float]  # how often each task was a proxy, over splits of the first strategy

    @property
    def verdict(self) -> str:
        """One sentence that says whether proxies beat perplexity."""
        first = self.trials[0]
        if not math.isfinite(first.tau.value):
            return "In no half did a task pass the thresholds: there is nothing to judge."
        if first.gain is None or first.wins is None:
            return "No perplexity to compare with: name corpora that were scored."
        if first.gain.low > 0:
            return f"Proxy tasks beat perplexity on {self.target} (won {first.wins:.0%} of the splits)."
        if first.gain.value > 0:
            return (
                f"Proxy tasks are ahead of perplexity on {self.target} on average, "
                f"but not in all splits (won {first.wins:.0%})."
            )
        return f"Proxy tasks do not beat perplexity on {self.target} (won {first.wins:.0%} of the splits)."

    def tables(self) -> Sequence[Table]:
        """Return tau, its gain over perplexity, and the reverse-ordered pairs of each strategy (table 10's layout)."""
        no_gain = RepetitionSpread(math.nan, math.nan, math.nan)
        table_rows = []
        for trial in self.trials:
            median_gain = trial.gain or no_gain
            table_rows.append(
                (trial.name, trial.tau, trial.reversed_share, median_gain, trial.wins)
            )
        column_names = (
            "predict by",
            "mean tau",
            "2.5 % of halves",
            "97.5 %",
            "reversed",
            "mean gain over perplexity",
            "2.5 % of halves ",
            "97.5 % ",
            "wins",
        )
        title = f"Predicting {self.target} for the half of the {self.units} {self.unit} not used to choose proxies"
        note = (
            f"{self.verdict} {self.splits} random halves: between the percentiles lie 95 % of them, which is not a "
            "confidence interval, as halves share models. reversed: share of pairs in the reverse of the true order."
        )
        return [Table(title, column_names, table_rows, note)]

    def charts(self) -> Sequence[Chart]:
        """Return tau of each strategy and how often each task was chosen."""
        most_chosen_first = sorted(self.chosen.items(), key=lambda task_share: -task_share[1])
        share_by_task = dict(most_chosen_first)
        return [
            Bars(
                "proxy-validation",
                f"Predicting {self.target}",
                "Kendall's tau between prediction and truth on models that had no part in choosing the proxies; "
                "the bars hold 95 % of the random halves.",
                [trial.name for trial in self.trials],
                {"tau": [trial.tau for trial in self.trials]},
                y_label="Kendall's tau",
            ),
            Bars(
                "proxy-chosen",
                "How often each task was chosen",
                "Share of the splits in which the task was a proxy.",
                share_by_task,
                {"share": share_by_task.values()},
            ),
        ]


class TooFewError(InputError):
    """Not enough models to halve them and still choose and judge."""


def validate(
    scores: ScoreMatrix,
    target: str,
    candidates: Sequence[str] | None = None,
    *,
    corpora: Sequence[str] = (),
    pairs: Mapping[str, str] | None = None,
    groups: Mapping[str, str] = NO_ENTRIES,
    splits: int = 200,
    seed: int = 0,
    **choice: Any,
) -> Validation:
    """Choose proxies on half of the models, predict the target of the other half, and repeat over random halves.

    ``corpora`` are the tasks whose perplexity is the rival. With ``pairs`` (base → chat) the units are pairs: the
    target is the chat model's score and the strategies are proxies chosen and scored on chat models, on base models,
    or chosen on chat and scored on base models (on base models alone where the chat models lack the candidates).
    ``groups`` (model → family) keeps a family on one side of the split. ``choice`` is what ``choose_proxies`` takes,
    ``robust`` measured on small models that take no part in the splits.
    """
    tasks = []
    for task in dict.fromkeys(candidates or scores.tasks):
        if task != target and task not in corpora:
            tasks.append(task)
    if pairs:
        joined = join_pairs(scores, pairs, target, tasks, corpora)
        strategies = _list_pair_strategies(joined)
    else:
        joined = _take_models_as_pairs(scores, target, tasks, corpora)
        strategies = [Strategy("proxy tasks", "base", "base", "perplexity")]
    unit = "pairs" if pairs else "models"
    units = len(joined.models)
    if units < LEAST_MODELS:
        raise TooFewError(
            f"{units} {unit} have all scores; halves of at least four are needed",
            hint="leave out tasks or corpora that few models were scored on",
        )
    perplexity_by_rival = {}
    if corpora:
        for strategy in strategies:
            view = joined.views[strategy.scored_on]
            perplexity_by_rival[strategy.rival] = by_perplexity(view, corpora)
    families = []
    for base_model, chat_model in zip(joined.models, joined.chats, strict=True):
        families.append(groups.get(chat_model, groups.get(base_model, chat_model)))
    kinds = list(dict.fromkeys(strategy.chosen_on for strategy in strategies))
    rng = np.random.default_rng(seed)
    outcomes: dict[str, list[HalfOutcome]] = {}
    times_chosen: Counter[str] = Counter()
    for _ in range(splits):
        first_half, second_half = _draw_halves(families, rng, unit)
        weights = {}
        for strategy_kind in kinds:
            known_half = joined.join_target(strategy_kind, tasks, first_half)
            weights[strategy_kind] = choose_proxies(known_half, target, **choice).weights
        times_chosen.update(list(weights[kinds[0]]))
        predictions = {}
        for strategy in strategies:
            unknown_half = joined.select_scores(strategy.scored_on, second_half)
            predictions[strategy.name] = _predict_or_nan(weights[strategy.chosen_on], unknown_half)
        for rival, perplexity in perplexity_by_rival.items():
            predictions[rival] = perplexity[second_half]
        for predictor, predicted in predictions.items():
            outcome = HalfOutcome.from_scores(predicted, joined.truth[second_half])
            outcomes.setdefault(predictor, []).append(outcome)
    rivals = {strategy.name: strategy.rival for strategy in strategies} if corpora else {}
    trials = []
    for predictor, outcomes_of_name in outcomes.items():
        rival_name = rivals.get(predictor)
        outcomes_of_rival = None if rival_name is None else outcomes[rival_name]
        trials.append(_summarize_trial(predictor, outcomes_of_name, outcomes_of_rival))
    return Validation(
        target=target,
        splits=splits,
        units=units,
        unit=unit,
        trials=tuple(trials),
        chosen={task: times_chosen[task] / splits for task in tasks},
    )


@dataclass(frozen=True)
class Strategy:
    """One way to choose and use proxies: on which kind of model they are chosen, and on which they are scored."""

    name: str
    chosen_on: str  # "base" or "chat"
    scored_on: str
    rival: str  # the name of perplexity on the same kind of model


def _take_models_as_pairs(
    scores: ScoreMatrix, target: str, tasks: Sequence[str], corpora: Sequence[str]
) -> JoinedPairs:
    """Join every model that has all scores with itself."""
    complete = scores.select(tasks=[target, *tasks, *corpora]).drop_incomplete_models()
    truth = complete.select(tasks=[target]).oriented()[:, 0]
    return JoinedPairs(target, truth, {"base": complete})


def _list_pair_strategies(joined: JoinedPairs) -> list[Strategy]:
    """Return the strategies for pairs; those that need chat models' scores where they are known."""
    rival_on_base = "perplexity of base models"
    strategies = [
        Strategy("proxies chosen and scored on base models", "base", "base", rival_on_base)
    ]
    if "chat" in joined.views:
        strategies += [
            Strategy(
                "proxies chosen and scored on chat models",
                "chat",
                "chat",
                "perplexity of chat models",
            ),
            Strategy(
                "proxies chosen on chat, scored on base models", "chat", "base", rival_on_base
            ),
        ]
    return strategies


def _draw_halves(
    labels: Sequence[str], rng: np.random.Generator, unit: str = "models"
) -> tuple[list[int], list[int]]:
    """Split positions into two halves that share no label.

    Labels in random order go to the side that has less so far.
    """
    first_half: list[int] = []
    second_half: list[int] = []
    for label in rng.permutation(sorted(set(labels))):
        if len(first_half) == len(second_half):
            goes_second = bool(rng.integers(2))
        else:
            goes_second = len(first_half) > len(second_half)
        half = second_half if goes_second else first_half
        half.extend(position for position, family in enumerate(labels) if family == label)
    sizes = (len(first_half), len(second_half))
    if min(sizes) < LEAST_MODELS // 2:
        raise InputError(
            f"a family holds {max(sizes)} of the {len(labels)} {unit}: "
            "no two halves without a common family are large enough",
            hint="split by model instead of by family",
        )
    return sorted(first_half), sorted(second_half)


def _predict_or_nan(weights: Mapping[str, float], scores: ScoreMatrix) -> Floats:
    """Predict the target; NaN where no task passed the thresholds."""
    if not weights:
        return np.full(len(scores.models), np.nan)
    return predict(weights, scores)


@dataclass(frozen=True)
class HalfOutcome:
    """How well one half was predicted; NaN where nothing was predicted."""

    tau: float
    reversed_share: float  # of the pairs of models

    @classmethod
    def from_scores(cls, predicted: Floats, truth: Floats) -> HalfOutcome:
        """Compare a prediction with the truth."""
        reversed_count, pairs = count_reversed_pairs(predicted, truth)
        reversed_share = reversed_count / pairs if pairs else math.nan
        return cls(float(kendall_by_row(predicted, truth)), reversed_share)


def _summarize_trial(
    predictor: str, outcomes: Sequence[HalfOutcome], rival_outcomes: Sequence[HalfOutcome] | None
) -> Trial:
    """Summarize the outcomes of all halves, and half by half the gain over a rival."""
    taus = np.array([outcome.tau for outcome in outcomes])
    reversed_shares = np.array([outcome.reversed_share for outcome in outcomes])
    gain_interval = None
    win_interval = None
    if rival_outcomes is not None:
        gains = taus - np.array([outcome.tau for outcome in rival_outcomes])
        gains = gains[np.isfinite(gains)]
        gain_interval = summarize_repetitions(gains)
        if len(gains):
            win_interval = float(np.mean(gains > 0))
    return Trial(
        name=predictor,
        tau=summarize_repetitions(taus[np.isfinite(taus)]),
        reversed_share=float(nan_mean(reversed_shares)),
        gain=gain_interval,
        wins=win_interval,
    )
