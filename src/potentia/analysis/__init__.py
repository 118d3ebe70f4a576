"""Pure functions from score matrices to findings: agreement, significance, alignment, components and the rest."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.analysis.aggregate import Aggregate, aggregate_ranks
    from potentia.analysis.agreement import Agreement, AgreementChange, compare_agreement, measure_agreement
    from potentia.analysis.alignment import Alignment, align, rank_models
    from potentia.analysis.components import Components, find_components
    from potentia.analysis.compute import ComputeFit, fit_compute
    from potentia.analysis.correlation import (
        kendall_matrix,
        kendall_of_signs,
        mean_offdiagonal,
        nan_mean,
        pearson_matrix,
        spearman_matrix,
    )
    from potentia.analysis.finding import Finding, Interval, Table
    from potentia.analysis.groups import (
        GroupAgreement,
        agreement_by_models,
        agreement_by_tasks,
        items_per_task,
        size_bins,
    )
    from potentia.analysis.perplexity import PerplexityAgreement, compare_perplexity
    from potentia.analysis.ranks import RankIntervals, rank_intervals
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

# Which module holds each name; scipy is loaded with the first of them that needs it, not by ``potentia --help``.
_MODULE = {
    "Aggregate": "aggregate",
    "Agreement": "agreement",
    "AgreementChange": "agreement",
    "Alignment": "alignment",
    "Components": "components",
    "ComputeFit": "compute",
    "Finding": "finding",
    "GroupAgreement": "groups",
    "Interval": "finding",
    "PairedComparison": "significance",
    "PerplexityAgreement": "perplexity",
    "RankIntervals": "ranks",
    "Screening": "screening",
    "Significance": "significance",
    "Table": "finding",
    "aggregate_ranks": "aggregate",
    "agreement_by_models": "groups",
    "agreement_by_tasks": "groups",
    "align": "alignment",
    "benjamini_hochberg": "significance",
    "compare_agreement": "agreement",
    "compare_items": "significance",
    "compare_perplexity": "perplexity",
    "detectable_difference": "significance",
    "find_components": "components",
    "fit_compute": "compute",
    "items_per_task": "groups",
    "kendall_matrix": "correlation",
    "kendall_of_signs": "correlation",
    "mcnemar": "significance",
    "mean_offdiagonal": "correlation",
    "measure_agreement": "agreement",
    "measure_significance": "significance",
    "nan_mean": "correlation",
    "pearson_matrix": "correlation",
    "rank_intervals": "ranks",
    "rank_models": "alignment",
    "screen": "screening",
    "size_bins": "groups",
    "spearman_matrix": "correlation",
    "wilson": "significance",
}

__all__ = [
    "Aggregate",
    "Agreement",
    "AgreementChange",
    "Alignment",
    "Components",
    "ComputeFit",
    "Finding",
    "GroupAgreement",
    "Interval",
    "PairedComparison",
    "PerplexityAgreement",
    "RankIntervals",
    "Screening",
    "Significance",
    "Table",
    "aggregate_ranks",
    "agreement_by_models",
    "agreement_by_tasks",
    "align",
    "benjamini_hochberg",
    "compare_agreement",
    "compare_items",
    "compare_perplexity",
    "detectable_difference",
    "find_components",
    "fit_compute",
    "items_per_task",
    "kendall_matrix",
    "kendall_of_signs",
    "mcnemar",
    "mean_offdiagonal",
    "measure_agreement",
    "measure_significance",
    "nan_mean",
    "pearson_matrix",
    "rank_intervals",
    "rank_models",
    "screen",
    "size_bins",
    "spearman_matrix",
    "wilson",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(import_module(f"potentia.analysis.{_MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
