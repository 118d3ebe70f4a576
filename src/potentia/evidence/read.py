"""Reading sources: stores, tables, results of other tools; several are joined into one."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from potentia.errors import DataError, InputError, PotentiaError, StoreError, suggest_names
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
from potentia.extras import Extra
from potentia.facts import (
    NO_GROUPS,
    read_benchmarks,
    read_facts,
    read_task_groups,
    separate_tasks,
)
from potentia.facts import models as known_models
from potentia.formats import ColumnHints, TableDescription, read_score_files
from potentia.store import (
    Store,
    StudyRecord,
    can_read_items,
    choose_study,
    list_studies,
    name_study,
)
from potentia.values.accuracy_errors import count_raised_errors
from potentia.values.protocol import Protocol, TaskName, sort_protocols
from potentia.values.scores import ScoreMatrix
from potentia.values.selection import CutExamples
from potentia.values.wording import format_count

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
        source_path = Path(source).expanduser()
        return self._read_scores(source_path, source_path.name, source_path.name)

    def read_sources(self, studies_by_source: Sequence[tuple[Source, tuple[str, ...]]]) -> Evidence:
        """Read several sources, each with the studies that are meant, as one."""
        parts = [self.read_source(source, studies) for source, studies in studies_by_source]
        return parts[0] if len(parts) == 1 else join_sources(parts)

    def _read_scores(self, source: Path | pd.DataFrame, source_name: str, title: str) -> Evidence:
        score_files = read_score_files(
            source,
            metric=self.metric,
            subtasks=self.subtasks,
            column_map=self.column_map,
            hints=self.hints,
        )
        if self.metric is not None and not _names_metrics(score_files.scores.values()):
            message = f"it does not say which scores are by {self.metric}"
            raise DataError(message, where=source_name, hint="leave out the metric")
        return Evidence(
            source=source_name,
            title=title,
            scores={
                protocol: score_files.scores[protocol]
                for protocol in sort_protocols(score_files.scores)
            },
            facts=known_models(),
            notes=(*score_files.notes, *_note_raised_errors(score_files.scores.values())),
            table_layout=score_files.layout,
            items_read=score_files.items,
            file_task_groups=score_files.task_groups,
        )


def _note_raised_errors(matrices: Iterable[ScoreMatrix]) -> list[str]:
    """Say of how many scores the standard error is not believed: an accuracy on so many examples has a larger one."""
    raised = sum(count_raised_errors(matrix) for matrix in matrices)
    if not raised:
        return []
    errors = "standard error" if raised == 1 else "standard errors"
    scores = format_count(raised, "score")
    number = "its" if raised == 1 else "their"
    return [f"{errors} of {scores} raised to what {number} number of examples allows"]


def _names_metrics(matrices: Iterable[ScoreMatrix]) -> bool:
    metrics = itertools.chain.from_iterable(matrix.metrics for matrix in matrices)
    return any(metric.name for metric in metrics)


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

    Sources and studies that cannot be compared are refused; with ``apart`` each group of those that can stands by
    itself: the first is returned, the others are its ``apart``. How a table was read is in ``Evidence.table_layout``.

    Args:
        *sources: Files, folders, database URLs or DataFrames.
        study: One or more studies of a store, or ``all``; else the one opened last.
        metric: The metric, where a benchmark has several.
        subtasks: Read the members of groups such as MMLU, too.
        facts: A CSV of what is known of the models.
        task_facts: A CSV of what is known of the tasks: category, train_size, chance, group.
        task_groups: A CSV of tasks and their groups, or ``none``: tasks of one group count as one task.
        protocols: Only these protocols.
        tasks: Only these tasks.
        models: Only these models.
        columns: Which column of a table is which field, as ``{"score": "Accuracy"}``; or a file that describes
            the scores, as ``--columns`` does.
        lower: Columns of scores that are better when lower.
        scale: Column → share, percent, range or unbounded.
        kind: Column → task or text.
        apart: Show groups that cannot be compared, each by itself.

    Example:
        >>> potentia.read("scores.csv").scores["direct"]
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
        hints=description.hints.overridden_by(ColumnHints.from_options(lower, scale, kind)),
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
        chosen_evidence = with_facts.narrowed(protocols=protocols, tasks=tasks, models=models)
        narrowed.append(chosen_evidence.with_blind_twins_apart())
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
    for source_number, source in enumerate(sources):
        for study in _separate_studies(source, studies):
            reason = ""
            for group in groups:
                larger = {
                    **group.studies,
                    source_number: (*group.studies.get(source_number, ()), *study),
                }
                members = [(sources[member], study_keys) for member, study_keys in larger.items()]
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
                groups.append(_ComparableGroup({source_number: study}, evidence))
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
    known_names = set(tasks) | {TaskName(task).base for task in tasks}
    unknown = [task for task in groups if task not in known_names]
    if unknown:
        raise InputError(
            f"no task {unknown[0]!r} in these scores",
            where=str(task_groups),
            hint=suggest_names(unknown[0], tasks),
        )
    return groups


def _find_facts_beside(sources: Sequence[Source]) -> Path | None:
    """Return ``scores.facts.csv`` where it lies beside the one table ``scores.csv``."""
    first_source = sources[0]
    if len(sources) != 1 or not isinstance(first_source, (str, Path)) or is_store(first_source):
        return None
    source_path = Path(first_source).expanduser()
    if not source_path.name:
        return None
    facts_file = source_path.with_name(f"{source_path.stem}.facts.csv")
    return facts_file if facts_file != source_path and facts_file.is_file() else None


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
    parts = [_read_store(location, studies, metric) for location, studies in evidence.stores]
    if not parts:
        raise InputError(
            f"no store among {evidence.source}",
            hint=f"scores by {metric} are computed from the store of a potentia run",
        )
    evidence_by_metric = parts[0] if len(parts) == 1 else join_sources(parts)
    scores = {}
    for protocol, matrix in evidence_by_metric.scores.items():
        if protocol not in evidence.scores:
            continue
        shown_scores = evidence.scores[protocol]
        tasks = [task for task in matrix.tasks if task in shown_scores.tasks]
        models = [model for model in matrix.models if model in shown_scores.models]
        if tasks and models:
            scores[protocol] = matrix.select(tasks=tasks, models=models)
    return replace(
        evidence_by_metric,
        scores=scores,
        facts=evidence.facts,
        narrowings=evidence.narrowings,
    )


def to_evidence(source: object) -> Evidence:
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
            f"{str(source)!r} is not the name of a file",
            hint="name a store, a table or a folder of lm-eval results",
        )


def is_store(source: str | Path) -> bool:
    """Say whether this is a store (a SQLite file or a database URL) rather than a file of scores."""
    if "://" in str(source):
        return True
    source_path = Path(source).expanduser()
    if not source_path.is_file():
        return False
    try:
        with source_path.open("rb") as file:
            return file.read(16).startswith(b"SQLite format 3")
    except OSError:
        return False


# --- a store ---------------------------------------------------------------------------------------------------------


def _read_store(location: str, studies: tuple[str, ...], metric: str | None) -> Evidence:
    is_url = "://" in location
    try:
        with Store.open(location, readonly=True) as store:
            return _read_open_store(store, location, studies, metric)
    except StoreError as error:  # as a source of scores, a damaged or foreign database is bad input
        if isinstance(error, InputError) or is_url:
            raise
        raise DataError(error.message, where=error.where, hint=error.hint) from error
    except PotentiaError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        # A text or a gap stands where the schema promises a number.
        message = f"the database is damaged: {error}"
        raise DataError(message, where=location, hint="restore a copy") from error


def _list_asked_tasks(records: Sequence[StudyRecord]) -> set[str] | None:
    """Return the tasks that studies ask for, folds one by one; None where one of them cannot be read."""
    task_names: set[str] = set()
    for study in map(parse_study_record, records):
        if study is None:
            return None
        task_names |= {task.name for task in study.list_task_specs()}
    return task_names


def _read_open_store(
    store: Store, location: str, studies: tuple[str, ...], metric: str | None
) -> Evidence:
    records = store.studies.read()
    chosen_studies = _choose_studies(records, studies, store.where)
    study_keys = tuple(record.key for record in chosen_studies)
    notes: list[str] = []
    if not studies and len(records) > 1:
        other_studies = [record for record in records if record.key not in study_keys]
        notes.append(
            f"shown is {list_studies(chosen_studies, records)}, the study opened last; "
            f"the store also holds: {list_studies(other_studies, records)} (--study NAME or KEY)"
        )
    _check_studies_alike(store, chosen_studies, metric)
    protocols_of_studies = [
        store.scores.read_protocols(study=study_key) for study_key in study_keys
    ]
    protocols = sort_protocols(dict.fromkeys(itertools.chain.from_iterable(protocols_of_studies)))
    if not protocols and not any(store.failures.read(study=study_key) for study_key in study_keys):
        raise _empty_store(store.where)
    matrices = _read_matrices(store, protocols, study_keys, metric)
    requested_tasks = _list_asked_tasks(chosen_studies)
    scores = {}
    for protocol, matrix in matrices.items():
        scores[protocol] = join_folds(matrix, notes, requested_tasks)
    notes += _describe_prompts(store, study_keys)
    if not can_read_items() and store.scores.has_outcomes(study=study_keys):
        notes.append(
            "results by example are left out, and differences are judged by standard errors alone;"
            f" to read them: {Extra.PARQUET.install_command}"
        )
    store_name = store.where if "://" in location else Path(location).name
    return Evidence(
        source=store_name,
        title=chosen_studies[0].name if len(chosen_studies) == 1 else Path(store_name).stem,
        scores=scores,
        facts=known_models(),
        studies=tuple(chosen_studies),
        notes=tuple(notes),
        stores=((location, study_keys),),
        metric=metric,
    )


def _describe_prompts(store: Store, studies: tuple[str, ...]) -> Iterator[str]:
    """Give what a reader must know of texts: prompts and training examples that were truncated, and unknown tokens."""
    for (protocol, task), prompts_by_model in store.provenance.read_cut_prompts(
        study=studies
    ).items():
        cut_prompts = sum(prompts.cut for prompts in prompts_by_model.values())
        all_prompts = sum(prompts.requests for prompts in prompts_by_model.values())
        truncated_sentence = (
            f"{cut_prompts:,} of {all_prompts:,} prompts were truncated to fit the model"
        )
        models = _join_first_names(list(prompts_by_model))
        yield f"{task} {Protocol(protocol).phrase}: {truncated_sentence} ({models})"
    for (protocol, task), examples_by_model in store.provenance.read_cut_examples(
        study=studies
    ).items():
        for sentence in _describe_truncated_examples(examples_by_model):
            yield f"{task} {Protocol(protocol).phrase}: {sentence}"
    shares_by_task: dict[str, dict[str, float]] = {}
    for (task, model), unknown_share in store.provenance.read_unknown_tokens(study=studies).items():
        shares = shares_by_task.setdefault(TaskName(task).whole, {})
        shares[model] = max(unknown_share, shares.get(model, 0.0))  # the folds of a task are one
    for task, shares in shares_by_task.items():
        listed = ", ".join(f"{model} {100 * share:.0f} %" for model, share in shares.items())
        yield f"tokens of {task} that the tokenizer does not know: {listed}"


def _check_studies_alike(store: Store, chosen: Sequence[StudyRecord], metric: str | None) -> None:
    name_by_key = {record.key: name_study(record, chosen) for record in reversed(chosen)}
    key_by_name = {study_name: study_key for study_key, study_name in name_by_key.items()}
    study_keys = tuple(record.key for record in chosen)

    def source_tasks() -> Iterator[SourceTask]:
        for stored in store.scores.read_measures(study=study_keys, metric=metric):
            measured = MeasuredTask(stored.metric, stored.origin)
            study_name = name_by_key[stored.study]
            yield SourceTask(study_name, stored.protocol, stored.task, measured=measured)

    check_alike(
        source_tasks(),
        find_recipe=lambda study_name, protocol, task: find_stored_recipe(
            store, key_by_name[study_name], protocol, task
        ),
        location=store.where,
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
        except InputError as error:  # no cell of this protocol has it
            if metric is None:
                raise
            problems.append(error)
    if problems and not scores:
        raise problems[0]
    return scores


def _choose_studies(
    records: Sequence[StudyRecord], studies: tuple[str, ...], location: str
) -> list[StudyRecord]:
    """Return the studies meant: by name or key, all, or the one opened last."""
    if not records:
        raise _empty_store(location)
    if studies == (ALL,):
        return list(records)
    chosen: dict[str, StudyRecord] = {}
    for study_name in studies or (records[0].key,):
        record = choose_study(records, study_name, where=location)
        chosen.setdefault(record.key, record)
    return list(chosen.values())


def _empty_store(location: str) -> DataError:
    return DataError(
        "the store holds no scores yet", where=location, hint="run a study, or import scores"
    )


def _describe_truncated_examples(examples_by_model: Mapping[str, CutExamples]) -> Iterator[str]:
    """Yield a sentence for each length to which training examples were truncated, with the models it was."""
    models_by_length: dict[int, list[str]] = {}
    for model, examples in examples_by_model.items():
        models_by_length.setdefault(examples.tokens, []).append(model)
    for length, models in models_by_length.items():
        cut_count = sum(examples_by_model[model].cut for model in models)
        example_count = sum(examples_by_model[model].examples for model in models)
        yield (
            f"{cut_count:,} of {example_count:,} training examples were longer than {length:,} tokens "
            f"(max_tokens) and were truncated ({_join_first_names(models)})"
        )


def _join_first_names(models: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    listed = ", ".join(models[:3])
    return listed if len(models) <= 3 else f"{listed} and {len(models) - 3} more"
