"""The sections of a report: pure functions from ``ReportData`` to HTML, for the one-file report and the live board."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from potentia.analysis.rankings.evidence_map import weigh
from potentia.analysis.rankings.screening import Screening
from potentia.findings import Bars, Chart, Finding
from potentia.report.answer import answer
from potentia.report.bumps import ascents
from potentia.report.cell_details import cell_payload
from potentia.report.findings import planned
from potentia.report.grid import grid, has_details, names_of
from potentia.report.how import how_context
from potentia.report.page import figure, render, table_payload
from potentia.report.source import ReportData
from potentia.report.words import protocol_name


@dataclass(frozen=True)
class Section:
    """One section: its place in the navigation, and its HTML."""

    id: str
    title: str
    html: str


def build_sections(data: ReportData, *, live: str = "") -> list[Section]:
    """Build every section that the data has something for; ``live`` is the board's address of this study."""
    return [Section(name, title, html) for name, title, build in SECTIONS if (html := build(data, live))]


def answer_section(data: ReportData, live: str) -> str:
    """Section 1: the answer first."""
    return render("answer.html", answer=answer(data), live=live)


def scores_section(data: ReportData, live: str) -> str:
    """Section 2: the score matrix, and which tasks to distrust."""
    told = answer(data)
    models, tasks = names_of(data)
    planned = len(models) * len(tasks)
    gaps = {protocol_name(p): planned - int(np.isfinite(matrix.values).sum()) for p, matrix in data.scores.items()}
    screening = data.findings.get("screening")
    return render(
        "scores.html",
        grid=grid(data, told),
        families=sorted({f for m, f in data.background.families.items() if m in models}, key=str.casefold),
        categories=sorted({c for t, c in data.background.categories.items() if t in tasks}),
        sized=any(m in data.background.billions for m in models),
        kinds=len({data.background.kinds.get(m) for m in models} - {None}) > 1,
        gaps={name: missing for name, missing in gaps.items() if missing},
        failures=data.failures,
        flags=screening.flags if isinstance(screening, Screening) else (),
        figures=_figures(_named(data, "screening")),
        tables=_tables(_named(data, "screening")),
        live=live,
    )


def ranks_section(data: ReportData, live: str) -> str:
    """Section 3: rank bump charts, and the aggregate ranking with its intervals."""
    climbs = ascents(data)
    found = _named(data, "aggregate ")
    if not climbs and not found:
        return ""
    bumps = [figure(a.chart, name=f"bump-{k}") | {"label": a.label} for k, a in enumerate(climbs)]
    charts = _figures({name: f for name, f in found.items() if name == f"aggregate {data.main}"})
    others = _figures({name: f for name, f in found.items() if name != f"aggregate {data.main}"})
    return render("ranks.html", bumps=bumps, figures=charts, more=others, tables=_tables(found), live=live)


def agreement_section(data: ReportData, live: str) -> str:
    """Section 4: agreement between tasks, side by side, with the mean bars, by category, size and family."""
    found = _named(data, "agreement ", "change ", "by ", "measures")
    if not found:
        return ""
    figures = sorted(_figures(found), key=_agreement_order)
    return render(
        "findings.html",
        id="agreement",
        title="Agreement",
        lead=AGREEMENT,
        figures=figures,
        tables=_tables(found),
        problems=(),
        live=live,
    )


def _agreement_order(figure: dict[str, Any]) -> int:
    """The mean bars of every task, then the heat maps side by side, the categories, and the groups of models."""
    if figure["data"]["kind"] == "bars":
        return 3 if figure["id"].startswith("agreement-by-") else 0
    return 2 if figure["id"].startswith("categories-") else 1


def evidence_section(data: ReportData, live: str) -> str:
    """Section 5: model × model evidence, and how much each task resolves."""
    found = _named(data, "significance ", "paired ", "ranks ")
    place = {s.model: k for k, s in enumerate(answer(data).standings)}
    weighed = []
    for protocol, matrix in reversed(planned(data.scores, data.protocols).items()):
        ordered = matrix.select(models=sorted(matrix.models, key=lambda m: place.get(m, len(place))))
        if (evidence := weigh(ordered, data.outcomes.get(protocol))) is not None:
            weighed.append(evidence)
    if not weighed:
        return ""
    return render(
        "evidence.html",
        evidence=[e.payload() | {"label": protocol_name(e.protocol)} for e in weighed],
        figures=_figures({name: f for name, f in found.items() if name.endswith(f" {data.main}")}),
        more=_figures({name: f for name, f in found.items() if not name.endswith(f" {data.main}")}),
        tables=_tables(found),
        live=live,
    )


