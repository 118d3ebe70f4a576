"""Is a benchmark worth keeping? One page of measures, and a verdict: keep, fix or drop, with the reason.

A benchmark of pure noise is dropped: its scores differ no more than chance makes them (a repeated-measures F test on
the items, else a χ² test on the standard errors), and its ranking agrees with no other (permutation tests of Kendall's
τ with the mean of the others and with the nearest). Each test is at 2 %: noise escapes ``drop`` in at most 4 of 100
cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from itertools import compress, pairwise
from typing import Literal

import numpy as np
from scipy.stats import chi2, f, false_discovery_control, t

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.stats.bootstrap import kendall_by_row
from potentia.analysis.stats.significance import align_outcomes
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.facts import known_chance
from potentia.values.findings import Bars, Cell, Chart, Finding, Interval, Table, picked
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

LEVEL = 0.02  # of each of the two tests behind a verdict
RESAMPLES = 2_000
RESOLUTION = 0.02  # a difference that a benchmark should find, four times in five
POWER = (1.96 + 0.8416) ** 2
FEWEST = 4  # models
CEILING = 0.97
SUSPECT = 0.05  # share of suspect items from which they are to be mended first
FALSE = 0.1  # share of items listed as negative that may be fine
LISTED = 20  # suspect items of a table
MOST_CELLS = 600  # of a study whose benchmarks are all judged; time goes by the square of both

Verdict = Literal["keep", "fix", "drop"]


@dataclass(frozen=True)
class Suspect:
    """An item to look at, and why."""

    document: int
    reason: str
    right: float  # share of models that got it right
    discrimination: float  # correlation over models with the rest of the test


@dataclass(frozen=True)
class BenchmarkVerdict(Finding):
    """What a benchmark is worth among others. NaN and None stand for what the evidence does not tell."""

    task: str
    protocol: str
    verdict: Verdict
    reasons: tuple[str, ...]
    models: int
    documents: int
    others: tuple[str, ...]
    taus: tuple[float, ...]  # with each of the others
    agreement: Interval  # their mean, over models drawn anew
    agreement_p: float  # that it agrees no more than a shuffled ranking
    differences_p: float  # that models differ no more than by chance
    reliability: float  # of the ranking: Cronbach's α of the items, or from the standard errors
    by_items: bool
    needed: float  # documents to find a difference of RESOLUTION
    resolved: float  # share of model pairs that differ significantly
    chance: float
    at_floor: float  # share of models within two standard errors of a guess
    best: float
    median: float
    gain: Interval | None  # by tuning, over models
    direct_tuned: float  # τ of the rankings before and after tuning
    suspects: tuple[Suspect, ...]
    in_train: (
        int | None
    )  # test documents that are in the training split, where the data was at hand

    def tables(self) -> Sequence[Table]:
        """Return the page: the verdict with its reasons, the measures, agreement by task, suspect items."""
        measures: dict[str, Interval | float | None] = {
            "agreement with the others (mean τ)": self.agreement,
            "gain by tuning": self.gain,
            "P of such agreement by chance": self.agreement_p,
            "P that models differ by chance alone": self.differences_p,
            "reliability of the ranking": self.reliability,
            f"documents to find a difference of {RESOLUTION:g}": self.needed,
            "documents it has": float(self.documents) if self.documents else None,
            "share of model pairs that differ": self.resolved,
            "score of a guess": self.chance,
            "share of models at the level of a guess": self.at_floor,
            "best score": self.best,
            "median score": self.median,
            "τ of direct and tuned ranking": self.direct_tuned,
            "share of suspect items": len(self.suspects) / self.documents
            if self.by_items
            else None,
            "test documents that are in train": self.in_train,
        }
        rows = [
            (name, *((v,) if isinstance(v, Interval) else (_short(v), None, None)))
            for name, v in measures.items()
        ]
        near = sorted(zip(self.others, self.taus, strict=True), key=lambda pair: -pair[1])
        note = "Intervals are of 95 %, over models drawn anew."
        note += (
            ""
            if self.by_items
            else " Without items: reliability from standard errors, no suspect items."
        )
        title, columns = (
            f"{self.task} ({self.protocol}, {self.models} models)",
            ("measure", "value", "low", "high"),
        )
        tables = [
            Table(f"{self.task}: {self.verdict}", ("", "reason"), enumerate(self.reasons, start=1)),
            Table(title, columns, rows, note),
            Table(f"Agreement of {self.task} with each other task", ("task", "τ"), near),
        ]
        if self.suspects:
            listed = map(astuple, self.suspects[:LISTED])
            more = len(self.suspects) - LISTED
            columns = ("document", "reason", "share right", "discrimination")
            rest = f"… and {more} more." if more > 0 else ""
            tables.append(Table(f"Items of {self.task} to look at", columns, listed, rest))
        return tables

    def charts(self) -> Sequence[Chart]:
        """Return the agreement with each other task."""
        if not self.others:
            return []
        order = np.argsort(self.taus)[::-1]
        labels, taus = picked(self.others, order), picked(self.taus, order)
        title, caption = (
            f"Agreement of {self.task} with the others",
            "Kendall's τ of the rankings of models.",
        )
        return [Bars(f"benchmark-{self.task}", title, caption, labels, {"τ": taus}, y_label="τ")]

    def headline(self) -> str:
        """Say the verdict in one sentence."""
        return f"{self.verdict.capitalize()} {self.task}: {self.reasons[0]}"


def _short(value: float | None) -> Cell:
    return (
        int(value) if isinstance(value, float) and value >= 2 and value == round(value) else value
    )


def find_benchmark(
    evidence: Evidence, task: str, *, protocol: str | None = None, in_train: int | None = None
) -> BenchmarkVerdict:
    """Judge one benchmark of the evidence among the others, under the protocol that ranks (or the one given)."""
    chosen = Protocol(protocol or evidence.main or "")
    if chosen not in evidence.planned:
        known = ", ".join(evidence.planned)
        raise InputError(
            f"no protocol {str(chosen)!r} in {evidence.source}", hint=f"there are: {known}"
        )
    matrix = evidence.planned[chosen].benchmarks()
    if task not in matrix.tasks:
        raise InputError(
            f"no scores of {task} in {evidence.source}",
            hint=f"there are: {', '.join(matrix.tasks[:12])}",
        )
    direct = next((m for p, m in evidence.planned.items() if not p.tuned and task in m.tasks), None)
    items = evidence.outcomes.get(chosen, {}).get(task, {})
    guess = known_chance(task, matrix.metrics[matrix.tasks.index(task)], evidence.background.chance)
    before = direct if chosen.tuned else None
    return judge(matrix, task, items=items, direct=before, chance=guess, in_train=in_train)


def find_benchmarks(evidence: Evidence) -> tuple[BenchmarkVerdict, ...]:
    """Judge every benchmark under the protocol that ranks; none where there are few models, or too many to compare."""
    if evidence.main is None:
        return ()
    matrix = evidence.planned[evidence.main].benchmarks()
    models, tasks = matrix.shape
    if models < FEWEST or tasks < 2 or models * tasks > MOST_CELLS:
        return ()
    found = []
    for task in matrix.tasks:
        with suppress(InputError):  # too few models have it
            found.append(find_benchmark(evidence, task))
    return tuple(found)


def benchmark_table(verdicts: Sequence[BenchmarkVerdict]) -> Table:
    """Return one row per benchmark: the verdict, the first reason, and the measures behind it."""
    worst_first = sorted(verdicts, key=lambda b: ("drop", "fix", "keep").index(b.verdict))
    rows = [
        (b.task, b.verdict, b.reasons[0], b.agreement.value, b.reliability, b.resolved)
        for b in worst_first
    ]
    columns = ("benchmark", "verdict", "reason", "mean τ", "reliability", "pairs that differ")
    return Table(
        "Every benchmark", columns, rows, note="One by one: potentia analyze benchmark NAME."
    )


def judge(
    matrix: ScoreMatrix,
    task: str,
    *,
    items: Mapping[str, Mapping[int, float]] | None = None,
    direct: ScoreMatrix | None = None,
    chance: float | None = None,
    in_train: int | None = None,
    seed: int = 0,
) -> BenchmarkVerdict:
    """Judge one column of a matrix among the others; ``items`` are outcomes by model and document."""
    column = matrix.tasks.index(task)
    known = np.isfinite(matrix.values)
    rows = list(compress(matrix.models, known[:, column]))
    if len(rows) < FEWEST:
        raise InputError(
            f"{task} has scores of {len(rows)} models", hint=f"a verdict needs {FEWEST} at least"
        )
    shared = known[known[:, column]].sum(axis=0)
    others = [t for k, t in enumerate(matrix.tasks) if k != column and shared[k] >= FEWEST]
    matrix = matrix.select(models=rows)
    rng = np.random.default_rng(seed)
    values, errors = matrix.oriented()[:, column], matrix.stderr[:, column]
    aligned = align_outcomes(rows, items or {})
    answers = aligned.values
    answers = (
        answers if len(answers) == len(rows) else np.zeros((len(rows), 0))
    )  # of all models, or of none
    fine = np.flatnonzero(np.isfinite(answers).all(axis=0))
    documents, answers = picked(aligned.documents, fine), answers[:, fine]
    by_items = answers.shape[1] >= 2
    rest = matrix.select(tasks=others).oriented()
    agreement, agreement_p, taus = _agreement(values, rest, rng)
    differences_p, reliability = _by_items(answers) if by_items else _by_errors(values, errors)
    gain, moved = _gain(matrix, direct, task, rng)
    guess = math.nan if chance is None else chance
    scores, sizes, up = (
        matrix.values[:, column],
        matrix.n[:, column],
        matrix.higher_is_better[column],
    )
    found = BenchmarkVerdict(
        task=task,
        protocol=str(matrix.protocol),
        verdict="keep",
        reasons=(),
        models=len(rows),
        documents=int(np.nanmax(sizes)) if np.isfinite(sizes).any() else len(documents),
        others=tuple(others),
        taus=taus,
        agreement=agreement,
        agreement_p=agreement_p,
        differences_p=differences_p,
        reliability=reliability,
        by_items=by_items,
        needed=_needed(answers) if by_items else math.nan,
        resolved=_resolved(answers, values, errors),
        chance=guess,
        at_floor=float(np.mean(scores <= guess + 2 * errors))
        if up and np.isfinite(errors).all()
        else math.nan,
        best=float(scores.max() if up else scores.min()),
        median=float(np.median(scores)),
        gain=gain,
        direct_tuned=moved,
        suspects=_suspects(documents, answers, tuned=direct is not None) if by_items else (),
        in_train=in_train,
    )
    verdict, reasons = _decide(found, up)
    return replace(found, verdict=verdict, reasons=reasons)


def _decide(b: BenchmarkVerdict, up: bool) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict and its reasons, those to drop it first."""
    verdict, reason = _by_tests(b)
    found: dict[Verdict, list[str]] = {"drop": [], "fix": [], "keep": []}
    found[verdict].append(reason)
    if b.at_floor > 0.5 and math.isfinite(b.chance):
        floor = f"{b.at_floor:.0%} of the models are at the level of a guess ({b.chance:.2f})"
        found["fix"].append(f"{floor}: it is too hard for them.")
    if up and b.best <= 1.0 and b.median >= CEILING:
        found["drop"].append(
            f"half of the models score {b.median:.2f} or more: there is nothing left to tell apart."
        )
    negative = sum("negative" in s.reason for s in b.suspects)
    if negative > SUSPECT * b.documents:
        wrong = f"{negative} of {b.documents} items are answered better by worse models"
        found["fix"].append(f"{wrong}: check their answers.")
    if b.in_train:
        found["fix"].append(f"{b.in_train} test documents are also in the training split.")
    worst: Verdict = next(verdict for verdict, reasons in found.items() if reasons)
    return worst, (*found["drop"], *found["fix"]) if worst != "keep" else _kept(b)


