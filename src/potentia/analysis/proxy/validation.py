"""The honest test of proxy tasks: chosen on half of the models, they predict the other half, beside perplexity.

Random halves are drawn many times, with a family on one side only where families are known. Where base models and their
chat versions are known, proxies chosen and scored on chat models, on base models, or chosen on chat and scored on base
models are compared (proxy-task paper, section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from potentia.analysis.proxy.forecast import Joined, by_perplexity, join_pairs, reversed_pairs
from potentia.analysis.proxy.proxies import choose_proxies, predict
from potentia.analysis.stats.bootstrap import Spread, spread_of, tau_rows, three
from potentia.analysis.stats.correlation import nan_mean
from potentia.errors import InputError
from potentia.values.findings import Bars, Chart, Finding, Table
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True)
class Trial:
    """One way to predict, over all splits: Kendall's tau with the truth, and the share of reversed pairs."""

    name: str
    tau: Spread  # over halves
    reversed_share: float
    gain: Spread | None  # tau less perplexity's, half by half
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
        rows = tuple(
            (t.name, *three(t.tau), t.reversed_share, *(three(t.gain) if t.gain else (None, None, None)), t.wins)
            for t in self.trials
        )
        columns = ("predict by", "mean tau", "2.5 % of halves", "97.5 %", "reversed", "mean gain over perplexity",
                   "2.5 % of halves ", "97.5 % ", "wins")  # fmt: skip
        title = f"Predicting {self.target} for the half of the {self.units} {self.unit} not used to choose proxies"
        note = (
            f"{self.verdict} {self.splits} random halves: between the percentiles lie 95 % of them, which is no "
            "confidence interval, as halves share models. reversed: share of pairs in the reverse of the true order."
        )
        return (Table(title, columns, rows, note=note),)

    def charts(self) -> Sequence[Chart]:
        """Return tau of each strategy and how often each task was chosen."""
        often = sorted(self.chosen.items(), key=lambda item: -item[1])
        names, taus = [t.name for t in self.trials], {"tau": [t.tau for t in self.trials]}
        caption = (
            "Kendall's tau between prediction and truth on models that had no part in choosing the proxies; "
            "the bars hold 95 % of the random halves."
        )
        return (
            Bars.of("proxy-validation", f"Predicting {self.target}", caption, names, taus, "Kendall's tau"),
            Bars(
                "proxy-chosen",
                "How often each task was chosen",
                "Share of the splits in which the task was a proxy.",
                labels=tuple(task for task, _ in often),
                series={"share": tuple(share for _, share in often)},
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
    wanted = [task for task in (candidates or scores.tasks) if task != target and task not in set(corpora)]
    joined, strategies = _views(scores, target, [*dict.fromkeys(wanted)], list(corpora), pairs)
    units = len(joined.models)
    if units < 8:
        raise InputError(
            f"{units} {'pairs' if pairs else 'models'} have all scores; halves of at least four are needed",
            hint="leave out tasks or corpora that few models were scored on",
        )
    truth = joined.truth
    rivals = {kind: by_perplexity(view, corpora) for kind, view in joined.views.items()}
    rng = np.random.default_rng(seed)
    known = groups or {}
    labels = [known.get(c, known.get(b, c)) for b, c in zip(joined.models, joined.chats, strict=True)]
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
            found = choose_proxies(joined.matrix(choose_on, wanted, first), target, **choice)
            view = joined.views[score_on]
            test = view.select(models=[view.models[i] for i in second])
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
) -> tuple[Joined, tuple[tuple[str, str, str], ...]]:
    """Return the models to judge, pairs joined, and the strategies as (name, chosen on, scored on)."""
    if not pairs:
        whole = scores.select(tasks=[target, *tasks, *corpora]).complete()
        truth = whole.select(tasks=[target]).oriented()[:, 0]
        return Joined(target, truth, {"base": whole}), (("proxy tasks", "base", "base"),)
    joined = join_pairs(scores, pairs, target, tasks, corpora)
    strategies: tuple[tuple[str, str, str], ...] = (("proxies chosen and scored on base models", "base", "base"),)
    if "chat" in joined.views:
        strategies += (
            ("proxies chosen and scored on chat models", "chat", "chat"),
            ("proxies chosen on chat, scored on base models", "chat", "base"),
        )
    return joined, strategies


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
        known = difference[np.isfinite(difference)]
        gain, wins = spread_of(known), float(np.mean(known > 0)) if len(known) else None
    return Trial(name, spread_of(own[np.isfinite(own)]), float(nan_mean(wrong[name])), gain, wins)
