"""What the columns of a foreign table are: metric, direction, scale and kind, each with the reason that decided it.

Names, arrows and values decide, and what they decide is shown (``Reading``). Where they do not, the reader is asked:
``--lower``, ``--scale`` and ``--kind`` say it, or a file ``scores.columns.yaml`` beside ``scores.csv``:

    MT-Bench: {scale: range}
    latency: {lower: true}
    wiki-2025: {kind: text}
    seconds: {skip: true}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from potentia.errors import DataError, InputError
from potentia.facts import benchmark
from potentia.values.findings import Finding, Table
from potentia.values.metric import KINDS, SCALES, Metric, Scale, known_metric

# Texts that are scored by how well they are predicted: those of the train-before-test paper, and what tables call them.
CORPORA = frozenset(
    {"wiki", "stack", "arxiv", "stackexchange", "wikipedia", "wiki_2025", "stackexchange_2025", "arxiv_2025"}
    | {"wikitext", "wikitext2", "wikitext-2", "wikitext103", "wikitext-103", "c4", "ptb", "the_pile", "pile"}
)


def metric_of(task: str, name: str | None = None, higher_is_better: bool | None = None) -> Metric:
    """Return the metric of a score: by its name, else as the benchmark is usually scored; what is given wins."""
    named = name or usual_metric(task) or ""
    if not named and task.casefold() in CORPORA and higher_is_better is not True:
        return Metric("", False, "text", "unbounded")
    return Metric.of(named if name else "", Metric.of(named, higher_is_better).higher_is_better)


@cache
def usual_metric(task: str) -> str | None:
    """Return the metric of a known benchmark, with its filter where it needs one: ``exact_match|flexible-extract``."""
    known = benchmark(task)
    return known.metric if known is not None and known.metric else None


_DOWN, _UP = re.compile(r"[↓⬇]|\blower is better\b|\blower better\b"), re.compile(r"[↑⬆]|\bhigher is better\b")
_ARROWS = re.compile(r"\s*\(?\s*(?:[↓⬇↑⬆]|(?:lower|higher) (?:is )?better)\s*\)?")
_OPTIONS = "--lower COLUMN, --scale COLUMN=share|percent|range|unbounded, --kind COLUMN=task|text"


@dataclass(frozen=True)
class Says:
    """What the user says of columns, by their names in lower case."""

    lower: frozenset[str] = frozenset()
    scale: Mapping[str, str] = field(default_factory=dict)
    kind: Mapping[str, str] = field(default_factory=dict)
    skip: frozenset[str] = frozenset()
    metric: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        lower: Iterable[str] = (),
        scale: Mapping[str, str] | None = None,
        kind: Mapping[str, str] | None = None,
        skip: Iterable[str] = (),
        metric: Mapping[str, str] | None = None,
    ) -> Says:
        """Check and keep what is said."""
        for what, given, known in (("scale", scale, SCALES), ("kind", kind, KINDS)):
            for column, value in (given or {}).items():
                if value not in known:
                    raise InputError(f"{value!r} is no {what} of {column}", hint=f"one of: {', '.join(known)}")
        scales, kinds, metrics = ({_key(k): v for k, v in (given or {}).items()} for given in (scale, kind, metric))
        return cls(frozenset(map(_key, lower)), scales, kinds, frozenset(map(_key, skip)), metrics)

    @classmethod
    def beside(cls, path: Path) -> Says:
        """Read ``scores.columns.yaml`` where it lies beside ``scores.csv``."""
        from potentia.files import read_yaml

        file = path.with_name(f"{path.stem}.columns.yaml")
        if not file.is_file():
            return cls()
        content, _ = read_yaml(file, what="the file of columns")
        if not isinstance(content, dict) or not all(isinstance(said, dict) for said in content.values()):
            raise DataError("this says nothing of columns", where=str(file), hint="such as  MT-Bench: {scale: range}")
        known = {"lower", "scale", "kind", "skip", "metric"}
        for column, said in content.items():
            if said.keys() - known:
                odd = sorted(map(str, said.keys() - known))[0]
                raise DataError(
                    f"unknown word {odd!r} of {column}", where=str(file), hint=f"one of: {', '.join(known)}"
                )
        told = {what: {str(c): str(said[what]) for c, said in content.items() if what in said} for what in known}
        marked = {what: [str(c) for c, said in content.items() if said.get(what) is True] for what in ("lower", "skip")}
        return cls.of(marked["lower"], told["scale"], told["kind"], marked["skip"], told["metric"])

    def joined(self, other: Says) -> Says:
        """Return what both say; the other wins."""
        return Says(
            self.lower | other.lower, {**self.scale, **other.scale}, {**self.kind, **other.kind},
            self.skip | other.skip, {**self.metric, **other.metric},
        )  # fmt: skip

    def check(self, columns: Iterable[str], where: str) -> None:
        """Refuse what is said of columns that are not there."""
        known = {_key(column) for column in columns}
        for column in (*self.lower, *self.scale, *self.kind, *self.skip, *self.metric):
            if column not in known:
                raise DataError(
                    f"no column {column!r}", where=where, hint=f"there are: {', '.join(list(columns)[:20])}"
                )


@dataclass(frozen=True)
class ColumnReading:
    """How one column (or row of a transposed table) is read, and what decided it."""

    column: str
    task: str
    metric: Metric
    divided: bool
    why: str


@dataclass(frozen=True)
class Reading(Finding):
    """How a foreign table was read: what each column is, and why."""

    columns: tuple[ColumnReading, ...]
    left_out: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return one row per column."""
        rows = tuple(
            (c.column, c.metric.name or "–", "higher" if c.metric.higher_is_better else "lower", _scale_in_words(c),
             "text to predict" if c.metric.is_text else "task", c.why)
            for c in self.columns
        )  # fmt: skip
        note = f"Left out: {', '.join(self.left_out)}." if self.left_out else ""
        return (Table("How the table was read", ("column", "metric", "better", "scale", "kind", "why"), rows, note),)


