"""Reading sources: stores, tables, results of other tools; several are joined into one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from potentia.errors import DataError, InputError, PotentiaError, StoreError
from potentia.evidence.evidence import Evidence, collect_model_facts, parse_study_record
from potentia.evidence.join import (
    MeasuredTask,
    SourceTask,
    UnlikeError,
    check_alike,
    find_stored_recipe,
    join_folds,
    join_sources,
)
from potentia.facts import (
    NO_GROUPS,
    read_benchmarks,
    read_facts,
    read_task_groups,
    separate_tasks,
)
from potentia.facts import models as known_models
from potentia.formats import ColumnHints, TableDescription, read_score_files
from potentia.store import Store, StudyRecord
from potentia.values.protocol import Protocol, TaskName, in_order
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    import pandas as pd

    Source: TypeAlias = str | Path | pd.DataFrame

ALL = "all"  # every study of a store


@dataclass(frozen=True)
class _SourceReader:
    """Reads one source after the other, each with the same options."""

    metric: str | None
    subtasks: bool
    column_map: Mapping[str, str] | None
    hints: ColumnHints

    def read_source(self, source: Source, studies: tuple[str, ...]) -> Evidence:
        """Read a store, a file or a pandas table."""
        if not isinstance(source, (str, Path)):
            _check_table(source)
            return self._read_scores(source, "DataFrame", "scores")
        _check_name(source)
        if is_store(source):
            return _read_store(str(source), studies, self.metric)
        path = Path(source).expanduser()
        return self._read_scores(path, path.name, path.name)

    def read_sources(self, studies_by_source: Sequence[tuple[Source, tuple[str, ...]]]) -> Evidence:
        """Read several sources, each with the studies that are meant, as one."""
        parts = [self.read_source(source, studies) for source, studies in studies_by_source]
        return parts[0] if len(parts) == 1 else join_sources(parts)

    def _read_scores(self, source: Path | pd.DataFrame, name: str, title: str) -> Evidence:
        file = read_score_files(
            source,
            metric=self.metric,
            subtasks=self.subtasks,
            column_map=self.column_map,
            hints=self.hints,
        )
        if self.metric is not None and not _names_metrics(file.scores.values()):
            message = f"it does not say which scores are by {self.metric}"
            raise DataError(message, where=name, hint="leave out the metric")
        return Evidence(
            source=name,
            title=title,
            scores={protocol: file.scores[protocol] for protocol in in_order(file.scores)},
            facts=known_models(),
            notes=file.notes,
            table_layout=file.layout,
            items_read=file.items,
        )


def _names_metrics(matrices: Iterable[ScoreMatrix]) -> bool:
    return any(metric.name for matrix in matrices for metric in matrix.metrics)


def read(
    *sources: str | Path | pd.DataFrame,
    study: str | Sequence[str] | None = None,
    metric: str | None = None,
    subtasks: bool = False,
    facts: str | Path | None = None,
    task_facts: str | Path | None = None,
    task_groups: str | Path | None = None,
    protocols: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    columns: Mapping[str, str] | str | Path | None = None,
    lower: Sequence[str] = (),
    scale: Mapping[str, str] | None = None,
    kind: Mapping[str, str] | None = None,
    apart: bool = False,
) -> Evidence:
    """Read stores, score tables, pandas tables, lm-eval results or published files, several joined into one.

    ``study`` names one or more studies of a store (``all`` for all of them); without it the one opened last counts.
    ``metric`` picks a metric where a benchmark has several, ``subtasks`` the members of groups such as MMLU, ``facts``
    is a CSV of what is known of the models, ``task_facts`` one of the tasks (category, train_size, chance, group), and
    ``protocols``, ``tasks`` and ``models`` narrow what is read. ``task_groups`` is a CSV of tasks and their groups, or
    ``none``: tasks of one group count as one task.
    ``columns`` says which column of a table is which field, where its names do not: ``{"score": "Accuracy"}``; or it
    names a file that describes the scores, as ``--columns`` does. ``lower``, ``scale`` and ``kind`` say what its
    columns of scores are: those that are better when lower, whether share, percent, range or unbounded, whether task or
    text. How a table was read is in ``Evidence.table_layout``.
    Sources and studies that cannot be compared are refused; with ``apart`` each group of those that can stands alone:
    the first is returned, the others are its ``apart``.
    """
    if not sources:
        raise InputError(
            "no scores are given", hint="name a store, a table or a folder of lm-eval results"
        )
    studies = (study,) if isinstance(study, str) else tuple(study or ())
    description = _describe_table(columns)
    reader = _SourceReader(
        metric=metric or description.metric,
        subtasks=subtasks or description.subtasks,
        column_map=description.column_by_field or None,
        hints=description.hints.merged(ColumnHints.from_options(lower, scale, kind)),
    )
    groups_of_tasks = task_groups or description.task_groups
    if apart or description.apart:
        groups = _read_comparable_groups(sources, studies, reader)
    else:
        groups = [reader.read_sources([(source, studies) for source in sources])]
    narrowed = []
    for evidence in groups:
        with_facts = _add_facts(evidence, sources, facts, task_facts or description.task_facts)
        if groups_of_tasks is not None:
            with_facts = replace(with_facts, task_groups=_read_groups(groups_of_tasks, with_facts))
        part = with_facts.narrowed(protocols=protocols, tasks=tasks, models=models)
        narrowed.append(part.with_blind_twins_apart())
    return replace(narrowed[0], apart=tuple(narrowed[1:]))


def _describe_table(columns: Mapping[str, str] | str | Path | None) -> TableDescription:
    """Return what is said of the scores: by a file, or by a mapping from fields to columns."""
    if columns is None:
        return TableDescription()
    if isinstance(columns, (str, Path)):
        return TableDescription.from_file(Path(columns).expanduser())
    return TableDescription(column_by_field=columns)


@dataclass
class _ComparableGroup:
    """Sources that can be compared: for each (by its number) the studies that count, and all of it read."""

    studies: dict[int, tuple[str, ...]]
    evidence: Evidence


def _read_comparable_groups(
    sources: Sequence[Source], studies: tuple[str, ...], reader: _SourceReader
) -> list[Evidence]:
    """Read sources, and the studies of a store, in groups that can be compared: each joins the first that it fits."""
    groups: list[_ComparableGroup] = []
    for number, source in enumerate(sources):
        for study in _separate_studies(source, studies):
            reason = ""
            for group in groups:
                larger = {**group.studies, number: (*group.studies.get(number, ()), *study)}
                members = [(sources[member], names) for member, names in larger.items()]
                try:
                    group.evidence = reader.read_sources(members)
                except UnlikeError as error:
                    reason = reason or error.message
                else:
                    group.studies = larger
                    break
            else:
                evidence = reader.read_source(source, study)
                if reason:
                    notes = (*evidence.notes, f"shown apart: {reason}")
                    evidence = replace(evidence, notes=notes)
                groups.append(_ComparableGroup({number: study}, evidence))
    return [group.evidence for group in groups]


def _separate_studies(source: Source, studies: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the studies meant, one by one; a file of scores is one by itself."""
    if not isinstance(source, (str, Path)) or not is_store(source) or not studies:
        return [studies]
    with Store.open(str(source), readonly=True) as store:
        records = _choose_studies(store.studies.read(), studies, store.where)
    return [(record.key,) for record in reversed(records)]


