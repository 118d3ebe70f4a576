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
from potentia.errors import InputError, MissingExtraError
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
from potentia.papers.task_training.discrimination import Discrimination, measure_discrimination
from potentia.papers.task_training.emergence import EmergenceCurve, trace_emergence
from potentia.papers.task_training.evaluations import EvaluationTree, SkippedFile
from potentia.papers.task_training.families import FamilyComparison, compare_families
from potentia.papers.task_training.frontier import FrontierShift, measure_frontier_shift
from potentia.papers.task_training.learning_rates import RateBudget, compare_rates
from potentia.papers.task_training.published_scores import (
    MissingScoresError,
    PublishedScores,
    RequestedScores,
    normalize_model_name,
)
from potentia.papers.task_training.saturation import Saturation, measure_saturation
from potentia.values.findings import Finding, Findings, Table, to_json_values
from potentia.values.wording import format_count

CUTOFF = "2023-11"
OTHER_CUTOFFS = ("2023-09", "2024-01")  # figures 11 and 12
BATCH = 64
EXAMPLES_PRINTED = 64_000  # of figures 8 and 14
STEPS_TO_DISCRIMINATE = EXAMPLES_PRINTED // BATCH
FAMILY_PREFIXES = {  # figure 6, by the models' names
    "Pythia": "pythia-",
    "Llama 2": "llama-2-",
    "Qwen 1.5": "qwen-1.5-",
}
MODELS_IN_PAPER = 56
MODELS_LISTED = 5  # of those that have no score
CHOICE_FORMS = ("arc_challenge_mc", "hellaswag_mc")
CLOZE_FORMS = ("arc_challenge", "hellaswag")

