"""The sections of a report: each a function from ``ReportData`` to a ``Section``, built in or registered.

To add one from anywhere, register a ``ReportSection`` (``potentia.extensions``); one that needs more than findings is a
function here, named in ``BUILT_IN_SECTIONS``. Report, board and navigation then have it. What a section
says in every report is in ``templates/leads.html`` under its id, or in a template of its own. The report is one file:
style, scripts and data inside, nothing fetched, nothing but our own scripts allowed.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from potentia.analysis.benchmark import (
    MAX_CELLS,
    Recommendation,
    benchmark_table,
    has_too_many_to_judge,
)
from potentia.analysis.planning import find_selection
from potentia.analysis.rankings import ENOUGH_MODELS, build_scoreboard
from potentia.analysis.registration import ReportSection
from potentia.errors import InputError
from potentia.evidence import read
from potentia.extensions import ExtensionKind, load_extensions
from potentia.files import write_file
from potentia.show.answer import answer_context, make_answer
from potentia.show.how import how_context
from potentia.show.matrix import (
    cells_context,
    has_details,
    list_models_and_tasks,
    list_shown_models,
    make_completed_view,
    make_score_views,
)
from potentia.show.model_charts import evidence_chart, evidence_maps, evidence_payload, rank_charts
from potentia.show.page import (
    SCRIPTS,
    STYLES,
    PageData,
    Section,
    asset,
    charts_of,
    of_findings,
    render,
    tables_of,
)
from potentia.show.source import ReportData, ReportOptions, make_report
from potentia.values.findings import Chart, Finding, Heatmap, Table
from potentia.values.protocol import Protocol

SectionMaker = Callable[[ReportData], Section | None]


# --- the file ---------------------------------------------------------------------------------------------------------


def write_report(
    source: str | Path,
    report_path: Path,
    *,
    study: str | None = None,
    items: int | None = None,
    facts: Path | None = None,
    options: ReportOptions | None = None,
) -> Path:
    """Write the report of a store or of any file of scores into one HTML file, and return the file.

    Args:
        source: A store, or any file of scores.
        report_path: The HTML file.
        study: A study of the store; else the one opened last.
        items: How many examples of each result to show; 40 where absent.
        facts: A CSV of what is known of the models.
        options: Tasks to leave out, scores of other models to predict with, and the like.

    Example:
        >>> potentia.write_report("potentia.db", "report.html")
    """
    evidence = read(source, study=study, facts=facts)
    return save_report(make_report(evidence, items=items, options=options), report_path)


def save_report(report_data: ReportData, report_path: Path) -> Path:
    """Write the report of data already read."""
    report_path = Path(report_path)
    if report_path.is_dir():
        raise InputError(
            "this is a folder",
            where=str(report_path),
            hint=f"give a file, for example {report_path / 'report.html'}",
        )
    page = report_page(report_data)
    try:
        write_file(report_path, page)
    except OSError as error:
        raise InputError(
            f"the report cannot be written: {error.strerror}", where=str(report_path)
        ) from error
    return report_path


def report_page(report_data: ReportData) -> str:
    """Return the whole page. Its own policy lets no other script run, whatever the scores contain."""
    script = "\n".join(asset(asset_name) for asset_name in SCRIPTS)
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    script_hash = base64.b64encode(digest).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )
    return render(
        "report.html",
        title=report_data.evidence.title,
        made=report_data.created,
        source=report_data.evidence.source,
        sections=build_sections(report_data),
        policy=policy,
        style="\n".join(asset(asset_name) for asset_name in STYLES),
        script=script,
    )


def build_sections(
    report_data: ReportData, page_data: PageData | None = None
) -> list[tuple[str, str, str]]:
    """Return id, title and HTML of every section that the evidence has something for.

    ``page_data`` takes the values that are unpacked by need. Nothing is computed for a section that is not asked for.
    """
    page_data = page_data or PageData()
    only = report_data.options.only
    sections = []
    for section_id, make_section in list_sections().items():
        if only and section_id not in only:
            continue
        section = make_section(report_data)
        if section is not None:
            sections.append((section.id, section.title, section.html(page_data)))
    return sections


# --- what sections share ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProtocolFindings:
    """Findings by protocol: those to compare with each other, and the rest, which is folded away."""

    compared: Sequence[Finding]
    folded: Sequence[Finding]

    @classmethod
    def partition(
        cls, findings: Mapping[Protocol, Finding], report_data: ReportData
    ) -> ProtocolFindings:
        """Set the least prepared protocol and the one that ranks apart from the others."""
        compared = []
        folded = []
        for protocol, finding in findings.items():
            if protocol in (report_data.baseline_protocol, report_data.ranking_protocol):
                compared.append(finding)
            else:
                folded.append(finding)
        return cls(compared, folded)


def _join_sentences(findings: Iterable[Any]) -> str:
    sentences = itertools.chain.from_iterable(finding.sentences() for finding in findings)
    return " ".join(sentences)


def _fold_for_few_models(section: Section | None, report_data: ReportData) -> Section | None:
    """Fold the figures of a few models away: they say nothing of other models."""
    if section is None or not report_data.has_few_models:
        return section
    return replace(
        section,
        lead=f"With fewer than {ENOUGH_MODELS} models these figures say little about others, so they are folded.",
        charts=(),
        folded_charts=[*section.charts, *section.folded_charts],
        more_title="Figures",
    )


# --- the sections -----------------------------------------------------------------------------------------------------


def apart_section(report_data: ReportData) -> Section | None:
    """One ranking per group of scores, where sources cannot be compared."""
    groups = (report_data.evidence, *report_data.evidence.apart)
    if len(groups) < 2:
        return None
    tables = []
    for group_number, group in enumerate(groups, start=1):
        for table in build_scoreboard(group).tables()[:1]:
            table_note = " ".join((*group.notes, table.note))
            tables.append(replace(table, title=f"{group_number}. {group.name}", note=table_note))
    return Section("apart", "Groups", "", tables=tables, heading="Scores that cannot be compared")


def answer_section(report_data: ReportData) -> Section:
    """The answer first."""
    runs = [] if report_data.pretraining_runs is None else [report_data.pretraining_runs]
    return Section(
        "answer",
        "Answer",
        charts=charts_of(runs),
        tables=tables_of(runs),
        template="answer.html",
        context=answer_context(report_data),
    )


def reading_section(report_data: ReportData) -> Section | None:
    """How a foreign table was read: metric, direction, scale and kind of each column, and why."""
    table_layout = report_data.evidence.table_layout
    if table_layout is None:
        return None
    return Section("reading", "How it was read", table=table_layout.tables()[0])


def scores_section(report_data: ReportData) -> Section:
    """The score matrix, and which tasks to distrust."""
    models, tasks = list_models_and_tasks(report_data)
    answer = make_answer(report_data)
    background = report_data.evidence.background
    families = {family for model, family in background.families.items() if model in models}
    kinds = {background.kinds.get(model) for model in models} - {None}
    failed_cells = [
        (
            failure.model,
            failure.task,
            Protocol(failure.protocol).label,
            f"{failure.reason} {failure.hint or ''}".strip(),
        )
        for failure in report_data.failures
    ]
    flags = None
    more_tables: Sequence[Table] = ()
    if report_data.rankings is not None and report_data.rankings.screening.flags:
        flags = report_data.rankings.screening.tables()[0]
        more_tables = tables_of([report_data.rankings.screening])[1:]
    context = {
        "views": partial(make_score_views, report_data, answer),
        "shown": len(list_shown_models(report_data, answer)),
        "models": len(models),
        "source": report_data.evidence.source,
        "details": has_details(report_data),
        "has_errors": any(
            np.isfinite(matrix.stderr).any() for matrix in report_data.evidence.scores.values()
        ),
        "families": sorted(families, key=str.casefold),
        "kinds": len(kinds) > 1,
        "gaps": _count_gaps(report_data, len(models) * len(tasks)),
        "failures": Table("Failed results", ("model", "task", "protocol", "reason"), failed_cells),
        "flags": flags,
    }
    return Section("scores", "Scores", tables=more_tables, template="scores.html", context=context)


def _count_gaps(report_data: ReportData, cells: int) -> dict[str, int]:
    """Return the number of missing scores of each protocol that has some."""
    gaps = {}
    for protocol, matrix in report_data.evidence.scores.items():
        missing = cells - int(np.isfinite(matrix.values).sum())
        if missing > 0:
            gaps[protocol.phrase] = missing
    return gaps


def predicted_section(report_data: ReportData) -> Section | None:
    """The cells that are not measured yet, hatched among those that are."""
    completion = report_data.completion
    if completion is None:
        return None
    context = {
        "view": partial(make_completed_view, report_data, make_answer(report_data), completion),
        "done": completion,
        "count_measured": int(completion.measured.sum()),
        "count_predicted": int((~completion.measured).sum()),
        "failed": any(failure.protocol == completion.protocol for failure in report_data.failures),
    }
    return Section(
        "predicted",
        "Predicted",
        tables=tables_of([completion]),
        template="predicted.html",
        context=context,
    )


def ranks_section(report_data: ReportData) -> Section | None:
    """Rank bump charts, and the aggregate ranking with its intervals."""
    # Steps of a pretraining run are no rivals.
    if report_data.rankings is None or report_data.pretraining_runs is not None:
        return None
    aggregate = report_data.rankings.aggregate
    over_several_tasks = {
        protocol: finding
        for protocol, finding in aggregate.items()
        if len(report_data.evidence.final_scores[protocol].benchmarks().tasks) > 1
    }
    divided = ProtocolFindings.partition(over_several_tasks, report_data)
    bumps = rank_charts(report_data)
    lead = "The order of the models over all tasks, by each way of combining the tasks."
    if bumps:
        lead = (
            "How the order of the models changes from one protocol to the next. Over all tasks every change of rank is"
            " drawn; on a single task, only changes larger than test noise."
        )
    return Section(
        "ranks",
        "Ranks",
        lead,
        charts=[*bumps[:1], *_heatmaps(divided.compared)],
        folded_charts=[*bumps[1:], *_heatmaps(divided.folded)],
        more_title="More rank charts",
        tables=tables_of([*report_data.rankings.overall.values(), *aggregate.values()]),
    )


def _heatmaps(findings: Sequence[Finding]) -> list[Chart]:
    return [chart for chart in charts_of(findings) if isinstance(chart, Heatmap)]


def tuning_section(report_data: ReportData) -> Section | None:
    """Whether the fine-tuning was the same for all, and which cells may have more in them."""
    if report_data.rankings is None:
        return None
    findings = list(report_data.rankings.tuning.values())
    sentences = _join_sentences(findings)
    section = of_findings(
        "tuning", "Tuning", sentences, findings, heading="Did every model train well?"
    )
    if section is None:
        return None
    # the section says the sentences above the tables
    first_table, *other_tables = [finding.model_table() for finding in findings]
    return replace(section, table=first_table, tables=other_tables)


def agreement_section(report_data: ReportData) -> Section | None:
    """The mean bars of every task, the heat maps side by side, categories, and groups of models."""
    rankings = report_data.rankings
    if rankings is None or not rankings.agreement:
        return None
    agreement = ProtocolFindings.partition(rankings.agreement, report_data)
    curves = ProtocolFindings.partition(rankings.task_curves, report_data)
    main_changes = []
    other_changes = []
    for protocols, change in rankings.changes.items():
        if protocols == (report_data.baseline_protocol, report_data.ranking_protocol):
            main_changes.append(change)
        else:
            other_changes.append(change)
    groups = list(rankings.groups.values())
    measures = [] if rankings.measures is None else [rankings.measures]
    section = Section(
        "agreement",
        "Agreement",
        "",
        charts=charts_of([*main_changes, *agreement.compared, *curves.compared, *groups]),
        folded_charts=charts_of([*other_changes, *agreement.folded, *curves.folded]),
        more_title="The other protocols",
        tables=tables_of(
            [
                *rankings.agreement.values(),
                *measures,
                *rankings.changes.values(),
                *rankings.task_curves.values(),
                *groups,
            ]
        ),
    )
    return _fold_for_few_models(section, report_data)


def evidence_section(report_data: ReportData) -> Section | None:
    """Model × model evidence, and how much each task resolves."""
    map_by_protocol = evidence_maps(report_data)
    rankings = report_data.rankings
    if not map_by_protocol or rankings is None:
        return None
    map_charts = [
        evidence_chart(evidence_map, len(report_data.evidence.final_scores[protocol].models))
        for protocol, evidence_map in map_by_protocol.items()
    ]
    kinds: tuple[Mapping[Protocol, Finding], ...] = (
        rankings.significance,
        rankings.tau_b,
        rankings.ranks,
    )
    compared: list[Finding] = []
    folded: list[Finding] = []
    all_findings: list[Finding] = []
    for by_protocol in kinds:
        divided = ProtocolFindings.partition(by_protocol, report_data)
        compared += divided.compared
        folded += divided.folded
        all_findings += by_protocol.values()
    return Section(
        "evidence",
        "Evidence",
        "",
        charts=[map_charts[0], *charts_of(compared)],
        folded_charts=[*map_charts[1:], *charts_of(folded)],
        more_title="The other protocols",
        tables=tables_of([*all_findings, *rankings.tau_b_changes.values()]),
        template="evidence.html",
        context={
            "evidence": [
                evidence_payload(evidence_map) for evidence_map in map_by_protocol.values()
            ]
        },
    )


def structure_section(report_data: ReportData) -> Section | None:
    """Principal components of all protocols, and PC1 against compute; families apart."""
    rankings = report_data.rankings
    if rankings is None or not rankings.components:
        return None
    components = ProtocolFindings.partition(rankings.components, report_data)
    compute = ProtocolFindings.partition(rankings.compute, report_data)
    families: list[Finding] = []
    for by_family in rankings.family_components.values():
        families.extend(by_family.values())
    more_title = "The other protocols"
    if families:
        more_title = "The other protocols, and each family by itself"
    section = Section(
        "structure",
        "Structure",
        "",
        charts=[*charts_of(components.compared), *charts_of(compute.compared)],
        folded_charts=[
            *charts_of(components.folded),
            *charts_of(compute.folded),
            *charts_of(families),
        ],
        more_title=more_title,
        tables=tables_of([*rankings.components.values(), *rankings.compute.values(), *families]),
    )
    return _fold_for_few_models(section, report_data)


def benchmarks_section(report_data: ReportData) -> Section | None:
    """Whether to keep, fix or drop each benchmark; its own page is folded away."""
    if not report_data.benchmarks:
        return _point_to_single_verdicts(report_data)
    sentences = []
    for verdict in ("drop", "fix", "cannot tell"):
        tasks = [
            benchmark.task for benchmark in report_data.benchmarks if benchmark.verdict == verdict
        ]
        if tasks:
            names = [_quote_verdict_word(task) for task in tasks]
            sentences.append(f"{verdict.capitalize()}: {', '.join(names)}.")
    return Section(
        "benchmarks",
        "Benchmarks",
        " ".join(sentences) or "All are worth keeping.",
        folded_charts=charts_of(report_data.benchmarks),
        more_title="Agreement of each benchmark with the others",
        tables=tables_of(report_data.benchmarks),
        table=benchmark_table(report_data.benchmarks),
        heading="Which benchmarks are worth keeping",
    )


def _point_to_single_verdicts(report_data: ReportData) -> Section | None:
    """Say how to judge single benchmarks where they are too many to judge all; None where they are not."""
    if not has_too_many_to_judge(report_data.evidence):
        return None
    protocol = report_data.ranking_protocol
    models, tasks = report_data.evidence.final_scores[protocol].benchmarks().shape
    return Section(
        "benchmarks",
        "Benchmarks",
        f"{models} models × {tasks} tasks are {models * tasks:,} results: past {MAX_CELLS}, the report does "
        "not judge every benchmark. One by one: `potentia analyze benchmark NAME SCORES`.",
        heading="Which benchmarks are worth keeping",
    )


def _quote_verdict_word(task: str) -> str:
    """Return the name of a task, in quotes where it could be read as a verdict: “fix”."""
    return f"“{task}”" if task in set(Recommendation) else task


def classes_section(report_data: ReportData) -> Section | None:
    """Labelled texts of one's own: models beside what needs no language model, class by class."""
    return of_findings(
        "classes",
        "Classes",
        _join_sentences(report_data.labelled),
        report_data.labelled,
        heading="Labelled texts, class by class",
    )


