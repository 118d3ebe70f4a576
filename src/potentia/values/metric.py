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
Scale = Literal[
    "share", "percent", "range", "unbounded"
]  # from 0 to 1, from 0 to 100, between other bounds, without
KINDS: tuple[Kind, ...] = get_args(Kind)
SCALES: tuple[Scale, ...] = get_args(Scale)
Guess = Literal[
    "share", "rest", "zero"
]  # what guessing scores: its accuracy, 1 − its accuracy, nothing


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
        known = known_metric(name) or cls()
        up = known.higher_is_better if higher_is_better is None else bool(higher_is_better)
        return cls(name, up, kind or known.kind, known.scale, chance)

    @property
    def is_text(self) -> bool:
        """Whether the score is of a text to predict rather than of a task."""
        return self.kind == "text"

    @property
    def plain(self) -> str:
        """The name without the filter behind it: ``exact_match|strict-match`` is ``exact_match``."""
        return re.split(r"[|,]", self.name, maxsplit=1)[0]

    @property
    def canonical(self) -> str:
        """The name by which metrics are compared: ``accuracy`` is ``acc``; a filter stays behind it."""
        known = known_metric(self.name)
        return (
            self.name
            if known is None
            else known.name + self.name.removeprefix(self.plain).replace(",", "|")
        )

    @property
    def guess(self) -> Guess | None:
        """What a guess scores by this metric; None where that is not known."""
        return _GUESS.get(
            _key(self.plain), None if self.name else "share" if self.higher_is_better else "rest"
        )

    def differences(self, other: Metric) -> list[tuple[str, str, str]]:
        """Return what keeps two metrics from being compared; what one of them does not know forbids nothing."""
        found = [
            (name, str(one), str(two))
            for name, what in (("metric", "canonical"), ("kind", "kind"), ("scale", "scale"))
            if (one := getattr(self, what)) and (two := getattr(other, what)) and one != two
        ]
        if self.higher_is_better != other.higher_is_better:
            words = {True: "higher is better", False: "lower is better"}
            found.append(("direction", words[self.higher_is_better], words[other.higher_is_better]))
        return found

    def merged(self, other: Metric) -> Metric:
        """Return the metric with what the other knows beyond it."""
        if self == other:
            return self
        gaps = {
            what: getattr(other, what)
            for what in ("name", "kind", "scale", "chance")
            if not getattr(self, what)
        }
        known = {what: value for what, value in gaps.items() if value is not None}
        return replace(self, **known) if known else self


def _known(
    metrics: str,
    scale: Scale | None,
    *,
    up: bool = True,
    kind: Kind = "task",
    guess: Guess | None = None,
) -> list[tuple[str, Metric, Guess | None]]:
    """Describe metrics, divided by commas: each by its name and the others that it goes by."""
    names = [metric.split() for metric in metrics.split(",")]
    return [
        (_key(name), Metric(first, up, kind, scale), guess)
        for first, *more in names
        for name in (first, *more)
    ]


def _key(name: str) -> str:
    return re.sub(r"[\s_\-]+", "_", name.strip().casefold()).strip("_")


_KNOWN = (
    *_known(
        "acc accuracy, acc_norm, acc_token, acc_bytes, exact_match em, r@1", "share", guess="share"
    ),
    *_known(
        "balanced_accuracy bal_acc, f1 f1_score, macro_f1 f1_macro, micro_f1 f1_micro, precision, recall",
        "share",
    ),
    *_known("auc auroc roc_auc, pass@1 pass_at_1, math_verify, judge, meteor", "share"),
    *_known("mcc matthews_correlation", "range", guess="zero"),
    *_known("pearson pearsonr, spearman spearmanr, mt_bench mtbench", "range"),
    *_known("bleu sacrebleu, chrf, chrf++ chrfpp", "percent"),
    *_known("rouge1, rouge2, rougeL, win_rate winrate", None),
    *_known("elo", "unbounded"),
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
_BY_NAME = {name: metric for name, metric, _ in _KNOWN}
_GUESS = {name: guess for name, _, guess in _KNOWN}

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
    key = _key(re.split(r"[|,]", name, maxsplit=1)[0])
    if key in _BY_NAME:
        return _BY_NAME[key]
    from potentia.extensions import ExtensionKind, has_extension, load_extension

    if has_extension(ExtensionKind.METRIC, key):
        registered: Metric = load_extension(ExtensionKind.METRIC, key)
        return registered
    return None


def main_metric(available: Iterable[str], usual: str | None = None) -> str | None:
    """Return the metric that speaks for a task: the benchmark's ``usual`` one, else a preferred one, else the first."""
    names = list(available)
    return next((name for name in (usual, *PREFERRED, *names) if name in names), None)


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
    hints = get_type_hints(part)
    columns = []
    for declared in fields(part):
        kinds = get_args(hints[declared.name]) or (hints[declared.name],)
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

    what: str
    one: str
    two: str

    def __str__(self) -> str:
        return f"{self.what} ({self.one} and {self.two})"


def comparable(one: Measured, two: Measured) -> tuple[Difference, ...]:
    """Return what forbids comparing two scores of one task and protocol; empty where they are alike.

    Every join, mean, pair and sentence asks here. What one side does not know forbids nothing.
    """
    found = [Difference(*parts) for parts in one.metric.differences(two.metric)]
    for what, name in (("data", "data"), ("recipe", "recipe"), ("shots", "examples in the prompt")):
        a, b = getattr(one.origin, what), getattr(two.origin, what)
        if a is not None and b is not None and a != b:
            found.append(Difference(name, str(a)[:12], str(b)[:12]))
    return tuple(found)


def recipe_fingerprint(settings: Mapping[str, Any]) -> str | None:
    """Return the fingerprint of how a model is tuned; None where nothing is said."""
    if not any(settings.values()):
        return None
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[
        :32
    ]
