"""Pure functions from score matrices to findings: agreement, significance, alignment, components and the rest."""

from potentia.analysis.correlation import (
    kendall_matrix,
    kendall_of_signs,
    mean_offdiagonal,
    nan_mean,
    pearson_matrix,
    spearman_matrix,
)

__all__ = [
    "kendall_matrix",
    "kendall_of_signs",
    "mean_offdiagonal",
    "nan_mean",
    "pearson_matrix",
    "spearman_matrix",
]
