"""What the columns of a foreign table are: metric, direction, scale and kind, each with the reason that decided it.

Names, arrows and values decide, and what they decide is shown (``TableLayout``). Where they do not, the reader is
asked to describe them in a file, which ``--columns`` names or which lies beside ``scores.csv`` as
``scores.columns.yaml``:

    MT-Bench: {scale: range}
    complaints: {lower: true}  # false: higher is better, whatever its name says
    wiki-2025: {kind: text}
    seconds: {skip: true}
    Accuracy: {is: score}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from potentia.errors import DataError, InputError, suggest_names
from potentia.facts import NO_GROUPS, find_benchmark_facts
from potentia.values.findings import Finding, Table
from potentia.values.metric import (
    METRIC_KINDS,
    SCALES,
    Metric,
    MetricKind,
    MetricScale,
    find_known_metric,
)
from potentia.values.wording import format_count

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
_LOWER_MARK = re.compile(r"[↓⬇]|\blower is better\b|\blower better\b")
_HIGHER_MARK = re.compile(r"[↑⬆]|\bhigher is better\b")
_ARROWS = re.compile(r"\s*\(?\s*(?:[↓⬇↑⬆]|(?:lower|higher) (?:is )?better)\s*\)?")
_AVERAGE = re.compile(
    r"(avg|average|mean|median|overall|total|macro avg|micro avg)\.?( score| rank)?"
)
_OPTIONS = (
    "--columns FILE, a YAML file with lines such as  COLUMN: {lower: true},"
    "  COLUMN: {scale: share|percent|range|unbounded},  COLUMN: {kind: task|text}"
)
_FIXED_SCALES = ("percent", "unbounded")  # a metric on one of them is never written otherwise
_FIXED_METRICS = ("mt_bench", "brier_score")


def metric_of_task(
    task: str, metric_name: str | None = None, higher_is_better: bool | None = None
) -> Metric:
    """Return the metric of a score: by its name, else as the benchmark is usually scored; what is given wins."""
    known_name = metric_name or usual_metric(task) or ""
    if not known_name and task.casefold() in CORPORA and higher_is_better is not True:
        return TEXT
    direction = Metric.of(known_name, higher_is_better).higher_is_better
    return Metric.of(metric_name or "", direction)


@cache
def usual_metric(task: str) -> str | None:
    """Return the metric of a known benchmark, however it is spelled; with its filter where it needs one."""
    facts = find_benchmark_facts(task) or find_benchmark_facts(
        re.sub(r"[\s-]", "_", _column_key(task))
    )
    if facts is None:
        return None
    return facts.metric or None


@dataclass(frozen=True)
class ColumnHint:
    """What the user says of one column; None where nothing is said."""

    lower: bool | None = None
    scale: MetricScale | None = None
    kind: MetricKind | None = None
    skip: bool | None = None
    metric: str | None = None

    @classmethod
    def from_words(cls, column: str, words: Mapping[str, object]) -> ColumnHint:
        """Check what is said in words."""
        return cls(
            lower=_check_flag(column, "lower", words),
            scale=_check_choice(column, "scale", words, SCALES),
            kind=_check_choice(column, "kind", words, METRIC_KINDS),
            skip=_check_flag(column, "skip", words),
            metric=_read_metric_word(column, words),
        )

    def overridden_by(self, stronger_hint: ColumnHint) -> ColumnHint:
        """Return what both say; where they differ, the stronger hints count."""
        return ColumnHint(
            lower=self.lower if stronger_hint.lower is None else stronger_hint.lower,
            scale=self.scale if stronger_hint.scale is None else stronger_hint.scale,
            kind=self.kind if stronger_hint.kind is None else stronger_hint.kind,
            skip=self.skip if stronger_hint.skip is None else stronger_hint.skip,
            metric=self.metric if stronger_hint.metric is None else stronger_hint.metric,
        )


HINT_WORDS = tuple(hint_field.name for hint_field in fields(ColumnHint))


def _check_choice(
    column: str, word: str, words: Mapping[str, Any], choices: tuple[Any, ...]
) -> Any:
    if word not in words:
        return None
    for choice in choices:
        if words[word] == choice:
            return choice
    raise InputError(
        f"{words[word]!r} is not a {word} of {column}", hint=f"one of: {', '.join(choices)}"
    )


def _check_flag(column: str, word: str, words: Mapping[str, object]) -> bool | None:
    if word not in words:
        return None
    flag = words[word]
    if not isinstance(flag, bool):
        raise InputError(
            f"{word} of {column} is {flag!r}, not true or false",
            hint=f"without quotation marks:  {column}: {{{word}: true}}",
        )
    return flag


def _read_metric_word(column: str, words: Mapping[str, object]) -> str | None:
    metric = words.get("metric")
    if metric is not None and not isinstance(metric, str):
        raise InputError(f"{metric!r} is not a metric of {column}", hint="give its name")
    return metric or None


@dataclass(frozen=True)
class ColumnHints:
    """What the user says of columns, by their names in lower case."""

    columns: Mapping[str, ColumnHint] = field(default_factory=dict)

    @classmethod
    def from_words(cls, words_by_column: Mapping[str, Mapping[str, object]]) -> ColumnHints:
        """Check and keep what is said: of each column lower, scale, kind, skip or metric."""
        return cls(
            {
                _column_key(column): ColumnHint.from_words(column, words)
                for column, words in words_by_column.items()
            }
        )

    @classmethod
    def from_options(
        cls, lower: Iterable[str], scale: Mapping[str, str] | None, kind: Mapping[str, str] | None
    ) -> ColumnHints:
        """Take what the arguments ``lower``, ``scale`` and ``kind`` of ``potentia.read`` say."""
        words: dict[str, dict[str, object]] = {column: {"lower": True} for column in lower}
        for column, value in (scale or {}).items():
            words.setdefault(column, {})["scale"] = value
        for column, value in (kind or {}).items():
            words.setdefault(column, {})["kind"] = value
        return cls.from_words(words)

    @classmethod
    def read_beside(cls, table_path: Path) -> ColumnHints:
        """Read ``scores.columns.yaml`` where it lies beside ``scores.csv``."""
        if not table_path.name:  # the folder that one is in
            return cls()
        hints_file = table_path.with_name(f"{table_path.stem}.columns.yaml")
        if not hints_file.is_file():
            return cls()
        return TableDescription.from_file(hints_file).hints

    def overridden_by(self, stronger_hints: ColumnHints) -> ColumnHints:
        """Return what both say; where they differ, the stronger hints count."""
        columns = dict(self.columns)
        for column, stronger_hint in stronger_hints.columns.items():
            columns[column] = columns.get(column, ColumnHint()).overridden_by(stronger_hint)
        return ColumnHints(columns)

    def of_column(self, column: str) -> ColumnHint:
        """Return what is said of one column."""
        return self.columns.get(_column_key(column), ColumnHint())

    def check_columns(self, columns: Sequence[str], source: str) -> None:
        """Refuse what is said of columns that are not there."""
        available_columns = {_column_key(column) for column in columns}
        for column in sorted(self.columns.keys() - available_columns):
            hint = suggest_names(column, columns)
            raise DataError(f"no column {column!r}", where=source, hint=hint)


_FIELD_WORD = "is"  # Accuracy: {is: score}


@dataclass(frozen=True)
class TableDescription:
    """What a file says of the scores to be read: of all of them, and of single columns.

    A line with a plain value is about all scores (``metric: acc``), one with an object about a column.
    """

    hints: ColumnHints = ColumnHints()
    column_by_field: Mapping[str, str] = field(default_factory=dict)  # score → Accuracy
    metric: str | None = None
    task_facts: str | None = None
    task_groups: str | None = None  # a CSV of task and group, or none
    apart: bool = False
    subtasks: bool = False
    protocol: str | None = None
    short_names: bool = False
    study: str | None = None  # what the scores are called in a store

    @classmethod
    def from_file(cls, description_file: Path) -> TableDescription:
        """Read and check such a file."""
        from potentia.files import read_yaml

        content, _ = read_yaml(description_file, description="the file of columns")
        if not isinstance(content, dict) or not content:
            raise DataError(
                "this says nothing of columns",
                where=str(description_file),
                hint="such as  MT-Bench: {scale: range}",
            )
        words_by_column = {}
        settings: dict[str, Any] = {}
        for entry_name, value in content.items():
            if isinstance(value, dict):
                words_by_column[str(entry_name)] = value
            else:
                settings[str(entry_name)] = _check_setting(str(entry_name), value, description_file)
        column_by_field = {}
        for column, words in words_by_column.items():
            _check_words(column, words, description_file)
            if _FIELD_WORD in words:
                column_by_field[str(words[_FIELD_WORD])] = column
        hint_words = {}
        for column, words in words_by_column.items():
            other_words = {word: value for word, value in words.items() if word != _FIELD_WORD}
            if other_words:
                hint_words[column] = other_words
        return cls(ColumnHints.from_words(hint_words), column_by_field, **settings)


_SETTING_TYPES: Mapping[str, type] = {
    "metric": str,
    "task_facts": str,
    "task_groups": str,
    "apart": bool,
    "subtasks": bool,
    "protocol": str,
    "short_names": bool,
    "study": str,
}


def _check_setting(setting: str, value: object, description_file: Path) -> object:
    """Return a setting for all scores; a path is taken from the folder of the file."""
    if setting not in _SETTING_TYPES:
        raise DataError(
            f"unknown setting {setting!r}",
            where=str(description_file),
            hint=f"of all scores: {', '.join(_SETTING_TYPES)}; of a column:  {setting}: {{scale: percent}}",
        )
    if not isinstance(value, _SETTING_TYPES[setting]):
        type_words = "true or false" if _SETTING_TYPES[setting] is bool else "text"
        raise DataError(f"{setting} is {value!r}, not {type_words}", where=str(description_file))
    is_path = setting == "task_facts" or (setting == "task_groups" and value != NO_GROUPS)
    if is_path:
        return str(description_file.parent / str(value))
    return value


def _check_words(column: str, words: Mapping[object, object], description_file: Path) -> None:
    """Refuse unknown words about a column."""
    known_words = (*HINT_WORDS, _FIELD_WORD)
    unknown_words = sorted(map(str, words.keys() - set(known_words)))
    if unknown_words:
        raise DataError(
            f"unknown word {unknown_words[0]!r} of {column}",
            where=str(description_file),
            hint=f"one of: {', '.join(known_words)}",
        )


@dataclass(frozen=True)
class ColumnLayout:
    """How one column (or row of a transposed table) is read, and what decided it."""

    column: str
    task: str
    metric: Metric
    is_divided: bool  # whether its numbers are percentages, and divided by 100
    reason: str

    def table_row(self) -> tuple[str, ...]:
        """Return it as a row of the table that is shown."""
        metric = self.metric
        scale = "percent, divided by 100" if self.is_divided else metric.scale or "unknown"
        direction = "higher" if metric.higher_is_better else "lower"
        kind_words = "perplexity corpus" if metric.is_text else "task"
        return (self.column, metric.name or "–", direction, scale, kind_words, self.reason)


@dataclass(frozen=True)
class TableLayout(Finding):
    """How a foreign table was read: what each column is, and why."""

    columns: tuple[ColumnLayout, ...]
    left_out: tuple[str, ...] = ()
    left_out_reasons: Mapping[str, str] = field(default_factory=dict)
    known: int = 0  # columns that are not listed: benchmarks whose name says what they are

    def tables(self) -> Sequence[Table]:
        """Return one row per column."""
        header = ("column", "metric", "better", "scale", "kind", "why")
        table_rows = tuple(column.table_row() for column in self.columns)
        sentences = []
        if self.known:
            count = format_count(self.known, "known benchmark")
            sentences.append(f"Not listed: {count}, read as shares of 1 where higher is better.")
        if self.left_out:
            sentences.append(f"Left out: {', '.join(map(self._explain, self.left_out))}.")
        return (Table("How the table was read", header, table_rows, " ".join(sentences)),)

    def _explain(self, name: str) -> str:
        """Return what is left out, with the reason where it is known."""
        reason = self.left_out_reasons.get(name)
        return f"{name} ({reason})" if reason else name


@dataclass(frozen=True)
class _ColumnFacts:
    """What is known of a column before its direction and scale are decided."""

    hint: ColumnHint
    metric: Metric | None  # what is known of the metric, by its name or that of the task
    has_percent_sign: bool
    low: float
    high: float


def decide_column(
    column: str,
    values: Sequence[float],
    hints: ColumnHints,
    *,
    metric: str | None = None,
    has_percent_sign: bool = False,
    source: str,
) -> ColumnLayout:
    """Decide what a column of scores is by what is said, by its name and arrows, then by its values.

    ``metric`` is what the table itself calls the metric. Each step appends to ``reasons`` what decided it.
    """
    hint = hints.of_column(column)
    task = plain_name(column)
    metric_name = hint.metric or metric or metric_in_name(task)
    known_metric_facts, reasons = _find_known_metric(task, metric_name)
    facts = _ColumnFacts(
        hint, known_metric_facts, has_percent_sign, low=min(values), high=max(values)
    )
    higher_is_better = _decide_direction(column, facts, reasons)
    scale, is_percentage = _decide_scale(facts, higher_is_better, reasons)
    if scale is None and _is_ambiguous(facts, higher_is_better):
        raise _ambiguous_column_error(column, facts, source)
    column_kind = hint.kind or (known_metric_facts.kind if known_metric_facts else "task")
    decided = Metric(
        name=metric_name or "",
        higher_is_better=higher_is_better is not False,  # None: not known, higher is usual
        kind="text" if column_kind == "text" else "task",
        scale=scale,
    )
    return ColumnLayout(
        column=column,
        task=task,
        metric=decided,
        is_divided=is_percentage,
        reason="; ".join(reasons),
    )


def _find_known_metric(task: str, metric_name: str | None) -> tuple[Metric | None, list[str]]:
    """Return what is known of a column's metric, by its name or that of the task, and why."""
    if metric_name:
        metric = find_known_metric(metric_name)
        return metric, [f"{metric.name} is known"] if metric else []
    if task.casefold() in CORPORA:
        return TEXT, ["a perplexity corpus by its name"]
    usual_name = usual_metric(task)
    return find_known_metric(usual_name or ""), ["a known benchmark"] if usual_name else []


