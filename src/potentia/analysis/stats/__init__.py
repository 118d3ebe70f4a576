"""Estimators that every room of the analysis shares: Kendall's tau, resampling, tests of significance."""

from potentia.analysis.stats.bootstrap import LEVEL, RESAMPLES
from potentia.analysis.stats.correlation import kendall_matrix, pearson_matrix, spearman_matrix
from potentia.analysis.stats.first_place import (
    ENOUGH_MODELS,
    SURVIVAL_CHANCE,
    estimate_win_chances,
    pack_correct,
    select_survivors,
)
from potentia.analysis.stats.intervals import (
    exact_lower_bound,
    exact_upper_bound,
    interval_of_score,
    score_interval,
    wilson_interval,
)
from potentia.analysis.stats.logistic import fit_balanced_logistic
from potentia.analysis.stats.signal import (
    SignalToNoise,
    measure_decision_accuracy,
    measure_signal_to_noise,
)
from potentia.analysis.stats.significance import Outcomes, Significance, measure_significance
