"""How often each kind of sentence claims something where it is not true.

    python bench/nulls.py --minutes 10 --workers 2 --out nulls.jsonl
    python bench/nulls.py --models 2 3 --tasks 1 5 --minutes 1
    python bench/nulls.py --studies sound --minutes 4
    python bench/nulls.py --summary nulls.jsonl

Every study is drawn at random from a grid of what goes wrong with independence in practice:

- models: independent, or families of three near copies, which are declared, can be told by the models' names, or are
  not known; where a benchmark is judged, copies may have answered the same examples, of which a share is drawn anew;
- tasks: independent, or subsets of benchmarks (a model that is good at one subset is good at all of them);
- examples: independent, or ten questions to a passage, each with an effect of 1 logit on every model;
- gaps: none, at random, or where the score is low;
- errors: right, half of what they should be, of all scores but one, or of none.

In *equal* studies no model is better than another: on each task where nothing can be said of other tasks, else on
average over tasks. Before and after tuning differ in nothing but luck. In *wider* studies models differ and every task
ranks them alike, before and after tuning; after it they are further apart, so that raw agreement rises by noise alone.
In *verdict* studies one benchmark is judged among others: unrelated to them, pure noise, or as sound as they are.
That the test of a sound one is too small is no false claim where it is: where so many examples would tell less than a
quarter of the pairs of these models apart.

The sentences are those that commands print, and a claim is found in their words. Printed: the share of studies with a
false claim ± its Monte-Carlo error for each kind of sentence, by every side of the grid; the last column is how often a
sound benchmark is kept, which is true. Exits with 1 where a share of false claims exceeds 5 % by more than three
standard errors, or what that is for few studies.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.stats import binom, norm

from as_they_go import write_lines
from potentia.analysis.benchmark import Recommendation, judge_benchmark
from potentia.analysis.rankings import compare_agreement, decide_ranking, sentences
from potentia.analysis.rankings.decide import ENOUGH_TASKS
from potentia.analysis.rankings.lead import estimate_missing_evidence, measure_lead
from potentia.analysis.rankings.pair import compare_tasks
from potentia.analysis.rankings.screening import RESOLVED, FlagReason
from potentia.analysis.stats.bootstrap import ResamplingUnits, Sampling
from potentia.analysis.stats.relatives import ModelFamilies
from potentia.analysis.stats.significance import estimate_test_sizes
from potentia.facts import Background
from potentia.values.scores import Floats, Outcomes, ScoreMatrix, TaskOutcomes

MODELS = (2, 3, 4, 6, 10, 20, 61)
TASKS = (1, 2, 3, 5, 12, 24)
SIZES = (100, 1_000, 100_000)
GAPS = ("none", "random", "low scores")
ERRORS = ("right", "halved", "one missing", "none")
STUDIES = ("equal", "wider", "unrelated", "noise", "sound")
STUDY_SHARES = (0.6, 0.1, 0.1, 0.1, 0.1)
FAMILIES_KNOWN = ("declared", "by name", "no")  # how an analysis may know the families of models
REDRAWN = (0.05, 0.2, 0.5, 1.0)  # share of a near copy's answers that are drawn anew
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SUBSETS = 4  # of one benchmark, where tasks come in families
QUESTIONS = 10  # to a passage, where examples share passages
PASSAGE_EFFECT = (
    1.0  # logits: how much better or worse a model is on a passage (standard deviation)
)
MOST_PASSAGES = 100  # a task; more examples would only take longer
SPREAD = 0.05  # of a model's true score over tasks about its mean
ALLOWED = 0.05
STUDIES_OF_A_SEED = (
    1_000_000  # an even number: every second study has models that are equal on every task
)
LOADING = 0.8  # correlation of every sound benchmark with what they have in common
TASK_CLAIM = "better on a task"
EXAMPLES_CLAIM = "examples would not do"  # false where no model is better on any task
CLAIMS = {
    "best": r"is the best of",
    "holds on other tasks": r"other tasks like these",
    "better": r"is better than",
    TASK_CLAIM: r"significantly better on",
    "agree more": r"agree (more|less) on",
    EXAMPLES_CLAIM: r"More test examples would not separate",
}
VERDICT_CLAIMS = {  # what a verdict may not say of a benchmark, by what the benchmark is
    "unrelated": (
        ("said to agree", r"ranking agrees with the others"),
        ("unrelated dropped", r"^drop"),
    ),
    "noise": (("noise kept", r"^keep"),),
    "sound": (("sound accused", r"^(fix|drop)"),),
}
SOUND_KEPT = "sound kept"  # true of a sound benchmark: how often there is power to say it
KINDS = (*CLAIMS, *(kind for claims in VERDICT_CLAIMS.values() for kind, _ in claims))


@dataclass(frozen=True)
class Setting:
    """One point of the grid."""

    study: str
    models: int
    tasks: int
    n: int  # test examples of a task
    families: bool = False  # models come in threes of near copies
    families_known: str = "declared"
    redrawn: float = 1.0  # share of a near copy's answers that its family does not share
    subsets: bool = False  # tasks come in subsets of benchmarks
    passages: bool = False  # examples share passages, and the outcomes are stored
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
        return [f"{3 * LETTERS[k // SUBSETS]}_{k % SUBSETS}" for k in range(self.tasks)]

    def model_names(self) -> list[str]:
        """Return names of the models, which begin with that of their family where it can be told by them."""
        if self.families_known != "by name":
            return [f"m{k}" for k in range(self.models)]
        names = []
        copies = itertools.cycle(("7b", "7b-chat", "7b-v2"))
        for family in self.family_of_models().tolist():
            first, second = divmod(family, len(LETTERS))
            names.append(f"{LETTERS[first]}{3 * LETTERS[second]}-{next(copies)}-{family}")
        return names

    def family_of_models(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the family of every model."""
        return np.arange(self.models) // 3 if self.families else np.arange(self.models)

    def infer_families(self, matrix: ScoreMatrix) -> ModelFamilies:
        """Return what an analysis knows of the families: what is declared, else names and scores."""
        names = self.model_names()
        if self.families_known == "declared":
            families = [f"f{family}" for family in self.family_of_models().tolist()]
            return ModelFamilies(dict(zip(names, families, strict=True)))
        return ModelFamilies.of_background(Background.of(names), matrix)