def _scale_in_words(column: ColumnReading) -> str:
    return "percent, divided by 100" if column.divided else column.metric.scale or "unknown"


def decide(name: str, values: Sequence[float], says: Says, *, metric: str | None = None, percent: bool = False,
           where: str) -> ColumnReading:  # fmt: skip
    """Decide what a column of scores is by what is said, by its name and arrows, then by its values.

    ``metric`` is what the table itself calls the metric, ``percent`` whether a per cent sign stands by the numbers.
    """
    key, task = _key(name), plain_name(name)
    named = says.metric.get(key) or metric or named_metric(task)
    text = named is None and task.casefold() in CORPORA
    usually = None if named or text else usual(task)
    known = known_metric(named or usually or "")
    low, high = min(values), max(values)
    why = []
    if text or usually:
        why.append("a text to predict by its name" if text else "a known benchmark")
    elif known is not None:
        why.append(f"{known.name} is known")
    up = _direction(name, key, says, known, text, why)
    scale, divided = _scale(key, says, known, text, up, percent, low, high, why)
    file = f"in {Path(where).stem}.columns.yaml beside the file"
    if scale is None and up is not False and low >= 0 and high <= 10:
        raise DataError(
            f"the column {name!r} ({low:g} to {high:g}) may be per cent or a rating",
            where=where,
            hint=f"say it: --scale '{name}=percent' or --scale '{name}=range', or {file}",
        )
    if scale is None and up is None:
        raise DataError(
            f"the column {name!r} ({low:g} to {high:g}) does not say which way is better, and on what scale",
            where=where,
            hint=f"say it with {_OPTIONS}, or {file}",
        )
    kind = says.kind.get(key) or (known.kind if known else "text" if text else "task")
    direction = True if up is None else up
    made = Metric(named or "", direction, "text" if kind == "text" else "task", "share" if divided else scale)
    return ColumnReading(name, task, made, divided, "; ".join(why))


def _direction(name: str, key: str, says: Says, known: Metric | None, text: bool, why: list[str]) -> bool | None:
    if key in says.lower:
        why.append("lower is better as said")
        return False
    if _DOWN.search(name.casefold()) or _UP.search(name.casefold()):
        why.append("its arrow")
        return not _DOWN.search(name.casefold())
    if known is not None:
        return known.higher_is_better
    return False if text else None


def _scale(
    key: str, says: Says, known: Metric | None, text: bool, up: bool | None, percent: bool,
    low: float, high: float, why: list[str],
) -> tuple[Scale | None, bool]:  # fmt: skip
    """Return the scale, and whether the numbers are per cent of what is else a share."""
    if key in says.scale:
        why.append(f"{says.scale[key]} as said")
        said = next(scale for scale in SCALES if scale == says.scale[key])
        return ("share", True) if said == "percent" else (said, False)
    if text or (known is not None and known.scale in ("percent", "unbounded")):
        return (known.scale if known is not None else "unbounded"), False
    bounded = known.name in ("mt_bench", "elo", "brier_score") if known is not None else False
    if bounded and known is not None:
        return known.scale, False
    if known is not None and known.scale == "range" and low >= -1 and high <= 1:
        return "range", False
    if percent and low >= -100 and high <= 100:
        why.append("a per cent sign")
        return "share", True
    if low >= 0 and high <= 1:
        why.append(f"{low:g} to {high:g}")
        return "share", False
    sure = known is not None
    if (low >= 0 or sure) and low >= -100 and high <= 100 and (high > 10 or sure) and up is not False:
        why.append(f"{low:g} to {high:g}: per cent")
        return "share", True
    if up is False and known is not None and known.scale == "share" and high <= 100:
        why.append(f"{low:g} to {high:g}: per cent")
        return "share", True
    return None, False


def named_metric(name: str) -> str | None:
    """Return the metric that a column's name holds, as ``WikiText ppl`` or ``SQuAD (F1)``; the longest counts."""
    words = [word for word in re.split(r"[^a-z0-9@+]+", name.casefold()) if word]
    for size in range(min(3, len(words)), 0, -1):
        for start in range(len(words) - size, -1, -1):
            found = known_metric("_".join(words[start : start + size]))
            if found is not None and (size < len(words) or size == 1 or len(words) == size):
                return found.name
    return None


def plain_name(name: str) -> str:
    """Return a column's name without arrows and per cent signs, as a task is called."""
    return re.sub(r"\s*\(?\s*%\s*\)?\s*$", "", _ARROWS.sub("", name)).strip() or name.strip()


def _key(name: str) -> str:
    return plain_name(name).casefold()


def usual(task: str) -> str | None:
    """Return the usual metric of a benchmark, however it is spelled."""
    return usual_metric(task) or usual_metric(_key(task).replace(" ", "_").replace("-", "_"))


def average(name: Any) -> bool:
    """Say whether a row or column is an average over others rather than a model or task."""
    return bool(
        re.fullmatch(r"(avg|average|mean|median|overall|total|macro avg|micro avg)\.?( score| rank)?", _key(str(name)))
    )
