"""The public names of ``import potentia``, in ``__all__``; ``potentia`` loads this module when one is first used.

Every analysis takes what ``potentia.read`` returns, or directly what it accepts: a store, a table, a folder of results,
a pandas table; or matrices made in Python. Analyses are imported under private names and wrapped for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from potentia.analysis.answers import AnswerFindings
from potentia.analysis.answers import find_answers as _find_answers
from potentia.analysis.benchmark import BenchmarkVerdict
from potentia.analysis.benchmark import (
    find_benchmark as _find_benchmark,
)
from potentia.analysis.benchmark import (
    find_classification as _find_classification,
)
from potentia.analysis.checkpoints import StepUnit as _StepUnit
from potentia.analysis.checkpoints import (
    Training,
    read_checkpoints,
    read_pairs,
)
from potentia.analysis.checkpoints import (
    find_training as _find_training,
)
from potentia.analysis.checkpoints import find_training_signal as _find_training_signal
from potentia.analysis.rankings import (
    ModelComparison,
    RankingOptions,
    Rankings,
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
    Exposure,
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
    find_exposure as _find_exposure,
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
from potentia.selection import SelectedModel, select
from potentia.show import ReportOptions, draw, save_report, write_report
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
    """Return an analysis of evidence as one that takes every source that ``read`` accepts."""

    @wraps(analyze)
    def analyze_source(
        evidence: object, *arguments: Options.args, **options: Options.kwargs
    ) -> Answer:
        return analyze(to_evidence(evidence), *arguments, **options)

    return analyze_source  # type: ignore[return-value]  # it may also be given by name


# --- the commands, by their names -------------------------------------------------------------------------------------

Source = Any  # evidence, matrices, or what ``read`` accepts: a store, a table, a folder of results, a DataFrame


def rankings(source: Source, options: RankingOptions | None = None) -> Rankings:
    """Say who is best and how sure that is: what ``potentia analyze rankings`` prints.

    Args:
        source: A store, a score table, a folder of lm-eval results, a DataFrame, or evidence.
        options: Confidence level, resamples, tasks to leave out; ``RankingOptions()`` where absent.

    Returns:
        Every finding, by name in ``findings_by_name()``; ``scoreboard`` is the answer, ``to_frame()`` its table.

    Example:
        >>> found = potentia.rankings("scores.csv")
        >>> found.headline()
        >>> found.to_frame()
    """
    return _find_rankings(to_evidence(source), options)


def compare(
    source: Source, first: str, second: str, *, margin: float | None = None
) -> ModelComparison:
    """Say which of two models is better on each task, and whether that is real: ``potentia compare``.

    Args:
        source: A store, a score table, a folder of lm-eval results, a DataFrame, or evidence.
        first: A model, by its name or a part of it that no other model has.
        second: The other model.
        margin: Also say whether the one that seems worse is as good within this difference of scores.

    Returns:
        The comparison, task by task; ``sentences()`` say it in words.

    Example:
        >>> potentia.compare("potentia.db", "SmolLM2-135M", "pythia-160m").sentences()
    """
    _check_source_is_first(source, second)
    return _find_pair(to_evidence(source), first, second, margin=margin)


def _check_source_is_first(source: object, last: str) -> None:
    """Refuse arguments in the order of the command line, where the source comes last."""
    if not isinstance(source, str) or "://" in source or Path(source).expanduser().exists():
        return
    if isinstance(last, (str, Path)) and ("://" in str(last) or Path(last).expanduser().exists()):
        raise InputError(
            f"{source!r} is taken for the scores, and {str(last)!r} for a model",
            hint=f"in Python the source comes first: potentia.compare({str(last)!r}, {source!r}, …)",
        )


def benchmark(source: Source, task: str, *, protocol: str | None = None) -> BenchmarkVerdict:
    """Say whether a benchmark is to be kept, fixed or dropped, and why: ``potentia analyze benchmark``.

    Args:
        source: A store, a score table, a folder of lm-eval results, a DataFrame, or evidence.
        task: The benchmark, as it is called in the scores.
        protocol: Under which protocol; the one that ranks the models where absent.

    Example:
        >>> print(potentia.benchmark("potentia.db", "arc_easy"))
    """
    return _find_benchmark(to_evidence(source), task, protocol=protocol)


def answers(source: Source) -> AnswerFindings:
    """Say what answers show beyond accuracy: what ``potentia analyze answers`` prints.

    Args:
        source: A store of a study that was run.

    Returns:
        ``answer_bits``, the bits per byte of right answers beside accuracy; ``blind``, scores without the question;
        ``pass_at_k`` of sampled answers; each None if the study has none.

    Example:
        >>> potentia.answers("potentia.db").sentences()
    """
    return _find_answers(to_evidence(source))


def checkpoints(source: Source, *, unit: _StepUnit | None = None) -> Training:
    """Say whether a pretraining run improves: the first answer of ``potentia analyze checkpoints``.

    Args:
        source: Scores of models called ``run@step``, or of a study that names its checkpoints.
        unit: ``steps``, or ``tokens`` where a study knows them.

    Returns:
        The course of every run; ``find_stability`` and ``find_consistency`` answer the rest.

    Example:
        >>> potentia.checkpoints("potentia.db").headline()
    """
    return _find_training(to_evidence(source), unit=unit)


def exposure(source: Source, *, clean: Sequence[str] = ()) -> Exposure:
    """Say where a model may have seen such test text before: ``potentia analyze exposure``.

    Args:
        source: A store whose study ran with ``probe: true``.
        clean: Models that are known not to have seen these tests, of four other families or more.

    Example:
        >>> potentia.exposure("potentia.db").sentences()
    """
    return _find_exposure(to_evidence(source), clean=clean)


def report(
    source: Source,
    path: str | Path = "report.html",
    *,
    items: int | None = None,
    options: ReportOptions | None = None,
) -> Path:
    """Write the report, one HTML file that needs no network: ``potentia report``.

    Args:
        source: A store, a score table, a folder of lm-eval results, a DataFrame, or evidence.
        path: The file to write.
        items: Examples of each result to show, half of them wrong; up to 40 where absent.
        options: Sections that are asked for: proxies of a task, a division of the models, a baseline.

    Returns:
        The file.

    Example:
        >>> potentia.report("potentia.db", "report.html")
    """
    data = _make_report(to_evidence(source), items=items, options=options)
    return save_report(data, Path(path))


# --- the analyses of single papers, and what the commands above are made of -------------------------------------------

find_benchmark = _with_sources(_find_benchmark)
find_classification = _with_sources(_find_classification)
find_exposure = _with_sources(_find_exposure)
find_training = _with_sources(_find_training)
find_pair = _with_sources(_find_pair)
find_rankings = _with_sources(_find_rankings)
find_ablation = _with_sources(_find_ablation)
find_consistency = _with_sources(_find_consistency)
find_proxies = _with_sources(_find_proxies)
find_stability = _with_sources(_find_stability)
find_training_signal = _with_sources(_find_training_signal)
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
    "SelectedModel",
    "Store",
    "Study",
    "TestTaskOptions",
    "answers",
    "benchmark",
    "checkpoints",
    "compare",
    "draw",
    "evaluate",
    "exposure",
    "find_ablation",
    "find_benchmark",
    "find_classification",
    "find_consistency",
    "find_exposure",
    "find_pair",
    "find_proxies",
    "find_rankings",
    "find_stability",
    "find_test_task",
    "find_training",
    "find_training_signal",
    "make_report",
    "make_study",
    "plan_study",
    "predict",
    "rankings",
    "read",
    "read_checkpoints",
    "read_pairs",
    "read_study",
    "report",
    "reproduce_task_training",
    "reproduce_train_before_test",
    "run_study",
    "select",
    "write_report",
    "write_scores",
]
