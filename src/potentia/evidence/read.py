"""Reading sources: stores, tables, results of other tools; several are joined into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.errors import DataError, InputError, PotentiaError, StoreError
from potentia.evidence.evidence import Evidence, facts_of
from potentia.evidence.join import Cell, UnlikeError, joined, recipe_of, refuse_unlike, unfolded
from potentia.facts import models as known_models
from potentia.facts import read_benchmarks, read_facts
from potentia.formats import ColumnHints, read_score_files
from potentia.store import Store, StudyRecord
from potentia.values.protocol import Protocol, TaskName, in_order
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    import pandas as pd

ALL = "all"  # every study of a store


def read(
    *sources: str | Path | pd.DataFrame,
    study: str | Sequence[str] | None = None,
    metric: str | None = None,
    subtasks: bool = False,
    facts: str | Path | None = None,
    task_facts: str | Path | None = None,
    protocols: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    lower: Sequence[str] = (),
    scale: Mapping[str, str] | None = None,
    kind: Mapping[str, str] | None = None,
    apart: bool = False,
) -> Evidence:
    """Read stores, score tables, pandas tables, lm-eval results or published files, several joined into one.

    ``study`` names one or more studies of a store (``all`` for all of them); without it the one opened last counts.
    ``metric`` picks a metric where a benchmark has several, ``subtasks`` the members of groups such as MMLU, ``facts``
    is a CSV of what is known of the models, ``task_facts`` one of the tasks (category, train_size, chance), and
    ``protocols``, ``tasks`` and ``models`` narrow what is read.
    ``columns`` says which column of a table is which field, where its names do not: ``{"score": "Accuracy"}``;
    ``lower``, ``scale`` and ``kind`` say what its columns of scores are: those that are better when lower, whether
    share, percent, range or unbounded, whether task or text. How a table was read is in ``Evidence.table_layout``.
    Sources and studies that cannot be compared are refused; with ``apart`` each group of those that can stands alone:
    the first is returned, the others are its ``apart``.
    """
    if not sources:
        raise InputError(
            "no scores are given", hint="name a store, a table or a folder of lm-eval results"
        )
    wanted = (study,) if isinstance(study, str) else tuple(study or ())
    one = partial(
        _read_one,
        metric=metric,
        subtasks=subtasks,
        columns=columns,
        hints=ColumnHints.from_options(lower, scale, kind),
    )
    whole = (
        _groups(sources, wanted, one)
        if apart
        else [_together([one(source, wanted) for source in sources])]
    )
    first, *others = [
        _with_facts(found, sources, facts, task_facts).narrowed(
            protocols=protocols, tasks=tasks, models=models
        )
        for found in whole
    ]
    return replace(first, apart=tuple(others))


def _together(parts: Sequence[Evidence]) -> Evidence:
    return parts[0] if len(parts) == 1 else joined(parts)


def _groups(
    sources: Sequence[Any],
    studies: tuple[str, ...],
    one: Callable[[Any, tuple[str, ...]], Evidence],
) -> list[Evidence]:
    """Read sources, and the studies of a store, in groups that can be compared: each joins the first that it fits."""
    groups: list[
        tuple[dict[int, tuple[str, ...]], Evidence]
    ] = []  # the place of a source → its studies
    for place, source in enumerate(sources):
        for study in _studies_in(source, studies):
            why = ""
            for k, (group, _) in enumerate(groups):
                larger = {**group, place: (*group.get(place, ()), *study)}
                try:
                    groups[k] = (
                        larger,
                        _together([one(sources[at], names) for at, names in larger.items()]),
                    )
                    break
                except UnlikeError as error:
                    why = why or error.message
            else:
                alone = one(source, study)
                notes = (*alone.notes, *([f"shown apart: {why}"] if why else []))
                groups.append(({place: study}, replace(alone, notes=notes)))
    return [found for _, found in groups]


def _studies_in(source: Any, wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the studies meant, one by one; a file of scores is one by itself."""
    if not isinstance(source, (str, Path)) or not is_store(source) or not wanted:
        return [wanted]
    with Store.open(str(source), readonly=True) as store:
        return [(record.key,) for record in reversed(_chosen(store.studies(), wanted, store.where))]


