"""When not to trust a prediction: probabilities that mean what they say, and a threshold below which a person looks.

Fine-tuned models are often too sure. One number, a temperature, divides what the metric compares choices by
(``values.choices``) so that the right answers get as much probability as they deserve (Guo et al. 2017). It is fitted
on tested rows, each answered by a model that did not see it, and used only where it helps on rows that it was not
fitted on. Whatever is reported is measured on such rows; rows that share a passage are held out together, and count as
one cluster in the interval. ``potentia select`` measures it of its winner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from potentia.analysis.stats import wilson_interval
from potentia.analysis.wording import format_percent
from potentia.values.choices import compute_choice_logits
from potentia.values.clusters import LEAST_CLUSTERS, Clusters, clustered_error
from potentia.values.findings import Finding, Interval, Table, TableValue
from potentia.values.scores import Floats, ItemOutcome

TEMPERATURES = (0.05, 20.0)
FEWEST_ROWS = 20  # tested rows from which on anything is said
FEWEST_WRONG = (
    5  # wrong answers, from which on it is said that probabilities do not tell them from right ones
)
GROUPS = 5  # in which rows are held out where there are no folds
MOST_SENT = 0.5  # share of the rows that may go to a person
BINS = 10
LEAST_PROBABILITY = 1e-300  # that has a logarithm

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TestedAnswer:
    """One tested row: what its choices are compared by, which of them is right, and the fold that it was tested in.

    Rows with the same ``cluster`` share a passage; it is empty where a row stands alone.
    """

    __test__ = False  # no class of tests

    logits: tuple[float, ...]
    right: int
    fold: int = 0
    cluster: str = ""


@dataclass(frozen=True)
class Trust(Finding):
    """How far the probabilities of a model can be trusted."""

    rows: int
    accuracy: float
    temperature: float
    error_before: float  # expected calibration error of the probabilities without a temperature
    error_after: float  # with the temperature, on rows that it was not fitted on
    threshold: float | None  # of the probability, below which a person looks; None where none helps
    sent: float  # share of the rows below it
    accuracy_above: Interval

    def sentence(self, classifier: str = "") -> str:
        """Say what to send to a person, and how right the rest is; ``classifier`` names whose predictions these are."""
        whose = f" of {classifier}" if classifier else ""
        if self.threshold is None:
            if self.accuracy >= 1.0:
                return "Every tested row was answered correctly: no need to send any to a person."
            wrong = round(self.rows * (1.0 - self.accuracy))
            if wrong < FEWEST_WRONG:
                answered = f"{wrong} of {self.rows} tested rows got a wrong answer"
                source = f" from {classifier}" if classifier else ""
                return f"{answered}{source}: too few to choose a threshold by."
            return (
                f"The probabilities{whose} do not tell right answers from wrong ones:"
                " check all of them, or none."
            )
        return (
            f"Send predictions{whose} with a probability below {self.threshold:.2f} to a person"
            f" ({format_percent(self.sent)} of the rows): {self.accuracy_above.value:.0%} of the others are right"
            f" ({self.accuracy_above.low:.0%} to {self.accuracy_above.high:.0%}),"
            f" against {self.accuracy:.0%} of all rows."
        )

    def tables(self) -> Sequence[Table]:
        """Return the figures."""
        table_rows: list[tuple[TableValue, ...]] = [
            ("tested rows", self.rows),
            ("accuracy", self.accuracy),
            ("temperature", self.temperature),
            ("calibration error, uncalibrated", self.error_before),
            ("calibration error, calibrated", self.error_after),
            ("threshold", self.threshold),
            ("share sent to a person", self.sent),
            ("accuracy above the threshold", self.accuracy_above.value),
        ]
        return [Table("When not to trust it", ("", "value"), table_rows, self.sentence())]


def answers_from_items(
    items: Sequence[ItemOutcome], metric: str, fold: int = 0
) -> list[TestedAnswer]:
    """Return the tested rows of a multiple-choice result, by its metric; none of a generated one."""
    answers = []
    for outcome in items:
        choices = outcome.detail.get("choices")
        logprobs = outcome.detail.get("logprobs")
        if not choices or not logprobs or outcome.gold not in choices:
            continue
        values = [float(value) for value in logprobs[: len(choices)]]
        if len(values) == len(choices) and np.isfinite(values).all():
            logits = compute_choice_logits(metric, choices, values)
            right = list(choices).index(outcome.gold)
            answers.append(TestedAnswer(tuple(logits), right, fold, outcome.cluster))
    return answers


def explain_no_trust(answers: Sequence[TestedAnswer]) -> str:
    """Say why there is no threshold where too few rows were tested; empty where there are enough, or none at all."""
    clusters = _find_row_clusters(answers)
    if not answers or (len(answers) >= FEWEST_ROWS and clusters.count >= GROUPS):
        return ""
    rows = "1 tested row is" if len(answers) == 1 else f"{len(answers)} tested rows are"
    return f"{rows} too few to say which predictions a person should check."


def measure_trust(answers: Sequence[TestedAnswer]) -> Trust | None:
    """Fit temperature and threshold on tested rows; None where there are too few, or too few passages."""
    clusters = _find_row_clusters(answers)
    if len(answers) < FEWEST_ROWS or clusters.count < GROUPS:
        return None
    rows = _TestedRows.stack(answers)
    groups = hold_out_groups(answers)
    uncalibrated = _hold_out_each_group(rows, groups, calibrate=False)
    chosen = _hold_out_each_group(rows, groups, calibrate=True)
    temperature = rows.fit_temperature()
    if not chosen.is_better_than(uncalibrated):
        chosen = uncalibrated
        temperature = 1.0
    threshold = None
    if chosen.has_threshold and 0 < chosen.is_above.sum() < len(answers):
        threshold = choose_threshold(rows.top_probabilities(temperature), rows.is_right)
    is_above = np.ones(len(answers), dtype=bool) if threshold is None else chosen.is_above
    clusters_above = Clusters.from_labels(clusters.numbers[is_above].tolist())
    return Trust(
        rows=len(answers),
        accuracy=float(rows.is_right.mean()),
        temperature=temperature,
        error_before=uncalibrated.calibration_error,
        error_after=chosen.calibration_error,
        threshold=threshold,
        sent=1.0 - float(is_above.mean()),
        accuracy_above=_measure_accuracy(rows.is_right[is_above], clusters_above),
    )


def fit_temperature(answers: Sequence[TestedAnswer]) -> float:
    """Return the temperature under which the right answers are likeliest; 1 where all are right, or all wrong."""
    return _TestedRows.stack(answers).fit_temperature()


@dataclass(frozen=True)
class _TestedRows:
    """Tested rows as arrays; rows with fewer choices than others end with minus infinity."""

    logits: Floats  # (rows, choices)
    right: Positions  # (rows,)

    @classmethod
    def stack(cls, answers: Sequence[TestedAnswer]) -> _TestedRows:
        """Return the arrays of these rows."""
        most_choices = max(len(answer.logits) for answer in answers)
        logits = np.full((len(answers), most_choices), -np.inf)
        for row, answer in enumerate(answers):
            logits[row, : len(answer.logits)] = answer.logits
        return cls(logits, np.array([answer.right for answer in answers]))

    def select(self, is_selected: Mask) -> _TestedRows:
        """Return some of the rows."""
        return _TestedRows(self.logits[is_selected], self.right[is_selected])

    @property
    def is_right(self) -> Mask:
        """Which rows were answered rightly."""
        return np.asarray(self.logits.argmax(axis=1) == self.right)

    def soften(self, temperature: float) -> Floats:
        """Return the probabilities of the choices, with their logits divided by a temperature."""
        highest = self.logits.max(axis=1, keepdims=True)
        weights = np.exp((self.logits - highest) / temperature)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def top_probabilities(self, temperature: float) -> Floats:
        """Return the probability of each row's answer."""
        return np.asarray(self.soften(temperature).max(axis=1))

    def losses(self, temperature: float) -> Floats:
        """Return minus the log-probability of each row's right choice."""
        probabilities = self.soften(temperature)[np.arange(len(self.right)), self.right]
        return np.asarray(-np.log(np.maximum(probabilities, LEAST_PROBABILITY)))

    def fit_temperature(self) -> float:
        """Return the temperature under which the right answers are likeliest; 1 where all are right, or all wrong."""
        if self.is_right.all() or not self.is_right.any():  # any extreme fits
            return 1.0
        low, high = np.log(TEMPERATURES)
        fitted = minimize_scalar(
            lambda log_temperature: float(self.losses(math.exp(log_temperature)).mean()),
            bounds=(low, high),
            method="bounded",
        )
        return float(np.exp(fitted.x))