def draw_setting(
    rng: np.random.Generator,
    models: Sequence[int],
    tasks: Sequence[int],
    studies: Sequence[str] = STUDIES,
) -> Setting:
    """Draw a point of the grid."""
    shares = np.array([STUDY_SHARES[STUDIES.index(study)] for study in studies])
    study = str(rng.choice(studies, p=shares / shares.sum()))
    at = Setting(
        study=study,
        models=int(rng.choice(models)),
        tasks=int(rng.choice(tasks)),
        n=int(rng.choice(SIZES)),
        families=bool(rng.integers(2)),
        subsets=bool(rng.integers(2)),
        gaps=str(rng.choice(GAPS, p=(0.5, 0.25, 0.25))),
        errors=str(rng.choice(ERRORS, p=(0.6, 0.2, 0.1, 0.1))),
    )
    may_share_passages = study == "equal" and at.n <= QUESTIONS * MOST_PASSAGES
    at = replace(at, passages=may_share_passages and bool(rng.integers(2)))
    at = replace(at, families_known=str(rng.choice(FAMILIES_KNOWN)))
    if study in VERDICT_CLAIMS and at.families:
        at = replace(at, redrawn=float(rng.choice(REDRAWN)))
    return at


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


@dataclass(frozen=True)
class TestedScores:
    """What a study knows of one protocol."""

    matrix: ScoreMatrix
    outcomes: Outcomes  # by example, where examples share passages


