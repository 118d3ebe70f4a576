"""The numbers of "Training on the test task confounds evaluation and emergence", ours beside the printed ones.

The authors' evaluation tree holds lm-eval's result files, by stage and auxiliary data.

``base/MODEL-TASK.json``, ``e1/mmluaux/MODEL-TASK.json`` and so on: models as they are (``base``), after one, two or
three epochs on auxiliary data (``e1``, ``e2``, ``e3``), after one epoch as treatment and two more as adjustment
(``e1+2``), at steps on the way (``intermediate``), and on the leaderboard's second version (``new_evals``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from potentia.analysis.left_out import drop_names_in, keep_names_in
from potentia.errors import DataError
from potentia.formats import StagedScores
from potentia.papers.task_training import adjustment as adjusting
from potentia.papers.task_training import changes
from potentia.papers.task_training.cohort import Cohort, Pair, best_of, pair_up
from potentia.values.findings import Finding, Findings, Table, jsonable

Scores = dict[str, float]  # by model


@dataclass(frozen=True)
class Evaluations:
    """What lies in the tree: stage → task → model → its results."""

    where: str
    found: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
    skipped: tuple[str, ...] = ()  # files that are no results

    @classmethod
    def read(cls, folder: Path) -> Evaluations:
        """Read every result file below a folder; a stage is the path to it, as ``e1/mmluaux``."""
        if not folder.is_dir():
            raise DataError(
                "there is no such folder",
                where=str(folder),
                hint="give the folder of the evaluations",
            )
        top = folder
        while (
            not any(top.glob("*.json"))
            and len(inside := [p for p in top.iterdir() if p.is_dir()]) == 1
        ):
            top = inside[0]  # archives hold one folder that holds all
        found: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
        skipped = []
        for path in sorted(top.rglob("*.json")):
            try:
                whole = json.loads(path.read_text("utf-8"))
                task = max(
                    (key for key in whole["results"] if path.stem.endswith(f"-{key}")), key=len
                )
            except (OSError, ValueError, KeyError, TypeError):
                skipped.append(str(path.relative_to(top)))
                continue
            stage = path.parent.relative_to(top).as_posix()
            found.setdefault(stage, {}).setdefault(task, {})[path.stem.removesuffix(f"-{task}")] = (
                whole
            )
        if not found:
            raise DataError(
                "no lm-eval results", where=str(folder), hint="files are called MODEL-TASK.json"
            )
        return cls(str(folder), found, tuple(skipped))

    def has(self, stage: str, task: str) -> bool:
        """Say whether there are results of a task at a stage."""
        return task in self.found.get(stage, {})

    def scores(self, stage: str, task: str, *metrics: str) -> Scores:
        """Return the score of every model by the first of the metrics that its file has.

        MMLU is the mean over its 57 subjects, as in the document; lm-eval's own is the mean over questions.
        """
        made = {}
        names = [f"{metric},{filtered}" for metric in metrics for filtered in FILTERS]
        for model, whole in self.found.get(stage, {}).get(task, {}).items():
            results = whole["results"]
            if own := next(filter(results[task].__contains__, names), ""):
                single = [
                    of
                    for name, of in results.items()
                    if name not in whole.get("groups", {}) and own in of
                ]
                leaves = single if task.startswith("mmlu") and single else [results[task]]
                made[model] = float(np.mean([of[own] for of in leaves]))
        return made


FILTERS = ("flexible-extract", "none")


CUTOFF = "2023-11"
BATCH = 64
EXACT_MATCH = "exact_match|flexible-extract"
FAMILIES = {
    "Pythia": "pythia-",
    "Llama 2": "llama-2-",
    "Qwen 1.5": "qwen-1.5-",
}  # figure 6, by the models' names


@dataclass(frozen=True)
class Benchmark:
    """Where the published file keeps one benchmark, and what the document says about it."""

    name: str
    metric: str
    chance: float
    tuned: str
    steps: str
    auxiliary: str  # data that its models were tuned on, in the authors' evaluation tree


MMLU = Benchmark("mmlu", "acc", 0.25, "tuned_mc_3ep", "inter_mc", "mmluaux")
GSM8K = Benchmark("gsm8k", EXACT_MATCH, 0.0, "tuned_math_3ep", "inter_math", "gsm8kaux")
METRICS = ("acc_norm", "acc", "exact_match")
# Figures 15 and 16: auxiliary data, guessing, and what is printed: θ / (best − worst) before, θ after.
LEADERBOARD = {
    "mmlu_pro": ("mmluaux", 0.1, "0.137", "19 % less, p < 0.05"),
    "gpqa": ("mmluaux", 0.25, "0.145", "at most 0.002, n.s."),
    "musr": ("mmluaux", (1 / 2 + 1 / 5 + 1 / 3) / 3, "0.121", "at most 0.002, n.s."),
    "bbh": ("mmluaux", 0.3, "0.097", "0.015, n.s."),
    "math_hard": ("gsm8kaux", 0.0, "0.100", "33 % less, p < 0.05"),
    "mmlu_pro_four": ("mmluaux", 0.25, "", "0.016, n.s."),
}
FORMS = (
    "arc_challenge",
    "arc_challenge_mc",
    "hellaswag",
    "hellaswag_mc",
)  # figures 4 and 18: as cloze and as choice


@dataclass(frozen=True)
class Line:
    """One number of the document: where it stands, ours, the printed one, and a remark."""

    place: str
    what: str
    ours: float
    printed: str
    remark: str = ""


@dataclass(frozen=True)
class BenchmarkResults(Findings):
    """Every finding on one benchmark, in the document's order."""

    benchmark: Benchmark
    adjustment: adjusting.TaskAdjustment
    gain: changes.Gain
    treatment: adjusting.Treatment | None  # figure 3, where the models after one epoch are at hand
    families: changes.FamilyComparison
    frontier: adjusting.FrontierShift
    emergence: adjusting.EmergenceCurve
    mediation: changes.Mediation
    splits: adjusting.SplitComparison
    discrimination: changes.Discrimination
    ranks: changes.RankShift


