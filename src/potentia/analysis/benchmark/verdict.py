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
from enum import StrEnum
from itertools import compress

import numpy as np

from potentia.analysis.benchmark.blind_twins import (
    RUINOUS_SHARE,
    SERIOUS_SHARE,
    BlindTwin,
    find_blind_twin,
)
from potentia.analysis.benchmark.measures import (
    MIN_MODELS,
    RESOLUTION,
    SuspectItem,
    SuspectReason,
    compare_models_by_errors,
    compare_models_by_items,
    estimate_documents_needed,
    find_suspect_items,
    measure_agreement_with_others,
    measure_resolved_share,
    measure_tuning_effect,
)
from potentia.analysis.stats.significance import align_outcomes
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.facts import known_chance
from potentia.values.findings import Bars, Cell, Chart, Finding, Interval, Table, select_positions
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

LEVEL = 0.02  # of each of the two tests behind a verdict
CEILING = 0.97  # median score from which there is nothing left to tell apart
MAX_SUSPECT_SHARE = 0.05  # share of negative items from which they are to be mended first
MIN_MODELS_TO_DISAGREE = 6  # models from which missing agreement is held against a benchmark
REDUNDANT = 0.9  # τ and reliability above which one of two benchmarks would do
SUSPECTS_LISTED = 20
MAX_CELLS = 600  # of a study whose benchmarks are all judged; time goes by the square of both


class Recommendation(StrEnum):
    """What to do with a benchmark, the worst first."""

    DROP = "drop"
    FIX = "fix"
    KEEP = "keep"


def _severity(recommendation: Recommendation) -> int:
    """Return the place of a recommendation among all, the worst first."""
    return list(Recommendation).index(recommendation)


@dataclass(frozen=True)
class BenchmarkVerdict(Finding):
    """What a benchmark is worth among others. NaN and None stand for what the evidence does not tell."""

    task: str
    protocol: str
    verdict: Recommendation
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
    suspects: tuple[SuspectItem, ...]
    in_train: int | None  # test documents that are in train, where the data was at hand
    blind: BlindTwin | None = None  # the same without its questions, where the study has that

    def tables(self) -> Sequence[Table]:
        """Return the page: the verdict with its reasons, the measures, agreement by task, suspect items."""
        nearest_first = sorted(
            zip(self.others, self.taus, strict=True), key=lambda task_and_tau: -task_and_tau[1]
        )
        tables = [
            Table(f"{self.task}: {self.verdict}", ("", "reason"), enumerate(self.reasons, start=1)),
            self._measure_table(),
            Table(f"Agreement of {self.task} with each other task", ("task", "τ"), nearest_first),
        ]
        if self.suspects:
            tables.append(self._suspect_table())
        return tables

    def _measure_table(self) -> Table:
        suspect_share = len(self.suspects) / self.documents if self.by_items else None
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
            "share of suspect items": suspect_share,
            "test documents that are in train": self.in_train,
        }
        if self.blind is not None:
            measures["score without the question"] = self.blind.mean_blind
            measures["share of the score reached without the question"] = self.blind.share_reached
            measures["P that blind models only guess"] = self.blind.p_value
        rows: list[tuple[object, ...]] = []
        for name, value in measures.items():
            if isinstance(value, Interval):
                rows.append((name, value))
            else:
                rows.append((name, _drop_zero_decimals(value), None, None))
        note = "Intervals are of 95 %, over models drawn anew."
        if not self.by_items:
            note += " Without items: reliability from standard errors, no suspect items."
        title = f"{self.task} ({self.protocol}, {self.models} models)"
        return Table(title, ("measure", "value", "low", "high"), rows, note)

    def _suspect_table(self) -> Table:
        rows = [astuple(suspect) for suspect in self.suspects[:SUSPECTS_LISTED]]
        unlisted = len(self.suspects) - SUSPECTS_LISTED
        note = f"… and {unlisted} more." if unlisted > 0 else ""
        columns = ("document", "reason", "share right", "discrimination")
        return Table(f"Items of {self.task} to look at", columns, rows, note)

    def charts(self) -> Sequence[Chart]:
        """Return the agreement with each other task."""
        if not self.others:
            return []
        order = np.argsort(self.taus)[::-1]
        chart = Bars(
            f"benchmark-{self.task}",
            f"Agreement of {self.task} with the others",
            "Kendall's τ of the rankings of models.",
            select_positions(self.others, order),
            {"τ": select_positions(self.taus, order)},
            y_label="τ",
        )
        return [chart]

    def headline(self) -> str:
        """Say the verdict in one sentence."""
        return f"{self.verdict.capitalize()} {self.task}: {self.reasons[0]}"


