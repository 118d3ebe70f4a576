"""Forecasts from proxy tasks: who will be good at the target, and the pairs that come out in the wrong order.

Early models, such as checkpoints, are ranked by the weighted mean of their proxy scores. Where their later scores on
the target are known, the pairs in the reverse of the true order are counted, beside those of a forecast from
perplexity (proxy-task paper, section 4.3).

A target such as tool use asks for a conversation, so base models have no score on it. They are joined with their chat
versions: the target as chat models do it, the candidates as either does (section 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from potentia.analysis.proxy.proxies import predict
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Plot, Points, Table
from potentia.values.metric import Metric
from potentia.values.scores import Floats, ScoreMatrix


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
        ranks = [_ranks(v) for v in (self.predicted, self.perplexity, self.truth)]
        order = np.argsort(np.where(np.isfinite(self.predicted), -self.predicted, np.inf), kind="stable")
        note = "Predicted: weighted mean of the proxy scores, which orders models; it is not a score of the target."
        if self.reversed_by_proxy is not None:
            note += f" Reverse-ordered pairs by proxies: {self.reversed_by_proxy} of {self.pairs}"
            if self.reversed_by_perplexity is not None:
                note += f"; by perplexity: {self.reversed_by_perplexity}"
            note += "."
        columns = ("model", "predicted", "rank", "rank by perplexity", "truth", "true rank")
        rows = tuple(
            (self.models[i], float(self.predicted[i]), ranks[0][i], ranks[1][i], float(self.truth[i]), ranks[2][i])
            for i in order
        )
        return (Table(f"Predicted standing on {self.target}", columns, rows, note=note),)

    def charts(self) -> Sequence[Chart]:
        """Return the prediction against the truth, where that is known."""
        known = np.isfinite(self.truth) & np.isfinite(self.predicted)
        if not known.any():
            return ()
        names = tuple(m for m, k in zip(self.models, known, strict=True) if k)
        points = Points("models", tuple(self.predicted[known].tolist()), tuple(self.truth[known].tolist()), names)
        return (
            Plot(
                "forecast",
                f"Predicted standing and true score on {self.target}",
                "Points that rise from left to right are in the predicted order.",
                points=(points,),
                x_label="weighted mean of proxy scores",
                y_label=self.target,
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
    truth: Mapping[str, float] | None = None,
    corpora: Sequence[str] = (),
) -> Forecast:
    """Rank early models by their proxy scores; ``truth`` are the later scores on the target, where known."""
    predicted = predict(weights, early)
    actual = np.array([(truth or {}).get(model, np.nan) for model in early.models], dtype=np.float64)
    perplexity = by_perplexity(early, corpora)
    known = bool(np.isfinite(actual).sum() > 1)
    wrong, pairs = reversed_pairs(predicted, actual)
    other = reversed_pairs(perplexity, actual)[0] if known and np.isfinite(perplexity).any() else None
    return Forecast(target, early.models, predicted, actual, perplexity, wrong if known else None, other, pairs)


def by_perplexity(scores: ScoreMatrix, corpora: Sequence[str]) -> Floats:
    """Mean over corpora of the oriented perplexity or bits per byte, so that higher is better; NaN without corpora."""
    if not corpora:
        return np.full(len(scores.models), np.nan)
    return np.asarray(scores.select(tasks=corpora).oriented().mean(axis=1))


def _ranks(values: Floats) -> list[float | None]:
    if not np.isfinite(values).any():
        return [None] * len(values)
    ranks = rankdata(-values, nan_policy="omit")
    return [float(r) if np.isfinite(r) else None for r in ranks]


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

    def matrix(self, on: str, tasks: Sequence[str], rows: Sequence[int] | None = None) -> ScoreMatrix:
        """Put the target beside the tasks as this kind of model scores them, for all pairs or some."""
        if on not in self.views:
            raise InputError("the chat models lack a score on some candidate", hint="choose on base models (--on base)")
        view = self.views[on]
        places = list(range(len(view.models))) if rows is None else list(rows)
        part = view.select(models=[view.models[i] for i in places], tasks=tasks)
        return ScoreMatrix.build(
            part.models,
            (self.target, *part.tasks),
            np.column_stack([self.truth[places], part.values]),
            metrics=(Metric(), *part.metrics),
            protocol=view.protocol,
        )


def join_pairs(
    scores: ScoreMatrix, pairs: Mapping[str, str], target: str, tasks: Sequence[str], corpora: Sequence[str] = ()
) -> Joined:
    """Keep the pairs whose base model has every task and corpus, and whose chat model has the target."""
    others = [*dict.fromkeys(t for t in (*tasks, *corpora) if t != target)]
    goal = scores.select(tasks=[target])
    known = {m: float(v) for m, v in zip(goal.models, goal.oriented()[:, 0], strict=True) if np.isfinite(v)}
    whole = set(scores.select(tasks=others).complete().models)
    kept = [(base, chat) for base, chat in pairs.items() if base in whole and chat in known]
    if len(kept) < 3:
        raise InputError(
            f"{len(kept)} pairs have the candidates on the base model and {target} on its chat version; it takes three",
            hint="leave out candidates that few base models were scored on, or name the pairs with --pair-file",
        )
    views = {"base": scores.select(models=[base for base, _ in kept], tasks=others)}
    if all(chat in whole for _, chat in kept):
        views["chat"] = scores.select(models=[chat for _, chat in kept], tasks=others)
    return Joined(target, np.array([known[chat] for _, chat in kept]), views)