def measure(at: Setting, truth: Floats, protocol: str, rng: np.random.Generator) -> TestedScores:
    """Test models of these true scores on so many examples; leave out and spoil what the setting says."""
    truth = np.clip(truth, 0.02, 0.98)
    outcomes: Outcomes = {}
    if at.passages:
        right = answer_passages(at, truth, rng)
        values = right.mean(axis=2)
        outcomes = store_outcomes(at, right)
    else:
        values = answer_examples(at, truth, rng) / at.n
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
    matrix = ScoreMatrix.build(
        at.model_names(),
        at.task_names(),
        values,
        stderr=errors,
        n=np.full(values.shape, at.n),
        metrics=["acc"] * at.tasks,
        protocol=protocol,
    )
    return TestedScores(matrix, outcomes)


def answer_examples(at: Setting, truth: Floats, rng: np.random.Generator) -> Floats:
    """Return how many of the examples each model gets right: (models, tasks).

    Near copies answer as the first of their family does, but for a share of the examples, on which they have luck of
    their own.
    """
    right = rng.binomial(at.n, truth)
    if at.redrawn == 1.0:
        return right
    family = at.family_of_models()
    for model in range(1, at.models):
        original = int(np.flatnonzero(family == family[model])[0])
        if original == model:
            continue
        redrawn = rng.binomial(at.n, at.redrawn, at.tasks)
        shared = at.n - redrawn
        right_as_original = rng.hypergeometric(right[original], at.n - right[original], shared)
        right[model] = right_as_original + rng.binomial(redrawn, truth[model])
    return right


def answer_passages(at: Setting, truth: Floats, rng: np.random.Generator) -> Floats:
    """Return which of the examples each model gets right: (models, tasks, examples), passage by passage.

    How a model does on a passage is drawn anew for every passage, so models of one true score differ by luck alone.
    """
    passages = at.n // QUESTIONS
    # The mean of the logistic function over normal effects is nearly that of a logit so much further out.
    stretch = math.sqrt(1 + PASSAGE_EFFECT**2 * math.pi / 8)
    logits = stretch * np.log(truth / (1 - truth))
    effects = PASSAGE_EFFECT * rng.normal(size=(*truth.shape, passages))
    chances = 1 / (1 + np.exp(-(logits[:, :, None] + effects)))
    right = rng.random((*chances.shape, QUESTIONS)) < chances[..., None]
    return right.reshape(*truth.shape, at.n).astype(np.float64)


def store_outcomes(at: Setting, right: Floats) -> Outcomes:
    """Return outcomes as a store holds them, with the passage of every example."""
    passage_by_example = {example: f"p{example // QUESTIONS}" for example in range(at.n)}
    outcomes = {}
    for column, task in enumerate(at.task_names()):
        by_model = {}
        for row, model in enumerate(at.model_names()):
            by_model[model] = dict(enumerate(right[row, column].tolist()))
        outcomes[task] = TaskOutcomes(by_model, passage_by_example)
    return outcomes


def make_equal_study(
    at: Setting, rng: np.random.Generator, spread: float
) -> dict[str, TestedScores]:
    """Make direct and tuned scores of models that do not differ on average over tasks."""
    scores = {}
    for protocol in ("direct", "train_before_test"):
        level = rng.uniform(0.35, 0.75, at.tasks)
        truth = level + spread * correlated_normals(at, rng, (0.8 * at.families, 0.8 * at.subsets))
        scores[protocol] = measure(at, truth, protocol, rng)
    return scores


def make_wider_study(at: Setting, rng: np.random.Generator) -> dict[str, TestedScores]:
    """Make scores of models that all tasks rank alike, further apart after tuning than before."""
    skill = rng.normal(size=at.models)
    if at.families:
        skill = 0.9 * skill[at.family_of_models()] + 0.4 * rng.normal(size=at.models)
    scores = {}
    for protocol, spread in (("direct", 0.02), ("train_before_test", 0.08)):
        level = rng.uniform(0.35, 0.65, at.tasks)
        scores[protocol] = measure(at, level + spread * skill[:, None], protocol, rng)
    return scores