@dataclass(frozen=True)
class TaskTrainingPaper(Findings):
    """The whole reproduction: every number that the published scores allow, beside the printed one."""

    mmlu: BenchmarkResults
    gsm8k: BenchmarkResults
    cloze: adjusting.GroupScaling
    brier: adjusting.GroupScaling
    leaderboard: dict[str, adjusting.TaskAdjustment]  # figures 15 and 16
    reformulated: dict[str, adjusting.TaskAdjustment]  # figure 4: as cloze and as choice
    reformulated_brier: dict[str, adjusting.GroupScaling]  # figure 18
    missing: tuple[str, ...]

    def lines(self) -> tuple[Line, ...]:
        """Return every comparison with a printed number or claim."""
        return tuple(_lines(self))

    def named(self) -> dict[str, Finding]:
        """Return every finding: figures 1, 2, 5 to 8, 17 and 19; with the evaluation tree also 3, 4, 15, 16 and 18."""
        briers = {f"{name}-brier": found for name, found in self.reformulated_brier.items()}
        return {**super().named(), **self.leaderboard, **self.reformulated, **briers}

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers beside the printed ones, and every finding."""
        return {"lines": jsonable(self.lines()), **Finding.to_dict(self)}

    def tables(self) -> Sequence[Table]:
        """Return ours beside printed first, then each finding, then what cannot be reached."""
        title = "Training on the test task: ours beside the paper's"
        columns = ("where", "number", "ours", "paper", "remark")
        note = (
            f"{self.mmlu.adjustment.before.fit.n} models; the paper has 56: three Qwen 2 models are not in the "
            "published files. After adjustment: per model the better of both scores, as in the paper."
        )
        gone = Table("Not in what was given", ("what",), zip(self.missing, strict=True))
        return (Table(title, columns, map(astuple, self.lines()), note), *super().tables(), gone)


def reproduce_task_training(
    scores: StagedScores,
    cohort: Cohort,
    evaluations: Evaluations | None = None,
    *,
    draws: int = 1999,
    seed: int = 0,
) -> TaskTrainingPaper:
    """Compute every number and figure that the published scores, and the authors' evaluation tree, allow."""
    tree = evaluations or Evaluations("", {})
    how: dict[str, Any] = {"draws": draws, "seed": seed}
    mmlu, gsm8k = (_benchmark(scores, cohort, b, tree, how) for b in (MMLU, GSM8K))
    published = {
        task: scores.scores("base", *task)
        for task in (("mmlu_cloze", "acc"), ("mmlu", "brier_score"))
    }
    cloze, brier = (
        _as_they_are(" ".join(task), cohort, by_model, how) for task, by_model in published.items()
    )
    assert cloze is not None
    assert brier is not None
    boards: dict[str, Any] = {
        name: _compared(
            tree, cohort, name, ("new_evals/base", f"new_evals/{data}"), chance, how, "leaderboard_"
        )
        for name, (data, chance, *_) in LEADERBOARD.items()
    }
    forms: dict[str, Any] = {
        name: _compared(tree, cohort, name, ("base", "e3/mmluaux"), 0.25, how) for name in FORMS
    }
    values = {name: tree.scores("base", name, "brier_score") for name in FORMS[1::2]}
    briers: dict[str, Any] = {
        name: _as_they_are(f"{name} brier_score", cohort, by, how) for name, by in values.items()
    }
    found = [
        {name: one for name, one in of.items() if one is not None} for of in (boards, forms, briers)
    ]
    return TaskTrainingPaper(
        mmlu, gsm8k, cloze, brier, found[0], found[1], found[2], _missing(scores, tree, cohort)
    )