def _by_tests(b: BenchmarkVerdict) -> tuple[Verdict, str]:
    """Return what the test of differences and the test of agreement say together."""
    if not math.isfinite(b.differences_p):
        return (
            "fix",
            "there are neither items nor standard errors: whether its differences are real cannot be told.",
        )
    differs, agrees = b.differences_p < LEVEL, b.agreement_p < LEVEL
    tau = f"τ {b.agreement.value:.2f}"
    if not differs and not agrees:
        same = f"its scores differ no more than chance makes them (P = {b.differences_p:.2f})"
        if not b.others:
            return "drop", f"{same}, and its ranking agrees with nothing: there is no other task."
        return (
            "drop",
            f"{same}, and its ranking agrees with no other ({tau}, P = {b.agreement_p:.2f}).",
        )
    if not differs:
        more = (
            f" About {b.needed:,.0f} documents would find a difference of {RESOLUTION:g}."
            if b.by_items
            else ""
        )
        return (
            "fix",
            f"its test is too small to tell these models apart (P = {b.differences_p:.2f}).{more}",
        )
    if len(b.others) >= 2 and b.agreement.high < 0:
        return (
            "drop",
            f"it ranks models against the others ({tau}): check its metric and its labels.",
        )
    if len(b.others) >= 2 and not agrees and b.models >= 6:
        alone = f"its differences are real, but its ranking is not shown to agree with the others ({tau}, "
        return (
            "fix",
            f"{alone}P = {b.agreement_p:.2f}): it measures something else, or its prompt or metric is wrong.",
        )
    return "keep", ""


