"""What the columns of a foreign table are: metric, direction, scale and kind, each with the reason that decided it.

Names, arrows and values decide, and what they decide is shown (``Reading``). Where they do not, the reader is asked:
``--lower``, ``--scale`` and ``--kind`` say it, or a file ``scores.columns.yaml`` beside ``scores.csv``:

    MT-Bench: {scale: range}
    complaints: {lower: true}
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
    {
        "wiki",
        "stack",
        "arxiv",
        "stackexchange",
        "wikipedia",
        "wiki_2025",
        "stackexchange_2025",
        "arxiv_2025",
    }
    | {
        "wikitext",
        "wikitext2",
        "wikitext-2",
        "wikitext103",
        "wikitext-103",
        "c4",
        "ptb",
        "the_pile",
        "pile",
    }
)
TEXT = Metric("", False, "text", "unbounded")


def metric_of(task: str, name: str | None = None, higher_is_better: bool | None = None) -> Metric:
    """Return the metric of a score: by its name, else as the benchmark is usually scored; what is given wins."""
    named = name or usual_metric(task) or ""
    if not named and task.casefold() in CORPORA and higher_is_better is not True:
        return TEXT
    return Metric.of(named if name else "", Metric.of(named, higher_is_better).higher_is_better)


@cache
def usual_metric(task: str) -> str | None:
    """Return the metric of a known benchmark, however it is spelled; with its filter where it needs one."""
    known = benchmark(task) or benchmark(re.sub(r"[\s-]", "_", _key(task)))
    return known.metric or None if known is not None else None


_DOWN, _UP = (
    re.compile(r"[↓⬇]|\blower is better\b|\blower better\b"),
    re.compile(r"[↑⬆]|\bhigher is better\b"),
)
_ARROWS = re.compile(r"\s*\(?\s*(?:[↓⬇↑⬆]|(?:lower|higher) (?:is )?better)\s*\)?")
_AVERAGE = re.compile(
    r"(avg|average|mean|median|overall|total|macro avg|micro avg)\.?( score| rank)?"
)
_WORDS = ("lower", "scale", "kind", "skip", "metric")
_OPTIONS = "--lower COLUMN, --scale COLUMN=share|percent|range|unbounded, --kind COLUMN=task|text"


@dataclass(frozen=True)
class Says:
    """What the user says of columns: of each, by its name in lower case, lower, scale, kind, skip or metric."""

    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, said: Mapping[str, Mapping[str, Any]]) -> Says:
        """Check and keep what is said."""
        for column, words in said.items():
            for what, known in (("scale", SCALES), ("kind", KINDS)):
                if what in words and words[what] not in known:
                    raise InputError(
                        f"{words[what]!r} is no {what} of {column}",
                        hint=f"one of: {', '.join(known)}",
                    )
        return cls({_key(column): words for column, words in said.items()})

    @classmethod
    def options(
        cls, lower: Iterable[str], scale: Mapping[str, str] | None, kind: Mapping[str, str] | None
    ) -> Says:
        """Take what ``--lower``, ``--scale`` and ``--kind`` say."""
        said: dict[str, dict[str, Any]] = {column: {"lower": True} for column in lower}
        for what, given in (("scale", scale), ("kind", kind)):
            for column, value in (given or {}).items():
                said.setdefault(column, {})[what] = value
        return cls.of(said)

    @classmethod
    def beside(cls, path: Path) -> Says:
        """Read ``scores.columns.yaml`` where it lies beside ``scores.csv``."""
        from potentia.files import read_yaml

        file = path.with_name(f"{path.stem}.columns.yaml")
        if not file.is_file():
            return cls()
        content, _ = read_yaml(file, what="the file of columns")
        if not isinstance(content, dict) or not all(
            isinstance(said, dict) for said in content.values()
        ):
            raise DataError(
                "this says nothing of columns",
                where=str(file),
                hint="such as  MT-Bench: {scale: range}",
            )
        for column, said in content.items():
            if odd := sorted(map(str, said.keys() - set(_WORDS))):
                hint = f"one of: {', '.join(_WORDS)}"
                raise DataError(f"unknown word {odd[0]!r} of {column}", where=str(file), hint=hint)
        return cls.of({str(column): said for column, said in content.items()})

    def joined(self, other: Says) -> Says:
        """Return what both say; the other wins."""
        both = {**self.columns, **other.columns}
        return Says({column: {**self.columns.get(column, {}), **both[column]} for column in both})

    def about(self, column: str) -> Mapping[str, Any]:
        """Return what is said of one column."""
        return self.columns.get(_key(column), {})

    def check(self, columns: Iterable[str], where: str) -> None:
        """Refuse what is said of columns that are not there."""
        known = {_key(column) for column in columns}
        for column in sorted(self.columns.keys() - known):
            raise DataError(
                f"no column {column!r}",
                where=where,
                hint=f"there are: {', '.join(list(columns)[:20])}",
            )


@dataclass(frozen=True)
class ColumnReading:
    """How one column (or row of a transposed table) is read, and what decided it."""

    column: str
    task: str
    metric: Metric
    divided: bool
    why: str

    def row(self) -> tuple[str, ...]:
        """Return it as a row of the table that is shown."""
        m = self.metric
        scale = "percent, divided by 100" if self.divided else m.scale or "unknown"
        kind = "text to predict" if m.is_text else "task"
        return (
            self.column,
            m.name or "–",
            "higher" if m.higher_is_better else "lower",
            scale,
            kind,
            self.why,
        )


@dataclass(frozen=True)
class Reading(Finding):
    """How a foreign table was read: what each column is, and why."""

    columns: tuple[ColumnReading, ...]
    left_out: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return one row per column."""
        rows = tuple(column.row() for column in self.columns)
        note = f"Left out: {', '.join(self.left_out)}." if self.left_out else ""
        return (
            Table(
                "How the table was read",
                ("column", "metric", "better", "scale", "kind", "why"),
                rows,
                note,
            ),
        )


