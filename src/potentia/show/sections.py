"""The sections of a report: each a function from ``ReportData`` to a ``Section``, built in or registered.

To add one from anywhere, register a ``ReportSection`` (``potentia.extensions``); one that needs more than findings is a
function here, named in ``BUILT_IN_SECTIONS``. Report, board and navigation then have it. What a section
says in every report is in ``templates/leads.html`` under its id, or in a template of its own. The report is one file:
style, scripts and data inside, nothing fetched, nothing but our own scripts allowed.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from potentia.analysis.benchmark import benchmark_table
from potentia.analysis.rankings import ENOUGH_MODELS, build_scoreboard
from potentia.analysis.registration import ReportSection
from potentia.errors import InputError
from potentia.evidence import read
from potentia.extensions import ExtensionKind, load_extensions
from potentia.files import write_file
from potentia.show.answer import answer, answer_context
from potentia.show.how import how_context
from potentia.show.matrix import (
    cells_context,
    completed_view,
    has_details,
    names_of,
    score_views,
    shown_models,
)
from potentia.show.model_charts import evidence_chart, evidence_maps, evidence_payload, rank_charts
from potentia.show.page import (
    SCRIPTS,
    STYLES,
    Parts,
    Section,
    asset,
    charts_of,
    of_findings,
    render,
    tables_of,
)
from potentia.show.source import ReportData, ReportOptions, make_report
from potentia.values.findings import Finding, Heatmap, Table
from potentia.values.protocol import Protocol


def write_report(
    source: str | Path,
    out: Path,
    *,
    study: str | None = None,
    items: int | None = None,
    facts: Path | None = None,
    options: ReportOptions | None = None,
) -> Path:
    """Write the report of a store or of any file of scores into one HTML file, and return the file."""
    return save_report(
        make_report(read(source, study=study, facts=facts), items=items, options=options), out
    )


def save_report(data: ReportData, out: Path) -> Path:
    """Write the report of data already read."""
    out = Path(out)
    if out.is_dir():
        raise InputError(
            "this is a folder",
            where=str(out),
            hint=f"give a file, for example {out / 'report.html'}",
        )
    page = report_page(data)
    try:
        write_file(out, page)
    except OSError as error:
        raise InputError(
            f"the report cannot be written: {error.strerror}", where=str(out)
        ) from error
    return out


def report_page(data: ReportData) -> str:
    """Return the whole page. Its own policy lets no other script run, whatever the scores contain."""
    script = "\n".join(asset(name) for name in SCRIPTS)
    ours = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; script-src 'sha256-{ours}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; base-uri 'none'; form-action 'none'"
    )
    return render(
        "report.html",
        title=data.evidence.title,
        made=data.made,
        source=data.evidence.source,
        sections=build_sections(data),
        policy=policy,
        style="\n".join(asset(name) for name in STYLES),
        script=script,
    )


def build_sections(data: ReportData, parts: Parts | None = None) -> list[tuple[str, str, str]]:
    """Return id, title and HTML of every section that the data has something for; ``parts`` takes their data."""
    parts = parts or Parts()
    found = (section for make in list_sections() if (section := make(data)) is not None)
    return [(section.id, section.title, section.html(parts)) for section in found]


def _said(found: Iterable[Any]) -> str:
    return " ".join(sentence for finding in found for sentence in finding.sentences())


def _split(
    found: Mapping[Protocol, Finding], data: ReportData
) -> tuple[list[Finding], list[Finding]]:
    """Part the findings to compare (of the least prepared protocol, and of the one that ranks) from the rest."""
    compared = (data.first, data.main)
    return [f for p, f in found.items() if p in compared], [
        f for p, f in found.items() if p not in compared
    ]


def _of_few(section: Section | None, data: ReportData) -> Section | None:
    """Fold the figures of a few models away: they say nothing of other models."""
    if section is None or not data.few:
        return section
    lead = f"It takes {ENOUGH_MODELS} models or more to say something of others: the figures are folded."
    return replace(
        section, lead=lead, charts=(), more=[*section.charts, *section.more], more_title="Figures"
    )


def apart_section(data: ReportData) -> Section | None:
    """One ranking per group of scores, where sources cannot be compared."""
    groups = (data.evidence, *data.evidence.apart)
    if len(groups) < 2:
        return None
    tables = [
        replace(table, title=f"{number}. {group.name}", note=" ".join((*group.notes, table.note)))
        for number, group in enumerate(groups, start=1)
        for table in build_scoreboard(group).tables()[:1]
    ]
    return Section("apart", "Groups", "", tables=tables, heading="Scores that cannot be compared")


def answer_section(data: ReportData) -> Section:
    """The answer first."""
    runs = [] if data.runs is None else [data.runs]
    charts, tables, context = charts_of(runs), tables_of(runs), answer_context(data)
    return Section(
        "answer", "Answer", charts=charts, tables=tables, template="answer.html", context=context
    )


def reading_section(data: ReportData) -> Section | None:
    """Say how a foreign table was read: metric, direction, scale and kind of each column, and why."""
    read = data.evidence.table_layout
    return None if read is None else Section("reading", "How it was read", table=read.tables()[0])


def scores_section(data: ReportData) -> Section:
    """The score matrix, and which tasks to distrust."""
    models, tasks = names_of(data)
    told, known = answer(data), data.evidence.background
    scored = {
        p.label: int(np.isfinite(matrix.values).sum()) for p, matrix in data.evidence.scores.items()
    }
    flagged = (
        []
        if data.rankings is None or not data.rankings.screening.flags
        else [data.rankings.screening]
    )
    failed = tuple(
        (f.model, f.task, Protocol(f.protocol).label, f"{f.reason} {f.hint or ''}".strip())
        for f in data.failures
    )
    context = {
        "views": partial(score_views, data, told),
        "shown": len(shown_models(data, told)),
        "models": len(models),
        "source": data.evidence.source,
        "details": has_details(data),
        "families": sorted({f for m, f in known.families.items() if m in models}, key=str.casefold),
        "kinds": len({known.kinds.get(m) for m in models} - {None}) > 1,
        "gaps": {
            name: len(models) * len(tasks) - n
            for name, n in scored.items()
            if n < len(models) * len(tasks)
        },
        "failures": Table("Failed cells", ("model", "task", "protocol", "reason"), tuple(failed)),
        "flags": flagged[0].tables()[0] if flagged else None,
    }
    return Section(
        "scores", "Scores", tables=tables_of(flagged)[1:], template="scores.html", context=context
    )


def predicted_section(data: ReportData) -> Section | None:
    """The cells that are not measured yet, hatched among those that are."""
    done = data.completion
    if done is None:
        return None
    context = {
        "view": partial(completed_view, data, answer(data), done),
        "done": done,
        "count_measured": int(done.measured.sum()),
        "count_predicted": int((~done.measured).sum()),
        "failed": any(f.protocol == done.protocol for f in data.failures),
    }
    return Section(
        "predicted",
        "Predicted",
        tables=tables_of([done]),
        template="predicted.html",
        context=context,
    )


def ranks_section(data: ReportData) -> Section | None:
    """Rank bump charts, and the aggregate ranking with its intervals."""
    if data.rankings is None or data.runs is not None:  # steps are no rivals
        return None
    found, bumps = data.rankings.aggregate, rank_charts(data)
    several = {
        p: f for p, f in found.items() if len(data.evidence.planned[p].benchmarks().tasks) > 1
    }
    both, rest = (
        [c for c in charts_of(part) if isinstance(c, Heatmap)] for part in _split(several, data)
    )
    tables = tables_of([*data.rankings.overall.values(), *found.values()])
    lead = (
        "How the order of the models changes from one protocol to the next. Over all tasks ranks are shown as they "
        "are; on a single task, crossings that test noise alone could explain are undone as far as possible."
    )
    lead = (
        lead
        if bumps
        else "The order of the models over all tasks, by each way of taking tasks together."
    )
    return Section(
        "ranks", "Ranks", lead, [*bumps[:1], *both], [*bumps[1:], *rest], "More rank charts", tables
    )


def tuning_section(data: ReportData) -> Section | None:
    """Whether the fine-tuning was the same for all, and which cells may have more in them."""
    found = list(data.rankings.tuning.values()) if data.rankings is not None else []
    said = _said(found)
    section = of_findings("tuning", "Tuning", said, found, heading="Was it the same for all?")
    if section is None:
        return None
    first, *rest = section.tables
    return replace(
        section, table=replace(first, note=first.note.removeprefix(said).strip()), tables=rest
    )


def agreement_section(data: ReportData) -> Section | None:
    """The mean bars of every task, the heat maps side by side, categories, and groups of models."""
    if data.rankings is None or not data.rankings.agreement:
        return None
    found = data.rankings
    both, others = _split(found.agreement, data)
    fewer, fewer_aside = _split(found.task_curves, data)
    main = [change for pair, change in found.changes.items() if pair == (data.first, data.main)]
    aside = [change for pair, change in found.changes.items() if pair != (data.first, data.main)]
    measures = [] if found.measures is None else [found.measures]
    charts = charts_of([*main, *both, *fewer, *found.groups.values()])
    more = charts_of([*aside, *others, *fewer_aside])
    tables = tables_of(
        [
            *found.agreement.values(),
            *measures,
            *found.changes.values(),
            *found.task_curves.values(),
            *found.groups.values(),
        ]
    )
    return _of_few(
        Section("agreement", "Agreement", "", charts, more, "The other protocols", tables), data
    )


def evidence_section(data: ReportData) -> Section | None:
    """Model × model evidence, and how much each task resolves."""
    weighed = evidence_maps(data)
    if not weighed or data.rankings is None:
        return None
    found = data.rankings
    maps = [evidence_chart(e, len(data.evidence.planned[p].models)) for p, e in weighed.items()]
    kinds: tuple[Mapping[Protocol, Finding], ...] = (found.significance, found.tau_b, found.ranks)
    both, rest = ([f for by in kinds for f in _split(by, data)[k]] for k in (0, 1))
    tables = tables_of([*(f for by in kinds for f in by.values()), *found.tau_b_changes.values()])
    charts, more = [maps[0], *charts_of(both)], [*maps[1:], *charts_of(rest)]
    context = {"evidence": [evidence_payload(e) for e in weighed.values()]}
    return Section(
        "evidence",
        "Evidence",
        "",
        charts,
        more,
        "The other protocols",
        tables,
        template="evidence.html",
        context=context,
    )


def structure_section(data: ReportData) -> Section | None:
    """Principal components of all protocols, and PC1 against compute; families apart."""
    if data.rankings is None or not data.rankings.components:
        return None
    found = data.rankings
    shown, folded = zip(_split(found.components, data), _split(found.compute, data), strict=True)
    families = [c for by in found.family_components.values() for c in by.values()]
    tables = tables_of([*found.components.values(), *found.compute.values(), *families])
    charts, more = (
        [*charts_of(components), *charts_of(compute)] for components, compute in (shown, folded)
    )
    more += charts_of(families)
    title = "The other protocols, and each family by itself" if families else "The other protocols"
    return _of_few(Section("structure", "Structure", "", charts, more, title, tables), data)


def benchmarks_section(data: ReportData) -> Section | None:
    """Say of every benchmark whether to keep, fix or drop it; its own page is folded away."""
    if not data.benchmarks:
        return None
    lists = {
        v: ", ".join(b.task for b in data.benchmarks if b.verdict == v) for v in ("drop", "fix")
    }
    said = " ".join(
        f"{verdict.capitalize()}: {tasks}." for verdict, tasks in lists.items() if tasks
    )
    return Section(
        "benchmarks",
        "Benchmarks",
        said or "All may stay.",
        more=charts_of(data.benchmarks),
        more_title="Agreement of each benchmark with the others",
        tables=tables_of(data.benchmarks),
        table=benchmark_table(data.benchmarks),
        heading="Which benchmarks are worth keeping",
    )


def _perplexity(data: ReportData) -> Iterable[Finding]:
    ranked = data.rankings
    return (
        () if ranked is None else (*ranked.perplexity.values(), *ranked.perplexity_by_kind.values())
    )


def _show(
    id: str,
    title: str,
    find: Callable[[ReportData], Iterable[Any]],
    *,
    heading: str = "",
    said: bool = False,
    few: bool = False,
) -> Callable[[ReportData], Section | None]:
    """Make a section of findings alone, with what they say above them, folded for a few models; None is left out."""

    def section(data: ReportData) -> Section | None:
        found = [finding for finding in find(data) if finding is not None]
        made = of_findings(id, title, _said(found) if said else "", found, heading=heading)
        return _of_few(made, data) if few else made

    return section


def cells_section(data: ReportData) -> Section | None:
    """One cell at a time: curves, prompts, items."""
    if not has_details(data):
        return None
    return Section(
        "cells", "Cells", template="cells.html", context=cells_context(data, answer(data))
    )


def how_section(data: ReportData) -> Section:
    """The study, versions, seeds, recipe, fingerprints, the engine's checks and cost."""
    return Section("how", "How", template="how.html", context={"how": how_context(data)})