@dataclass(frozen=True)
class _HeldOutResult:
    """How temperatures and thresholds do on rows that they were not fitted on."""

    log_loss: float  # mean over the rows, of the right answer
    calibration_error: float
    is_above: Mask  # rows whose answer is surer than the threshold
    has_threshold: bool  # in every group

    def is_better_than(self, other: _HeldOutResult) -> bool:
        """Whether the right answers are likelier, and the probabilities no less true."""
        return self.log_loss < other.log_loss and self.calibration_error <= other.calibration_error


def _hold_out_each_group(rows: _TestedRows, groups: Floats, *, calibrate: bool) -> _HeldOutResult:
    """Fit on all groups of rows but one, and measure on that one, for each of them in turn."""
    probabilities = np.empty(len(groups))
    losses = np.empty(len(groups))
    is_above = np.zeros(len(groups), dtype=bool)
    has_threshold = True
    for group in np.unique(groups):
        is_held_out = groups == group
        fitted = rows.select(~is_held_out)
        held_out = rows.select(is_held_out)
        temperature = fitted.fit_temperature() if calibrate else 1.0
        threshold = choose_threshold(fitted.top_probabilities(temperature), fitted.is_right)
        probabilities[is_held_out] = held_out.top_probabilities(temperature)
        losses[is_held_out] = held_out.losses(temperature)
        if threshold is None:
            has_threshold = False
        else:
            is_above[is_held_out] = probabilities[is_held_out] >= threshold
    return _HeldOutResult(
        log_loss=float(losses.mean()),
        calibration_error=calibration_error(probabilities, rows.is_right),
        is_above=is_above,
        has_threshold=has_threshold,
    )