def _compared(
    tree: Evaluations,
    cohort: Cohort,
    name: str,
    stages: tuple[str, str],
    chance: float,
    how: Mapping[str, Any],
    prefix: str = "",  # of the task in the tree
) -> adjusting.TaskAdjustment | None:
    """Compare newer with older models on one task of the tree, before and after; None where it is not there."""
    first, second = (tree.scores(stage, prefix + name, *METRICS) for stage in stages)
    models = keep_names_in(cohort.models, first, second)
    if not models:
        return None
    here = cohort.select(models)
    before, tuned = (np.array([by[m] for m in models]) for by in (first, second))
    pair = Pair(name, here, before, np.maximum(before, tuned), chance)
    return adjusting.compare_groups(pair, here.since(CUTOFF), **how)


def _as_they_are(
    task: str, cohort: Cohort, scores: Mapping[str, float], how: Mapping[str, Any]
) -> adjusting.GroupScaling | None:
    """Fit the models as they are, in another form or metric (figures 5 and 18); None where there are no scores."""
    models = keep_names_in(cohort.models, scores)
    if not models:
        return None
    here, falls = cohort.select(models), task.endswith("brier_score")
    values, chance = np.array([scores[m] for m in models]), 0.75 if falls else 0.25
    return adjusting.scale_groups(
        task, here, values, here.since(CUTOFF), chance=chance, higher_is_better=not falls, **how
    )


def _missing(scores: StagedScores, tree: Evaluations, cohort: Cohort) -> tuple[str, ...]:
    """Say what cannot be computed, from what is there and what is not."""

    def lacks(stages: Sequence[str], tasks: Sequence[str]) -> str:
        gone = [
            f"{stage}/*-{task}.json"
            for stage in stages
            for task in tasks
            if not tree.has(stage, task)
        ]
        return f"{', '.join(gone[:3])}{' …' if len(gone) > 3 else ''} are not there" if gone else ""

    needed = {
        f"Figure 3, {b.name}": lacks(
            [f"{stage}/{b.auxiliary}" for stage in ("e1", "e2", "e1+2")], [b.name]
        )
        for b in (MMLU, GSM8K)
    }
    needed["Figures 4 and 18"] = lacks(["base", "e3/mmluaux"], FORMS)
    for name, (data, *_) in LEADERBOARD.items():
        figure = "Figure 16" if name == "mmlu_pro_four" else "Figure 15"
        needed[f"{figure}, {name}"] = lacks(
            ["new_evals/base", f"new_evals/{data}"], [f"leaderboard_{name}"]
        )
    told = [f"{what}: {why}" for what, why in needed.items() if why]
    if not any("rate" in stage for stage in (*scores.stages(), *tree.found)):
        told.append("Figure 9 (B.3): no stage of the scores is a sweep of learning rates")
    if not any("chat" in model or "instruct" in model for model in cohort.models):
        told.append("Figure 20: no instruction-tuned or chat model is among the models")
    qwen = [f"qwen-2-{size}" for size in ("0.5b", "1.5b", "7b")]
    if absent := drop_names_in(qwen, cohort.models):
        told.append(f"{', '.join(absent)} in every number: no scores of them")
    return tuple(told)


def _treatment(
    tree: Evaluations, b: Benchmark, base: dict[str, float], older: Cohort, how: Mapping[str, Any]
) -> adjusting.Treatment | None:
    """Return figure 3: older models and their copies tuned for an epoch; then all tuned for two epochs more.

    A model keeps the best of its scores so far, as in all of the document's numbers.
    """
    once, twice, both = (
        tree.scores(f"{stage}/{b.auxiliary}", b.name, "acc", "exact_match")
        for stage in ("e1", "e2", "e1+2")
    )
    if not once:
        return None

    def best(scores: dict[str, float], so_far: dict[str, float]) -> dict[str, float]:
        return {model: max(value, so_far.get(model, value)) for model, value in scores.items()}

    treated = best(once, base)
    how = {**how, "control_adjusted": best(twice, base), "treated_adjusted": best(both, treated)}
    return adjusting.compare_copies(b.name, base, treated, older, chance=b.chance, **how)


