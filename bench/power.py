"""How often "is the best" is said where it is true, beside the plain paired test that it is made of.

    python bench/power.py --studies 200

Studies have one model that leads the others by so much on average over tasks; every model has its better and worse
tasks (a spread of 0.05, or none: then all that varies over tasks is test noise), and 1,000 test examples a task. With
*answers* 200 examples a task are stored, some harder for all models than others. Columns: *said* is the share of
studies whose headline calls the leader the best, *another* that calls another model so; *paired t* is the share in
which Student's paired t test over tasks finds the leader better than each of the others at the 5 % level; *P(first)*
is the rule that was used before: a probability of first place of 97.5 %, from shrunk draws. Shares are ± their
Monte-Carlo error.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.stats import ttest_1samp

from potentia.analysis.rankings import CLAIM_PROBABILITY, decide_ranking
from potentia.values.scores import Floats, Outcomes, ScoreMatrix, TaskOutcomes

SPREAD = 0.05  # of a model's true score over tasks about its mean
EXAMPLES = 1_000
STORED_EXAMPLES = 200  # of a task, where answers are stored
DIFFICULTY = 2.0  # logits: how far these examples differ for all models alike
LOGITS_OF_A_SHARE = 6.0  # by which a lead in scores becomes one in logits, with such examples
LEVEL = 0.05


@dataclass(frozen=True)
class Setting:
    """A leader, and those behind it."""

    models: int
    tasks: int
    lead: float  # over the second
    pack: float = 0.0  # standard deviation of the others' means
    has_weak_model: bool = False  # one model more, far behind
    subsets: int = 1  # of every benchmark
    gaps: float = 0.0  # share of scores that are missing
    spread: float = SPREAD  # of every model over tasks
    has_answers: bool = False  # by example

    def describe(self) -> str:
        """Say what the setting is."""
        text = f"{self.models} × {self.tasks}, lead {self.lead:g}"
        if self.pack:
            text += f", others spread {self.pack:g}"
        if self.has_weak_model:
            text += ", and a weak model"
        if self.subsets > 1:
            text += f", {self.subsets} subsets a benchmark"
        if self.gaps:
            text += f", {self.gaps:.0%} missing"
        if not self.spread:
            text += ", no spread over tasks"
        if self.has_answers:
            text += ", answers"
        return text


SETTINGS = (
    Setting(2, 12, 0.05),
    Setting(4, 12, 0.05),
    Setting(4, 12, 0.05, has_weak_model=True),
    Setting(5, 12, 0.06),
    Setting(6, 8, 0.06, pack=0.03),
    Setting(10, 12, 0.06),
    Setting(10, 12, 0.08),
    Setting(10, 12, 0.05, pack=0.03),
    Setting(20, 24, 0.05),
    Setting(61, 24, 0.06, pack=0.05),
    Setting(10, 24, 0.08, subsets=4),
    Setting(10, 12, 0.08, gaps=0.2),
    Setting(2, 12, 0.015, spread=0.0),
    Setting(6, 12, 0.02, spread=0.0),
    Setting(2, 12, 0.04, spread=0.0, has_answers=True),
    Setting(6, 12, 0.05, spread=0.0, has_answers=True),
)


@dataclass(frozen=True)
class Study:
    """The scores of a study, and the answers behind them where they are stored."""

    matrix: ScoreMatrix
    outcomes: Outcomes


def draw_study(at: Setting, rng: np.random.Generator) -> Study:
    """Draw a study; the leader is ``m0``."""
    means = at.pack * rng.normal(size=at.models)
    means[0] = means[1:].max() + at.lead
    if at.has_weak_model:
        means = np.append(means, -0.25)
    benchmarks = math.ceil(at.tasks / at.subsets)
    own_effect = at.spread * rng.normal(size=(len(means), benchmarks))
    level = rng.uniform(0.35, 0.65, at.tasks)
    truth = level + means[:, None] + np.repeat(own_effect, at.subsets, axis=1)[:, : at.tasks]
    examples = EXAMPLES
    values = rng.binomial(EXAMPLES, np.clip(truth, 0.02, 0.98)) / EXAMPLES
    letters = "abcdefghijklmnopqrstuvwxyz"
    tasks = [f"{3 * letters[k // at.subsets]}_{k}" for k in range(at.tasks)]
    models = [f"m{k}" for k in range(len(means))]
    outcomes: Outcomes = {}
    if at.has_answers:
        examples = STORED_EXAMPLES
        right = answer_examples(truth, rng)
        values = right.mean(axis=2)
        for column, task in enumerate(tasks):
            answers = [dict(enumerate(row)) for row in right[:, column].tolist()]
            outcomes[task] = TaskOutcomes(dict(zip(models, answers, strict=True)))
    errors = np.sqrt(values * (1 - values) / (examples - 1))
    values[rng.random(values.shape) < at.gaps] = np.nan
    matrix = ScoreMatrix.build(
        models,
        tasks,
        values,
        stderr=errors,
        n=np.full(values.shape, examples),
        metrics=["acc"] * at.tasks,
    )
    return Study(matrix, outcomes)


def answer_examples(truth: Floats, rng: np.random.Generator) -> Floats:
    """Return which of the examples each model gets right: (models, tasks, examples)."""
    difficulty = DIFFICULTY * rng.normal(size=(1, truth.shape[1], STORED_EXAMPLES))
    ability = LOGITS_OF_A_SHARE * (truth - 0.5)[:, :, None]
    chances = 1 / (1 + np.exp(difficulty - ability))
    return (rng.random(chances.shape) < chances).astype(np.float64)


def wins_paired_tests(matrix: ScoreMatrix, subsets: int) -> bool:
    """Whether the leader is better than each of the others by paired t tests over benchmarks."""
    return all(_is_better(matrix.values[0] - row, subsets) for row in matrix.values[1:])


def _is_better(differences: Floats, subsets: int) -> bool:
    by_benchmark = np.array_split(differences, max(1, len(differences) // subsets))
    means = np.array([np.nanmean(part) for part in by_benchmark if np.isfinite(part).any()])
    return bool(means.mean() > 0 and ttest_1samp(means, 0.0).pvalue < LEVEL)


def measure_power(at: Setting, studies: int) -> list[float]:
    """Return the shares in which the leader is called the best, another is, and the two other rules would say it."""
    claims = []
    for number in range(studies):
        study = draw_study(at, np.random.default_rng([number, at.models, at.tasks]))
        ranking = decide_ranking(study.matrix, study.outcomes, draw_count=2_000)
        claims.append(
            (
                ranking.is_first_certain and ranking.first == "m0",
                ranking.is_first_certain and ranking.first != "m0",
                wins_paired_tests(study.matrix, at.subsets),
                float(np.max(ranking.p_first)) >= CLAIM_PROBABILITY,
            )
        )
    return np.mean(claims, axis=0).tolist()


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=200)
    args = parser.parse_args()
    print(f"{'models × tasks':<48}{'said':>14}{'another':>14}{'paired t':>14}{'P(first)':>14}")
    for at in SETTINGS:
        cells = []
        for share in measure_power(at, args.studies):
            error = math.sqrt(share * (1 - share) / args.studies)
            cells.append(f"{share:.2f} ± {error:.2f}")
        print(f"{at.describe():<48}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
