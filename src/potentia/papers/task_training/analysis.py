"""Training on the test task, whole: all that two protocols and the models' facts can answer, task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from potentia.analysis.left_out import describe_left_out
from potentia.analysis.stats.relatives import ModelFamilies
from potentia.analysis.wording import join_names
from potentia.errors import InputError, suggest_names
from potentia.extras import Extra, is_installed
from potentia.facts import compute_chance_score, find_chance_score
from potentia.papers.task_training.adjustment import compare_groups
from potentia.papers.task_training.changes import (
    measure_gain,
    measure_mediation,
    measure_rank_shift,
)
from potentia.papers.task_training.cohort import (
    Cohort,
    ModelSplit,
    ScorePair,
    explain_unpaired,
    pair_scores,
    take_better_scores,
)
from potentia.papers.task_training.copies import CopyAdvantages, measure_copies
from potentia.papers.task_training.discrimination import measure_discrimination
from potentia.papers.task_training.emergence import MIN_MODELS, trace_emergence
from potentia.papers.task_training.exposure_effect import ExposureEffect, measure_exposure_effect
from potentia.papers.task_training.families import MIN_FAMILY_MODELS, compare_families
from potentia.papers.task_training.frontier import measure_frontier_shift
from potentia.papers.task_training.learning_rates import (
    RateScores,
    compare_rates,
    read_stored_rates,
)
from potentia.papers.task_training.options import FIRST_NEW_MONTH, TestTaskOptions
from potentia.study import Study, tuning_for_adjust
from potentia.values.findings import Finding, Findings, make_slug
from potentia.values.protocol import ADJUST, Protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

PAPER_BATCH = 64  # examples per step of the paper's recipe (appendix B.2)
MIN_GROUP = 5  # models of each group, to tell the groups apart by their scores
USUAL_BEFORE = ("direct", "base")  # base: before tuning, in the published scores
USUAL_AFTER = ("adjust", "train_before_test")


@dataclass(frozen=True)
class TestTaskFindings(Findings):
    """Every finding about training on the test task, by task, and why some are missing."""

    __test__ = False  # no test of ours

    before: Protocol
    after: Protocol
    tasks: dict[str, dict[str, Finding]] = field(default_factory=dict)  # by task, by name
    exposure: ExposureEffect | None = None
    copies: CopyAdvantages | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_divided(self) -> bool:
        """Whether the models of any task fall into two groups that are compared."""
        return any("adjustment" in by_name for by_name in self.tasks.values())

    def findings_by_name(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in reading order."""
        findings: dict[str, Finding] = {}
        if self.copies is not None:
            findings["copies"] = self.copies
        if self.exposure is not None:
            findings["exposure"] = self.exposure
        for task, by_name in self.tasks.items():
            for name, finding in by_name.items():
                findings[f"{make_slug(task)}-{name}"] = finding
        return findings


@dataclass(frozen=True, eq=False)
class AdjustmentSteps:
    """The scores at steps of the adjustment, and how many examples a step takes."""

    stage: Protocol  # that the steps lead to
    scores: Mapping[int, ScoreMatrix]
    batch: int
    is_requested: bool  # whether the stage was named for the steps

    @property
    def missing_reason(self) -> str:
        """Why there is no emergence curve where there are no scores; empty where nobody expects one."""
        if self.is_requested:
            return f"no emergence curve: there are no scores at steps of {self.stage}"
        if self.stage.kind == ADJUST:
            return "no emergence curve: at_steps in the study's adjust gives scores on the way"
        return ""


