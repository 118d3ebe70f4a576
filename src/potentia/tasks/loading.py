"""``load``: a benchmark by name, by file or by folder; a user's own data need no task definition.

Those are told apart by their columns: ``question, choices, answer`` is a multiple-choice benchmark, ``text, label`` (or
two texts) a classification, ``prompt, completion`` a generation benchmark, ``text`` alone a corpus.
"""

from __future__ import annotations

import difflib
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from potentia.errors import TaskError
from potentia.facts import benchmark
from potentia.study import Caps
from potentia.tasks import forms, kinds
from potentia.tasks.data import (
    LIMITED,
    SUFFIXES,
    BadRows,
    Record,
    Records,
    UserData,
    as_list,
    dataset_from_records,
    load_splits,
)
from potentia.tasks.definitions import (
    TaskDefinitions,
    find_entry,
    read_stock_task,
    read_user_task,
    task_index,
)
from potentia.tasks.harness import SPLIT_KEYS
from potentia.tasks.subtask import Subtask
from potentia.tasks.task import Division, Split, Task
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from datasets import Dataset

Mean = Literal["items", "subtasks"]
_MARKS = str.maketrans(dict.fromkeys(string.punctuation, " "))
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # names of one setting
SHOWN = 20  # bad rows that an error lists


@dataclass(frozen=True)
class UserTask:
    """What a user's data became: a definition, its documents by split, and what was inferred or left out."""

    config: kinds.Config
    data: dict[str, Dataset]
    columns: dict[str, str | Sequence[str]] = field(
        default_factory=dict
    )  # the user's column of each field
    notes: tuple[str, ...] = ()


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    caps: Caps | None = None,
    seed: int = 0,
    carve: float = 0.2,
    drop_overlap: bool | None = None,
    own: UserData | None = None,
    division: Division | None = None,
    hold_out: int | None = None,
    mean: Mean | None = None,
    answer_tokens: int | None = None,
    drop_bad_rows: bool = False,
) -> Task:
    """Load a benchmark.

    ``name`` is a task or group of the harness (``arc_easy``, ``mmlu``), the same in another prompt form
    (``arc_easy:choice``), a user's file or folder of split files, a corpus, or a harness task file (``my_task.yaml``).
    ``data_dir`` holds datasets as ``<dataset_path with / as -->/<config>/<split>.parquet``; what is not there comes
    from the hub. A user's own documents that another split repeats are dropped from training (and validation), unless
    ``drop_overlap`` is False; True drops the training documents of any benchmark that overlap the test. ``own`` says
    more of a user's data than a path does, and ``division`` how data in one split is divided. With
    ``hold_out`` the data are auxiliary: not divided, but all trained on, except so many. ``mean`` says how a group's
    score is taken, ``answer_tokens`` how long a written answer may be, ``drop_bad_rows`` whether rows that cannot be
    used are left out rather than told.
    """
    asked = (name, data_dir, repr(own), answer_tokens, drop_bad_rows)
    found = (_remembered or {}).get(asked) or _read(
        name, data_dir, own, answer_tokens, drop_bad_rows
    )
    if _remembered is not None:
        _remembered[asked] = found
    leaves, weights, label, metric, mine = found
    if mean is not None:
        named = (name.split("|")[0] for name in leaves[0].metric_names)
        weights = dict.fromkeys((*named, "acc", "acc_norm", "brier_score"), mean == "items")
    task = Task(label, leaves, metric, weights, caps, seed, carve, division, hold_out)
    if mine is not None:
        task.user_task = mine
        task.notes += mine.notes
        if drop_overlap is None and hold_out is None:
            _drop_duplicates(task)
    if drop_overlap:
        from potentia.tasks.checks import measure_overlap

        dropped = task.drop_documents(measure_overlap(task).train_ids)
        task.notes += (
            [f"{dropped} training documents overlap the test and are dropped."] if dropped else []
        )
    return task


Found = tuple[list[Subtask], Mapping[str, bool], str, str | None, UserTask | None]
_remembered: dict[Any, Found] | None = None


@contextmanager
def reading_data_once() -> Iterator[None]:
    """Read the data of a task once meanwhile, however often it is loaded with other caps."""
    global _remembered
    before, _remembered = _remembered, {}
    try:
        yield
    finally:
        _remembered = before


