"""Racing candidates on one task: who stays in, who is best and how sure that is, and what would make it surer.

Rounds are decided on validation (``stats.first``), the end on the test documents by the rule of every ranking
(``rankings.decide``), so that a report on the same store says the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from potentia.analysis.rankings.decide import Ranking
from potentia.analysis.rankings.pair import Missing
from potentia.analysis.rankings.sentences import headline, missing_sentence, percent
from potentia.values.findings import Finding, Table, jsonable

Z = 1.959964


@dataclass(frozen=True)
class Standing:
    """One candidate at the end: scores with standard errors, its chance to be best, where it went out."""

    model: str
    direct: float
    direct_stderr: float
    tuned: float  # test score after tuning; NaN for those that went out before
    tuned_stderr: float
    validation: float
    p_best: float  # among the finalists; NaN for the others
    out: int | None = None  # the round it went out in
    problem: str = ""


@dataclass(frozen=True)
class Choice(Finding):
    """The answer: the best model for this data, how sure that is, and what it would take to be surer."""

    task: str
    metric: str
    ranking: Ranking  # of the finalists
    missing: Missing | None  # what would separate the first two
    lost: float  # chance that a model dropped before the end would have been the best
    seconds: float  # spent in all
    more_seconds: float  # what scoring so many documents would take; NaN where unknown
    train: int  # documents that the finalists were tuned on
    standings: tuple[Standing, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> str:
        """The model that is most likely the best."""
        return self.ranking.first

    @property
    def p_best(self) -> float:
        """Its chance."""
        return next(s.p_best for s in self.standings if s.model == self.best)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, the best with its chance, and who is close to it."""
        found = {f.name: jsonable(getattr(self, f.name)) for f in fields(self)}
        return found | {"best": self.best, "p_best": self.p_best, "close": list(self.ranking.rivals)}

    def answer(self) -> str:
        """Say which model is the best for the data, how sure that is, and what would make it surer."""
        if all(s.problem for s in self.standings if s.model != self.best):
            return f"{self.best} is the only one of {len(self.standings)} that could be tuned: nothing was compared."
        alone = len(self.ranking.models) < 2
        told = [f"{self.best} alone reached the end." if alone else headline(self.ranking)]
        if self.missing is not None:
            told.append(missing_sentence(self.missing))
            if math.isfinite(self.more_seconds) and math.isfinite(self.missing.times):
                told.append(f"That is about {self.more_seconds:.0f} s of scoring.")
        dropped = sum(s.out is not None for s in self.standings)
        if dropped:
            models = "The model that was" if dropped == 1 else f"The {dropped} models that were"
            told.append(f"{models} dropped early had a chance of {percent(self.lost)} to be the best.")
        return " ".join(told)

    def tables(self) -> Sequence[Table]:
        """Return the candidates, best first."""
        rows = []
        for s in self.standings:
            state = s.problem or ("best" if s.model == self.best else "close" if s.model in self.ranking.rivals else "")
            state = f"out in round {s.out}" if s.out is not None else state
            scores = _span(s.direct, s.direct_stderr), _span(s.tuned, s.tuned_stderr)
            rows.append((s.model, *scores, s.validation, s.p_best, state))
        note = self.answer() + "".join(f" {note}" for note in self.notes)
        columns = ("model", "direct", "tuned", "validation", "P(best)", "")
        return [Table(f"{self.task} ({self.metric}), tuned on {self.train} documents", columns, rows, note)]


def _span(value: float, stderr: float) -> str | None:
    if not math.isfinite(value):
        return None
    return f"{value:.3f}" + (f" ± {Z * stderr:.3f}" if math.isfinite(stderr) else "")