def find_test_task(evidence: Evidence, options: TestTaskOptions | None = None) -> TestTaskFindings:
    """Say how far a group of models is ahead at equal compute, before and after all learn the same task data.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        options: What divides the models, and the protocols before and after; ``TestTaskOptions()`` where absent.

    Example:
        >>> potentia.find_test_task("examples/real-models.csv").to_frame()
    """
    options = options or TestTaskOptions()
    before_protocol = _choose_protocol(evidence, options.before, USUAL_BEFORE)
    after_protocol = _choose_protocol(evidence, options.after, USUAL_AFTER)
    before = evidence.scores[before_protocol].benchmarks()
    after = evidence.scores[after_protocol].benchmarks()
    counted_after = take_better_scores(before, after) if options.best else after
    cohort = Cohort.from_facts(before.models, evidence.facts)
    pairs, problems = _pair_tasks(evidence, options, before, after, counted_after, cohort)
    copies = measure_copies(
        evidence.final_scores,
        evidence.exposed_copies,
        _find_exposed_tasks(evidence),
        ModelFamilies.of_evidence(evidence).family_of_model,
    )
    if not pairs and not problems and copies is None:
        pair_scores(before, counted_after, cohort)  # raises an error that says what is missing
    exposure = None
    if options.exposed:
        pairs, undivided = _keep_tasks_divided_by_exposure(pairs)
        problems += undivided
        if pairs:
            exposure = measure_exposure_effect(pairs, draws=options.draws, seed=options.seed)
    steps = _find_adjustment_steps(evidence, options, after_protocol)
    rates_by_task = read_stored_rates(evidence, after_protocol)
    tasks: dict[str, dict[str, Finding]] = {}
    tasks_by_problem: dict[str, list[str]] = {}
    for score_pair in pairs:
        rates = rates_by_task.get(score_pair.task, {})
        tasks[score_pair.task], task_problems = _analyze_task(score_pair, options, steps, rates)
        for problem in task_problems:
            tasks_by_problem.setdefault(problem, []).append(score_pair.task)
    for problem, problem_tasks in tasks_by_problem.items():
        problems.append(f"{join_names(problem_tasks)}: {problem}")
    return TestTaskFindings(
        before=before_protocol,
        after=after_protocol,
        tasks=tasks,
        exposure=exposure,
        copies=copies,
        problems=tuple(problems),
    )


# --- what is compared ------------------------------------------------------------------------------------------------


def _choose_protocol(
    evidence: Evidence, requested_protocol: str | None, usual: Sequence[str]
) -> Protocol:
    """Return the protocol named, else the first of the usual ones that has scores."""
    chosen = (
        Protocol(requested_protocol)
        if requested_protocol
        else _find_usual_protocol(evidence, usual)
    )
    if chosen is None or chosen not in evidence.scores:
        missing = chosen or " or ".join(usual)
        raise InputError(
            f"no scores by {missing} in {evidence.source}",
            hint=suggest_names(missing, evidence.final_scores),
        )
    return chosen


def _find_usual_protocol(evidence: Evidence, usual: Sequence[str]) -> Protocol | None:
    for protocol_name in usual:
        for protocol in evidence.final_scores:
            if protocol_name in (protocol.kind, protocol):
                return protocol
    return None


def _pair_tasks(
    evidence: Evidence,
    options: TestTaskOptions,
    before: ScoreMatrix,
    after: ScoreMatrix,
    counted_after: ScoreMatrix,
    cohort: Cohort,
) -> tuple[list[ScorePair], list[str]]:
    """Return the scores of every task before and after, and who is left out of which tasks."""
    pairs: list[ScorePair] = []
    problems: list[str] = []
    tasks_by_gap: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for task in before.tasks:
        if task not in after.tasks:
            continue
        try:
            guess = _find_chance(before, task, evidence.background.chance, options)
            pairs += pair_scores(before, counted_after, cohort, tasks=[task], chance=guess)
        except InputError as error:
            problems.append(f"{task}: {error.message}")
        for reason, models in explain_unpaired(before, after, cohort, task).items():
            tasks_by_gap.setdefault((reason, models), []).append(task)
    for (reason, models), tasks in tasks_by_gap.items():
        for line in describe_left_out({reason: models}):
            problems.append(f"{join_names(tasks)}: {line}")
    return pairs, problems