def written_section(report_data: ReportData) -> Section | None:
    """Written answers of one's own: models beside what needs no language model."""
    return of_findings(
        "written",
        "Written answers",
        _join_sentences(report_data.written),
        report_data.written,
        heading="Written answers, beside what needs no model",
    )


def more_labels_section(report_data: ReportData) -> Section | None:
    """What more training examples would change, and what a person should check, in the store of a selection."""
    if report_data.scoreboard is None:
        return None
    finding = find_selection(
        report_data.evidence,
        report_data.scoreboard.ranking.first,
        classification=report_data.labelled[0] if len(report_data.labelled) == 1 else None,
    )
    if finding is None or not finding.tables():
        return None
    first_table, *other_tables = finding.tables()
    return Section(
        "more-labels",
        "More examples",
        " ".join(finding.sentences()),
        table=first_table,
        tables=other_tables,
        heading="More training examples, and what to check",
    )


def perplexity_section(report_data: ReportData) -> Section | None:
    """How far the perplexity of texts ranks the models as the tasks do."""
    findings: list[Finding] = []
    if report_data.rankings is not None:
        findings += report_data.rankings.perplexity.values()
        findings += report_data.rankings.perplexity_by_kind.values()
    section = of_findings("perplexity", "Perplexity", "", findings)
    return _fold_for_few_models(section, report_data)


