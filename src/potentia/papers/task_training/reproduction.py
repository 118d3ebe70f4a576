"""The numbers of "Training on the test task confounds evaluation and emergence", ours beside the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from potentia.analysis.left_out import drop_names_in, keep_names_in
from potentia.formats import StagedScores
from potentia.papers.task_training.adjustment import (
    GroupScaling,
    SplitComparison,
    TaskAdjustment,
    TreatmentEffect,
    compare_groups,
    compare_treated_copies,
    fit_groups,
)
from potentia.papers.task_training.changes import (
    Mediation,
    RankShift,
    TuningGain,
    measure_gain,
    measure_mediation,
    measure_rank_shift,
)
from potentia.papers.task_training.cohort import (
    Cohort,
    ScorePair,
    pair_scores,
    take_better_scores,
)
from potentia.papers.task_training.discrimination import (
    TREES,
    Discrimination,
    measure_discrimination,
)
from potentia.papers.task_training.emergence import EmergenceCurve, trace_emergence
from potentia.papers.task_training.evaluations import EvaluationTree
from potentia.papers.task_training.families import FamilyComparison, compare_families
from potentia.papers.task_training.frontier import FrontierShift, measure_frontier_shift
from potentia.values.findings import Finding, Findings, Table, jsonable

CUTOFF = "2023-11"
OTHER_CUTOFFS = ("2023-09", "2024-01")  # figures 11 and 12
BATCH = 64
STEPS_TO_DISCRIMINATE = 1000  # models tuned on 64,000 examples
EXACT_MATCH = "exact_match|flexible-extract"
FAMILY_PREFIXES = {  # figure 6, by the models' names
    "Pythia": "pythia-",
    "Llama 2": "llama-2-",
    "Qwen 1.5": "qwen-1.5-",
}
METRICS = ("acc_norm", "acc", "exact_match")
CHOICE_FORMS = ("arc_challenge_mc", "hellaswag_mc")
FORMS = (  # figures 4 and 18: as cloze and as choice
    "arc_challenge",
    "arc_challenge_mc",
    "hellaswag",
    "hellaswag_mc",
)


@dataclass(frozen=True)
class PublishedBenchmark:
    """Where the published file keeps one benchmark, and what the document says about it."""

    name: str
    metric: str
    chance: float
    tuned: str
    steps: str
    auxiliary: str  # data that its models were tuned on, in the authors' evaluation tree


MMLU = PublishedBenchmark(
    name="mmlu",
    metric="acc",
    chance=0.25,
    tuned="tuned_mc_3ep",
    steps="inter_mc",
    auxiliary="mmluaux",
)
GSM8K = PublishedBenchmark(
    name="gsm8k",
    metric=EXACT_MATCH,
    chance=0.0,
    tuned="tuned_math_3ep",
    steps="inter_math",
    auxiliary="gsm8kaux",
)


@dataclass(frozen=True)
class LeaderboardTask:
    """A task of figure 15 or 16: auxiliary data, guessing, and what is printed."""

    auxiliary: str
    chance: float
    printed_relative_effect: str  # θ / (best − worst) before
    printed_effect_after: str
    figure: str = "15"


LEADERBOARD = {
    "mmlu_pro": LeaderboardTask("mmluaux", 0.1, "0.137", "19 % less, p < 0.05"),
    "gpqa": LeaderboardTask("mmluaux", 0.25, "0.145", "at most 0.002, n.s."),
    "musr": LeaderboardTask("mmluaux", (1 / 2 + 1 / 5 + 1 / 3) / 3, "0.121", "at most 0.002, n.s."),
    "bbh": LeaderboardTask("mmluaux", 0.3, "0.097", "0.015, n.s."),
    "math_hard": LeaderboardTask("gsm8kaux", 0.0, "0.100", "33 % less, p < 0.05"),
    "mmlu_pro_four": LeaderboardTask("mmluaux", 0.25, "", "0.016, n.s.", figure="16"),
}


@dataclass(frozen=True)
class PrintedNumbers:
    """What the document prints of one benchmark."""

    theta: str
    theta_after: str
    relative_effect: str
    mediated: str
    mediated_r2: str
    direct: str
    direct_r2: str
    accuracy: str  # of telling older models from newer ones
    accuracy_tuned: str
    theta_chinese: str


PRINTED = {
    "mmlu": PrintedNumbers(
        theta="0.073",
        theta_after="-0.005",
        relative_effect="0.153",
        mediated="0.071 (0.018)",
        mediated_r2="0.530",
        direct="-0.004 (0.009)",
        direct_r2="0.926",
        accuracy="0.646",
        accuracy_tuned="0.522",
        theta_chinese="0.09",
    ),
    "gsm8k": PrintedNumbers(
        theta="0.191",
        theta_after="small",
        relative_effect="0.250",
        mediated="0.168 (0.032)",
        mediated_r2="0.503",
        direct="0.000 (0.032)",
        direct_r2="0.763",
        accuracy="0.739",
        accuracy_tuned="0.525",
        theta_chinese="0.12",
    ),
}


@dataclass(frozen=True)
class ReproducedNumber:
    """One number of the document: where it stands, ours, the printed one, and a remark."""

    place: str
    what: str
    ours: float
    printed: str
    remark: str = ""


@dataclass(frozen=True)
class BenchmarkResults(Findings):
    """Every finding on one benchmark, in the document's order."""

    benchmark: PublishedBenchmark
    adjustment: TaskAdjustment
    gain: TuningGain
    treatment: TreatmentEffect | None  # figure 3, where the models after one epoch are at hand
    families: FamilyComparison
    frontier: FrontierShift
    emergence: EmergenceCurve
    mediation: Mediation
    splits: SplitComparison
    discrimination: Discrimination
    ranks: RankShift