def _decide_direction(column: str, facts: _ColumnFacts, reasons: list[str]) -> bool | None:
    """Return whether higher is better, None where that is not known; add the reason to ``reasons``."""
    if facts.hint.lower is not None:
        direction = "lower" if facts.hint.lower else "higher"
        reasons.append(f"{direction} is better as said")
        return not facts.hint.lower
    has_lower_mark = bool(_LOWER_MARK.search(column.casefold()))
    if has_lower_mark or _HIGHER_MARK.search(column.casefold()):
        reasons.append("its arrow")
        return not has_lower_mark
    return facts.metric.higher_is_better if facts.metric else None


def _decide_scale(
    facts: _ColumnFacts, higher_is_better: bool | None, reasons: list[str]
) -> tuple[MetricScale | None, bool]:
    """Return the scale, None where it is not known, and whether numbers are percentages; add why to ``reasons``."""
    hinted_scale = facts.hint.scale
    if hinted_scale is not None:
        reasons.append(f"{hinted_scale} as said")
        return ("share", True) if hinted_scale == "percent" else (hinted_scale, False)
    fixed_scale = _find_fixed_scale(facts)
    if fixed_scale is not None:
        return fixed_scale, False
    if facts.has_percent_sign and max(-facts.low, facts.high) <= 100:
        reasons.append("a per cent sign")
        return "share", True
    if facts.low >= 0 and facts.high <= 1:
        reasons.append(f"{facts.low:g} to {facts.high:g}")
        return "share", False
    if facts.high <= 100 and _is_surely_percent(facts, higher_is_better):
        reasons.append(f"{facts.low:g} to {facts.high:g}: per cent")
        return "share", True
    return None, False


