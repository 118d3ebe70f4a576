"""Training on the test task: scaling fits, effects of groups, emergence, mediation, frontiers."""

from potentia.analysis.test_task.adjustment import compare_copies
from potentia.analysis.test_task.cohort import Cohort, Pair, Split, best_of, pair_up
from potentia.analysis.test_task.find import SINCE, Options, TestTask, analyze_pair, find_test_task
from potentia.analysis.test_task.scaling import fit_hinge, fit_log_linear
from potentia.analysis.test_task.seen import Exposure, find_exposure
from potentia.facts import chance