def _with_facts(
    found: Evidence, sources: Sequence[Any], facts: str | Path | None, task_facts: str | Path | None
) -> Evidence:
    if facts is None and (beside := _facts_beside(sources)) is not None:
        facts = beside
        found = replace(found, notes=(*found.notes, f"facts of the models: {beside.name}"))
    table = facts_of(found.studies, found.specs, read_facts(facts) if facts is not None else ())
    own = read_benchmarks(task_facts) if task_facts is not None else ()
    return replace(found, facts=table, task_facts=own)


def _facts_beside(sources: Sequence[str | Path | pd.DataFrame]) -> Path | None:
    """Return ``scores.facts.csv`` where it lies beside the one table ``scores.csv``."""
    first = sources[0]
    if len(sources) != 1 or not isinstance(first, (str, Path)) or is_store(first):
        return None
    path = Path(first).expanduser()
    if not path.name:
        return None
    beside = path.with_name(f"{path.stem}.facts.csv")
    return beside if beside != path and beside.is_file() else None


def is_store(source: str | Path) -> bool:
    """Say whether this is a store (a SQLite file or a database URL) rather than a file of scores."""
    if "://" in str(source):
        return True
    path = Path(source).expanduser()
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(16).startswith(b"SQLite format 3")
    except OSError:
        return False


def _read_one(
    source: str | Path | pd.DataFrame,
    studies: tuple[str, ...],
    metric: str | None,
    subtasks: bool,
    columns: Mapping[str, str] | None,
    hints: ColumnHints,
) -> Evidence:
    name, title = "DataFrame", "scores"
    if isinstance(source, (str, Path)):
        if is_store(source):
            return _from_store(str(source), studies, metric)
        source = Path(source).expanduser()
        name = title = source.name
    found = read_score_files(
        source, metric=metric, subtasks=subtasks, column_map=columns, hints=hints
    )
    if metric is not None and not any(
        m.name for matrix in found.scores.values() for m in matrix.metrics
    ):
        raise DataError(
            f"it does not say which scores are by {metric}", where=name, hint="leave out --metric"
        )
    scores = {p: found.scores[p] for p in in_order(found.scores)}
    return Evidence(
        name,
        title,
        scores,
        known_models(),
        notes=found.notes,
        table_layout=found.layout,
        items_read=found.items,
    )


def _from_store(where: str, wanted: tuple[str, ...], metric: str | None) -> Evidence:
    try:
        with Store.open(where, readonly=True) as store:
            return _of_store(store, where, wanted, metric)
    except StoreError as error:  # as a source of scores, a damaged or foreign database is bad input
        if isinstance(error, InputError) or "://" in where:
            raise
        raise DataError(error.message, where=error.where, hint=error.hint) from error
    except PotentiaError:
        raise
    except (
        TypeError,
        ValueError,
        AttributeError,
    ) as error:  # a text or a gap where the schema promises a number
        raise DataError(
            f"the database is damaged: {error}", where=where, hint="restore a copy"
        ) from error


