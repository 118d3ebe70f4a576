"""Every figure and table of "Training on the test task confounds evaluation and emergence" that scores allow.

The scores are the authors' evaluation tree, a table of its stages, or both. Each figure is computed by itself from what
is there; where something is missing, the figure is listed with what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from typing import Any, TypeVar

import numpy as np

from potentia.analysis.left_out import join_first_names, keep_names_in
from potentia.errors import InputError
from potentia.facts import ModelTable, read_facts
from potentia.papers.printed import ReproducedNumber, tabulate_comparison
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
from potentia.papers.task_training.cohort import Cohort, ModelSplit, ScorePair
from potentia.papers.task_training.discrimination import (
    Discrimination,
    measure_discrimination,
    require_classifiers,
)
from potentia.papers.task_training.emergence import EmergenceCurve, trace_emergence
from potentia.papers.task_training.evaluations import EvaluationTree, SkippedFile
from potentia.papers.task_training.families import FamilyComparison, compare_families
from potentia.papers.task_training.frontier import FrontierShift, measure_frontier_shift
from potentia.papers.task_training.learning_rates import RateBudget, compare_rates
from potentia.papers.task_training.published_scores import (
    MissingScoresError,
    PublishedScores,
    normalize_model_name,
)
from potentia.papers.task_training.saturation import Saturation, measure_saturation
from potentia.values.findings import Finding, Findings, Table, jsonable

CUTOFF = "2023-11"
OTHER_CUTOFFS = ("2023-09", "2024-01")  # figures 11 and 12
BATCH = 64
STEPS_TO_DISCRIMINATE = 1000  # models tuned on 64,000 examples
FAMILY_PREFIXES = {  # figure 6, by the models' names
    "Pythia": "pythia-",
    "Llama 2": "llama-2-",
    "Qwen 1.5": "qwen-1.5-",
}
MODELS_IN_PAPER = 56
CHOICE_FORMS = ("arc_challenge_mc", "hellaswag_mc")
CLOZE_FORMS = ("arc_challenge", "hellaswag")

UNUSED_TASK = "no figure of the paper shows the task"

ResultT = TypeVar("ResultT")


# --- what the paper measured -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaperBenchmark:
    """A benchmark of the main text: its metric, the score of guessing, and the data its models were tuned on."""

    name: str
    metric: str
    chance: float
    auxiliary: str

    @property
    def tuned_stage(self) -> str:
        """The stage after three epochs on the auxiliary data."""
        return f"e3/{self.auxiliary}"

    @property
    def steps_stage(self) -> str:
        """The stage that holds the steps on the way."""
        return f"intermediate/{self.auxiliary}"


MMLU = PaperBenchmark(name="mmlu", metric="acc", chance=0.25, auxiliary="mmluaux")
GSM8K = PaperBenchmark(name="gsm8k", metric="exact_match", chance=0.0, auxiliary="gsm8kaux")


@dataclass(frozen=True)
class LeaderboardTask:
    """A task of figure 15 or 16: its metric, the auxiliary data, and the score of guessing."""

    metric: str
    auxiliary: str
    chance: float
    figure: str = "figure 15"


LEADERBOARD = {
    "mmlu_pro": LeaderboardTask("acc", "mmluaux", 0.1),
    "gpqa": LeaderboardTask("acc_norm", "mmluaux", 0.25),
    "musr": LeaderboardTask("acc_norm", "mmluaux", (1 / 2 + 1 / 5 + 1 / 3) / 3),
    "bbh": LeaderboardTask("acc_norm", "mmluaux", 0.3),
    "math_hard": LeaderboardTask("exact_match", "gsm8kaux", 0.0),
    "mmlu_pro_four": LeaderboardTask("acc", "mmluaux", 0.25, figure="figure 16"),
}


# --- findings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MissingFigure:
    """A figure or table that cannot be computed from what was given, and why."""

    figure: str
    reason: str


@dataclass(frozen=True)
class BenchmarkResults(Findings):
    """Every finding on one benchmark, in the document's order; None where its scores were not given."""

    benchmark: PaperBenchmark
    pair: ScorePair | None = None
    adjustment: TaskAdjustment | None = None
    gain: TuningGain | None = None
    treatment: TreatmentEffect | None = None
    families: FamilyComparison | None = None
    frontier: FrontierShift | None = None
    emergence: EmergenceCurve | None = None
    saturation: Saturation | None = None
    mediation: Mediation | None = None
    splits: SplitComparison | None = None
    discrimination: Discrimination | None = None
    ranks: RankShift | None = None
    instruct: TaskAdjustment | None = None


