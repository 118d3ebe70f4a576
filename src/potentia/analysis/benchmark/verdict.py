"""Is a benchmark worth keeping? One page of measures, and a verdict with its reason: keep, fix, drop, or cannot tell.

The verdict rests on the flags of the screening (``analysis.rankings``), so that a report never says two things of one
task, and on its items. A benchmark is kept where its ranking is shown to agree with the others; it is to be fixed or
dropped on evidence alone. What is neither shown to agree nor to disagree cannot be told with so many models.
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
    RESOLUTION,
    SuspectItem,
    SuspectReason,
    estimate_documents_needed,
    find_suspect_items,
    measure_resolved_share,
    measure_tuning_effect,
)
from potentia.analysis.benchmark.signal import TaskSignal, measure_task_signal
from potentia.analysis.rankings.screening import (
    FlagReason,
    Screening,
    TaskRanking,
    screen_tasks,
    share_at_floor,
)
from potentia.analysis.stats.bootstrap import join_copies_to_families
from potentia.analysis.stats.significance import align_outcomes
from potentia.analysis.stats.soundness import (
    MIN_MODELS,
    RankingAnswer,
    average_families,
    code_families,
)
from potentia.analysis.wording import format_count, format_level, format_p_value
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.facts import known_chance
from potentia.values.findings import Bars, Cell, Chart, Finding, Interval, Table, select_positions
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

MAX_SUSPECT_SHARE = 0.05  # share of negative items from which they are to be mended first
REDUNDANT = 0.9  # τ and reliability above which one of two benchmarks would do
SUSPECTS_LISTED = 20
MAX_CELLS = 600  # of a study whose benchmarks are all judged; time goes by the square of both


class Recommendation(StrEnum):
    """What to do with a benchmark, the worst first; of what cannot be told nothing is to be done yet."""

    DROP = "drop"
    FIX = "fix"
    CANNOT_TELL = "cannot tell"
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
    agreement: Interval  # their mean, by bootstrap over families of models
    among_others: float  # mean τ of the others among themselves
    agreement_p: float  # that it agrees no more than a shuffled ranking
    differences_p: float  # that models differ no more than by chance
    reliability: float  # of the ranking: Cronbach's α of the items, or from the standard errors
    by_items: bool
    needed: float  # documents to find a difference of RESOLUTION
    resolved: float  # share of model pairs that differ significantly
    chance: float
    at_floor: float  # share of models that surely score about as a guess does
    best: float
    median: float
    gain: Interval | None  # by tuning, over models
    direct_tuned: float  # τ of the rankings before and after tuning
    suspects: tuple[SuspectItem, ...]
    in_train: int | None  # test documents that are in train, where the data was at hand
    blind: BlindTwin | None = None  # the same without its questions, where the study has that
    signal: TaskSignal | None = None  # beside its noise

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
            "agreement of the others among themselves (mean τ)": self.among_others,
            "P of such agreement by chance": self.agreement_p,
            "P that models differ by chance alone": self.differences_p,
            "reliability of the ranking": self.reliability,
            f"documents to find a difference of {RESOLUTION:g}": self.needed,
            "documents it has": float(self.documents) if self.documents else None,
            "share of model pairs that differ": self.resolved,
            "score of a guess": self.chance,
            "share of models that surely guess": self.at_floor,
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
        if self.signal is not None:
            measures[self.signal.ratio_label] = self.signal.ratio
            label = f"decision accuracy of small models about large ones ({self.signal.families} families)"
            measures[label] = self.signal.decision_accuracy
        rows: list[tuple[object, ...]] = []
        for name, value in measures.items():
            if isinstance(value, Interval):
                rows.append((name, value))
            else:
                rows.append((name, _drop_zero_decimals(value), None, None))
        level = format_level(self.agreement.level)
        note = f"Intervals are of {level}, by bootstrap over families of models."
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
        if self.verdict is Recommendation.CANNOT_TELL:
            models = format_count(self.models, "model")
            return f"Whether to keep {self.task} cannot be told with {models}: {self.reasons[0]}"
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
    screening = _screen_evidence(evidence, matrix, tested=[task])
    return _judge_screened(evidence, matrix, task, screening, in_train)


def _screen_evidence(evidence: Evidence, matrix: ScoreMatrix, tested: Sequence[str]) -> Screening:
    """Screen the tasks as the report does, and test the agreement of some in any case."""
    background = evidence.background
    chances = {}
    for task, metric in zip(matrix.tasks, matrix.metrics, strict=True):
        chance = known_chance(task, metric, background.chance)
        if chance is not None:
            chances[task] = chance
    direct = _find_untuned_scores(evidence, tested) if matrix.protocol.tuned else None
    return screen_tasks(
        direct or matrix,
        matrix if direct is not None else None,
        train_examples=background.train_examples if matrix.protocol.tuned else {},
        chance=chances,
        families=join_copies_to_families(background.families, matrix),
        task_groups=background.task_groups,
        items=evidence.outcomes.get(matrix.protocol),
        tested=tested,
    )


def _judge_screened(
    evidence: Evidence,
    matrix: ScoreMatrix,
    task: str,
    screening: Screening,
    in_train: int | None = None,
) -> BenchmarkVerdict:
    """Judge one benchmark of screened scores."""
    metric = matrix.metrics[matrix.tasks.index(task)]
    background = evidence.background
    signal = measure_task_signal(matrix, task, background.families, background.billions)
    verdict = judge_benchmark(
        matrix,
        task,
        screening=screening,
        items=evidence.outcomes.get(matrix.protocol, {}).get(task, {}),
        direct=_find_untuned_scores(evidence, [task]) if matrix.protocol.tuned else None,
        chance=known_chance(task, metric, evidence.background.chance),
        families=evidence.background.families,
        in_train=in_train,
        blind=find_blind_twin(evidence, task, matrix.protocol),
    )
    return replace(verdict, signal=signal)


def _find_untuned_scores(evidence: Evidence, tasks: Sequence[str]) -> ScoreMatrix | None:
    """Return the first scores before fine-tuning that have one of the tasks."""
    for protocol, matrix in evidence.planned.items():
        if not protocol.tuned and not set(tasks).isdisjoint(matrix.tasks):
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
    screening = _screen_evidence(evidence, matrix, tested=matrix.tasks)
    verdicts = []
    for task in matrix.tasks:
        with suppress(InputError):  # too few models have it
            verdicts.append(_judge_screened(evidence, matrix, task, screening))
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
    screening: Screening | None = None,
    items: Mapping[str, Mapping[int, float]] | None = None,
    direct: ScoreMatrix | None = None,
    chance: float | None = None,
    in_train: int | None = None,
    blind: BlindTwin | None = None,
    families: Mapping[str, str] | None = None,
    seed: int = 0,
) -> BenchmarkVerdict:
    """Judge one column of a matrix among the others.

    ``items`` are outcomes by model and document; ``families`` those of the models, by which near copies are known
    (models whose scores differ by far less than test noise are joined to one). ``screening`` is made where absent.
    """
    column = matrix.tasks.index(task)
    has_task = np.isfinite(matrix.values)[:, column]
    models = list(compress(matrix.models, has_task))
    if len(models) < MIN_MODELS:
        raise InputError(
            f"{task} has scores of {len(models)} models",
            hint=f"a verdict needs {MIN_MODELS} at least",
        )
    families = join_copies_to_families(families or {}, matrix)
    if screening is None:
        screening = screen_tasks(
            matrix if direct is None else direct,
            None if direct is None else matrix,
            chance={} if chance is None else {task: chance},
            families=families,
            items={task: items or {}},
            tested=[task],
            seed=seed,
        )
    ranking = screening.rankings[screening.tasks.index(task)]
    matrix = matrix.select(models=models)
    rng = np.random.default_rng(seed)
    oriented_scores = matrix.oriented()[:, column]
    stderr = matrix.stderr[:, column]
    documents, answers = _read_answers(models, items or {})
    by_items = answers.shape[1] >= 2
    tuning = measure_tuning_effect(matrix, direct, task, rng)
    scores = matrix.values[:, column]
    sizes = matrix.n[:, column]
    higher_is_better = matrix.higher_is_better[column]
    at_floor = math.nan
    if higher_is_better and chance is not None and np.isfinite(stderr).any():
        at_floor = share_at_floor(scores, stderr, chance)
    measured = BenchmarkVerdict(
        task=task,
        protocol=str(matrix.protocol),
        verdict=Recommendation.KEEP,
        reasons=(),
        models=len(models),
        documents=int(np.nanmax(sizes)) if np.isfinite(sizes).any() else len(documents),
        others=ranking.agreement.others,
        taus=ranking.agreement.taus,
        agreement=ranking.agreement.mean,
        among_others=ranking.agreement.among_others,
        agreement_p=ranking.agreement.p_agrees,
        differences_p=ranking.differences.p_value,
        reliability=ranking.differences.reliability,
        by_items=by_items,
        needed=estimate_documents_needed(answers) if by_items else math.nan,
        resolved=measure_resolved_share(answers, oriented_scores, stderr),
        chance=math.nan if chance is None else chance,
        at_floor=at_floor,
        best=float(scores.max() if higher_is_better else scores.min()),
        median=float(np.median(scores)),
        gain=tuning.gain,
        direct_tuned=tuning.tau,
        suspects=_find_suspects(documents, answers, models, families, direct is not None),
        in_train=in_train,
        blind=blind,
    )
    verdict, reasons = _decide_verdict(measured, ranking, screening)
    return replace(measured, verdict=verdict, reasons=reasons)


def _find_suspects(
    documents: tuple[int, ...],
    answers: Floats,
    models: Sequence[str],
    families: Mapping[str, str],
    tuned: bool,
) -> tuple[SuspectItem, ...]:
    """Return the items to look at; near copies answer alike, so each family of models counts once."""
    if answers.shape[1] < 2:
        return ()
    of_families = average_families(answers, code_families(models, families))
    if len(of_families) < MIN_MODELS:
        of_families = answers
    return find_suspect_items(documents, of_families, tuned=tuned)


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
    """What speaks for dropping or fixing a benchmark."""

    recommendation: Recommendation
    text: str


RECOMMENDATIONS = {  # what a flag of the screening asks for
    FlagReason.FEW_TRAINING_EXAMPLES: Recommendation.FIX,
    FlagReason.NO_IMPROVEMENT: Recommendation.FIX,
    FlagReason.AGAINST: Recommendation.DROP,
    FlagReason.UNLIKE: Recommendation.FIX,
    FlagReason.NO_DIFFERENCES: Recommendation.DROP,
    FlagReason.CEILING: Recommendation.DROP,
    FlagReason.FLOOR: Recommendation.FIX,
    FlagReason.SMALL_TEST: Recommendation.FIX,
}


def _decide_verdict(
    measured: BenchmarkVerdict, ranking: TaskRanking, screening: Screening
) -> tuple[Recommendation, tuple[str, ...]]:
    """Return the verdict and its reasons, those to drop it first."""
    faults = [*_list_flags(measured.task, screening), *_find_faults_of_items(measured)]
    faults.sort(key=lambda fault: _severity(fault.recommendation))
    if faults:
        return faults[0].recommendation, tuple(fault.text for fault in faults)
    doubt = _find_doubt(measured, ranking)
    if doubt is not None:
        return Recommendation.CANNOT_TELL, (doubt,)
    return Recommendation.KEEP, _reasons_to_keep(measured, ranking)


def _list_flags(task: str, screening: Screening) -> list[VerdictReason]:
    """Return what the screening says against a task."""
    reasons = []
    for flag in screening.flags:
        if flag.task == task:
            text = f"{flag.reason}: {flag.evidence}. Suggestion: {flag.suggestion}."
            reasons.append(VerdictReason(RECOMMENDATIONS[flag.reason], text))
    return reasons


def _find_doubt(measured: BenchmarkVerdict, ranking: TaskRanking) -> str | None:
    """Say what cannot be told of a benchmark that nothing speaks against; None where it is shown to be sound."""
    if not ranking.has_errors:
        return (
            "there are neither items nor standard errors, "
            "so whether models differ on it by more than chance is not known."
        )
    if ranking.agreement.answer is RankingAnswer.AGREES:
        return None
    if not ranking.models_differ:
        needed = ""
        if measured.by_items:
            needed = (
                f" About {measured.needed:,.0f} examples would find a difference of {RESOLUTION:g}."
            )
        p_value = format_p_value(measured.differences_p)
        return (
            f"its scores do not differ significantly ({p_value}): "
            f"the models may be alike on it, or its test too small.{needed}"
        )
    if not measured.others:
        return None
    return (
        "its ranking is neither shown to agree with the others nor to disagree "
        f"({_describe_agreement(measured)})."
    )


def _describe_agreement(measured: BenchmarkVerdict) -> str:
    """Write the mean τ with its interval, beside that of the others among themselves."""
    agreement = measured.agreement
    text = f"mean τ {agreement.value:.2f}"
    if math.isfinite(agreement.low):
        level = format_level(agreement.level)
        text += f", {level} interval {agreement.low:.2f} to {agreement.high:.2f}"
    if math.isfinite(measured.among_others):
        text += f"; the others have {measured.among_others:.2f} among themselves"
    return text


def _find_faults_of_items(measured: BenchmarkVerdict) -> list[VerdictReason]:
    """Return what the items say against a benchmark: wrong answers, test examples in train."""
    faults = []
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
                f"{measured.in_train} test examples are also in the training split.",
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


def _reasons_to_keep(measured: BenchmarkVerdict, ranking: TaskRanking) -> tuple[str, ...]:
    """Say what speaks for a benchmark: agreement and differences, as far as they are shown."""
    reasons = []
    p_value = format_p_value(measured.differences_p)
    if ranking.models_differ:
        reasons.append(
            f"models differ on it ({p_value}), with a reliability of {measured.reliability:.2f}."
        )
    if ranking.agreement.answer is RankingAnswer.AGREES:
        agreement = f"{_describe_agreement(measured)}, {format_p_value(measured.agreement_p)}"
        reasons.append(f"its ranking agrees with the others: {agreement}.")
    if not ranking.models_differ:
        reasons.append(f"its test does not separate single models ({p_value}).")
    if measured.others and ranking.agreement.answer is RankingAnswer.AGREES:
        tau_by_task = dict(zip(measured.others, measured.taus, strict=True))
        nearest = max(measured.others, key=lambda task: tau_by_task[task])
        tau = tau_by_task[nearest]
        if tau > REDUNDANT and measured.reliability > REDUNDANT:
            reasons.append(f"it ranks as {nearest} does (τ {tau:.2f}): one of the two would do.")
    return tuple(reasons)
