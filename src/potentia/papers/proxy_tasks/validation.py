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
        scores = self.predicted, self.perplexity, self.truth
        by_proxy, by_perplexity, true = (rankdata(-values, nan_policy="omit") for values in scores)
        order = np.argsort(
            np.where(np.isfinite(self.predicted), -self.predicted, np.inf), kind="stable"
        )
        note = "Predicted: weighted mean of the proxy scores, which orders models; it is not a score of the target."
        if self.reversed_by_proxy is not None:
            note += f" Reverse-ordered pairs by proxies: {self.reversed_by_proxy} of {self.pairs}"
            if self.reversed_by_perplexity is not None:
                note += f"; by perplexity: {self.reversed_by_perplexity}"
            note += "."
        columns = ("model", "predicted", "rank", "rank by perplexity", "truth", "true rank")
        rows = list(
            zip(self.models, self.predicted, by_proxy, by_perplexity, self.truth, true, strict=True)
        )
        return (
            Table(
                f"Predicted standing on {self.target}", columns, select_positions(rows, order), note
            ),
        )

    def charts(self) -> Sequence[Chart]:
        """Return the prediction against the truth, where that is known."""
        known = np.isfinite(self.truth) & np.isfinite(self.predicted)
        if not known.any():
            return ()
        names = tuple(compress(self.models, known))
        points = Points("models", self.predicted[known], self.truth[known], names)
        title = f"Predicted standing and true score on {self.target}"
        caption = "Points that rise from left to right are in the predicted order."
        return (
            Plot(
                "forecast",
                title,
                caption,
                (points,),
                (),
                "weighted mean of proxy scores",
                self.target,
            ),
        )


def reversed_pairs(predicted: Floats, truth: Floats) -> tuple[int, int]:
    """Count the pairs in the reverse of the true order, and all pairs that both sides know; a tie is no reversal."""
    known = np.isfinite(predicted) & np.isfinite(truth)
    p, t = predicted[known], truth[known]
    i, j = np.triu_indices(len(p), 1)
    return int(((p[i] - p[j]) * (t[i] - t[j]) < 0).sum()), len(i)


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
    actual = np.array([truth.get(model, np.nan) for model in early.models], dtype=np.float64)
    perplexity = by_perplexity(early, corpora)
    known = bool(np.isfinite(actual).sum() > 1)
    wrong, pairs = reversed_pairs(predicted, actual)
    other = (
        reversed_pairs(perplexity, actual)[0] if known and np.isfinite(perplexity).any() else None
    )
    return Forecast(
        target, early.models, predicted, actual, perplexity, wrong if known else None, other, pairs
    )


def by_perplexity(scores: ScoreMatrix, corpora: Sequence[str]) -> Floats:
    """Mean over corpora of the oriented perplexity or bits per byte, so that higher is better; NaN without corpora."""
    if not corpora:
        return np.full(len(scores.models), np.nan)
    return np.asarray(scores.select(tasks=corpora).oriented().mean(axis=1))


# --- base models and their chat versions -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Joined:
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

    def view(self, on: str, rows: Sequence[int], tasks: Sequence[str] | None = None) -> ScoreMatrix:
        """Return the scores of some pairs as this kind of model has them."""
        if on not in self.views:
            raise InputError(
                "the chat models lack a score on some candidate",
                hint="choose on base models (--on base)",
            )
        view = self.views[on]
        return view.select(models=np.array(rows, dtype=int), tasks=tasks)

    def matrix(
        self, on: str, tasks: Sequence[str], rows: Sequence[int] | None = None
    ) -> ScoreMatrix:
        """Put the target beside the tasks as this kind of model scores them, for all pairs or some."""
        places = list(range(len(self.truth)) if rows is None else rows)
        part = self.view(on, places, tasks)
        values = np.column_stack([self.truth[places], part.values])
        names, metrics = (self.target, *part.tasks), (Metric(), *part.metrics)
        return ScoreMatrix.build(
            part.models, names, values, metrics=metrics, protocol=part.protocol
        )