def _kept(b: BenchmarkVerdict) -> tuple[str, ...]:
    said = [f"its differences are real (P < {LEVEL:g}), with a reliability of {b.reliability:.2f}."]
    if b.others:
        said.append(f"its ranking agrees with the others: mean τ {b.agreement.value:.2f}.")
        near, tau = max(zip(b.others, b.taus, strict=True), key=lambda pair: pair[1])
        if tau > 0.9 and b.reliability > 0.9:
            said.append(f"it ranks as {near} does (τ {tau:.2f}): one of the two would do.")
    return tuple(said)


# --- measures --------------------------------------------------------------------------------------------------------


def _agreement(
    values: Floats, rest: Floats, rng: np.random.Generator
) -> tuple[Interval, float, tuple[float, ...]]:
    """Return the mean τ with the others over models drawn anew, P of it for a shuffled ranking, and τ with each.

    A benchmark agrees where its τ with the mean of the others or with the nearest of them is more than chance gives.
    """
    if not rest.shape[1]:
        return Interval(math.nan, math.nan, math.nan), 1.0, ()
    models, draws = len(values), max(100, min(RESAMPLES, 4_000_000 // len(values) ** 2))
    rows = np.concatenate([np.arange(models)[None, :], rng.integers(models, size=(draws, models))])
    taus = [kendall_by_row(values[rows], rest[rows, k]) for k in range(rest.shape[1])]
    counted = np.isfinite(taus).sum(axis=0)
    means = np.divide(
        np.nansum(taus, axis=0), counted, out=np.full(len(rows), np.nan), where=counted > 0
    )
    low, high = np.nanpercentile(means[1:], [2.5, 97.5])
    spread = np.nanstd(rest, axis=0)
    common = np.nanmean(
        (rest - np.nanmean(rest, axis=0)) / np.where(spread > 0, spread, 1.0), axis=1
    )
    own, common = values[np.isfinite(common)], common[np.isfinite(common)]
    shuffled = rng.permuted(np.tile(own, (draws, 1)), axis=1)
    with_common = _exceeded(float(kendall_by_row(own, common)), kendall_by_row(shuffled, common))
    shuffled = rng.permuted(np.tile(values, (draws, 1)), axis=1)
    each = np.stack([kendall_by_row(shuffled, rest[:, k]) for k in range(rest.shape[1])])
    nearest = _exceeded(float(np.nanmax([tau[0] for tau in taus])), np.nanmax(each, axis=0))
    whole = Interval(float(means[0]), float(low), float(high))
    return whole, min(1.0, 2 * min(with_common, nearest)), tuple(float(tau[0]) for tau in taus)


def _exceeded(seen: float, by_chance: Floats) -> float:
    """Return the share of draws that reach what was seen, itself among them."""
    return (
        (1 + float((by_chance >= seen - 1e-12).sum())) / (1 + len(by_chance))
        if math.isfinite(seen)
        else 1.0
    )


def _by_items(answers: Floats) -> tuple[float, float]:
    """P that models answer alike by the F test of models × items, and the reliability of their ranking.

    That is Hoyt's, which is Cronbach's α: the mean over all split halves, stepped up to the whole test.
    """
    models, n = answers.shape
    rest = answers - answers.mean(axis=0) - answers.mean(axis=1, keepdims=True) + answers.mean()
    between = n * float(((answers.mean(axis=1) - answers.mean()) ** 2).sum()) / (models - 1)
    within = float((rest**2).sum()) / ((models - 1) * (n - 1))
    if between <= 0:
        return 1.0, 0.0
    p = float(f.sf(between / within, models - 1, (models - 1) * (n - 1))) if within > 0 else 0.0
    return p, max(-1.0, 1 - within / between)


def _by_errors(values: Floats, errors: Floats) -> tuple[float, float]:
    """P that models score alike by the χ² test on the standard errors, and the reliability that these leave."""
    fine = np.isfinite(errors) & (errors > 0)
    if fine.sum() < FEWEST:
        return math.nan, math.nan
    values, weight = values[fine], 1 / errors[fine] ** 2
    mean = float((values * weight).sum() / weight.sum())
    p = float(chi2.sf(float((weight * (values - mean) ** 2).sum()), len(values) - 1))
    spread = float(values.var(ddof=1))
    return p, max(0.0, 1 - float((1 / weight).mean()) / spread) if spread > 0 else math.nan


def _needed(answers: Floats) -> float:
    """Documents to find a difference of ``RESOLUTION`` between two models four times in five, by a paired test."""
    order = np.argsort(answers.mean(axis=1))
    neighbours = [(answers[a] - answers[b]).var(ddof=1) for a, b in pairwise(order)]
    return float(math.ceil(POWER * float(np.median(neighbours)) / RESOLUTION**2))


def _resolved(answers: Floats, values: Floats, errors: Floats) -> float:
    """Return the share of model pairs that differ significantly (5 %), paired where there are items."""
    first, second = np.triu_indices(len(values), 1)
    if answers.shape[1] >= 2:
        gaps = [answers[i] - answers[j] for i, j in zip(first, second, strict=True)]
        apart = [abs(gap.mean()) > 1.96 * gap.std(ddof=1) / math.sqrt(len(gap)) for gap in gaps]
        return float(np.mean(apart))
    both = np.hypot(errors[first], errors[second])
    known = np.isfinite(both)
    return (
        float(np.mean((np.abs(values[first] - values[second]) > 1.96 * both)[known]))
        if known.any()
        else math.nan
    )


def _suspects(documents: Sequence[int], answers: Floats, *, tuned: bool) -> tuple[Suspect, ...]:
    """Return items that worse models answer better, beyond chance, and those that no model gets right."""
    models, n = answers.shape
    rest = (answers.sum(axis=1, keepdims=True) - answers) / max(n - 1, 1)
    x, y = answers - answers.mean(axis=0), rest - rest.mean(axis=0)
    norm = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    r = np.divide((x * y).sum(axis=0), norm, out=np.zeros(n), where=norm > 1e-12)
    score = r * np.sqrt(max(models - 2, 1) / np.maximum(1 - r**2, 1e-9))
    negative = np.flatnonzero(false_discovery_control(t.cdf(score, max(models - 2, 1))) < FALSE)
    negative = negative[np.argsort(r[negative], kind="stable")]
    right, wrong = answers.mean(axis=0), "always wrong after tuning" if tuned else "always wrong"
    return (
        *(
            Suspect(documents[k], "negative discrimination", float(right[k]), float(r[k]))
            for k in map(int, negative)
        ),
        *(
            Suspect(documents[k], wrong, 0.0, 0.0)
            for k in map(int, np.flatnonzero(answers.max(axis=0) <= 0))
        ),
    )


def _gain(
    matrix: ScoreMatrix, direct: ScoreMatrix | None, task: str, rng: np.random.Generator
) -> tuple[Interval | None, float]:
    """Return the mean gain by tuning over models drawn anew, and τ of the rankings before and after it."""
    if direct is None:
        return None, math.nan
    both = keep_names_in(matrix.models, direct.models)
    after, before = (
        part.select(models=both, tasks=[task]).oriented()[:, 0] for part in (matrix, direct)
    )
    gains = (after - before)[np.isfinite(after - before)]
    if len(gains) < 2:
        return None, math.nan
    draws = gains[rng.integers(len(gains), size=(RESAMPLES, len(gains)))].mean(axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Interval(float(gains.mean()), float(low), float(high)), float(
        kendall_by_row(after, before)
    )
