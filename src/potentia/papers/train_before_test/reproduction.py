"""Reproduction of the train-before-test paper: each number it prints, beside the same from its published scores.

Definitions are the paper's where it gives them. Where our number differs, or where the text leaves room, the check says
which definition was used; nothing is tuned to match.

Printed numbers that are checked: table 5 (mean agreement of each benchmark with all others: direct, 5-shot, tuned),
table 3 (bits per byte on arXiv, Wiki and Stack), table 4 (billions of parameters and of tokens, 10^18 FLOPs), tables 6
and 8, and what its text says, direct scores before tuned ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from potentia.analysis.left_out import drop_names_in, keep_names_in
from potentia.analysis.rankings import groups
from potentia.analysis.rankings.agreement import SIGNIFICANT, compare_agreement, measure_agreement
from potentia.analysis.rankings.alignment import align_rankings
from potentia.analysis.rankings.components import Components, compute_components
from potentia.analysis.rankings.compute import fit_compute
from potentia.analysis.rankings.perplexity import compare_perplexity
from potentia.analysis.stats.bootstrap import RESAMPLES, Sampling
from potentia.analysis.stats.correlation import kendall_matrix, mean_offdiagonal
from potentia.analysis.stats.significance import measure_significance
from potentia.errors import InputError
from potentia.facts import ModelFacts, benchmarks, models
from potentia.papers.printed import read_printed_numbers
from potentia.values.findings import Chart, Finding, Table
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST, Protocol
from potentia.values.scores import ScoreMatrix

paper = SimpleNamespace(**read_printed_numbers("train_before_test"))
PROTOCOLS = (DIRECT, TRAIN_BEFORE_TEST)
CORPORA = ("arxiv_2025", "wiki_2025", "stackexchange_2025")
NAMES = {"direct": "direct", "few_shot": "5-shot", "train_before_test": "train-before-test"}


@dataclass(frozen=True)
class NumberCheck:
    """One number of the paper beside ours. ``ours`` is NaN where the published scores cannot give it."""

    where: str
    what: str
    paper: float  # NaN where the paper's figure cannot be read as text
    ours: float
    digits: int = 2
    note: str = ""

    @property
    def same(self) -> bool | None:
        """Whether both agree at the paper's digits; None where one of them is missing."""
        if np.isnan(self.paper) or np.isnan(self.ours):
            return None
        return bool(abs(round(self.ours, self.digits) - self.paper) < 10**-self.digits / 2)


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
        return tuple(c for c in self.checks if c.same is False)

    def tables(self) -> Sequence[Table]:
        """Return one table per place in the paper, then a summary."""
        columns = ("number", "paper", "ours", "ours, exact", "same", "definition")
        places: dict[str, list[tuple[str | None, ...]]] = {}
        for c in self.checks:
            shown = _show(c.paper, c.digits), _show(c.ours, c.digits), _show(c.ours, c.digits + 2)
            places.setdefault(c.where, []).append((c.what, *shown, SAID[c.same], c.note))
        counts = (
            ("the same at the paper's digits", sum(c.same is True for c in self.checks)),
            ("different", len(self.differing)),
            (
                "printed in the paper, not in these scores",
                sum(np.isnan(c.ours) for c in self.checks),
            ),
            (
                "ours only: the paper's figure is a picture",
                sum(np.isnan(c.paper) for c in self.checks),
            ),
        )
        title = f"Train-before-test from {self.models} models × {self.tasks} benchmarks"
        tables = [Table(where, columns, rows) for where, rows in places.items()]
        return [*tables, Table(title, ("numbers", "count"), counts)]

    def charts(self) -> Sequence[Chart]:
        """Return the figures of the paper, drawn from the published scores."""
        return [chart for finding in self.findings.values() for chart in finding.charts()]


def reproduce_train_before_test(
    scores: Mapping[Protocol, ScoreMatrix], *, resamples: int = RESAMPLES, seed: int = 0
) -> TrainBeforeTestPaper:
    """Compute every number of the paper that ``scores`` can give; a few_shot matrix, where there is one, joins in."""
    if missing := drop_names_in(PROTOCOLS, scores):
        hint = f"the reproduction needs {' and '.join(PROTOCOLS)}, as published with the paper"
        raise InputError(f"these scores have no protocol {missing[0]!r}", hint=hint)
    tables: dict[str, ScoreMatrix] = {p: _tasks(scores[p]) for p in PROTOCOLS}
    shots = next((p for p in scores if Protocol(p).kind == "few_shot"), None)
    if shots is not None:
        tables["few_shot"] = replace(_tasks(scores[shots]), protocol=Protocol("few_shot"))
    pair = [tables[p] for p in PROTOCOLS]
    facts = {m: f for m in pair[0].models if (f := models().find(m)) is not None}
    how: dict[str, Any] = {"sampling": Sampling(resamples=resamples, seed=seed)}
    found: dict[str, Any] = _agreements(tables, how) | _groups(list(tables.values()), facts, how)
    found |= _perplexity(scores, pair, facts, how)
    found |= _components(pair, facts, found["components train_before_test"], how)
    checks = (
        *_agreement_checks(found),
        *_perplexity_checks(found),
        *_component_checks(found),
        *_table_checks(scores),
        *_group_checks(pair, found),
        *_significance_checks(found),
    )
    return TrainBeforeTestPaper(*pair[0].shape, checks, found)


