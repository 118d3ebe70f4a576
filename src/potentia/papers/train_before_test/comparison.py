"""The train-before-test paper's numbers beside ours, place by place.

Checked are table 5 (mean agreement of each benchmark with all others: direct, 5-shot, tuned), table 3 (bits per byte on
arXiv, Wiki and Stack), table 4 (billions of parameters and of tokens, 10^18 FLOPs), tables 6 and 8, and what the text
says, direct scores before tuned ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.rankings.groups import GroupAgreement
from potentia.analysis.stats.correlation import kendall_matrix, mean_offdiagonal
from potentia.facts import models
from potentia.papers.train_before_test.reproduction import (
    CORPORA,
    FEW_SHOT,
    PRINTED,
    PROTOCOLS,
    NumberCheck,
    PaperFindings,
)
from potentia.values.protocol import TRAIN_BEFORE_TEST, Protocol
from potentia.values.scores import ScoreMatrix

LABELS = {"direct": "direct", FEW_SHOT: "5-shot", "train_before_test": "train-before-test"}
NO_FEW_SHOT = "no 5-shot scores here"
UNKNOWN = float("nan")


def compare_with_paper(
    scores: Mapping[Protocol, ScoreMatrix],
    matrices: Mapping[str, ScoreMatrix],
    findings: PaperFindings,
) -> Iterator[NumberCheck]:
    """Yield every number of the paper beside ours, in the paper's order."""
    yield from _check_agreement(findings)
    yield from _check_categories(findings)
    yield from _check_table_5(findings)
    yield from _check_perplexity(findings)
    yield from _check_components(findings)
    yield from _check_table_3(scores[Protocol(TRAIN_BEFORE_TEST)])
    yield from _check_table_4(scores[Protocol(TRAIN_BEFORE_TEST)])
    yield from _check_large_tests(matrices, findings)
    yield from _check_model_groups(findings)
    yield from _check_significance(findings)


def _read_cells(
    table: Mapping[str, Any], columns: Sequence[str] = PROTOCOLS
) -> Iterator[tuple[str, str, Any]]:
    """Yield row, column and content of a printed table that has a row for each name."""
    for name, row in table.items():
        for column, content in zip(columns, row, strict=True):
            yield name, column, content


def _note_of_protocol(findings: PaperFindings, protocol: str) -> str:
    return "" if protocol in findings.agreement else NO_FEW_SHOT


def _check_agreement(findings: PaperFindings) -> Iterator[NumberCheck]:
    where = "Section 3.2, figure 2; appendix B.4: mean Kendall's τ over pairs of benchmarks"
    for protocol, printed in PRINTED.MEAN_TAU.items():
        mean = UNKNOWN
        if protocol in findings.agreement:
            mean = findings.agreement[protocol].mean
        note = _note_of_protocol(findings, protocol)
        yield NumberCheck(where, f"mean τ, {LABELS[protocol]}", printed, mean, note=note)
    change = findings.changes["change"]
    improved, pairs = PRINTED.PAIRS_IMPROVED
    yield NumberCheck(where, "pairs with higher τ", improved, change.pairs_improved, digits=0)
    yield NumberCheck(where, "pairs in all", pairs, change.pairs, digits=0)
    share = UNKNOWN
    from_few_shot = findings.changes.get("change from few-shot")
    if from_few_shot is not None:
        share = from_few_shot.pairs_improved / from_few_shot.pairs
    yield NumberCheck(
        where,
        "share of pairs above 5-shot",
        PRINTED.BETTER_THAN_FEW_SHOT,
        share,
        note=_note_of_protocol(findings, FEW_SHOT),
    )


def _check_categories(findings: PaperFindings) -> Iterator[NumberCheck]:
    where = "Figure 3: agreement within a category"
    for category, protocol, printed in _read_cells(PRINTED.WITHIN):
        agreement = findings.agreement[protocol]
        within = np.diag(agreement.by_category).tolist()
        ours = dict(zip(agreement.categories, within, strict=True)).get(category, UNKNOWN)
        note = ""
        if (category, printed) == ("LU", 0.54):
            note = "section 3.2 prints 0.54, and 0.52 a paragraph later"
        yield NumberCheck(where, f"{category}, {LABELS[protocol]}", printed, ours, note=note)


def _check_table_5(findings: PaperFindings) -> Iterator[NumberCheck]:
    where = "Table 5: mean τ of each benchmark with all others"
    means = {}
    for protocol, agreement in findings.agreement.items():
        for task, interval in zip(agreement.tasks, agreement.per_task, strict=True):
            means[protocol, task] = interval.value
    for task, protocol, printed in _read_cells(PRINTED.TABLE_5, tuple(LABELS)):
        yield NumberCheck(
            where,
            f"{task}, {LABELS[protocol]}",
            printed,
            means.get((protocol, task), UNKNOWN),
            note=_note_of_protocol(findings, protocol),
        )


def _check_perplexity(findings: PaperFindings) -> Iterator[NumberCheck]:
    where = "Section 3.3, figures 4 and 5: perplexity"
    for position, protocol in enumerate(PROTOCOLS):
        comparison = findings.perplexity.get(protocol)
        if comparison is None:
            continue
        label = LABELS[protocol]
        yield NumberCheck(
            where,
            f"between corpora, {label}",
            PRINTED.PERPLEXITY_BETWEEN[position],
            comparison.corpora_mean.value,
        )
        yield NumberCheck(
            where,
            f"corpora and benchmarks, {label}",
            PRINTED.PERPLEXITY_TASKS[position],
            comparison.mean.value,
        )
        yield NumberCheck(
            where,
            f"average and average, {label}",
            PRINTED.PERPLEXITY_AVERAGES[position],
            comparison.averages.value,
            note="average of scores over the benchmarks, of bits per byte over the corpora",
        )
    for kind, printed in PRINTED.PERPLEXITY_BEFORE_TASKS_AFTER.items():
        comparison = findings.perplexity.get(kind)
        if comparison is not None:
            what = f"perplexity before, benchmarks after: {kind}"
            yield NumberCheck(where, what, printed, comparison.mean.value)


