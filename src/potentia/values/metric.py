"""What a score measures (``Metric``), what it was computed from (``Origin``), and which scores may be compared.

To teach Potentia a metric, add one line to ``_KNOWN``, or register it from another package (``potentia.extensions``)
under its name in lower case. A metric that is in neither works as well, if its source says which way is better, as
lm-eval's task definitions do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import NoneType
from typing import Literal, Protocol, get_args, get_origin, get_type_hints

MetricKind = Literal["task", "text"]
"""What is measured: how well a task is done, or how well a text is predicted."""

MetricScale = Literal["share", "percent", "range", "unbounded"]
"""Between which values scores lie: 0 and 1, 0 and 100, other bounds, no bounds."""

METRIC_KINDS: tuple[MetricKind, ...] = get_args(MetricKind)
SCALES: tuple[MetricScale, ...] = get_args(MetricScale)
GuessRule = Literal["accuracy", "one_minus_accuracy", "zero"]
"""What a uniform guess among the options scores by a metric, of its accuracy 1/k."""


def _declare_column(*, stored_as: str, written_as: str) -> dict[str, str]:
    """Return the metadata of a field: the names of its column in the store and in a file of scores."""
    return {"stored_as": stored_as, "written_as": written_as}


@dataclass(frozen=True, slots=True)
class ScoreColumn:
    """The column of one field of a ``Metric`` or an ``Origin``; store and files make their lists of columns of it."""

    field: str
    stored_as: str  # the column's name in the store
    written_as: str  # the column's name in a file of scores
    kind: type  # str, bool, int or float
    may_be_unknown: bool


@dataclass(frozen=True, slots=True)
class Metric:
    """What a score measures. An empty ``name``, and None for ``kind``, ``scale`` or ``chance``, means unknown."""

    name: str = field(default="", metadata=_declare_column(stored_as="metric", written_as="metric"))
    higher_is_better: bool = field(
        default=True,
        metadata=_declare_column(stored_as="higher_is_better", written_as="higher_is_better"),
    )
    kind: MetricKind | None = field(
        default=None, metadata=_declare_column(stored_as="kind", written_as="metric_kind")
    )
    scale: MetricScale | None = field(
        default=None, metadata=_declare_column(stored_as="scale", written_as="metric_scale")
    )
    # the accuracy of a uniform guess on the task, whatever the metric is
    chance: float | None = field(
        default=None, metadata=_declare_column(stored_as="chance", written_as="chance")
    )

    @classmethod
    def of(
        cls,
        metric_name: str,
        higher_is_better: bool | None = None,
        *,
        kind: MetricKind | None = None,
        chance: float | None = None,
    ) -> Metric:
        """Return a metric by its name; what the arguments leave out is filled in with what Potentia knows of it.

        Chance is never filled in: it belongs to the task, by its number of options, and not to the metric.
        """
        registered = find_known_metric(metric_name) or cls()
        if higher_is_better is None:
            higher_is_better = registered.higher_is_better
        return cls(
            name=metric_name,
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
    def name_without_filter(self) -> str:
        """The name without lm-eval's filter after it: of ``exact_match|strict-match`` it is ``exact_match``."""
        return _drop_filter(self.name)

    @property
    def canonical_name(self) -> str:
        """The name by which metrics are compared: of ``accuracy`` it is ``acc``; a filter stays after it."""
        registered = find_known_metric(self.name)
        if registered is None:
            return self.name
        filter_suffix = self.name.removeprefix(self.name_without_filter).replace(",", "|")
        return registered.name + filter_suffix

    @property
    def guess_rule(self) -> GuessRule | None:
        """What a uniform guess scores by this metric; None if it is not known.

        A metric without a name is taken for accuracy, or for an error rate if lower is better.
        """
        key = _normalise_name(self.name_without_filter)
        if key in _GUESS_RULE_BY_NAME:
            return _GUESS_RULE_BY_NAME[key]
        if self.name:
            return None
        return "accuracy" if self.higher_is_better else "one_minus_accuracy"

    def has_unit_scale(self, largest: float) -> bool:
        """Whether scores lie between 0 and 1, or between −1 and 1 as MCC does.

        If the scale is not known, the largest score decides.
        """
        if self.scale is None or self.guess_rule == "zero":
            return largest <= 1.0
        return self.scale == "share"

    def find_differences(self, other_metric: Metric) -> list[Difference]:
        """Return what keeps two metrics from being compared; what is unknown of either forbids nothing."""
        compared = (
            ("metric", self.canonical_name, other_metric.canonical_name),
            ("kind", self.kind, other_metric.kind),
            ("scale", self.scale, other_metric.scale),
        )
        differences = []
        for property_name, first_value, second_value in compared:
            if first_value and second_value and first_value != second_value:
                differences.append(Difference(property_name, str(first_value), str(second_value)))
        if self.higher_is_better != other_metric.higher_is_better:
            directions = (self._direction, other_metric._direction)
            differences.append(Difference("direction", *directions))
        return differences

    @property
    def _direction(self) -> str:
        return "higher is better" if self.higher_is_better else "lower is better"

    def fill_gaps_from(self, fallback: Metric) -> Metric:
        """Return this metric with what is unknown of it taken from ``fallback``; the direction is never unknown."""
        if self == fallback:
            return self
        merged = replace(
            self,
            name=self.name or fallback.name,
            kind=self.kind or fallback.kind,
            scale=self.scale or fallback.scale,
            chance=fallback.chance if self.chance is None else self.chance,
        )
        # the same object where nothing was unknown: a store's scores share theirs
        return self if merged == self else merged