def join_pairs(
    scores: ScoreMatrix,
    pairs: Mapping[str, str],
    target: str,
    tasks: Sequence[str],
    corpora: Sequence[str] = (),
) -> Joined:
    """Keep the pairs whose base model has every task and corpus, and whose chat model has the target."""
    others = [*dict.fromkeys(t for t in (*tasks, *corpora) if t != target)]
    goal = scores.select(tasks=[target])
    known = {
        m: float(v)
        for m, v in zip(goal.models, goal.oriented()[:, 0], strict=True)
        if np.isfinite(v)
    }
    whole = set(scores.select(tasks=others).complete().models)
    kept = [(base, chat) for base, chat in pairs.items() if base in whole and chat in known]
    if len(kept) < 3:
        few = f"{len(kept)} pairs have the candidates on the base model and {target} on its chat version"
        hint = "leave out candidates that few base models were scored on, or name the pairs with --pair-file"
        raise InputError(f"{few}; it takes three", hint=hint)
    views = {"base": scores.select(models=[base for base, _ in kept], tasks=others)}
    if all(chat in whole for _, chat in kept):
        views["chat"] = scores.select(models=[chat for _, chat in kept], tasks=others)
    return Joined(target, np.array([known[chat] for _, chat in kept]), views)


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
        none = RepetitionSpread(math.nan, math.nan, math.nan)
        rows = [(t.name, t.tau, t.reversed_share, t.gain or none, t.wins) for t in self.trials]
        columns = (
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
            f"{self.verdict} {self.splits} random halves: between the percentiles lie 95 % of them, which is no "
            "confidence interval, as halves share models. reversed: share of pairs in the reverse of the true order."
        )
        return (Table(title, columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return tau of each strategy and how often each task was chosen."""
        often = dict(sorted(self.chosen.items(), key=lambda item: -item[1]))
        names, taus = [t.name for t in self.trials], {"tau": [t.tau for t in self.trials]}
        caption = (
            "Kendall's tau between prediction and truth on models that had no part in choosing the proxies; "
            "the bars hold 95 % of the random halves."
        )
        title, why = (
            "How often each task was chosen",
            "Share of the splits in which the task was a proxy.",
        )
        return (
            Bars(
                "proxy-validation",
                f"Predicting {self.target}",
                caption,
                names,
                taus,
                y_label="Kendall's tau",
            ),
            Bars("proxy-chosen", title, why, often, {"share": often.values()}),
        )


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
    wanted = list(
        dict.fromkeys(t for t in (candidates or scores.tasks) if t != target and t not in corpora)
    )
    joined, strategies = _views(scores, target, wanted, list(corpora), pairs)
    units, unit = len(joined.models), "pairs" if pairs else "models"
    if units < LEAST_MODELS:
        few = f"{units} {unit} have all scores; halves of at least four are needed"
        raise TooFewError(few, hint="leave out tasks or corpora that few models were scored on")
    rival = "perplexity of {} models" if pairs else "perplexity"
    against = {name: rival.format(on) for name, _, on in strategies} if corpora else {}
    perplexity = {
        rival.format(on): by_perplexity(joined.views[on], corpora)
        for _, _, on in strategies
        if corpora
    }
    labels = [
        groups.get(c, groups.get(b, c)) for b, c in zip(joined.models, joined.chats, strict=True)
    ]
    chosen = list(dict.fromkeys(on for _, on, _ in strategies))
    rng = np.random.default_rng(seed)
    outcomes: dict[
        str, list[tuple[float, float]]
    ] = {}  # tau and share of reversed pairs, half by half
    counts: Counter[str] = Counter()
    for _ in range(splits):
        first, second = _halves(labels, rng, unit)
        weights = {
            on: choose_proxies(joined.matrix(on, wanted, first), target, **choice).weights
            for on in chosen
        }
        counts.update(list(weights[chosen[0]]))
        predicted = {
            name: _predict(weights[on], joined.view(to, second)) for name, on, to in strategies
        }
        predicted |= {name: values[second] for name, values in perplexity.items()}
        for name, values in predicted.items():
            outcomes.setdefault(name, []).append(_outcome(values, joined.truth[second]))
    trials = tuple(_trial(name, outcomes, against.get(name)) for name in outcomes)
    return Validation(
        target, splits, units, unit, trials, {task: counts[task] / splits for task in wanted}
    )


def _views(
    scores: ScoreMatrix,
    target: str,
    tasks: list[str],
    corpora: list[str],
    pairs: Mapping[str, str] | None,
) -> tuple[Joined, tuple[tuple[str, str, str], ...]]:
    """Return the models to judge, pairs joined, and the strategies as (name, chosen on, scored on)."""
    if not pairs:
        whole = scores.select(tasks=[target, *tasks, *corpora]).complete()
        truth = whole.select(tasks=[target]).oriented()[:, 0]
        return Joined(target, truth, {"base": whole}), (("proxy tasks", "base", "base"),)
    joined = join_pairs(scores, pairs, target, tasks, corpora)
    strategies: tuple[tuple[str, str, str], ...] = (
        ("proxies chosen and scored on base models", "base", "base"),
    )
    if "chat" in joined.views:
        strategies += (
            ("proxies chosen and scored on chat models", "chat", "chat"),
            ("proxies chosen on chat, scored on base models", "chat", "base"),
        )
    return joined, strategies


def _halves(
    labels: Sequence[str], rng: np.random.Generator, unit: str = "models"
) -> tuple[list[int], list[int]]:
    """Split places into two halves that share no label: labels in random order go to the side that has less so far."""
    sides: tuple[list[int], list[int]] = ([], [])
    for label in rng.permutation(sorted(set(labels))):
        sizes = len(sides[0]), len(sides[1])
        side = int(rng.integers(2)) if sizes[0] == sizes[1] else int(sizes[0] > sizes[1])
        sides[side].extend(i for i, own in enumerate(labels) if own == label)
    if min(map(len, sides)) < LEAST_MODELS // 2:
        large = f"a family holds {max(map(len, sides))} of the {len(labels)} {unit}"
        message = f"{large}: no two halves without a common family are large enough"
        raise InputError(message, hint="split by model instead of by family")
    return sorted(sides[0]), sorted(sides[1])


def _predict(weights: Mapping[str, float], scores: ScoreMatrix) -> Floats:
    return predict(weights, scores) if weights else np.full(len(scores.models), np.nan)


def _outcome(predicted: Floats, truth: Floats) -> tuple[float, float]:
    """Return tau and the share of reversed pairs; NaN where nothing was predicted."""
    count, pairs = reversed_pairs(predicted, truth)
    return float(kendall_by_row(predicted, truth)), count / pairs if pairs else math.nan


def _trial(
    name: str, outcomes: Mapping[str, list[tuple[float, float]]], rival: str | None
) -> Trial:
    own, wrong = np.array(outcomes[name]).T
    gain = wins = None
    if rival is not None:
        difference = own - np.array(outcomes[rival])[:, 0]
        known = difference[np.isfinite(difference)]
        gain, wins = summarize_repetitions(known), float(np.mean(known > 0)) if len(known) else None
    return Trial(
        name, summarize_repetitions(own[np.isfinite(own)]), float(nan_mean(wrong)), gain, wins
    )