UNUSED_TASK = "no figure of the paper shows the task"
UNUSED_STAGE = "no figure of the paper uses the task at this stage"
UNKNOWN_COMPUTE = "no parameters and training tokens of it are known"

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
    """Every finding on one benchmark, in the paper's order; None where its scores were not given."""

    benchmark: PaperBenchmark
    pair: ScorePair | None = None
    unadjusted: GroupScaling | None = None  # where no model has scores after adjustment
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
    remark: str = ""  # what was assumed of the files

    def lines(self) -> list[ReproducedNumber]:
        """Return every comparison with a printed number or claim."""
        from potentia.papers.task_training.comparison import compare_with_paper

        return list(compare_with_paper(self))

    def findings_by_name(self) -> dict[str, Finding]:
        """Return every finding under a name of its own, in the paper's order."""
        findings = {**super().findings_by_name(), **self.leaderboard}
        for form_name, scaling in self.forms_before.items():
            findings[form_name] = self.forms_after.get(form_name, scaling)
        for form_name, scaling in self.form_briers.items():
            findings[f"{form_name}-brier"] = scaling
        findings.pop("gpqa_above_zero", None)  # a line of the comparison, no figure of its own
        return findings

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers beside the printed ones, and every finding."""
        findings = {
            finding_name: finding.to_dict()
            for finding_name, finding in self.findings_by_name().items()
        }
        return {
            "lines": to_json_values(self.lines()),
            "missing": to_json_values(self.missing),
            "skipped": to_json_values(self.skipped),
            "remark": self.remark,
            **findings,
        }

    def tables(self) -> Sequence[Table]:
        """Return ours beside printed first, then each finding, then what is missing and what was left out."""
        note = (
            f"{format_count(self.models, 'model')}; the paper has {MODELS_IN_PAPER}. "
            "After adjustment: per model the better of both scores, as in the paper. "
            "Small: θ within ±0.02. p: the paper's, without families. "
            "MMLU: as in the authors' notebook, the mean over the 62 entries of its file, 57 subjects and five groups."
        )
        if self.remark:
            note += f" {self.remark}."
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
        table_rows = []
        for reason, count in Counter(skipped_file.reason for skipped_file in self.skipped).items():
            paths = [
                skipped_file.path for skipped_file in self.skipped if skipped_file.reason == reason
            ]
            table_rows.append((reason, count, join_first_names(paths, 3)))
        return (Table("Left out", ("why", "how many", "which"), table_rows),)


# --- figures, one by one ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PaperData:
    """What the numbers are computed from, and how the bootstrap draws."""

    scores: RequestedScores
    cohort: Cohort  # base models
    instruct: Cohort
    draws: int
    seed: int
    missing: list[MissingFigure] = field(default_factory=list)

    def attempt(self, figure: str, compute: Callable[[], ResultT]) -> ResultT | None:
        """Return a figure; where scores or packages are missing, note what it needs and return None."""
        try:
            return compute()
        except InputError as error:
            self.missing.append(MissingFigure(figure, error.message))
        except MissingExtraError as error:
            self.missing.append(MissingFigure(figure, f"{error.message}: {error.hint}"))
        return None

    def pair_stages(
        self,
        task_name: str,
        task: str,
        metric: str,
        stages: tuple[str, str],
        chance: float,
        cohort: Cohort | None = None,
    ) -> ScorePair:
        """Return the scores of a task at two stages; after adjustment, the better of both counts (as in the paper)."""
        scores_before, scores_after = self.scores.require_stages(stages, task, metric)
        cohort = cohort or self.cohort
        models = keep_names_in(cohort.models, scores_before, scores_after)
        if not models:
            raise MissingScoresError(
                f"no model of known compute has {task} both in {stages[0]} and in {stages[1]}"
            )
        before = np.array([scores_before[model] for model in models])
        after = np.array([scores_after[model] for model in models])
        return ScorePair(
            task=task_name,
            cohort=cohort.select(models),
            before=before,
            after=np.maximum(before, after),
            chance=chance,
        )

    def compare_by_date(self, score_pair: ScorePair) -> TaskAdjustment:
        """Fit equation 1 before and after adjustment, for models of November 2023 and later."""
        split = score_pair.cohort.split_by_month(CUTOFF)
        return compare_groups(score_pair, split, draws=self.draws, seed=self.seed)

    def compare_stages(
        self,
        task_name: str,
        task: str,
        metric: str,
        stages: tuple[str, str],
        chance: float,
        cohort: Cohort | None = None,
    ) -> TaskAdjustment:
        """Fit equation 1 to the scores of a task at two stages."""
        score_pair = self.pair_stages(task_name, task, metric, stages, chance, cohort)
        return self.compare_by_date(score_pair)

    def fit_before(
        self, task_name: str, task: str, metric: str, chance: float, stage: str = "base"
    ) -> GroupScaling:
        """Fit equation 1 to the models as they are."""
        scores = self.scores.require(stage, task, metric)
        models = keep_names_in(self.cohort.models, scores)
        if not models:
            raise MissingScoresError(f"no model of known compute has {task} in {stage}")
        cohort = self.cohort.select(models)
        return fit_groups(
            task_name,
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

    Args:
        scores: The published scores; see docs/reproduce.md.
        facts: Facts of models that go before those of the paper's, which are part of the package.
        evaluations: The authors' evaluation tree.
        draws: Draws of the wild cluster bootstrap.
        seed: Of the draws.

    Example:
        >>> potentia.reproduce_task_training().to_frame()
    """
    paper_data = _collect_data(scores, facts, evaluations, draws=draws, seed=seed)
    mmlu_analysis = _analyze_benchmark(paper_data, MMLU)
    gsm8k = _analyze_benchmark(paper_data, GSM8K)
    cloze = paper_data.attempt(
        "Figure 5, cloze",
        partial(
            paper_data.fit_before,
            "mmlu_cloze acc",
            task="mmlu_cloze",
            metric="acc",
            chance=0.25,
        ),
    )
    brier = paper_data.attempt(
        "Figure 5, Brier score",
        partial(
            paper_data.fit_before,
            "mmlu brier_score",
            task="mmlu",
            metric="brier_score",
            chance=0.75,
        ),
    )
    rates = paper_data.attempt(
        "Figure 9 (B.3)", partial(_compare_rates, paper_data, mmlu_analysis.pair)
    )
    leaderboard = _analyze_leaderboard(paper_data)
    gpqa_above_zero = None
    if "gpqa" in leaderboard:
        gpqa_above_zero = paper_data.fit_before(
            "gpqa",
            task="leaderboard_gpqa",
            metric="acc_norm",
            chance=0.0,
            stage="new_evals/base",
        )
    paper = TaskTrainingPaper(
        mmlu=mmlu_analysis,
        gsm8k=gsm8k,
        cloze=cloze,
        brier=brier,
        rates=rates,
        leaderboard=leaderboard,
        gpqa_above_zero=gpqa_above_zero,
        forms_before=_fit_forms(paper_data),
        forms_after=_adjust_forms(paper_data),
        form_briers=_fit_form_briers(paper_data),
        models=len(
            keep_names_in(paper_data.cohort.models, paper_data.scores.published.list_models())
        ),
        missing=(*paper_data.missing, *_list_missing_models(paper_data)),
    )
    unused = _list_unused_scores(paper_data)  # once every figure has asked for its scores
    if evaluations is None:
        return replace(paper, skipped=tuple(unused))
    return replace(paper, skipped=(*evaluations.skipped, *unused), remark=evaluations.remark)