@dataclass(frozen=True)
class VerdictStudy:
    """Benchmarks, of which the last is judged."""

    matrix: ScoreMatrix
    truth: Floats  # (models,): what the models would score on the last with very many examples

    @property
    def is_test_too_small(self) -> bool:
        """Whether the last benchmark's test tells less than a quarter of the pairs of these models apart."""
        first_of_pair, second_of_pair = np.triu_indices(len(self.truth), 1)
        gaps = np.abs(self.truth[first_of_pair] - self.truth[second_of_pair])
        variances = self.truth * (1 - self.truth) / self.matrix.n[:, -1]
        z_scores = gaps / np.sqrt(variances[first_of_pair] + variances[second_of_pair])
        threshold = norm.ppf(0.975)
        shares = norm.sf(threshold - z_scores) + norm.cdf(-threshold - z_scores)
        return bool(shares.mean() < RESOLVED)


def make_verdict_study(at: Setting, rng: np.random.Generator) -> VerdictStudy:
    """Make sound benchmarks, of which the last is replaced by what the setting says."""
    skill = rng.normal(size=at.models)
    if at.families:
        skill = 0.95 * skill[at.family_of_models()] + 0.3 * rng.normal(size=at.models)
    own_share = math.sqrt(1 - LOADING**2)
    own_noise = correlated_normals(at, rng, (0.8 * at.families, 0.0))
    ability = LOADING * skill[:, None] + own_share * own_noise
    if at.study == "unrelated":
        ability[:, -1] = correlated_normals(at, rng, (0.8 * at.families, 0.0))[:, -1]
    elif at.study == "noise":
        ability[:, -1] = 0.0
    level = rng.uniform(0.4, 0.6, at.tasks)
    truth = level + 0.08 * ability
    matrix = measure(at, truth, "direct", rng).matrix
    return VerdictStudy(matrix, np.clip(truth[:, -1], 0.02, 0.98))


# --- sentences --------------------------------------------------------------------------------------------------------


def speak(at: Setting, scores: Mapping[str, TestedScores], *, draw_count: int = 1_000) -> list[str]:
    """Return what is said of a study: the headline, how far it holds, one pair, its tasks, and agreement."""
    tuned = scores["train_before_test"].matrix.benchmarks()
    outcomes = scores["train_before_test"].outcomes
    if tuned.shape[0] < 2:
        return []
    ranking = decide_ranking(tuned, outcomes, draw_count=draw_count)
    sentences_said = [
        sentences.headline_sentence(ranking),
        *sentences.certainty_sentences(ranking, None, None),
    ]
    first, second = tuned.models[:2]  # named beforehand, as a user names them
    pairs = compare_tasks(tuned.select(models=[first, second]), outcomes)
    lead = measure_lead(ranking, tuned, outcomes, first, second)
    if lead is not None and pairs:
        missing = estimate_missing_evidence(
            ranking, tuned, outcomes, estimate_test_sizes(tuned), lead.first, lead.second
        )
        sentences_said += sentences.pair_sentences(lead, tuned.protocol, pairs, missing)
    before = scores["direct"].matrix.benchmarks()
    shared_models = set(before.models) & set(tuned.models)
    shared_tasks = set(before.tasks) & set(tuned.tasks)
    if len(shared_tasks) > 1 and len(shared_models) > 1:
        families = at.infer_families(tuned).family_of_model
        sampling = Sampling(units=ResamplingUnits("families", families), resamples=200)
        change = compare_agreement(before, tuned, sampling=sampling)
        sentences_said.append(sentences.agreement_sentence(change, None) or "")
    return sentences_said


def find_claims(at: Setting, number: int, seed: int = 0) -> dict[str, bool]:
    """Make one study of a setting; return, for each kind of sentence that is judged by it, whether it claims.

    Half of the equal studies have models that are equal on every task; in the others they are equal on average.
    """
    rng = np.random.default_rng([seed, number, at.models, at.tasks, at.n])
    if at.study in VERDICT_CLAIMS:
        return judge(at, rng)
    if at.study == "wider":
        text = " ".join(speak(at, make_wider_study(at, rng)))
        return {"agree more": bool(re.search(CLAIMS["agree more"], text))}
    is_alike = number % 2 == 1
    text = " ".join(speak(at, make_equal_study(at, rng, 0.0 if is_alike else SPREAD)))
    if is_alike:
        judged = list(CLAIMS)
    elif at.speaks_of_other_tasks and at.gaps == "none":
        judged = [kind for kind in CLAIMS if kind not in (TASK_CLAIM, EXAMPLES_CLAIM)]
    else:  # what is said of these tasks alone may be true: models do differ on them
        judged = ["holds on other tasks", "agree more"]
    return {kind: bool(re.search(CLAIMS[kind], text)) for kind in judged}


