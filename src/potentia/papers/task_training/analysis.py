"""Training on the test task, whole: all that two protocols and the models' facts can answer, task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from potentia.analysis.left_out import describe_left_out
from potentia.errors import InputError
from potentia.facts import chance, known_chance
from potentia.papers.task_training import adjustment
from potentia.papers.task_training.changes import (
    compare_families,
    discriminate,
    measure_gain,
    mediate,
    shift_of_ranks,
)
from potentia.papers.task_training.cohort import Cohort, Pair, Split, best_of, pair_up, unpaired
from potentia.papers.task_training.copies import (
    Copies,
    ExposureEffect,
    measure_copies,
    measure_exposure,
)
from potentia.papers.task_training.options import FIRST_NEW_MONTH, TestTaskOptions
from potentia.study import adjust_tuning
from potentia.values.findings import Finding, Findings, slug
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

BATCH = 64  # examples per step of the document's recipe (appendix B.2)
SMALLEST_GROUP = 5  # models of each group, to tell the groups apart by their scores


def _divide_models(options: TestTaskOptions, cohort: Cohort, task: str) -> Split:
    """Make the yes/no variable N from the facts of whatever models remain."""
    if options.exposed:
        return cohort.exposed(task)
    if options.column is None or options.value is None:
        return cohort.since(options.since or FIRST_NEW_MONTH)
    return cohort.where(options.column, options.value)


@dataclass(frozen=True)
class TestTask(Findings):
    """Every finding about training on the test task, by task, and why some are missing."""

    __test__ = False  # no test of ours

    before: Protocol
    after: Protocol
    tasks: dict[str, dict[str, Finding]] = field(default_factory=dict)  # by task, by name
    exposure: ExposureEffect | None = None
    copies: Copies | None = None
    problems: tuple[str, ...] = ()

    def named(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in reading order."""
        found: dict[str, Finding | None] = {"copies": self.copies, "exposure": self.exposure}
        for task, by in self.tasks.items():
            found |= {f"{slug(task)}-{name}": finding for name, finding in by.items()}
        return {name: finding for name, finding in found.items() if finding is not None}


def find_test_task(evidence: Evidence, options: TestTaskOptions | None = None) -> TestTask:
    """Ask what a group of models has more at equal compute, before and after all were tuned on the same task data."""
    options = options or TestTaskOptions()
    before = _pick(
        evidence, options.before, ("direct", "base")
    )  # base: before tuning, in the published scores
    after = _pick(evidence, options.after, ("adjust", "train_before_test"))
    first, second = evidence.scores[before].benchmarks(), evidence.scores[after].benchmarks()
    later = best_of(first, second) if options.best else second
    cohort = Cohort.known(first.models, evidence.facts)
    pairs, problems = _pairs(evidence, options, first, second, later, cohort)
    copies = measure_copies(evidence.planned, evidence.exposed_copies, _shown(evidence))
    if not pairs and not problems and copies is None:
        pair_up(first, later, cohort)  # says what is missing
    exposure = None
    if options.exposed:
        pairs, unseen = _divided(pairs)
        problems += unseen
        exposure = (
            measure_exposure(pairs, draws=options.draws, seed=options.seed) if pairs else None
        )
    stage = Protocol(options.steps) if options.steps else after
    steps = {
        p.step: m for p, m in evidence.scores.items() if p.step is not None and p.base == stage
    }
    batch = options.batch or (_batch(evidence, stage) if steps else BATCH)
    tasks: dict[str, dict[str, Finding]] = {}
    rates = adjustment.stored_rates(evidence, after)
    for pair in pairs:
        tasks[pair.task], problem = _of_task(pair, options, steps, batch, rates.get(pair.task, {}))
        problems += [f"{pair.task}: {problem}"] if problem else []
    return TestTask(before, after, tasks, exposure, copies, tuple(problems))


def _pairs(
    evidence: Evidence,
    options: TestTaskOptions,
    first: ScoreMatrix,
    second: ScoreMatrix,
    later: ScoreMatrix,
    cohort: Cohort,
) -> tuple[list[Pair], list[str]]:
    """Return the scores of every task before and after, and who is left out of which tasks."""
    pairs: list[Pair] = []
    problems: list[str] = []
    missing: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for task in (task for task in first.tasks if task in second.tasks):
        try:
            guessing = _chance(first, task, evidence.background.chance, options)
            pairs += pair_up(first, later, cohort, tasks=[task], chance=guessing)
        except InputError as error:
            problems.append(f"{task}: {error.message}")
        for why, names in unpaired(first, second, cohort, task).items():
            missing.setdefault((why, names), []).append(task)
    for (why, names), where in missing.items():
        problems += [f"{', '.join(where)}: {line}" for line in describe_left_out({why: names})]
    return pairs, problems


def _divided(pairs: Sequence[Pair]) -> tuple[list[Pair], list[str]]:
    """Return the tasks that some models saw and some did not, and why the others are left out."""
    kept, problems = [], []
    for pair in pairs:
        try:
            pair.cohort.exposed(pair.task)
            kept.append(pair)
        except InputError as error:
            problems.append(f"{pair.task} is left out: {error.message}")
    return kept, problems


