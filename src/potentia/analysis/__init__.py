"""Pure functions from score matrices to findings: agreement, significance, alignment, components and the rest."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.analysis.ablation import Ablation, compare_methods
    from potentia.analysis.aggregate import Aggregate, aggregate_ranks
    from potentia.analysis.agreement import Agreement, AgreementChange, compare_agreement, measure_agreement
    from potentia.analysis.alignment import Alignment, align, rank_models
    from potentia.analysis.components import Components, find_components
    from potentia.analysis.compute import ComputeFit, fit_compute
    from potentia.analysis.consistency import Consistency, measure_consistency
    from potentia.analysis.correlation import mean_offdiagonal, nan_mean, pearson_matrix, spearman_matrix
    from potentia.analysis.finding import Finding, Interval, Table
    from potentia.analysis.forecast import Forecast, make_forecast, reversed_pairs
    from potentia.analysis.groups import (
        GroupAgreement,
        agreement_by_models,
        agreement_by_tasks,
        items_per_task,
        size_bins,
    )
    from potentia.analysis.kendall import kendall_matrix, kendall_of_signs
    from potentia.analysis.lineage import known_pairs, named_checkpoints, read_checkpoints, read_pairs
    from potentia.analysis.perplexity import PerplexityAgreement, compare_perplexity
    from potentia.analysis.proxy import ProxyTasks, choose_proxies, predict
    from potentia.analysis.ranks import RankIntervals, rank_intervals
    from potentia.analysis.relevance import Relevance, measure_relevance
    from potentia.analysis.robustness import Robustness, measure_robustness, variance_ratio
    from potentia.analysis.sampling import SamplingConsistency, measure_sampling
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
    from potentia.analysis.validation import Validation, validate

# Which module holds each name; scipy is loaded with the first of them that needs it, not by ``potentia --help``.
_MODULE = {
    "Ablation": "ablation",
    "Aggregate": "aggregate",
    "Agreement": "agreement",
    "AgreementChange": "agreement",
    "Alignment": "alignment",
    "Checkpoint": "stability",
    "Components": "components",
    "ComputeFit": "compute",
    "Consistency": "consistency",
    "Finding": "finding",
    "Forecast": "forecast",
    "GroupAgreement": "groups",
    "Interval": "finding",
    "PairedComparison": "significance",
    "PerplexityAgreement": "perplexity",
    "ProxyTasks": "proxy",
    "RankIntervals": "ranks",
    "Relevance": "relevance",
    "Robustness": "robustness",
    "SamplingConsistency": "sampling",
    "Screening": "screening",
    "Significance": "significance",
    "Stability": "stability",
    "Table": "finding",
    "Validation": "validation",
    "aggregate_ranks": "aggregate",
    "agreement_by_models": "groups",
    "agreement_by_tasks": "groups",
    "align": "alignment",
    "benjamini_hochberg": "significance",
    "choose_proxies": "proxy",
    "compare_agreement": "agreement",
    "compare_items": "significance",
    "compare_methods": "ablation",
    "compare_perplexity": "perplexity",
    "detectable_difference": "significance",
    "find_components": "components",
    "fit_compute": "compute",
    "items_per_task": "groups",
    "kendall_matrix": "kendall",
    "kendall_of_signs": "kendall",
    "known_pairs": "lineage",
    "make_forecast": "forecast",
    "mcnemar": "significance",
    "mean_offdiagonal": "correlation",
    "measure_agreement": "agreement",
    "measure_consistency": "consistency",
    "measure_relevance": "relevance",
    "measure_robustness": "robustness",
    "measure_sampling": "sampling",
    "measure_significance": "significance",
    "measure_stability": "stability",
    "named_checkpoints": "lineage",
    "nan_mean": "correlation",
    "pearson_matrix": "correlation",
    "predict": "proxy",
    "rank_intervals": "ranks",
    "rank_models": "alignment",
    "read_checkpoints": "lineage",
    "read_pairs": "lineage",
    "reversed_pairs": "forecast",
    "screen": "screening",
    "size_bins": "groups",
    "spearman_matrix": "correlation",
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
    "Checkpoint",
    "Components",
    "ComputeFit",
    "Consistency",
    "Finding",
    "Forecast",
    "GroupAgreement",
    "Interval",
    "PairedComparison",
    "PerplexityAgreement",
    "ProxyTasks",
    "RankIntervals",
    "Relevance",
    "Robustness",
    "SamplingConsistency",
    "Screening",
    "Significance",
    "Stability",
    "Table",
    "Validation",
    "aggregate_ranks",
    "agreement_by_models",
    "agreement_by_tasks",
    "align",
    "benjamini_hochberg",
    "choose_proxies",
    "compare_agreement",
    "compare_items",
    "compare_methods",
    "compare_perplexity",
    "detectable_difference",
    "find_components",
    "fit_compute",
    "items_per_task",
    "kendall_matrix",
    "kendall_of_signs",
    "known_pairs",
    "make_forecast",
    "mcnemar",
    "mean_offdiagonal",
    "measure_agreement",
    "measure_consistency",
    "measure_relevance",
    "measure_robustness",
    "measure_sampling",
    "measure_significance",
    "measure_stability",
    "named_checkpoints",
    "nan_mean",
    "pearson_matrix",
    "predict",
    "rank_intervals",
    "rank_models",
    "read_checkpoints",
    "read_pairs",
    "reversed_pairs",
    "screen",
    "size_bins",
    "spearman_matrix",
    "validate",
    "variance_ratio",
    "wilson",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(import_module(f"potentia.analysis.{_MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