def _drop_zero_decimals(value: float | None) -> Cell:
    """Return a whole number of two and more as an integer: it counts something."""
    if isinstance(value, float) and value >= 2 and value == round(value):
        return int(value)
    return value


# --- from evidence ---------------------------------------------------------------------------------------------------


def find_benchmark(
    evidence: Evidence, task: str, *, protocol: str | None = None, in_train: int | None = None
) -> BenchmarkVerdict:
    """Judge one benchmark of the evidence among the others, under the protocol that ranks (or the one given)."""
    chosen = Protocol(protocol or evidence.main or "")
    if chosen not in evidence.planned:
        raise InputError(
            f"no protocol {str(chosen)!r} in {evidence.source}",
            hint=f"there are: {', '.join(evidence.planned)}",
        )
    matrix = evidence.planned[chosen].benchmarks()
    if task not in matrix.tasks:
        raise InputError(
            f"no scores of {task} in {evidence.source}",
            hint=f"there are: {', '.join(matrix.tasks[:12])}",
        )
    metric = matrix.metrics[matrix.tasks.index(task)]
    return judge_benchmark(
        matrix,
        task,
        items=evidence.outcomes.get(chosen, {}).get(task, {}),
        direct=_find_untuned_scores(evidence, task) if chosen.tuned else None,
        chance=known_chance(task, metric, evidence.background.chance),
        in_train=in_train,
        blind=find_blind_twin(evidence, task, chosen),
    )


def _find_untuned_scores(evidence: Evidence, task: str) -> ScoreMatrix | None:
    for protocol, matrix in evidence.planned.items():
        if not protocol.tuned and task in matrix.tasks:
            return matrix
    return None


def find_benchmarks(evidence: Evidence) -> tuple[BenchmarkVerdict, ...]:
    """Judge every benchmark under the protocol that ranks; none where there are few models, or too many to compare."""
    if evidence.main is None:
        return ()
    matrix = evidence.planned[evidence.main].benchmarks()
    models, tasks = matrix.shape
    if models < MIN_MODELS or tasks < 2 or models * tasks > MAX_CELLS:
        return ()
    verdicts = []
    for task in matrix.tasks:
        with suppress(InputError):  # too few models have it
            verdicts.append(find_benchmark(evidence, task))
    return tuple(verdicts)


def benchmark_table(verdicts: Sequence[BenchmarkVerdict]) -> Table:
    """Return one row per benchmark: the verdict, the first reason, and the measures behind it."""
    worst_first = sorted(verdicts, key=lambda verdict: _severity(verdict.verdict))
    rows = []
    for verdict in worst_first:
        decision = (verdict.task, verdict.verdict, verdict.reasons[0])
        rows.append((*decision, verdict.agreement.value, verdict.reliability, verdict.resolved))
    columns = ("benchmark", "verdict", "reason", "mean τ", "reliability", "pairs that differ")
    return Table(
        "Every benchmark", columns, rows, note="One by one: potentia analyze benchmark NAME."
    )


# --- from scores -----------------------------------------------------------------------------------------------------