def _agreements(tables: Mapping[str, ScoreMatrix], how: Mapping[str, Any]) -> dict[str, Finding]:
    """Figures 1 to 3, 6 and 12 of every protocol, and what tuning changes."""
    categories = {b.task: b.category for b in benchmarks() if b.category}
    found: dict[str, Finding] = {}
    for name, matrix in tables.items():
        found[f"agreement {name}"] = measure_agreement(matrix, categories=categories, **how)
        found[f"significance {name}"] = measure_significance(matrix)
        found[f"components {name}"] = compute_components(matrix, **how)
        found[f"tau-b {name}"] = measure_agreement(
            matrix, method=SIGNIFICANT, categories=categories, **how
        )
    direct, tuned = (tables[p] for p in PROTOCOLS)
    found["change"] = compare_agreement(direct, tuned, **how)
    found["tau-b change"] = compare_agreement(direct, tuned, method=SIGNIFICANT, **how)
    if "few_shot" in tables:
        found["change from few-shot"] = compare_agreement(tables["few_shot"], tuned, **how)
    return found


def _groups(
    grouped: Sequence[ScoreMatrix], facts: Mapping[str, ModelFacts], how: Mapping[str, Any]
) -> dict[str, Finding]:
    """Tables 6 and 7 and appendix B.5: models of one size or family, and benchmarks with large tests."""
    sizes = groups.name_size_bins({m: f.size / 1e9 for m, f in facts.items() if f.size})
    families = {m: f.family for m, f in facts.items()}
    order, large = groups.sort_size_bins(sizes.values()), {"over 2,000 items": paper.LARGE_TESTS}
    return {
        "by size": groups.agreement_by_models(
            grouped, sizes, by="size in billions", order=order, **how
        ),
        "by family": groups.agreement_by_models(grouped, families, by="family", at_least=4, **how),
        "large tests": groups.agreement_by_tasks(grouped, large, by="test set size", **how),
    }


def _components(
    pair: Sequence[ScoreMatrix],
    facts: Mapping[str, ModelFacts],
    tuned: Components,
    how: Mapping[str, Any],
) -> dict[str, Finding]:
    """Table 8 by family, figure 7 (the first component and compute), and figure 1's two benchmarks."""
    families = {m: f.family for m, f in facts.items()}
    found: dict[str, Finding] = {}
    for family in ("llama", "pythia", "qwen", "gemma", "yi"):
        members = [m for m in pair[0].models if families.get(m) == family]
        for matrix in pair if len(members) > 1 else ():
            rows = matrix.select(models=members)
            found[f"components {matrix.protocol} {family}"] = compute_components(
                rows, group=family, **how
            )
    # The paper knew the tokens of its own tables alone; what was published since is marked in the facts' sources.
    flops = {
        m: f.flops
        for m, f in facts.items()
        if f.flops and not any(s.startswith("tokens:") for s in f.sources)
    }
    if sum(m in flops for m in tuned.models) > 2:
        found["compute"] = fit_compute(tuned, flops, families=families, **how)
    if {"nq_open", "arc_challenge"} <= set(pair[0].tasks):
        for matrix in pair:
            found[f"alignment {matrix.protocol}"] = align_rankings(
                matrix, "nq_open", "arc_challenge", families=families
            )
    return found


def _tasks(matrix: ScoreMatrix) -> ScoreMatrix:
    """Return the benchmarks without the corpora, in the order of table 5."""
    others = drop_names_in(matrix.tasks, {*paper.TABLE_5, *CORPORA})
    return matrix.select(tasks=[*keep_names_in(paper.TABLE_5, matrix.tasks), *others])