def registered_section(id: str, declared: ReportSection) -> SectionMaker:
    """Make a section of what a paper of ours or another package registers."""

    def section(data: ReportData) -> Section | None:
        content = data.registered.get(id)
        if content is None:
            return None
        made = of_findings(
            id, declared.title, content.lead, content.shown, heading=declared.heading
        )
        return made and replace(made, problems=(*made.problems, *content.problems))

    return section


SectionMaker = Callable[[ReportData], Section | None]
BUILT_IN_SECTIONS: dict[
    str, SectionMaker
] = {  # in reading order; the ids are addresses of the board
    "apart": apart_section,
    "answer": answer_section,
    "reading": reading_section,
    "scores": scores_section,
    "classes": _show(
        "classes",
        "Classes",
        lambda data: data.labelled,
        heading="Labelled texts, class by class",
        said=True,
    ),
    "predicted": predicted_section,
    "ranks": ranks_section,
    "tuning": tuning_section,
    "agreement": agreement_section,
    "evidence": evidence_section,
    "structure": structure_section,
    "benchmarks": benchmarks_section,
    "perplexity": _show("perplexity", "Perplexity", _perplexity, few=True),
    "cells": cells_section,
    "how": how_section,
}
LAST_OF_FINDINGS = "cells"  # registered sections that follow none in particular stand before it


def list_sections() -> list[SectionMaker]:
    """Return all sections in reading order: the built-in ones, and those registered at the places they ask for."""
    order = list(BUILT_IN_SECTIONS)
    makers = dict(BUILT_IN_SECTIONS)
    for id, declared in load_extensions(ExtensionKind.SECTION).items():
        makers[id] = registered_section(id, declared)
        if declared.after in order:
            order.insert(order.index(declared.after) + 1, id)
        else:
            order.insert(order.index(LAST_OF_FINDINGS), id)
    return [makers[id] for id in order]
