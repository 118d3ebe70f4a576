"""Every ranking finding that scores can give: in one call, by name, as tables and charts, and in a screenful."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from potentia.analysis.completion import predict_missing_cells
from potentia.analysis.left_out import drop_names_in
from potentia.analysis.rankings.aggregate import Aggregate, aggregate_ranks
from potentia.analysis.rankings.agreement import (
    SIGNIFICANT,
    Agreement,
    AgreementChange,
    compare_agreement,
    measure_agreement,
)
from potentia.analysis.rankings.alignment import Alignment, align_rankings
from potentia.analysis.rankings.components import Components, compute_components, remove_gaps
from potentia.analysis.rankings.compute import ComputeFit, fit_compute
from potentia.analysis.rankings.decide import Ranking, decide_ranking
from potentia.analysis.rankings.groups import (
    GroupAgreement,
    agreement_by_measure,
    agreement_by_models,
    agreement_by_tasks,
    name_size_bins,
    sort_size_bins,
)
from potentia.analysis.rankings.perplexity import PerplexityAgreement, compare_perplexity
from potentia.analysis.rankings.rank_intervals import RankIntervals, rank_intervals
from potentia.analysis.rankings.scoreboard import Scoreboard, scoreboard_from_rankings
from potentia.analysis.rankings.screening import Screening, screen_tasks
from potentia.analysis.rankings.task_curve import (
    TaskCurve,
    has_enough_for_curve,
    measure_task_curve,
)
from potentia.analysis.rankings.tuning import TuningComparison, compare_tuning
from potentia.analysis.stats.bootstrap import (
    LEVEL,
    MODELS,
    RESAMPLES,
    ResamplingUnits,
    Sampling,
)
from potentia.analysis.stats.first_place import ENOUGH_MODELS
from potentia.analysis.stats.relatives import ModelFamilies
from potentia.analysis.stats.significance import (
    Outcomes,
    Significance,
    estimate_test_sizes,
    measure_significance,
    outcome_tables,
)
from potentia.analysis.wording import format_level
from potentia.errors import InputError
from potentia.facts import Background, find_chance_score
from potentia.values.findings import Finding, Findings, Interval, Table, ValuedText
from potentia.values.protocol import (
    DIRECT,
    TRAIN_BEFORE_TEST,
    Protocol,
    choose_main_protocol,
    sort_protocols,
)
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

LARGE_TEST = 2_000  # items (appendix B.5)
SMALLEST_GROUP = 5  # models (appendix B.6)
MANY_CELLS = 20_000  # of a protocol: from so many on, fewer resamples are made than asked for
MANY_RESAMPLES = 200
MANY_MODELS = 100  # of which the curve of few tasks is made


@dataclass(frozen=True)
class RankingOptions:
    """How to analyze: resamples, confidence level, seed, and what to do about missing scores."""

    resamples: int = RESAMPLES
    level: float = LEVEL
    seed: int = 0
    gaps: str = "models"
    simultaneous: bool = False
    exclude_flagged: bool = False
    align: tuple[str, str] | None = None
    use_items: bool = True
    resample: str = "families"  # what intervals draw: families or lineages where known, or models

    def sampling(self, background: Background, relatives: ModelFamilies) -> Sampling:
        """Return how intervals are made: what they draw, with what is known of the models."""
        families = relatives.family_of_model
        inference = relatives.describe_inference(tuple(families))
        units = {
            "families": ResamplingUnits("families", families, inference),
            "lineages": ResamplingUnits("lineages", background.lineages),
            "models": MODELS,
        }
        if self.resample not in units:
            raise InputError(
                f"no unit {self.resample!r} to resample", hint=f"one of: {', '.join(units)}"
            )
        return Sampling(
            units=units[self.resample],
            resamples=self.resamples,
            level=self.level,
            seed=self.seed,
        )


Changes = dict[tuple[Protocol, Protocol], AgreementChange]


LABELS = {  # what findings are called where not by their field
    "overall": "ranking",
    "tuning": "same for all",
    "changes": "change",
    "tau_b": "tau-b",
    "tau_b_changes": "tau-b change",
    "task_curves": "fewer tasks",
    "groups": "by",
    "family_components": "components",
    "perplexity_by_kind": "perplexity direct, tuned tasks,",
}


@dataclass(frozen=True, kw_only=True)
class Rankings(Findings):
    """Every ranking finding in reading order, by what it is about; what the scores have no evidence for is absent."""

    scoreboard: Scoreboard
    overall: dict[Protocol, Ranking]
    tuning: dict[Protocol, TuningComparison] = field(default_factory=dict)
    screening: Screening
    agreement: dict[Protocol, Agreement] = field(default_factory=dict)
    measures: GroupAgreement | None = None
    changes: Changes = field(default_factory=dict)
    # with insignificant differences as ties
    tau_b: dict[Protocol, Agreement] = field(default_factory=dict)
    tau_b_changes: Changes = field(default_factory=dict)
    task_curves: dict[Protocol, TaskCurve] = field(default_factory=dict)
    groups: dict[str, GroupAgreement] = field(default_factory=dict)  # size, family, kind, test size
    significance: dict[Protocol, Significance] = field(default_factory=dict)
    ranks: dict[Protocol, RankIntervals] = field(default_factory=dict)
    aggregate: dict[Protocol, Aggregate] = field(default_factory=dict)
    components: dict[Protocol, Components] = field(default_factory=dict)
    family_components: dict[Protocol, dict[str, Components]] = field(default_factory=dict)
    compute: dict[Protocol, ComputeFit] = field(default_factory=dict)
    perplexity: dict[Protocol, PerplexityAgreement] = field(default_factory=dict)
    perplexity_by_kind: dict[str, PerplexityAgreement] = field(default_factory=dict)
    alignment: dict[Protocol, Alignment] = field(default_factory=dict)

    @property
    def level(self) -> float:
        """The confidence level of all intervals."""
        return self.scoreboard.ranking.level

    def headline(self) -> str:
        """Say who is the best, or who is most likely to be."""
        return self.scoreboard.headline()

    def sentences(self) -> list[str]:
        """Say who is the best, how sure that is, and what would make it surer."""
        return [self.headline(), *self.scoreboard.certainty()]

    def findings_by_name(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in reading order."""
        findings: dict[str, Finding] = {}
        for attribute in fields(self):
            label = LABELS.get(attribute.name, attribute.name)
            value = getattr(self, attribute.name)
            if isinstance(value, Finding):
                findings[label] = value
            elif value:
                for finding_name, finding in _flatten_findings(value):
                    findings[f"{label} {finding_name}"] = finding
        return findings