def judge_benchmark(
    matrix: ScoreMatrix,
    task: str,
    *,
    items: Mapping[str, Mapping[int, float]] | None = None,
    direct: ScoreMatrix | None = None,
    chance: float | None = None,
    in_train: int | None = None,
    blind: BlindTwin | None = None,
    seed: int = 0,
) -> BenchmarkVerdict:
    """Judge one column of a matrix among the others; ``items`` are outcomes by model and document."""
    column = matrix.tasks.index(task)
    is_scored = np.isfinite(matrix.values)
    has_task = is_scored[:, column]
    models = list(compress(matrix.models, has_task))
    if len(models) < MIN_MODELS:
        raise InputError(
            f"{task} has scores of {len(models)} models",
            hint=f"a verdict needs {MIN_MODELS} at least",
        )
    shared_models = is_scored[has_task].sum(axis=0)  # of each task with this one
    others = [
        other
        for index, other in enumerate(matrix.tasks)
        if index != column and shared_models[index] >= MIN_MODELS
    ]
    matrix = matrix.select(models=models)
    rng = np.random.default_rng(seed)
    oriented_scores = matrix.oriented()[:, column]
    stderr = matrix.stderr[:, column]
    documents, answers = _read_answers(models, items or {})
    by_items = answers.shape[1] >= 2
    other_scores = matrix.select(tasks=others).oriented()
    agreement = measure_agreement_with_others(oriented_scores, other_scores, rng)
    if by_items:
        differences = compare_models_by_items(answers)
    else:
        differences = compare_models_by_errors(oriented_scores, stderr)
    tuning = measure_tuning_effect(matrix, direct, task, rng)
    scores = matrix.values[:, column]
    sizes = matrix.n[:, column]
    higher_is_better = matrix.higher_is_better[column]
    guess = math.nan if chance is None else chance
    at_floor = math.nan
    if higher_is_better and np.isfinite(stderr).all():
        at_floor = float(np.mean(scores <= guess + 2 * stderr))
    measured = BenchmarkVerdict(
        task=task,
        protocol=str(matrix.protocol),
        verdict=Recommendation.KEEP,
        reasons=(),
        models=len(models),
        documents=int(np.nanmax(sizes)) if np.isfinite(sizes).any() else len(documents),
        others=tuple(others),
        taus=agreement.taus,
        agreement=agreement.mean,
        agreement_p=agreement.p_value,
        differences_p=differences.p_value,
        reliability=differences.reliability,
        by_items=by_items,
        needed=estimate_documents_needed(answers) if by_items else math.nan,
        resolved=measure_resolved_share(answers, oriented_scores, stderr),
        chance=guess,
        at_floor=at_floor,
        best=float(scores.max() if higher_is_better else scores.min()),
        median=float(np.median(scores)),
        gain=tuning.gain,
        direct_tuned=tuning.tau,
        suspects=find_suspect_items(documents, answers, tuned=direct is not None)
        if by_items
        else (),
        in_train=in_train,
        blind=blind,
    )
    verdict, reasons = _decide_verdict(measured, higher_is_better)
    return replace(measured, verdict=verdict, reasons=reasons)


def _read_answers(
    models: Sequence[str], items: Mapping[str, Mapping[int, float]]
) -> tuple[tuple[int, ...], Floats]:
    """Return the documents that every model answered, and the answers: (models, documents)."""
    aligned = align_outcomes(models, items)
    answers = aligned.values
    if len(answers) != len(models):
        answers = np.zeros((len(models), 0))
    answered_by_all = np.flatnonzero(np.isfinite(answers).all(axis=0))
    return select_positions(aligned.documents, answered_by_all), answers[:, answered_by_all]


# --- the decision ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VerdictReason:
    """What speaks for dropping, fixing or keeping a benchmark."""

    recommendation: Recommendation
    text: str = ""


def _decide_verdict(
    measured: BenchmarkVerdict, higher_is_better: bool
) -> tuple[Recommendation, tuple[str, ...]]:
    """Return the verdict and its reasons, those to drop it first."""
    reasons = [_decide_by_tests(measured), *_find_other_faults(measured, higher_is_better)]
    reasons.sort(key=lambda reason: _severity(reason.recommendation))
    worst = reasons[0].recommendation
    if worst is Recommendation.KEEP:
        return worst, _reasons_to_keep(measured)
    faults = [reason for reason in reasons if reason.recommendation is not Recommendation.KEEP]
    return worst, tuple(reason.text for reason in faults)


