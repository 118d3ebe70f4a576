"""How often each kind of sentence claims something where it is not true.

    python bench/nulls.py --minutes 10 --workers 2 --out nulls.jsonl
    python bench/nulls.py --models 2 3 --tasks 1 5 --minutes 1
    python bench/nulls.py --summary nulls.jsonl

Every study is drawn at random from a grid of what goes wrong with independence in practice:

- models: independent, or families of three near copies;
- tasks: independent, or subsets of benchmarks (a model that is good at one subset is good at all of them);
- gaps: none, at random, or where the score is low;
- errors: right, half of what they should be, of all scores but one, or of none.

In *equal* studies no model is better than another: on each task where nothing can be said of other tasks, else on
average over tasks. Before and after tuning differ in nothing but luck. In *wider* studies models differ and every task
ranks them alike, before and after tuning; after it they are further apart, so that raw agreement rises by noise alone.
In *verdict* studies one benchmark is judged among others: unrelated to them, pure noise, or as sound as they are.

The sentences are those that commands print, and a claim is found in their words. Printed: the share of studies with a
false claim ± its Monte-Carlo error for each kind of sentence, by every side of the grid. Exits with 1 where a share
exceeds 5 % by more than three standard errors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from as_they_go import write_lines
from potentia.analysis.benchmark import judge_benchmark
from potentia.analysis.rankings import compare_agreement, decide_ranking, sentences
from potentia.analysis.rankings.decide import ENOUGH_TASKS
from potentia.analysis.rankings.lead import measure_lead
from potentia.analysis.rankings.pair import compare_tasks
from potentia.analysis.stats.bootstrap import ResamplingUnits, Sampling
from potentia.values.scores import Floats, ScoreMatrix

MODELS = (2, 3, 4, 6, 10, 20, 61)
TASKS = (1, 2, 3, 5, 12, 24)
SIZES = (100, 1_000, 100_000)
GAPS = ("none", "random", "low scores")
ERRORS = ("right", "halved", "one missing", "none")
STUDIES = ("equal", "wider", "unrelated", "noise", "sound")
STUDY_SHARES = (0.6, 0.1, 0.1, 0.1, 0.1)
SUBSETS = 4  # of one benchmark, where tasks come in families
SPREAD = 0.05  # of a model's true score over tasks about its mean
ALLOWED = 0.05
LOADING = 0.8  # correlation of every sound benchmark with what they have in common
TASK_CLAIM = "better on a task"
CLAIMS = {
    "best": r"is the best of",
    "holds on other tasks": r"other tasks like these",
    "better": r"is better than",
    TASK_CLAIM: r"significantly better on",
    "agree more": r"agree (more|less) on",
}
VERDICT_CLAIMS = {  # what a verdict may not say of a benchmark, by what the benchmark is
    "unrelated": ("said to agree", r"ranking agrees with the others"),
    "noise": ("noise kept", r"^keep"),
    "sound": ("sound accused", r"^(fix|drop)"),
}
KINDS = (*CLAIMS, *(kind for kind, _ in VERDICT_CLAIMS.values()))


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    study: str
    models: int
    tasks: int
    n: int  # test examples of a task
    families: bool = False  # models come in threes of near copies
    subsets: bool = False  # tasks come in subsets of benchmarks
    gaps: str = "none"
    errors: str = "right"

    @property
    def groups(self) -> int:
        """How many independent benchmarks there are."""
        return math.ceil(self.tasks / SUBSETS) if self.subsets else self.tasks

    @property
    def speaks_of_other_tasks(self) -> bool:
        """Whether there are enough benchmarks to speak of others."""
        return self.groups >= ENOUGH_TASKS

    def task_names(self) -> list[str]:
        """Return names by which subsets are known to be of one benchmark."""
        if not self.subsets:
            return [f"t{k}" for k in range(self.tasks)]
        letters = "abcdefghijklmnopqrstuvwxyz"
        return [f"{3 * letters[k // SUBSETS]}_{k % SUBSETS}" for k in range(self.tasks)]

    def family_of_models(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the family of every model."""
        return np.arange(self.models) // 3 if self.families else np.arange(self.models)