def _add_facts(
    evidence: Evidence,
    sources: Sequence[Source],
    facts: str | Path | None,
    task_facts: str | Path | None,
) -> Evidence:
    """Add what is known of models and tasks: shipped with Potentia, told by the studies, in the user's files."""
    if facts is None:
        facts = _find_facts_beside(sources)
        if facts is not None:
            note = f"facts of the models: {facts.name}"
            evidence = replace(evidence, notes=(*evidence.notes, note))
    user_facts = read_facts(facts) if facts is not None else ()
    user_task_facts = read_benchmarks(task_facts) if task_facts is not None else ()
    model_facts = collect_model_facts(evidence.studies, evidence.specs, user_facts)
    return replace(evidence, facts=model_facts, task_facts=user_task_facts)


def _read_groups(task_groups: str | Path, evidence: Evidence) -> dict[str, str]:
    """Return the group of every task that the user names, or each task by itself for ``none``."""
    tasks: dict[str, None] = {}
    for matrix in evidence.scores.values():
        tasks |= dict.fromkeys(matrix.tasks)
    if str(task_groups) == NO_GROUPS:
        return separate_tasks(tasks)
    groups = read_task_groups(task_groups)
    names = set(tasks) | {TaskName(task).base for task in tasks}
    unknown = [task for task in groups if task not in names]
    if unknown:
        raise InputError(
            f"no task {unknown[0]!r} in these scores",
            where=str(task_groups),
            hint=f"there are: {', '.join(list(tasks)[:12])}",
        )
    return groups