@dataclass(frozen=True)
class TaskTrainingPaper(Findings):
    """The whole reproduction: every number that the published scores allow, beside the printed one."""

    mmlu: BenchmarkResults
    gsm8k: BenchmarkResults
    cloze: GroupScaling
    brier: GroupScaling
    leaderboard: dict[str, TaskAdjustment]  # figures 15 and 16
    reformulated: dict[str, TaskAdjustment]  # figure 4: as cloze and as choice
    reformulated_brier: dict[str, GroupScaling]  # figure 18
    missing: tuple[str, ...]

    def lines(self) -> tuple[ReproducedNumber, ...]:
        """Return every comparison with a printed number or claim."""
        return tuple(_compare_paper(self))

    def named(self) -> dict[str, Finding]:
        """Return every finding: figures 1, 2, 5 to 8, 17 and 19; with the evaluation tree also 3, 4, 15, 16 and 18."""
        briers = {f"{name}-brier": finding for name, finding in self.reformulated_brier.items()}
        return {**super().named(), **self.leaderboard, **self.reformulated, **briers}

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers beside the printed ones, and every finding."""
        return {"lines": jsonable(self.lines()), **Finding.to_dict(self)}

    def tables(self) -> Sequence[Table]:
        """Return ours beside printed first, then each finding, then what cannot be reached."""
        comparison = Table(
            "Training on the test task: ours beside the paper's",
            ("where", "number", "ours", "paper", "remark"),
            [astuple(line) for line in self.lines()],
            f"{self.mmlu.adjustment.before.fit.n} models; the paper has 56: three Qwen 2 models are not in the "
            "published files. After adjustment: per model the better of both scores, as in the paper.",
        )
        missing = Table("Not in what was given", ("what",), [(line,) for line in self.missing])
        return (comparison, *super().tables(), missing)


# --- findings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PaperData:
    """What the numbers are computed from, and how the bootstrap draws."""

    scores: StagedScores
    cohort: Cohort
    tree: EvaluationTree
    draws: int
    seed: int


def reproduce_task_training(
    scores: StagedScores,
    cohort: Cohort,
    evaluations: EvaluationTree | None = None,
    *,
    draws: int = 1999,
    seed: int = 0,
) -> TaskTrainingPaper:
    """Compute every number and figure that the published scores, and the authors' evaluation tree, allow."""
    data = PaperData(
        scores=scores,
        cohort=cohort,
        tree=evaluations or EvaluationTree("", {}),
        draws=draws,
        seed=seed,
    )
    cloze_scores = scores.scores("base", "mmlu_cloze", "acc")
    brier_scores = scores.scores("base", "mmlu", "brier_score")
    return TaskTrainingPaper(
        mmlu=_analyze_benchmark(data, MMLU),
        gsm8k=_analyze_benchmark(data, GSM8K),
        cloze=_fit_untuned(data, "mmlu_cloze acc", cloze_scores),
        brier=_fit_untuned(data, "mmlu brier_score", brier_scores, is_brier=True),
        leaderboard=_analyze_leaderboard(data),
        reformulated=_analyze_forms(data),
        reformulated_brier=_analyze_form_briers(data),
        missing=_list_missing(data),
    )


