"""How often each kind of sentence claims something where nothing is true: studies whose models do not differ.

    OMP_NUM_THREADS=1 python bench/nulls.py --studies 20
    OMP_NUM_THREADS=1 python bench/nulls.py --models 2 3 --tasks 1 5 --studies 200

Every study has models whose true scores are equal: task by task where tasks are few (what is said is said of these
tasks alone), on average over tasks where tasks are a sample (five or more: then each model has its better and worse
tasks). With families, models come in threes that resemble each other. Before and after tuning differ in nothing but
luck, so agreement does not change either. The sentences are those that commands print, and a claim is found in their
words. Printed: the share of studies with a false claim, for each kind of sentence by models and tasks, over test sizes,
gaps, families and missing errors. Exits with 1 where a share exceeds 5 % by more than three standard errors.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from potentia.analysis.rankings import compare_agreement, decide, sentences
from potentia.analysis.rankings.decide import FEW_TASKS, lead_of
from potentia.analysis.rankings.pair import compare_tasks
from potentia.analysis.stats.bootstrap import Units
from potentia.values.scores import ScoreMatrix

MODELS, TASKS = (2, 3, 4, 6, 10, 20, 61), (1, 2, 3, 5, 12, 24)
SIZES = (100, 1_000, 100_000)
SPREAD = 0.05  # of a model's true score over tasks about its mean
ALLOWED = 0.05
CLAIMS = {
    "best": r"is the best of",
    "holds on other tasks": r"other tasks like these",
    "better": r"is better than",
    "better on a task": r"significantly better on",
    "agree more": r"agree (more|less) on",
}


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    models: int
    tasks: int
    n: int  # test documents
    gaps: bool
    families: bool
    errors: bool


PER_TASK = "better on a task"  # said of single tasks, so judged where models are equal on every task


def settings(models: tuple[int, ...] = MODELS, tasks: tuple[int, ...] = TASKS) -> Iterator[Setting]:
    """Yield the grid."""
    for point in itertools.product(models, tasks, SIZES, (False, True), (False, True), (True, False)):
        yield Setting(*point)


def study(at: Setting, rng: np.random.Generator, spread: float = SPREAD) -> tuple[dict[str, ScoreMatrix], Units]:
    """Make direct and tuned scores of models that do not differ, and who is related to whom."""
    family = np.arange(at.models) // 3 if at.families else np.arange(at.models)
    names = [f"m{k}" for k in range(at.models)]
    found = {}
    for protocol in ("direct", "train_before_test"):
        truth = np.repeat(rng.uniform(0.35, 0.75, at.tasks)[None], at.models, axis=0)
        if at.tasks >= FEW_TASKS:  # relatives are strong and weak on the same tasks
            own = spread * rng.normal(size=(at.models, at.tasks))
            shared = spread * rng.normal(size=(at.models, at.tasks))[family]
            truth = np.clip(truth + (0.9 * shared + 0.4 * own if at.families else own), 0.05, 0.95)
        values = rng.binomial(at.n, truth) / at.n
        if at.gaps:
            values[rng.random(values.shape) < 0.3] = np.nan
        error = np.sqrt(values * (1 - values) / (at.n - 1)) if at.errors else np.full(values.shape, np.nan)
        found[protocol] = ScoreMatrix.build(
            names, [f"t{k}" for k in range(at.tasks)], values, stderr=error, n=np.full(values.shape, at.n),
            protocol=protocol,
        )  # fmt: skip
    kin = Units("families", {m: f"f{k}" for m, k in zip(names, family.tolist(), strict=True)})
    return found, kin


def spoken(scores: Mapping[str, ScoreMatrix], kin: Units, *, draws: int = 1_000) -> list[str]:
    """Return what is said of a study: the headline, how far it holds, one pair, its tasks, and agreement."""
    tuned = scores["train_before_test"].benchmarks()
    said = []
    if tuned.shape[0] > 1:
        ranking = decide(tuned, draws=draws)
        said += [sentences.headline(ranking), *sentences.certainty(ranking, None, None)]
        one, two = tuned.models[:2]  # named beforehand, as a user names them
        pairs = compare_tasks(tuned.select(models=[one, two]), {})
        lead = lead_of(ranking, tuned, None, one, two)
        if lead is not None and pairs:
            said += sentences.pair_sentences(lead, tuned.protocol, pairs, None)
        before = scores["direct"].benchmarks()
        if min(len(before.tasks), len(tuned.tasks)) > 1 and len(set(before.models) & set(tuned.models)) > 1:
            change = compare_agreement(before, tuned, units=kin, resamples=200)
            said.append(sentences.agreement_sentence(change, None) or "")
    return said


def false_claims(at: Setting, studies: int, seed: int = 0) -> dict[str, float]:
    """Return the share of studies in which each kind of sentence claims something; every other one has no spread."""
    found: dict[str, list[bool]] = {kind: [] for kind in CLAIMS}
    for k in range(studies):
        rng = np.random.default_rng([seed, k, at.models, at.tasks, at.n, at.gaps, at.families, at.errors])
        alike = k % 2 == 1 or at.tasks < FEW_TASKS
        text = " ".join(spoken(*study(at, rng, 0.0 if alike else SPREAD)))
        for kind, words in CLAIMS.items():
            if alike or (
                kind != PER_TASK and not at.gaps
            ):  # with gaps, few tasks may be left: what holds of these alone
                found[kind].append(bool(re.search(words, text)))
    return {kind: float(np.mean(claims)) for kind, claims in found.items()}


def limit(studies: int) -> float:
    """The share of false claims that three standard errors allow."""
    return ALLOWED + 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / studies)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=20, help="at each of the 24 points of models × tasks")
    parser.add_argument("--models", type=int, nargs="+", default=list(MODELS))
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS))
    args = parser.parse_args()
    print(f"{'models':>6} {'tasks':>5} {'studies':>7}  " + "  ".join(f"{kind:>20}" for kind in CLAIMS))
    good = True
    for models, tasks in itertools.product(args.models, args.tasks):
        every = [(at, false_claims(at, args.studies)) for at in settings((models,), (tasks,))]
        known = [found for at, found in every if at.errors]
        count = args.studies * len(known)
        shares = {kind: float(np.mean([found[kind] for found in known])) for kind in CLAIMS}
        worst = {kind: max(found[kind] for found in known) for kind in CLAIMS}
        bad = any(share > limit(count // 2) for share in shares.values())
        bad |= any(max(found.values()) > 0 for at, found in every if not at.errors)
        good &= not bad
        row = "  ".join(f"{shares[k]:>9.3f} ({worst[k]:>6.2f})  " for k in CLAIMS)
        print(f"{models:>6} {tasks:>5} {count:>7}  {row}{'  TOO MANY' if bad else ''}", flush=True)
    print("In brackets: the worst of 12 settings (test size, gaps, families). Without errors: no claim at all.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