def _read(
    name: str,
    data_dir: Path | None,
    own: UserData | None,
    answer_tokens: int | None,
    drop_bad_rows: bool,
) -> Found:
    """Read what a name means: its definitions with their data, weights in a group, label, metric, own data."""
    base, form = TaskName(name).base, TaskName(name).form
    path = None if own is not None else _own_path(base)
    mine: UserTask | None = None
    weights: Mapping[str, bool] = {}
    metric = None
    if path is not None and path.suffix not in (".yaml", ".yml"):
        own = UserData(files=(str(path),), drop_bad_rows=drop_bad_rows)
    if own is not None:
        mine = read_user_data(own, data_dir)
        label = str(mine.config["task"])
        sources = [({**mine.config, LIMITED: bool(own.prompt)}, mine.data)]
    else:
        if path is not None:
            definitions = read_user_task(path)
        else:
            definitions = _read_stock_task(base)
            known = benchmark(base)
            metric = known.metric if known else None
        label = definitions.name
        weights = definitions.weighted_by_size
        sources = [(config, load_splits(config, data_dir)) for config in definitions.subtasks]
    leaves = [_formed(config, data, form, answer_tokens) for config, data in sources]
    metric = metric or next(iter(weights), None)
    return leaves, weights, f"{label}:{form}" if form else label, metric, mine


def _read_stock_task(name: str) -> TaskDefinitions:
    if find_entry(name) is None:
        near = difflib.get_close_matches(name, task_index(), n=3, cutoff=0.6)
        hint = (
            f"did you mean {', '.join(near)}?" if near else "potentia tasks --all lists every name"
        )
        raise TaskError(f"no task {name!r} in the harness, and no such file", hint=hint)
    definitions = read_stock_task(name)
    if not definitions.subtasks:
        raise TaskError(f"the group {name} has no tasks")
    return definitions


def _drop_duplicates(task: Task) -> None:
    """Drop training documents that validation or test repeat, and validation documents that the test repeats.

    The same question with the same choices counts as the same, without case and punctuation.
    """
    seen: set[str] = set()
    dropped: dict[Split, int] = {}
    for split in ("test", "validation", "train"):
        docs = task.documents(split)
        keys = [normalise_words("\n".join(texts)) for texts in task.identifying_texts(docs)]
        if split != "test":
            repeated = frozenset(doc.id for doc, key in zip(docs, keys, strict=True) if key in seen)
            dropped[split] = task.drop_documents(repeated, split)
        seen |= set(keys) - {""}
    repeats: dict[Split, str] = {
        "train": "validation and test repeat every training",
        "validation": "the test repeats every validation",
    }
    for split, told in repeats.items():
        if dropped[split] and not task.documents(split):
            raise TaskError(f"{told} document", hint="drop_overlap: false keeps them")
    if told := " and ".join(
        f"{dropped[split]} of {split}" for split in ("train", "validation") if dropped[split]
    ):
        task.notes.append(
            f"Duplicates across splits are dropped: {told} (drop_overlap: false keeps them)."
        )


def normalise_words(text: str) -> str:
    """Return a text without case and punctuation."""
    return " ".join(text.lower().translate(_MARKS).split())


def _formed(
    config: Mapping[str, Any], data: Mapping[str, Dataset], form: str, answer_tokens: int | None
) -> Subtask:
    leaf = Subtask(config, data)
    if form:
        leaf = Subtask(forms.rewrite_definition(form, leaf.task, config), data)
    if answer_tokens is None or leaf.kind != "generation":
        return leaf
    asked = {
        k: v for k, v in (leaf.config.get("generation_kwargs") or {}).items() if k not in LENGTHS
    }
    return Subtask(
        {**leaf.config, "generation_kwargs": {**asked, "max_gen_toks": answer_tokens}}, data
    )


def _own_path(name: str) -> Path | None:
    """Return the path that a name means: anything that looks like a path, or exists and is no harness task."""
    path = Path(name).expanduser()
    looks = "/" in name or "\\" in name or path.suffix in (*SUFFIXES, ".txt", ".yaml", ".yml")
    if looks and not path.exists():
        raise TaskError(
            f"there is no file or folder {name}",
            hint="check the path, or name a task of the harness",
        )
    return path if looks or (path.exists() and find_entry(name) is None) else None


# --- a user's own data -----------------------------------------------------------------------------------------------


