"""What ``import potentia`` offers, in one list."""

from potentia.analysis.benchmark import find_benchmark, find_classification
from potentia.analysis.checkpoints import find_training, read_checkpoints, read_pairs
from potentia.analysis.rankings import RankingOptions, find_pair, find_rankings
from potentia.errors import InputError, PotentiaError
from potentia.evidence import Evidence, read
from potentia.formats import write_scores
from potentia.integrations import Predictions, predict
from potentia.notebook import Result, evaluate
from potentia.papers import (
    ProxyOptions,
    TestTaskOptions,
    find_ablation,
    find_consistency,
    find_proxies,
    find_stability,
    find_test_task,
    reproduce_task_training,
    reproduce_train_before_test,
)
from potentia.run import plan_study, run_study
from potentia.show import ReportOptions, draw, make_report, write_report
from potentia.store import Store
from potentia.study import Study, make_study, read_study
from potentia.values.findings import Finding
from potentia.values.protocol import Protocol
from potentia.values.scores import ItemOutcome, Score, ScoreMatrix
