"""The end of a race on one task: who is best, how sure that is, and what would make it surer.

Rounds are decided on validation (``stats.first_place``), the end on the test documents by the rule of every ranking
(``rankings.decide``), so that a report on the same store says the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from potentia.analysis.rankings.decide import Ranking
from potentia.analysis.rankings.lead import MissingEvidence
from potentia.analysis.rankings.sentences import headline_sentence, missing_sentence
from potentia.analysis.wording import format_percent, format_plus_minus
from potentia.values.findings import Finding, Table, jsonable

Z = 1.959964  # half-width of a 95 % interval in standard errors


@dataclass(frozen=True)
class CandidateStanding:
    """One candidate at the end: scores with standard errors, its chance to be best, when it was dropped."""

    model: str
    direct: float
    direct_stderr: float
    tuned: float  # test score after tuning; NaN for those that were dropped before
    tuned_stderr: float
    validation: float
    p_best: float  # among the finalists; NaN for the others
    dropped_in_round: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class ModelChoice(Finding):
    """The answer: the best model for this data, how sure that is, and what it would take to be surer."""

    task: str
    metric: str
    ranking: Ranking  # of the finalists
    missing: MissingEvidence | None  # what would separate the first two
    p_dropped_best: float  # chance that a model dropped before the end would have been the best
    seconds: float  # spent in all
    more_seconds: float  # what scoring so many documents would take; NaN where unknown
    train_documents: int  # that the finalists were tuned on
    standings: tuple[CandidateStanding, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The model that is most likely the best."""
        return self.ranking.first

    @property
    def p_best(self) -> float:
        """Its chance."""
        return next(standing.p_best for standing in self.standings if standing.model == self.best)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, the best with its chance, and who is close to it."""
        content = {field.name: jsonable(getattr(self, field.name)) for field in fields(self)}
        return content | {
            "best": self.best,
            "p_best": self.p_best,
            "close": list(self.ranking.rivals),
        }

    def answer(self) -> str:
        """Say which model is the best for the data, how sure that is, and what would make it surer."""
        others = [standing for standing in self.standings if standing.model != self.best]
        if all(standing.problem for standing in others):
            count = len(self.standings)
            return (
                f"{self.best} is the only one of {count} that could be tuned: nothing was compared."
            )
        sentences = [headline_sentence(self.ranking)]
        if len(self.ranking.models) < 2:
            sentences = [f"{self.best} alone reached the end."]
        if self.missing is not None:
            sentences.append(missing_sentence(self.missing))
            if math.isfinite(self.more_seconds) and math.isfinite(self.missing.times):
                sentences.append(f"That is about {self.more_seconds:.0f} s of scoring.")
        dropped = sum(standing.dropped_in_round is not None for standing in self.standings)
        if dropped:
            models = "The model that was" if dropped == 1 else f"The {dropped} models that were"
            chance = format_percent(self.p_dropped_best)
            sentences.append(f"{models} dropped early had a chance of {chance} to be the best.")
        return " ".join(sentences)

    def tables(self) -> Sequence[Table]:
        """Return the candidates, best first."""
        rows = []
        for standing in self.standings:
            rows.append(
                (
                    standing.model,
                    format_plus_minus(standing.direct, Z * standing.direct_stderr),
                    format_plus_minus(standing.tuned, Z * standing.tuned_stderr),
                    standing.validation,
                    standing.p_best,
                    self._describe_state(standing),
                )
            )
        title = f"{self.task} ({self.metric}), tuned on {self.train_documents} documents"
        columns = ("model", "direct", "tuned", "validation", "P(best)", "")
        return [Table(title, columns, rows, " ".join([self.answer(), *self.notes]))]

    def _describe_state(self, standing: CandidateStanding) -> str:
        """Say how a candidate ended: dropped in a round, failed, best, close to it, or none of these."""
        if standing.dropped_in_round is not None:
            return f"out in round {standing.dropped_in_round}"
        if standing.problem:
            return standing.problem
        if standing.model == self.best:
            return "best"
        if standing.model in self.ranking.rivals:
            return "close"
        return ""