def _analyze_benchmark(data: PaperData, benchmark: PublishedBenchmark) -> BenchmarkResults:
    name = benchmark.name
    metric = benchmark.metric
    base = data.scores.matrix("base", {name: metric})
    tuned = data.scores.matrix(benchmark.tuned, {name: metric})
    (pair,) = pair_scores(
        base, take_better_scores(base, tuned), data.cohort, chance={name: benchmark.chance}
    )
    cohort = pair.cohort
    split = cohort.split_by_month(CUTOFF)
    base_scores = data.scores.scores("base", name, metric)
    step_scores = data.scores.steps(benchmark.steps, name, metric)
    older = cohort.select(cohort.select_names(~split.members))
    scores_by_examples = {0: base_scores}
    for step, step_score in step_scores.items():
        scores_by_examples[BATCH * step] = step_score
    tuned_on_the_way = [
        step_scores[STEPS_TO_DISCRIMINATE].get(model, np.nan) for model in cohort.models
    ]
    families = {
        family: [model for model in cohort.models if model.startswith(prefix)]
        for family, prefix in FAMILY_PREFIXES.items()
    }
    other_splits = [cohort.split_by_month(cutoff) for cutoff in OTHER_CUTOFFS]
    other_splits.append(cohort.split_by_column("language", "en+cn"))
    comparisons = [
        compare_groups(pair, other, draws=data.draws, seed=data.seed) for other in other_splits
    ]
    return BenchmarkResults(
        benchmark=benchmark,
        adjustment=compare_groups(pair, split, draws=data.draws, seed=data.seed),
        gain=measure_gain(pair, split),
        treatment=_measure_treatment(data, benchmark, base_scores, older),
        families=compare_families(pair, families),
        frontier=measure_frontier_shift(pair, split),
        emergence=trace_emergence(name, scores_by_examples, older, chance=benchmark.chance),
        mediation=measure_mediation(pair, split),
        splits=SplitComparison(tuple(comparisons)),
        discrimination=measure_discrimination(
            replace(pair, after=np.array(tuned_on_the_way)), split, seed=data.seed
        ),
        ranks=measure_rank_shift(pair),
    )


def _measure_treatment(
    data: PaperData, benchmark: PublishedBenchmark, base_scores: Mapping[str, float], older: Cohort
) -> TreatmentEffect | None:
    """Return figure 3: older models and their copies tuned for an epoch; then all tuned for two epochs more.

    A model keeps the best of its scores so far, as in all of the document's numbers.
    """

    def read_scores(stage: str) -> dict[str, float]:
        return data.tree.scores(
            f"{stage}/{benchmark.auxiliary}", benchmark.name, "acc", "exact_match"
        )

    once = read_scores("e1")
    if not once:
        return None
    treated = _keep_best(once, base_scores)
    return compare_treated_copies(
        benchmark.name,
        base_scores,
        treated,
        older,
        control_adjusted=_keep_best(read_scores("e2"), base_scores),
        treated_adjusted=_keep_best(read_scores("e1+2"), treated),
        chance=benchmark.chance,
        draws=data.draws,
        seed=data.seed,
    )


def _keep_best(
    scores: Mapping[str, float], earlier_scores: Mapping[str, float]
) -> dict[str, float]:
    return {model: max(score, earlier_scores.get(model, score)) for model, score in scores.items()}


def _fit_untuned(
    data: PaperData, task: str, scores: Mapping[str, float], *, is_brier: bool = False
) -> GroupScaling:
    """Fit the models as they are, in another form or metric (figures 5 and 18)."""
    models = keep_names_in(data.cohort.models, scores)
    cohort = data.cohort.select(models)
    return fit_groups(
        task,
        cohort,
        np.array([scores[model] for model in models]),
        cohort.split_by_month(CUTOFF),
        chance=0.75 if is_brier else 0.25,
        higher_is_better=not is_brier,
        draws=data.draws,
        seed=data.seed,
    )