def draw_setting(rng: np.random.Generator, models: Sequence[int], tasks: Sequence[int]) -> Setting:
    """Draw a point of the grid."""
    study = str(rng.choice(STUDIES, p=STUDY_SHARES))
    return Setting(
        study=study,
        models=int(rng.choice(models)),
        tasks=int(rng.choice(tasks)),
        n=int(rng.choice(SIZES)),
        families=bool(rng.integers(2)),
        subsets=bool(rng.integers(2)),
        gaps=str(rng.choice(GAPS, p=(0.5, 0.25, 0.25))),
        errors=str(rng.choice(ERRORS, p=(0.6, 0.2, 0.1, 0.1))),
    )


# --- scores -----------------------------------------------------------------------------------------------------------


def correlated_normals(
    at: Setting, rng: np.random.Generator, shared: tuple[float, float]
) -> Floats:
    """Return normals (models, tasks) of variance 1 that near copies and subsets of a benchmark share.

    ``shared`` are the shares of variance that are common to a family and to a benchmark.
    """
    family = at.family_of_models()
    benchmark = np.arange(at.tasks) // SUBSETS if at.subsets else np.arange(at.tasks)
    of_family, of_benchmark = shared
    normals = np.zeros((at.models, at.tasks))
    for by_family, by_benchmark in itertools.product((True, False), repeat=2):
        variance = (of_family if by_family else 1 - of_family) * (
            of_benchmark if by_benchmark else 1 - of_benchmark
        )
        drawn = rng.normal(size=(at.models, at.tasks))
        rows = family if by_family else np.arange(at.models)
        columns = benchmark if by_benchmark else np.arange(at.tasks)
        normals += math.sqrt(variance) * drawn[np.ix_(rows, columns)]
    return normals


def measure(at: Setting, truth: Floats, protocol: str, rng: np.random.Generator) -> ScoreMatrix:
    """Test models of these true scores on so many examples; leave out and spoil what the setting says."""
    truth = np.clip(truth, 0.02, 0.98)
    values = rng.binomial(at.n, truth) / at.n
    errors = np.sqrt(values * (1 - values) / (at.n - 1))
    if at.gaps == "random":
        values[rng.random(values.shape) < 0.3] = np.nan
    elif at.gaps == "low scores":
        is_low = values < np.median(values, axis=0)
        values[rng.random(values.shape) < np.where(is_low, 0.5, 0.1)] = np.nan
    if at.errors == "halved":
        errors = errors / 2
    elif at.errors == "one missing":
        errors[rng.integers(at.models), rng.integers(at.tasks)] = np.nan
    elif at.errors == "none":
        errors = np.full(values.shape, np.nan)
    return ScoreMatrix.build(
        [f"m{k}" for k in range(at.models)],
        at.task_names(),
        values,
        stderr=errors,
        n=np.full(values.shape, at.n),
        metrics=["acc"] * at.tasks,
        protocol=protocol,
    )


def make_equal_study(
    at: Setting, rng: np.random.Generator, spread: float
) -> dict[str, ScoreMatrix]:
    """Make direct and tuned scores of models that do not differ on average over tasks."""
    scores = {}
    for protocol in ("direct", "train_before_test"):
        level = rng.uniform(0.35, 0.75, at.tasks)
        truth = level + spread * correlated_normals(at, rng, (0.8 * at.families, 0.8 * at.subsets))
        scores[protocol] = measure(at, truth, protocol, rng)
    return scores


def make_wider_study(at: Setting, rng: np.random.Generator) -> dict[str, ScoreMatrix]:
    """Make scores of models that all tasks rank alike, further apart after tuning than before."""
    skill = rng.normal(size=at.models)
    if at.families:
        skill = 0.9 * skill[at.family_of_models()] + 0.4 * rng.normal(size=at.models)
    scores = {}
    for protocol, spread in (("direct", 0.02), ("train_before_test", 0.08)):
        level = rng.uniform(0.35, 0.65, at.tasks)
        scores[protocol] = measure(at, level + spread * skill[:, None], protocol, rng)
    return scores