@dataclass(frozen=True, slots=True)
class _KnownMetric:
    """A metric that Potentia knows, under one of its names."""

    key: str  # the normalised name
    metric: Metric
    guess_rule: GuessRule | None


def _make_known_metrics(
    metrics: str,
    scale: MetricScale | None,
    *,
    higher_is_better: bool = True,
    kind: MetricKind = "task",
    guess_rule: GuessRule | None = None,
) -> list[_KnownMetric]:
    """Return the entries of metrics that are alike in all but their names.

    ``metrics`` lists them with commas between. Of each it gives all names with spaces between, first the one that
    Potentia uses: ``"acc accuracy, exact_match em"`` are two metrics with two names each.
    """
    known_metrics = []
    for names_of_metric in metrics.split(","):
        metric_names = names_of_metric.split()
        metric = Metric(
            name=metric_names[0], higher_is_better=higher_is_better, kind=kind, scale=scale
        )
        for metric_name in metric_names:
            known_metrics.append(_KnownMetric(_normalise_name(metric_name), metric, guess_rule))
    return known_metrics


def _normalise_name(metric_name: str) -> str:
    """Return a metric's name in lower case, its words joined by underscores, to look it up."""
    return re.sub(r"[\s_\-]+", "_", metric_name.strip().casefold()).strip("_")


def _drop_filter(metric_name: str) -> str:
    return re.split(r"[|,]", metric_name, maxsplit=1)[0]


_KNOWN = (
    *_make_known_metrics(
        "acc accuracy, acc_norm, acc_token, acc_bytes, exact_match em, r@1",
        "share",
        guess_rule="accuracy",
    ),
    *_make_known_metrics(
        "balanced_accuracy bal_acc, f1 f1_score, macro_f1 f1_macro, micro_f1 f1_micro, precision, recall",
        "share",
    ),
    *_make_known_metrics("token_f1, contains, rouge_l", "share"),
    *_make_known_metrics(
        "auc auroc roc_auc, pass@1 pass_at_1, math_verify, judge, meteor", "share"
    ),
    *_make_known_metrics("mcc matthews_correlation", "range", guess_rule="zero"),
    *_make_known_metrics("pearson pearsonr, spearman spearmanr, mt_bench mtbench", "range"),
    *_make_known_metrics("bleu sacrebleu, chrf, chrf++ chrfpp", "percent"),
    *_make_known_metrics("rouge1, rouge2, rougeL, win_rate winrate", None),
    *_make_known_metrics("elo, answer_margin", "unbounded"),
    *_make_known_metrics("answer_bpb answer_bits_per_byte", "unbounded", higher_is_better=False),
    *_make_known_metrics(
        "brier_score brier", "range", higher_is_better=False, guess_rule="one_minus_accuracy"
    ),
    *_make_known_metrics(
        "error_rate err error, ece calibration_error, pct_stereotype",
        "share",
        higher_is_better=False,
    ),
    *_make_known_metrics("hallucination_rate, toxicity", None, higher_is_better=False),
    *_make_known_metrics("ter", "percent", higher_is_better=False),
    *_make_known_metrics(
        "likelihood_diff, wer, cer, mae, mse, rmse, log_loss logloss, latency runtime",
        "unbounded",
        higher_is_better=False,
    ),
    *_make_known_metrics(
        "bits_per_byte bpb, bits_per_character bpc, perplexity ppl",
        "unbounded",
        higher_is_better=False,
        kind="text",
    ),
    *_make_known_metrics(
        "byte_perplexity, word_perplexity, nll, loss cross_entropy",
        "unbounded",
        higher_is_better=False,
        kind="text",
    ),
)
_PASS_AT_K = re.compile(r"pass(?:@|_at_|_@)(?P<k>[1-9][0-9]{0,5})")
_METRIC_BY_NAME = {entry.key: entry.metric for entry in _KNOWN}
_GUESS_RULE_BY_NAME = {entry.key: entry.guess_rule for entry in _KNOWN}