def cells_section(report_data: ReportData) -> Section | None:
    """One cell at a time: curves, prompts, items."""
    if not has_details(report_data):
        return None
    context = cells_context(report_data, make_answer(report_data))
    return Section("cells", "Results", template="cells.html", context=context)


def how_section(report_data: ReportData) -> Section:
    """The study, versions, seeds, recipe, fingerprints, the engine's checks and cost."""
    return Section("how", "How", template="how.html", context={"how": how_context(report_data)})


def registered_section(section_id: str, declared: ReportSection) -> SectionMaker:
    """Make a section of what a paper of ours or another package registers."""

    def make_section(report_data: ReportData) -> Section | None:
        content = report_data.find_content(section_id, declared)
        if content is None:
            return None
        section = of_findings(
            section_id, declared.title, content.lead, content.shown, heading=declared.heading
        )
        if section is None:
            return None
        return replace(section, problems=(*section.problems, *content.problems))

    return make_section


# In reading order; the ids are addresses of the board.
BUILT_IN_SECTIONS: dict[str, SectionMaker] = {
    "apart": apart_section,
    "answer": answer_section,
    "reading": reading_section,
    "scores": scores_section,
    "classes": classes_section,
    "written": written_section,
    "more-labels": more_labels_section,
    "predicted": predicted_section,
    "ranks": ranks_section,
    "tuning": tuning_section,
    "agreement": agreement_section,
    "evidence": evidence_section,
    "structure": structure_section,
    "benchmarks": benchmarks_section,
    "perplexity": perplexity_section,
    "cells": cells_section,
    "how": how_section,
}
LAST_OF_FINDINGS = "cells"  # registered sections that follow none in particular stand before it


def list_sections() -> dict[str, SectionMaker]:
    """Return all sections in reading order: the built-in ones, and those registered at the places they ask for."""
    order = list(BUILT_IN_SECTIONS)
    makers = dict(BUILT_IN_SECTIONS)
    for section_id, declared in load_extensions(ExtensionKind.SECTION).items():
        makers[section_id] = registered_section(section_id, declared)
        if declared.after in order:
            order.insert(order.index(declared.after) + 1, section_id)
        else:
            order.insert(order.index(LAST_OF_FINDINGS), section_id)
    return {section_id: makers[section_id] for section_id in order}
