"""How often each kind of sentence claims something where nothing is true: studies whose models do not differ.

    python bench/nulls.py --minutes 10 --workers 2 --out nulls.jsonl
    python bench/nulls.py --models 2 3 --tasks 1 5 --studies 200
    python bench/nulls.py --summary nulls.jsonl

Every study has models whose true scores are equal: task by task where tasks are few (what is said is said of these
tasks alone), on average over tasks where tasks are a sample (five or more: then each model has its better and worse
tasks). With families, models come in threes that resemble each other. Before and after tuning differ in nothing but
luck, so agreement does not change either. The sentences are those that commands print, and a claim is found in their
words. Printed: the share of studies with a false claim, for each kind of sentence, by models, tasks, test size, gaps
and families. Without errors nothing may be claimed at all. Exits with 1 where a share exceeds 5 % by more than three
standard errors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from as_they_go import write_lines
from potentia.analysis.rankings import compare_agreement, decide_ranking, sentences
from potentia.analysis.rankings.decide import ENOUGH_TASKS
from potentia.analysis.rankings.lead import measure_lead
from potentia.analysis.rankings.pair import compare_tasks
from potentia.analysis.stats.bootstrap import ResamplingUnits, Sampling
from potentia.values.scores import ScoreMatrix

MODELS, TASKS = (2, 3, 4, 6, 10, 20, 61), (1, 2, 3, 5, 12, 24)
SIZES = (100, 1_000, 100_000)
SPREAD = 0.05  # of a model's true score over tasks about its mean
ALLOWED = 0.05
WITHOUT_ERRORS = 2  # studies at each point without errors
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


PER_TASK = (
    "better on a task"  # said of single tasks, so judged where models are equal on every task
)


def settings(models: tuple[int, ...] = MODELS, tasks: tuple[int, ...] = TASKS) -> Iterator[Setting]:
    """Yield the grid."""
    for point in itertools.product(
        models, tasks, SIZES, (False, True), (False, True), (True, False)
    ):
        yield Setting(*point)


def study(
    at: Setting, rng: np.random.Generator, spread: float = SPREAD
) -> tuple[dict[str, ScoreMatrix], ResamplingUnits]:
    """Make direct and tuned scores of models that do not differ, and who is related to whom."""
    family = np.arange(at.models) // 3 if at.families else np.arange(at.models)
    names = [f"m{k}" for k in range(at.models)]
    found = {}
    for protocol in ("direct", "train_before_test"):
        truth = np.repeat(rng.uniform(0.35, 0.75, at.tasks)[None], at.models, axis=0)
        if at.tasks >= ENOUGH_TASKS:  # relatives are strong and weak on the same tasks
            own = spread * rng.normal(size=(at.models, at.tasks))
            shared = spread * rng.normal(size=(at.models, at.tasks))[family]
            truth = np.clip(truth + (0.9 * shared + 0.4 * own if at.families else own), 0.05, 0.95)
        values = rng.binomial(at.n, truth) / at.n
        if at.gaps:
            values[rng.random(values.shape) < 0.3] = np.nan
        error = (
            np.sqrt(values * (1 - values) / (at.n - 1))
            if at.errors
            else np.full(values.shape, np.nan)
        )
        found[protocol] = ScoreMatrix.build(
            names,
            [f"t{k}" for k in range(at.tasks)],
            values,
            stderr=error,
            n=np.full(values.shape, at.n),
            protocol=protocol,
        )
    kin = ResamplingUnits(
        "families", {m: f"f{k}" for m, k in zip(names, family.tolist(), strict=True)}
    )
    return found, kin


def spoken(
    scores: Mapping[str, ScoreMatrix], kin: ResamplingUnits, *, draws: int = 1_000
) -> list[str]:
    """Return what is said of a study: the headline, how far it holds, one pair, its tasks, and agreement."""
    tuned = scores["train_before_test"].benchmarks()
    said = []
    if tuned.shape[0] > 1:
        ranking = decide_ranking(tuned, draws=draws)
        said += [
            sentences.headline_sentence(ranking),
            *sentences.certainty_sentences(ranking, None, None),
        ]
        one, two = tuned.models[:2]  # named beforehand, as a user names them
        pairs = compare_tasks(tuned.select(models=[one, two]), {})
        lead = measure_lead(ranking, tuned, None, one, two)
        if lead is not None and pairs:
            said += sentences.pair_sentences(lead, tuned.protocol, pairs, None)
        before = scores["direct"].benchmarks()
        if (
            min(len(before.tasks), len(tuned.tasks)) > 1
            and len(set(before.models) & set(tuned.models)) > 1
        ):
            change = compare_agreement(before, tuned, sampling=Sampling(units=kin, resamples=200))
            said.append(sentences.agreement_sentence(change, None) or "")
    return said


def claims_of(at: Setting, k: int, seed: int = 0) -> dict[str, bool]:
    """Make the k-th study of a setting; return, for each kind of sentence that is judged by it, whether it claims.

    Every other study of five tasks or more has models that are equal on every task, as all of fewer tasks.
    """
    rng = np.random.default_rng(
        [seed, k, at.models, at.tasks, at.n, at.gaps, at.families, at.errors]
    )
    alike = k % 2 == 1 or at.tasks < ENOUGH_TASKS
    text = " ".join(spoken(*study(at, rng, 0.0 if alike else SPREAD)))
    # With gaps, few tasks may be left of one: what is said then is said of these alone.
    judged = [kind for kind in CLAIMS if alike or (kind != PER_TASK and not at.gaps)]
    return {kind: bool(re.search(CLAIMS[kind], text)) for kind in judged}


def false_claims(at: Setting, studies: int, seed: int = 0) -> dict[str, float]:
    """Return the share of studies in which each kind of sentence claims something."""
    found: dict[str, list[bool]] = {kind: [] for kind in CLAIMS}
    for k in range(studies):
        for kind, claimed in claims_of(at, k, seed).items():
            found[kind].append(claimed)
    return {kind: float(np.mean(claims)) for kind, claims in found.items()}


def limit(studies: int) -> float:
    """The share of false claims that three standard errors allow."""
    return ALLOWED + 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / studies)


def units(models: tuple[int, ...], tasks: tuple[int, ...]) -> Iterator[tuple[Setting, int]]:
    """Yield studies without end: the whole grid in random order, again and again, so that a part covers it evenly."""
    grid = list(settings(models, tasks))
    for k in itertools.count():
        for place in np.random.default_rng(k).permutation(len(grid)):
            if grid[place].errors or k < WITHOUT_ERRORS:
                yield grid[place], k


def one(unit: tuple[Setting, int]) -> str:
    """Judge one study; return it as a line of JSON."""
    at, k = unit
    return json.dumps({"at": asdict(at), "study": k, "claims": claims_of(at, k)})


def run(args: argparse.Namespace) -> None:
    """Judge studies until the time is over, or each point has so many."""
    todo = units(tuple(args.models), tuple(args.tasks))
    if args.studies is not None:
        todo = itertools.takewhile(lambda unit: unit[1] < args.studies, todo)
    write_lines(one, todo, args.out, workers=args.workers, minutes=args.minutes)


def summary(path: str) -> bool:
    """Print the share of false claims ± its Monte-Carlo error, by every side of the grid; say whether all are rare."""
    lines = [
        json.loads(line)
        for line in Path(path).read_text(encoding="utf-8").splitlines()
        if line.endswith("}")
    ]
    known = [line for line in lines if line["at"]["errors"]]
    bare = [any(line["claims"].values()) for line in lines if not line["at"]["errors"]]
    print(
        f"{len(known):,} studies with errors; {len(bare):,} without, of which {sum(bare)} claimed anything\n"
    )
    good = not any(bare)
    sides = [("models", "tasks"), ("models",), ("tasks",), ("n",), ("gaps",), ("families",), ()]
    for side in sides:
        print(f"{' × '.join(side) or 'all':>16}  " + "  ".join(f"{kind:>22}" for kind in CLAIMS))
        places = sorted({tuple(line["at"][name] for name in side) for line in known})
        for place in places:
            here = [
                line["claims"]
                for line in known
                if tuple(line["at"][name] for name in side) == place
            ]
            row = []
            for kind in CLAIMS:
                judged = [claims[kind] for claims in here if kind in claims]
                share, count = float(np.mean(judged)) if judged else math.nan, max(len(judged), 1)
                over = share > limit(count)
                good &= not over
                row.append(
                    f"{share:.3f} ± {math.sqrt(max(share * (1 - share), 1e-9) / count):.3f}{' !' if over else '  '}"
                )
            print(f"{' × '.join(map(str, place)):>16}  " + "  ".join(f"{cell:>22}" for cell in row))
        print()
    print("!: above 5 % by more than three standard errors.")
    return good


def main() -> int:
    """Run, or sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", default="nulls.jsonl", help="a line for each study, written as it is done"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--studies", type=int, help="at each point, at most")
    parser.add_argument("--models", type=int, nargs="+", default=list(MODELS))
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS))
    parser.add_argument(
        "--summary", metavar="FILE", help="sum up what a run wrote, and run nothing"
    )
    args = parser.parse_args()
    if args.summary is None:
        run(args)
    return 0 if summary(args.summary or args.out) else 1


if __name__ == "__main__":
    sys.exit(main())