def _find_fixed_scale(facts: _ColumnFacts) -> MetricScale | None:
    """Return the scale that a metric always has.

    None where the metric is unknown, or its scores may be written as shares or per cent.
    """
    metric = facts.metric
    if metric is None:
        return None
    if metric.scale in _FIXED_SCALES or metric.name in _FIXED_METRICS:
        return metric.scale
    if metric.scale == "range" and max(-facts.low, facts.high) <= 1:
        return "range"
    return None


def _is_surely_percent(facts: _ColumnFacts, higher_is_better: bool | None) -> bool:
    if higher_is_better is False:
        return facts.metric is not None and facts.metric.scale == "share"
    if facts.metric is not None:
        return facts.low >= -100
    return facts.low >= 0 and facts.high > 10


def _is_ambiguous(facts: _ColumnFacts, higher_is_better: bool | None) -> bool:
    """Say whether numbers of no known scale mean nothing yet: no direction, or per cent and ratings look alike."""
    if higher_is_better is None:
        return True
    return higher_is_better and facts.low >= 0 and facts.high <= 10


def _ambiguous_column_error(column: str, facts: _ColumnFacts, source: str) -> DataError:
    if facts.low >= 0 and facts.high <= 10:
        doubt = "may be per cent or a rating"
        options = (
            f":  {column}: {{scale: percent}}  or  {column}: {{scale: range}}  in --columns FILE"
        )
    else:
        doubt = "does not say which way is better, and on what scale"
        options = f" with {_OPTIONS}"
    value_range = f"{facts.low:g} to {facts.high:g}"
    return DataError(
        f"the column {column!r} ({value_range}) {doubt}",
        where=source,
        hint=f"say it{options}, or in {Path(source).stem}.columns.yaml beside the file",
    )


def metric_in_name(column: str) -> str | None:
    """Return the metric that a column's name holds, as ``WikiText ppl`` or ``SQuAD (F1)``; the longest counts."""
    for candidate in _word_spans(re.findall(r"[a-z0-9@+]+", column.casefold())):
        metric = find_known_metric(candidate)
        if metric is not None:
            return metric.name
    return None


def _word_spans(words: Sequence[str]) -> Iterator[str]:
    """Give one to three words in a row, the longest and last first."""
    for word_count in (3, 2, 1):
        for start in range(len(words) - word_count, -1, -1):
            yield "_".join(words[start : start + word_count])


def plain_name(column: str) -> str:
    """Return a column's name without arrows and per cent signs, as a task is called."""
    return re.sub(r"\s*\(?\s*%\s*\)?\s*$", "", _ARROWS.sub("", column)).strip() or column.strip()


def _column_key(column: str) -> str:
    return plain_name(column).casefold()


def is_average(column_name: object) -> bool:
    """Say whether a row or column is an average over others rather than a model or task."""
    return _AVERAGE.fullmatch(_column_key(str(column_name))) is not None