def _of_store(store: Store, where: str, wanted: tuple[str, ...], metric: str | None) -> Evidence:
    records = store.studies()
    chosen = _chosen(records, wanted, store.where)
    keys = tuple(record.key for record in chosen)
    notes: list[str] = []
    if not wanted and len(records) > 1:
        others = ", ".join(dict.fromkeys(r.name for r in records if r.key not in keys))
        notes.append(
            f"this is the study {chosen[0].name}, opened last; the store also holds: {others} (--study NAME)"
        )
    _refuse_unlike_studies(store, chosen, metric)
    protocols = in_order({p for key in keys for p in store.protocols(study=key)})
    if not protocols and not any(store.failures(study=key) for key in keys):
        raise DataError(
            "the store holds no scores yet", where=store.where, hint="run a study, or import scores"
        )
    scores, without = _by_metric(store, protocols, keys, metric)
    scores = {protocol: unfolded(matrix, notes) for protocol, matrix in scores.items()}
    for (protocol, task), models in store.cut_prompts(study=keys).items():
        cut = sum(prompts.cut for prompts in models.values())
        asked = sum(prompts.requests for prompts in models.values())
        shown = ", ".join(list(models)[:3]) + (
            f" and {len(models) - 3} more" if len(models) > 3 else ""
        )
        notes.append(
            f"{task} by {protocol}: {cut:,} of {asked:,} prompts were cut to fit the model ({shown})"
        )
    for (task, model), share in store.unknown_tokens(study=keys).items():
        notes.append(f"{model} reads {share:.0%} of the tokens of {task} as unknown")
    name = Path(where).name if "://" not in where else store.where
    return Evidence(
        source=name,
        title=chosen[0].name if len(chosen) == 1 else Path(name).stem,
        scores=scores,
        facts=known_models(),
        studies=tuple(chosen),
        notes=tuple(notes),
        stores=((where, keys),),
        without_items=without,
    )


def _refuse_unlike_studies(store: Store, chosen: Sequence[StudyRecord], metric: str | None) -> None:
    names = {record.key: record.name for record in reversed(chosen)}
    keys = {name: key for key, name in names.items()}
    measures = store.measures(study=tuple(record.key for record in chosen), metric=metric)
    refuse_unlike(
        (
            (names[key], protocol, task, Cell(by, origin))
            for key, protocol, task, by, origin in measures
        ),
        recipe=lambda name, protocol, task: recipe_of(store, keys[name], protocol, task),
        where=store.where,
        hint="choose one: --study {source}; or show them apart: --apart",
    )


def _by_metric(
    store: Store, protocols: Sequence[Protocol], studies: tuple[str, ...], metric: str | None
) -> tuple[dict[Protocol, ScoreMatrix], dict[Protocol, frozenset[str]]]:
    """Return the scores by one metric where one is asked for, and the tasks whose items are of another one."""
    usual = {p: store.matrix(p, study=studies) for p in protocols}
    if metric is None:
        return usual, {}
    scores: dict[Protocol, ScoreMatrix] = {}
    without: dict[Protocol, frozenset[str]] = {}
    problems: list[InputError] = []
    for protocol, matrix in usual.items():
        try:
            scores[protocol] = store.matrix(protocol, study=studies, metric=metric)
        except InputError as error:  # no cell of this protocol has it, as with texts
            problems.append(error)
        others = {
            task
            for task, main in zip(matrix.tasks, matrix.metrics, strict=True)
            if main.name != metric
        }
        without[protocol] = frozenset(TaskName(task).whole for task in others)
    if problems and not scores:
        raise problems[0]
    return scores, without


def _chosen(
    records: Sequence[StudyRecord], wanted: tuple[str, ...], where: str
) -> list[StudyRecord]:
    """Return the studies meant: by name or key (a name means the one opened last), all, or the one opened last."""
    if not records:
        raise DataError(
            "the store holds no scores yet", where=where, hint="run a study, or import scores"
        )
    if wanted == (ALL,):
        return list(records)
    found: dict[str, StudyRecord] = {}
    for name in wanted or (records[0].key,):
        record = find_study(records, name)
        if record is None:
            known = ", ".join(sorted({r.name for r in records}))
            raise DataError(f"no study {name!r} in {where}", hint=f"there are: {known}")
        found.setdefault(record.key, record)
    return list(found.values())


def find_study(records: Sequence[StudyRecord], name: str) -> StudyRecord | None:
    """Return the study with this key, else the first of this name."""
    return next((r for r in records if r.key == name), None) or next(
        (r for r in records if r.name == name), None
    )