def _perplexity(
    scores: Mapping[Protocol, ScoreMatrix],
    pair: Sequence[ScoreMatrix],
    facts: Mapping[str, ModelFacts],
    how: Mapping[str, Any],
) -> dict[str, Finding]:
    """Figures 4 and 5, on the models with perplexities (the published scores leave Gemma out)."""
    corpora = keep_names_in(CORPORA, scores[DIRECT].tasks)
    if not corpora:
        return {}
    bits = {p: scores[p].select(tasks=corpora) for p in PROTOCOLS}
    found: dict[str, Finding] = {
        f"perplexity {m.protocol}": compare_perplexity(bits[m.protocol], m, **how) for m in pair
    }
    for kind in ("base", "instruct"):
        if members := {m for m, f in facts.items() if f.kind == kind}:
            before = bits[DIRECT]
            found[f"perplexity {kind}"] = compare_perplexity(
                before, pair[1], models=members, group=kind, **how
            )
    return found


# --- the paper's numbers, place by place ---------------------------------------------------------------------------

NO_FEW_SHOT = "no 5-shot scores here"
NAN = float("nan")
SAID = {True: "yes", False: "NO", None: "–"}


def _agreement_checks(found: Mapping[str, Any]) -> Iterator[NumberCheck]:
    by = {p: found[f"agreement {p}"] for p in NAMES if f"agreement {p}" in found}
    notes = {p: "" if p in by else NO_FEW_SHOT for p in NAMES}
    where = "Section 3.2, figure 2; appendix B.4: mean Kendall's τ over pairs of benchmarks"
    for protocol, value in paper.MEAN_TAU.items():
        mean = by[protocol].mean if protocol in by else NAN
        yield NumberCheck(where, f"mean τ, {NAMES[protocol]}", value, mean, note=notes[protocol])
    change, few = found["change"], found.get("change from few-shot")
    yield NumberCheck(
        where, "pairs with higher τ", paper.PAIRS_IMPROVED[0], change.pairs_improved, 0
    )
    yield NumberCheck(where, "pairs in all", paper.PAIRS_IMPROVED[1], change.pairs, 0)
    share = few.pairs_improved / few.pairs if few else NAN
    yield NumberCheck(
        where,
        "share of pairs above 5-shot",
        paper.BETTER_THAN_FEW_SHOT,
        share,
        note=notes["few_shot"],
    )
    where = "Figure 3: agreement within a category"
    for category, protocol, value in _sides(paper.WITHIN):
        note = (
            "section 3.2 prints 0.54, and 0.52 a paragraph later"
            if (category, value) == ("LU", 0.54)
            else ""
        )
        within = dict(
            zip(by[protocol].categories, np.diag(by[protocol].by_category).tolist(), strict=True)
        )
        yield NumberCheck(
            where, f"{category}, {NAMES[protocol]}", value, within.get(category, NAN), note=note
        )
    where = "Table 5: mean τ of each benchmark with all others"
    means = {
        (p, task): one.value
        for p, a in by.items()
        for task, one in zip(a.tasks, a.per_task, strict=True)
    }
    for task, protocol, value in _sides(paper.TABLE_5, tuple(NAMES)):
        yield NumberCheck(
            where,
            f"{task}, {NAMES[protocol]}",
            value,
            means.get((protocol, task), NAN),
            note=notes[protocol],
        )


def _sides(
    table: Mapping[str, Any], protocols: Sequence[str] = PROTOCOLS
) -> Iterator[tuple[str, str, Any]]:
    """Yield the cells of a printed table that has a row for each name and a column for each protocol."""
    for name, row in table.items():
        yield from ((name, protocol, value) for protocol, value in zip(protocols, row, strict=True))


def _perplexity_checks(found: Mapping[str, Any]) -> Iterator[NumberCheck]:
    where = "Section 3.3, figures 4 and 5: perplexity"
    note = "average of scores over the benchmarks, of bits per byte over the corpora"
    for k, protocol in enumerate(PROTOCOLS):
        if f := found.get(f"perplexity {protocol}"):
            name, averages = NAMES[protocol], paper.PERPLEXITY_AVERAGES[k]
            yield NumberCheck(
                where, f"between corpora, {name}", paper.PERPLEXITY_BETWEEN[k], f.corpora_mean.value
            )
            yield NumberCheck(
                where, f"corpora and benchmarks, {name}", paper.PERPLEXITY_TASKS[k], f.mean.value
            )
            yield NumberCheck(
                where, f"average and average, {name}", averages, f.averages.value, note=note
            )
    for kind, value in paper.PERPLEXITY_BEFORE_TASKS_AFTER.items():
        if f := found.get(f"perplexity {kind}"):
            yield NumberCheck(
                where, f"perplexity before, benchmarks after: {kind}", value, f.mean.value
            )


