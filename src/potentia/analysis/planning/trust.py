"""When not to trust a prediction: probabilities that mean what they say, and a threshold below which a person looks.

Fine-tuned models are often too sure. One number, a temperature, divides the log-probabilities of the labels so that the
right answers get as much probability as they deserve (Guo et al. 2017). It is fitted on tested rows, each answered by a
model that did not see it. Whatever is reported of it is measured on other rows than it was fitted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from potentia.analysis.stats import wilson_interval
from potentia.analysis.wording import format_percent
from potentia.values.findings import Cell, Finding, Interval, Table
from potentia.values.scores import Floats, ItemOutcome

TEMPERATURES = (0.05, 20.0)
FEWEST_ROWS = 20  # tested rows from which on anything is said
GROUPS = 5  # in which rows are held out where there are no folds
MOST_SENT = 0.5  # share of the rows that may go to a person
BINS = 10


@dataclass(frozen=True)
class TestedAnswer:
    """One tested row: log-probabilities of its choices, which of them is right, and the fold that it was tested in."""

    __test__ = False  # no class of tests

    logprobs: tuple[float, ...]
    right: int
    fold: int = 0


@dataclass(frozen=True)
class Trust(Finding):
    """How far the probabilities of a model can be trusted."""

    rows: int
    accuracy: float
    temperature: float
    error_before: float  # expected calibration error of the probabilities as they come
    error_after: float  # with the temperature, on rows that it was not fitted on
    threshold: float | None  # of the probability, below which a person looks; None where none helps
    sent: float  # share of the rows below it
    accuracy_above: Interval

    def sentence(self) -> str:
        """Say what to send to a person, and how right the rest is."""
        if self.threshold is None:
            if self.accuracy >= 1.0:
                return "Every tested row was answered rightly: there is no need to send any to a person."
            return "The probabilities do not tell right answers from wrong ones: check all of them, or none."
        return (
            f"Send the unsure {format_percent(self.sent)} to a person (probability below"
            f" {self.threshold:.2f}): the others are right in {self.accuracy_above.value:.0%}"
            f" ({self.accuracy_above.low:.0%} to {self.accuracy_above.high:.0%}),"
            f" instead of {self.accuracy:.0%} of all."
        )

    def tables(self) -> Sequence[Table]:
        """Return the figures."""
        rows: list[tuple[Cell, ...]] = [
            ("tested rows", self.rows),
            ("accuracy", self.accuracy),
            ("temperature", self.temperature),
            ("calibration error, as it comes", self.error_before),
            ("calibration error, with the temperature", self.error_after),
            ("threshold", self.threshold),
            ("share sent to a person", self.sent),
            ("accuracy above the threshold", self.accuracy_above.value),
        ]
        return [Table("When not to trust it", ("", "value"), rows, self.sentence())]


def answers_from_items(items: Sequence[ItemOutcome], fold: int = 0) -> list[TestedAnswer]:
    """Return the tested rows of a cell that chooses; none where it writes."""
    answers = []
    for item in items:
        choices = item.detail.get("choices")
        logprobs = item.detail.get("logprobs")
        if not choices or not logprobs or item.gold not in choices:
            continue
        values = tuple(float(value) for value in logprobs[: len(choices)])
        if len(values) == len(choices) and np.isfinite(values).all():
            answers.append(TestedAnswer(values, list(choices).index(item.gold), fold))
    return answers


def measure_trust(answers: Sequence[TestedAnswer]) -> Trust | None:
    """Fit temperature and threshold on tested rows; None where there are too few."""
    if len(answers) < FEWEST_ROWS:
        return None
    groups = _hold_out_groups(answers)
    right = np.array([_is_right(answer) for answer in answers])
    plain = np.array([_top_probability(answer, 1.0) for answer in answers])
    calibrated = np.empty(len(answers))
    is_above = np.zeros(len(answers), dtype=bool)
    has_threshold = True
    for group in np.unique(groups):
        is_held_out = groups == group
        others = [answer for answer, held in zip(answers, is_held_out, strict=True) if not held]
        temperature = fit_temperature(others)
        other_probabilities = np.array([_top_probability(a, temperature) for a in others])
        threshold = choose_threshold(other_probabilities, right[~is_held_out])
        held_out = [answer for answer, held in zip(answers, is_held_out, strict=True) if held]
        calibrated[is_held_out] = [_top_probability(answer, temperature) for answer in held_out]
        if threshold is None:
            has_threshold = False
        else:
            is_above[is_held_out] = calibrated[is_held_out] >= threshold
    temperature = fit_temperature(answers)
    final = np.array([_top_probability(answer, temperature) for answer in answers])
    threshold = choose_threshold(final, right) if has_threshold else None
    above = int(is_above.sum())
    if threshold is None or not above or above == len(answers):
        threshold = None
        above = len(answers)
        is_above[:] = True
    return Trust(
        rows=len(answers),
        accuracy=float(right.mean()),
        temperature=temperature,
        error_before=calibration_error(plain, right),
        error_after=calibration_error(calibrated, right),
        threshold=threshold,
        sent=1.0 - above / len(answers),
        accuracy_above=wilson_interval(float(right[is_above].mean()), above),
    )


def _hold_out_groups(answers: Sequence[TestedAnswer]) -> Floats:
    """Return the group of each row: its fold, or where there is one fold, every fifth row together."""
    folds = np.array([answer.fold for answer in answers], dtype=np.float64)
    if len(np.unique(folds)) > 1:
        return folds
    return np.asarray(np.arange(len(answers)) % GROUPS, dtype=np.float64)


def _is_right(answer: TestedAnswer) -> bool:
    return int(np.argmax(answer.logprobs)) == answer.right


def soften(logprobs: Sequence[float], temperature: float) -> Floats:
    """Return the probabilities of the choices with their log-probabilities divided by a temperature."""
    scaled = np.asarray(logprobs, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return np.asarray(weights / weights.sum())


def _top_probability(answer: TestedAnswer, temperature: float) -> float:
    return float(soften(answer.logprobs, temperature).max())


def fit_temperature(answers: Sequence[TestedAnswer]) -> float:
    """Return the temperature under which the right answers are likeliest; 1 where all answers are of one kind."""
    outcomes = {_is_right(answer) for answer in answers}
    if len(outcomes) < 2:  # all right, or all wrong: any extreme fits
        return 1.0

    def mean_loss(log_temperature: float) -> float:
        temperature = float(np.exp(log_temperature))
        losses = [-np.log(max(soften(a.logprobs, temperature)[a.right], 1e-300)) for a in answers]
        return float(np.mean(losses))

    low, high = np.log(TEMPERATURES)
    fitted = minimize_scalar(mean_loss, bounds=(low, high), method="bounded")
    return float(np.exp(fitted.x))


def choose_threshold(probabilities: Floats, right: Floats) -> float | None:
    """Return the lowest threshold above which at most half as large a share of the answers is wrong.

    None where no threshold that sends at most half of the rows away does that.
    """
    target = 0.5 * (1.0 - float(np.mean(right)))
    if target <= 0:
        return None
    order = np.argsort(-probabilities, kind="stable")
    wrong = np.cumsum(~np.asarray(right, dtype=bool)[order])
    counts = np.arange(1, len(order) + 1)
    sorted_probabilities = probabilities[order]
    is_end = np.append(np.diff(sorted_probabilities) < 0, True)  # ties stay together
    is_fine = is_end & (wrong / counts <= target) & (counts >= (1 - MOST_SENT) * len(order))
    if not is_fine.any():
        return None
    last = int(np.flatnonzero(is_fine)[-1])
    if last + 1 >= len(order):
        return float(sorted_probabilities[last])
    return float((sorted_probabilities[last] + sorted_probabilities[last + 1]) / 2)


def calibration_error(probabilities: Floats, right: Floats) -> float:
    """Return the expected calibration error: how far stated and true shares differ, over ten bins."""
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    error = 0.0
    for number in np.unique(bins):
        is_inside = bins == number
        gap = abs(float(probabilities[is_inside].mean()) - float(np.mean(right[is_inside])))
        error += float(is_inside.mean()) * gap
    return error