def _flatten_findings(findings: Mapping[Any, Any]) -> Iterator[tuple[str, Finding]]:
    """Yield findings of one kind with their names, of each family apart where they are so."""
    for key, value in findings.items():
        if not isinstance(value, Finding):
            for family, finding in value.items():
                yield f"{key} {family}", finding
        elif isinstance(key, tuple):
            yield " ".join(key), value
        else:
            yield key, value


def find_rankings(evidence: Evidence, options: RankingOptions | None = None) -> Rankings:
    """Run every analysis that the evidence allows: what ``potentia analyze rankings`` prints and the report shows.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        options: Confidence level, resamples, tasks to leave out; ``RankingOptions()`` where absent.

    Example:
        >>> potentia.find_rankings("scores.csv").to_frame()
    """
    options = options or RankingOptions()
    items = evidence.outcomes if options.use_items else None
    rankings = analyze_scores(
        evidence.final_scores, evidence.background, options, items, evidence=evidence
    )
    ranked = {}
    for protocol, ranking in rankings.overall.items():
        ranked[protocol] = evidence.final_scores[protocol].select(tasks=ranking.tasks)
    with threadpool_limits(1, user_api="blas"):
        return replace(rankings, tuning=compare_tuning(evidence, ranked))


def build_scoreboard(evidence: Evidence) -> Scoreboard:
    """Return the scoreboard alone, as ``find_rankings`` has it; also of one model, and of texts where there is no task.

    This is what a run ends with: it needs the overall ranking and none of the rest.
    """
    final_matrices = [
        evidence.final_scores[protocol] for protocol in sort_protocols(evidence.final_scores)
    ]
    matrices = _drop_empty([matrix.benchmarks() for matrix in final_matrices])
    if not matrices:
        matrices = _drop_empty([_select_texts(matrix) for matrix in final_matrices])
    if not matrices:
        raise InputError("there is no score yet")
    with_rivals = [matrix for matrix in matrices if matrix.shape[0] > 1]
    ranked_matrices = with_rivals or matrices
    task_groups = evidence.background.task_groups
    with threadpool_limits(1, user_api="blas"):
        overall = _rank_overall(
            ranked_matrices, RankingOptions(), evidence.outcomes, task_groups, evidence
        )
        sizes = evidence.background.billions
        return scoreboard_from_rankings(ranked_matrices, overall, evidence.outcomes, sizes)


