"""The honest test of proxy tasks: chosen on half of the models, they predict the other half, beside perplexity.

Random halves are drawn many times, with a family on one side only where families are known. Where base models and their
chat versions are known, proxies chosen and scored on chat models, on base models, or chosen on chat and scored on base
models are compared (proxy-task paper, section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.proxy.forecast import by_perplexity, reversed_pairs
from potentia.analysis.proxy.proxies import choose_proxies, predict
from potentia.analysis.proxy.relevance import Metric, Normalise
from potentia.analysis.stats.uncertainty import tau_rows, three
from potentia.errors import InputError
from potentia.findings import Bars, Chart, Finding, Interval, Table
from potentia.scores import Floats, ScoreMatrix


@dataclass(frozen=True)
class Trial:
    """One way to predict, over all splits: Kendall's tau with the truth, and the share of reversed pairs."""

    name: str
    tau: Interval
    reversed_share: float
    gain: Interval | None  # tau less perplexity's, split by split
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
        if first.gain is None:
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
        rows = tuple(
            (t.name, *three(t.tau), t.reversed_share, *(three(t.gain) if t.gain else (None, None, None)), t.wins)
            for t in self.trials
        )
        return (
            Table(
                f"Predicting {self.target} for the half of the {self.units} {self.unit} not used to choose proxies",
                (
                    "predict by",
                    "tau",
                    "tau low",
                    "tau high",
                    "reversed",
                    "gain over perplexity",
                    "gain low",
                    "gain high",
                    "wins",
                ),
                rows,
                note=f"{self.verdict} {self.splits} random halves; low and high hold 95 % of them. "
                "reversed: share of pairs in the reverse of the true order.",
            ),
        )

    def charts(self) -> Sequence[Chart]:
        """Return tau of each strategy and how often each task was chosen."""
        often = sorted(self.chosen.items(), key=lambda item: -item[1])
        return (
            Bars(
                "proxy-validation",
                f"Predicting {self.target}",
                "Kendall's tau between prediction and truth on models that had no part in choosing the proxies.",
                labels=tuple(t.name for t in self.trials),
                series={"tau": tuple(t.tau.value for t in self.trials)},
                low={"tau": tuple(t.tau.low for t in self.trials)},
                high={"tau": tuple(t.tau.high for t in self.trials)},
                y_label="Kendall's tau",
                horizontal=True,
            ),
            Bars(
                "proxy-chosen",
                "How often each task was chosen",
                "Share of the splits in which the task was a proxy.",
                labels=tuple(task for task, _ in often),
                series={"share": tuple(share for _, share in often)},
                horizontal=True,
            ),
        )


def validate(
    scores: ScoreMatrix,
    target: str,
    candidates: Sequence[str] | None = None,
    *,
    corpora: Sequence[str] = (),
    pairs: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    metric: Metric = "kendall",
    how: Normalise = "both",
    min_relevance: float = 0.0,
    top: int | None = None,
    splits: int = 200,
    seed: int = 0,
) -> Validation:
    """Choose proxies on half of the models, predict the target of the other half, and repeat over random halves.

    ``corpora`` are the tasks whose perplexity is the rival. With ``pairs`` (base → chat) the units are pairs: the
    target is the chat model's score and the strategies are proxies chosen and scored on chat models, on base models,
    or chosen on chat and scored on base models. ``groups`` (model → family) keeps a family on one side of the split.
    """
    wanted = [task for task in (candidates or scores.tasks) if task != target and task not in set(corpora)]
    chat, base, strategies = _views(scores, target, [*dict.fromkeys(wanted)], list(corpora), pairs)
    units = len(chat.models)
    if units < 8:
        raise InputError(
            f"{units} {'pairs' if pairs else 'models'} have all scores; halves of at least four are needed",
            hint="leave out tasks or corpora that few models were scored on",
        )
    truth = chat.select(tasks=[target]).oriented()[:, 0]
    rivals = {"chat": by_perplexity(chat, corpora), "base": by_perplexity(base, corpora)}
    rng = np.random.default_rng(seed)
    labels = [groups.get(model, model) for model in chat.models] if groups else list(chat.models)
    taus: dict[str, list[float]] = {}
    wrong: dict[str, list[float]] = {}
    counts: dict[str, int] = dict.fromkeys(wanted, 0)
    for _ in range(splits):
        first, second = _halves(labels, rng)
        if min(len(first), len(second)) < 4:
            raise InputError(
                f"a family holds {max(len(first), len(second))} of the {units} {'pairs' if pairs else 'models'}: "
                "no two halves without a common family are large enough",
                hint="split by model instead of by family",
            )
        for place, (name, choose_on, score_on) in enumerate(strategies):
            view = {"chat": chat, "base": base}
            train = _with_target(view[choose_on], chat, target, first, wanted)
            found = choose_proxies(train, target, metric=metric, how=how, min_relevance=min_relevance, top=top)
            test = view[score_on].select(models=[view[score_on].models[i] for i in second])
            _record(taus, wrong, name, predict(found.weights, test) if found.weights else None, truth[second])
            if place == 0:
                for task in found.weights:
                    counts[task] += 1
        if corpora:
            for kind in dict.fromkeys(s[2] for s in strategies):
                label = f"perplexity of {kind} models" if pairs else "perplexity"
                _record(taus, wrong, label, rivals[kind][second], truth[second])
    trials = tuple(_trial(name, taus, wrong, _rival(name, strategies, bool(pairs), bool(corpora))) for name in taus)
    shares = {task: count / splits for task, count in counts.items()}
    return Validation(target, splits, units, "pairs" if pairs else "models", trials, shares)