def _shown(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """Return which tasks every treated copy was shown, by the facts."""
    known = {copy: evidence.facts.find(copy) for copy in evidence.exposed_copies}
    return {copy: facts.exposure for copy, facts in known.items() if facts is not None}


def analyze_pair(
    pair: Pair,
    parts: Split,
    *,
    families: Sequence[str] | None = None,
    draws: int = 1999,
    seed: int = 0,
) -> dict[str, Finding]:
    """Return every finding about one task whose models are divided into two groups.

    Families are compared where at least two have three models; groups told apart where both have five.
    """
    found: dict[str, Finding] = {
        "adjustment": adjustment.compare_groups(pair, parts, draws=draws, seed=seed),
        "mediation": mediate(pair, parts),
        "gain": measure_gain(pair, parts),
        "frontier": adjustment.frontier_shift(pair, parts),
        "ranks": shift_of_ranks(pair),
        **_families(pair, families),
    }
    if min(parts.size, len(parts.members) - parts.size) >= SMALLEST_GROUP:
        found["discrimination"] = discriminate(pair, parts, seed=seed)
    return found


def _of_task(
    pair: Pair,
    options: TestTaskOptions,
    steps: Mapping[int, ScoreMatrix],
    batch: int,
    rates: adjustment.Rates,
) -> tuple[dict[str, Finding], str]:
    """Return what one task shows; where its models cannot be divided, what needs no division, and why."""
    outside: Sequence[str] = pair.cohort.models
    parts, problem = None, ""
    how: dict[str, Any] = {"draws": options.draws, "seed": options.seed}
    try:
        parts = _divide_models(options, pair.cohort, pair.task)
        found = analyze_pair(pair, parts, families=options.families, **how)
        outside = pair.cohort.named(~parts.members)
    except InputError as error:
        parts, problem = None, error.message
        found = {
            "gain": measure_gain(pair),
            "ranks": shift_of_ranks(pair),
            **_families(pair, options.families),
        }
    found |= _emergence(pair, outside, steps, batch)
    chosen = dict(zip(pair.cohort.models, pair.after.tolist(), strict=True))
    if rated := {model: by for model, by in rates.items() if model in chosen}:
        found["rates"] = adjustment.weigh_rates(pair.task, rated, pair, parts, chosen=chosen, **how)
    return found, problem


def _pick(evidence: Evidence, name: str | None, usual: Sequence[str]) -> Protocol:
    there = (p for one in usual for p in evidence.planned if one in (p.kind, p))
    chosen = Protocol(name) if name else next(there, None)
    if chosen is None or chosen not in evidence.scores:
        wanted = chosen or " or ".join(usual)
        known = ", ".join(evidence.planned)
        raise InputError(f"no scores by {wanted} in {evidence.source}", hint=f"there are: {known}")
    return chosen


def _chance(
    matrix: ScoreMatrix, task: str, known: Mapping[str, float], options: TestTaskOptions
) -> float:
    """Return the score of guessing: as given for the task, as known of it, else the number given for the others."""
    given = options.chance
    if isinstance(given, Mapping) and task in given:
        return given[task]
    metric = matrix.metrics[matrix.tasks.index(task)]
    found = known_chance(task, metric, known)
    if found is None and isinstance(given, (int, float)):
        return float(given)
    return chance(task, metric=metric.name, higher_is_better=metric.higher_is_better, known=known)


def _families(pair: Pair, families: Sequence[str] | None) -> dict[str, Finding]:
    sizes = [pair.cohort.family.count(family) for family in set(pair.cohort.family)]
    several = families or sum(size >= 3 for size in sizes) >= 2
    return {"families": compare_families(pair, families)} if several else {}


def _batch(evidence: Evidence, stage: Protocol) -> int:
    """Return the examples per step of the studies' own tuning; the document's where no study is known."""
    from potentia.evidence import parse_study_record

    studies = [
        study
        for study in map(parse_study_record, evidence.studies)
        if study is not None and stage in study.protocols
    ]
    found = {
        int((adjust_tuning(study) if stage.kind == "adjust" else study.tuning).batch)
        for study in studies
    }
    if len(found) > 1:
        message = f"the studies have batches of {' and '.join(map(str, sorted(found)))} examples"
        raise InputError(f"{message}: their steps do not compare", hint="choose one: --study NAME")
    return found.pop() if found else BATCH


def _emergence(
    pair: Pair, models: Sequence[str], steps: Mapping[int, ScoreMatrix], batch: int
) -> dict[str, Finding]:
    """Trace emergence over the steps of the adjustment, over the models outside the group."""
    stages = {0: dict(zip(pair.cohort.models, pair.before.tolist(), strict=True))}
    for step, matrix in steps.items():
        if pair.task in matrix.tasks:
            column = matrix.select(tasks=[pair.task]).values[:, 0]
            stages[batch * step] = dict(zip(matrix.models, column.tolist(), strict=True))
    if len(stages) == 1 or len(models) < adjustment.LEAST_MODELS:
        return {}
    how: dict[str, Any] = {
        "chance": pair.chance,
        "higher_is_better": pair.higher_is_better,
        "batch": batch,
    }
    return {
        "emergence": adjustment.trace_emergence(
            pair.task, stages, pair.cohort.select(models), **how
        )
    }
