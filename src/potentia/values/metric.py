"""What a score is of and where it comes from: its metric, its origin, and the one place that says what may be compared.

To teach Potentia a metric, add one line to ``_KNOWN``, or register it from another package (``potentia.extensions``)
under its name in lower case. A metric that is not in it works as well where its source says
which way is better, as lm-eval's task definitions do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import NoneType
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

Kind = Literal["task", "text"]  # a task to do, or a text to predict
# from 0 to 1, from 0 to 100, between other bounds, without bounds
Scale = Literal["share", "percent", "range", "unbounded"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCALES: tuple[Scale, ...] = get_args(Scale)
# what guessing scores: its accuracy, 1 − its accuracy, nothing
Guess = Literal["share", "rest", "zero"]


def _column(*, stored_as: str, written_as: str) -> dict[str, str]:
    """Declare the column of a field in the store and in a file of scores."""
    return {"stored_as": stored_as, "written_as": written_as}


@dataclass(frozen=True, slots=True)
class ScoreColumn:
    """Where one field of a ``Metric`` or an ``Origin`` is kept: every list of a score's columns is made of these."""

    field: str
    stored_as: str  # in the store
    written_as: str  # in a file of scores
    kind: type  # str, bool, int or float
    may_be_unknown: bool


@dataclass(frozen=True, slots=True)
class Metric:
    """What a score is of. ``name`` is empty, and ``kind``, ``scale`` and ``chance`` None, where nobody says it."""

    name: str = field(default="", metadata=_column(stored_as="metric", written_as="metric"))
    higher_is_better: bool = field(
        default=True, metadata=_column(stored_as="higher_is_better", written_as="higher_is_better")
    )
    kind: Kind | None = field(
        default=None, metadata=_column(stored_as="kind", written_as="metric_kind")
    )
    scale: Scale | None = field(
        default=None, metadata=_column(stored_as="scale", written_as="metric_scale")
    )
    # the accuracy of a guess on the task
    chance: float | None = field(
        default=None, metadata=_column(stored_as="chance", written_as="chance")
    )

    @classmethod
    def of(
        cls,
        name: str,
        higher_is_better: bool | None = None,
        *,
        kind: Kind | None = None,
        chance: float | None = None,
    ) -> Metric:
        """Return a metric with what is known of its name; what is given wins."""
        registered = known_metric(name) or cls()
        if higher_is_better is None:
            higher_is_better = registered.higher_is_better
        return cls(
            name=name,
            higher_is_better=bool(higher_is_better),
            kind=kind or registered.kind,
            scale=registered.scale,
            chance=chance,
        )

    @property
    def is_text(self) -> bool:
        """Whether the score is of a text to predict rather than of a task."""
        return self.kind == "text"

    @property
    def plain(self) -> str:
        """The name without the filter behind it: ``exact_match|strict-match`` is ``exact_match``."""
        return _drop_filter(self.name)

    @property
    def canonical(self) -> str:
        """The name by which metrics are compared: ``accuracy`` is ``acc``; a filter stays behind it."""
        registered = known_metric(self.name)
        if registered is None:
            return self.name
        filter_suffix = self.name.removeprefix(self.plain).replace(",", "|")
        return registered.name + filter_suffix

    @property
    def guess(self) -> Guess | None:
        """What a guess scores by this metric; None where that is not known."""
        key = _normalise_name(self.plain)
        if key in _GUESS_BY_NAME:
            return _GUESS_BY_NAME[key]
        if self.name:
            return None
        return "share" if self.higher_is_better else "rest"

    def differences(self, other: Metric) -> list[tuple[str, str, str]]:
        """Return what keeps two metrics from being compared; what one of them does not know forbids nothing."""
        compared = (
            ("metric", self.canonical, other.canonical),
            ("kind", self.kind, other.kind),
            ("scale", self.scale, other.scale),
        )
        differences = []
        for name, ours, theirs in compared:
            if ours and theirs and ours != theirs:
                differences.append((name, str(ours), str(theirs)))
        if self.higher_is_better != other.higher_is_better:
            differences.append(("direction", self._direction, other._direction))
        return differences

    @property
    def _direction(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"

    def merged(self, other: Metric) -> Metric:
        """Return the metric with what the other knows beyond it."""
        if self == other:
            return self
        chance = self.chance
        if not chance and other.chance is not None:
            chance = other.chance
        merged = replace(
            self,
            name=self.name or other.name,
            kind=self.kind or other.kind,
            scale=self.scale or other.scale,
            chance=chance,
        )
        return self if merged == self else merged


@dataclass(frozen=True, slots=True)
class _KnownMetric:
    """A metric that Potentia knows, under one of its names."""

    key: str
    metric: Metric
    guess: Guess | None


def _known(
    metrics: str,
    scale: Scale | None,
    *,
    up: bool = True,
    kind: Kind = "task",
    guess: Guess | None = None,
) -> list[_KnownMetric]:
    """Describe metrics, divided by commas: each by its name and the others that it goes by."""
    known_metrics = []
    for names_of_metric in metrics.split(","):
        names = names_of_metric.split()
        metric = Metric(name=names[0], higher_is_better=up, kind=kind, scale=scale)
        for name in names:
            known_metrics.append(_KnownMetric(_normalise_name(name), metric, guess))
    return known_metrics


def _normalise_name(name: str) -> str:
    """Return the name by which metrics are looked up: in lower case, its words joined by underscores."""
    return re.sub(r"[\s_\-]+", "_", name.strip().casefold()).strip("_")


def _drop_filter(name: str) -> str:
    """Return the name without the filter behind it."""
    return re.split(r"[|,]", name, maxsplit=1)[0]


_KNOWN = (
    *_known(
        "acc accuracy, acc_norm, acc_token, acc_bytes, exact_match em, r@1", "share", guess="share"
    ),
    *_known(
        "balanced_accuracy bal_acc, f1 f1_score, macro_f1 f1_macro, micro_f1 f1_micro, precision, recall",
        "share",
    ),
    *_known("token_f1, contains, rouge_l", "share"),
    *_known("auc auroc roc_auc, pass@1 pass_at_1, math_verify, judge, meteor", "share"),
    *_known("mcc matthews_correlation", "range", guess="zero"),
    *_known("pearson pearsonr, spearman spearmanr, mt_bench mtbench", "range"),
    *_known("bleu sacrebleu, chrf, chrf++ chrfpp", "percent"),
    *_known("rouge1, rouge2, rougeL, win_rate winrate", None),
    *_known("elo, answer_margin", "unbounded"),
    *_known("answer_bpb answer_bits_per_byte", "unbounded", up=False),
    *_known("brier_score brier", "range", up=False, guess="rest"),
    *_known("error_rate err error, ece calibration_error, pct_stereotype", "share", up=False),
    *_known("hallucination_rate, toxicity", None, up=False),
    *_known("ter", "percent", up=False),
    *_known(
        "likelihood_diff, wer, cer, mae, mse, rmse, log_loss logloss, latency runtime",
        "unbounded",
        up=False,
    ),
    *_known(
        "bits_per_byte bpb, bits_per_character bpc, perplexity ppl",
        "unbounded",
        up=False,
        kind="text",
    ),
    *_known(
        "byte_perplexity, word_perplexity, nll, loss cross_entropy",
        "unbounded",
        up=False,
        kind="text",
    ),
)
_PASS_AT_K = re.compile(r"pass(?:@|_at_|_@)(?P<k>[1-9][0-9]{0,5})")
_METRIC_BY_NAME = {known.key: known.metric for known in _KNOWN}
_GUESS_BY_NAME = {known.key: known.guess for known in _KNOWN}

# Which metric speaks for a task that has several and says nothing of them.
PREFERRED = (
    "acc_norm",
    "acc",
    "exact_match",
    "em",
    "mcc",
    "f1",
    "bits_per_byte",
    "byte_perplexity",
    "word_perplexity",
    "perplexity",
    "bleu",
    "rouge1",
    "score",
)


@cache
def known_metric(name: str) -> Metric | None:
    """Return what is known of a metric by any of its names, with or without a filter behind it."""
    if not name:
        return None
    key = _normalise_name(_drop_filter(name))
    if key in _METRIC_BY_NAME:
        return _METRIC_BY_NAME[key]
    pass_at = _PASS_AT_K.fullmatch(key)
    if pass_at is not None:
        return Metric(name=f"pass@{pass_at['k']}", kind="task", scale="share")
    from potentia.extensions import ExtensionKind, has_extension, load_extension

    if has_extension(ExtensionKind.METRIC, key):
        registered: Metric = load_extension(ExtensionKind.METRIC, key)
        return registered
    return None


def main_metric(available: Iterable[str], usual: str | None = None) -> str | None:
    """Return the metric that speaks for a task: the benchmark's ``usual`` one, else a preferred one, else the first."""
    names = list(available)
    candidates = (usual, *PREFERRED, *names)
    return next((name for name in candidates if name in names), None)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a score was computed from; None where its source does not say it. The protocol is its cell's."""

    # fingerprint of the documents, their splits and the prompt
    data: str | None = field(
        default=None, metadata=_column(stored_as="data", written_as="data_fingerprint")
    )
    # fingerprint of the fine-tuning; None where there was none
    recipe: str | None = field(
        default=None, metadata=_column(stored_as="recipe", written_as="recipe_fingerprint")
    )
    # examples in the prompt
    shots: int | None = field(default=None, metadata=_column(stored_as="shots", written_as="shots"))
    # fingerprint of weights and tokenizer
    model: str | None = field(
        default=None, metadata=_column(stored_as="identity", written_as="model_fingerprint")
    )
    # the file that it was imported from
    source: str | None = field(
        default=None, metadata=_column(stored_as="source", written_as="source")
    )
    # what computed it: how the model was loaded, scored and trained
    path: str | None = field(default=None, metadata=_column(stored_as="path", written_as="path"))


UNKNOWN = Origin()


def _columns_of(part: type[Metric] | type[Origin]) -> tuple[ScoreColumn, ...]:
    """Return where each field of a metric or an origin is kept."""
    type_hints = get_type_hints(part)
    columns = []
    for declared in fields(part):
        type_hint = type_hints[declared.name]
        kinds = get_args(type_hint) or (type_hint,)
        is_word = get_origin(kinds[0]) is Literal
        columns.append(
            ScoreColumn(
                field=declared.name,
                stored_as=declared.metadata["stored_as"],
                written_as=declared.metadata["written_as"],
                kind=str if is_word else kinds[0],
                may_be_unknown=NoneType in kinds,
            )
        )
    return tuple(columns)


METRIC_COLUMNS = _columns_of(Metric)  # in the order of their fields
ORIGIN_COLUMNS = _columns_of(Origin)


class Measured(Protocol):
    """A score, or whatever else has a metric and an origin."""

    @property
    def metric(self) -> Metric:
        """What was measured."""

    @property
    def origin(self) -> Origin:
        """Where it comes from."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Why two scores of a task cannot be compared: what differs, and what it is in each."""

    property_name: str
    first_value: str
    second_value: str

    def __str__(self) -> str:
        return f"{self.property_name} ({self.first_value} and {self.second_value})"


def comparable(first: Measured, second: Measured) -> tuple[Difference, ...]:
    """Return what forbids comparing two scores of one task and protocol; empty where they are alike.

    Every join, mean, pair and sentence asks here. What one side does not know forbids nothing.
    """
    differences = []
    for property_name, in_one, in_two in first.metric.differences(second.metric):
        differences.append(Difference(property_name, in_one, in_two))
    compared_origins: tuple[tuple[str, str | int | None, str | int | None], ...] = (
        ("data", first.origin.data, second.origin.data),
        ("recipe", first.origin.recipe, second.origin.recipe),
        ("examples in the prompt", first.origin.shots, second.origin.shots),
    )
    for property_name, value_of_one, value_of_two in compared_origins:
        if value_of_one is None or value_of_two is None:
            continue
        if value_of_one != value_of_two:
            differences.append(
                Difference(property_name, str(value_of_one)[:12], str(value_of_two)[:12])
            )
    return tuple(differences)


def recipe_fingerprint(settings: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of how a model is tuned; None where nothing is said."""
    if not any(settings.values()):
        return None
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