def _collect_data(
    scores: PublishedScores | None,
    facts: ModelTable | None,
    evaluations: EvaluationTree | None,
    *,
    draws: int,
    seed: int,
) -> PaperData:
    """Join the sources, and divide the models into base and instruction-tuned ones."""
    published = scores or PublishedScores("")
    if evaluations is not None:
        published = published.add(evaluations.scores)
    cohort = Cohort.from_facts(table=_join_facts(facts))
    is_instruct = np.array([kind == "instruct" for kind in cohort.columns["kind"]])
    return PaperData(
        scores=RequestedScores(published),
        cohort=cohort.select(cohort.select_names(~is_instruct)),
        instruct=cohort.select(cohort.select_names(is_instruct)),
        draws=draws,
        seed=seed,
    )


def _list_unused_scores(paper_data: PaperData) -> list[SkippedFile]:
    """Name the tasks and stages that no figure asked for, and the models whose compute is not known."""
    paper_tasks = {MMLU.name, GSM8K.name, "mmlu_cloze", *CHOICE_FORMS, *CLOZE_FORMS}
    paper_tasks |= {f"leaderboard_{name}" for name in LEADERBOARD}
    unused = []
    for staged_task in paper_data.scores.list_unused():
        reason = UNUSED_STAGE if staged_task.task in paper_tasks else UNUSED_TASK
        unused.append(SkippedFile(staged_task.file_pattern, reason))
    known_models = {*paper_data.cohort.models, *paper_data.instruct.models}
    for model in paper_data.scores.published.list_models():
        if model not in known_models:
            unused.append(SkippedFile(f"every score of {model}", UNKNOWN_COMPUTE))
    return unused


def _join_facts(facts: ModelTable | None) -> ModelTable:
    """Return the facts of the paper's models, replaced by what is given; names are spelled as in the tree."""
    paper_models = read_paper_models()
    joined = list(paper_models)
    for stated_facts in facts or ():
        model_name = normalize_model_name(stated_facts.name)
        paper_facts = paper_models.find(model_name)
        kind = stated_facts.kind
        if not stated_facts.kind_stated and paper_facts is not None:
            kind = paper_facts.kind
        joined.append(replace(stated_facts, name=model_name, kind=kind))
    return ModelTable(joined)


