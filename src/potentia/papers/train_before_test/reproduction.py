"""Reproduction of the train-before-test paper: each number it prints, beside the same from its published scores.

Definitions are the paper's where it gives them. Where our number differs, or where the text leaves room, the check says
which definition was used; nothing is tuned to match. The comparison itself is in ``comparison``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np

from potentia.analysis.left_out import NO_ENTRIES, drop_names_in, keep_names_in
from potentia.analysis.rankings import groups
from potentia.analysis.rankings.agreement import (
    SIGNIFICANT,
    Agreement,
    AgreementChange,
    compare_agreement,
    measure_agreement,
)
from potentia.analysis.rankings.alignment import Alignment, align_rankings
from potentia.analysis.rankings.components import Components, compute_components
from potentia.analysis.rankings.compute import ComputeFit, fit_compute
from potentia.analysis.rankings.groups import GroupAgreement
from potentia.analysis.rankings.perplexity import PerplexityAgreement, compare_perplexity
from potentia.analysis.stats.bootstrap import RESAMPLES, Sampling
from potentia.analysis.stats.significance import Significance, measure_significance
from potentia.errors import InputError
from potentia.facts import ModelFacts, benchmarks, models
from potentia.papers.printed import (
    COMPARISON_COLUMNS,
    ReproducedNumber,
    count_agreeing,
    read_printed_numbers,
)
from potentia.values.findings import Chart, Finding, Table, TableValue
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol
from potentia.values.scores import ScoreMatrix

PRINTED = SimpleNamespace(**read_printed_numbers("train_before_test"))
PROTOCOLS = (DIRECT, TRAIN_BEFORE_TEST)
FEW_SHOT = "few_shot"
CORPORA = ("arxiv_2025", "wiki_2025", "stackexchange_2025")
FAMILIES = ("llama", "pythia", "qwen", "gemma", "yi")  # of table 8
ALIGNED_TASKS = ("nq_open", "arc_challenge")  # of figure 1
MIN_FAMILY = 4  # models of a family, for table 7
# Findings by the names that JSON and figures give them.
CHANGE = "change"
FROM_FEW_SHOT = "change from few-shot"
BY_SIZE = "by size"
BY_FAMILY = "by family"
LARGE_TESTS = "large tests"


# --- what is found ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberCheck:
    """One number of the paper beside ours. ``ours`` is NaN where the published scores cannot give it."""

    where: str
    what: str
    paper: float  # NaN where the paper's figure cannot be read as text
    ours: float
    digits: int = 2
    note: str = ""
    from_facts: bool = False  # computed from the shipped facts of models: no given score takes part

    @property
    def same(self) -> bool | None:
        """Whether both agree at the paper's digits; None where one of them is missing."""
        if np.isnan(self.paper) or np.isnan(self.ours):
            return None
        return bool(abs(round(self.ours, self.digits) - self.paper) < 10**-self.digits / 2)

    def to_line(self) -> ReproducedNumber:
        """Return the check as the other papers' comparisons have it."""
        printed = _format_number(self.paper, self.digits) or ""
        return ReproducedNumber(
            place=self.where,
            what=self.what,
            ours=self.ours,
            printed=printed,
            agrees=self.same,
            remark=self.note,
            from_facts=self.from_facts,
        )


