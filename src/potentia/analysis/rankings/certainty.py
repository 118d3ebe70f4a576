"""How much more testing would tell the first model from its rivals.

The difference of two models in the overall ranking is a weighted sum of their differences on the tasks. Its variance
has two parts: the noise of the tests, which falls with the number of test documents, and the spread of the difference
over tasks, which falls only with the number of tasks. The rank intervals draw noise onto scores that carry noise
already, so it counts twice where there are several tasks. Solved for the test that finds the difference as it is now
four times in five (as everywhere: 1.96 + 0.84 standard errors), this says how many documents, or tasks, are missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from potentia.analysis.stats.significance import POWER
from potentia.values.scores import Floats, ScoreMatrix

MOST_DOCUMENTS = 100.0  # times as many as there are: more are out of reach
MOST_TASKS = 10.0


@dataclass(frozen=True)
class Missing:
    """What would tell the first model from this rival; ``documents`` and ``tasks`` are more than there are now."""

    rival: str
    times: float  # as many test documents; infinite where the choice of tasks alone could change the order
    documents: int | None  # per task; None where their number is not known, or none would do
    tasks: int | None  # where documents alone would not do; None beyond reach
    several: bool  # tasks there are

    def sentence(self, first: str, rival: str) -> str:
        """Say it, in the names given."""
        pair = f"{first} from {rival} four times in five"
        if math.isfinite(self.times):
            amount = (
                f"About {self.documents:,} more test documents a task ({self.times:.2g} times as many)"
                if self.documents
                else f"About {self.times:.2g} times as many test documents"
            )
            return f"{amount} would tell {pair}."
        if self.tasks is None and self.several:
            return (
                f"Which of {first} and {rival} is better on tasks like these no test in reach would tell: they are "
                "ahead on different tasks."
            )
        if self.tasks is None:
            return f"{first} and {rival} are as good as equal here: no test in reach would tell them apart."
        more = "one more task" if self.tasks == 1 else f"about {self.tasks:,} more tasks"
        return f"More test documents alone would not tell {pair}, since the tasks disagree; {more} like these would."


def what_is_missing(
    matrix: ScoreMatrix,
    weights: Floats,
    first: str,
    rivals: tuple[str, ...],
    sizes: Mapping[str, float],
    *,
    level: float,
) -> Missing | None:
    """Return what it takes to tell the first model from the rival that is hardest to tell from it.

    ``weights`` (tasks,) are those of the ranking on the tasks' own scales; ``sizes`` the number of test documents.
    None where a standard error is not known.
    """
    found = [_of_rival(matrix, weights, first, rival, sizes, level) for rival in rivals]
    told = [missing for missing in found if missing is not None]
    return max(told, key=_hardness) if told else None


def _hardness(missing: Missing) -> tuple[float, float]:
    return missing.times, math.inf if missing.tasks is None else float(missing.tasks)


def _of_rival(
    matrix: ScoreMatrix, weights: Floats, first: str, rival: str, sizes: Mapping[str, float], level: float
) -> Missing | None:
    pair = matrix.select(models=[first, rival])
    both: npt.NDArray[np.bool_] = np.isfinite(pair.values).all(axis=0)  # type: ignore[assignment]
    if not both.any() or not np.isfinite(pair.stderr[:, both]).all():
        return None
    tasks = int(both.sum())
    parts = weights[both] * (pair.oriented()[0] - pair.oriented()[1])[both]  # they sum to the difference
    noise = float((weights[both] ** 2 * (pair.stderr[:, both] ** 2).sum(axis=0)).sum())
    spread = tasks * float(np.var(parts, ddof=1)) if tasks > 1 else 0.0
    choice, noise = max(0.0, spread - noise), noise * (2 if tasks > 1 else 1)
    allowed = (float(parts.sum()) / float(norm.ppf(0.5 + level / 2) + norm.ppf(POWER))) ** 2
    if allowed > choice and noise > 0:
        times = noise / (allowed - choice)
        if times <= 1:  # the intervals are simulated, and this close they may differ from the formula
            return None
        if times <= MOST_DOCUMENTS:
            known = [sizes[t] for t, there in zip(pair.tasks, both.tolist(), strict=True) if there and t in sizes]
            more = math.ceil((times - 1) * float(np.median(known))) if known else None
            return Missing(rival, times, None if more is None else _two_digits(more), None, tasks > 1)
    wanted = tasks * (choice + noise) / allowed if allowed > 0 else math.inf
    reach = tasks > 1 and wanted <= MOST_TASKS * tasks
    return Missing(rival, math.inf, None, max(1, math.ceil(wanted) - tasks) if reach else None, tasks > 1)


def _two_digits(count: int) -> int:
    """Round up to two digits: nobody knows more."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // unit) * unit