def _benchmark(
    scores: StagedScores, cohort: Cohort, b: Benchmark, tree: Evaluations, how: Mapping[str, Any]
) -> BenchmarkResults:
    base, tuned = (scores.matrix(stage, {b.name: b.metric}) for stage in ("base", b.tuned))
    (pair,) = pair_up(base, best_of(base, tuned), cohort, chance={b.name: b.chance})
    here = pair.cohort
    split = here.since(CUTOFF)
    before, steps = scores.scores("base", b.name, b.metric), scores.steps(b.steps, b.name, b.metric)
    older = here.select(here.named(~split.members))
    trace = {0: before, **{BATCH * step: found for step, found in steps.items()}}
    on_the_way = np.array(
        [steps[1000].get(m, np.nan) for m in here.models]
    )  # tuned on 64,000 examples
    families = {
        name: [m for m in here.models if m.startswith(start)] for name, start in FAMILIES.items()
    }
    others = here.since("2023-09"), here.since("2024-01"), here.where("language", "en+cn")
    return BenchmarkResults(
        benchmark=b,
        adjustment=adjusting.compare_groups(pair, split, **how),
        gain=changes.measure_gain(pair, split),
        treatment=_treatment(tree, b, before, older, how),
        families=changes.compare_families(pair, families),
        frontier=adjusting.frontier_shift(pair, split),
        emergence=adjusting.trace_emergence(b.name, trace, older, chance=b.chance),
        mediation=changes.mediate(pair, split),
        splits=adjusting.SplitComparison(
            tuple(adjusting.compare_groups(pair, other, **how) for other in others)
        ),
        discrimination=changes.discriminate(
            replace(pair, after=on_the_way), split, seed=how["seed"]
        ),
        ranks=changes.shift_of_ranks(pair),
    )


def _lines(paper: TaskTrainingPaper) -> Iterator[Line]:
    for part in (paper.mmlu, paper.gsm8k):
        yield from _benchmark_lines(part)
    yield _theta("figure 5", "mmlu cloze θ", paper.cloze, "small, n.s.")
    point = paper.brier.fit.emergence.value
    yield Line("figure 5", "mmlu Brier score c_e", point, "still emerges", f"10^{point:.1f} FLOPs")
    for name, found in paper.leaderboard.items():
        *_, relative, adjusted = LEADERBOARD[name]
        place = "figure 16" if name == "mmlu_pro_four" else "figure 15"
        if relative:
            share = found.before.fit.relative_effect
            yield Line(
                place, f"{name} θ / (best − worst) before", share, relative, _verdict(found.before)
            )
        yield _theta(place, f"{name} θ before", found.before, "p < 0.05")
        yield _theta(place, f"{name} θ after", found.after, adjusted)
    for name, found in paper.reformulated.items():
        choice = name.endswith("_mc")
        yield _theta(
            "figure 4",
            f"{name} θ before",
            found.before,
            "large, p < 0.05" if choice else "small, n.s.",
        )
        yield _theta("figure 4", f"{name} θ after", found.after, "n.s.")
        yield Line(
            "figure 18",
            f"{name} c_e",
            found.before.fit.emergence.value,
            "22 to 23" if choice else "none",
        )
    for name, one in paper.reformulated_brier.items():
        yield Line("figure 18", f"{name} Brier score c_e", one.fit.emergence.value, "22 to 23")


PRINTED = {
    "mmlu": (
        "0.073",
        "-0.005",
        "0.153",
        ("0.071 (0.018)", "0.530"),
        ("-0.004 (0.009)", "0.926"),
        "0.646",
        "0.522",
    ),
    "gsm8k": (
        "0.191",
        "small",
        "0.250",
        ("0.168 (0.032)", "0.503"),
        ("0.000 (0.032)", "0.763"),
        "0.739",
        "0.525",
    ),
}
CHINESE = {"mmlu": "0.09", "gsm8k": "0.12"}