def _decide_by_tests(measured: BenchmarkVerdict) -> VerdictReason:
    """Return what the test of differences and the test of agreement say together."""
    if not math.isfinite(measured.differences_p):
        return VerdictReason(
            Recommendation.FIX,
            "there are neither items nor standard errors: whether its differences are real cannot be told.",
        )
    differs = measured.differences_p < LEVEL
    agrees = measured.agreement_p < LEVEL
    tau = f"τ {measured.agreement.value:.2f}"
    if not differs and not agrees:
        return _describe_noise(measured, tau)
    if not differs:
        needed = ""
        if measured.by_items:
            needed = f" About {measured.needed:,.0f} documents would find a difference of {RESOLUTION:g}."
        return VerdictReason(
            Recommendation.FIX,
            f"its test is too small to tell these models apart (P = {measured.differences_p:.2f}).{needed}",
        )
    if len(measured.others) >= 2 and measured.agreement.high < 0:
        return VerdictReason(
            Recommendation.DROP,
            f"it ranks models against the others ({tau}): check its metric and its labels.",
        )
    has_rivals = len(measured.others) >= 2 and measured.models >= MIN_MODELS_TO_DISAGREE
    if has_rivals and not agrees:
        return VerdictReason(
            Recommendation.FIX,
            "its differences are real, but its ranking is not shown to agree with the others "
            f"({tau}, P = {measured.agreement_p:.2f}): it measures something else, or its prompt or metric is wrong.",
        )
    return VerdictReason(Recommendation.KEEP)


def _describe_noise(measured: BenchmarkVerdict, tau: str) -> VerdictReason:
    same = f"its scores differ no more than chance makes them (P = {measured.differences_p:.2f})"
    if not measured.others:
        agreement = "agrees with nothing: there is no other task."
    else:
        agreement = f"agrees with no other ({tau}, P = {measured.agreement_p:.2f})."
    return VerdictReason(Recommendation.DROP, f"{same}, and its ranking {agreement}")


def _find_other_faults(measured: BenchmarkVerdict, higher_is_better: bool) -> list[VerdictReason]:
    """Return what is wrong besides: too hard, too easy, wrong answers, test documents in train."""
    faults = []
    if measured.at_floor > 0.5 and math.isfinite(measured.chance):
        faults.append(
            VerdictReason(
                Recommendation.FIX,
                f"{measured.at_floor:.0%} of the models are at the level of a guess "
                f"({measured.chance:.2f}): it is too hard for them.",
            )
        )
    if higher_is_better and measured.best <= 1.0 and measured.median >= CEILING:
        faults.append(
            VerdictReason(
                Recommendation.DROP,
                f"half of the models score {measured.median:.2f} or more: "
                "there is nothing left to tell apart.",
            )
        )
    negative = sum(
        suspect.reason is SuspectReason.NEGATIVE_DISCRIMINATION for suspect in measured.suspects
    )
    if negative > MAX_SUSPECT_SHARE * measured.documents:
        faults.append(
            VerdictReason(
                Recommendation.FIX,
                f"{negative} of {measured.documents} items are answered better by worse models: "
                "check their answers.",
            )
        )
    if measured.in_train:
        faults.append(
            VerdictReason(
                Recommendation.FIX,
                f"{measured.in_train} test documents are also in the training split.",
            )
        )
    if measured.blind is not None and measured.blind.gives_answers_away:
        faults += _find_blind_faults(measured.blind)
    return faults


def _find_blind_faults(blind: BlindTwin) -> list[VerdictReason]:
    """Return what is wrong with a task whose answers give the right one away."""
    share = blind.share_reached
    reason = (
        f"it can be answered without its question: blind models score {blind.mean_blind:.2f}, a guess "
        f"{blind.baseline:.2f} (P = {blind.p_value:.1g})"
    )
    if math.isfinite(share):
        reason += f", {share:.0%} of what models score beyond a guess"
    if not math.isfinite(share) or share >= RUINOUS_SHARE:
        return [VerdictReason(Recommendation.DROP, f"{reason}.")]
    if share >= SERIOUS_SHARE:
        return [
            VerdictReason(
                Recommendation.FIX, f"{reason}: look at the examples that blind models get right."
            )
        ]
    return []


def _reasons_to_keep(measured: BenchmarkVerdict) -> tuple[str, ...]:
    reasons = [
        f"its differences are real (P < {LEVEL:g}), with a reliability of {measured.reliability:.2f}."
    ]
    if measured.others:
        reasons.append(
            f"its ranking agrees with the others: mean τ {measured.agreement.value:.2f}."
        )
        tau_by_task = dict(zip(measured.others, measured.taus, strict=True))
        nearest = max(measured.others, key=lambda task: tau_by_task[task])
        tau = tau_by_task[nearest]
        if tau > REDUNDANT and measured.reliability > REDUNDANT:
            reasons.append(f"it ranks as {nearest} does (τ {tau:.2f}): one of the two would do.")
    return tuple(reasons)