def structure_section(data: ReportData, live: str) -> str:
    """Section 6: principal components of both protocols, and PC1 against compute; families apart."""
    found = _named(data, "components ", "compute ")
    if not found:
        return ""
    wholes = {f"{kind} {protocol}" for kind in ("components", "compute") for protocol in data.scores}
    figures = _figures({name: f for name, f in found.items() if name in wholes})
    kinds = ("scree-", "compute-", "pc1-")
    figures.sort(key=lambda f: next(k for k, kind in enumerate(kinds) if f["id"].startswith(kind)))
    return render(
        "findings.html",
        id="structure",
        title="Structure",
        lead=STRUCTURE,
        figures=figures,
        more=_figures({name: f for name, f in found.items() if name not in wholes}),
        more_title="Each family by itself",
        tables=_tables(found),
        problems=(),
        live=live,
    )


def perplexity_section(data: ReportData, live: str) -> str:
    """Section 7: perplexity against tasks."""
    return _plain(data, live, "perplexity", "Perplexity", PERPLEXITY, _named(data, "perplexity "))


def test_task_section(data: ReportData, live: str) -> str:
    """Section 8: training on the test task."""
    if not data.test_task and not data.test_task_problems:
        return ""
    return _plain(data, live, "test-task", "Training on the test task", TEST_TASK, dict(data.test_task),
                  data.test_task_problems)  # fmt: skip


def cells_section(data: ReportData, live: str) -> str:
    """Section 9: one cell at a time: curves, prompts, items."""
    if not has_details(data):
        return ""
    lanes: dict[str | None, list[Any]] = {}
    for lane in data.lanes:
        lanes.setdefault(lane.cell, []).append(lane)
    cells = [] if live else [cell_payload(c, lanes.get(c.key, ()), data.items.get(c.key)) for c in data.cells]
    shown = [{"key": c.key, "model": c.model, "task": c.task, "protocol": c.protocol} for c in data.cells]
    return render("cells.html", cells=cells, index=shown, per_cell=data.items_per_cell, live=live)


def how_section(data: ReportData, live: str) -> str:
    """Section 10: the study, versions, seeds, recipe, fingerprints and cost."""
    return render("how.html", **how_context(data), live=live)


AGREEMENT = (
    "Agreement says whether the order of the models on one task holds on another: Kendall's τ of every two tasks, "
    "1 where they rank alike, 0 where they have nothing to do with each other."
)
STRUCTURE = (
    "How many abilities do the scores show? If one component explains most of the variance, the tasks measure much the "
    "same thing, and the first component (PC1) is a fair summary of a model."
)
PERPLEXITY = (
    "Whether bits per byte on plain text rank the models as the tasks do; agreement is signed so that 1 means alike."
)
TEST_TASK = (
    "What newer models have more at equal pretraining compute (θ), before and after every model was tuned on the same "
    "task data; and the compute c_e from which scores rise above guessing."
)

SECTIONS: tuple[tuple[str, str, Callable[[ReportData, str], str]], ...] = (
    ("answer", "Answer", answer_section),
    ("scores", "Scores", scores_section),
    ("ranks", "Ranks", ranks_section),
    ("agreement", "Agreement", agreement_section),
    ("evidence", "Evidence", evidence_section),
    ("structure", "Structure", structure_section),
    ("perplexity", "Perplexity", perplexity_section),
    ("test-task", "Test task", test_task_section),
    ("cells", "Cells", cells_section),
    ("how", "How", how_section),
)


def _plain(
    data: ReportData,
    live: str,
    name: str,
    title: str,
    lead: str,
    found: dict[str, Finding],
    problems: tuple[str, ...] = (),
) -> str:
    if not found and not problems:
        return ""
    return render("findings.html", id=name, title=title, lead=lead, figures=_figures(found), tables=_tables(found),
                  problems=problems, live=live)  # fmt: skip


def _named(data: ReportData, *prefixes: str) -> dict[str, Finding]:
    return {name: f for name, f in data.findings.items() if name.startswith(prefixes)}


def _figures(found: dict[str, Finding]) -> list[dict[str, Any]]:
    return [figure(_readable(chart)) for finding in found.values() for chart in finding.charts()]


def _readable(chart: Chart) -> Chart:
    """Write the protocols in titles, captions and legends as people say them."""
    chart = replace(chart, title=_said(chart.title), caption=_said(chart.caption))
    if isinstance(chart, Bars):
        series, low, high = (
            {_said(name): values for name, values in part.items()} for part in (chart.series, chart.low, chart.high)
        )
        return replace(chart, series=series, low=low, high=high)
    return chart


def _said(text: str) -> str:
    said = re.sub(r"\bfew_shot:(\d+)", r"\1-shot", text.replace("train_before_test", "train-before-test"))
    return said.replace("mean nan", "mean not defined")


def _tables(found: dict[str, Finding]) -> list[dict[str, Any]]:
    return [table_payload(table) for finding in found.values() for table in finding.tables()]