def _component_checks(found: Mapping[str, Any]) -> Iterator[NumberCheck]:
    where = "Section 3.4: variance of the first five components"
    for _, protocol, value in _sides({"": paper.FIVE_COMPONENTS}):
        first = found[f"components {protocol}"].explained[:5]
        yield NumberCheck(where, NAMES[protocol], value, sum(i.value for i in first))
    where = "Figures 6 and 8, table 8: explained variance, per cent"
    for family, protocol, values in _sides(paper.TABLE_8):
        if f := found.get(
            f"components {protocol}" + ("" if family == "all models" else f" {family}")
        ):
            for k, value in enumerate(values):
                ours = 100 * f.explained[k].value if k < len(f.explained) else NAN
                yield NumberCheck(where, f"{family} PC{k + 1}, {NAMES[protocol]}", value, ours, 0)


def _table_checks(scores: Mapping[Protocol, ScoreMatrix]) -> Iterator[NumberCheck]:
    matrix = scores[TRAIN_BEFORE_TEST]
    places = {m.rpartition("/")[2]: m for m in matrix.models}
    where = "Table 3: bits per byte"
    for model, corpus, value in _sides(paper.TABLE_3, CORPORA):
        ours = float(matrix.laid_out([places.get(model, "")], [corpus])[0][0, 0])
        note = "no perplexities of Gemma here" if np.isnan(ours) else "after tuning"
        yield NumberCheck(where, f"{model}, {corpus}", value, ours, 3, note)
    where = "Table 4: pretraining compute, 10^18 FLOPs"
    for model, (_, _, value) in paper.TABLE_4.items():
        known = models().find(places.get(model, model))
        ours = known.flops / 1e18 if known is not None and known.flops else NAN
        yield NumberCheck(
            where, model, value, ours, 0, "6 × parameters × tokens of the shipped facts"
        )


def _group_checks(pair: Sequence[ScoreMatrix], found: Mapping[str, Any]) -> Iterator[NumberCheck]:
    where, large = (
        "Appendix B.5: benchmarks with more than 2,000 test samples",
        found["large tests"],
    )
    matrices = {str(m.protocol): m for m in pair}
    for protocol, value in paper.LARGE_TEST_TAU.items():
        ours = _group_value(large, large.groups[0], protocol)
        note = NO_FEW_SHOT if np.isnan(ours) else ""
        if protocol in matrices and abs(ours - value) >= 0.005:
            note = _at_three_decimals(matrices[protocol])
        yield NumberCheck(where, f"mean τ, {NAMES[protocol]}", value, ours, note=note)
    where = "Table 6: models of the same size"
    for name, protocol, value in _sides(paper.TABLE_6):
        what, ours = (
            "all models" if name == "all" else f"{name} billion",
            _group_value(found["by size"], name, protocol),
        )
        yield NumberCheck(
            where, f"{what}, {NAMES[protocol]}", value, ours, note="sizes as in the names"
        )
    where, families = "Table 7: models of the same family", found["by family"]
    for name in families.groups[:-1]:
        for protocol in PROTOCOLS:
            ours = _group_value(families, name, protocol)
            yield NumberCheck(
                where,
                f"{name}, {NAMES[protocol]}",
                NAN,
                ours,
                note="the paper's number is in a picture",
            )


def _at_three_decimals(matrix: ScoreMatrix) -> str:
    """Say what the mean would be with scores rounded as tables print them: ties move it in the third digit."""
    tasks = keep_names_in(paper.LARGE_TESTS, matrix.tasks)
    rounded = float(
        mean_offdiagonal(kendall_matrix(matrix.select(tasks=tasks).oriented().round(3)))
    )
    return f"mean over the pairs of the {len(tasks)} benchmarks; {rounded:.4f} with scores rounded to three decimals"


def _group_value(grouped: groups.GroupAgreement, name: str, protocol: str) -> float:
    if name not in grouped.groups or protocol not in grouped.protocols:
        return NAN
    return grouped.means[grouped.groups.index(name)][grouped.protocols.index(protocol)].value


def _significance_checks(found: Mapping[str, Any]) -> Iterator[NumberCheck]:
    where = "Appendix C.2, figure 12: τ-b with insignificant differences as ties"
    note = "as defined in C.2: pairwise signs, |difference| > 1.96 · √(s₁² + s₂²)"
    for protocol, value in zip(PROTOCOLS, paper.TAU_B, strict=True):
        yield NumberCheck(
            where, f"mean τ-b, {NAMES[protocol]}", value, found[f"tau-b {protocol}"].mean, note=note
        )


def _show(value: float, digits: int) -> str | None:
    return None if np.isnan(value) else f"{value:.{digits}f}"
