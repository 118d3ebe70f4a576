"""Pure functions from score matrices to findings: agreement, significance, alignment, components and the rest."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.analysis.ablation import Ablation, compare_methods
    from potentia.analysis.adjustment import (
        GroupScaling,
        SplitComparison,
        TaskAdjustment,
        compare_groups,
        favour_group,
        scale_groups,
    )
    from potentia.analysis.aggregate import Aggregate, aggregate_ranks
    from potentia.analysis.agreement import Agreement, AgreementChange, compare_agreement, measure_agreement
    from potentia.analysis.alignment import Alignment, align, rank_models
    from potentia.analysis.background import Background
    from potentia.analysis.cohort import Cohort, Split
    from potentia.analysis.components import Components, find_components
    from potentia.analysis.compute import ComputeFit, fit_compute
    from potentia.analysis.consistency import Consistency, measure_consistency
    from potentia.analysis.correlation import mean_offdiagonal, nan_mean, pearson_matrix, spearman_matrix
    from potentia.analysis.discriminator import Discrimination, discriminate
    from potentia.analysis.emergence import EmergenceCurve, trace_emergence
    from potentia.analysis.exposure import ExposureEffect, measure_exposure
    from potentia.analysis.families import FamilyComparison, compare_families
    from potentia.analysis.finding import Finding, Interval, Table
    from potentia.analysis.forecast import Forecast, make_forecast, reversed_pairs
    from potentia.analysis.frontier import Frontier, FrontierShift, frontier_shift, pareto_frontier
    from potentia.analysis.gain import Gain, measure_gain
    from potentia.analysis.groups import (
        GroupAgreement,
        agreement_by_models,
        agreement_by_tasks,
        items_per_task,
        size_bins,
    )
    from potentia.analysis.kendall import kendall_matrix, kendall_of_signs
    from potentia.analysis.lineage import known_pairs, named_checkpoints, read_checkpoints, read_pairs
    from potentia.analysis.mediation import Mediation, mediate
    from potentia.analysis.pair import Pair, best_of, pair_up
    from potentia.analysis.paired import PairedSignificance, compare_all_items
    from potentia.analysis.perplexity import PerplexityAgreement, compare_perplexity
    from potentia.analysis.proxy import ProxyTasks, choose_proxies, predict
    from potentia.analysis.rank_shift import RankShift, shift_of_ranks
    from potentia.analysis.rankings import Options, analyze_rankings
    from potentia.analysis.ranks import RankIntervals, rank_intervals
    from potentia.analysis.relevance import Relevance, measure_relevance
    from potentia.analysis.robustness import Robustness, measure_robustness, variance_ratio
    from potentia.analysis.sampling import SamplingConsistency, measure_sampling
    from potentia.analysis.scaling import Coefficient, HingeFit, LogLinearFit, fit_hinge, fit_log_linear
    from potentia.analysis.screening import Screening, screen
    from potentia.analysis.significance import (
        PairedComparison,
        Significance,
        benjamini_hochberg,
        compare_items,
        detectable_difference,
        mcnemar,
        measure_significance,
        wilson,
    )
    from potentia.analysis.stability import Checkpoint, Stability, measure_stability
    from potentia.analysis.task_training import analyze_pair
    from potentia.analysis.task_training_data import StagedScores
    from potentia.analysis.task_training_paper import TaskTrainingPaper, reproduce_task_training
    from potentia.analysis.treatment import Treatment, assign_half, compare_copies
    from potentia.analysis.validation import Validation, validate
    from potentia.analysis.wild import WildBootstrap

# Which module holds each name; scipy is loaded with the first of them that needs it, not by ``potentia --help``.
_MODULE = {
    "Ablation": "ablation",
    "Aggregate": "aggregate",
    "Agreement": "agreement",
    "AgreementChange": "agreement",
    "Alignment": "alignment",
    "Background": "background",
    "Checkpoint": "stability",
    "Coefficient": "scaling",
    "Cohort": "cohort",
    "Components": "components",
    "ComputeFit": "compute",
    "Consistency": "consistency",
    "Discrimination": "discriminator",
    "EmergenceCurve": "emergence",
    "FamilyComparison": "families",
    "Finding": "finding",
    "Forecast": "forecast",
    "Frontier": "frontier",
    "FrontierShift": "frontier",
    "Gain": "gain",
    "GroupAgreement": "groups",
    "GroupScaling": "adjustment",
    "HingeFit": "scaling",
    "Interval": "finding",
    "LogLinearFit": "scaling",
    "Mediation": "mediation",
    "Options": "rankings",
    "Pair": "pair",
    "PairedComparison": "significance",
    "PairedSignificance": "paired",
    "PerplexityAgreement": "perplexity",
    "ProxyTasks": "proxy",
    "RankIntervals": "ranks",
    "RankShift": "rank_shift",
    "Relevance": "relevance",
    "Robustness": "robustness",
    "SamplingConsistency": "sampling",
    "Screening": "screening",
    "Significance": "significance",
    "Split": "cohort",
    "SplitComparison": "adjustment",
    "Stability": "stability",
    "StagedScores": "task_training_data",
    "Table": "finding",
    "TaskAdjustment": "adjustment",
    "TaskTrainingPaper": "task_training_paper",
    "Treatment": "treatment",
    "Validation": "validation",
    "WildBootstrap": "wild",
    "aggregate_ranks": "aggregate",
    "agreement_by_models": "groups",
    "agreement_by_tasks": "groups",
    "align": "alignment",
    "analyze_pair": "task_training",
    "analyze_rankings": "rankings",
    "assign_half": "treatment",
    "benjamini_hochberg": "significance",
    "best_of": "pair",
    "choose_proxies": "proxy",
    "compare_agreement": "agreement",
    "compare_all_items": "paired",
    "compare_copies": "treatment",
    "compare_families": "families",
    "compare_groups": "adjustment",
    "compare_items": "significance",
    "compare_methods": "ablation",
    "compare_perplexity": "perplexity",
    "detectable_difference": "significance",
    "discriminate": "discriminator",
    "favour_group": "adjustment",
    "find_components": "components",
    "fit_compute": "compute",
    "fit_hinge": "scaling",
    "fit_log_linear": "scaling",
    "frontier_shift": "frontier",
    "items_per_task": "groups",
    "kendall_matrix": "kendall",
    "kendall_of_signs": "kendall",
    "known_pairs": "lineage",
    "make_forecast": "forecast",
    "mcnemar": "significance",
    "mean_offdiagonal": "correlation",
    "measure_agreement": "agreement",
    "measure_consistency": "consistency",
    "measure_exposure": "exposure",
    "measure_gain": "gain",
    "ExposureEffect": "exposure",
    "measure_relevance": "relevance",
    "measure_robustness": "robustness",
    "measure_sampling": "sampling",
    "measure_significance": "significance",
    "measure_stability": "stability",
    "mediate": "mediation",
    "named_checkpoints": "lineage",
    "nan_mean": "correlation",
    "pair_up": "pair",
    "pareto_frontier": "frontier",
    "pearson_matrix": "correlation",
    "predict": "proxy",
    "rank_intervals": "ranks",
    "rank_models": "alignment",
    "read_checkpoints": "lineage",
    "read_pairs": "lineage",
    "reproduce_task_training": "task_training_paper",
    "reversed_pairs": "forecast",
    "scale_groups": "adjustment",
    "screen": "screening",
    "shift_of_ranks": "rank_shift",
    "size_bins": "groups",
    "spearman_matrix": "correlation",
    "trace_emergence": "emergence",
    "validate": "validation",
    "variance_ratio": "robustness",
    "wilson": "significance",
}

__all__ = [
    "Ablation",
    "Aggregate",
    "Agreement",
    "AgreementChange",
    "Alignment",
    "Background",
    "Checkpoint",
    "Coefficient",
    "Cohort",
    "Components",
    "ComputeFit",
    "Consistency",
    "Discrimination",
    "EmergenceCurve",
    "ExposureEffect",
    "FamilyComparison",
    "Finding",
    "Forecast",
    "Frontier",
    "FrontierShift",
    "Gain",
    "GroupAgreement",
    "GroupScaling",
    "HingeFit",
    "Interval",
    "LogLinearFit",
    "Mediation",
    "Options",
    "Pair",
    "PairedComparison",
    "PairedSignificance",
    "PerplexityAgreement",
    "ProxyTasks",
    "RankIntervals",
    "RankShift",
    "Relevance",
    "Robustness",
    "SamplingConsistency",
    "Screening",
    "Significance",
    "Split",
    "SplitComparison",
    "Stability",
    "StagedScores",
    "Table",
    "TaskAdjustment",
    "TaskTrainingPaper",
    "Treatment",
    "Validation",
    "WildBootstrap",
    "aggregate_ranks",
    "agreement_by_models",
    "agreement_by_tasks",
    "align",
    "analyze_pair",
    "analyze_rankings",
    "assign_half",
    "benjamini_hochberg",
    "best_of",
    "choose_proxies",
    "compare_agreement",
    "compare_all_items",
    "compare_copies",
    "compare_families",
    "compare_groups",
    "compare_items",
    "compare_methods",
    "compare_perplexity",
    "detectable_difference",
    "discriminate",
    "favour_group",
    "find_components",
    "fit_compute",
    "fit_hinge",
    "fit_log_linear",
    "frontier_shift",
    "items_per_task",
    "kendall_matrix",
    "kendall_of_signs",
    "known_pairs",
    "make_forecast",
    "mcnemar",
    "mean_offdiagonal",
    "measure_agreement",
    "measure_consistency",
    "measure_exposure",
    "measure_gain",
    "measure_relevance",
    "measure_robustness",
    "measure_sampling",
    "measure_significance",
    "measure_stability",
    "mediate",
    "named_checkpoints",
    "nan_mean",
    "pair_up",
    "pareto_frontier",
    "pearson_matrix",
    "predict",
    "rank_intervals",
    "rank_models",
    "read_checkpoints",
    "read_pairs",
    "reproduce_task_training",
    "reversed_pairs",
    "scale_groups",
    "screen",
    "shift_of_ranks",
    "size_bins",
    "spearman_matrix",
    "trace_emergence",
    "validate",
    "variance_ratio",
    "wilson",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(import_module(f"potentia.analysis.{_MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
