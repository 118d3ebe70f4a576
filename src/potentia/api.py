"""What ``import potentia`` offers, in one list.

Every analysis takes what ``potentia.read`` returns, or directly what ``potentia.read`` accepts: a store, a table, a
folder of results, a pandas table; or matrices made in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from potentia.analysis.benchmark import (
    find_benchmark as _find_benchmark,
)
from potentia.analysis.benchmark import (
    find_classification as _find_classification,
)
from potentia.analysis.checkpoints import (
    find_training as _find_training,
)
from potentia.analysis.checkpoints import (
    read_checkpoints,
    read_pairs,
)
from potentia.analysis.rankings import (
    RankingOptions,
)
from potentia.analysis.rankings import (
    find_pair as _find_pair,
)
from potentia.analysis.rankings import (
    find_rankings as _find_rankings,
)
from potentia.errors import InputError, PotentiaError
from potentia.evidence import Evidence, read, to_evidence
from potentia.formats import write_scores
from potentia.integrations import Predictions, predict
from potentia.notebook import Result, evaluate
from potentia.papers import (
    ProxyOptions,
    TestTaskOptions,
    reproduce_task_training,
    reproduce_train_before_test,
)
from potentia.papers import (
    find_ablation as _find_ablation,
)
from potentia.papers import (
    find_consistency as _find_consistency,
)
from potentia.papers import (
    find_proxies as _find_proxies,
)
from potentia.papers import (
    find_stability as _find_stability,
)
from potentia.papers import (
    find_test_task as _find_test_task,
)
from potentia.run import plan_study, run_study
from potentia.show import ReportOptions, draw, write_report
from potentia.show import make_report as _make_report
from potentia.store import Store
from potentia.study import Study, make_study, read_study
from potentia.values.findings import Finding
from potentia.values.protocol import Protocol
from potentia.values.scores import ItemOutcome, Score, ScoreMatrix

Options = ParamSpec("Options")
Answer = TypeVar("Answer")


def _with_sources(
    analyze: Callable[Concatenate[Evidence, Options], Answer],
) -> Callable[Concatenate[Any, Options], Answer]:
    """Let an analysis of evidence take every source that ``read`` accepts."""

    @wraps(analyze)
    def analyze_source(
        evidence: Any, *arguments: Options.args, **options: Options.kwargs
    ) -> Answer:
        return analyze(to_evidence(evidence), *arguments, **options)

    return analyze_source  # type: ignore[return-value]  # it may also be given by name


find_benchmark = _with_sources(_find_benchmark)
find_classification = _with_sources(_find_classification)
find_training = _with_sources(_find_training)
find_pair = _with_sources(_find_pair)
find_rankings = _with_sources(_find_rankings)
find_ablation = _with_sources(_find_ablation)
find_consistency = _with_sources(_find_consistency)
find_proxies = _with_sources(_find_proxies)
find_stability = _with_sources(_find_stability)
find_test_task = _with_sources(_find_test_task)
make_report = _with_sources(_make_report)

__all__ = [
    "Evidence",
    "Finding",
    "InputError",
    "ItemOutcome",
    "PotentiaError",
    "Predictions",
    "Protocol",
    "ProxyOptions",
    "RankingOptions",
    "ReportOptions",
    "Result",
    "Score",
    "ScoreMatrix",
    "Store",
    "Study",
    "TestTaskOptions",
    "draw",
    "evaluate",
    "find_ablation",
    "find_benchmark",
    "find_classification",
    "find_consistency",
    "find_pair",
    "find_proxies",
    "find_rankings",
    "find_stability",
    "find_test_task",
    "find_training",
    "make_report",
    "make_study",
    "plan_study",
    "predict",
    "read",
    "read_checkpoints",
    "read_pairs",
    "read_study",
    "reproduce_task_training",
    "reproduce_train_before_test",
    "run_study",
    "write_report",
    "write_scores",
]