def _views(
    scores: ScoreMatrix, target: str, tasks: list[str], corpora: list[str], pairs: Mapping[str, str] | None
) -> tuple[ScoreMatrix, ScoreMatrix, tuple[tuple[str, str, str], ...]]:
    """Return aligned chat and base matrices, and the strategies as (name, chosen on, scored on)."""
    needed = scores.select(tasks=[target, *tasks, *corpora])
    if not pairs:
        whole = needed.complete()
        return whole, whole, (("proxy tasks", "chat", "chat"),)
    whole_set = set(needed.complete().models)
    kept = [(b, c) for b, c in pairs.items() if b in whole_set and c in whole_set]
    base, chat = needed.select(models=[b for b, _ in kept]), needed.select(models=[c for _, c in kept])
    return (
        chat,
        base,
        (
            ("proxies chosen and scored on base models", "base", "base"),
            ("proxies chosen and scored on chat models", "chat", "chat"),
            ("proxies chosen on chat, scored on base models", "chat", "base"),
        ),
    )


def _with_target(
    view: ScoreMatrix, chat: ScoreMatrix, target: str, rows: Sequence[int], tasks: Sequence[str]
) -> ScoreMatrix:
    """Put the candidates as this kind of model scores them beside the target as the chat model scores it."""
    candidates = view.select(models=[view.models[i] for i in rows], tasks=tasks)
    goal = chat.select(models=[chat.models[i] for i in rows], tasks=[target])
    return ScoreMatrix.build(
        candidates.models,
        (target, *candidates.tasks),
        np.column_stack([goal.values, candidates.values]),
        higher_is_better=(*goal.higher_is_better, *candidates.higher_is_better),
        protocol=view.protocol,
    )


def _halves(labels: Sequence[str], rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Split places into two halves that share no label: labels in random order go to the side that has less so far."""
    sides: tuple[list[int], list[int]] = ([], [])
    for label in rng.permutation(sorted(set(labels))):
        sizes = len(sides[0]), len(sides[1])
        side = int(rng.integers(2)) if sizes[0] == sizes[1] else int(sizes[0] > sizes[1])
        sides[side].extend(i for i, own in enumerate(labels) if own == label)
    return sorted(sides[0]), sorted(sides[1])


def _record(
    taus: dict[str, list[float]], wrong: dict[str, list[float]], name: str, predicted: Floats | None, truth: Floats
) -> None:
    tau, share = float("nan"), float("nan")
    if predicted is not None:
        count, pairs = reversed_pairs(predicted, truth)
        tau, share = float(tau_rows(predicted, truth)), count / max(pairs, 1)
    taus.setdefault(name, []).append(tau)
    wrong.setdefault(name, []).append(share)


def _rival(name: str, strategies: Sequence[tuple[str, str, str]], paired: bool, corpora: bool) -> str | None:
    kinds = {strategy: scored for strategy, _, scored in strategies}
    if name not in kinds or not corpora:
        return None
    return f"perplexity of {kinds[name]} models" if paired else "perplexity"


def _trial(name: str, taus: Mapping[str, list[float]], wrong: Mapping[str, list[float]], rival: str | None) -> Trial:
    own = np.array(taus[name])
    gain = wins = None
    if rival is not None:
        difference = own - np.array(taus[rival])
        gain, wins = _held(difference), float(np.mean(difference[np.isfinite(difference)] > 0))
    return Trial(name, _held(own), float(np.nanmean(wrong[name])), gain, wins)


def _held(values: Floats) -> Interval:
    known = values[np.isfinite(values)]
    if not len(known):
        return Interval(float("nan"), float("nan"), float("nan"))
    low, high = np.percentile(known, [2.5, 97.5])
    return Interval(float(known.mean()), float(low), float(high))