def judge(at: Setting, rng: np.random.Generator) -> dict[str, bool]:
    """Judge the last benchmark of a study; return whether the verdict says what it may not."""
    if at.models < 4 or at.tasks < 3 or at.gaps != "none":
        return {}
    study = make_verdict_study(at, rng)
    relatives = at.infer_families(study.matrix)
    verdict = judge_benchmark(study.matrix, study.matrix.tasks[-1], relatives=relatives)
    reasons = [
        reason
        for reason in verdict.reasons
        if not (study.is_test_too_small and reason.startswith(FlagReason.SMALL_TEST))
    ]
    text = f"{verdict.verdict}: {' '.join(reasons)}" if reasons else ""
    claims = {kind: bool(re.search(pattern, text)) for kind, pattern in VERDICT_CLAIMS[at.study]}
    if at.study == "sound":
        claims[SOUND_KEPT] = verdict.verdict is Recommendation.KEEP
    return claims


def false_claims(at: Setting, studies: int, seed: int = 0) -> dict[str, float]:
    """Return the share of studies in which each kind of sentence claims something."""
    claims: dict[str, list[bool]] = {}
    for number in range(studies):
        for kind, claimed in find_claims(at, number, seed).items():
            claims.setdefault(kind, []).append(claimed)
    return {kind: float(np.mean(shares)) for kind, shares in claims.items()}


def allowed_share(studies: int) -> float:
    """Return the largest share of false claims that a rate of 5 % leaves likely (0.1 %, as three standard errors do).

    By the binomial distribution: of few studies three false ones are no evidence yet.
    """
    return float(binom.isf(norm.sf(3), studies, ALLOWED)) / studies


# --- running and summing up -------------------------------------------------------------------------------------------


def list_studies(
    models: Sequence[int], tasks: Sequence[int], seed: int, studies: Sequence[str] = STUDIES
) -> Iterator[tuple[Setting, int]]:
    """Yield studies without end, each at a random point of the grid; no two seeds share a study."""
    for number in itertools.count(seed * STUDIES_OF_A_SEED):
        rng = np.random.default_rng([seed, number])
        yield draw_setting(rng, models, tasks, studies), number


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
    ("families_known",),
    ("families", "families_known"),
    ("redrawn",),
    ("subsets",),
    ("passages",),
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
        columns = (*KINDS, SOUND_KEPT)
        print(f"{' × '.join(side) or 'all':>26}  " + "".join(f"{kind:>22}" for kind in columns))
        points = sorted({tuple(line["at"][name] for name in side) for line in lines})
        for point in points:
            here = [line for line in lines if tuple(line["at"][name] for name in side) == point]
            cells = []
            for kind in columns:
                judged = [line["claims"][kind] for line in here if kind in line["claims"]]
                is_rare = not judged or float(np.mean(judged)) <= allowed_share(len(judged))
                is_rare |= kind == SOUND_KEPT  # a true claim
                are_rare &= is_rare
                cells.append(format_share(judged) + ("  " if is_rare else " !"))
            print(f"{' × '.join(map(str, point)):>26}  " + "".join(f"{cell:>22}" for cell in cells))
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
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument(
        "--summary", metavar="FILE", help="sum up what a run wrote, and run nothing"
    )
    args = parser.parse_args()
    if args.summary is None:
        studies = list_studies(args.models, args.tasks, args.seed, args.studies)
        write_lines(describe_study, studies, args.out, workers=args.workers, minutes=args.minutes)
    return 0 if print_summary(args.summary or args.out) else 1


if __name__ == "__main__":
    sys.exit(main())