@dataclass(frozen=True, eq=False)
class PaperFindings:
    """The findings behind the paper's numbers; by protocol, where there is one for each."""

    agreement: dict[str, Agreement] = field(default_factory=dict)
    significance: dict[str, Significance] = field(default_factory=dict)
    components: dict[str, Components] = field(default_factory=dict)
    tau_b: dict[str, Agreement] = field(default_factory=dict)
    changes: dict[str, AgreementChange] = field(default_factory=dict)
    groups: dict[str, GroupAgreement] = field(default_factory=dict)
    perplexity: dict[str, PerplexityAgreement] = field(default_factory=dict)
    family_components: dict[str, Components] = field(default_factory=dict)
    compute: ComputeFit | None = None
    alignment: dict[str, Alignment] = field(default_factory=dict)

    def findings_by_name(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in reading order."""
        findings: dict[str, Finding] = {}
        for protocol in self.agreement:
            findings[f"agreement {protocol}"] = self.agreement[protocol]
            findings[f"significance {protocol}"] = self.significance[protocol]
            findings[f"components {protocol}"] = self.components[protocol]
            findings[f"tau-b {protocol}"] = self.tau_b[protocol]
        findings |= self.changes
        findings |= self.groups
        for model_kind, comparison in self.perplexity.items():
            findings[f"perplexity {model_kind}"] = comparison
        for model_kind, components in self.family_components.items():
            findings[f"components {model_kind}"] = components
        if self.compute is not None:
            findings["compute"] = self.compute
        for protocol, alignment in self.alignment.items():
            findings[f"alignment {protocol}"] = alignment
        return findings


@dataclass(frozen=True)
class TrainBeforeTestPaper(Finding):
    """All checks, and the findings behind them."""

    models: int
    tasks: int
    checks: tuple[NumberCheck, ...]
    findings: dict[str, Finding]

    @property
    def differing(self) -> tuple[NumberCheck, ...]:
        """Checks where both numbers exist and differ."""
        return tuple(check for check in self.checks if check.same is False)

    def lines(self) -> list[ReproducedNumber]:
        """Return every comparison with a printed number."""
        return [check.to_line() for check in self.checks]

    def tables(self) -> Sequence[Table]:
        """Return one table per place in the paper, then a summary."""
        column_names = COMPARISON_COLUMNS[1:]  # where it stands is the title
        rows_by_place: dict[str, list[tuple[TableValue, ...]]] = {}
        for line in self.lines():
            rows_by_place.setdefault(line.place, []).append(line.to_row()[1:])
        tables = [
            Table(location, column_names, table_rows)
            for location, table_rows in rows_by_place.items()
        ]
        return [*tables, self.summarize()]

    def summarize(self) -> Table:
        """Return how many numbers are the paper's, and which differ."""
        from_facts = sum(check.same is True and check.from_facts for check in self.checks)
        agreeing = sum(check.same is True for check in self.checks) - from_facts
        not_in_scores = sum(bool(np.isnan(check.ours)) for check in self.checks)
        not_printed = sum(bool(np.isnan(check.paper)) for check in self.checks)
        counts = (
            ("the same at the paper's digits, from the given scores", agreeing),
            ("the same, from the shipped facts of models: no given score takes part", from_facts),
            ("different", len(self.differing)),
            ("printed in the paper, not in these scores", not_in_scores),
            ("ours only: the paper prints none, or a picture", not_printed),
        )
        title = f"Train-before-test from {self.models} models × {self.tasks} benchmarks"
        note = f"{count_agreeing(self.lines())} {self.name_differing()}"
        return Table(title, ("numbers", "count"), counts, note)

    def name_differing(self) -> str:
        """Say which numbers differ from the paper's, with both."""
        if not self.differing:
            return "No number differs from the paper's."
        named = []
        for check in self.differing:
            printed = _format_number(check.paper, check.digits)
            ours = _format_number(check.ours, check.digits)
            named.append(f"{check.where}, {check.what}: {ours}, printed {printed}")
        return f"Different from the paper: {'; '.join(named)}."

    def charts(self) -> Sequence[Chart]:
        """Return the figures of the paper, drawn from the published scores."""
        charts: list[Chart] = []
        for finding in self.findings.values():
            charts += finding.charts()
        return charts


def _format_number(value: float, digits: int) -> str | None:
    return None if np.isnan(value) else f"{value:.{digits}f}"


# --- from scores to findings -----------------------------------------------------------------------------------------


def reproduce_train_before_test(
    scores: Mapping[Protocol, ScoreMatrix],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    model_sizes: Mapping[str, float] = NO_ENTRIES,
) -> TrainBeforeTestPaper:
    """Compute every number of the paper that ``scores`` can give; a few_shot matrix, where there is one, joins in.

    Args:
        scores: Protocol → matrix; a few-shot matrix, where there is one, joins in.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
        model_sizes: Parameters of models, as the store of the scores knows them; those of the shipped facts join in.

    Example:
        >>> potentia.reproduce_train_before_test(potentia.read("all_results.json").scores).to_frame()
    """
    from potentia.papers.train_before_test.comparison import compare_with_paper

    missing = drop_names_in(PROTOCOLS, scores)
    if missing:
        raise InputError(
            f"these scores have no protocol {missing[0]!r}",
            hint=f"the reproduction needs {' and '.join(PROTOCOLS)}, as published with the paper",
        )
    matrices: dict[str, ScoreMatrix] = {}
    for protocol in PROTOCOLS:
        matrices[protocol] = _select_benchmarks(scores[protocol])
        if len(matrices[protocol].models) < 2:
            raise InputError(
                f"fewer than two models have scores {protocol.phrase}: there is no ranking",
                hint="the reproduction needs the scores of several models, as published with the paper",
            )
    few_shot = _find_few_shot(scores)
    if few_shot is not None:
        matrices[FEW_SHOT] = few_shot
    findings = _compute_findings(scores, matrices, Sampling(resamples=resamples, seed=seed))
    direct = matrices[DIRECT]
    sizes = _find_sizes(matrices[TRAIN_BEFORE_TEST].models, model_sizes)
    return TrainBeforeTestPaper(
        models=len(direct.models),
        tasks=len(direct.tasks),
        checks=tuple(compare_with_paper(scores, matrices, findings, sizes)),
        findings=findings.findings_by_name(),
    )


def _find_sizes(model_names: Sequence[str], stated_sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the parameters of the models, as stated or else by the shipped facts; unknown ones are left out."""
    sizes = {}
    for model in model_names:
        model_facts = models().find(model)
        if model in stated_sizes:
            sizes[model] = stated_sizes[model]
        elif model_facts is not None and model_facts.size:
            sizes[model] = model_facts.size
    return sizes


def _select_benchmarks(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the benchmarks without the corpora, in the order of table 5."""
    unlisted_tasks = drop_names_in(matrix.tasks, {*PRINTED.TABLE_5, *CORPORA})
    return matrix.select(tasks=[*keep_names_in(PRINTED.TABLE_5, matrix.tasks), *unlisted_tasks])


def _find_few_shot(scores: Mapping[Protocol, ScoreMatrix]) -> ScoreMatrix | None:
    for protocol, matrix in scores.items():
        if Protocol(protocol).kind == FEW_SHOT:
            return replace(_select_benchmarks(matrix), protocol=Protocol(FEW_SHOT))
    return None


def _compute_findings(
    scores: Mapping[Protocol, ScoreMatrix], matrices: Mapping[str, ScoreMatrix], sampling: Sampling
) -> PaperFindings:
    """Compute the findings of all figures and tables."""
    direct = matrices[DIRECT]
    facts: dict[str, ModelFacts] = {}
    for model in direct.models:
        model_facts = models().find(model)
        if model_facts is not None:
            facts[model] = model_facts
    findings = PaperFindings(
        changes=_compare_protocols(matrices, sampling),
        groups=_group_models(list(matrices.values()), facts, sampling),
        perplexity=_compare_perplexity(scores, matrices, facts, sampling),
        family_components=_compute_family_components(matrices, facts, sampling),
        alignment=_align_rankings(matrices, facts),
    )
    categories = {
        benchmark.task: benchmark.category for benchmark in benchmarks() if benchmark.category
    }
    for protocol, matrix in matrices.items():
        findings.agreement[protocol] = measure_agreement(
            matrix, categories=categories, sampling=sampling
        )
        findings.significance[protocol] = measure_significance(matrix)
        findings.components[protocol] = compute_components(matrix, sampling=sampling)
        findings.tau_b[protocol] = measure_agreement(
            matrix, method=SIGNIFICANT, categories=categories, sampling=sampling
        )
    compute = _fit_compute(findings.components[TRAIN_BEFORE_TEST], facts, sampling)
    return replace(findings, compute=compute)


def _compare_protocols(
    matrices: Mapping[str, ScoreMatrix], sampling: Sampling
) -> dict[str, AgreementChange]:
    """Return what fine-tuning changes in the agreement of benchmarks (figures 2, 12 and appendix B.4)."""
    direct = matrices[DIRECT]
    tuned = matrices[TRAIN_BEFORE_TEST]
    changes = {
        CHANGE: compare_agreement(direct, tuned, sampling=sampling),
        "tau-b change": compare_agreement(direct, tuned, method=SIGNIFICANT, sampling=sampling),
    }
    if FEW_SHOT in matrices:
        changes[FROM_FEW_SHOT] = compare_agreement(matrices[FEW_SHOT], tuned, sampling=sampling)
    return changes


def _group_models(
    matrices: Sequence[ScoreMatrix], facts: Mapping[str, ModelFacts], sampling: Sampling
) -> dict[str, GroupAgreement]:
    """Return tables 6 and 7 and appendix B.5: models of one size or family, and benchmarks with large tests."""
    billions = {
        model: model_facts.size / 1e9 for model, model_facts in facts.items() if model_facts.size
    }
    sizes = groups.name_size_bins(billions)
    families = {model: model_facts.family for model, model_facts in facts.items()}
    return {
        BY_SIZE: groups.agreement_by_models(
            matrices,
            sizes,
            grouping="size in billions",
            order=groups.sort_size_bins(sizes.values()),
            sampling=sampling,
        ),
        BY_FAMILY: groups.agreement_by_models(
            matrices, families, grouping="family", at_least=MIN_FAMILY, sampling=sampling
        ),
        LARGE_TESTS: groups.agreement_by_tasks(
            matrices,
            {"over 2,000 examples": PRINTED.LARGE_TESTS},
            grouping="test set size",
            sampling=sampling,
        ),
    }


def _compare_perplexity(
    scores: Mapping[Protocol, ScoreMatrix],
    matrices: Mapping[str, ScoreMatrix],
    facts: Mapping[str, ModelFacts],
    sampling: Sampling,
) -> dict[str, PerplexityAgreement]:
    """Return figures 4 and 5, on the models with perplexities (the published scores leave Gemma out)."""
    corpora = keep_names_in(CORPORA, scores[DIRECT].tasks)
    if not corpora:
        return {}
    comparisons = {}
    for protocol in PROTOCOLS:
        bits_per_byte = scores[protocol].select(tasks=corpora)
        comparisons[str(protocol)] = compare_perplexity(
            bits_per_byte, matrices[protocol], averages_all_tasks=True, sampling=sampling
        )
    bits_before = scores[DIRECT].select(tasks=corpora)
    for model_kind in ("base", "instruct"):
        members = {model for model, model_facts in facts.items() if model_facts.kind == model_kind}
        if members:
            comparisons[model_kind] = compare_perplexity(
                bits_before,
                matrices[TRAIN_BEFORE_TEST],
                models=members,
                group=model_kind,
                averages_all_tasks=True,
                sampling=sampling,
            )
    return comparisons


def _compute_family_components(
    matrices: Mapping[str, ScoreMatrix], facts: Mapping[str, ModelFacts], sampling: Sampling
) -> dict[str, Components]:
    """Return table 8: the components of each family with two models and more."""
    components = {}
    for family in FAMILIES:
        for protocol in PROTOCOLS:
            matrix = matrices[protocol]
            members = []
            for model in matrix.models:
                if model in facts and facts[model].family == family:
                    members.append(model)
            if len(members) > 1:
                components[f"{protocol} {family}"] = compute_components(
                    matrix.select(models=members), group=family, sampling=sampling
                )
    return components


def _fit_compute(
    tuned: Components, facts: Mapping[str, ModelFacts], sampling: Sampling
) -> ComputeFit | None:
    """Return figure 7: the first component against compute.

    The paper knew the tokens of its own tables alone; what was published since is marked in the facts' sources.
    """
    flops = {}
    for model, model_facts in facts.items():
        was_published_later = any(source.startswith("tokens:") for source in model_facts.sources)
        if model_facts.flops and not was_published_later:
            flops[model] = model_facts.flops
    if len(keep_names_in(tuned.models, flops)) <= 2:
        return None
    families = {model: model_facts.family for model, model_facts in facts.items()}
    return fit_compute(tuned, flops, families=families, sampling=sampling)


def _align_rankings(
    matrices: Mapping[str, ScoreMatrix], facts: Mapping[str, ModelFacts]
) -> dict[str, Alignment]:
    """Return figure 1: the rankings of two benchmarks, aligned."""
    families = {model: model_facts.family for model, model_facts in facts.items()}
    alignments = {}
    for protocol in PROTOCOLS:
        matrix = matrices[protocol]
        if not set(ALIGNED_TASKS) <= set(matrix.tasks):
            continue
        task_pair = matrix.select(tasks=ALIGNED_TASKS).drop_incomplete_models()
        if np.isfinite(task_pair.stderr).all():  # what noise could explain takes standard errors
            alignments[str(protocol)] = align_rankings(matrix, *ALIGNED_TASKS, families=families)
    return alignments