@dataclass(frozen=True)
class TaskTrainingPaper(Findings):
    """The whole reproduction: every number that the published scores allow, beside the printed one."""

    mmlu: BenchmarkResults
    gsm8k: BenchmarkResults
    cloze: GroupScaling | None
    brier: GroupScaling | None
    rates: RateBudget | None  # figure 9
    leaderboard: dict[str, TaskAdjustment]  # figures 15 and 16
    gpqa_above_zero: GroupScaling | None  # figure 15 with the chance of the authors' notebook
    forms_before: dict[str, GroupScaling]  # figures 4 and 18: as cloze and as choice
    forms_after: dict[str, TaskAdjustment]  # figure 4: as choice, before and after
    form_briers: dict[str, GroupScaling]  # figure 18
    models: int  # base models with a score and known compute
    missing: tuple[MissingFigure, ...]
    skipped: tuple[SkippedFile, ...] = ()

    def lines(self) -> list[ReproducedNumber]:
        """Return every comparison with a printed number or claim."""
        from potentia.papers.task_training.comparison import compare_with_paper

        return list(compare_with_paper(self))

    def named(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in the document's order."""
        findings = {**super().named(), **self.leaderboard}
        for name, scaling in self.forms_before.items():
            findings[name] = self.forms_after.get(name, scaling)
        for name, scaling in self.form_briers.items():
            findings[f"{name}-brier"] = scaling
        findings.pop("gpqa_above_zero", None)  # a line of the comparison, no figure of its own
        return findings

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers beside the printed ones, and every finding."""
        findings = {name: finding.to_dict() for name, finding in self.named().items()}
        return {
            "lines": jsonable(self.lines()),
            "missing": jsonable(self.missing),
            "skipped": jsonable(self.skipped),
            **findings,
        }

    def tables(self) -> Sequence[Table]:
        """Return ours beside printed first, then each finding, then what is missing and what was left out."""
        note = (
            f"{self.models} models; the paper has {MODELS_IN_PAPER}. After adjustment: per model the better of both "
            "scores, as in the paper. Small: θ within ±0.02. p: the paper's, without families."
        )
        comparison = tabulate_comparison(
            "Training on the test task: ours beside the paper's", self.lines(), note
        )
        missing = Table(
            "Not in what was given",
            ("what", "why"),
            [(missing.figure, missing.reason) for missing in self.missing],
        )
        return (comparison, *super().tables(), missing, *self._tabulate_skipped_files())

    def _tabulate_skipped_files(self) -> Sequence[Table]:
        if not self.skipped:
            return ()
        rows = []
        for reason, count in Counter(file.reason for file in self.skipped).items():
            paths = [file.path for file in self.skipped if file.reason == reason]
            rows.append((reason, count, join_first_names(paths, 3)))
        return (Table("Left out", ("why", "how many", "which"), rows),)


# --- figures, one by one ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PaperData:
    """What the numbers are computed from, and how the bootstrap draws."""

    scores: PublishedScores
    cohort: Cohort  # base models
    instruct: Cohort
    draws: int
    seed: int
    missing: list[MissingFigure] = field(default_factory=list)

    def attempt(self, figure: str, compute: Callable[[], ResultT]) -> ResultT | None:
        """Return a figure; where scores are missing, note what it needs and return None."""
        try:
            return compute()
        except InputError as error:
            self.missing.append(MissingFigure(figure, error.message))
            return None

    def pair_stages(
        self,
        name: str,
        task: str,
        metric: str,
        stages: tuple[str, str],
        chance: float,
        cohort: Cohort | None = None,
    ) -> ScorePair:
        """Return the scores of a task at two stages; after adjustment, the better of both counts (as in the paper)."""
        scores_before = self.scores.require(stages[0], task, metric)
        scores_after = self.scores.require(stages[1], task, metric)
        cohort = cohort or self.cohort
        models = keep_names_in(cohort.models, scores_before, scores_after)
        if not models:
            raise MissingScoresError(
                f"no model of known compute has {task} both in {stages[0]} and in {stages[1]}"
            )
        before = np.array([scores_before[model] for model in models])
        after = np.array([scores_after[model] for model in models])
        return ScorePair(
            task=name,
            cohort=cohort.select(models),
            before=before,
            after=np.maximum(before, after),
            chance=chance,
        )

    def compare_by_date(self, pair: ScorePair) -> TaskAdjustment:
        """Fit equation 1 before and after adjustment, for models of November 2023 and later."""
        split = pair.cohort.split_by_month(CUTOFF)
        return compare_groups(pair, split, draws=self.draws, seed=self.seed)

    def fit_before(
        self, name: str, task: str, metric: str, chance: float, stage: str = "base"
    ) -> GroupScaling:
        """Fit equation 1 to the models as they are."""
        scores = self.scores.require(stage, task, metric)
        models = keep_names_in(self.cohort.models, scores)
        if not models:
            raise MissingScoresError(f"no model of known compute has {task} in {stage}")
        cohort = self.cohort.select(models)
        return fit_groups(
            name,
            cohort,
            np.array([scores[model] for model in models]),
            cohort.split_by_month(CUTOFF),
            chance=chance,
            higher_is_better=metric != "brier_score",
            draws=self.draws,
            seed=self.seed,
        )


def read_paper_models() -> ModelTable:
    """Return the facts of the paper's models: as in the authors' notebook, those that it lacks as in appendix B.1."""
    with resources.as_file(resources.files(__package__).joinpath("models.csv")) as path:
        return read_facts(path)


def reproduce_task_training(
    scores: PublishedScores | None = None,
    facts: ModelTable | None = None,
    evaluations: EvaluationTree | None = None,
    *,
    draws: int = 1999,
    seed: int = 0,
) -> TaskTrainingPaper:
    """Compute every number and figure that a table of scores, the authors' evaluation tree, or both allow.

    ``facts`` go before the facts of the paper's models, which are part of the package.
    """
    require_classifiers()
    data, skipped = _collect_data(scores, facts, evaluations, draws=draws, seed=seed)
    mmlu = _analyze_benchmark(data, MMLU)
    gsm8k = _analyze_benchmark(data, GSM8K)
    cloze = data.attempt(
        "Figure 5, cloze", partial(data.fit_before, "mmlu_cloze acc", "mmlu_cloze", "acc", 0.25)
    )
    brier = data.attempt(
        "Figure 5, Brier score",
        partial(data.fit_before, "mmlu brier_score", "mmlu", "brier_score", 0.75),
    )
    rates = data.attempt("Figure 9 (B.3)", partial(_compare_rates, data, mmlu.pair))
    gpqa = data.scores.find("new_evals/base", "leaderboard_gpqa", "acc_norm")
    gpqa_above_zero = None
    if gpqa:
        gpqa_above_zero = data.fit_before(
            "gpqa", "leaderboard_gpqa", "acc_norm", 0.0, "new_evals/base"
        )
    return TaskTrainingPaper(
        mmlu=mmlu,
        gsm8k=gsm8k,
        cloze=cloze,
        brier=brier,
        rates=rates,
        leaderboard=_analyze_leaderboard(data),
        gpqa_above_zero=gpqa_above_zero,
        forms_before=_fit_forms(data),
        forms_after=_adjust_forms(data),
        form_briers=_fit_form_briers(data),
        models=len(keep_names_in(data.cohort.models, data.scores.list_models())),
        missing=(*data.missing, *_list_missing_models(data)),
        skipped=skipped,
    )


def _collect_data(
    scores: PublishedScores | None,
    facts: ModelTable | None,
    evaluations: EvaluationTree | None,
    *,
    draws: int,
    seed: int,
) -> tuple[PaperData, tuple[SkippedFile, ...]]:
    """Join the sources, and divide the models into base and instruction-tuned ones."""
    published = scores or PublishedScores("")
    skipped: list[SkippedFile] = []
    if evaluations is not None:
        published = published.add(evaluations.scores)
        skipped += evaluations.skipped
    cohort = Cohort.from_facts(table=_join_facts(facts))
    is_instruct = np.array([kind == "instruct" for kind in cohort.columns["kind"]])
    skipped += _list_unused_scores(published, cohort)
    data = PaperData(
        scores=published,
        cohort=cohort.select(cohort.select_names(~is_instruct)),
        instruct=cohort.select(cohort.select_names(is_instruct)),
        draws=draws,
        seed=seed,
    )
    return data, tuple(skipped)


def _list_unused_scores(scores: PublishedScores, cohort: Cohort) -> list[SkippedFile]:
    """Name the tasks that no figure shows, and the models whose compute is not known."""
    shown_tasks = {MMLU.name, GSM8K.name, "mmlu_cloze", *CHOICE_FORMS, *CLOZE_FORMS}
    shown_tasks |= {f"leaderboard_{name}" for name in LEADERBOARD}
    unused = {}
    for key in scores.scores:
        if key.task not in shown_tasks:
            unused[f"{key.stage}/*-{key.task}.json"] = UNUSED_TASK
    for model in scores.list_models():
        if model not in cohort.models:
            unused[f"every score of {model}"] = "no parameters and training tokens of it are known"
    return [SkippedFile(path, reason) for path, reason in unused.items()]


def _join_facts(facts: ModelTable | None) -> ModelTable:
    """Return the facts of the paper's models, replaced by what is given; names are spelled as in the tree."""
    paper_models = read_paper_models()
    joined = list(paper_models)
    for given in facts or ():
        name = normalize_model_name(given.name)
        paper_facts = paper_models.find(name)
        kind = given.kind
        if not given.kind_stated and paper_facts is not None:
            kind = paper_facts.kind
        joined.append(replace(given, name=name, kind=kind))
    return ModelTable(joined)


def _analyze_benchmark(data: PaperData, benchmark: PaperBenchmark) -> BenchmarkResults:
    """Compute the figures and tables of one benchmark, each from what it needs."""
    name = benchmark.name
    stages = ("base", benchmark.tuned_stage)
    make_pair = partial(data.pair_stages, name, name, benchmark.metric, stages, benchmark.chance)
    results = BenchmarkResults(
        benchmark,
        treatment=data.attempt(f"Figure 3, {name}", partial(_measure_treatment, data, benchmark)),
        emergence=data.attempt(
            f"Figure {'8' if benchmark is MMLU else '19'}, {name}",
            partial(_trace_emergence, data, benchmark),
        ),
        saturation=data.attempt(
            f"Appendix C, {name}: saturation", partial(_measure_saturation, data, benchmark)
        ),
        discrimination=data.attempt(
            f"Figure 14 and table 5, {name}", partial(_measure_discrimination, data, benchmark)
        ),
        instruct=data.attempt(
            f"Figure 20, {name}", partial(_compare_instruct_models, data, benchmark)
        ),
    )
    pair = data.attempt(f"Figures 1, 2, 6, 7, 11 to 13 and 17, tables 3 and 4, {name}", make_pair)
    if pair is None:
        return results
    split = pair.cohort.split_by_month(CUTOFF)
    return replace(
        results,
        pair=pair,
        adjustment=data.attempt(f"Figure 1, {name}", partial(data.compare_by_date, pair)),
        gain=measure_gain(pair, split),
        families=data.attempt(f"Figure 6, {name}", partial(_compare_families, pair)),
        frontier=data.attempt(f"Figure 7, {name}", partial(measure_frontier_shift, pair, split)),
        mediation=data.attempt(f"Tables 3 and 4, {name}", partial(measure_mediation, pair, split)),
        splits=data.attempt(
            f"Figures 11 to 13, {name}", partial(_compare_other_splits, data, pair)
        ),
        ranks=measure_rank_shift(pair),
    )


def _select_older(cohort: Cohort) -> Cohort:
    """Return the models trained before the cut-off."""
    is_older = ~cohort.split_by_month(CUTOFF).members
    return cohort.select(cohort.select_names(is_older))


def _measure_treatment(data: PaperData, benchmark: PaperBenchmark) -> TreatmentEffect:
    """Return figure 3: older models and their copies tuned for an epoch; then all tuned for two epochs more.

    A model keeps the best of its scores so far, as in all of the document's numbers.
    """

    def require_scores(stage: str) -> dict[str, float]:
        return data.scores.require(
            f"{stage}/{benchmark.auxiliary}", benchmark.name, benchmark.metric
        )

    base_scores = data.scores.require("base", benchmark.name, benchmark.metric)
    treated = _keep_best(require_scores("e1"), base_scores)
    return compare_treated_copies(
        benchmark.name,
        base_scores,
        treated,
        _select_older(data.cohort.select(keep_names_in(data.cohort.models, base_scores))),
        control_adjusted=_keep_best(require_scores("e2"), base_scores),
        treated_adjusted=_keep_best(require_scores("e1+2"), treated),
        chance=benchmark.chance,
        draws=data.draws,
        seed=data.seed,
    )


def _keep_best(
    scores: Mapping[str, float], earlier_scores: Mapping[str, float]
) -> dict[str, float]:
    return {model: max(score, earlier_scores.get(model, score)) for model, score in scores.items()}


def _trace_emergence(data: PaperData, benchmark: PaperBenchmark) -> EmergenceCurve:
    """Return figure 8 or 19: the older models before training and at each step."""
    base_scores = data.scores.require("base", benchmark.name, benchmark.metric)
    steps = data.scores.require_steps(benchmark.steps_stage, benchmark.name, benchmark.metric)
    scores_by_examples: dict[int, Mapping[str, float]] = {0: base_scores}
    for step, scores in steps.items():
        scores_by_examples[BATCH * step] = scores
    older = _select_older(data.cohort.select(keep_names_in(data.cohort.models, base_scores)))
    return trace_emergence(benchmark.name, scores_by_examples, older, chance=benchmark.chance)


def _measure_saturation(data: PaperData, benchmark: PaperBenchmark) -> Saturation:
    steps = data.scores.require_steps(benchmark.steps_stage, benchmark.name, benchmark.metric)
    split = data.cohort.split_by_month(CUTOFF)
    return measure_saturation(benchmark.name, steps, data.cohort, split)


def _measure_discrimination(data: PaperData, benchmark: PaperBenchmark) -> Discrimination:
    """Return table 5 and figure 14: newer models as they are, older ones before and after 64,000 examples."""
    base_scores = data.scores.require("base", benchmark.name, benchmark.metric)
    steps = data.scores.require_steps(benchmark.steps_stage, benchmark.name, benchmark.metric)
    if STEPS_TO_DISCRIMINATE not in steps:
        files = (
            f"{benchmark.steps_stage}/evals/*/step_{STEPS_TO_DISCRIMINATE}/{benchmark.name}.json"
        )
        raise MissingScoresError(f"{files} are not there")
    tuned_scores = steps[STEPS_TO_DISCRIMINATE]
    models = keep_names_in(data.cohort.models, base_scores)
    cohort = data.cohort.select(models)
    pair = ScorePair(
        task=benchmark.name,
        cohort=cohort,
        before=np.array([base_scores[model] for model in models]),
        after=np.array([tuned_scores.get(model, np.nan) for model in models]),
        chance=benchmark.chance,
    )
    return measure_discrimination(pair, cohort.split_by_month(CUTOFF), seed=data.seed)


def _compare_instruct_models(data: PaperData, benchmark: PaperBenchmark) -> TaskAdjustment:
    """Return figure 20: instruction-tuned and chat models before and after adjustment."""
    scored = keep_names_in(data.instruct.models, data.scores.list_models())
    if not scored:
        raise MissingScoresError("no instruction-tuned or chat model is among the models")
    pair = data.pair_stages(
        f"{benchmark.name} instruct",
        benchmark.name,
        benchmark.metric,
        ("base", benchmark.tuned_stage),
        benchmark.chance,
        data.instruct,
    )
    return data.compare_by_date(pair)


def _compare_families(pair: ScorePair) -> FamilyComparison:
    families = {}
    for family, prefix in FAMILY_PREFIXES.items():
        families[family] = [model for model in pair.cohort.models if model.startswith(prefix)]
    return compare_families(pair, families)


def _compare_other_splits(data: PaperData, pair: ScorePair) -> SplitComparison:
    """Return figures 11 to 13: other cut-offs, and models trained on Chinese text too."""
    splits: list[ModelSplit] = [pair.cohort.split_by_month(cutoff) for cutoff in OTHER_CUTOFFS]
    splits.append(pair.cohort.split_by_column("language", "en+cn"))
    comparisons = [
        compare_groups(pair, split, draws=data.draws, seed=data.seed) for split in splits
    ]
    return SplitComparison(tuple(comparisons))


def _compare_rates(data: PaperData, pair: ScorePair | None) -> RateBudget:
    """Return figure 9: newer models at the best learning rate of a sweep, older ones at their own."""
    rates = data.scores.find_learning_rates("mmlu", "acc")
    rates = {model: by_rate for model, by_rate in rates.items() if model in data.cohort.models}
    if not rates:
        raise MissingScoresError(
            "no stage is a sweep of learning rates (a folder or stage such as lr_6e-5/mmluaux)"
        )
    if pair is None:
        raise MissingScoresError("the scores before and after adjustment of figure 1 are not there")
    split = pair.cohort.split_by_month(CUTOFF)
    chosen = dict(zip(pair.cohort.models, pair.after.tolist(), strict=True))
    return compare_rates(
        "mmlu", rates, pair, split, chosen=chosen, draws=data.draws, seed=data.seed
    )


def _analyze_leaderboard(data: PaperData) -> dict[str, TaskAdjustment]:
    """Return figures 15 and 16, as far as there are scores of their tasks."""
    adjustments = {}
    for name, task in LEADERBOARD.items():
        stages = ("new_evals/base", f"new_evals/{task.auxiliary}")
        make_pair = partial(
            data.pair_stages, name, f"leaderboard_{name}", task.metric, stages, task.chance
        )
        pair = data.attempt(f"{task.figure.capitalize()}, {name}", make_pair)
        if pair is not None:
            adjustments[name] = data.compare_by_date(pair)
    return adjustments


def _fit_forms(data: PaperData) -> dict[str, GroupScaling]:
    """Return figure 4, left and middle, and figure 18: ARC and HellaSwag as cloze and as choice, by accuracy."""
    fits = {}
    for name in (*CLOZE_FORMS, *CHOICE_FORMS):
        scaling = data.attempt(
            f"Figures 4 and 18, {name}", partial(data.fit_before, name, name, "acc", 0.25)
        )
        if scaling is not None:
            fits[name] = scaling
    return fits


def _adjust_forms(data: PaperData) -> dict[str, TaskAdjustment]:
    """Return figure 4, right: both as choice, before and after adjustment."""
    adjustments = {}
    for name in CHOICE_FORMS:
        make_pair = partial(data.pair_stages, name, name, "acc", ("base", "e3/mmluaux"), 0.25)
        pair = data.attempt(f"Figure 4, {name} after adjustment", make_pair)
        if pair is not None:
            adjustments[name] = data.compare_by_date(pair)
    return adjustments


def _fit_form_briers(data: PaperData) -> dict[str, GroupScaling]:
    """Return figure 18, right: both as choice by Brier score."""
    fits = {}
    for name in CHOICE_FORMS:
        scaling = data.attempt(
            f"Figure 18, {name} by Brier score",
            partial(data.fit_before, f"{name} brier_score", name, "brier_score", 0.75),
        )
        if scaling is not None:
            fits[name] = scaling
    return fits


def _list_missing_models(data: PaperData) -> list[MissingFigure]:
    """Name the paper's base models that have no score."""
    scored = set(data.scores.list_models())
    absent = []
    for facts in read_paper_models():
        if facts.kind == "base" and facts.name not in scored:
            absent.append(facts.name)
    if not absent:
        return []
    return [MissingFigure(f"{', '.join(absent)} in every number", "no scores of them")]