# The main metric of a task that has several and names none: the first of these that it has.
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
def find_known_metric(metric_name: str) -> Metric | None:
    """Return the metric that goes by this name, with or without a filter after it; None if Potentia knows none."""
    if not metric_name:
        return None
    key = _normalise_name(_drop_filter(metric_name))
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


def choose_main_metric(available: Iterable[str], usual: str | None = None) -> str | None:
    """Return the main metric of a task: the ``usual`` one of its benchmark, else a preferred one, else the first."""
    available_names = list(available)
    candidates = (usual, *PREFERRED, *available_names)
    return next((candidate for candidate in candidates if candidate in available_names), None)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a score was computed from; None if its source does not say it."""

    # fingerprint of the documents, their splits and the prompt
    data: str | None = field(
        default=None, metadata=_declare_column(stored_as="data", written_as="data_fingerprint")
    )
    # fingerprint of the fine-tuning; None if there was none
    recipe: str | None = field(
        default=None, metadata=_declare_column(stored_as="recipe", written_as="recipe_fingerprint")
    )
    # examples in the prompt
    shots: int | None = field(
        default=None, metadata=_declare_column(stored_as="shots", written_as="shots")
    )
    # fingerprint of weights and tokenizer
    model: str | None = field(
        default=None, metadata=_declare_column(stored_as="identity", written_as="model_fingerprint")
    )
    # the file that it was imported from
    source: str | None = field(
        default=None, metadata=_declare_column(stored_as="source", written_as="source")
    )
    # what computed it: how the model was loaded, scored and trained
    path: str | None = field(
        default=None, metadata=_declare_column(stored_as="path", written_as="path")
    )


UNKNOWN_ORIGIN = Origin()


def _list_columns(part: type[Metric] | type[Origin]) -> tuple[ScoreColumn, ...]:
    """Return the column of each field of a metric or an origin, in the order of the fields."""
    type_hints = get_type_hints(part)
    columns = []
    for declared_field in fields(part):
        type_hint = type_hints[declared_field.name]
        # of ``str | None`` the parts are str and NoneType
        type_parts = get_args(type_hint) or (type_hint,)
        is_literal = get_origin(type_parts[0]) is Literal
        columns.append(
            ScoreColumn(
                field=declared_field.name,
                stored_as=declared_field.metadata["stored_as"],
                written_as=declared_field.metadata["written_as"],
                kind=str if is_literal else type_parts[0],
                may_be_unknown=NoneType in type_parts,
            )
        )
    return tuple(columns)


METRIC_COLUMNS = _list_columns(Metric)
ORIGIN_COLUMNS = _list_columns(Origin)


class Measured(Protocol):
    """A score, or anything else that has a metric and an origin."""

    @property
    def metric(self) -> Metric:
        """What was measured."""

    @property
    def origin(self) -> Origin:
        """What it was computed from."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One reason why two scores of a task cannot be compared: what differs, and what it is in each."""

    property_name: str  # "metric", "data" …, as people read it
    first_value: str
    second_value: str

    def __str__(self) -> str:
        return f"{self.property_name} ({self.first_value} and {self.second_value})"


def find_differences(first_score: Measured, second_score: Measured) -> tuple[Difference, ...]:
    """Return what forbids comparing two scores of one task and protocol; empty if they may be compared.

    Every join, mean, pair and sentence asks here. What is unknown of either score forbids nothing.
    """
    differences = first_score.metric.find_differences(second_score.metric)
    compared_origins: tuple[tuple[str, str | int | None, str | int | None], ...] = (
        ("data", first_score.origin.data, second_score.origin.data),
        ("recipe", first_score.origin.recipe, second_score.origin.recipe),
        ("examples in the prompt", first_score.origin.shots, second_score.origin.shots),
    )
    for property_name, first_value, second_value in compared_origins:
        if first_value is None or second_value is None:
            continue
        if first_value != second_value:
            # twelve characters of a fingerprint are enough to see that it is another one
            differences.append(
                Difference(property_name, str(first_value)[:12], str(second_value)[:12])
            )
    return tuple(differences)


def fingerprint_recipe(settings: Mapping[str, object]) -> str | None:
    """Return the fingerprint of the settings of a fine-tuning; None if all of them are empty."""
    if not any(settings.values()):
        return None
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