def _check_components(findings: PaperFindings) -> Iterator[NumberCheck]:
    where = "Section 3.4: variance of the first five components"
    for side, printed in zip(PROTOCOLS, PRINTED.FIVE_COMPONENTS, strict=True):
        first_five = findings.components[side].explained[:5]
        ours = sum(share.value for share in first_five)
        yield NumberCheck(where, LABELS[side], printed, ours)
    where = "Figures 6 and 8, table 8: explained variance, per cent"
    for family, protocol, printed_shares in _read_cells(PRINTED.TABLE_8):
        components = findings.family_components.get(f"{protocol} {family}")
        if family == "all models":
            components = findings.components[protocol]
        if components is None:
            continue
        for position, printed in enumerate(printed_shares):
            ours = UNKNOWN
            if position < len(components.explained):
                ours = 100 * components.explained[position].value
            what = f"{family} PC{position + 1}, {LABELS[protocol]}"
            yield NumberCheck(where, what, printed, ours, digits=0)


def _find_full_names(matrix: ScoreMatrix) -> dict[str, str]:
    """Return the models by the last part of their names, as the paper's tables call them."""
    return {model.rpartition("/")[2]: model for model in matrix.models}


def _check_table_3(tuned: ScoreMatrix) -> Iterator[NumberCheck]:
    where = "Table 3: bits per byte"
    full_names = _find_full_names(tuned)
    for model, corpus, printed in _read_cells(PRINTED.TABLE_3, CORPORA):
        values = tuned.laid_out([full_names.get(model, "")], [corpus])[0]
        ours = float(values[0, 0])
        note = "no perplexities of Gemma here" if np.isnan(ours) else "after tuning"
        yield NumberCheck(where, f"{model}, {corpus}", printed, ours, digits=3, note=note)


def _check_table_4(tuned: ScoreMatrix) -> Iterator[NumberCheck]:
    where = "Table 4: pretraining compute, 10^18 FLOPs"
    full_names = _find_full_names(tuned)
    for model, (_, _, printed) in PRINTED.TABLE_4.items():
        facts = models().find(full_names.get(model, model))
        ours = UNKNOWN
        if facts is not None and facts.flops:
            ours = facts.flops / 1e18
        note = "6 × parameters × tokens of the shipped facts"
        yield NumberCheck(where, model, printed, ours, digits=0, note=note)


def _check_large_tests(
    matrices: Mapping[str, ScoreMatrix], findings: PaperFindings
) -> Iterator[NumberCheck]:
    where = "Appendix B.5: benchmarks with more than 2,000 test samples"
    large_tests = findings.groups["large tests"]
    for protocol, printed in PRINTED.LARGE_TEST_TAU.items():
        ours = _mean_of_group(large_tests, large_tests.groups[0], protocol)
        note = ""
        if np.isnan(ours):
            note = NO_FEW_SHOT
        elif abs(ours - printed) >= 0.005:
            note = _describe_rounded_scores(matrices[protocol])
        yield NumberCheck(where, f"mean τ, {LABELS[protocol]}", printed, ours, note=note)


def _check_model_groups(findings: PaperFindings) -> Iterator[NumberCheck]:
    where = "Table 6: models of the same size"
    for size, protocol, printed in _read_cells(PRINTED.TABLE_6):
        members = "all models" if size == "all" else f"{size} billion"
        ours = _mean_of_group(findings.groups["by size"], size, protocol)
        what = f"{members}, {LABELS[protocol]}"
        yield NumberCheck(where, what, printed, ours, note="sizes as in the names")
    where = "Table 7: models of the same family"
    by_family = findings.groups["by family"]
    for family in by_family.groups[:-1]:
        for protocol in PROTOCOLS:
            ours = _mean_of_group(by_family, family, protocol)
            what = f"{family}, {LABELS[protocol]}"
            note = "the paper's number is in a picture"
            yield NumberCheck(where, what, UNKNOWN, ours, note=note)


def _describe_rounded_scores(matrix: ScoreMatrix) -> str:
    """Say what the mean would be with scores rounded as tables print them: ties move it in the third digit."""
    tasks = keep_names_in(PRINTED.LARGE_TESTS, matrix.tasks)
    rounded_scores = matrix.select(tasks=tasks).oriented().round(3)
    mean = float(mean_offdiagonal(kendall_matrix(rounded_scores)))
    return (
        f"mean over the pairs of the {len(tasks)} benchmarks; "
        f"{mean:.4f} with scores rounded to three decimals"
    )


def _mean_of_group(agreement: GroupAgreement, group: str, protocol: str) -> float:
    if group not in agreement.groups or protocol not in agreement.protocols:
        return UNKNOWN
    row = agreement.groups.index(group)
    column = agreement.protocols.index(protocol)
    return agreement.means[row][column].value


def _check_significance(findings: PaperFindings) -> Iterator[NumberCheck]:
    where = "Appendix C.2, figure 12: τ-b with insignificant differences as ties"
    for protocol, printed in zip(PROTOCOLS, PRINTED.TAU_B, strict=True):
        yield NumberCheck(
            where,
            f"mean τ-b, {LABELS[protocol]}",
            printed,
            findings.tau_b[protocol].mean,
            note="as defined in C.2: pairwise signs, |difference| > 1.96 · √(s₁² + s₂²)",
        )
