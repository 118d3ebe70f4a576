"""Racing candidates on one task: who stays in, who is best and how sure that is, and what would make it surer.

Rounds are decided on validation: everyone who may still be the best stays (P ≥ 5 %, shared out over the rounds, from
values and standard errors), and the better half in any case, so that a lucky draw drops nobody. The end is told by the
test documents that the finalists share, weights drawn over them (the Bayesian bootstrap), together with the validation
documents, both shrunk for the luck of the first; paired differences say who cannot be told from the winner. Learning
rates race by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.values.findings import Bars, Cell, Chart, Finding, Table
from potentia.values.scores import Floats

MAYBE = 0.05  # a candidate at least so likely to be the best stays in the race
# Tuned models of like size differ by so much on a benchmark: the standard deviation of published scores between models
# within a factor of two in parameters, median over 24 tasks.
SPREAD = 0.044
DRAWS = 4_000
Z = 1.959964


@dataclass(frozen=True)
class Standing:
    """One candidate at the end: scores with standard errors, its chance to be best, where it went out."""

    model: str
    direct: float
    direct_stderr: float
    tuned: float  # test score after tuning; NaN for those that went out before
    tuned_stderr: float
    validation: float
    p_best: float
    tied: bool  # cannot be told from the winner
    out: int | None = None  # the round it went out in
    problem: str = ""


@dataclass(frozen=True)
class Choice(Finding):
    """The answer: the best model for this data, how sure that is, and what it would take to be surer."""

    task: str
    metric: str
    best: str
    p_best: float
    tie: tuple[str, ...]  # the models that cannot be told apart at the top; one name where there is no tie
    documents: int  # shared test documents behind the answer
    needed: float  # documents that would separate the first two; inf where they score alike
    seconds: float  # spent in all
    more_seconds: float  # what scoring so many documents would take; NaN where unknown
    train: int  # documents that the finalists were tuned on
    standings: tuple[Standing, ...]
    notes: tuple[str, ...] = ()

    def answer(self) -> str:
        """Return the answer in a sentence or two."""
        if len(self.tie) > 1:
            names = ", ".join(self.tie[:-1]) + f" and {self.tie[-1]}"
            tested = f"{self.documents} test document{'s' if self.documents != 1 else ''}"
            chance = f"({self.best} is best with probability {self.p_best:.2f})"
            first = f"A tie: {names} cannot be told apart on {tested} {chance}."
        elif all(s.problem for s in self.standings if s.model != self.best):
            first = f"{self.best} is the only one of {len(self.standings)} that could be tuned: nothing was compared."
        else:
            first = f"{self.best} is the best of {len(self.standings)}, with probability {self.p_best:.2f}."
        return f"{first} {self.surer()}".strip()

    def surer(self) -> str:
        """Say what it would take to be surer."""
        if len(self.tie) < 2:
            return ""
        if not math.isfinite(self.needed) or self.needed > 200 * max(self.documents, 1):
            return "They score alike: take the cheaper one; more documents would not tell soon."
        time = "" if not math.isfinite(self.more_seconds) else f", about {self.more_seconds:.0f} s of scoring"
        return f"To tell the first two apart takes about {self.needed:,.0f} test documents{time}."

    def tables(self) -> Sequence[Table]:
        """Return the candidates, best first."""
        rows: list[tuple[Cell, ...]] = []
        for s in self.standings:
            state = s.problem or ("best" if s.model == self.best else "tied" if s.tied else "")
            state = f"out in round {s.out}" if s.out is not None else state
            rows.append(
                (
                    s.model,
                    _span(s.direct, s.direct_stderr),
                    _span(s.tuned, s.tuned_stderr),
                    s.validation,
                    s.p_best,
                    state,
                )
            )
        note = self.answer() + "".join(f" {note}" for note in self.notes)
        columns = ("model", "direct", "tuned", "validation", "P(best)", "")
        return [Table(f"{self.task} ({self.metric}), tuned on {self.train} documents", columns, tuple(rows), note=note)]

    def charts(self) -> Sequence[Chart]:
        """Return the chances."""
        return [
            Bars(
                name="select-best",
                title="Probability to be the best model",
                caption=self.answer(),
                labels=tuple(s.model for s in self.standings),
                series={"P(best)": tuple(s.p_best for s in self.standings)},
                y_label="P(best)",
                horizontal=True,
            )
        ]


def stay_in(
    values: Mapping[str, float],
    stderr: Mapping[str, float],
    *,
    higher_is_better: bool,
    looks: int = 1,
    seed: int = 0,
) -> tuple[list[str], dict[str, float]]:
    """Return who stays in the race, best first, and every candidate's chance to be the best; ``looks`` in all."""
    sign = 1.0 if higher_is_better else -1.0
    worth = {n: sign * v if math.isfinite(v) else -math.inf for n, v in values.items()}
    chance = may_win(values, stderr, higher_is_better=higher_is_better, seed=seed)
    order = sorted(values, key=lambda n: (-worth[n], n))
    half = math.ceil(len(order) / 2)
    staying = [n for k, n in enumerate(order) if math.isfinite(worth[n]) and (k < half or chance[n] >= MAYBE / looks)]
    return staying, chance