def _drop_empty(matrices: Sequence[ScoreMatrix]) -> list[ScoreMatrix]:
    """Return the matrices that have a model and a task."""
    return [matrix for matrix in matrices if matrix.models and matrix.tasks]


def _select_texts(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the texts to predict of the models that have a score on any."""
    texts = matrix.corpora()
    return texts.select(models=np.isfinite(texts.values).any(axis=1))


def analyze_scores(
    scores: Mapping[Protocol, ScoreMatrix],
    background: Background | None = None,
    options: RankingOptions | None = None,
    items: Mapping[Protocol, Outcomes] | None = None,
    *,
    evidence: Evidence | None = None,
) -> Rankings:
    """Analyze matrices by protocol.

    Texts to predict (bits per byte) are compared with the tasks; the rest are tasks. ``items`` are stored outcomes by
    protocol; where they are there, they give paired tests and the noise of scores. ``evidence`` is where the scores are
    from, if from a study: it says which cells are still to come.
    """
    options = options or RankingOptions()
    items = items or {}
    matrices = []
    for protocol in sort_protocols(scores):
        tasks = scores[protocol].benchmarks()
        if tasks.shape[0] > 1 and tasks.shape[1] > 0:
            matrices.append(tasks)
    if not matrices:
        raise InputError(
            "there is nothing to rank: no protocol has two models with a score on a task"
        )
    background = background or _look_up_background(matrices)
    relatives = ModelFamilies.of_background(background, _select_main_matrix(matrices))
    if max(matrix.values.size for matrix in matrices) > MANY_CELLS:
        options = replace(options, resamples=min(options.resamples, MANY_RESAMPLES))
    # Many small products: threads that wait for each other cost more than they save.
    with threadpool_limits(1, user_api="blas"):
        screening = _screen_first(matrices, background, relatives, items, options)
        if options.exclude_flagged:
            matrices = _exclude_tasks(matrices, screening.flagged_tasks)
        overall = _rank_overall(matrices, options, items, background.task_groups, evidence)
        analysis = _RankingAnalysis(
            scores=scores,
            matrices=matrices,
            background=background,
            options=options,
            items=items,
            sampling=options.sampling(background, relatives),
        )
        scoreboard = scoreboard_from_rankings(matrices, overall, items, background.billions)
        return analysis.complete_rankings(scoreboard, overall, screening)


def _look_up_background(matrices: Sequence[ScoreMatrix]) -> Background:
    """Return what the shipped facts know of the models of all matrices."""
    models = itertools.chain.from_iterable(matrix.models for matrix in matrices)
    return Background.of(dict.fromkeys(models))


def _select_main_matrix(matrices: Sequence[ScoreMatrix]) -> ScoreMatrix:
    """Return the matrix of the protocol that ranks, by which the families of models are inferred."""
    matrix_by_protocol = {matrix.protocol: matrix for matrix in matrices}
    main_protocol = choose_main_protocol(matrix_by_protocol)
    if main_protocol is None:
        return matrices[0]
    return matrix_by_protocol[main_protocol]


def _screen_first(
    matrices: Sequence[ScoreMatrix],
    background: Background,
    relatives: ModelFamilies,
    items: Mapping[Protocol, Outcomes],
    options: RankingOptions,
) -> Screening:
    """Screen the tasks of the first protocol, with the tuned scores where there are some."""
    first = matrices[0]
    tuned = next((matrix for matrix in matrices[1:] if matrix.protocol == TRAIN_BEFORE_TEST), None)
    chances = {}
    for task, metric in zip(first.tasks, first.metrics, strict=True):
        chance = find_chance_score(task, metric, background.chance)
        if chance is not None:
            chances[task] = chance
    return screen_tasks(
        first,
        tuned,
        train_examples=background.train_examples,
        chance=chances,
        families=relatives.family_of_model,
        task_groups=background.task_groups,
        items=items.get((tuned or first).protocol),
        level=options.level,
    )


def _exclude_tasks(matrices: Sequence[ScoreMatrix], flagged: Sequence[str]) -> list[ScoreMatrix]:
    """Return the matrices without the flagged tasks."""
    remaining = [matrix.select(tasks=drop_names_in(matrix.tasks, flagged)) for matrix in matrices]
    if not all(matrix.tasks for matrix in remaining):
        raise InputError(
            "every task is flagged; nothing is left to rank", hint="leave exclude_flagged out"
        )
    return remaining


def _rank_overall(
    matrices: Sequence[ScoreMatrix],
    options: RankingOptions,
    items: Mapping[Protocol, Outcomes],
    task_groups: Mapping[str, str],
    evidence: Evidence | None,
) -> dict[Protocol, Ranking]:
    """Rank the models over all tasks of each protocol; what a study has not measured yet is predicted."""
    cell_samplers = {}
    if evidence is not None:
        cell_samplers = predict_missing_cells(evidence, matrices)
    rankings = {}
    for matrix in matrices:
        cell_sampler = cell_samplers.get(matrix.protocol)
        rankings[matrix.protocol] = decide_ranking(
            matrix,
            items.get(matrix.protocol),
            task_groups=task_groups,
            cell_sampler=cell_sampler,
            level=options.level,
            seed=options.seed,
        )
    return rankings


@dataclass(frozen=True)
class _RankingAnalysis:
    """Some matrices of tasks, and all that is known beside them."""

    scores: Mapping[Protocol, ScoreMatrix]  # with the texts to predict
    matrices: Sequence[ScoreMatrix]
    background: Background
    options: RankingOptions
    items: Mapping[Protocol, Outcomes]
    sampling: Sampling

    def complete_rankings(
        self, scoreboard: Scoreboard, overall: dict[Protocol, Ranking], screening: Screening
    ) -> Rankings:
        """Return all findings: those given, and every other that the scores allow."""
        tested = self._select_tested()
        agreement = self._measure_agreements(self.matrices)
        components = self._compute_components()
        aggregate = {matrix.protocol: aggregate_ranks(matrix) for matrix in self.matrices}
        groups = self._measure_groups() if agreement else {}
        changes = self._compare_protocols(self.matrices)
        tau_b = self._measure_agreements(tested, SIGNIFICANT)
        tau_b_changes = self._compare_protocols(tested, SIGNIFICANT)
        return Rankings(
            scoreboard=scoreboard,
            overall=overall,
            screening=screening,
            agreement=agreement,
            measures=self._compare_measures(agreement),
            changes=changes,
            tau_b=tau_b,
            tau_b_changes=tau_b_changes,
            groups=groups,
            task_curves=self._measure_task_curves(),
            significance=self._measure_significance(tested),
            ranks=self._compute_rank_intervals(tested),
            aggregate=aggregate,
            components=components,
            family_components=self._compute_family_components(components),
            compute=self._fit_compute(components),
            perplexity=self._compare_perplexity(),
            perplexity_by_kind=self._compare_perplexity_by_kind(),
            alignment=self._align_rankings(agreement),
        )

    def _select_tested(self) -> list[ScoreMatrix]:
        """Return the matrices with the tasks of which every score has a standard error."""
        tested = []
        for matrix in self.matrices:
            lacks_error = np.isfinite(matrix.values) & ~np.isfinite(matrix.stderr)
            with_errors = matrix.select(tasks=~lacks_error.any(axis=0))
            if with_errors.tasks:
                tested.append(with_errors)
        return tested

    def _measure_agreements(
        self, matrices: Sequence[ScoreMatrix], method: str = "kendall"
    ) -> dict[Protocol, Agreement]:
        """Measure the agreement between the tasks of each protocol that has several."""
        agreements: dict[Protocol, Agreement] = {}
        for matrix in matrices:
            if len(matrix.tasks) < 2:
                continue
            outcomes: Outcomes = {}
            if method != SIGNIFICANT:
                outcomes = self.items.get(matrix.protocol, {})
            agreements[matrix.protocol] = measure_agreement(
                matrix,
                method=method,
                categories=self.background.categories,
                task_groups=self.background.task_groups,
                items=outcome_tables(matrix, outcomes),
                sampling=self.sampling,
            )
        return agreements

    def _compare_measures(self, agreement: Mapping[Protocol, Agreement]) -> GroupAgreement | None:
        """Compare Kendall's, Spearman's and Pearson's agreement of the protocols that have one."""
        matrices = [matrix for matrix in self.matrices if matrix.protocol in agreement]
        if not matrices:
            return None
        return agreement_by_measure(matrices, sampling=self.sampling)

    def _compare_protocols(
        self, matrices: Sequence[ScoreMatrix], method: str = "kendall"
    ) -> Changes:
        """Compare the agreement of every two protocols that share two models and two tasks."""
        changes: Changes = {}
        for before, after in itertools.combinations(matrices, 2):
            shared_tasks = set(before.tasks) & set(after.tasks)
            shared_models = set(before.models) & set(after.models)
            if len(shared_tasks) > 1 and len(shared_models) > 1:
                changes[before.protocol, after.protocol] = compare_agreement(
                    before,
                    after,
                    method=method,
                    task_groups=self.background.task_groups,
                    sampling=self.sampling,
                )
        return changes

    def _measure_groups(self) -> dict[str, GroupAgreement]:
        """Measure agreement among models of one size, family or kind, and among tasks with large and small tests."""
        sizes = name_size_bins(self.background.billions)
        groupings: dict[str, Mapping[str, str]] = {
            "size in billions": sizes,
            "family": self.background.families,
            "kind": self.background.kinds,
        }
        agreements = {}
        for grouping, groups in groupings.items():
            order = sort_size_bins(sizes.values()) if groups is sizes else None
            agreement = agreement_by_models(
                self.matrices, groups, grouping=grouping, order=order, sampling=self.sampling
            )
            if len(agreement.groups) > 2:  # the last is of all models: at least two to compare
                agreements[grouping] = agreement
        test_sizes = estimate_test_sizes(self.matrices[0])
        large_tasks = [task for task, size in test_sizes.items() if size > LARGE_TEST]
        small = [task for task, size in test_sizes.items() if size <= LARGE_TEST]
        if 1 < len(large_tasks) < len(self.matrices[0].tasks):
            agreements["test size"] = agreement_by_tasks(
                self.matrices,
                {
                    f"over {LARGE_TEST:,} examples": large_tasks,
                    f"up to {LARGE_TEST:,} examples": small,
                },
                grouping="test set size",
                sampling=self.sampling,
            )
        return agreements

    def _measure_task_curves(self) -> dict[Protocol, TaskCurve]:
        """Measure how few tasks suffice, where enough models have all of them; of many models, some tell."""
        rng = np.random.default_rng(self.options.seed)
        curves = {}
        for matrix in self.matrices:
            complete = matrix.drop_incomplete_models()
            if not has_enough_for_curve(complete):
                continue
            rows = np.sort(rng.permutation(len(complete.models))[:MANY_MODELS])
            curves[matrix.protocol] = measure_task_curve(
                complete.select(models=rows),
                lineages=self.background.lineages,
                task_groups=self.background.task_groups,
                seed=self.options.seed,
            )
        return curves

    def _measure_significance(self, tested: Sequence[ScoreMatrix]) -> dict[Protocol, Significance]:
        """Test every pair of models under each protocol."""
        findings = {}
        for matrix in tested:
            outcomes = self.items.get(matrix.protocol)
            findings[matrix.protocol] = measure_significance(
                matrix, outcomes, level=self.options.level
            )
        return findings

    def _compute_rank_intervals(
        self, tested: Sequence[ScoreMatrix]
    ) -> dict[Protocol, RankIntervals]:
        """Compute the ranks that every model may have on every task under each protocol."""
        findings = {}
        for matrix in tested:
            findings[matrix.protocol] = rank_intervals(
                matrix,
                self.items.get(matrix.protocol),
                level=self.options.level,
                simultaneous=self.options.simultaneous,
                seed=self.options.seed,
            )
        return findings

    def _compute_components(self) -> dict[Protocol, Components]:
        """Compute the principal components of each protocol with several tasks and three models without gaps."""
        gaps = self.options.gaps
        components = {}
        for matrix in self.matrices:
            if len(matrix.tasks) > 1 and remove_gaps(matrix, gaps).shape[0] > 2:
                components[matrix.protocol] = compute_components(
                    matrix, gaps=gaps, sampling=self.sampling
                )
        return components

    def _compute_family_components(
        self, components: Mapping[Protocol, Components]
    ) -> dict[Protocol, dict[str, Components]]:
        """Compute the components of each family by itself."""
        gaps = self.options.gaps
        families = self.background.families
        sampling = replace(self.sampling, units=MODELS)
        by_protocol: dict[Protocol, dict[str, Components]] = {}
        for matrix in self.matrices:
            if matrix.protocol not in components:
                continue
            for family in sorted(set(families.values())):
                members = [model for model in matrix.models if families.get(model) == family]
                of_family = matrix.select(models=members)
                if remove_gaps(of_family, gaps).shape[0] < SMALLEST_GROUP:
                    continue
                by_family = by_protocol.setdefault(matrix.protocol, {})
                by_family[family] = compute_components(
                    of_family, group=family, gaps=gaps, sampling=sampling
                )
        return by_protocol

    def _fit_compute(self, components: Mapping[Protocol, Components]) -> dict[Protocol, ComputeFit]:
        """Fit PC1 on pretraining compute where three different amounts are known."""
        flops = self.background.flops
        fit_by_protocol = {}
        for protocol, of_protocol in components.items():
            amounts = {flops[model] for model in of_protocol.models if model in flops}
            if len(amounts) > 2:
                fit_by_protocol[protocol] = fit_compute(
                    of_protocol,
                    flops,
                    families=self.background.families,
                    sampling=self.sampling,
                )
        return fit_by_protocol

    def _compare_perplexity(self) -> dict[Protocol, PerplexityAgreement]:
        """Compare perplexity with tasks within each protocol."""
        findings = {}
        for matrix in self.matrices:
            texts = self.scores[matrix.protocol].corpora()
            if texts.tasks:
                findings[matrix.protocol] = compare_perplexity(
                    texts, matrix, sampling=self.sampling
                )
        return findings

    def _compare_perplexity_by_kind(self) -> dict[str, PerplexityAgreement]:
        """Compare perplexity before tuning with tasks after it, for base and for instruct models (figure 5)."""
        tuned = next(
            (matrix for matrix in self.matrices if matrix.protocol == TRAIN_BEFORE_TEST), None
        )
        if tuned is None or DIRECT not in self.scores:
            return {}
        texts = _select_texts(self.scores[DIRECT])
        if not texts.tasks:
            return {}
        kinds = self.background.kinds
        findings = {}
        for model_kind in ("base", "instruct"):
            of_kind = {model for model in tuned.models if kinds.get(model) == model_kind}
            members = of_kind.intersection(texts.models)
            if len(members) > 2:
                findings[model_kind] = compare_perplexity(
                    texts, tuned, models=members, group=model_kind, sampling=self.sampling
                )
        return findings

    def _align_rankings(self, agreement: Mapping[Protocol, Agreement]) -> dict[Protocol, Alignment]:
        """Align the two tasks asked for, or those that agree least under the first protocol."""
        task_pair = self.options.align
        if task_pair is None:
            task_pair = _least_agreeing_tasks(self.matrices[0], agreement)
        else:
            for matrix in self.matrices:
                matrix.select(tasks=task_pair)  # raises an error that names the task there is not
        if task_pair is None:
            return {}
        first, second = task_pair
        alignments = {}
        for matrix in self.matrices:
            if first in matrix.tasks and second in matrix.tasks:
                alignments[matrix.protocol] = align_rankings(
                    matrix,
                    first,
                    second,
                    level=self.options.level,
                    families=self.background.families,
                )
        return alignments


def _least_agreeing_tasks(
    matrix: ScoreMatrix, agreement: Mapping[Protocol, Agreement]
) -> tuple[str, str] | None:
    """Return the two tasks with standard errors that agree least."""
    if matrix.protocol not in agreement:
        return None
    has_errors = np.isfinite(matrix.stderr).all(axis=0)
    comparable = np.triu(np.outer(has_errors, has_errors), 1)
    tau = np.where(comparable, agreement[matrix.protocol].matrix, np.nan)
    if not np.isfinite(tau).any():
        return None
    first, second = np.unravel_index(np.nanargmin(tau), tau.shape)
    return matrix.tasks[int(first)], matrix.tasks[int(second)]


def summarize_rankings(rankings: Rankings) -> Sequence[Table]:
    """Return how far the tasks agree and separate models under each protocol, and which tasks to distrust."""
    tables = []
    overview = _tabulate_overview(rankings)
    if overview is not None:
        tables.append(overview)
    for comparison in rankings.tuning.values():
        tables += comparison.tables()
    if rankings.screening.flags:
        flags = [(flag.task, flag.reason, flag.evidence) for flag in rankings.screening.flags]
        tables.append(Table("Tasks to distrust", ("task", "reason", "evidence"), flags))
    return tables


@dataclass(frozen=True)
class _OverviewRow:
    """One measure of all tasks together, under each protocol that has it."""

    label: str
    estimates: Mapping[Protocol, Interval]
    units: Mapping[Protocol, str]  # what the bootstrap resamples
    as_percent: bool = False

    def shown_protocols(self, rankings: Rankings) -> list[Protocol]:
        """Return the protocols with an estimate; fewer than five models say nothing of it."""
        protocols = []
        for protocol, estimate in self.estimates.items():
            models = len(rankings.overall[protocol].models) if protocol in rankings.overall else 0
            if models >= ENOUGH_MODELS and np.isfinite(estimate.value):
                protocols.append(protocol)
        return protocols

    def format_estimate(self, protocol: Protocol) -> str:
        """Write the estimate with its interval."""
        estimate = self.estimates[protocol]
        value, low, high = map(self._format_number, (estimate.value, estimate.low, estimate.high))
        text = f"{value} ({low} to {high})" if np.isfinite(estimate.low) else value
        return ValuedText(text, value=estimate.value, low=estimate.low, high=estimate.high)

    def _format_number(self, number: float) -> str:
        return f"{100 * number:.0f} %" if self.as_percent else f"{number:.2f}"


def _list_overview_rows(rankings: Rankings) -> list[_OverviewRow]:
    """Return the measures of the overview in reading order.

    They are Kendall's τ between tasks, the variance on the first principal component, and τ between perplexity and
    tasks.
    """
    agreements = rankings.agreement.items()
    components = rankings.components.items()
    perplexities = rankings.perplexity.items()
    agreement_row = _OverviewRow(
        label="agreement between tasks (mean Kendall's τ)",
        estimates={protocol: agreement.interval for protocol, agreement in agreements},
        units={protocol: agreement.resampled_unit for protocol, agreement in agreements},
    )
    estimates = {protocol: component.explained[0] for protocol, component in components}
    units = {protocol: component.resampled_unit for protocol, component in components}
    component_row = _OverviewRow(
        label="variance on one component (PC1)",
        estimates=estimates,
        units=units,
        as_percent=True,
    )
    perplexity_row = _OverviewRow(
        label="agreement of perplexity with tasks (mean τ)",
        estimates={protocol: perplexity.mean for protocol, perplexity in perplexities},
        units={protocol: perplexity.resampled_unit for protocol, perplexity in perplexities},
    )
    return [agreement_row, component_row, perplexity_row]


def _tabulate_overview(rankings: Rankings) -> Table | None:
    """Return the table of all tasks together; None where there is nothing to say."""
    protocols = list(rankings.overall)
    table_rows: list[Sequence[str | None]] = []
    units: dict[str, None] = {}  # in the order of first use
    for overview_row in _list_overview_rows(rankings):
        protocols_of_row = overview_row.shown_protocols(rankings)
        if not protocols_of_row:
            continue
        cells: list[str | None] = [overview_row.label]
        for protocol in protocols:
            estimate = None
            if protocol in protocols_of_row:
                estimate = overview_row.format_estimate(protocol)
            cells.append(estimate)
        table_rows.append(cells)
        units |= dict.fromkeys(overview_row.units[protocol] for protocol in protocols_of_row)
    if rankings.significance:
        cells = ["pairs of models that differ significantly on a task"]
        for protocol in protocols:
            cells.append(_format_significant_share(rankings.significance.get(protocol)))
        table_rows.append(cells)
    if not table_rows:
        return None
    note = ""
    if units:
        note = (
            f"In brackets: {format_level(rankings.level)} intervals over {' or '.join(units)}. "
            "1 is perfect agreement, 0 is none."
        )
    column_names = ("", *(protocol.label for protocol in protocols))
    return Table("All tasks together", column_names, table_rows, note)


def _format_significant_share(significance: Significance | None) -> str | None:
    """Write the share of pairs of models that differ significantly on a task; None where none could be compared."""
    if significance is None or not sum(significance.pairs):
        return None
    share = sum(significance.significant) / sum(significance.pairs)
    return ValuedText(f"{100 * share:.0f} %", value=share)