def _find_facts_beside(sources: Sequence[Source]) -> Path | None:
    """Return ``scores.facts.csv`` where it lies beside the one table ``scores.csv``."""
    first = sources[0]
    if len(sources) != 1 or not isinstance(first, (str, Path)) or is_store(first):
        return None
    path = Path(first).expanduser()
    if not path.name:
        return None
    facts = path.with_name(f"{path.stem}.facts.csv")
    return facts if facts != path and facts.is_file() else None


def _check_table(source: object) -> None:
    """Refuse what is neither a name nor a pandas table."""
    pandas = sys.modules.get("pandas")  # who has such a table has imported it
    if pandas is None or not isinstance(source, pandas.DataFrame):
        raise InputError(
            f"scores cannot be read from {type(source).__name__} objects",
            hint="give the name of a store, a table or a folder of lm-eval results, or a pandas DataFrame",
        )


def read_by_metric(evidence: Evidence, metric: str) -> Evidence:
    """Read the stores of evidence again by another metric, narrowed to the same protocols, tasks and models.

    Files of scores are left out: what they say of their metrics is read already.
    """
    parts = [_read_store(where, studies, metric) for where, studies in evidence.stores]
    if not parts:
        raise InputError(
            f"no store among {evidence.source}", hint=f"scores by {metric} come from a store"
        )
    again = parts[0] if len(parts) == 1 else join_sources(parts)
    scores = {}
    for protocol, matrix in again.scores.items():
        if protocol not in evidence.scores:
            continue
        shown = evidence.scores[protocol]
        tasks = [task for task in matrix.tasks if task in shown.tasks]
        models = [model for model in matrix.models if model in shown.models]
        if tasks and models:
            scores[protocol] = matrix.select(tasks=tasks, models=models)
    return replace(again, scores=scores, facts=evidence.facts)


def to_evidence(source: Any) -> Evidence:
    """Return evidence as it is, matrices as evidence, and read everything else that ``read`` accepts."""
    if isinstance(source, Evidence):
        return source
    if isinstance(source, (ScoreMatrix, Mapping)):
        return Evidence.of(source)
    return read(source)


def _check_name(source: str | Path) -> None:
    """Refuse what no file can be called; an empty name would mean the folder that one is in."""
    if not str(source).strip() or "\0" in str(source):
        raise InputError(
            f"{str(source)!r} is no name of a file",
            hint="name a store, a table or a folder of lm-eval results",
        )


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


# --- a store ---------------------------------------------------------------------------------------------------------


def _read_store(where: str, studies: tuple[str, ...], metric: str | None) -> Evidence:
    is_url = "://" in where
    try:
        with Store.open(where, readonly=True) as store:
            return _read_open_store(store, where, studies, metric)
    except StoreError as error:  # as a source of scores, a damaged or foreign database is bad input
        if isinstance(error, InputError) or is_url:
            raise
        raise DataError(error.message, where=error.where, hint=error.hint) from error
    except PotentiaError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        # A text or a gap stands where the schema promises a number.
        message = f"the database is damaged: {error}"
        raise DataError(message, where=where, hint="restore a copy") from error


def _list_asked_tasks(records: Sequence[StudyRecord]) -> set[str] | None:
    """Return the tasks that studies ask for, folds one by one; None where one of them cannot be read."""
    asked: set[str] = set()
    for study in map(parse_study_record, records):
        if study is None:
            return None
        asked |= {task.name for task in study.benchmarks()}
    return asked


def _read_open_store(
    store: Store, where: str, studies: tuple[str, ...], metric: str | None
) -> Evidence:
    records = store.studies.read()
    chosen = _choose_studies(records, studies, store.where)
    keys = tuple(record.key for record in chosen)
    notes: list[str] = []
    if not studies and len(records) > 1:
        others = ", ".join(dict.fromkeys(r.name for r in records if r.key not in keys))
        notes.append(
            f"this is the study {chosen[0].name}, opened last; the store also holds: {others} (--study NAME)"
        )
    _check_studies_alike(store, chosen, metric)
    protocols_of_studies = [store.scores.read_protocols(study=key) for key in keys]
    protocols = in_order(dict.fromkeys(itertools.chain.from_iterable(protocols_of_studies)))
    if not protocols and not any(store.failures.read(study=key) for key in keys):
        raise _empty_store(store.where)
    matrices = _read_matrices(store, protocols, keys, metric)
    asked = _list_asked_tasks(chosen)
    scores = {}
    for protocol, matrix in matrices.items():
        scores[protocol] = join_folds(matrix, notes, asked)
    notes += _describe_prompts(store, keys)
    name = store.where if "://" in where else Path(where).name
    return Evidence(
        source=name,
        title=chosen[0].name if len(chosen) == 1 else Path(name).stem,
        scores=scores,
        facts=known_models(),
        studies=tuple(chosen),
        notes=tuple(notes),
        stores=((where, keys),),
        metric=metric,
    )