def make_verdict_study(at: Setting, rng: np.random.Generator) -> ScoreMatrix:
    """Make sound benchmarks, of which the last is replaced by what the setting says."""
    skill = rng.normal(size=at.models)
    if at.families:
        skill = 0.95 * skill[at.family_of_models()] + 0.3 * rng.normal(size=at.models)
    own_share = math.sqrt(1 - LOADING**2)
    own = correlated_normals(at, rng, (0.8 * at.families, 0.0))
    ability = LOADING * skill[:, None] + own_share * own
    if at.study == "unrelated":
        ability[:, -1] = correlated_normals(at, rng, (0.8 * at.families, 0.0))[:, -1]
    elif at.study == "noise":
        ability[:, -1] = 0.0
    level = rng.uniform(0.4, 0.6, at.tasks)
    return measure(at, level + 0.08 * ability, "direct", rng)


# --- sentences --------------------------------------------------------------------------------------------------------


def speak(
    scores: Mapping[str, ScoreMatrix], relatives: ResamplingUnits, *, draw_count: int = 1_000
) -> list[str]:
    """Return what is said of a study: the headline, how far it holds, one pair, its tasks, and agreement."""
    tuned = scores["train_before_test"].benchmarks()
    if tuned.shape[0] < 2:
        return []
    ranking = decide_ranking(tuned, draw_count=draw_count)
    said = [
        sentences.headline_sentence(ranking),
        *sentences.certainty_sentences(ranking, None, None),
    ]
    first, second = tuned.models[:2]  # named beforehand, as a user names them
    pairs = compare_tasks(tuned.select(models=[first, second]), {})
    lead = measure_lead(ranking, tuned, None, first, second)
    if lead is not None and pairs:
        said += sentences.pair_sentences(lead, tuned.protocol, pairs, None)
    before = scores["direct"].benchmarks()
    shared_models = set(before.models) & set(tuned.models)
    shared_tasks = set(before.tasks) & set(tuned.tasks)
    if len(shared_tasks) > 1 and len(shared_models) > 1:
        sampling = Sampling(units=relatives, resamples=200)
        change = compare_agreement(before, tuned, sampling=sampling)
        said.append(sentences.agreement_sentence(change, None) or "")
    return said


def find_claims(at: Setting, number: int, seed: int = 0) -> dict[str, bool]:
    """Make one study of a setting; return, for each kind of sentence that is judged by it, whether it claims.

    Half of the equal studies have models that are equal on every task; in the others they are equal on average.
    """
    rng = np.random.default_rng([seed, number, at.models, at.tasks, at.n])
    names = [f"m{k}" for k in range(at.models)]
    families = [f"f{k}" for k in at.family_of_models().tolist()]
    relatives = ResamplingUnits("families", dict(zip(names, families, strict=True)))
    if at.study in VERDICT_CLAIMS:
        return judge(at, rng, dict(zip(names, families, strict=True)))
    if at.study == "wider":
        text = " ".join(speak(make_wider_study(at, rng), relatives))
        return {"agree more": bool(re.search(CLAIMS["agree more"], text))}
    is_alike = number % 2 == 1
    text = " ".join(speak(make_equal_study(at, rng, 0.0 if is_alike else SPREAD), relatives))
    if is_alike:
        judged = list(CLAIMS)
    elif at.speaks_of_other_tasks and at.gaps == "none":
        judged = [kind for kind in CLAIMS if kind != TASK_CLAIM]
    else:  # what is said of these tasks alone may be true: models do differ on them
        judged = ["holds on other tasks", "agree more"]
    return {kind: bool(re.search(CLAIMS[kind], text)) for kind in judged}


