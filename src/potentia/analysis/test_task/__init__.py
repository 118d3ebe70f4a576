"""Training on the test task: scaling fits, effects of groups, emergence, mediation, frontiers."""

from potentia.analysis.test_task.cohort import Cohort, Split
from potentia.analysis.test_task.find import SINCE, Options, TestTask, analyze_pair, find_test_task
from potentia.analysis.test_task.pair import Pair, best_of, pair_up
from potentia.analysis.test_task.scaling import fit_hinge, fit_log_linear
from potentia.analysis.test_task.seen import Exposure, find_exposure
from potentia.analysis.test_task.treatment import assign_half, compare_copies
from potentia.facts import chance