def _describe_prompts(store: Store, studies: tuple[str, ...]) -> Iterator[str]:
    """Give what a reader must know of texts: prompts and training examples that were cut, and unknown tokens."""
    for (protocol, task), prompts_by_model in store.provenance.read_cut_prompts(
        study=studies
    ).items():
        cut = sum(prompts.cut for prompts in prompts_by_model.values())
        total = sum(prompts.requests for prompts in prompts_by_model.values())
        models = ", ".join(list(prompts_by_model)[:3])
        if len(prompts_by_model) > 3:
            models += f" and {len(prompts_by_model) - 3} more"
        count = f"{cut:,} of {total:,} prompts were cut to fit the model"
        yield f"{task} by {protocol}: {count} ({models})"
    for (protocol, task), examples_by_model in store.provenance.read_cut_examples(
        study=studies
    ).items():
        for model, examples in examples_by_model.items():
            count = f"{examples.cut:,} of {examples.examples:,} training examples"
            cause = f"were longer than {examples.tokens:,} tokens (max_tokens) and were cut"
            yield f"{task} by {protocol}, {model}: {count} {cause}"
    for (task, model), share in store.provenance.read_unknown_tokens(study=studies).items():
        yield f"{model} reads {share:.0%} of the tokens of {task} as unknown"


def _check_studies_alike(store: Store, chosen: Sequence[StudyRecord], metric: str | None) -> None:
    name_by_key = {record.key: record.name for record in reversed(chosen)}
    key_by_name = {name: key for key, name in name_by_key.items()}
    keys = tuple(record.key for record in chosen)

    def source_tasks() -> Iterator[SourceTask]:
        for stored in store.scores.read_measures(study=keys, metric=metric):
            measured = MeasuredTask(stored.metric, stored.origin)
            name = name_by_key[stored.study]
            yield SourceTask(name, stored.protocol, stored.task, measured=measured)

    check_alike(
        source_tasks(),
        find_recipe=lambda name, protocol, task: find_stored_recipe(
            store, key_by_name[name], protocol, task
        ),
        source=store.where,
        hint="choose one: --study {source}; or show them apart: apart: true in --columns FILE",
    )


def _read_matrices(
    store: Store, protocols: Sequence[Protocol], studies: tuple[str, ...], metric: str | None
) -> dict[Protocol, ScoreMatrix]:
    """Return the scores by one metric where one is asked for, else by each task's main one."""
    scores: dict[Protocol, ScoreMatrix] = {}
    problems: list[InputError] = []
    for protocol in protocols:
        try:
            scores[protocol] = store.scores.read_matrix(protocol, study=studies, metric=metric)
        except InputError as error:  # no cell of this protocol has it, as with texts
            if metric is None:
                raise
            problems.append(error)
    if problems and not scores:
        raise problems[0]
    return scores


def _choose_studies(
    records: Sequence[StudyRecord], studies: tuple[str, ...], where: str
) -> list[StudyRecord]:
    """Return the studies meant: by name or key (a name means the one opened last), all, or the one opened last."""
    if not records:
        raise _empty_store(where)
    if studies == (ALL,):
        return list(records)
    chosen: dict[str, StudyRecord] = {}
    for name in studies or (records[0].key,):
        record = find_study(records, name)
        if record is None:
            names = ", ".join(sorted({record.name for record in records}))
            raise DataError(f"no study {name!r} in {where}", hint=f"there are: {names}")
        chosen.setdefault(record.key, record)
    return list(chosen.values())


def _empty_store(where: str) -> DataError:
    return DataError(
        "the store holds no scores yet", where=where, hint="run a study, or import scores"
    )


def find_study(records: Sequence[StudyRecord], name: str) -> StudyRecord | None:
    """Return the study with this key, else the first of this name."""
    for record in records:
        if record.key == name:
            return record
    for record in records:
        if record.name == name:
            return record
    return None