def judge(at: Setting, rng: np.random.Generator, families: Mapping[str, str]) -> dict[str, bool]:
    """Judge the last benchmark of a study; return whether the verdict says what it may not."""
    if at.models < 4 or at.tasks < 3 or at.gaps != "none":
        return {}
    matrix = make_verdict_study(at, rng)
    verdict = judge_benchmark(matrix, matrix.tasks[-1], families=families)
    kind, pattern = VERDICT_CLAIMS[at.study]
    text = f"{verdict.verdict}: {' '.join(verdict.reasons)}"
    return {kind: bool(re.search(pattern, text))}


def false_claims(at: Setting, studies: int, seed: int = 0) -> dict[str, float]:
    """Return the share of studies in which each kind of sentence claims something."""
    claims: dict[str, list[bool]] = {}
    for number in range(studies):
        for kind, claimed in find_claims(at, number, seed).items():
            claims.setdefault(kind, []).append(claimed)
    return {kind: float(np.mean(shares)) for kind, shares in claims.items()}


def allowed_share(studies: int) -> float:
    """Return the share of false claims that three standard errors allow."""
    return ALLOWED + 3 * math.sqrt(ALLOWED * (1 - ALLOWED) / studies)


# --- running and summing up -------------------------------------------------------------------------------------------


def list_studies(
    models: Sequence[int], tasks: Sequence[int], seed: int
) -> Iterator[tuple[Setting, int]]:
    """Yield studies without end, each at a random point of the grid."""
    for number in itertools.count():
        rng = np.random.default_rng([seed, number])
        yield draw_setting(rng, models, tasks), number


def describe_study(unit: tuple[Setting, int]) -> str:
    """Judge one study; return it as a line of JSON."""
    at, number = unit
    record = {**asdict(at), "groups": at.groups}
    return json.dumps({"at": record, "number": number, "claims": find_claims(at, number)})


SIDES = (
    ("models",),
    ("tasks",),
    ("groups",),
    ("n",),
    ("families",),
    ("subsets",),
    ("gaps",),
    ("errors",),
    ("models", "groups"),
    (),
)


def print_summary(path: str) -> bool:
    """Print the share of false claims ± its Monte-Carlo error, by every side of the grid; say whether all are rare."""
    text = Path(path).read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    print(f"{len(lines):,} studies\n")
    are_rare = True
    for side in SIDES:
        print(f"{' × '.join(side) or 'all':>18}  " + "".join(f"{kind:>22}" for kind in KINDS))
        points = sorted({tuple(line["at"][name] for name in side) for line in lines})
        for point in points:
            here = [line for line in lines if tuple(line["at"][name] for name in side) == point]
            cells = []
            for kind in KINDS:
                judged = [line["claims"][kind] for line in here if kind in line["claims"]]
                is_rare = not judged or float(np.mean(judged)) <= allowed_share(len(judged))
                are_rare &= is_rare
                cells.append(format_share(judged) + ("  " if is_rare else " !"))
            print(f"{' × '.join(map(str, point)):>18}  " + "".join(f"{cell:>22}" for cell in cells))
        print()
    print("!: above 5 % by more than three standard errors.")
    return are_rare


def format_share(judged: Sequence[bool]) -> str:
    """Write a share in per cent ± its Monte-Carlo error, and of how many studies."""
    if not judged:
        return "–"
    share = float(np.mean(judged))
    error = math.sqrt(share * (1 - share) / len(judged))
    return f"{100 * share:.1f} ± {100 * error:.1f} ({len(judged)})"


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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=int, nargs="+", default=list(MODELS))
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS))
    parser.add_argument(
        "--summary", metavar="FILE", help="sum up what a run wrote, and run nothing"
    )
    args = parser.parse_args()
    if args.summary is None:
        studies = list_studies(args.models, args.tasks, args.seed)
        write_lines(describe_study, studies, args.out, workers=args.workers, minutes=args.minutes)
    return 0 if print_summary(args.summary or args.out) else 1


if __name__ == "__main__":
    sys.exit(main())