def _analyze_benchmark(paper_data: PaperData, benchmark: PaperBenchmark) -> BenchmarkResults:
    """Compute the figures and tables of one benchmark, each from what it needs."""
    name = benchmark.name
    stages = ("base", benchmark.tuned_stage)
    make_pair = partial(
        paper_data.pair_stages, name, name, benchmark.metric, stages, benchmark.chance
    )
    results = BenchmarkResults(
        benchmark,
        treatment=paper_data.attempt(
            f"Figure 3, {name}", partial(_measure_treatment, paper_data, benchmark)
        ),
        emergence=paper_data.attempt(
            f"Figure {'8' if benchmark is MMLU else '19'}, {name}",
            partial(_trace_emergence, paper_data, benchmark),
        ),
        saturation=paper_data.attempt(
            f"Appendix C, {name}: saturation", partial(_measure_saturation, paper_data, benchmark)
        ),
        discrimination=paper_data.attempt(
            f"Figure 14 and table 5, {name}",
            partial(_measure_discrimination, paper_data, benchmark),
        ),
        instruct=paper_data.attempt(
            f"Figure 20, {name}", partial(_compare_instruct_models, paper_data, benchmark)
        ),
    )
    figures = "Figures 1, 2, 6, 7, 11 to 13 and 17, tables 3 and 4"
    score_pair = paper_data.attempt(f"{figures}, {name}", make_pair)
    if score_pair is None and paper_data.scores.find("base", name, benchmark.metric):
        fit_before = partial(
            paper_data.fit_before,
            name,
            task=name,
            metric=benchmark.metric,
            chance=benchmark.chance,
        )
        unadjusted = paper_data.attempt(f"Figure 1, {name}, before adjustment", fit_before)
        return replace(results, unadjusted=unadjusted)
    if score_pair is None:
        return results
    results = replace(
        results,
        pair=score_pair,
        families=paper_data.attempt(f"Figure 6, {name}", partial(_compare_families, score_pair)),
        splits=paper_data.attempt(
            f"Figures 11 to 13, {name}", partial(_compare_other_splits, paper_data, score_pair)
        ),
        ranks=paper_data.attempt(f"Figure 17, {name}", partial(_shift_ranks, score_pair)),
    )
    split = paper_data.attempt(
        f"Figures 1, 2 and 7, tables 3 and 4, {name}", partial(_split_by_date, score_pair.cohort)
    )
    if split is None:
        return results
    return replace(
        results,
        adjustment=paper_data.attempt(
            f"Figure 1, {name}", partial(paper_data.compare_by_date, score_pair)
        ),
        gain=measure_gain(score_pair, split),
        frontier=paper_data.attempt(
            f"Figure 7, {name}", partial(measure_frontier_shift, score_pair, split)
        ),
        mediation=paper_data.attempt(
            f"Tables 3 and 4, {name}", partial(measure_mediation, score_pair, split)
        ),
    )


def _shift_ranks(score_pair: ScorePair) -> RankShift:
    if len(score_pair.cohort.models) < 2:
        raise MissingScoresError("one model alone has no rank")
    return measure_rank_shift(score_pair)


def _split_by_date(cohort: Cohort) -> ModelSplit:
    """Divide the models at the cut-off; fail where all are on one side of it."""
    split = cohort.split_by_month(CUTOFF)
    if split.size in (0, len(cohort.models)):
        raise MissingScoresError("all models are on one side of November 2023")
    return split


def _select_older(cohort: Cohort) -> Cohort:
    """Return the models trained before the cut-off."""
    is_older = ~cohort.split_by_month(CUTOFF).members
    return cohort.select(cohort.select_names(is_older))


def _measure_treatment(paper_data: PaperData, benchmark: PaperBenchmark) -> TreatmentEffect:
    """Return figure 3: older models and their copies tuned for an epoch; then all tuned for two epochs more.

    A model keeps the best of its scores so far, as in all of the paper's numbers.
    """
    auxiliary = benchmark.auxiliary
    stages = ("base", f"e1/{auxiliary}", f"e2/{auxiliary}", f"e1+2/{auxiliary}")
    base_scores, after_one, after_two, after_one_and_two = paper_data.scores.require_stages(
        stages, benchmark.name, benchmark.metric
    )
    treated = _keep_best(after_one, base_scores)
    return compare_treated_copies(
        benchmark.name,
        base_scores,
        treated,
        _select_older(
            paper_data.cohort.select(keep_names_in(paper_data.cohort.models, base_scores))
        ),
        control_adjusted=_keep_best(after_two, base_scores),
        treated_adjusted=_keep_best(after_one_and_two, treated),
        chance=benchmark.chance,
        draws=paper_data.draws,
        seed=paper_data.seed,
    )