def _find_chance(
    matrix: ScoreMatrix, task: str, known_chances: Mapping[str, float], options: TestTaskOptions
) -> float:
    """Return the score of guessing: as given for the task, as known of it, else the number given for the others."""
    stated_chance = options.chance
    if isinstance(stated_chance, Mapping) and task in stated_chance:
        return stated_chance[task]
    metric = matrix.metrics[matrix.tasks.index(task)]
    is_known = find_chance_score(task, metric, known_chances) is not None
    if not is_known and isinstance(stated_chance, (int, float)):
        return float(stated_chance)
    return compute_chance_score(
        task,
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        guess_accuracies=known_chances,
    )


def _keep_tasks_divided_by_exposure(
    pairs: Sequence[ScorePair],
) -> tuple[list[ScorePair], list[str]]:
    """Return the tasks that some models saw and some did not, and why the others are left out."""
    divided = []
    problems = []
    for score_pair in pairs:
        try:
            score_pair.cohort.split_by_exposure(score_pair.task)
            divided.append(score_pair)
        except InputError as error:
            problems.append(f"{score_pair.task} is left out: {error.message}")
    return divided, problems


def _find_exposed_tasks(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """Return which tasks every exposed copy was shown, by the facts."""
    tasks_by_copy = {}
    for exposed_copy in evidence.exposed_copies:
        facts = evidence.facts.find(exposed_copy)
        if facts is not None:
            tasks_by_copy[exposed_copy] = facts.exposure
    return tasks_by_copy


def _find_adjustment_steps(
    evidence: Evidence, options: TestTaskOptions, after: Protocol
) -> AdjustmentSteps:
    stage = Protocol(options.steps) if options.steps else after
    scores: dict[int, ScoreMatrix] = {}
    for protocol, matrix in evidence.scores.items():
        if protocol.step is not None and protocol.base == stage:
            scores[protocol.step] = matrix
    batch = options.batch
    if not batch:
        batch = _find_batch(evidence, stage) if scores else PAPER_BATCH
    return AdjustmentSteps(stage, scores, batch, is_requested=options.steps is not None)


def _find_batch(evidence: Evidence, stage: Protocol) -> int:
    """Return the examples per step of the studies' own tuning; the paper's where no study is known."""
    from potentia.evidence import parse_study_record

    batches = set()
    for study in map(parse_study_record, evidence.studies):
        if study is not None and stage in study.protocols:
            batches.add(_batch_of_study(study, stage))
    if len(batches) > 1:
        sizes = " and ".join(map(str, sorted(batches)))
        raise InputError(
            f"the studies have batches of {sizes} examples: their steps do not compare",
            hint="choose one: --study NAME",
        )
    return batches.pop() if batches else PAPER_BATCH


def _batch_of_study(study: Study, stage: Protocol) -> int:
    tuning = tuning_for_adjust(study) if stage.kind == ADJUST else study.tuning
    return int(tuning.batch)


# --- one task --------------------------------------------------------------------------------------------------------


def _analyze_task(
    score_pair: ScorePair, options: TestTaskOptions, steps: AdjustmentSteps, rates: RateScores
) -> tuple[dict[str, Finding], list[str]]:
    """Return what one task shows, and what is missing; undivided models give what needs no division."""
    outside_models: Sequence[str] = score_pair.cohort.models
    split = None
    problems: list[str] = []
    try:
        split = _divide_models(options, score_pair.cohort, score_pair.task)
        outside_models = score_pair.cohort.select_names(~split.members)
        findings = analyze_score_pair(
            score_pair, split, families=options.families, draws=options.draws, seed=options.seed
        )
        if _has_large_groups(split) and "discrimination" not in findings:
            problems.append(f"the classifiers of the groups take {Extra.TREES.install_command}")
    except InputError as error:
        split = None
        problems.append(error.message)
        findings = {
            "gain": measure_gain(score_pair),
            "ranks": measure_rank_shift(score_pair),
            **_compare_families(score_pair, options.families),
        }
    emergence, emergence_problem = _trace_emergence(score_pair, outside_models, steps)
    findings |= emergence
    if emergence_problem:
        problems.append(emergence_problem)
    chosen = dict(zip(score_pair.cohort.models, score_pair.after.tolist(), strict=True))
    known_rates = {model: by_rate for model, by_rate in rates.items() if model in chosen}
    if known_rates:
        findings["rates"] = compare_rates(
            score_pair.task,
            known_rates,
            score_pair,
            split,
            chosen=chosen,
            draws=options.draws,
            seed=options.seed,
        )
    return findings, problems


def _divide_models(options: TestTaskOptions, cohort: Cohort, task: str) -> ModelSplit:
    """Make the yes/no variable N from the facts of whatever models remain."""
    if options.exposed:
        return cohort.split_by_exposure(task)
    if options.column is None or options.value is None:
        return cohort.split_by_month(options.since or FIRST_NEW_MONTH)
    return cohort.split_by_column(options.column, options.value)


def analyze_score_pair(
    score_pair: ScorePair,
    split: ModelSplit,
    *,
    families: Sequence[str] | None = None,
    draws: int = 1999,
    seed: int = 0,
) -> dict[str, Finding]:
    """Return every finding about one task whose models are divided into two groups.

    Families are compared where at least two have three models; groups told apart where both have five.
    """
    findings: dict[str, Finding] = {
        "adjustment": compare_groups(score_pair, split, draws=draws, seed=seed),
        "mediation": measure_mediation(score_pair, split),
        "gain": measure_gain(score_pair, split),
        "frontier": measure_frontier_shift(score_pair, split),
        "ranks": measure_rank_shift(score_pair),
        **_compare_families(score_pair, families),
    }
    if _has_large_groups(split) and is_installed("sklearn"):
        findings["discrimination"] = measure_discrimination(score_pair, split, seed=seed)
    return findings


def _has_large_groups(split: ModelSplit) -> bool:
    """Say whether both groups are large enough to be told apart by a classifier."""
    smaller_group = min(split.size, len(split.members) - split.size)
    return smaller_group >= MIN_GROUP


def _compare_families(score_pair: ScorePair, families: Sequence[str] | None) -> dict[str, Finding]:
    """Compare the families named, else those with three models where there are two such families."""
    sizes = [score_pair.cohort.family.count(family) for family in set(score_pair.cohort.family)]
    large_families = sum(size >= MIN_FAMILY_MODELS for size in sizes)
    if not families and large_families < 2:
        return {}
    return {"families": compare_families(score_pair, families)}


def _trace_emergence(
    score_pair: ScorePair, models: Sequence[str], steps: AdjustmentSteps
) -> tuple[dict[str, Finding], str]:
    """Trace emergence over the steps of the adjustment, over the models outside the group; else say what is missing."""
    scores_by_examples = {
        0: dict(zip(score_pair.cohort.models, score_pair.before.tolist(), strict=True))
    }
    for step, matrix in steps.scores.items():
        if score_pair.task in matrix.tasks:
            column = matrix.select(tasks=[score_pair.task]).values[:, 0]
            scores = dict(zip(matrix.models, column.tolist(), strict=True))
            scores_by_examples[steps.batch * step] = scores
    if len(scores_by_examples) == 1:
        return {}, steps.missing_reason
    if len(models) < MIN_MODELS:
        return {}, (
            f"no emergence curve: it needs {MIN_MODELS} models outside the group, here: {len(models)}; "
            "a later month for --group, or another fact, leaves more of them outside"
        )
    curve = trace_emergence(
        score_pair.task,
        scores_by_examples,
        score_pair.cohort.select(models),
        chance=score_pair.chance,
        higher_is_better=score_pair.higher_is_better,
        batch=steps.batch,
    )
    return {"emergence": curve}, ""