def hold_out_groups(answers: Sequence[TestedAnswer]) -> Floats:
    """Return the group of each row: its fold, or where there is one fold, every fifth row or passage together."""
    folds = np.array([answer.fold for answer in answers], dtype=np.float64)
    if len(np.unique(folds)) > 1:
        return folds
    return np.asarray(_find_row_clusters(answers).numbers % GROUPS, dtype=np.float64)


def _find_row_clusters(answers: Sequence[TestedAnswer]) -> Clusters:
    """Return which rows share a passage."""
    label_by_row = {row: answer.cluster for row, answer in enumerate(answers)}
    return Clusters.of_examples(range(len(answers)), label_by_row)


def _measure_accuracy(right: Mask, clusters: Clusters) -> Interval:
    """Return the share of right rows with its interval, which rows that share a passage widen."""
    accuracy = float(right.mean())
    rows = float(len(right))
    if clusters.are_independent:
        return wilson_interval(accuracy, rows)
    independent_rows = float(clusters.count)
    if clusters.count >= LEAST_CLUSTERS and 0 < accuracy < 1:
        error = clustered_error(right, clusters)
        if error > 0:
            independent_rows = min(rows, accuracy * (1 - accuracy) / error**2)
    return wilson_interval(accuracy, independent_rows)


def choose_threshold(probabilities: Floats, right: Mask) -> float | None:
    """Return the lowest threshold above which the share of wrong answers is at most half of that among all.

    None where that would send more than half of the rows away, and where all answers are right.
    """
    target = 0.5 * (1.0 - float(np.mean(right)))
    if target <= 0:
        return None
    order = np.argsort(-probabilities, kind="stable")
    wrong = np.cumsum(~right[order])
    counts = np.arange(1, len(order) + 1)
    sorted_probabilities = probabilities[order]
    is_end = np.append(np.diff(sorted_probabilities) < 0, True)  # ties stay together
    is_fine = is_end & (wrong / counts <= target) & (counts >= (1 - MOST_SENT) * len(order))
    if not is_fine.any():
        return None
    last_fine = int(np.flatnonzero(is_fine)[-1])
    if last_fine + 1 >= len(order):
        return float(sorted_probabilities[last_fine])
    return float((sorted_probabilities[last_fine] + sorted_probabilities[last_fine + 1]) / 2)


def calibration_error(probabilities: Floats, right: Mask) -> float:
    """Return the expected calibration error: how far stated and true shares differ, over ten bins."""
    bin_numbers = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    error = 0.0
    for number in np.unique(bin_numbers):
        is_inside = bin_numbers == number
        calibration_gap = abs(
            float(probabilities[is_inside].mean()) - float(np.mean(right[is_inside]))
        )
        error += float(is_inside.mean()) * calibration_gap
    return error
