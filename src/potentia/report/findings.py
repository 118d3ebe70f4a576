"""The findings of a set of scores, made one way for the command line, the report and the live board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.analysis.rankings.background import Background
from potentia.errors import InputError, PotentiaError
from potentia.facts import ModelFacts, ModelTable
from potentia.facts import models as known_models
from potentia.findings import Chart, Finding
from potentia.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.analysis.stats.paired import Outcomes
    from potentia.store import StudyRecord
    from potentia.study import ModelSpec

SINCE = "2023-11"  # models trained in this month or later are the newer ones (Training on the test task, section 2)


def is_store(source: str | Path) -> bool:
    """Say whether this is a store (a SQLite file or a database URL) rather than a file of scores."""
    if "://" in str(source):
        return True
    try:
        with Path(source).expanduser().open("rb") as file:
            return file.read(16).startswith(b"SQLite format 3")
    except OSError:
        return False


def study_records(source: str | Path, study: str | None = None) -> list[StudyRecord]:
    """Return the studies of a store, or the one with this name or key; a file of scores has none."""
    if not is_store(source):
        return []
    from potentia.store import Store

    with Store.open(source, readonly=True) as store:
        return [record for record in store.studies() if study in (None, record.name, record.key)]


def facts_table(records: Iterable[StudyRecord], facts: Path | None = None) -> ModelTable:
    """Return what is known of models: the shipped facts, then what the studies say, then the user's own file."""
    from potentia.study import Study

    known = known_models()
    told: dict[str, ModelFacts] = {}
    for record in records:
        try:
            study = Study.model_validate(dict(record.spec))
        except ValueError:  # imported scores have no study
            continue
        if study.facts and Path(study.facts).is_file():
            told.update({model.name: model for model in known_models(study.facts)})
        for row in study.rows():
            if any(value is not None for value in (row.family, row.parameters, row.tokens, row.date)):
                told[row.name] = _told(row, known.find(row.name))
    if not told and facts is None:
        return known
    return ModelTable((*known, *told.values(), *(known_models(facts) if facts is not None else ())))


def _told(row: ModelSpec, known: ModelFacts | None) -> ModelFacts:
    base = known or ModelFacts(row.name, row.series or "", None, None, None, "base", None, None, None)
    return replace(
        base,
        name=row.name,
        aliases=(),
        repository=None,
        family=row.family or base.family,
        parameters=row.parameters or base.parameters,
        size=row.parameters or base.size,
        tokens=row.tokens or base.tokens,
        date=row.date[:7] if row.date else base.date,
        kind=row.kind if row.kind != "auto" else base.kind,
    )


def background_of(scores: Mapping[str, ScoreMatrix], table: ModelTable) -> Background:
    """Look up every model that has a score."""
    return Background.of(dict.fromkeys(m for matrix in scores.values() for m in matrix.models), table=table)


def planned(scores: Mapping[str, ScoreMatrix], order: Sequence[str] | None = None) -> dict[str, ScoreMatrix]:
    """Leave out the scores at intermediate steps (``adjust@100``), which stand beside the planned cells."""
    return {protocol: scores[protocol] for protocol in order or scores if "@" not in protocol}


def find_rankings(
    scores: Mapping[str, ScoreMatrix], background: Background, outcomes: Mapping[str, Outcomes] | None = None
) -> tuple[dict[str, Finding], str]:
    """Return the findings of ``potentia analyze rankings`` with its defaults, or why there are none."""
    from potentia.analysis.rankings.find import analyze_rankings

    try:
        return analyze_rankings(planned(scores), background, items=outcomes), ""
    except PotentiaError as error:
        return {}, error.message


def find_test_task(scores: Mapping[str, ScoreMatrix], table: ModelTable) -> tuple[dict[str, Finding], list[str]]:
    """Return the findings of ``potentia analyze test-task`` where the scores hold an adjusted protocol.

    Models trained since November 2023 are set against the others, as in the document; tasks that cannot be analysed
    (too few models with known compute, an unknown score of guessing) are named with the reason.
    """
    if "direct" not in scores or "adjust" not in scores:
        return {}, []
    from potentia.analysis.test_task.chance import chance
    from potentia.analysis.test_task.cohort import Cohort
    from potentia.analysis.test_task.find import analyze_pair
    from potentia.analysis.test_task.pair import pair_up

    before, after = scores["direct"], scores["adjust"]
    found: dict[str, Finding] = {}
    problems: list[str] = []
    cohort = Cohort.known(before.models, table)
    for task, up in zip(before.tasks, before.higher_is_better, strict=True):
        if task not in after.tasks:
            continue
        try:
            level = {task: chance(task, higher_is_better=up)}
            for pair in pair_up(before, after, cohort, tasks=[task], chance=level):
                found |= analyze_pair(pair, lambda models: models.since(SINCE))
        except InputError as error:
            problems.append(f"{task}: {error.message}")
    return found, problems


def all_charts(findings: Sequence[Mapping[str, Finding]]) -> list[Chart]:
    """Return every chart of several sets of findings, in reading order."""
    return [chart for found in findings for finding in found.values() for chart in finding.charts()]