def read_user_data(own: UserData, data_dir: Path | None = None) -> UserTask:
    """Read a user's files or dataset. Rows that cannot be used are told all at once, or dropped if asked for."""
    bad: BadRows = []
    splits = own.read(data_dir, bad)
    if bad and not any(splits.values()):
        raise bad_rows_error(bad, len(bad))
    own, make = _reading(own, splits)
    splits = {split: map_columns(records, own.columns) for split, records in splits.items()}
    if own.prompt is not None and make is kinds.make_corpus:
        raise TaskError("a text to predict has no prompt", hint="leave out `prompt`")
    config, rows = make(own, splits, bad)
    total = sum(map(len, rows.values())) + len(bad)
    if bad and not (own.drop_bad_rows and any(rows.values())):
        raise bad_rows_error(bad, total)
    rows = {split: records for split, records in rows.items() if records}
    config = {
        "task": own.label,
        **config,
        **({} if own.prompt is None else {"doc_to_text": own.prompt}),
    }
    config |= {key: split if split in rows else None for split, key in SPLIT_KEYS.items()}
    data = {
        split: dataset_from_records(records, where=own.label) for split, records in rows.items()
    }
    return UserTask(config, data, dict(own.columns), tuple(_notes(own, config, bad, total)))


def bad_rows_error(bad: BadRows, total: int) -> TaskError:
    """Say which rows cannot be used, all in one error."""
    if len(bad) == 1:
        return bad[0]
    lines = [f"  {error.where}: {error.message}" for error in bad[:SHOWN]]
    lines += [f"  … and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    hint = "mend them, or leave them out: --drop-bad-rows (in a study file: drop_bad_rows: true)"
    return TaskError(f"{len(bad)} of {total} rows cannot be used\n" + "\n".join(lines), hint=hint)


def _notes(own: UserData, config: kinds.Config, bad: BadRows, total: int) -> Iterator[str]:
    if bad:
        places = ", ".join((error.where or "").rpartition(", ")[2] for error in bad[:5]) + (
            " …" if bad[5:] else ""
        )
        yield f"{len(bad)} of {total} rows cannot be used and are left out ({places}; first: {bad[0].message})."
    if labels := config.get("labels"):
        said = ", ".join(
            raw if raw == words else f'{raw} → "{words}"'
            for raw, words in list(labels.items())[:12]
        )
        more = " …" if len(labels) > 12 else ""
        yield f"Classification into {len(labels)} labels of the column {own.column('label')}: {said}{more}."
        if all(re.fullmatch(r"-?\d+(\.0)?", words.rstrip(".")) for words in labels.values()):
            yield "The labels are numbers, which tell a model little: give words under `labels: {0: …, 1: …}`."


# --- columns ---------------------------------------------------------------------------------------------------------

# Names that columns often have, by the field they stand for.
_USUAL = {
    "question": ("question", "query", "q", "stem", "problem", "instruction"),
    "choices": ("choices", "options", "candidates", "answers"),
    "answer": (
        "answer",
        "label",
        "gold",
        "correct",
        "target",
        "answerkey",
        "answer_index",
        "correct_answer",
    ),
    "prompt": ("prompt", "input", "source", "question", "instruction", "query"),
    "completion": ("completion", "output", "response", "target", "answer", "reference"),
    "text": (
        "text",
        "content",
        "document",
        "body",
        "sentence",
        "message",
        "ticket",
        "review",
        "comment",
        "utterance",
    ),
    "label": (
        "label",
        "category",
        "class",
        "intent",
        "topic",
        "sentiment",
        "tag",
        "target",
        "labels",
    ),
}
_KINDS: tuple[tuple[tuple[str, ...], kinds.Make], ...] = (
    (("question", "choices", "answer"), kinds.make_choice_task),
    (("prompt", "completion"), kinds.make_generation_task),
    (("text", "label"), kinds.make_classification),
    (("text",), kinds.make_corpus),
)
_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("sentence_a", "sentence_b"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
)


_FIELDS = (*_USUAL, "text_pair")


def guess_columns(own: UserData, data_dir: Path | None = None) -> dict[str, str]:
    """Guess which columns stand for which fields, by the names that people give them; empty where they fit as they are.

    Raises where no kind of benchmark can be made of them.
    """
    splits = own.read(data_dir, [])
    columns = set().union(*(record.keys() for records in splits.values() for record in records))
    for fields, make in _KINDS:
        if set(fields) <= columns and make is not kinds.make_corpus:
            return {}
        found = _pair(columns) if make is kinds.make_classification else {}
        found |= _named(
            columns, [name for name in fields if name not in found], taken=found.values()
        )
        if set(fields) <= set(found):
            return {name: column for name, column in found.items() if name != column}
    _reading(own, splits)
    return {}


def _named(columns: set[str], fields: Sequence[str], taken: Iterable[str]) -> dict[str, str]:
    """Return the columns of usual names for these fields."""
    lower = {name.lower(): name for name in sorted(columns)}
    taken, found = set(taken), dict[str, str]()
    for name in fields:
        usual = (lower[u] for u in _USUAL[name] if u in lower and lower[u] not in taken)
        if (column := next(usual, None)) is not None:
            found[name] = column
            taken.add(column)
    return found


def _pair(columns: set[str]) -> dict[str, str]:
    lower = {name.lower(): name for name in columns}
    both = next(((a, b) for a, b in _PAIRS if a in lower and b in lower), None)
    return {"text": lower[both[0]], "text_pair": lower[both[1]]} if both else {}


def _reading(own: UserData, splits: kinds.Splits) -> tuple[UserData, kinds.Make]:
    """Decide what the columns make: a kind of benchmark, and for labelled texts which column is the label."""
    if odd := next((name for name in own.columns if name not in _FIELDS), None):
        raise TaskError(
            f"no field {odd!r} to map a column to", hint=f"fields: {', '.join(_FIELDS)}"
        )
    columns = set.intersection(
        *(set().union(*(r.keys() for r in records)) for records in splits.values() if records)
    )
    there = columns | set(own.columns)
    for fields, make in _KINDS[:2]:
        if set(fields) <= there:
            return own, make
    if "label" in own.columns or "text" not in own.columns:
        found = {**_pair(columns), **own.columns}
        found |= _named(
            columns,
            [f for f in ("text", "label") if f not in found],
            taken=map(str, found.values()),
        )
        if {"text", "label"} <= set(found):
            return replace(own, columns=found), kinds.make_classification
    if "text" not in there:
        raise _no_benchmark(own, columns)
    everything = [record for records in splits.values() for record in records]
    if "text" not in own.columns and (column := _few_values(everything, "text")):
        raise TaskError(
            f"is the column {column} a label? It has few distinct values, so this may be no corpus",
            where=own.where,
            hint=f"say so in the task's entry: columns: {{text: text, label: {column}}} (--map label={column});"
            " for a corpus columns: {text: text} (--map text=text)",
        )
    return own, kinds.make_corpus


def _no_benchmark(own: UserData, columns: set[str]) -> TaskError:
    missing = ""
    for fields, _ in reversed(_KINDS[:2]):
        missing = (
            f": missing {', '.join(sorted(set(fields) - columns))}"
            if columns & set(fields)
            else missing
        )
    return TaskError(
        f"the columns {', '.join(sorted(columns)) or 'none'} make no benchmark{missing}",
        where=own.where,
        hint="one of: question, choices, answer | text, label | prompt, completion | text; "
        "say which column is what in the task's entry: columns: {question: COLUMN, …}",
    )


def _few_values(records: Records, but: str) -> str | None:
    """Return a column that looks like a label: few distinct short values, each of several rows."""
    for column in dict.fromkeys(key for record in records for key in record if key != but):
        values = Counter(
            str(v)
            for r in records
            if (v := r.get(column)) not in (None, "") and not isinstance(v, list)
        )
        if (
            2 <= len(values) <= 50
            and values.total() >= 4 * len(values)
            and max(map(len, values)) <= 60
        ):
            return column
    return None


def map_columns(records: Records, columns: Mapping[str, str | Sequence[str]]) -> Records:
    """Give every record the fields that the user's columns stand for."""
    known = set().union(*(record.keys() for record in records))
    for name, column in columns.items():
        for one in as_list(column):
            if one not in known:
                there = ", ".join(sorted(known))
                place = records[0].place.rpartition(", ")[0] if records else ""
                raise TaskError(
                    f"no column {one!r} for {name}", where=place, hint=f"there are: {there}"
                )

    def taken(record: Record, column: str | Sequence[str]) -> Any:
        if isinstance(column, str):
            return record.get(column)
        return [str(record[one]) for one in column if record.get(one) not in (None, "")]

    return [
        Record(r.place, {**r, **{name: taken(r, c) for name, c in columns.items()}})
        for r in records
    ]