def decide(
    name: str,
    values: Sequence[float],
    says: Says,
    *,
    metric: str | None = None,
    percent: bool = False,
    where: str,
) -> ColumnReading:
    """Decide what a column of scores is by what is said, by its name and arrows, then by its values.

    ``metric`` is what the table itself calls the metric, ``percent`` whether a per cent sign stands by the numbers.
    """
    said, task = says.about(name), plain_name(name)
    named = said.get("metric") or metric or named_metric(task)
    known, why = _known(task, named)
    up = _direction(name, said, known, why)
    low, high = min(values), max(values)
    scale, divided = _scale(said, known, up, percent, low, high, why)
    if scale is None and (up is None or (up and low >= 0 and high <= 10)):
        raise _doubt(name, low, high, where)
    kind = said.get("kind") or (known.kind if known else "task")
    made = Metric(
        named or "",
        up is not False,
        "text" if kind == "text" else "task",
        "share" if divided else scale,
    )
    return ColumnReading(name, task, made, divided, "; ".join(why))


def _known(task: str, named: str | None) -> tuple[Metric | None, list[str]]:
    """Return what is known of a column's metric, by its name or that of the task, and why."""
    if named:
        known = known_metric(named)
        return known, [f"{known.name} is known"] if known else []
    if task.casefold() in CORPORA:
        return TEXT, ["a text to predict by its name"]
    usual = usual_metric(task)
    return known_metric(usual or ""), ["a known benchmark"] if usual else []


def _direction(
    name: str, said: Mapping[str, Any], known: Metric | None, why: list[str]
) -> bool | None:
    if said.get("lower") is True:
        why.append("lower is better as said")
        return False
    down, up = _DOWN.search(name.casefold()), _UP.search(name.casefold())
    if down or up:
        why.append("its arrow")
        return not down
    return known.higher_is_better if known else None


def _scale(
    said: Mapping[str, Any],
    known: Metric | None,
    up: bool | None,
    percent: bool,
    low: float,
    high: float,
    why: list[str],
) -> tuple[Scale | None, bool]:
    """Return the scale, and whether the numbers are per cent of what is else a share."""
    if "scale" in said:
        why.append(f"{said['scale']} as said")
        scale = next(scale for scale in SCALES if scale == said["scale"])
        return ("share", True) if scale == "percent" else (scale, False)
    if known and (own := _own_scale(known, low, high)) is not None:
        return own, False
    if percent and max(-low, high) <= 100:
        why.append("a per cent sign")
        return "share", True
    if low >= 0 and high <= 1:
        why.append(f"{low:g} to {high:g}")
        return "share", False
    if up is False:
        sure = known is not None and known.scale == "share"
    else:
        sure = low >= -100 if known else low >= 0 and high > 10
    if sure and high <= 100:
        why.append(f"{low:g} to {high:g}: per cent")
        return "share", True
    return None, False


def _own_scale(known: Metric, low: float, high: float) -> Scale | None:
    """Return the scale that a metric always has; None where its scores are written in several ways."""
    if known.scale in ("percent", "unbounded") or known.name in ("mt_bench", "brier_score"):
        return known.scale
    return "range" if known.scale == "range" and max(-low, high) <= 1 else None


def _doubt(name: str, low: float, high: float, where: str) -> DataError:
    what, options = "does not say which way is better, and on what scale", f" with {_OPTIONS}"
    if low >= 0 and high <= 10:
        what, options = (
            "may be per cent or a rating",
            f": --scale '{name}=percent' or --scale '{name}=range'",
        )
    hint = f"say it{options}, or in {Path(where).stem}.columns.yaml beside the file"
    return DataError(f"the column {name!r} ({low:g} to {high:g}) {what}", where=where, hint=hint)


def named_metric(name: str) -> str | None:
    """Return the metric that a column's name holds, as ``WikiText ppl`` or ``SQuAD (F1)``; the longest counts."""
    words = re.findall(r"[a-z0-9@+]+", name.casefold())
    spans = (
        "_".join(words[at : at + size])
        for size in (3, 2, 1)
        for at in range(len(words) - size, -1, -1)
    )
    return next((known.name for known in map(known_metric, spans) if known is not None), None)


def plain_name(name: str) -> str:
    """Return a column's name without arrows and per cent signs, as a task is called."""
    return re.sub(r"\s*\(?\s*%\s*\)?\s*$", "", _ARROWS.sub("", name)).strip() or name.strip()


def _key(name: str) -> str:
    return plain_name(name).casefold()


def average(name: Any) -> bool:
    """Say whether a row or column is an average over others rather than a model or task."""
    return _AVERAGE.fullmatch(_key(str(name))) is not None