def _analyze_leaderboard(data: PaperData) -> dict[str, TaskAdjustment]:
    """Return figures 15 and 16, as far as the tree holds their tasks."""
    adjustments = {}
    for name, task in LEADERBOARD.items():
        adjustment = _compare_in_tree(
            data,
            name,
            f"leaderboard_{name}",
            ("new_evals/base", f"new_evals/{task.auxiliary}"),
            task.chance,
        )
        if adjustment is not None:
            adjustments[name] = adjustment
    return adjustments


def _analyze_forms(data: PaperData) -> dict[str, TaskAdjustment]:
    """Return figure 4, as far as the tree holds its tasks."""
    adjustments = {}
    for name in FORMS:
        adjustment = _compare_in_tree(data, name, name, ("base", "e3/mmluaux"), 0.25)
        if adjustment is not None:
            adjustments[name] = adjustment
    return adjustments


def _compare_in_tree(
    data: PaperData, name: str, tree_task: str, stages: tuple[str, str], chance: float
) -> TaskAdjustment | None:
    """Compare newer with older models on one task of the tree, before and after; None where it is not there."""
    scores_before = data.tree.scores(stages[0], tree_task, *METRICS)
    scores_after = data.tree.scores(stages[1], tree_task, *METRICS)
    models = keep_names_in(data.cohort.models, scores_before, scores_after)
    if not models:
        return None
    cohort = data.cohort.select(models)
    before = np.array([scores_before[model] for model in models])
    after = np.array([scores_after[model] for model in models])
    pair = ScorePair(
        task=name, cohort=cohort, before=before, after=np.maximum(before, after), chance=chance
    )
    return compare_groups(pair, cohort.split_by_month(CUTOFF), draws=data.draws, seed=data.seed)


def _analyze_form_briers(data: PaperData) -> dict[str, GroupScaling]:
    """Return figure 18 by Brier scores, as far as the tree holds its tasks."""
    fits = {}
    for name in CHOICE_FORMS:
        scores = data.tree.scores("base", name, "brier_score")
        if keep_names_in(data.cohort.models, scores):
            fits[name] = _fit_untuned(data, f"{name} brier_score", scores, is_brier=True)
    return fits


# --- what is missing -------------------------------------------------------------------------------------------------


def _list_missing(data: PaperData) -> tuple[str, ...]:
    """Say what cannot be computed, from what is there and what is not."""
    reasons: dict[str, str] = {}
    for benchmark in (MMLU, GSM8K):
        stages = [f"{stage}/{benchmark.auxiliary}" for stage in ("e1", "e2", "e1+2")]
        reasons[f"Figure 3, {benchmark.name}"] = _describe_missing_files(
            data.tree, stages, [benchmark.name]
        )
    reasons["Figures 4 and 18"] = _describe_missing_files(data.tree, ["base", "e3/mmluaux"], FORMS)
    for name, task in LEADERBOARD.items():
        stages = ["new_evals/base", f"new_evals/{task.auxiliary}"]
        reasons[f"Figure {task.figure}, {name}"] = _describe_missing_files(
            data.tree, stages, [f"leaderboard_{name}"]
        )
    missing = [f"{what}: {reason}" for what, reason in reasons.items() if reason]
    if not any("rate" in stage for stage in (*data.scores.stages(), *data.tree.files)):
        missing.append("Figure 9 (B.3): no stage of the scores is a sweep of learning rates")
    if not any("chat" in model or "instruct" in model for model in data.cohort.models):
        missing.append("Figure 20: no instruction-tuned or chat model is among the models")
    qwen = [f"qwen-2-{size}" for size in ("0.5b", "1.5b", "7b")]
    absent = drop_names_in(qwen, data.cohort.models)
    if absent:
        missing.append(f"{', '.join(absent)} in every number: no scores of them")
    return tuple(missing)


def _describe_missing_files(
    tree: EvaluationTree, stages: Sequence[str], tasks: Sequence[str]
) -> str:
    """Name the first files that are not in the tree; empty where all are."""
    missing = []
    for stage in stages:
        missing += [f"{stage}/*-{task}.json" for task in tasks if not tree.has_results(stage, task)]
    if not missing:
        return ""
    more = " …" if len(missing) > 3 else ""
    return f"{', '.join(missing[:3])}{more} are not there"


# --- ours beside printed ---------------------------------------------------------------------------------------------


