"""The sections of a report: each a function from ``ReportData`` to a ``Section``, listed once in ``SECTIONS``.

To add one, write such a function and put it into the list; report, board and navigation then have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from potentia.analysis.rankings import NAMES, find_scoreboard
from potentia.show.answer import answer
from potentia.show.cell_details import cell_payload
from potentia.show.ladder import make_ladder
from potentia.show.matrix import cell_index, completed_view, has_details, names_of, score_views, shown_models
from potentia.show.model_charts import evidence_chart, evidence_maps, evidence_payload, rank_charts
from potentia.show.page import figures, html_table, render
from potentia.show.parts import Parts
from potentia.show.predicted import make_outlook
from potentia.show.provenance import how_context
from potentia.show.source import ReportData
from potentia.values.findings import Chart, Finding, Heatmap, Table, telling
from potentia.values.protocol import Protocol


@dataclass(frozen=True)
class Section:
    """What a section says, as values: a lead, charts, tables; with a ``template`` of its own where it needs one."""

    id: str
    title: str  # in the navigation
    lead: str = ""
    charts: Sequence[Chart] = ()
    more: Sequence[Chart] = ()  # folded away
    more_title: str = "More figures"
    tables: Sequence[Table] = ()
    problems: tuple[str, ...] = ()  # what could not be analysed, and why
    template: str = "findings.html"
    context: Mapping[str, Any] = field(default_factory=dict)  # of the template
    heading: str = ""  # else the title


class Rendered(NamedTuple):
    """A section as HTML."""

    id: str
    title: str
    html: str


def build_sections(data: ReportData, parts: Parts | None = None) -> list[Rendered]:
    """Render every section that the data has something for; ``parts`` takes their data, for a file or for the board."""
    parts = parts or Parts()
    return [_rendered(section, parts) for make in SECTIONS if (section := make(data)) is not None]


def _rendered(section: Section, parts: Parts) -> Rendered:
    html = render(
        section.template,
        id=section.id,
        title=section.heading or section.title,
        lead=section.lead,
        figures=figures(section.charts),
        more=figures(section.more),
        more_title=section.more_title,
        tables=[(table.title, html_table(table)) for table in map(telling, section.tables) if table is not None],
        problems=section.problems,
        parts=parts,
        **section.context,
    )
    return Rendered(section.id, section.title, html)


def of_findings(
    id: str,
    title: str,
    lead: str,
    found: Sequence[Finding],
    problems: tuple[str, ...] = (),
    *,
    most: int = 99,
    heading: str = "",
) -> Section | None:
    """Show findings one after the other; of more charts than ``most`` the rest are folded away."""
    if not found and not problems:
        return None
    charts = _charts(found)
    return Section(
        id,
        title,
        lead,
        charts=charts[:most],
        more=charts[most:],
        tables=_tables(found),
        problems=problems,
        heading=heading,
    )


def apart_section(data: ReportData) -> Section | None:
    """One ranking per group of scores, where sources cannot be compared."""
    groups = (data.evidence, *data.evidence.apart)
    if len(groups) < 2:
        return None
    tables = [
        replace(table, title=f"{number}. {group.name}", note=" ".join((*group.notes, table.note)))
        for number, group in enumerate(groups, start=1)
        for table in find_scoreboard(group).tables()[:1]
    ]
    return Section("apart", "Groups", APART, tables=tables, heading="Scores that cannot be compared")


def answer_section(data: ReportData) -> Section:
    """The answer first."""
    told = answer(data)
    runs = data.training if data.training is not None and data.training.whole else None
    board = told.board
    context = {
        "training": runs is not None,
        "answer": told,
        "most": MOST_RUNGS,
        "board": board,
        "ladder": None if board is None else make_ladder(board),
        "method": "" if board is None else NAMES[told.method] if len(board.ranked_on) > 1 else "score",
        "names": () if board is None else tuple(board.names.values()),
        "outlook": None if data.completion is None else make_outlook(data.completion),
        "predicted": "#predicted",
    }
    charts, tables = ([], []) if runs is None else (_charts([runs]), _tables([runs]))
    return Section("answer", "Answer", charts=charts, tables=tables, template="answer.html", context=context)


def scores_section(data: ReportData) -> Section:
    """The score matrix, and which tasks to distrust."""
    models, tasks = names_of(data)
    asked = len(models) * len(tasks)
    scores, known = data.evidence.scores, data.evidence.background
    gaps = {p.label: asked - int(np.isfinite(matrix.values).sum()) for p, matrix in scores.items()}
    screening = [] if data.rankings is None else [data.rankings.screening]
    told = answer(data)
    context = {
        "views": partial(score_views, data, told),
        "shown": len(shown_models(data, told)),
        "models": len(models),
        "source": data.evidence.source,
        "details": has_details(data),
        "families": sorted({f for m, f in known.families.items() if m in models}, key=str.casefold),
        "kinds": len({known.kinds.get(m) for m in models} - {None}) > 1,
        "gaps": {name: missing for name, missing in gaps.items() if missing},
        "failures": data.failures,
        "flags": screening[0].flags if screening else (),
    }
    tables = _tables(screening) if context["flags"] else []
    return Section("scores", "Scores", tables=tables, template="scores.html", context=context)


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
    return Section("predicted", "Predicted", tables=_tables([done]), template="predicted.html", context=context)


def ranks_section(data: ReportData) -> Section | None:
    """Rank bump charts, and the aggregate ranking with its intervals."""
    if data.rankings is None or (data.training is not None and data.training.whole):  # steps are no rivals
        return None
    found = data.rankings.aggregate
    bumps = rank_charts(data)
    ways = [chart for chart in _charts(_both(found, data)) if isinstance(chart, Heatmap)]  # the ranks are the answer's
    rest = [chart for chart in _charts(_rest(found, data)) if isinstance(chart, Heatmap)]
    return Section(
        "ranks",
        "Ranks",
        RANKS,
        charts=[*bumps[:1], *ways],
        more=[*bumps[1:], *rest],
        more_title="More rank charts",
        tables=_tables([*data.rankings.overall.values(), *data.rankings.kept.values(), *found.values()]),
    )


def tuning_section(data: ReportData) -> Section | None:
    """Whether the fine-tuning was the same for all, and which cells may have more in them."""
    found = list(data.rankings.same.values()) if data.rankings is not None else []
    said = " ".join(sentence for one in found for sentence in one.sentences())
    return of_findings("tuning", "Tuning", said, found, heading="Was it the same for all?")


def agreement_section(data: ReportData) -> Section | None:
    """The mean bars of every task, the heat maps side by side, categories, and groups of models."""
    if data.rankings is None or not data.rankings.agreement:
        return None
    found = data.rankings
    heat, by_category = [], []
    for agreement in found.agreement.values():
        first, *rest = agreement.charts()
        heat.append(first)
        by_category += rest
    measures = [] if found.measures is None else [found.measures]
    rest_of_them = [*found.fewer.values(), *found.groups.values()]
    return Section(
        "agreement",
        "Agreement",
        AGREEMENT,
        charts=[*_charts(found.changes.values()), *heat, *by_category, *_charts(rest_of_them)],
        tables=_tables([*found.agreement.values(), *measures, *found.changes.values(), *rest_of_them]),
    )


def evidence_section(data: ReportData) -> Section | None:
    """Model × model evidence, and how much each task resolves."""
    weighed = evidence_maps(data)
    if not weighed or data.rankings is None:
        return None
    found = data.rankings
    maps = [evidence_chart(e, len(data.evidence.planned[p].models)) for p, e in weighed.items()]
    kinds: tuple[Mapping[Protocol, Finding], ...] = (found.paired, found.significance, found.tau_b, found.ranks)
    return Section(
        "evidence",
        "Evidence",
        EVIDENCE,
        charts=[maps[0], *_charts(f for by in kinds for f in _both(by, data))],
        more=[*maps[1:], *_charts(f for by in kinds for f in _rest(by, data))],
        more_title="The other protocols",
        tables=_tables([*(f for by in kinds for f in by.values()), *found.tau_b_changes.values()]),
        template="evidence.html",
        context={"evidence": [evidence_payload(e) for e in weighed.values()]},
    )


def structure_section(data: ReportData) -> Section | None:
    """Principal components of all protocols, and PC1 against compute; families apart."""
    if data.rankings is None or not data.rankings.components:
        return None
    found = data.rankings
    charts = [c.charts() for c in found.components.values()]
    families = [c for by in found.family_components.values() for c in by.values()]
    return Section(
        "structure",
        "Structure",
        STRUCTURE,
        charts=[*(c[0] for c in charts), *_charts(found.compute.values()), *(x for c in charts for x in c[1:])],
        more=_charts(families),
        more_title="Each family by itself",
        tables=_tables([*found.components.values(), *found.compute.values(), *families]),
    )


def perplexity_section(data: ReportData) -> Section | None:
    """Perplexity against tasks."""
    ranked = data.rankings
    found = [] if ranked is None else [*ranked.perplexity.values(), *ranked.perplexity_by_kind.values()]
    return of_findings("perplexity", "Perplexity", PERPLEXITY, found)


def test_task_section(data: ReportData) -> Section | None:
    """Training on the test task."""
    if data.test_task is None:
        return None
    found = list(data.test_task.named().values())
    heading = "Training on the test task"
    return of_findings("test-task", "Test task", TEST_TASK, found, data.test_task.problems, heading=heading)


def classes_section(data: ReportData) -> Section | None:
    """Show tests on labelled texts: models beside baselines, classes, confusion."""
    said = " ".join(sentence for found in data.labelled for sentence in found.sentences())
    return of_findings("classes", "Classes", said, data.labelled, heading="Labelled texts, class by class")


def exposure_section(data: ReportData) -> Section | None:
    """Signs that a model saw a test before."""
    if data.exposure is None:
        return None
    said = " ".join([EXPOSURE, *data.exposure.sentences()])
    return of_findings(
        "exposure", "Exposure", said, [data.exposure], data.exposure.left_out, heading="Signs of exposure"
    )


def stability_section(data: ReportData) -> Section | None:
    """Whether scores grow over the checkpoints of a run."""
    found: list[Finding] = [] if data.stability is None else [data.stability]
    if data.training is not None and not data.training.whole:  # else the answer begins with it
        found.insert(0, data.training)
    return of_findings("stability", "Stability", STABILITY, found, most=MOST)


def consistency_section(data: ReportData) -> Section | None:
    """Base models against their instruct versions."""
    found = [] if data.consistency is None else [data.consistency.consistency]
    return of_findings("consistency", "Consistency", CONSISTENCY, found, most=MOST)


def ablation_section(data: ReportData) -> Section | None:
    """Every model by every method, and which method ranks best."""
    paired = data.consistency.ablation if data.consistency is not None else None
    found = [finding for finding in (paired, data.ablation) if finding is not None]
    return of_findings("ablation", "Methods", ABLATION, found)


def proxies_section(data: ReportData) -> Section | None:
    """Tasks that stand in for one which early models cannot do yet."""
    if data.proxies is None:
        return None
    found = list(data.proxies.named().values())
    return of_findings("proxies", "Proxies", PROXIES, found, data.proxies.problems, heading="Proxy tasks")


def cells_section(data: ReportData) -> Section | None:
    """One cell at a time: curves, prompts, items."""
    if not has_details(data):
        return None
    models, shown = names_of(data)[0], shown_models(data, answer(data))

    def by_model() -> dict[str, list[Any]]:  # for the file; the board fetches a cell when it is looked at
        lanes: dict[str | None, list[Any]] = {}
        for lane in data.evidence.lanes(shown if len(shown) < len(models) else None):
            lanes.setdefault(lane.cell, []).append(lane)
        made: dict[str, list[Any]] = {model: [] for model in shown}
        for cell in data.cells:
            if cell.model in made:
                made[cell.model].append(cell_payload(cell, lanes.get(cell.key, ()), data.items.get(cell.key)))
        return made

    def index(live: str) -> dict[str, Any]:
        return cell_index(data, models if live else shown)

    context = {"by_model": by_model, "index": index, "per_cell": data.items_per_cell}
    return Section("cells", "Cells", template="cells.html", context=context)


def how_section(data: ReportData) -> Section:
    """The study, versions, seeds, recipe, fingerprints and cost."""
    return Section("how", "How", template="how.html", context={"how": how_context(data)})


APART = "Each group is ranked by itself. The rest of this report is about the first group alone."
RANKS = (
    "How the order of the models changes from one protocol to the next. Over all tasks ranks are shown as they are; "
    "on a single task, crossings that test noise alone could explain are undone as far as possible."
)
EVIDENCE = "Every model against every other. Colour is evidence, not the size of a difference."
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
    "What a group of models (the newer ones, where no other was asked for) has more at equal pretraining compute (θ), "
    "before and after every model was tuned on the same task data: an advantage that vanishes was one of preparation. "
    "Emergence is the compute c_e from which scores rise above guessing; it falls as models train on the task."
)
EXPOSURE = (
    "How much a model has left to learn of a task, beside models of other families: little is left where it trained on "
    "such text before. Evidence, not proof; and a high value is no evidence of innocence."
)
MOST_RUNGS = 200  # models of the ladder
MOST = 9  # figures of stability and consistency: there is one for every task
STABILITY = (
    "Whether a benchmark's score grows with pretraining: Kendall's τ between scores and steps, 1 where every later "
    "checkpoint scores higher, 0 where scores jump about; and the smallest gap that the benchmark tells apart."
)
CONSISTENCY = (
    "Whether the base model that scores better becomes the better instruct model: Kendall's τ over pairs, 1 where both "
    "are in the same order. Choose base models by the method with the higher τ."
)
ABLATION = (
    "The same models and benchmarks by every method (protocol and prompt form), and the mean rank of each method over "
    "these cells: 1 would be best everywhere."
)
PROXIES = (
    "Tasks that early models can already do and that tell who will be good at the target: their relevance, robustness "
    "and weight. Trust them as far as they predict models that had no part in the choice, beside perplexity."
)


def reading_section(data: ReportData) -> Section | None:
    """Say how a foreign table was read: metric, direction, scale and kind of each column, and why."""
    read = data.evidence.reading
    lead = "What each column was taken for, and why. If one is wrong, say so with --lower, --scale or --kind."
    return of_findings("reading", "How it was read", lead, [read]) if read is not None else None


SECTIONS: tuple[Callable[[ReportData], Section | None], ...] = (  # in reading order; the ids are addresses of the board
    apart_section,
    answer_section,
    reading_section,
    scores_section,
    classes_section,
    predicted_section,
    ranks_section,
    tuning_section,
    agreement_section,
    evidence_section,
    structure_section,
    perplexity_section,
    test_task_section,
    exposure_section,
    stability_section,
    consistency_section,
    ablation_section,
    proxies_section,
    cells_section,
    how_section,
)


def _both(found: Mapping[Protocol, Finding], data: ReportData) -> list[Finding]:
    """Return the findings to compare: of the protocol with the least preparation, and of the one that ranks."""
    return [finding for name, finding in found.items() if name in (data.first, data.main)]


def _rest(found: Mapping[Protocol, Finding], data: ReportData) -> list[Finding]:
    return [finding for name, finding in found.items() if name not in (data.first, data.main)]


def _charts(found: Iterable[Finding]) -> list[Chart]:
    return [chart for finding in found for chart in finding.charts()]


def _tables(found: Iterable[Finding]) -> list[Table]:
    return [table for finding in found for table in finding.tables()]
