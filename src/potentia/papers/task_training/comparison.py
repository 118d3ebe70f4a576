"""The numbers that "Training on the test task" prints, beside ours, in the paper's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from potentia.analysis.wording import join_names
from potentia.facts import ModelTable
from potentia.papers.printed import (
    ReproducedNumber,
    compare_claim,
    compare_number,
    rounds_to,
)
from potentia.papers.task_training.adjustment import (
    GroupScaling,
    SplitComparison,
    TaskAdjustment,
    TreatmentEffect,
)
from potentia.papers.task_training.authors_fit import fit_like_authors
from potentia.papers.task_training.changes import Mediation, measure_mediation
from potentia.papers.task_training.cohort import Cohort, ScorePair
from potentia.papers.task_training.discrimination import TREES, XGBOOST, Discrimination
from potentia.papers.task_training.emergence import EmergenceCurve
from potentia.papers.task_training.families import FamilyComparison, FamilyCurve
from potentia.papers.task_training.learning_rates import RateBudget
from potentia.papers.task_training.reproduction import (
    CHOICE_FORMS,
    CUTOFF,
    EXAMPLES_PRINTED,
    LEADERBOARD,
    MODELS_IN_PAPER,
    BenchmarkResults,
    PaperBenchmark,
    TaskTrainingPaper,
    read_paper_models,
)
from potentia.papers.task_training.saturation import Saturation
from potentia.papers.task_training.scaling import Coefficient
from potentia.values.findings import Interval

SIGNIFICANT = 0.05
SMALL_EFFECT = 0.02  # what "small" is taken to mean
SMALL_LLAMA = "llama-3-8b"  # is said to match the large one, with about as much compute
LARGE_LLAMA = "llama-2-70b"
# Tasks whose reductions of θ are printed for each other, in the text on figure 15.
EXCHANGED_REDUCTIONS = {
    "mmlu_pro": "math_hard",
    "math_hard": "mmlu_pro",
}


@dataclass(frozen=True)
class PrintedNumbers:
    """What the paper prints of one benchmark."""

    theta: str
    theta_after: str  # empty: "small"
    relative_effect: str
    mediated: str
    mediated_stderr: str
    mediated_r2: str
    direct: str
    direct_stderr: str
    direct_r2: str
    accuracy: str  # of discriminating older models from newer ones
    accuracy_tuned: str
    theta_chinese: str


PRINTED = {
    "mmlu": PrintedNumbers(
        theta="0.073",
        theta_after="-0.005",
        relative_effect="0.153",
        mediated="0.071",
        mediated_stderr="0.018",
        mediated_r2="0.530",
        direct="-0.004",
        direct_stderr="0.009",
        direct_r2="0.926",
        accuracy="0.646",
        accuracy_tuned="0.522",
        theta_chinese="0.09",
    ),
    "gsm8k": PrintedNumbers(
        theta="0.191",
        theta_after="",
        relative_effect="0.250",
        mediated="0.168",
        mediated_stderr="0.032",
        mediated_r2="0.503",
        direct="0.000",
        direct_stderr="0.032",
        direct_r2="0.763",
        accuracy="0.739",
        accuracy_tuned="0.525",
        theta_chinese="0.12",
    ),
}


@dataclass(frozen=True)
class PrintedLeaderboardNumbers:
    """What the paper prints of one task of figures 15 and 16; empty strings where it prints nothing."""

    relative_effect: str = ""  # θ / (best − worst) before
    theta_after: str = ""
    is_tiny_after: bool = False  # "|θ| ≤ 0.002"
    reduction: str = ""  # of θ by adjustment
    is_significant_after: bool = False


PRINTED_LEADERBOARD = {
    "mmlu_pro": PrintedLeaderboardNumbers(
        relative_effect="0.137",
        theta_after="0.024",
        reduction="0.19",
        is_significant_after=True,
    ),
    "gpqa": PrintedLeaderboardNumbers(relative_effect="0.145", is_tiny_after=True),
    "musr": PrintedLeaderboardNumbers(relative_effect="0.121", is_tiny_after=True),
    "bbh": PrintedLeaderboardNumbers(
        relative_effect="0.097", theta_after="0.015", reduction="0.40"
    ),
    "math_hard": PrintedLeaderboardNumbers(
        relative_effect="0.100", reduction="0.33", is_significant_after=True
    ),
    "mmlu_pro_four": PrintedLeaderboardNumbers(theta_after="0.016"),
}


def compare_with_paper(paper: TaskTrainingPaper) -> Iterator[ReproducedNumber]:
    """Yield every number of the paper that was computed, beside the printed one."""
    for line in _compare_models():
        yield replace(line, from_facts=True)
    yield from _compare_benchmark(paper.mmlu)
    yield from _compare_benchmark(paper.gsm8k)
    if paper.rates is not None:
        yield from _compare_rates(paper.rates)
    if paper.cloze is not None:
        yield _compare_small_effect("figure 5", "mmlu cloze θ", paper.cloze)
    if paper.brier is not None:
        yield _compare_emergence_point("figure 5", "mmlu Brier score c_e", paper.brier, "emerges")
    for label, scaling in paper.forms_before.items():
        yield from _compare_form(label, scaling, paper.forms_after.get(label))
    for label, scaling in paper.form_briers.items():
        yield _compare_emergence_point("figure 18", f"{label} Brier score c_e", scaling, "22 to 23")
    for label, adjustment in paper.leaderboard.items():
        yield from _compare_leaderboard_task(label, adjustment, paper.gpqa_above_zero)
    yield from _count_shrinking_differences(paper)


def _count_shrinking_differences(paper: TaskTrainingPaper) -> Iterator[ReproducedNumber]:
    """Yield in how many tasks of figure 15 the difference shrinks, where all five were computed."""
    adjustments = []
    for label, adjustment in paper.leaderboard.items():
        if LEADERBOARD[label].figure == "figure 15":
            adjustments.append(adjustment)
    if len(adjustments) < 5:
        return
    shrinking = 0
    for adjustment in adjustments:
        before = abs(adjustment.before.effect.value)
        after = abs(adjustment.after.effect.value)
        if after < before:
            shrinking += 1
    yield compare_number("figure 15", "tasks whose θ falls by adjustment, of 5", shrinking, "5")


def _compare_models() -> Iterator[ReproducedNumber]:
    """Yield what the text says of the models of appendix B.1, by their facts alone."""
    models = list(read_paper_models())
    base_models = [facts for facts in models if facts.kind != "instruct"]
    base_cohort = Cohort.from_facts(table=ModelTable(base_models))
    yield compare_number("section 2", "base models listed in B.1", len(base_models), "56")
    instruct_models = len(models) - len(base_models)
    yield compare_number(
        "appendix G",
        "instruct and chat models listed in B.1.1",
        instruct_models,
        "36",
        remark="the list has one model less than the text",
    )
    yield _compare_smallest_newer_model(base_cohort)
    sizes = [facts.size / 1e9 for facts in base_models if facts.size is not None]
    extremes = (("smallest", min(sizes), "0.07"), ("largest", max(sizes), "70"))
    for extreme, size, printed_size in extremes:
        yield compare_number(
            "section 2", f"billions of parameters, the {extreme} base model", size, printed_size
        )
    yield from _compare_pythia_compute(base_cohort)


def _compare_smallest_newer_model(base_cohort: Cohort) -> ReproducedNumber:
    is_newer = base_cohort.split_by_month(CUTOFF).members
    newer = base_cohort.select(base_cohort.select_names(is_newer))
    smallest = int(newer.compute.argmin())
    compute = float(newer.compute[smallest])
    return compare_claim(
        "section 3.1",
        "log₁₀ FLOPs of the smallest newer model",
        float(np.log10(compute)),
        "7·10²¹ FLOPs",
        holds=rounds_to(compute / 1e21, "7"),
        remark=f"{newer.models[smallest]}, {compute:.1e} FLOPs",
    )


def _compare_pythia_compute(base_cohort: Cohort) -> Iterator[ReproducedNumber]:
    for name, printed_flops in (("6.9B", 1e22), ("410M", 6e20)):
        model = base_cohort.models.index(f"pythia-{name.lower()}")
        flops = float(base_cohort.compute[model])
        yield compare_claim(
            "section 5",
            f"log₁₀ FLOPs of Pythia {name}",
            float(np.log10(flops)),
            f"about {np.log10(printed_flops):.3g}",
            holds=abs(np.log10(flops / printed_flops)) < 0.1,  # 26 % more or 21 % less
            remark=f"{flops:.1e} FLOPs; the text has {printed_flops:.0e}",
        )


# --- one benchmark of the main text ----------------------------------------------------------------------------------


def _compare_benchmark(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    """Yield the numbers of one benchmark, in the paper's order."""
    printed = PRINTED[results.benchmark.name]
    if results.unadjusted is not None:
        yield from _compare_unadjusted(results.unadjusted, printed)
    if results.adjustment is not None:
        yield from _compare_unadjusted(results.adjustment.before, printed)
        yield from _compare_adjusted(results.adjustment.after, printed)
    yield from _compare_gain(results)
    if results.treatment is not None:
        yield from _compare_treatment(results.treatment, printed)
    yield from _compare_families(results)
    yield from _compare_frontier(results)
    if results.emergence is not None:
        yield from _compare_emergence(results.emergence)
    if results.saturation is not None:
        yield from _compare_saturation(results.saturation)
    if results.mediation is not None:
        yield from _compare_mediation(results.mediation, printed)
        yield from _compare_literal_mediation(results, printed)
    if results.splits is not None:
        yield from _compare_other_splits(results.benchmark.name, results.splits, printed)
    if results.discrimination is not None:
        yield from _compare_discrimination(results.discrimination, printed)
    yield from _compare_ranks(results)
    if results.instruct is not None:
        yield from _compare_instruct(results.benchmark.name, results.instruct)