def _compare_paper(paper: TaskTrainingPaper) -> Iterator[ReproducedNumber]:
    yield from _compare_benchmark(paper.mmlu)
    yield from _compare_benchmark(paper.gsm8k)
    yield _compare_theta("figure 5", "mmlu cloze θ", paper.cloze, "small, n.s.")
    emergence = paper.brier.fit.emergence.value
    yield ReproducedNumber(
        "figure 5",
        "mmlu Brier score c_e",
        emergence,
        printed="still emerges",
        remark=f"10^{emergence:.1f} FLOPs",
    )
    for name, adjustment in paper.leaderboard.items():
        yield from _compare_leaderboard_task(name, adjustment)
    for name, adjustment in paper.reformulated.items():
        yield from _compare_form(name, adjustment)
    for name, scaling in paper.reformulated_brier.items():
        emergence = scaling.fit.emergence.value
        yield ReproducedNumber(
            "figure 18", f"{name} Brier score c_e", emergence, printed="22 to 23"
        )


def _compare_leaderboard_task(name: str, adjustment: TaskAdjustment) -> Iterator[ReproducedNumber]:
    task = LEADERBOARD[name]
    place = f"figure {task.figure}"
    if task.printed_relative_effect:
        yield ReproducedNumber(
            place,
            f"{name} θ / (best − worst) before",
            adjustment.before.fit.relative_effect,
            printed=task.printed_relative_effect,
            remark=_describe_p_values(adjustment.before),
        )
    yield _compare_theta(place, f"{name} θ before", adjustment.before, "p < 0.05")
    yield _compare_theta(place, f"{name} θ after", adjustment.after, task.printed_effect_after)


def _compare_form(name: str, adjustment: TaskAdjustment) -> Iterator[ReproducedNumber]:
    is_choice = name in CHOICE_FORMS
    printed_theta = "large, p < 0.05" if is_choice else "small, n.s."
    yield _compare_theta("figure 4", f"{name} θ before", adjustment.before, printed_theta)
    yield _compare_theta("figure 4", f"{name} θ after", adjustment.after, "n.s.")
    yield ReproducedNumber(
        "figure 18",
        f"{name} c_e",
        adjustment.before.fit.emergence.value,
        printed="22 to 23" if is_choice else "none",
    )