def _benchmark_lines(part: BenchmarkResults) -> Iterator[Line]:
    name, fits, m, d = part.benchmark.name, part.adjustment, part.mediation, part.discrimination
    theta, theta_after, relative, table3, table4, apart, tuned_apart = PRINTED[name]
    yield _theta("figure 1", f"{name} θ before", fits.before, f"{theta}, p < 0.05")
    yield _theta("figure 1", f"{name} θ after", fits.after, f"{theta_after}, n.s.")
    for stage, fit in (("before", fits.before.fit), ("after", fits.after.fit)):
        yield Line(
            "section 2.2",
            f"{name} R² {stage}",
            fit.r2_above_chance,
            "> 0.9",
            "about chance, no intercept",
        )
    yield Line(
        "appendix E", f"{name} θ / (best − worst)", fits.before.fit.relative_effect, relative
    )
    newer, older = part.gain.means
    yield Line(
        "figure 2",
        f"{name} mean gain of older models",
        older,
        "larger",
        f"newer models: {newer:.3f}",
    )
    if part.treatment is not None:
        yield from _treated(part.treatment, theta)
    if name == "mmlu":
        yield Line(
            "figure 7",
            f"{name} area of improvement, before / after",
            part.frontier.ratio,
            "sixfold",
        )
    yield from _emergence(part)
    for place, what, effect, r2, said in (
        ("table 3", "φ", m.mediated, m.mediated_r2, table3),
        ("table 4", "ψ", m.direct, m.direct_r2, table4),
    ):
        yield Line(
            place,
            f"{name} {what}",
            effect.value,
            said[0],
            f"s.e. {effect.stderr:.4f}, p {effect.p:.4f}",
        )
        yield Line(place, f"{name} R²", r2, said[1])
    for one, place in zip(
        part.splits.comparisons, ("figure 11", "figure 12", "figure 13"), strict=True
    ):
        before = f"{CHINESE[name]}, p < 0.05" if place == "figure 13" else "robust"
        group = f"models {one.before.split.label}"
        yield _theta(place, f"{name} θ before, {group}", one.before, before)
        yield _theta(place, f"{name} θ after, {group}", one.after, "n.s.")
    for who, value, around, printed, count in (
        ("older", d.before, d.before_interval, apart, d.n),
        ("tuned older", d.after, d.after_interval, tuned_apart, d.tuned),
    ):
        note = (
            f"{count} models, {changes.TREES[d.trees]}; 95 % {around.low:.2f} to {around.high:.2f}"
        )
        yield Line("table 5", f"{name} {who} against newer", value, printed, note)
    if name == "mmlu":
        yield Line(
            "figure 17",
            f"{name} mean shift of ranks",
            part.ranks.mean,
            "4.8",
            "the paper ranks 56 models",
        )
        yield Line("figure 17", f"{name} largest shift of ranks", part.ranks.largest, "16")


def _theta(place: str, what: str, one: adjusting.GroupScaling, printed: str) -> Line:
    return Line(place, what, one.effect.value, printed, _verdict(one))


def _treated(found: adjusting.Treatment, theta: str) -> Iterator[Line]:
    said = {"before": f"slightly above {theta}", "after": "small, n.s."}
    for stage, fit in (("before", found.before), ("after", found.after)):
        if fit is not None:
            note = f"{len(found.treated)} treated, {len(found.control)} not; p by family {fit.theta.clustered_p:.3f}"
            what = f"{found.task} θ of treatment {stage} adjustment"
            yield Line("figure 3", what, fit.theta.value, said[stage], note)


def _emergence(part: BenchmarkResults) -> Iterator[Line]:
    curve = part.emergence
    place, name = ("figure 8", "mmlu") if part.benchmark.name == "mmlu" else ("figure 19", "gsm8k")
    at = {amount: i for i, amount in enumerate(curve.examples)}
    says = {0: ("about 22", "0.63"), 64000: ("20.8 (6·10²⁰)", "0.95")} if name == "mmlu" else {}
    for amount in (0, 64000, curve.examples[-1]):
        i = at[amount]
        point, r2 = says.get(amount, ("falls", "rises"))
        hinge = curve.hinges[i]
        yield Line(
            place,
            f"{name} c_e, {amount:,} examples",
            hinge.emergence.value,
            point,
            f"{hinge.n} models",
        )
        yield Line(place, f"{name} log-linear R², {amount:,} examples", curve.lines[i].r2, r2)


def _verdict(one: adjusting.GroupScaling) -> str:
    wild = f", wild {one.fit.wild_p:.3f}" if np.isfinite(one.fit.wild_p) else ""
    return f"p by family {one.effect.clustered_p:.3f}{wild}"
