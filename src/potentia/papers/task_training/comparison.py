"""The numbers that "Training on the test task" prints, beside ours, in the document's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from potentia.papers.printed import (
    ReproducedNumber,
    compare_claim,
    compare_number,
)
from potentia.papers.task_training.adjustment import (
    GroupScaling,
    SplitComparison,
    TaskAdjustment,
    TreatmentEffect,
)
from potentia.papers.task_training.authors_fit import fit_like_authors
from potentia.papers.task_training.changes import Mediation
from potentia.papers.task_training.discrimination import TREES, Discrimination
from potentia.papers.task_training.emergence import EmergenceCurve
from potentia.papers.task_training.learning_rates import RateBudget
from potentia.papers.task_training.reproduction import (
    CHOICE_FORMS,
    LEADERBOARD,
    BenchmarkResults,
    TaskTrainingPaper,
)
from potentia.papers.task_training.saturation import Saturation
from potentia.papers.task_training.scaling import Coefficient

SIGNIFICANT = 0.05
SMALL_EFFECT = 0.02  # what "small" is taken to mean
EXAMPLES_PRINTED = 64_000  # of figure 8


@dataclass(frozen=True)
class PrintedNumbers:
    """What the document prints of one benchmark."""

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
    """What the document prints of one task of figures 15 and 16; empty strings where it prints nothing."""

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
    """Yield every number of the document that was computed, beside the printed one."""
    yield from _compare_benchmark(paper.mmlu)
    yield from _compare_benchmark(paper.gsm8k)
    if paper.rates is not None:
        yield from _compare_rates(paper.rates)
    if paper.cloze is not None:
        yield _compare_small_effect("figure 5", "mmlu cloze θ", paper.cloze)
    if paper.brier is not None:
        yield _compare_emergence_point("figure 5", "mmlu Brier score c_e", paper.brier, "emerges")
    for name, scaling in paper.forms_before.items():
        yield from _compare_form(name, scaling, paper.forms_after.get(name))
    for name, scaling in paper.form_briers.items():
        yield _compare_emergence_point("figure 18", f"{name} Brier score c_e", scaling, "22 to 23")
    for name, adjustment in paper.leaderboard.items():
        yield from _compare_leaderboard_task(name, adjustment)
    if paper.gpqa_above_zero is not None:
        yield compare_number(
            "figure 15",
            "gpqa θ / (best − worst) before, r = 0",
            paper.gpqa_above_zero.fit.relative_effect,
            PRINTED_LEADERBOARD["gpqa"].relative_effect,
            remark="the authors' notebook has r = 0 for GPQA, not 0.25",
        )


# --- one benchmark of the main text ----------------------------------------------------------------------------------


def _compare_benchmark(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    """Yield the numbers of one benchmark, in the document's order."""
    printed = PRINTED[results.benchmark.name]
    if results.adjustment is not None:
        yield from _compare_adjustment(results.adjustment, printed)
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
    if results.splits is not None:
        yield from _compare_other_splits(results.benchmark.name, results.splits, printed)
    if results.discrimination is not None:
        yield from _compare_discrimination(results.discrimination, printed)
    yield from _compare_ranks(results)
    if results.instruct is not None:
        yield from _compare_instruct(results.benchmark.name, results.instruct)