def _compare_unadjusted(
    before: GroupScaling, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    """Yield what figure 1 and the text say of the models as they are."""
    label = before.task
    cohort = _describe_cohort(before.cohort)
    yield compare_number(
        "figure 1",
        f"{label} θ before",
        before.effect.value,
        printed.theta,
        remark=f"{cohort}; {_explain(before)}",
    )
    yield _compare_significance("figure 1", f"{label} p of θ before", before, is_significant=True)
    yield _compare_fit(before)
    yield compare_number(
        "appendix E",
        f"{label} θ / (best − worst)",
        before.fit.relative_effect,
        printed.relative_effect,
        remark=cohort,
    )


def _compare_adjusted(after: GroupScaling, printed: PrintedNumbers) -> Iterator[ReproducedNumber]:
    """Yield what figure 1 and the text say of the models after adjustment."""
    label = after.task
    if printed.theta_after:
        yield compare_number(
            "figure 1", f"{label} θ after", after.effect.value, printed.theta_after
        )
        yield _compare_significance(
            "figure 1", f"{label} p of θ after", after, is_significant=False
        )
    else:
        yield _compare_small_effect("figure 1", f"{label} θ after", after)
    yield _compare_fit(after)


def _compare_fit(scaling: GroupScaling) -> ReproducedNumber:
    """Return how well equation 1 fits, about chance as in the paper."""
    return compare_claim(
        "section 2.2",
        f"{scaling.task} R² {scaling.stage}",
        scaling.fit.r2_above_chance,
        "> 0.9",
        holds=scaling.fit.r2_above_chance > 0.9,
        remark=f"about chance, no intercept; about the mean {scaling.fit.r2:.3f}",
    )


def _describe_cohort(cohort: Cohort) -> str:
    return f"{len(cohort.models)} of the paper's {MODELS_IN_PAPER} models"


def _compare_gain(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    if results.gain is None:
        return
    gain_of_newer, gain_of_older = results.gain.means
    yield compare_claim(
        "figure 2",
        f"{results.benchmark.name} mean gain of older models",
        gain_of_older,
        "larger",
        holds=gain_of_older > gain_of_newer,
        remark=f"newer models: {gain_of_newer:.3f}",
    )


def _compare_treatment(
    effect: TreatmentEffect, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    theta = effect.before.theta
    counts = f"{len(effect.treated)} treated, {len(effect.control)} not"
    yield compare_claim(
        "figure 3",
        f"{effect.task} θ of treatment before adjustment",
        theta.value,
        f"slightly above {printed.theta}, p < 0.05",
        holds=theta.value > float(printed.theta) and theta.p < SIGNIFICANT,
        remark=f"{counts}; {_describe_p_values(theta, effect.before.wild_p)}",
    )
    if effect.after is not None:
        theta = effect.after.theta
        yield compare_claim(
            "figure 3",
            f"{effect.task} θ of treatment after adjustment",
            theta.value,
            "small, n.s.",
            holds=_is_small(theta),
            remark=_describe_p_values(theta, effect.after.wild_p),
        )


def _compare_families(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    if results.families is None:
        return
    residuals = results.families.residuals()
    qwen_before, qwen_after = residuals["Qwen 1.5"]
    yield compare_claim(
        "figure 6",
        f"{results.benchmark.name} Qwen 1.5 above the common line",
        qwen_before,
        "superior before, not after",
        holds=qwen_before > SMALL_EFFECT > qwen_after,
        remark=f"after adjustment {qwen_after:.3f}",
    )
    yield from _compare_pareto_dominance(results.benchmark, results.families)


def _compare_pareto_dominance(
    benchmark: PaperBenchmark, families: FamilyComparison
) -> Iterator[ReproducedNumber]:
    """Yield section 4.1: before adjustment, Qwen 1.5 Pareto dominates Llama 2 and Pythia, and Pythia only guesses."""
    curves = {curve.family: curve for curve in families.curves}
    exceptions: list[str] = []
    for rival_name in ("Llama 2", "Pythia"):
        exceptions += _list_models_above(curves[rival_name], curves["Qwen 1.5"])
    yield compare_claim(
        "section 4.1",
        f"{benchmark.name} Llama 2 and Pythia models above every Qwen 1.5 of no more compute",
        len(exceptions),
        "Qwen 1.5 Pareto dominates",
        holds=not exceptions,
        remark="; ".join(exceptions),
    )
    pythia = curves["Pythia"]
    best = int(pythia.before.argmax())
    yield ReproducedNumber(
        "section 4.1",
        f"{benchmark.name} best Pythia model less chance",
        float(pythia.before[best]) - benchmark.chance,
        "no better than chance",
        agrees=None,  # the text gives no number
        remark=f"{pythia.models[best]}, {pythia.before[best]:.3f}",
    )


def _list_models_above(rival: FamilyCurve, family: FamilyCurve) -> list[str]:
    """Describe the models of a rival that score more than every model of a family with no more compute."""
    models_above = []
    for model, compute, score in zip(rival.models, rival.log_compute, rival.before, strict=True):
        family_scores = family.before[family.log_compute <= compute]
        if not family_scores.size:
            continue
        best_score = family_scores.max()
        if best_score < score:
            models_above.append(f"{model} {score:.3f} against {best_score:.3f}")
    return models_above


def _compare_frontier(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    label = results.benchmark.name
    if results.frontier is not None and label == "mmlu":
        cohort = ""
        if results.pair is not None:
            cohort = _describe_cohort(results.pair.cohort)
        yield compare_claim(
            "figure 7",
            f"{label} area of improvement, before / after",
            results.frontier.ratio,
            "sixfold",
            holds=rounds_to(results.frontier.ratio, "6"),
            remark=cohort,
        )
    if results.pair is not None and {SMALL_LLAMA, LARGE_LLAMA} <= set(results.pair.cohort.models):
        yield _compare_llamas(label, results.pair)


def _compare_llamas(label: str, score_pair: ScorePair) -> ReproducedNumber:
    """Return section 4.2: after adjustment, Llama 3 8B scores about as Llama 2 70B, of about as much compute."""
    small = score_pair.cohort.models.index(SMALL_LLAMA)
    large = score_pair.cohort.models.index(LARGE_LLAMA)
    difference = float(score_pair.after[small] - score_pair.after[large])
    before = float(score_pair.before[small] - score_pair.before[large])
    compute = f"{_write_flops(score_pair, small)} and {_write_flops(score_pair, large)} FLOPs"
    return ReproducedNumber(
        "section 4.2",
        f"{label} after adjustment, Llama 3 8B − Llama 2 70B",
        difference,
        "closely matches",
        agrees=None,  # the text gives no number
        remark=f"before {before:+.3f}; {compute}",
    )


def _write_flops(score_pair: ScorePair, model: int) -> str:
    return f"{score_pair.cohort.compute[model]:.1e}"


def _compare_emergence(curve: EmergenceCurve) -> Iterator[ReproducedNumber]:
    if curve.task == "mmlu":
        yield from _compare_printed_emergence(curve)
        return
    first_emergence = curve.hinges[0].emergence.value
    last_emergence = curve.hinges[-1].emergence.value
    first_r2 = curve.lines[0].r2
    last_r2 = curve.lines[-1].r2
    examples = f"{curve.examples[-1]:,} examples"
    yield compare_claim(
        "figure 19",
        f"{curve.task} c_e, {examples}",
        last_emergence,
        "lower",
        holds=last_emergence < first_emergence,
        remark=f"without training {first_emergence:.2f}",
    )
    yield compare_claim(
        "figure 19",
        f"{curve.task} log-linear R², {examples}",
        last_r2,
        "higher",
        holds=last_r2 > first_r2,
        remark=f"without training {first_r2:.2f}",
    )


def _compare_printed_emergence(curve: EmergenceCurve) -> Iterator[ReproducedNumber]:
    """Yield figure 8: the models before any training, and after 64,000 examples."""
    start = curve.hinges[0]
    yield compare_claim(
        "figure 8",
        "mmlu c_e, 0 examples",
        start.emergence.value,
        "about 22 (10²² FLOPs)",
        holds=round(start.emergence.value) == 22,
        remark=f"{start.n} models",
    )
    yield compare_number("figure 8", "mmlu log-linear R², 0 examples", curve.lines[0].r2, "0.63")
    if EXAMPLES_PRINTED not in curve.examples:
        return
    index = curve.examples.index(EXAMPLES_PRINTED)
    hinge = curve.hinges[index]
    emergence = hinge.emergence.value
    yield compare_claim(
        "figure 8",
        f"mmlu c_e, {EXAMPLES_PRINTED:,} examples",
        emergence,
        "about 20.8 (6·10²⁰ FLOPs)",
        holds=abs(emergence - np.log10(6e20)) < 0.1,
        remark=f"{10**emergence:.1e} FLOPs; {hinge.n} models",
    )
    yield compare_number(
        "figure 8",
        f"mmlu log-linear R², {EXAMPLES_PRINTED:,} examples",
        curve.lines[index].r2,
        "0.95",
    )


def _compare_saturation(saturation: Saturation) -> Iterator[ReproducedNumber]:
    for last_gain in saturation.last_gains():
        steps = f"steps {last_gain.first_step:,} to {last_gain.last_step:,}"
        gain = last_gain.gain
        interval = f"95 % interval {gain.low:+.4f} to {gain.high:+.4f}"
        yield compare_claim(
            "appendix C",
            f"{saturation.task} gain, {steps}, {last_gain.side}",
            gain.value,
            "saturates",
            holds=abs(gain.value) < 0.01,
            remark=f"{interval}, {last_gain.models} models; saturated: below 0.01",
        )


def _compare_mediation(mediation: Mediation, printed: PrintedNumbers) -> Iterator[ReproducedNumber]:
    label = mediation.task
    mediated = mediation.mediated
    direct = mediation.direct
    yield compare_number("table 3", f"{label} φ", mediated.value, printed.mediated)
    yield compare_number("table 3", f"{label} s.e. of φ", mediated.stderr, printed.mediated_stderr)
    yield compare_number("table 3", f"{label} R²", mediation.mediated_r2, printed.mediated_r2)
    yield compare_claim(
        "table 3",
        f"{label} p of φ",
        mediated.p,
        "p < 0.05",
        holds=mediated.p < SIGNIFICANT,
        remark=f"by family {mediated.clustered_p:.3f}",
    )
    yield compare_number("table 4", f"{label} ψ", direct.value, printed.direct)
    yield compare_number("table 4", f"{label} s.e. of ψ", direct.stderr, printed.direct_stderr)
    yield compare_number("table 4", f"{label} R²", mediation.direct_r2, printed.direct_r2)
    yield compare_claim(
        "table 4",
        f"{label} p of ψ",
        direct.p,
        "n.s.",
        holds=direct.p >= SIGNIFICANT,
        remark=f"by family {direct.clustered_p:.3f}",
    )


def _compare_literal_mediation(
    results: BenchmarkResults, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    """Yield φ by equation 2 as it is printed, and its error by families as section 2.2 says: neither is in table 3."""
    if results.pair is None or results.mediation is None:
        return
    split = results.pair.cohort.split_by_month(CUTOFF)
    literal = measure_mediation(results.pair, split, jumps=True)
    yield compare_number(
        "appendix C",
        f"{literal.task} φ by equation 2 as printed",
        literal.mediated.value,
        printed.mediated,
        remark="it jumps at the knots; tables 3 and 4 come out where only the slope changes",
    )
    yield compare_number(
        "section 2.2",
        f"{literal.task} s.e. of φ, clustered by family",
        results.mediation.mediated.clustered_stderr,
        printed.mediated_stderr,
        remark="the text clusters errors; table 3 prints those of independent models",
    )


CHINESE_MODELS = "figure 13"
FIGURES_OF_SPLITS = ("figure 11", "figure 12", CHINESE_MODELS)


def _compare_other_splits(
    label: str, splits: SplitComparison, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    for location, comparison in zip(FIGURES_OF_SPLITS, splits.comparisons, strict=True):
        group = f"models {comparison.before.split.label}"
        before = comparison.before
        if location == CHINESE_MODELS:
            yield compare_number(
                location,
                f"{label} θ before, {group}",
                before.effect.value,
                printed.theta_chinese,
                remark=_explain(before),
            )
        yield _compare_significance(
            location, f"{label} p of θ before, {group}", before, is_significant=True
        )
        yield _compare_small_effect(location, f"{label} θ after, {group}", comparison.after)


def _compare_discrimination(
    discrimination: Discrimination, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    trees = TREES[discrimination.trees]
    after = discrimination.after_interval
    interval_before = _write_interval(discrimination.before_interval)
    interval_after = _write_interval(after)
    yield _require_xgboost(
        discrimination,
        "table 5",
        f"{discrimination.task} older against newer",
        discrimination.before,
        printed.accuracy,
        remark=f"{discrimination.n} models, {trees}; {interval_before}",
    )
    yield _require_xgboost(
        discrimination,
        "table 5",
        f"{discrimination.task} tuned older against newer",
        discrimination.after,
        printed.accuracy_tuned,
        remark=f"{discrimination.scored_after} models, {trees}; {interval_after}",
    )
    yield compare_claim(
        "figure 14",
        f"{discrimination.task} tuned older against newer",
        discrimination.after,
        "close to 0.5",
        holds=after.low < 0.5 < after.high,
        remark=interval_after,
    )


def _require_xgboost(
    discrimination: Discrimination,
    location: str,
    quantity: str,
    our_value: float,
    printed: str,
    remark: str,
) -> ReproducedNumber:
    """Compare an accuracy with the paper's, if it is of the paper's classifiers: other trees say nothing of it."""
    line = compare_number(location, quantity, our_value, printed, remark=remark)
    if discrimination.trees == XGBOOST:
        return line
    return replace(line, agrees=None, needs="XGBoost")


def _write_interval(interval: Interval) -> str:
    return f"95 % {interval.low:.2f} to {interval.high:.2f}"


def _compare_ranks(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    if results.ranks is None or results.benchmark.name != "mmlu":
        return
    remark = _describe_cohort(results.ranks.cohort)
    yield compare_number(
        "figure 17", "mmlu mean shift of ranks", results.ranks.mean, "4.8", remark=remark
    )
    yield compare_number(
        "figure 17", "mmlu largest shift of ranks", results.ranks.largest, "16", remark=remark
    )


def _compare_instruct(label: str, adjustment: TaskAdjustment) -> Iterator[ReproducedNumber]:
    yield _compare_significance(
        "figure 20", f"{label} p of θ before, instruct", adjustment.before, is_significant=True
    )
    yield _compare_small_effect("figure 20", f"{label} θ after, instruct", adjustment.after)


# --- other figures ---------------------------------------------------------------------------------------------------


def _compare_rates(rates: RateBudget) -> Iterator[ReproducedNumber]:
    if rates.usual is None or rates.favoured is None:
        return
    swept = f"{len(rates.models)} models at {len(rates.rates)} learning rates"
    for quantity, scaling, printed in (
        ("mmlu θ after, rates as chosen", rates.usual, "-0.005"),
        ("mmlu θ after, best rate for newer", rates.favoured, "0.005"),
    ):
        yield compare_number(
            "figure 9",
            quantity,
            scaling.effect.value,
            printed,
            remark=f"{swept}; {_explain(scaling)}",
        )
    if len(rates.rates) >= 3:  # two ends, and rates between them
        best_at_an_end = np.fmax(rates.values[:, 0], rates.values[:, -1])
        best_inside = np.fmax.reduce(rates.values[:, 1:-1], axis=1)
        models_at_an_end = list(compress(rates.models, best_at_an_end > best_inside))
        yield compare_claim(
            "appendix B.3",
            "models whose best rate ends the sweep",
            len(models_at_an_end),
            "Pythia 70M alone",
            holds=models_at_an_end == ["pythia-70m"],
            remark=join_names(models_at_an_end),
        )


def _compare_form(
    label: str, before: GroupScaling, adjustment: TaskAdjustment | None
) -> Iterator[ReproducedNumber]:
    if label not in CHOICE_FORMS:
        yield _compare_small_effect("figure 4", f"{label} θ", before)
        yield compare_claim(
            "figure 18",
            f"{label} c_e",
            before.fit.emergence.value,
            "none",
            holds=before.fit.emergence.value < 22,
            remark="none: below 10²² FLOPs",
        )
        return
    yield compare_claim(
        "figure 4",
        f"{label} θ before",
        before.effect.value,
        "large, p < 0.05",
        holds=before.effect.value > SMALL_EFFECT and before.effect.p < SIGNIFICANT,
        remark=_explain(before),
    )
    if adjustment is not None:
        yield _compare_significance(
            "figure 4", f"{label} p of θ after", adjustment.after, is_significant=False
        )
    yield _compare_emergence_point("figure 18", f"{label} c_e", before, "22 to 23")


def _compare_leaderboard_task(
    label: str, adjustment: TaskAdjustment, gpqa_above_zero: GroupScaling | None
) -> Iterator[ReproducedNumber]:
    location = LEADERBOARD[label].figure
    printed = PRINTED_LEADERBOARD[label]
    before = adjustment.before
    after = adjustment.after
    if printed.relative_effect:
        remark = ""
        if label == "gpqa" and gpqa_above_zero is not None:
            above_zero = gpqa_above_zero.fit.relative_effect
            remark = f"{above_zero:.3f} above r = 0, which the authors' notebook has for GPQA"
        yield compare_number(
            location,
            f"{label} θ / (best − worst) before",
            before.fit.relative_effect,
            printed.relative_effect,
            remark=remark,
        )
        yield _compare_with_main_text(location, label, before)
        yield _compare_significance(location, f"{label} p of θ before", before, is_significant=True)
    if printed.theta_after:
        yield compare_number(
            location,
            f"{label} θ after",
            after.effect.value,
            printed.theta_after,
            remark=_explain(after),
        )
    if printed.is_tiny_after:
        yield compare_claim(
            location,
            f"{label} θ after",
            after.effect.value,
            "|θ| ≤ 0.002 (rounded)",
            holds=abs(round(after.effect.value, 3)) <= 0.002,
            remark=_explain(after),
        )
    if printed.is_significant_after:
        yield compare_claim(
            location,
            f"{label} θ after, the text's bound",
            after.effect.value,
            "at least 0.01",
            holds=after.effect.value >= 0.01,
        )
    yield _compare_significance(
        location, f"{label} p of θ after", after, is_significant=printed.is_significant_after
    )
    if printed.reduction:
        yield compare_number(
            location,
            f"{label} reduction of θ by adjustment",
            1 - after.effect.value / before.effect.value,
            printed.reduction,
            remark=_explain_reduction(label, adjustment),
        )


def _compare_with_main_text(location: str, label: str, before: GroupScaling) -> ReproducedNumber:
    """Compare θ before adjustment with that of MMLU, the smaller one of figure 1."""
    theta = before.effect.value
    return compare_claim(
        location,
        f"{label} θ before",
        theta,
        f"below {PRINTED['mmlu'].theta} of MMLU",
        holds=0 < theta < float(PRINTED["mmlu"].theta),
    )


def _explain_reduction(label: str, adjustment: TaskAdjustment) -> str:
    """Say what the rounded θ of the authors' fits give, where the paper has exchanged two tasks."""
    if label not in EXCHANGED_REDUCTIONS:
        return ""
    before = round(fit_like_authors(adjustment.before).theta, 3)
    after = round(fit_like_authors(adjustment.after).theta, 3)
    other_label = EXCHANGED_REDUCTIONS[label]
    return (
        f"{1 - after / before:.2f} by the authors' rounded θ ({before:.3f}, {after:.3f}): "
        f"the paper prints it for {other_label}"
    )


# --- claims ----------------------------------------------------------------------------------------------------------


def _compare_significance(
    location: str, quantity: str, scaling: GroupScaling, *, is_significant: bool
) -> ReproducedNumber:
    """Compare p of θ with what the paper calls significant; its errors take no account of families."""
    p_value = scaling.effect.p
    p_values = _describe_p_values(scaling.effect, scaling.fit.wild_p)
    return compare_claim(
        location,
        quantity,
        p_value,
        "p < 0.05" if is_significant else "n.s.",
        holds=(p_value < SIGNIFICANT) == is_significant,
        remark=f"θ {scaling.effect.value:.3f}; {p_values}",
    )


def _compare_small_effect(location: str, quantity: str, scaling: GroupScaling) -> ReproducedNumber:
    p_values = _describe_p_values(scaling.effect, scaling.fit.wild_p)
    return compare_claim(
        location,
        quantity,
        scaling.effect.value,
        "small, n.s.",
        holds=_is_small(scaling.effect),
        remark=f"{scaling.fit.n} models; {p_values}",
    )


def _compare_emergence_point(
    location: str, quantity: str, scaling: GroupScaling, claim: str
) -> ReproducedNumber:
    """Compare the point of emergence with "10²² to 10²³ FLOPs", where the paper sees sharp improvements."""
    emergence = scaling.fit.emergence.value
    return compare_claim(
        location,
        quantity,
        emergence,
        claim,
        holds=21.5 <= emergence <= 23.5,
        remark="of 10²² to 10²³",
    )


def _is_small(effect: Coefficient) -> bool:
    return abs(effect.value) <= SMALL_EFFECT and effect.p >= SIGNIFICANT


def _explain(scaling: GroupScaling) -> str:
    """Say where the authors' optimizer stops short of the least squares, and give the other p-values."""
    p_values = _describe_p_values(scaling.effect, scaling.fit.wild_p)
    local = fit_like_authors(scaling)
    if not local.is_local_optimum:
        return p_values
    return (
        f"the authors' optimizer stops at θ {local.theta:.3f} (sum of squares {local.squares:.4f}, "
        f"least {local.least_squares:.4f}); {p_values}"
    )


def _describe_p_values(effect: Coefficient, wild_p: float) -> str:
    text = f"p {_write_p(effect.p)}, by family {_write_p(effect.clustered_p)}"
    if np.isfinite(wild_p):
        text += f", wild {_write_p(wild_p)}"
    return text


def _write_p(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