def may_win(
    values: Mapping[str, float], stderr: Mapping[str, float], *, higher_is_better: bool, seed: int = 0
) -> dict[str, float]:
    """Return every candidate's chance to be the best, from values with standard errors; without a value it has none."""
    names = list(values)
    x = np.array([values[n] for n in names]) * (1.0 if higher_is_better else -1.0)
    error = np.nan_to_num(np.array([stderr[n] for n in names]), nan=0.0)
    known = np.isfinite(x)
    if not known.any():
        return dict.fromkeys(names, 1.0 / len(names))
    drawn = x[known] + error[known] * np.random.default_rng(seed).standard_normal((DRAWS, int(known.sum())))
    chance = np.zeros(len(names))
    chance[known] = shares(shrunk(drawn, _spread(x[known])))
    return dict(zip(names, chance.tolist(), strict=True))


def chances(
    outcomes: Mapping[str, Mapping[int, float]],
    *,
    higher_is_better: bool,
    validated: Mapping[str, tuple[float, float]] | None = None,
    documents: int = 0,
    seed: int = 0,
) -> dict[str, float]:
    """P(best) of every candidate from the documents that all of them have, by the Bayesian bootstrap.

    ``validated`` are values and standard errors of the same states on so many other ``documents``. They were chosen by
    them, each from equally many, so they flatter all alike and count for what they are: as many documents more.
    """
    names = list(outcomes)
    table = paired(outcomes)  # (models, documents)
    if table.shape[1] == 0 or len(names) == 1:
        return dict.fromkeys(names, 1.0 / len(names))
    rng = np.random.default_rng(seed)
    # One document more for each that it alone gets right: who was never beaten on few documents may yet be.
    low, high = float(table.min()), float(table.max())
    more = np.hstack([table, low + (high - low) * np.eye(len(names))])
    drawn = np.concatenate(
        [rng.dirichlet(np.ones(more.shape[1]), size=500) @ more.T for _ in range(DRAWS // 500)]
    )  # (draws, models)
    told = [validated[n] for n in names if n in validated] if validated else []
    if documents and len(told) == len(names) and np.isfinite(told).all():
        value, error = np.array(told).T
        also = value + error * rng.standard_normal((len(drawn), len(names)))
        drawn = (table.shape[1] * drawn + documents * also) / (table.shape[1] + documents)
    drawn = shrunk(drawn, _spread(table))
    return dict(zip(names, shares(drawn if higher_is_better else -drawn).tolist(), strict=True))


def shrunk(drawn: Floats, spread: float | None = None) -> Floats:
    """Draw the candidates together as far as their differences may be noise (empirical Bayes).

    The first of several is partly first by luck. True differences are taken to be as large as what is seen beyond the
    noise, and, with the weight of three candidates, as the noise itself, or as the ``spread`` that is usual where that
    is less.
    """
    centred = drawn - drawn.mean(axis=1, keepdims=True)
    mean = centred.mean(axis=0)
    noise = float(((centred - mean) ** 2).mean())
    if noise < 1e-18 or drawn.shape[1] < 2:
        return drawn
    freedom = drawn.shape[1] - 1
    beyond = max(float((mean**2).sum()) / freedom - noise * drawn.shape[1] / freedom, 0.0)
    usual = noise if spread is None else min(noise, spread**2)
    true = (freedom * beyond + 3.0 * usual) / (freedom + 3.0)
    share = true / (true + noise)
    return np.asarray(share * mean + np.sqrt(share) * (centred - mean))


def _spread(values: Floats) -> float | None:
    """The usual spread where scores are shares; None for other metrics."""
    size = np.abs(values)
    return SPREAD if bool((size <= 1.0).all()) else None


def shares(drawn: Floats) -> Floats:
    """How often each column is the largest; equals share."""
    best = drawn >= drawn.max(axis=1, keepdims=True) - 1e-12
    return np.asarray((best / best.sum(axis=1, keepdims=True)).mean(axis=0))


def paired(outcomes: Mapping[str, Mapping[int, float]]) -> Floats:
    """Values of the documents that every candidate has: (models, documents)."""
    names = list(outcomes)
    common = sorted(set.intersection(*(set(outcomes[n]) for n in names))) if names else []
    return np.array([[outcomes[n][d] for d in common] for n in names], dtype=np.float64).reshape(len(names), -1)


def apart(first: Mapping[int, float], second: Mapping[int, float]) -> tuple[float, float, int]:
    """Difference of two candidates on shared documents, its standard error, and how many documents."""
    both = paired({"first": first, "second": second})
    n = both.shape[1]
    if n < 2:
        return 0.0, math.inf, n
    gap = both[0] - both[1]
    # One document more of each kind: without any difference seen, the error is still not zero.
    spread = math.sqrt((float(((gap - gap.mean()) ** 2).sum()) + 1.0) / n)
    return float(gap.mean()), spread / math.sqrt(n), n


def documents_needed(gap: float, stderr: float, documents: int) -> float:
    """Documents at which a difference of this size would exceed its noise."""
    if gap == 0.0 or not math.isfinite(stderr):
        return math.inf
    return documents * (Z * stderr / abs(gap)) ** 2


def _span(value: float, stderr: float) -> str | None:
    if not math.isfinite(value):
        return None
    return f"{value:.3f}" + (f" ± {Z * stderr:.3f}" if math.isfinite(stderr) else "")