def _compare_adjustment(
    adjustment: TaskAdjustment, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    before = adjustment.before
    after = adjustment.after
    name = before.task
    yield compare_number(
        "figure 1", f"{name} θ before", before.effect.value, printed.theta, remark=_explain(before)
    )
    yield _compare_significance("figure 1", f"{name} p of θ before", before, is_significant=True)
    if printed.theta_after:
        yield compare_number("figure 1", f"{name} θ after", after.effect.value, printed.theta_after)
        yield _compare_significance("figure 1", f"{name} p of θ after", after, is_significant=False)
    else:
        yield _compare_small_effect("figure 1", f"{name} θ after", after)
    for stage in (before, after):
        yield compare_claim(
            "section 2.2",
            f"{name} R² {stage.stage}",
            stage.fit.r2_above_chance,
            "> 0.9",
            holds=stage.fit.r2_above_chance > 0.9,
            remark=f"about chance, no intercept; about the mean {stage.fit.r2:.3f}",
        )
    yield compare_number(
        "appendix E",
        f"{name} θ / (best − worst)",
        before.fit.relative_effect,
        printed.relative_effect,
    )


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


def _compare_frontier(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    name = results.benchmark.name
    if results.frontier is not None and name == "mmlu":
        yield compare_claim(
            "figure 7",
            f"{name} area of improvement, before / after",
            results.frontier.ratio,
            "sixfold",
            holds=round(results.frontier.ratio) == 6,
        )
    pair = results.pair
    if pair is None or not {"llama-3-8b", "llama-2-70b"} <= set(pair.cohort.models):
        return
    small = pair.cohort.models.index("llama-3-8b")
    large = pair.cohort.models.index("llama-2-70b")
    difference = float(pair.after[small] - pair.after[large])
    before = float(pair.before[small] - pair.before[large])
    yield ReproducedNumber(
        "section 4.2",
        f"{name} after adjustment, Llama 3 8B − Llama 2 70B",
        difference,
        "closely matches",
        agrees=None,  # the text gives no number
        remark=f"before {before:+.3f}",
    )


def _compare_emergence(curve: EmergenceCurve) -> Iterator[ReproducedNumber]:
    if curve.task == "mmlu":
        yield from _compare_printed_emergence(curve)
        return
    first = curve.hinges[0].emergence.value
    last = curve.hinges[-1].emergence.value
    yield compare_claim(
        "figure 19",
        f"{curve.task} c_e, {curve.examples[-1]:,} examples",
        last,
        "lower",
        holds=last < first,
        remark=f"without training {first:.2f}",
    )
    yield compare_claim(
        "figure 19",
        f"{curve.task} log-linear R², {curve.examples[-1]:,} examples",
        curve.lines[-1].r2,
        "higher",
        holds=curve.lines[-1].r2 > curve.lines[0].r2,
        remark=f"without training {curve.lines[0].r2:.2f}",
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
    yield compare_claim(
        "figure 8",
        f"mmlu c_e, {EXAMPLES_PRINTED:,} examples",
        hinge.emergence.value,
        "about 20.8 (6·10²⁰ FLOPs)",
        holds=abs(hinge.emergence.value - np.log10(6e20)) < 0.1,
        remark=f"{10**hinge.emergence.value:.1e} FLOPs; {hinge.n} models",
    )
    yield compare_number(
        "figure 8",
        f"mmlu log-linear R², {EXAMPLES_PRINTED:,} examples",
        curve.lines[index].r2,
        "0.95",
    )


def _compare_saturation(saturation: Saturation) -> Iterator[ReproducedNumber]:
    for gain in saturation.last_gains():
        yield compare_claim(
            "appendix C",
            f"{saturation.task} gain, steps {gain.first_step:,} to {gain.last_step:,}, {gain.side}",
            gain.mean,
            "saturates",
            holds=abs(gain.mean) < 0.01,
            remark=f"s.e. {gain.stderr:.4f}, {gain.models} models; saturated: below 0.01",
        )


def _compare_mediation(mediation: Mediation, printed: PrintedNumbers) -> Iterator[ReproducedNumber]:
    name = mediation.task
    mediated = mediation.mediated
    direct = mediation.direct
    yield compare_number("table 3", f"{name} φ", mediated.value, printed.mediated)
    yield compare_number("table 3", f"{name} s.e. of φ", mediated.stderr, printed.mediated_stderr)
    yield compare_number("table 3", f"{name} R²", mediation.mediated_r2, printed.mediated_r2)
    yield compare_claim(
        "table 3",
        f"{name} p of φ",
        mediated.p,
        "p < 0.05",
        holds=mediated.p < SIGNIFICANT,
        remark=f"by family {mediated.clustered_p:.3f}",
    )
    yield compare_number("table 4", f"{name} ψ", direct.value, printed.direct)
    yield compare_number("table 4", f"{name} s.e. of ψ", direct.stderr, printed.direct_stderr)
    yield compare_number("table 4", f"{name} R²", mediation.direct_r2, printed.direct_r2)
    yield compare_claim(
        "table 4",
        f"{name} p of ψ",
        direct.p,
        "n.s.",
        holds=direct.p >= SIGNIFICANT,
        remark=f"by family {direct.clustered_p:.3f}",
    )


def _compare_other_splits(
    name: str, splits: SplitComparison, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    places = ("figure 11", "figure 12", "figure 13")
    for place, comparison in zip(places, splits.comparisons, strict=True):
        group = f"models {comparison.before.split.label}"
        before = comparison.before
        if place == "figure 13":
            yield compare_number(
                place,
                f"{name} θ before, {group}",
                before.effect.value,
                printed.theta_chinese,
                remark=_explain(before),
            )
        yield _compare_significance(
            place, f"{name} p of θ before, {group}", before, is_significant=True
        )
        yield _compare_small_effect(place, f"{name} θ after, {group}", comparison.after)


def _compare_discrimination(
    discrimination: Discrimination, printed: PrintedNumbers
) -> Iterator[ReproducedNumber]:
    trees = TREES[discrimination.trees]
    before = discrimination.before_interval
    after = discrimination.after_interval
    yield compare_number(
        "table 5",
        f"{discrimination.task} older against newer",
        discrimination.before,
        printed.accuracy,
        remark=f"{discrimination.n} models, {trees}; 95 % {before.low:.2f} to {before.high:.2f}",
    )
    yield compare_number(
        "table 5",
        f"{discrimination.task} tuned older against newer",
        discrimination.after,
        printed.accuracy_tuned,
        remark=f"{discrimination.tuned} models, {trees}; 95 % {after.low:.2f} to {after.high:.2f}",
    )
    yield compare_claim(
        "figure 14",
        f"{discrimination.task} tuned older against newer",
        discrimination.after,
        "close to 0.5",
        holds=after.low < 0.5 < after.high,
        remark=f"95 % {after.low:.2f} to {after.high:.2f}",
    )


def _compare_ranks(results: BenchmarkResults) -> Iterator[ReproducedNumber]:
    if results.ranks is None or results.benchmark.name != "mmlu":
        return
    remark = f"{len(results.ranks.cohort.models)} models are ranked, the paper ranks 56"
    yield compare_number(
        "figure 17", "mmlu mean shift of ranks", results.ranks.mean, "4.8", remark=remark
    )
    yield compare_number(
        "figure 17", "mmlu largest shift of ranks", results.ranks.largest, "16", remark=remark
    )


def _compare_instruct(name: str, adjustment: TaskAdjustment) -> Iterator[ReproducedNumber]:
    yield _compare_significance(
        "figure 20", f"{name} p of θ before, instruct", adjustment.before, is_significant=True
    )
    yield _compare_small_effect("figure 20", f"{name} θ after, instruct", adjustment.after)


# --- other figures ---------------------------------------------------------------------------------------------------


def _compare_rates(rates: RateBudget) -> Iterator[ReproducedNumber]:
    if rates.usual is None or rates.favoured is None:
        return
    yield compare_number(
        "figure 9", "mmlu θ after, rates as chosen", rates.usual.effect.value, "-0.005"
    )
    yield compare_number(
        "figure 9", "mmlu θ after, best rate for newer", rates.favoured.effect.value, "0.005"
    )


def _compare_form(
    name: str, before: GroupScaling, adjustment: TaskAdjustment | None
) -> Iterator[ReproducedNumber]:
    if name not in CHOICE_FORMS:
        yield _compare_small_effect("figure 4", f"{name} θ", before)
        yield compare_claim(
            "figure 18",
            f"{name} c_e",
            before.fit.emergence.value,
            "none",
            holds=before.fit.emergence.value < 22,
            remark="none: below 10²² FLOPs",
        )
        return
    yield compare_claim(
        "figure 4",
        f"{name} θ before",
        before.effect.value,
        "large, p < 0.05",
        holds=before.effect.value > SMALL_EFFECT and before.effect.p < SIGNIFICANT,
        remark=_explain(before),
    )
    if adjustment is not None:
        yield _compare_significance(
            "figure 4", f"{name} p of θ after", adjustment.after, is_significant=False
        )
    yield _compare_emergence_point("figure 18", f"{name} c_e", before, "22 to 23")


def _compare_leaderboard_task(name: str, adjustment: TaskAdjustment) -> Iterator[ReproducedNumber]:
    place = LEADERBOARD[name].figure
    printed = PRINTED_LEADERBOARD[name]
    before = adjustment.before
    after = adjustment.after
    if printed.relative_effect:
        yield compare_number(
            place,
            f"{name} θ / (best − worst) before",
            before.fit.relative_effect,
            printed.relative_effect,
        )
        yield _compare_significance(place, f"{name} p of θ before", before, is_significant=True)
    if printed.theta_after:
        yield compare_number(
            place,
            f"{name} θ after",
            after.effect.value,
            printed.theta_after,
            remark=_explain(after),
        )
    if printed.is_tiny_after:
        yield compare_claim(
            place,
            f"{name} θ after",
            after.effect.value,
            "at most 0.002",
            holds=abs(round(after.effect.value, 3)) <= 0.002,
            remark=_explain(after),
        )
    yield _compare_significance(
        place, f"{name} p of θ after", after, is_significant=printed.is_significant_after
    )
    if printed.reduction:
        yield compare_number(
            place,
            f"{name} reduction of θ by adjustment",
            1 - after.effect.value / before.effect.value,
            printed.reduction,
            remark=_explain_reduction(name),
        )


def _explain_reduction(name: str) -> str:
    if name in ("mmlu_pro", "math_hard"):
        return "the paper seems to have exchanged MMLU Pro and MATH (19 % and 33 %)"
    return ""


# --- claims ----------------------------------------------------------------------------------------------------------


def _compare_significance(
    place: str, what: str, scaling: GroupScaling, *, is_significant: bool
) -> ReproducedNumber:
    """Compare p of θ with what the document calls significant; its errors take no account of families."""
    p = scaling.effect.p
    return compare_claim(
        place,
        what,
        p,
        "p < 0.05" if is_significant else "n.s.",
        holds=(p < SIGNIFICANT) == is_significant,
        remark=f"θ {scaling.effect.value:.3f}; {_describe_p_values(scaling.effect, scaling.fit.wild_p)}",
    )


def _compare_small_effect(place: str, what: str, scaling: GroupScaling) -> ReproducedNumber:
    return compare_claim(
        place,
        what,
        scaling.effect.value,
        "small, n.s.",
        holds=_is_small(scaling.effect),
        remark=f"{scaling.fit.n} models; {_describe_p_values(scaling.effect, scaling.fit.wild_p)}",
    )


def _compare_emergence_point(
    place: str, what: str, scaling: GroupScaling, claim: str
) -> ReproducedNumber:
    """Compare the point of emergence with "10²² to 10²³ FLOPs", where the document sees sharp improvements."""
    emergence = scaling.fit.emergence.value
    return compare_claim(
        place, what, emergence, claim, holds=21.5 <= emergence <= 23.5, remark="of 10²² to 10²³"
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
    text = f"p {effect.p:.3f}, by family {effect.clustered_p:.3f}"
    if np.isfinite(wild_p):
        text += f", wild {wild_p:.3f}"
    return text