def _keep_best(
    scores: Mapping[str, float], earlier_scores: Mapping[str, float]
) -> dict[str, float]:
    return {model: max(score, earlier_scores.get(model, score)) for model, score in scores.items()}


def _trace_emergence(paper_data: PaperData, benchmark: PaperBenchmark) -> EmergenceCurve:
    """Return figure 8 or 19: the older models before training and at each step."""
    base_scores = paper_data.scores.require("base", benchmark.name, benchmark.metric)
    steps = paper_data.scores.require_steps(benchmark.steps_stage, benchmark.name, benchmark.metric)
    scores_by_examples: dict[int, Mapping[str, float]] = {0: base_scores}
    for step, scores in steps.items():
        scores_by_examples[BATCH * step] = scores
    older = _select_older(
        paper_data.cohort.select(keep_names_in(paper_data.cohort.models, base_scores))
    )
    return trace_emergence(
        benchmark.name,
        scores_by_examples,
        older,
        chance=benchmark.chance,
        amounts_to_draw=[EXAMPLES_PRINTED],
    )


def _measure_saturation(paper_data: PaperData, benchmark: PaperBenchmark) -> Saturation:
    steps = paper_data.scores.require_steps(benchmark.steps_stage, benchmark.name, benchmark.metric)
    split = paper_data.cohort.split_by_month(CUTOFF)
    return measure_saturation(benchmark.name, steps, paper_data.cohort, split)


def _measure_discrimination(paper_data: PaperData, benchmark: PaperBenchmark) -> Discrimination:
    """Return table 5 and figure 14: newer models as they are, older ones before and after 64,000 examples."""
    base_scores = paper_data.scores.require("base", benchmark.name, benchmark.metric)
    steps = paper_data.scores.require_steps(benchmark.steps_stage, benchmark.name, benchmark.metric)
    if STEPS_TO_DISCRIMINATE not in steps:
        files = (
            f"{benchmark.steps_stage}/evals/*/step_{STEPS_TO_DISCRIMINATE}/{benchmark.name}.json"
        )
        raise MissingScoresError(f"{files} are not there")
    tuned_scores = steps[STEPS_TO_DISCRIMINATE]
    models = keep_names_in(paper_data.cohort.models, base_scores)
    cohort = paper_data.cohort.select(models)
    score_pair = ScorePair(
        task=benchmark.name,
        cohort=cohort,
        before=np.array([base_scores[model] for model in models]),
        after=np.array([tuned_scores.get(model, np.nan) for model in models]),
        chance=benchmark.chance,
    )
    return measure_discrimination(score_pair, cohort.split_by_month(CUTOFF), seed=paper_data.seed)


def _compare_instruct_models(paper_data: PaperData, benchmark: PaperBenchmark) -> TaskAdjustment:
    """Return figure 20: instruction-tuned and chat models before and after adjustment."""
    scored = keep_names_in(paper_data.instruct.models, paper_data.scores.published.list_models())
    if not scored:
        raise MissingScoresError("no instruction-tuned or chat model is among the models")
    return paper_data.compare_stages(
        f"{benchmark.name} instruct",
        task=benchmark.name,
        metric=benchmark.metric,
        stages=("base", benchmark.tuned_stage),
        chance=benchmark.chance,
        cohort=paper_data.instruct,
    )


def _compare_families(score_pair: ScorePair) -> FamilyComparison:
    families = {}
    for family, prefix in FAMILY_PREFIXES.items():
        families[family] = [model for model in score_pair.cohort.models if model.startswith(prefix)]
    return compare_families(score_pair, families)


def _compare_other_splits(paper_data: PaperData, score_pair: ScorePair) -> SplitComparison:
    """Return figures 11 to 13: other cut-offs, and models trained on Chinese text too."""
    splits: list[ModelSplit] = [
        score_pair.cohort.split_by_month(cutoff) for cutoff in OTHER_CUTOFFS
    ]
    splits.append(score_pair.cohort.split_by_column("language", "en+cn"))
    comparisons = [
        compare_groups(score_pair, split, draws=paper_data.draws, seed=paper_data.seed)
        for split in splits
    ]
    return SplitComparison(tuple(comparisons))


