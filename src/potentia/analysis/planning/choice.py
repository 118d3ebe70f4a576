"""The end of a race on one task: whether a language model is worth it, which is best, and what would change that.

Rounds are decided on validation (``stats.first_place``), the end on the test examples by the rule of every ranking
(``rankings.decide``), so that a report on the same store says the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from potentia.analysis.benchmark.classification import BaselineVerdict, Classification
from potentia.analysis.benchmark.written import WrittenAnswers
from potentia.analysis.planning.learning_curve import LearningCurve
from potentia.analysis.planning.trust import Trust
from potentia.analysis.rankings.decide import Ranking
from potentia.analysis.rankings.lead import MissingEvidence
from potentia.analysis.rankings.sentences import headline_sentence, missing_sentence, seed_sentence
from potentia.analysis.stats import interval_of_score
from potentia.analysis.stats.non_inferiority import MarginVerdict, judge_margin
from potentia.analysis.wording import (
    format_difference,
    format_level,
    format_percent,
    format_range,
    join_names,
)
from potentia.study import Price
from potentia.values.findings import (
    Finding,
    Interval,
    Table,
    TableValue,
    ValuedText,
    short_names,
    to_json_values,
)
from potentia.values.scores import Score
from potentia.values.seeds import SeedSpread

MARGIN = 0.02  # that a smaller model may be worse by and still count as good
TIED = 0.02  # chances to be best that differ by no more are not told apart


def describe_seeds(spread: SeedSpread) -> str | None:
    """Say what another fine-tuning seed may change, with a command that a selection knows."""
    if spread.repeated == 0 and spread.fine_tuned > 0:
        return (
            "One seed; another may change this (--set seeds=3 fine-tunes every model with three)."
        )
    return seed_sentence(spread)


@dataclass(frozen=True)
class CandidateStanding:
    """One candidate at the end: its scores, its chance to be best, its size and speed, when it was dropped."""

    model: str
    direct: Score | None  # before fine-tuning
    tuned: Score | None  # after it; None for those that were dropped before the end
    p_best: float  # among the finalists; NaN for the others
    parameters: float = math.nan
    examples_per_second: float = math.nan  # that it predicts on this machine
    dropped_in_round: int | None = None
    problem: str = ""

    @property
    def examples(self) -> int:
        """The examples that it was tested on: after fine-tuning, or before where there was none."""
        score = self.direct if self.tuned is None else self.tuned
        return 0 if score is None else score.n


@dataclass(frozen=True)
class SmallerModel:
    """A smaller model that is not worse than the best by more than a margin."""

    model: str
    parameters: float
    best_parameters: float
    difference: Interval  # of its score over the best one's
    margin: float


def find_smaller_model(
    ranking: Ranking, parameters: Mapping[str, float], margin: float = MARGIN
) -> SmallerModel | None:
    """Return the smallest model that is not worse than the best by more than a margin; None where there is none.

    Of several smaller models one is named only where its interval holds for all of them together (Bonferroni).
    """
    best_model = ranking.first
    if not ranking.can_claim or not math.isfinite(parameters.get(best_model, math.nan)):
        return None
    smaller_models = [
        model
        for model in ranking.models
        if parameters.get(model, math.nan) < parameters[best_model]
    ]
    tail_share = (1 - ranking.level) / 2 / max(1, len(smaller_models))
    candidates = []
    for model in smaller_models:
        parameter_count = parameters[model]
        # below 0 where the smaller model is worse
        score_differences = ranking.draws_of(model) - ranking.draws_of(best_model)
        low, high = np.quantile(score_differences, [tail_share, 1 - tail_share])
        interval = Interval(
            float(score_differences.mean()), float(low), float(high), 1 - 2 * tail_share
        )
        if judge_margin(interval, margin) in (MarginVerdict.NOT_WORSE, MarginVerdict.BETTER):
            candidates.append(
                SmallerModel(model, parameter_count, parameters[best_model], interval, margin)
            )
    return min(candidates, key=lambda candidate: candidate.parameters, default=None)


@dataclass(frozen=True)
class ModelChoice(Finding):
    """The answer: the best model for this data, how sure that is, and what it would take to be surer."""

    task: str
    metric: str
    ranking: Ranking  # of the finalists
    missing: MissingEvidence | None  # what would separate the first two
    p_dropped_best: float  # chance that a model dropped before the end would have been the best
    seconds: float  # spent in all
    train_examples: int  # that the finalists were tuned on; 0 where no time was left for that
    test_examples: int
    standings: tuple[CandidateStanding, ...]
    notes: tuple[str, ...] = ()
    classification: Classification | None = None  # of labelled texts
    written: WrittenAnswers | None = None  # of written answers
    curve: LearningCurve | None = None  # what more training examples would change
    smaller: SmallerModel | None = None
    trust: Trust | None = None  # how far the probabilities of the best candidate can be trusted
    classifier_trust: Trust | None = None  # those of the cheap classifier to use in its place
    words_trust: Trust | None = None  # those of the classifier on words
    folds: int = 1  # that the finalists were tested in
    no_trust: str = ""  # why there is no threshold for what is to be used
    price: Price | None = None  # of an hour of the machine
    seeds: SeedSpread | None = None  # how far another fine-tuning seed moves a score

    @property
    def best(self) -> str:
        """The model that is most likely the best."""
        return self.ranking.first

    @property
    def p_best(self) -> float:
        """Its chance."""
        return self._standing_of(self.best).p_best

    @property
    def failed(self) -> tuple[str, ...]:
        """The candidates that failed, which nothing was compared with."""
        return tuple(standing.model for standing in self.standings if standing.problem)

    @property
    def are_shares(self) -> bool:
        """Whether the scores are shares of 1: people read their differences in points."""
        for standing in self.standings:
            score = standing.tuned or standing.direct
            if score is not None:
                return score.metric.has_unit_scale(score.value)
        return False

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        scores = [standing.tuned or standing.direct for standing in self.standings]
        return all(score.metric.higher_is_better for score in scores if score is not None)

    @property
    def uses_baseline(self) -> bool:
        """Whether something cheap is at least as good as every candidate."""
        classification = self.classification
        return classification is not None and classification.verdict is BaselineVerdict.LOSES

    @property
    def is_of_no_use(self) -> bool:
        """Whether no candidate does better than something cheap."""
        has_bad_answers = self.written is not None and self.written.verdict is BaselineVerdict.LOSES
        return self.uses_baseline or has_bad_answers

    def _standing_of(self, model: str) -> CandidateStanding:
        return next(standing for standing in self.standings if standing.model == model)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, the best with its chance, and who is close to it."""
        content = {field.name: to_json_values(getattr(self, field.name)) for field in fields(self)}
        return content | {
            "best": self.best,
            "p_best": self.p_best,
            "close": list(self.ranking.rivals),
        }

    def sentences(self) -> list[str]:
        """Say what to use, in the order a company asks: worth it, which, smaller, more labels, what to check."""
        sentences = []
        if self.classification is not None:
            sentences.append(self.classification.verdict_sentence())
        if self.written is not None:
            sentences += self.written.sentences()
        sentences += self._sentences_on_best()
        if self.smaller is not None:
            sentences.append(self._smaller_sentence(self.smaller))
        if self.curve is not None:
            sentences.append(self.curve.sentence(self.best))
        sentences.append(self._trust_sentence())
        if self.price is not None:
            sentences.append(self._cost_sentence(self.price))
        return [sentence for sentence in sentences if sentence]

    def _trust_sentence(self) -> str:
        """Say which predictions of what is to be used a person should check; empty where they have no probability."""
        if self.uses_baseline and self.classification is not None:
            if self.classifier_trust is None:
                return self.no_trust
            return self.classifier_trust.sentence(self.classification.best_baseline_label)
        return self.no_trust if self.trust is None else self.trust.sentence()

    def answer(self) -> str:
        """Say the same in one paragraph."""
        return " ".join(self.sentences())

    def _sentences_on_best(self) -> list[str]:
        other_standings = [standing for standing in self.standings if standing.model != self.best]
        if all(standing.problem for standing in other_standings):
            count = len(self.standings)
            treated = "fine-tuned" if self.train_examples else "scored"
            return [
                f"{self.best} is the only one of {count} that could be {treated}: nothing was compared."
            ]
        sentences = []
        if self.train_examples == 0:
            sentences.append(
                "No candidate was fine-tuned: scores before fine-tuning do not say which is best after it."
            )
        sentences.append(self._headline())
        if self.failed:
            names = join_names(short_names(self.failed))
            sentences.append(
                f"{len(self.failed)} of {len(self.standings)} candidates failed and were not compared: {names}."
            )
        if self.missing is not None and len(self.ranking.models) > 1:
            sentences.append(missing_sentence(self.missing))
        dropped = sum(standing.dropped_in_round is not None for standing in self.standings)
        if dropped:
            models = "The model that was" if dropped == 1 else f"The {dropped} models that were"
            chance = format_percent(self.p_dropped_best)
            sentences.append(
                f"{models} dropped early had a chance of {chance} to be the best, by the scores of that round."
            )
        about_seeds = None if self.seeds is None else describe_seeds(self.seeds)
        if about_seeds is not None and len(self.ranking.models) > 1:
            sentences.append(about_seeds)
        return sentences

    def _headline(self) -> str:
        if len(self.ranking.models) < 2:
            return f"{self.best} alone reached the end."
        tied_models = self._tied_models()
        if len(tied_models) > 1:
            names = short_names(tied_models)
            return f"{join_names(names)} are not significantly different here: each may be the best candidate."
        return headline_sentence(self.ranking)

    def _tied_models(self) -> list[str]:
        """Return the models whose chances to be best cannot be told from that of the best."""
        chances = dict(zip(self.ranking.models, self.ranking.p_first.tolist(), strict=True))
        highest = max(chances.values(), default=math.nan)
        return [model for model, chance in chances.items() if chance >= highest - TIED]

    def _smaller_sentence(self, smaller: SmallerModel) -> str:
        smaller_name, best_name = short_names([smaller.model, self.best])
        times = smaller.best_parameters / smaller.parameters
        level = format_level(smaller.difference.level)
        in_points = self.are_shares
        margin = format_difference(smaller.margin, in_points=in_points)
        difference = format_difference(smaller.difference.value, in_points=in_points, sign=True)
        interval_text = format_range(
            smaller.difference.low, smaller.difference.high, in_points=in_points, sign=True
        )
        speeds = [
            self._standing_of(model).examples_per_second for model in (smaller.model, self.best)
        ]
        speed = ""
        if all(map(math.isfinite, speeds)) and speeds[0] > speeds[1]:
            speed = f" and {speeds[0] / speeds[1]:.1f} times as fast"
        return (
            f"{smaller_name} is as good within {margin} (difference {difference}, {level} interval {interval_text}),"
            f" {times:.1f} times smaller than {best_name}{speed}."
        )

    def _cost_sentence(self, price: Price) -> str:
        """Say what the selection cost, and what 1,000 predictions of the best model cost."""
        sentence = f"This selection cost {price.format(self.seconds)} ({price})"
        speed = self._standing_of(self.best).examples_per_second
        if math.isfinite(speed):
            (best_name,) = short_names([self.best])
            sentence += f"; 1,000 predictions of {best_name} cost {price.format(1000 / speed)}"
        return f"{sentence}."

    def tables(self) -> Sequence[Table]:
        """Return the candidates, best first, and what more training examples would change."""
        table_rows: list[tuple[TableValue, ...]] = []
        names = short_names([standing.model for standing in self.standings])
        for model_name, standing in zip(names, self.standings, strict=True):
            table_rows.append(
                (
                    model_name,
                    _format_score(standing.direct),
                    _format_score(standing.tuned),
                    _format_chance(standing.p_best),
                    _format_parameters(standing.parameters),
                    _format_speed(standing.examples_per_second),
                    self._describe_state(standing),
                )
            )
        training = f"{self.train_examples} training examples"
        if self.folds > 1:
            training += f" in each of {self.folds} folds"
        if self.train_examples == 0:
            training = "before fine-tuning"
        direction = "" if self.higher_is_better else ", lower is better"
        title = f"{self.task} ({self.metric}{direction}): {training}, {self.test_examples} tested"
        column_names = ("model", "before", "after fine-tuning", "P(best)", "size", "predicts", "")
        frame_names = {
            "before": "direct",
            "size": "parameters",
            "predicts": "examples_per_second",
            "": "state",
        }
        notes = " ".join(self.notes)
        tables = [Table(title, column_names, table_rows, notes, frame_names=frame_names)]
        if self.written is not None:
            tables += self.written.tables()
        if self.curve is not None:
            tables += self.curve.tables()
        return tables

    def _describe_state(self, standing: CandidateStanding) -> str:
        """Say how a candidate ended: dropped in a round, failed, best, tied with it, close to it, or none of these."""
        if standing.dropped_in_round is not None:
            return f"dropped in round {standing.dropped_in_round}"
        if standing.problem:
            return standing.problem
        tied_models = self._tied_models()
        if standing.model in tied_models and len(tied_models) > 1:
            return "tied for best"
        if standing.model == self.best and len(self.failed) == len(self.standings) - 1:
            return "the only one left"
        if standing.model == self.best:
            return "best candidate" if self.is_of_no_use else "best"
        if standing.model in self.ranking.rivals:
            return "close"
        return ""


def _format_score(score: Score | None) -> str | None:
    """Write a score with its interval, which is honest at the ends: 0.000 (0.000 to 0.390)."""
    if score is None:
        return None
    interval = interval_of_score(score)
    if not math.isfinite(interval.low):
        return ValuedText(f"{score.value:.3f}", value=score.value)
    text = f"{score.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"
    return ValuedText(text, value=score.value, low=interval.low, high=interval.high)


def _format_chance(chance: float) -> str | None:
    return None if math.isnan(chance) else format_percent(chance)


def _format_parameters(parameters: float) -> str | None:
    if not math.isfinite(parameters):
        return None
    for unit_size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit_size:
            return ValuedText(f"{parameters / unit_size:.3g}{unit}", value=parameters)
    return ValuedText(f"{parameters:.0f}", value=parameters)


def _format_speed(examples_per_second: float) -> str | None:
    if not math.isfinite(examples_per_second):
        return None
    text = f"{examples_per_second:.2g}/s"
    if examples_per_second >= 10:
        text = f"{examples_per_second:,.0f}/s"
    return ValuedText(text, value=examples_per_second)
