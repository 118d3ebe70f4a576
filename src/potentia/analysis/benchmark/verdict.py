"""Is a benchmark worth keeping? One page of measures, and a verdict with its reason: keep, fix, drop, or cannot tell.

The verdict rests on the flags of the screening (``analysis.rankings``), so that a report never says two things of one
task, and on its items. A benchmark is kept where its ranking is shown to agree with the others; it is to be fixed or
dropped on evidence alone. What is neither shown to agree nor to disagree cannot be told with so many models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from potentia.analysis.stats.bootstrap import ResamplingUnits, Sampling
from potentia.analysis.stats.relatives import ModelFamilies
from potentia.analysis.stats.score_errors import believe_errors
from potentia.analysis.stats.significance import align_outcomes, list_seed_errors
from potentia.analysis.stats.soundness import (
    MIN_MODELS,
    RankingAnswer,
    average_families,
    code_families,
)
from potentia.analysis.wording import (
    format_level,
    format_p_value,
)
from potentia.errors import InputError, suggest_names
from potentia.evidence import Evidence
from potentia.facts import find_chance_score
from potentia.values.clusters import Clusters
from potentia.values.findings import (
    Bars,
    Chart,
    Finding,
    Interval,
    Table,
    TableValue,
    ValuedText,
    select_positions,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import ExampleText, Floats, ScoreMatrix
from potentia.values.wording import format_count, set_signs, shorten_to_end

RESAMPLES = 2_000
MAX_SUSPECT_SHARE = 0.05  # share of negative items from which they are to be mended first
REDUNDANT = 0.9  # τ and reliability above which one of two benchmarks would do
SURELY_REDUNDANT = 0.8  # that the interval of this τ has to reach at least
# Families of which that is said: of eight models and twelve unlike benchmarks, two rank alike in one study of ten.
UNITS_FOR_REDUNDANCY = 10
SUSPECTS_LISTED = 20
LEAST_P_VALUE = 0.001  # that is written out
QUESTION_CHARACTERS = 160  # of a prompt's end
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
    least_agreement_p: float  # the smallest that its permutations can give
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
    in_train: int | None  # test examples that are also in train, where the data was at hand
    blind: BlindTwin | None = None  # the same without its questions, where the study has that
    signal: TaskSignal | None = None  # beside its noise
    resampled_unit: str = "models"  # what the intervals draw anew: families or models
    without_family: int = 0  # models of which no family is known; each counts as one
    inferred_families: str = ""  # models that count as one family by their names or scores

    def tables(self) -> Sequence[Table]:
        """Return the page: the verdict with its reasons, the measures, agreement by task, suspect items."""
        nearest_first = sorted(
            zip(self.others, self.taus, strict=True), key=lambda task_and_tau: -task_and_tau[1]
        )
        tables = [
            Table(f"Verdict on {self.task}", ("verdict", "reason"), self._verdict_rows()),
            self._measure_table(),
            Table(f"Agreement of {self.task} with each other task", ("task", "τ"), nearest_first),
        ]
        if self.suspects:
            tables.append(self._suspect_table())
        return tables

    def _verdict_rows(self) -> list[tuple[str, str]]:
        later_rows = [("", reason) for reason in self.reasons[1:]]
        return [(str(self.verdict), self.reasons[0]), *later_rows]

    def _measure_table(self) -> Table:
        suspect_share = len(self.suspects) / self.documents if self.by_items else None
        resolution = f"{100 * RESOLUTION:g} points"
        table_rows = [
            *_measure_row("agreement with the others (mean τ)", self.agreement),
            *_measure_row("gain by fine-tuning", self.gain),
            *_measure_row("agreement of the others among themselves (mean τ)", self.among_others),
            *_p_value_row(
                "p value of the agreement", self.agreement_p, least=self.least_agreement_p
            ),
            *_p_value_row("p value of the differences between models", self.differences_p),
            *_measure_row("reliability of the ranking", self.reliability),
            *_measure_row(f"examples to detect a difference of {resolution}", self.needed),
            *_measure_row("test examples", self.documents or None),
            *_measure_row("share of model pairs that differ significantly", self.resolved),
            *_measure_row("score of a guess", self.chance),
            *_measure_row("share of models that only guess", self.at_floor),
            *_measure_row("best score", self.best),
            *_measure_row("median score", self.median),
            *_measure_row("τ between the rankings before and after fine-tuning", self.direct_tuned),
            *_measure_row("share of suspect examples", suspect_share),
            *_measure_row("test examples that are also in train", self.in_train),
        ]
        if self.blind is not None:
            reached = self.blind.share_reached
            table_rows += _measure_row("score without the question", self.blind.mean_blind)
            table_rows += _measure_row("share of the score reached without the question", reached)
            table_rows += _measure_row("P that blind models only guess", self.blind.p_value)
        if self.signal is not None:
            table_rows += _measure_row(self.signal.ratio_label, self.signal.ratio)
            label = f"decision accuracy of small models about large ones ({self.signal.families} families)"
            table_rows += _measure_row(label, self.signal.decision_accuracy)
        level = format_level(self.agreement.level)
        note = f"{level} intervals by bootstrap over {self.resampled_unit}."
        if self.inferred_families:
            note += f" {self.inferred_families}"
        if self.without_family:
            count = format_count(self.without_family, "model")
            note += f" {count} without a known family: each counts as independent of all others."
        if not self.by_items:
            note += (
                " Without results by example, reliability comes from standard errors "
                "and no suspect examples can be named."
            )
        title = f"{self.task} ({Protocol(self.protocol).label}, {self.models} models)"
        return Table(title, ("measure", "value", "low", "high"), table_rows, note)

    def _suspect_table(self) -> Table:
        table_rows = []
        for suspect in self.suspects[:SUSPECTS_LISTED]:
            doc_id = question = None
            if suspect.text is not None:
                doc_id = suspect.text.doc_id
                question = shorten_to_end(suspect.text.question, QUESTION_CHARACTERS)
            table_rows.append(
                (doc_id, question, suspect.reason, suspect.right, suspect.discrimination)
            )
        unlisted = len(self.suspects) - SUSPECTS_LISTED
        note = f"… and {unlisted} more." if unlisted > 0 else ""
        column_names = ("doc_id", "question", "reason", "share right", "discrimination")
        return Table(f"Examples of {self.task} to check", column_names, table_rows, note)

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
            return f"{models} cannot tell whether to keep {self.task}: {self.reasons[0]}"
        return f"{self.verdict.capitalize()} {self.task}: {self.reasons[0]}"


MeasureRow = (
    tuple[str, object] | tuple[str, object, None, None]
)  # a value without interval has None


def _measure_row(label: str, value: Interval | float | None) -> list[MeasureRow]:
    """Return the row of a measure in the table; no row where the measure is not known."""
    if isinstance(value, Interval):
        return [(label, value)]
    if value is None or math.isnan(value):
        return []
    return [(label, _drop_zero_decimals(value), None, None)]


def _p_value_row(label: str, p_value: float | None, *, least: float = 0.0) -> list[MeasureRow]:
    """Return the row of a p value in the table; the smallest ones are bounded, not told."""
    if p_value is not None and p_value < LEAST_P_VALUE:
        return [(label, ValuedText(f"< {LEAST_P_VALUE:g}", value=p_value), None, None)]
    if p_value is not None and p_value <= least * (1 + 1e-9):
        bound = format_p_value(p_value, least=least).removeprefix("p ")
        return [(label, ValuedText(bound, value=p_value), None, None)]
    return _measure_row(label, p_value)


def _drop_zero_decimals(value: float | None) -> TableValue:
    """Return a whole number of two and more as an integer: it counts something."""
    if isinstance(value, float) and value >= 2 and value == round(value):
        return int(value)
    return value


# --- from evidence ---------------------------------------------------------------------------------------------------


def find_benchmark(
    evidence: Evidence, task: str, *, protocol: str | None = None, in_train: int | None = None
) -> BenchmarkVerdict:
    """Judge one benchmark of the evidence among the others, under the protocol that ranks (or the one given).

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        task: The benchmark to judge.
        protocol: The protocol to judge it by; else the one that ranks.
        in_train: How many of its test examples are also in its training split, where that is known.

    Example:
        >>> potentia.find_benchmark("scores.csv", "boolq").verdict
    """
    chosen = Protocol(protocol or evidence.main or "")
    if chosen not in evidence.final_scores:
        raise InputError(
            f"no protocol {str(chosen)!r} in {evidence.source}",
            hint=suggest_names(chosen, evidence.final_scores),
        )
    matrix = evidence.final_scores[chosen].benchmarks()
    if task not in matrix.tasks:
        raise _make_unknown_task_error(evidence, chosen, task)
    relatives = ModelFamilies.of_background(evidence.background, matrix)
    screening = _screen_evidence(evidence, matrix, relatives, tested=[task])
    return _judge_screened(evidence, matrix, task, screening, relatives, in_train)


def _make_unknown_task_error(evidence: Evidence, protocol: Protocol, task: str) -> InputError:
    """Return the error for a task that cannot be judged: a text to predict, or one without scores."""
    hint = suggest_names(task, evidence.final_scores[protocol].benchmarks().tasks)
    if any(task in matrix.corpora().tasks for matrix in evidence.scores.values()):
        message = f"{task} is a perplexity corpus; only tasks are judged"
        return InputError(message, where=evidence.source, hint=hint)
    return InputError(f"no scores of {task} in {evidence.source}", hint=hint)


def _screen_evidence(
    evidence: Evidence, matrix: ScoreMatrix, relatives: ModelFamilies, tested: Sequence[str]
) -> Screening:
    """Screen the tasks as the report does, and test the agreement of some in any case."""
    background = evidence.background
    chances = {}
    for task, metric in zip(matrix.tasks, matrix.metrics, strict=True):
        chance = find_chance_score(task, metric, background.chance)
        if chance is not None:
            chances[task] = chance
    direct = _find_untuned_scores(evidence, tested) if matrix.protocol.tuned else None
    return screen_tasks(
        direct or matrix,
        matrix if direct is not None else None,
        train_examples=background.train_examples if matrix.protocol.tuned else {},
        chance=chances,
        families=relatives.family_of_model,
        task_groups=background.task_groups,
        items=evidence.outcomes.get(matrix.protocol),
        tested=tested,
    )


def _judge_screened(
    evidence: Evidence,
    matrix: ScoreMatrix,
    task: str,
    screening: Screening,
    relatives: ModelFamilies,
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
        chance=find_chance_score(task, metric, evidence.background.chance),
        relatives=relatives,
        in_train=in_train,
        blind=find_blind_twin(evidence, task, matrix.protocol),
    )
    suspects = _add_texts(verdict.suspects, evidence.example_texts, matrix.protocol, task)
    return replace(verdict, signal=signal, suspects=suspects)


def _add_texts(
    suspects: tuple[SuspectItem, ...],
    read_texts: Callable[[Protocol, str], Mapping[int, ExampleText]],
    protocol: Protocol,
    task: str,
) -> tuple[SuspectItem, ...]:
    """Give the suspects their numbers and questions; nothing is read where there are none."""
    if not suspects:
        return suspects
    texts = read_texts(protocol, task)
    return tuple(replace(suspect, text=texts.get(suspect.document)) for suspect in suspects)


def _find_untuned_scores(evidence: Evidence, tasks: Sequence[str]) -> ScoreMatrix | None:
    """Return the first scores before fine-tuning that have one of the tasks."""
    for protocol, matrix in evidence.final_scores.items():
        if not protocol.tuned and not set(tasks).isdisjoint(matrix.tasks):
            return matrix
    return None


def find_benchmarks(evidence: Evidence) -> tuple[BenchmarkVerdict, ...]:
    """Judge every benchmark under the protocol that ranks; none where there are few models, or too many to compare."""
    if evidence.main is None:
        return ()
    matrix = evidence.final_scores[evidence.main].benchmarks()
    models, tasks = matrix.shape
    if models < MIN_MODELS or tasks < 2 or has_too_many_to_judge(evidence):
        return ()
    relatives = ModelFamilies.of_background(evidence.background, matrix)
    screening = _screen_evidence(evidence, matrix, relatives, tested=matrix.tasks)
    verdicts = []
    for task in matrix.tasks:
        with suppress(InputError):  # too few models have it
            verdicts.append(_judge_screened(evidence, matrix, task, screening, relatives))
    return tuple(verdicts)


def has_too_many_to_judge(evidence: Evidence) -> bool:
    """Whether so many models and tasks are there that benchmarks are judged one by one, not all at once."""
    if evidence.main is None:
        return False
    models, tasks = evidence.final_scores[evidence.main].benchmarks().shape
    return models * tasks > MAX_CELLS


def benchmark_table(verdicts: Sequence[BenchmarkVerdict]) -> Table:
    """Return one row per benchmark: the verdict, the first reason, and the measures behind it."""
    worst_first = sorted(verdicts, key=lambda verdict: _severity(verdict.verdict))
    table_rows = []
    for verdict in worst_first:
        decision = (verdict.task, verdict.verdict, verdict.reasons[0])
        table_rows.append(
            (*decision, verdict.agreement.value, verdict.reliability, verdict.resolved)
        )
    column_names = ("benchmark", "verdict", "reason", "mean τ", "reliability", "pairs that differ")
    return Table(
        "Every benchmark",
        column_names,
        table_rows,
        note="One by one: potentia analyze benchmark NAME.",
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
    relatives: ModelFamilies | None = None,
    seed: int = 0,
) -> BenchmarkVerdict:
    """Judge one column of a matrix among the others.

    ``items`` are outcomes by model and document. ``families`` are the known ones of the models; ``relatives`` has those
    that are inferred, too, and is made of the known ones and the scores where absent, as ``screening`` is.
    """
    column = matrix.tasks.index(task)
    has_task = np.isfinite(matrix.values)[:, column]
    models = list(compress(matrix.models, has_task))
    if len(models) < MIN_MODELS:
        raise InputError(
            f"{task} has scores of {len(models)} models",
            hint=f"a verdict needs {MIN_MODELS} at least",
        )
    if relatives is None:
        relatives = ModelFamilies.infer(families or {}, matrix)
    families = relatives.family_of_model
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
    matrix = believe_errors(matrix.select(models=models))
    oriented_scores = matrix.oriented()[:, column]
    stderr = matrix.stderr[:, column]
    answers = _read_answers(models, items or {})
    documents = answers.documents
    by_items = len(documents) >= 2
    sampling = Sampling(units=ResamplingUnits("families", families), resamples=RESAMPLES, seed=seed)
    tuning = measure_tuning_effect(matrix, direct, task, sampling)
    scores = matrix.values[:, column]
    sizes = matrix.n[:, column]
    higher_is_better = matrix.higher_is_better[column]
    at_floor = math.nan
    if higher_is_better and chance is not None and np.isfinite(stderr).any():
        at_floor = share_at_floor(scores, stderr, chance)
    documents_needed = math.nan
    if by_items:
        documents_needed = estimate_documents_needed(answers.values, answers.clusters)
    seed_errors = list_seed_errors(matrix, task, models)
    resolved_share = measure_resolved_share(
        answers.values, answers.clusters, oriented_scores, stderr, seed_errors
    )
    best_score = float(scores.max() if higher_is_better else scores.min())
    test_examples = len(documents)
    if np.isfinite(sizes).any():
        test_examples = int(np.nanmax(sizes))
    agreement = ranking.agreement
    differences = ranking.differences
    measured = BenchmarkVerdict(
        task=task,
        protocol=str(matrix.protocol),
        verdict=Recommendation.KEEP,
        reasons=(),
        models=len(models),
        documents=test_examples,
        others=agreement.others,
        taus=agreement.taus,
        agreement=agreement.mean,
        among_others=agreement.among_others,
        agreement_p=agreement.p_agrees,
        least_agreement_p=agreement.least_p,
        differences_p=differences.p_value,
        reliability=differences.reliability,
        by_items=by_items,
        needed=documents_needed,
        resolved=resolved_share,
        chance=math.nan if chance is None else chance,
        at_floor=at_floor,
        best=best_score,
        median=float(np.median(scores)),
        gain=tuning.gain,
        direct_tuned=tuning.tau,
        suspects=_find_suspects(documents, answers.values, models, families, direct is not None),
        in_train=in_train,
        blind=blind,
        resampled_unit=agreement.drawn_unit,
        without_family=sum(model not in families for model in models),
        inferred_families=relatives.describe_inference(models),
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


@dataclass(frozen=True)
class _Answers:
    """What every model answered."""

    documents: tuple[int, ...]
    values: Floats  # (models, documents)
    clusters: Clusters  # of documents that share a passage


def _read_answers(models: Sequence[str], items: Mapping[str, Mapping[int, float]]) -> _Answers:
    """Return the documents that every model answered, and the answers; none where a model has no items."""
    aligned = align_outcomes(models, items)
    if len(aligned.values) != len(models):
        return _Answers((), np.zeros((len(models), 0)), Clusters.singletons(0))
    answered_by_all = np.flatnonzero(np.isfinite(aligned.values).all(axis=0))
    documents = select_positions(aligned.documents, answered_by_all)
    clusters = Clusters.from_labels(aligned.clusters.numbers[answered_by_all].tolist())
    return _Answers(documents, aligned.values[:, answered_by_all], clusters)


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
            "there are neither results by example nor standard errors, "
            "so whether models differ on it by more than chance is not known: give a column stderr where a row has "
            f"one score, {measured.task}_stderr where a column has one task."
        )
    if ranking.agreement.answer is RankingAnswer.AGREES:
        return None
    if not ranking.models_differ:
        needed = ""
        if measured.by_items:
            needed = (
                f" About {measured.needed:,.0f} examples would detect a difference of "
                f"{100 * RESOLUTION:g} points (80 % power)."
            )
        p_value = format_p_value(measured.differences_p)
        return (
            f"its scores do not differ significantly ({p_value}): "
            f"the models may be equally good at it, or its test is too small.{needed}"
        )
    if not measured.others:
        return None
    return (
        "it is not clear whether it ranks the models as the other tasks do "
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
        text += f"; among the others it is {measured.among_others:.2f}"
    return set_signs(text)


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
                f"{negative} of {measured.documents} examples are answered better by weaker models: "
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
    """Say why a benchmark is kept, and what to know of it."""
    reasons = []
    p_value = format_p_value(measured.differences_p)
    if ranking.models_differ:
        reasons.append(
            f"models differ on it ({p_value}), with a reliability of {measured.reliability:.2f}."
        )
    if ranking.agreement.answer is RankingAnswer.AGREES:
        p_agreement = format_p_value(measured.agreement_p, least=measured.least_agreement_p)
        agreement = f"{_describe_agreement(measured)}, {p_agreement}"
        reasons.append(f"its ranking agrees with the others: {agreement}.")
    if not ranking.models_differ:
        reasons.append(f"its test does not separate single models ({p_value}).")
    if measured.others and ranking.agreement.answer is RankingAnswer.AGREES:
        tau_by_task = dict(zip(measured.others, measured.taus, strict=True))
        nearest = max(measured.others, key=lambda task: tau_by_task[task])
        tau = tau_by_task[nearest]
        lowest = dict(zip(measured.others, ranking.agreement.lowest_taus, strict=True))[nearest]
        has_enough = ranking.agreement.units >= UNITS_FOR_REDUNDANCY
        is_alike = tau > REDUNDANT and lowest > SURELY_REDUNDANT
        if has_enough and is_alike and measured.reliability > REDUNDANT:
            reasons.append(
                f"it ranks the models almost as {nearest} does (τ {tau:.2f}): one of the two is enough."
            )
    return tuple(reasons)