def _compare_rates(paper_data: PaperData, score_pair: ScorePair | None) -> RateBudget:
    """Return figure 9: newer models at the best learning rate of a sweep, older ones at that of figure 1."""
    rates = paper_data.scores.find_learning_rates("mmlu", "acc")
    rates = {
        model: by_rate for model, by_rate in rates.items() if model in paper_data.cohort.models
    }
    if not rates:
        raise MissingScoresError(
            "no stage is a sweep of learning rates (a folder or stage such as lr_6e-5/mmluaux)"
        )
    if score_pair is None:
        raise MissingScoresError("the scores before and after adjustment of figure 1 are not there")
    split = score_pair.cohort.split_by_month(CUTOFF)
    adjusted_scores = dict(zip(score_pair.cohort.models, score_pair.after.tolist(), strict=True))
    return compare_rates(
        "mmlu",
        rates,
        score_pair,
        split,
        chosen=adjusted_scores,
        draws=paper_data.draws,
        seed=paper_data.seed,
    )


def _analyze_leaderboard(paper_data: PaperData) -> dict[str, TaskAdjustment]:
    """Return figures 15 and 16, as far as there are scores of their tasks."""
    adjustments = {}
    for task_name, task in LEADERBOARD.items():
        stages = ("new_evals/base", f"new_evals/{task.auxiliary}")
        compare = partial(
            paper_data.compare_stages,
            task_name,
            task=f"leaderboard_{task_name}",
            metric=task.metric,
            stages=stages,
            chance=task.chance,
        )
        adjustment = paper_data.attempt(f"{task.figure.capitalize()}, {task_name}", compare)
        if adjustment is not None:
            adjustments[task_name] = adjustment
    return adjustments


def _fit_forms(paper_data: PaperData) -> dict[str, GroupScaling]:
    """Return figure 4, left and middle, and figure 18: ARC and HellaSwag as cloze and as choice, by accuracy."""
    fit_by_form = {}
    for form_name in (*CLOZE_FORMS, *CHOICE_FORMS):
        scaling = paper_data.attempt(
            f"Figures 4 and 18, {form_name}",
            partial(paper_data.fit_before, form_name, task=form_name, metric="acc", chance=0.25),
        )
        if scaling is not None:
            fit_by_form[form_name] = scaling
    return fit_by_form


def _adjust_forms(paper_data: PaperData) -> dict[str, TaskAdjustment]:
    """Return figure 4, right: both as choice, before and after adjustment."""
    adjustments = {}
    for form_name in CHOICE_FORMS:
        compare = partial(
            paper_data.compare_stages,
            form_name,
            task=form_name,
            metric="acc",
            stages=("base", "e3/mmluaux"),
            chance=0.25,
        )
        adjustment = paper_data.attempt(f"Figure 4, {form_name} after adjustment", compare)
        if adjustment is not None:
            adjustments[form_name] = adjustment
    return adjustments


def _fit_form_briers(paper_data: PaperData) -> dict[str, GroupScaling]:
    """Return figure 18, right: both as choice by Brier score."""
    fit_by_form = {}
    for form_name in CHOICE_FORMS:
        scaling = paper_data.attempt(
            f"Figure 18, {form_name} by Brier score",
            partial(
                paper_data.fit_before,
                f"{form_name} brier_score",
                task=form_name,
                metric="brier_score",
                chance=0.75,
            ),
        )
        if scaling is not None:
            fit_by_form[form_name] = scaling
    return fit_by_form


def _list_missing_models(paper_data: PaperData) -> list[MissingFigure]:
    """Name the paper's base models that have no score."""
    scored = set(paper_data.scores.published.list_models())
    absent = []
    for facts in read_paper_models():
        if facts.kind == "base" and facts.name not in scored:
            absent.append(facts.name)
    if not absent:
        return []
    names = join_first_names(absent, MODELS_LISTED)
    return [MissingFigure(f"{names} in every number", "no scores of them")]
