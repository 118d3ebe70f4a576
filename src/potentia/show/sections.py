"""The sections of a report: pure functions from ``ReportData`` to HTML, for the one-file report and the live board."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from potentia.analysis.rankings import NAMES, EvidenceMap, map_evidence
from potentia.show.answer import answer
from potentia.show.arrange import arrange
from potentia.show.bumps import bump_payload
from potentia.show.cell_details import cell_payload
from potentia.show.grid import cell_index, grid, has_details, names_of
from potentia.show.ladder import make_ladder
from potentia.show.page import render, table_payload
from potentia.show.parts import Parts
from potentia.show.predicted import completed_grid, make_outlook
from potentia.show.provenance import how_context
from potentia.show.source import ReportData
from potentia.values.findings import Chart, Finding, telling
from potentia.values.protocol import Protocol


@dataclass(frozen=True)
class Section:
    """One section: its place in the navigation, and its HTML."""

    id: str
    title: str
    html: str


def build_sections(data: ReportData, parts: Parts | None = None) -> list[Section]:
    """Build every section that the data has something for; ``parts`` takes their data, for a file or for the board."""
    parts = parts or Parts()
    return [Section(name, title, html) for name, title, build in SECTIONS if (html := build(data, parts))]


def answer_section(data: ReportData, parts: Parts) -> str:
    """Section 1: the answer first."""
    told = answer(data)
    runs = data.training if data.training is not None and data.training.whole else None
    return render(
        "answer.html",
        training=None if runs is None else arrange(runs.charts()),
        tables=() if runs is None else _tables([runs]),
        answer=told,
        board=told.board,
        ladder=None if told.board is None else make_ladder(told.board),
        method="" if told.board is None else NAMES[told.method] if len(told.board.ranked_on) > 1 else "score",
        names=() if told.board is None else tuple(told.board.names.values()),
        outlook=None if data.completion is None else make_outlook(data.completion),
        predicted="#predicted",
        parts=parts,
    )


def scores_section(data: ReportData, parts: Parts) -> str:
    """Section 2: the score matrix, and which tasks to distrust."""
    models, tasks = names_of(data)
    asked = len(models) * len(tasks)
    scores, known = data.evidence.scores, data.evidence.background
    gaps = {p.label: asked - int(np.isfinite(matrix.values).sum()) for p, matrix in scores.items()}
    screening = [] if data.rankings is None else [data.rankings.screening]
    return render(
        "scores.html",
        grid=grid(data, answer(data)),
        families=sorted({f for m, f in known.families.items() if m in models}, key=str.casefold),
        categories=sorted({c for t, c in known.categories.items() if t in tasks}),
        sized=any(m in known.billions for m in models),
        kinds=len({known.kinds.get(m) for m in models} - {None}) > 1,
        gaps={name: missing for name, missing in gaps.items() if missing},
        failures=data.failures,
        flags=screening[0].flags if screening else (),
        figures=_figures(screening),
        tables=_tables(screening),
        parts=parts,
    )


def predicted_section(data: ReportData, parts: Parts) -> str:
    """Section 3: the cells that are not measured yet, hatched among those that are."""
    if data.completion is None:
        return ""
    known = {model["name"]: model for model in grid(data, answer(data))["models"]}
    done = data.completion
    return render(
        "predicted.html",
        grid=completed_grid(data, done, known),
        done=done,
        count_measured=int(done.measured.sum()),
        count_predicted=int((~done.measured).sum()),
        failed=any(f.protocol == done.protocol for f in data.failures),
        tables=_tables([done]),
        parts=parts,
    )


def ranks_section(data: ReportData, parts: Parts) -> str:
    """Section 4: rank bump charts, and the aggregate ranking with its intervals."""
    if data.rankings is None or (data.training is not None and data.training.whole):  # steps are no rivals
        return ""
    found = data.rankings.aggregate
    return render(
        "ranks.html",
        bumps=bump_payload(data),
        figures=arrange(_ways(found, data)),
        more=arrange(chart for finding in _rest(found, data) for chart in finding.charts()[1:]),
        tables=_tables([*data.rankings.overall.values(), *data.rankings.kept.values(), *found.values()]),
        parts=parts,
    )


def agreement_section(data: ReportData, parts: Parts) -> str:
    """Section 5: the mean bars of every task, the heat maps side by side, categories, and groups of models."""
    if data.rankings is None or not data.rankings.agreement:
        return ""
    found = data.rankings
    heat, by_category = [], []
    for agreement in found.agreement.values():
        first, *rest = agreement.charts()
        heat.append(first)
        by_category += rest
    bars = [chart for change in found.changes.values() for chart in change.charts()]
    groups = [chart for group in found.groups.values() for chart in group.charts()]
    measures = [] if found.measures is None else [found.measures]
    fewer = [chart for one in found.fewer.values() for chart in one.charts()]
    return render(
        "findings.html",
        id="agreement",
        title="Agreement",
        lead=AGREEMENT,
        figures=arrange((*bars, *heat, *by_category, *fewer, *groups)),
        tables=_tables(
            [
                *found.agreement.values(),
                *measures,
                *found.changes.values(),
                *found.fewer.values(),
                *found.groups.values(),
            ]
        ),
        problems=(),
        parts=parts,
    )


def evidence_section(data: ReportData, parts: Parts) -> str:
    """Section 6: model × model evidence, and how much each task resolves."""
    weighed = evidence_maps(data)
    if not weighed or data.rankings is None:
        return ""
    found = data.rankings
    kinds: tuple[Mapping[Protocol, Finding], ...] = (found.paired, found.significance, found.tau_b, found.ranks)
    return render(
        "evidence.html",
        evidence=[e.payload() for e in weighed.values()],
        figures=_figures([f for by in kinds for f in _both(by, data)]),
        more=_figures([f for by in kinds for f in _rest(by, data)]),
        tables=_tables([*(f for by in kinds for f in by.values()), *found.tau_b_changes.values()]),
        parts=parts,
    )


def evidence_maps(data: ReportData) -> dict[Protocol, EvidenceMap]:
    """Return the evidence between every two models, the most prepared protocol first, models by rank."""
    ranking = data.rankings.overall.get(data.main) if data.rankings is not None else None
    place = {model: k for k, model in enumerate(ranking.models)} if ranking is not None else {}
    weighed = {}
    for protocol, matrix in reversed(data.evidence.planned.items()):
        ordered = matrix.select(models=sorted(matrix.models, key=lambda m: place.get(m, len(place))))
        if (found := map_evidence(ordered, data.evidence.outcomes.get(protocol))) is not None:
            weighed[protocol] = found
    return weighed


def structure_section(data: ReportData, parts: Parts) -> str:
    """Section 7: principal components of all protocols, and PC1 against compute; families apart."""
    if data.rankings is None or not data.rankings.components:
        return ""
    found = data.rankings
    charts = [c.charts() for c in found.components.values()]
    scree, bars = [c[0] for c in charts], [chart for c in charts for chart in c[1:]]
    compute = [chart for fit in found.compute.values() for chart in fit.charts()]
    families = [c for by in found.family_components.values() for c in by.values()]
    return render(
        "findings.html",
        id="structure",
        title="Structure",
        lead=STRUCTURE,
        figures=arrange((*scree, *compute, *bars)),
        more=_figures(families),
        more_title="Each family by itself",
        tables=_tables([*found.components.values(), *found.compute.values(), *families]),
        problems=(),
        parts=parts,
    )


def perplexity_section(data: ReportData, parts: Parts) -> str:
    """Section 8: perplexity against tasks."""
    ranked = data.rankings
    found = [] if ranked is None else [*ranked.perplexity.values(), *ranked.perplexity_by_kind.values()]
    return _plain(parts, "perplexity", "Perplexity", PERPLEXITY, found)


def test_task_section(data: ReportData, parts: Parts) -> str:
    """Section 9: training on the test task."""
    if data.test_task is None:
        return ""
    found = list(data.test_task.named().values())
    return _plain(parts, "test-task", "Training on the test task", TEST_TASK, found, data.test_task.problems)


def stability_section(data: ReportData, parts: Parts) -> str:
    """Section 10: whether scores grow over the checkpoints of a run."""
    found: list[Finding] = [] if data.stability is None else [data.stability]
    if data.training is not None and not data.training.whole:  # else the answer begins with it
        found.insert(0, data.training)
    return _plain(parts, "stability", "Stability", STABILITY, found, most=MOST)


def consistency_section(data: ReportData, parts: Parts) -> str:
    """Section 11: base models against their instruct versions."""
    found = [] if data.consistency is None else [data.consistency.consistency]
    return _plain(parts, "consistency", "Consistency", CONSISTENCY, found, most=MOST)


def ablation_section(data: ReportData, parts: Parts) -> str:
    """Section 12: every model by every method, and which method ranks best."""
    paired = data.consistency.ablation if data.consistency is not None else None
    found = [finding for finding in (paired, data.ablation) if finding is not None]
    return _plain(parts, "ablation", "Methods", ABLATION, found)


def proxies_section(data: ReportData, parts: Parts) -> str:
    """Section 13: tasks that stand in for one which early models cannot do yet."""
    if data.proxies is None:
        return ""
    found = list(data.proxies.named().values())
    return _plain(parts, "proxies", "Proxy tasks", PROXIES, found, data.proxies.problems)


def cells_section(data: ReportData, parts: Parts) -> str:
    """Section 14: one cell at a time: curves, prompts, items."""
    if not has_details(data):
        return ""
    lanes: dict[str | None, list[Any]] = {}
    for lane in data.lanes:
        lanes.setdefault(lane.cell, []).append(lane)
    by_model: dict[str, list[dict[str, Any]]] = {}
    for cell in () if parts.live else data.cells:  # the board asks for one when it is looked at
        made = cell_payload(cell, lanes.get(cell.key, ()), data.items.get(cell.key))
        by_model.setdefault(cell.model, []).append(made)
    return render("cells.html", by_model=by_model, index=cell_index(data), per_cell=data.items_per_cell, parts=parts)


def how_section(data: ReportData, parts: Parts) -> str:
    """Section 15: the study, versions, seeds, recipe, fingerprints and cost."""
    return render("how.html", **how_context(data))


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

SECTIONS: tuple[tuple[str, str, Callable[[ReportData, Parts], str]], ...] = (
    ("answer", "Answer", answer_section),
    ("scores", "Scores", scores_section),
    ("predicted", "Predicted", predicted_section),
    ("ranks", "Ranks", ranks_section),
    ("agreement", "Agreement", agreement_section),
    ("evidence", "Evidence", evidence_section),
    ("structure", "Structure", structure_section),
    ("perplexity", "Perplexity", perplexity_section),
    ("test-task", "Test task", test_task_section),
    ("stability", "Stability", stability_section),
    ("consistency", "Consistency", consistency_section),
    ("ablation", "Methods", ablation_section),
    ("proxies", "Proxies", proxies_section),
    ("cells", "Cells", cells_section),
    ("how", "How", how_section),
)


def _plain(
    parts: Parts,
    name: str,
    title: str,
    lead: str,
    found: Sequence[Finding],
    problems: tuple[str, ...] = (),
    most: int = 99,
) -> str:
    """Show findings one after the other; of more figures than ``most`` the rest are folded away."""
    if not found and not problems:
        return ""
    figures = _figures(found)
    return render("findings.html", id=name, title=title, lead=lead, figures=figures[:most], more=figures[most:],
                  more_title="More figures", tables=_tables(found), problems=problems, parts=parts)  # fmt: skip


def _both(found: Mapping[Protocol, Finding], data: ReportData) -> list[Finding]:
    """Return the findings to compare: of the protocol with the least preparation, and of the one that ranks."""
    return [finding for name, finding in found.items() if name in (data.first, data.main)]


def _rest(found: Mapping[Protocol, Finding], data: ReportData) -> list[Finding]:
    return [finding for name, finding in found.items() if name not in (data.first, data.main)]


def _ways(found: Mapping[Protocol, Finding], data: ReportData) -> list[Chart]:
    """Return the ranks by every way of aggregating; the ranks themselves are in the answer."""
    return [chart for finding in _both(found, data) for chart in finding.charts()[1:]]


def _figures(found: Iterable[Finding]) -> list[dict[str, Any]]:
    return arrange(chart for finding in found for chart in finding.charts())


def _tables(found: Iterable[Finding]) -> list[dict[str, Any]]:
    kept = (telling(table) for finding in found for table in finding.tables())
    return [table_payload(table) for table in kept if table is not None]