def _compare_benchmark(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    """Yield the numbers of one benchmark, in the document's order."""
    name = results.benchmark.name
    printed = PRINTED[name]
    yield from _compare_adjustment(results, printed)
    if results.treatment is not None:
        yield from _compare_treatment(results.treatment, printed)
    if name == "mmlu":
        yield ReproducedNumber(
            "figure 7",
            f"{name} area of improvement, before / after",
            results.frontier.ratio,
            printed="sixfold",
        )
    yield from _compare_emergence(results)
    yield from _compare_mediation(results.mediation, printed)
    yield from _compare_other_splits(results, printed)
    yield from _compare_discrimination(results.discrimination, printed)
    if name == "mmlu":
        yield ReproducedNumber(
            "figure 17",
            f"{name} mean shift of ranks",
            results.ranks.mean,
            printed="4.8",
            remark="the paper ranks 56 models",
        )
        yield ReproducedNumber(
            "figure 17", f"{name} largest shift of ranks", results.ranks.largest, printed="16"
        )


def _compare_adjustment(
    results: BenchmarkResults, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    name = results.benchmark.name
    before = results.adjustment.before
    after = results.adjustment.after
    yield _compare_theta("figure 1", f"{name} θ before", before, f"{printed.theta}, p < 0.05")
    yield _compare_theta("figure 1", f"{name} θ after", after, f"{printed.theta_after}, n.s.")
    for stage in (before, after):
        yield ReproducedNumber(
            "section 2.2",
            f"{name} R² {stage.stage}",
            stage.fit.r2_above_chance,
            printed="> 0.9",
            remark="about chance, no intercept",
        )
    yield ReproducedNumber(
        "appendix E",
        f"{name} θ / (best − worst)",
        before.fit.relative_effect,
        printed=printed.relative_effect,
    )
    gain_of_newer, gain_of_older = results.gain.means
    yield ReproducedNumber(
        "figure 2",
        f"{name} mean gain of older models",
        gain_of_older,
        printed="larger",
        remark=f"newer models: {gain_of_newer:.3f}",
    )


def _compare_treatment(
    effect: TreatmentEffect, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    stages = [("before", effect.before, f"slightly above {printed.theta}")]
    if effect.after is not None:
        stages.append(("after", effect.after, "small, n.s."))
    for stage, fit, printed_theta in stages:
        yield ReproducedNumber(
            "figure 3",
            f"{effect.task} θ of treatment {stage} adjustment",
            fit.theta.value,
            printed=printed_theta,
            remark=f"{len(effect.treated)} treated, {len(effect.control)} not; "
            f"p by family {fit.theta.clustered_p:.3f}",
        )


def _compare_emergence(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    curve = results.emergence
    name = results.benchmark.name
    place = "figure 19"
    printed_by_examples: dict[int, tuple[str, str]] = {}
    if name == "mmlu":
        place = "figure 8"
        printed_by_examples = {0: ("about 22", "0.63"), 64000: ("20.8 (6·10²⁰)", "0.95")}
    for examples in (0, 64000, curve.examples[-1]):
        index = curve.examples.index(examples)
        printed_emergence, printed_r2 = printed_by_examples.get(examples, ("falls", "rises"))
        hinge = curve.hinges[index]
        yield ReproducedNumber(
            place,
            f"{name} c_e, {examples:,} examples",
            hinge.emergence.value,
            printed=printed_emergence,
            remark=f"{hinge.n} models",
        )
        yield ReproducedNumber(
            place,
            f"{name} log-linear R², {examples:,} examples",
            curve.lines[index].r2,
            printed=printed_r2,
        )


def _compare_mediation(mediation: Mediation, printed: PrintedNumbers) -> Iterator[ReproducedNumber]:
    mediated = mediation.mediated
    direct = mediation.direct
    yield ReproducedNumber(
        "table 3",
        f"{mediation.task} φ",
        mediated.value,
        printed=printed.mediated,
        remark=f"s.e. {mediated.stderr:.4f}, p {mediated.p:.4f}",
    )
    yield ReproducedNumber(
        "table 3", f"{mediation.task} R²", mediation.mediated_r2, printed=printed.mediated_r2
    )
    yield ReproducedNumber(
        "table 4",
        f"{mediation.task} ψ",
        direct.value,
        printed=printed.direct,
        remark=f"s.e. {direct.stderr:.4f}, p {direct.p:.4f}",
    )
    yield ReproducedNumber(
        "table 4", f"{mediation.task} R²", mediation.direct_r2, printed=printed.direct_r2
    )


def _compare_other_splits(
    results: BenchmarkResults, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    name = results.benchmark.name
    places = {
        "figure 11": "robust",
        "figure 12": "robust",
        "figure 13": f"{printed.theta_chinese}, p < 0.05",
    }
    comparisons = results.splits.comparisons
    for comparison, (place, printed_theta) in zip(comparisons, places.items(), strict=True):
        group = f"models {comparison.before.split.label}"
        before = f"{name} θ before, {group}"
        yield _compare_theta(place, before, comparison.before, printed_theta)
        yield _compare_theta(place, f"{name} θ after, {group}", comparison.after, "n.s.")


def _compare_discrimination(
    discrimination: Discrimination, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    trees = TREES[discrimination.trees]
    before = discrimination.before_interval
    after = discrimination.after_interval
    yield ReproducedNumber(
        "table 5",
        f"{discrimination.task} older against newer",
        discrimination.before,
        printed=printed.accuracy,
        remark=f"{discrimination.n} models, {trees}; 95 % {before.low:.2f} to {before.high:.2f}",
    )
    yield ReproducedNumber(
        "table 5",
        f"{discrimination.task} tuned older against newer",
        discrimination.after,
        printed=printed.accuracy_tuned,
        remark=f"{discrimination.tuned} models, {trees}; 95 % {after.low:.2f} to {after.high:.2f}",
    )


def _compare_theta(place: str, what: str, scaling: GroupScaling, printed: str) -> ReproducedNumber:
    return ReproducedNumber(
        place, what, scaling.effect.value, printed=printed, remark=_describe_p_values(scaling)
    )


def _describe_p_values(scaling: GroupScaling) -> str:
    by_family = f"p by family {scaling.effect.clustered_p:.3f}"
    if np.isfinite(scaling.fit.wild_p):
        return f"{by_family}, wild {scaling.fit.wild_p:.3f}"
    return by_family
